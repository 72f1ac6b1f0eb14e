"""`RecordedDisk`: records the writes and syncs of SQLite in a directory, and rebuilds the directory
as a loss of power at any moment may leave it.

SQLite reaches its files through a table of functions, its VFS. The recorder puts a copy of this
table in front. Its functions for opening, writing, cutting, syncing and deleting note the call and
then make it.
"""

import ctypes
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_void_p
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from ergo_py.testing.world.disk import WorldDisk

__all__ = ["Event", "RecordedDisk", "can_record", "recorded"]

_OPEN_CREATE: Final = 0x00000004
_OPEN_JOURNALS: Final = 0x00080000 | 0x00000800 | 0x00004000
"""The flags of a write-ahead log, a rollback journal and a super-journal. SQLite syncs the
directory at the first sync of such a file that it has made.
"""

# Paths are passed on as addresses: SQLite keeps them until the file closes.
_OPEN: Final = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)
_DELETE: Final = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int)
_WRITE: Final = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_TRUNCATE: Final = CFUNCTYPE(c_int, c_void_p, c_int64)
_SYNC: Final = CFUNCTYPE(c_int, c_void_p, c_int)


class _Methods(ctypes.Structure):
    """``sqlite3_io_methods``."""

    _fields_ = (
        ("version", c_int),
        ("close", c_void_p),
        ("read", c_void_p),
        ("write", c_void_p),
        ("truncate", c_void_p),
        ("sync", c_void_p),
        ("others", c_void_p * 16),
    )


class _VFS(ctypes.Structure):
    """``sqlite3_vfs``."""

    _fields_ = (
        ("version", c_int),
        ("file_size", c_int),
        ("max_path", c_int),
        ("next", c_void_p),
        ("name", c_char_p),
        ("data", c_void_p),
        ("open", c_void_p),
        ("delete", c_void_p),
        ("others", c_void_p * 14),
    )


class Event(NamedTuple):
    """A call of SQLite, or a note of the test."""

    verb: str
    """``write``, ``truncate``, ``sync``, ``create``, ``delete``, ``sync directory`` or ``note``."""
    name: str = ""
    """The file."""
    number: int = 0
    """The offset of a write, or the size of a cut file."""
    data: Any = b""
    """The bytes of a write, or the note."""


@dataclass
class RecordedDisk:
    """The events of a directory, in order."""

    directory: Path
    events: list[Event] = field(default_factory=list)
    fault: Callable[[Event], int] | None = None
    """Called before each call of SQLite for a file. Returns 0, or the error of SQLite with which
    the call fails.
    """

    def begin(self, event: Event) -> int:
        """Begin a call of SQLite. Returns its error; 0 for none."""
        return 0 if self.fault is None else self.fault(event)

    def note(self, data: object) -> None:
        """Note an event of the test, such as an acknowledged command."""
        self.events.append(Event("note", data=data))

    def points(self) -> list[int]:
        """The moments around each sync, and in the middle between two."""
        found: set[int] = {0, len(self.events)}
        for number, event in enumerate(self.events):
            if event.verb.startswith("sync"):
                found |= {number, number + 1}
            elif event.verb in ("note", "delete", "create"):
                found.add(number + 1)
        ordered = sorted(found)
        middle = [(a + b) // 2 for a, b in pairwise(ordered)]
        return sorted(found.union(middle))

    def notes_before(self, point: int) -> list[Any]:
        """The notes before a moment."""
        return [event.data for event in self.events[:point] if event.verb == "note"]

    def lose_power(self, point: int, seed: int, directory: Path) -> None:
        """Write the files into another directory, as a loss of power at a moment may leave them: a
        write after the last sync of its file is kept, lost or torn at the border of a sector; a
        file that was made or deleted after the last sync of the directory exists or not.
        """
        chance = Random(f"{seed} {point}")
        disk = WorldDisk(chance)
        entries: dict[str, bool] = {}
        unsure: dict[str, bool] = {}
        for verb, name, number, data in self.events[:point]:
            match verb:
                case "write":
                    disk.file(name).write(data, number)
                case "truncate":
                    if number < len(disk.file(name)):
                        disk.file(name).truncate(number)
                case "sync":
                    disk.file(name).sync()
                case "create" | "delete":
                    unsure.setdefault(name, entries.get(name, False))
                    entries[name] = verb == "create"
                    if verb == "create":
                        disk.file(name).truncate()
                case "sync directory":
                    unsure.clear()
        disk.crash()
        for name, exists in entries.items():
            if name in unsure and chance.random() < 0.5:
                exists = unsure[name]  # noqa: PLW2901 - the entry from before
            if exists:
                (directory / name).write_bytes(disk.file(name).read())


def can_record() -> bool:
    """Whether the recorder can reach the library of SQLite."""
    try:
        return bool(_library().sqlite3_vfs_find)
    except (AttributeError, OSError):
        return False


def _library() -> Any:
    spec = find_spec("_sqlite3")
    library: Any = ctypes.CDLL(spec.origin if spec and spec.has_location else None)
    library.sqlite3_vfs_find.restype = c_void_p
    library.sqlite3_vfs_find.argtypes = [c_char_p]
    library.sqlite3_vfs_register.argtypes = [c_void_p, c_int]
    library.sqlite3_vfs_unregister.argtypes = [c_void_p]
    assert library.sqlite3_libversion_number() == int(
        "{}{:03d}{:03d}".format(*sqlite3.sqlite_version_info)
    )
    return library


@contextmanager
def recorded(directory: Path) -> Iterator[RecordedDisk]:
    """Record the calls of SQLite for the files of a directory. Connections that open meanwhile must
    close before the end.
    """
    library = _library()
    address = library.sqlite3_vfs_find(None)
    disk = RecordedDisk(directory)
    recorder = _Recorder(disk, address)
    library.sqlite3_vfs_register(ctypes.addressof(recorder.vfs), 1)
    try:
        yield disk
    finally:
        library.sqlite3_vfs_unregister(ctypes.addressof(recorder.vfs))
        library.sqlite3_vfs_register(address, 1)


class _Recorder:
    """The VFS in front of another. It keeps the functions alive that SQLite calls."""

    def __init__(self, disk: RecordedDisk, address: int) -> None:
        self._disk = disk
        self._address = address
        original = _VFS.from_address(address)
        self.vfs = _VFS()
        ctypes.memmove(ctypes.addressof(self.vfs), address, ctypes.sizeof(_VFS))
        self._open = _OPEN(original.open)
        self._delete = _DELETE(original.delete)
        self._kept: list[Any] = [_OPEN(self.open), _DELETE(self.delete)]
        self.vfs.name = b"recorder"
        self.vfs.open, self.vfs.delete = (ctypes.cast(each, c_void_p) for each in self._kept)
        self._tables: dict[int, _Methods] = {}
        self._names: dict[int, str] = {}
        self._new_journals: set[str] = set()

    def _name(self, path: int | None) -> str | None:
        """The name of a file of the directory; None for others, such as temporary files."""
        if path is None:
            return None
        found = Path(ctypes.string_at(path).decode())
        is_inside = found.parent.samefile(self._disk.directory)
        return found.name if is_inside and not found.name.endswith("-shm") else None

    def open(self, _vfs: int, path: int | None, file: int, flags: int, out: int) -> int:
        """Open a file, and record its calls from now on."""
        name = self._name(path)
        is_new = name is not None and not (self._disk.directory / name).exists()
        error = 0 if name is None else self._disk.begin(Event("open", name))
        if error:
            ctypes.cast(file, POINTER(c_void_p))[0] = None  # SQLite must not close it
            return error
        result: int = self._open(self._address, path, file, flags, out)
        if result == 0 and name is not None:
            if is_new and flags & _OPEN_CREATE:
                self._disk.events.append(Event("create", name))
                if flags & _OPEN_JOURNALS:
                    self._new_journals.add(name)
            self._names[file] = name
            methods = ctypes.cast(file, POINTER(c_void_p))
            methods[0] = ctypes.addressof(self._table(methods[0]))
        return result

    def delete(self, _vfs: int, path: int, syncs: int) -> int:
        """Delete a file."""
        result: int = self._delete(self._address, path, syncs)
        name = self._name(path)
        if result == 0 and name is not None:
            self._disk.events.append(Event("delete", name))
            if syncs:
                self._disk.events.append(Event("sync directory"))
        return result

    def _table(self, address: Any) -> _Methods:
        if address in self._tables:
            return self._tables[address]
        original = _Methods.from_address(address)
        table = self._tables[address] = _Methods()
        ctypes.memmove(ctypes.addressof(table), address, ctypes.sizeof(_Methods))
        do_write, do_truncate = _WRITE(original.write), _TRUNCATE(original.truncate)
        do_sync = _SYNC(original.sync)

        def write(file: int, data: int, size: int, offset: int) -> int:
            event = Event("write", self._names[file], offset, ctypes.string_at(data, size))
            result: int = self._disk.begin(event) or do_write(file, data, size, offset)
            if result == 0:
                self._disk.events.append(event)
            return result

        def truncate(file: int, size: int) -> int:
            event = Event("truncate", self._names[file], size)
            result: int = self._disk.begin(event) or do_truncate(file, size)
            if result == 0:
                self._disk.events.append(event)
            return result

        def sync(file: int, flags: int) -> int:
            name = self._names[file]
            event = Event("sync", name)
            result: int = self._disk.begin(event) or do_sync(file, flags)
            if result == 0:
                self._disk.events.append(event)
                if name in self._new_journals:
                    self._new_journals.discard(name)
                    self._disk.events.append(Event("sync directory"))
            return result

        new: list[Any] = [_WRITE(write), _TRUNCATE(truncate), _SYNC(sync)]
        self._kept += new
        table.write, table.truncate, table.sync = (ctypes.cast(each, c_void_p) for each in new)
        return table
