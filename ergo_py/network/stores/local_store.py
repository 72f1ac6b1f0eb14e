"""`LocalStore`: the store of a `Local` network: small files in its directory, and locks on files.

Each entry has a mark in a hidden directory, and the release of its name removes both. A mark
without an entry tells that someone has removed the file of a name that may be held.

A lock (``flock``) makes a comparison and the write after it a single step. Another lock belongs to
a node for as long as its program runs: so other nodes know at once that the program has ended. It
is beside the directory of the entries, so that it outlives their loss.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

import trio

from ..errors import StoreError
from .file_locks import is_same_file, is_unlocked, locked_file
from .store import LARGEST, TIMEOUT, Age, ConflictError, Entry

__all__ = ["LocalStore"]

T = TypeVar("T")

# Not measured. flock() could wait itself, but it would hold the loop.
_PAUSE: Final = 0.005
"""Seconds between attempts to get the lock, which a program holds for less than a millisecond."""
_REVISION: Final = 20
"""Bytes of the revision at the beginning of a file."""
_LEFTOVER: Final = 24 * 3600.0
"""Seconds after which the lock file of a program that has ended is removed."""


class LocalStore:
    """The table, as a single node sees it."""

    def __init__(self, directory: Path, node: str, creation: int) -> None:
        self._place = directory
        self._directory = directory / "names"
        self._presence = self._presence_file(node, creation)
        self._presence_lock = -1
        self._has_used = False
        """Whether this node may have entries."""

    # -- entries -----------------------------------------------------------------------------------

    async def get(self, key: str) -> Entry | None:
        """As :meth:`Store.get`."""
        await trio.lowlevel.checkpoint()
        try:
            found = self._read(key)
            if found is not None or not self._is_lost(key):
                return found
        except OSError as error:
            raise self._error(error) from None
        # Another program may just be writing it.
        return await self._locked(lambda: self._read(key), key)

    async def put(self, key: str, value: bytes, revision: int) -> Entry:
        """As :meth:`Store.put`."""
        return await self._locked(lambda: self._replace(key, value, revision), key)

    async def delete(self, key: str, revision: int) -> None:
        """As :meth:`Store.delete`."""
        await self._locked(lambda: self._remove(key, revision))

    async def age(self) -> Age:
        """As :meth:`Store.age`."""
        return await self._locked(self._age)

    def _age(self) -> Age:
        boot, _, born = self._born.read_text(encoding="ascii").partition(" ")
        # The monotonic clock is the same for all programs of the machine until it restarts, which
        # `boot` tells; the time of day may be set back.
        seconds = time.monotonic() - float(born)
        # No lease outlives a restart of the machine.
        age = seconds if boot == _boot() and seconds >= 0.0 else inf
        return Age(age, age)

    @property
    def _born(self) -> Path:
        return self._directory / ".born"

    def _note_birth(self, key: str) -> None:
        """Write down when the directory was made, if it is new. It is new again when the entry of a
        key was removed by something else than a release.

        It is of no age if no program runs that has used an earlier directory: then no lease was
        lost with it.
        """
        try:
            self._age()
            is_new = bool(key) and self._is_lost(key)
        except (FileNotFoundError, ValueError):
            is_new = True
        if is_new:
            is_first = not self._has_used and not any(map(_is_used, self._presences()))
            born = -inf if is_first else time.monotonic()
            self._write(self._born, f"{_boot()} {born}".encode("ascii"))
            for mark in self._marks.glob("=*"):
                # Only the marks without entries: they have told of the loss, and the age of the
                # directory tells it from now on.
                if not (self._directory / mark.name).exists():
                    mark.unlink()
        if not self._has_used:
            os.pwrite(self._presence_lock, b"1", 0)
            self._has_used = True

    @property
    def _marks(self) -> Path:
        return self._directory / ".held"

    def _mark(self, key: str) -> Path:
        return self._marks / self._file(key).name

    def _is_lost(self, key: str) -> bool:
        """Whether a key has a mark and no entry."""
        return self._mark(key).exists() and not self._file(key).exists()

    def _read(self, key: str) -> Entry | None:
        try:
            data = self._file(key).read_bytes()
        except FileNotFoundError:
            return None
        revision = _revision(data[:_REVISION])
        if not revision:
            raise StoreError(f"{self._file(key)} is no entry of a name; remove the file")
        return Entry(data[_REVISION:], revision, revision)

    def _check(self, key: str, revision: int) -> None:
        found = self._read(key)
        if revision != (0 if found is None else found.revision):
            raise ConflictError(key)

    def _replace(self, key: str, value: bytes, revision: int) -> Entry:
        self._check(key, revision)
        data = b"%0*d" % (_REVISION, self._next_revision()) + value
        # Before the entry: a program that is killed in between leaves a mark that delays the name,
        # and never an entry whose loss nobody notices.
        self._marks.mkdir(mode=0o700, exist_ok=True)
        self._mark(key).touch()
        if revision:
            self._write(self._file(key), data)
        else:
            self._write_first(key, data)
        for path in (self._presence, self._born, self._lock, self._marks):
            with suppress(OSError):
                os.utime(path)  # so that no cleaner of temporary files removes it
        fresh = int(data[:_REVISION])
        return Entry(value, fresh, fresh)

    def _next_revision(self) -> int:
        """A revision that no entry ever had. A moment, since a cleaner of temporary files may have
        removed the last revision; and larger than the last, since clocks are set back.
        """
        path = self._directory / ".last"
        try:
            last = _revision(path.read_bytes())
        except FileNotFoundError:
            last = 0
        # Written before the entry: a program that is killed in between skips a number, and none is
        # given out twice.
        fresh = max(last + 1, time.time_ns())
        self._write(path, b"%d" % fresh)
        return fresh

    def _write_first(self, key: str, data: bytes) -> None:
        """Write an entry if there is room to renew it, too. On a full disk, a removed entry would
        make room for a lease that cannot be renewed, again and again.
        """
        path = self._file(key)
        spare = path.with_name(f".{os.getpid()}+{id(self):x}+spare")
        try:
            spare.write_bytes(data)
            self._write(path, data)
        except OSError:
            self._mark(key).unlink(missing_ok=True)
            raise
        finally:
            spare.unlink(missing_ok=True)

    def _write(self, path: Path, data: bytes) -> None:
        hidden = path.with_name(f".{os.getpid()}+{id(self):x}")
        try:
            hidden.write_bytes(data)
            # Readers do not take the lock: they find the old content or the new, and never a part
            # of it.
            os.replace(hidden, path)
        except OSError:
            hidden.unlink(missing_ok=True)
            raise

    def _remove(self, key: str, revision: int) -> None:
        self._check(key, revision)
        # Before the entry: a program that is killed in between leaves an entry, which others take
        # over as that of any program that has ended, and never a mark that tells of a loss.
        self._mark(key).unlink(missing_ok=True)
        self._file(key).unlink(missing_ok=True)

    async def _locked(self, function: Callable[[], T], key: str = "") -> T:
        """Call a function while no other program does. Looks before whether the entry of the key
        was lost.
        """
        end = time.monotonic() + TIMEOUT
        while True:
            await trio.lowlevel.checkpoint()
            try:
                self._prepare()
                lock = locked_file(self._lock)
                try:
                    self._note_birth(key)
                    # No checkpoint between comparison and write: a cancellation comes before both
                    # or after both.
                    return function()
                finally:
                    os.close(lock)
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise StoreError(
                        f"another program has held the lock of {self._directory} for "
                        f"{TIMEOUT:g} s; perhaps it is stopped"
                    ) from None
            except OSError as error:
                raise self._error(error) from None
            await trio.sleep(_PAUSE)

    def _error(self, error: OSError) -> StoreError:
        if isinstance(error, StoreError):
            return error
        return StoreError(f"no entries of names in {self._directory}: {error.strerror or error}")

    @property
    def _lock(self) -> Path:
        return self._directory / ".lock"

    def _file(self, key: str) -> Path:
        # The names of files begin with "=", so that none is hidden, or a lock.
        return self._directory / f"={quote(key, safe='')}"

    # -- programs ----------------------------------------------------------------------------------

    def _presence_file(self, node: str, creation: int) -> Path:
        # An entry may name a node of any characters, also of those that no file name has.
        return self._place / f".{quote(node, safe='', errors='surrogatepass')}+{creation}"

    def _presences(self) -> list[Path]:
        """The files of the other programs."""
        return [path for path in self._place.glob(".*+*") if path != self._presence]

    def _prepare(self) -> None:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        if self._presence_lock >= 0:
            if is_same_file(self._presence_lock, self._presence):
                return
            os.close(self._presence_lock)
            self._presence_lock = -1
        self._presence_lock = locked_file(self._presence)
        if self._has_used:
            os.pwrite(self._presence_lock, b"1", 0)
        for path in self._presences():
            with suppress(OSError):
                # The age counts, too: a program that is about to lock its file has not locked it
                # yet.
                if path.stat().st_mtime < time.time() - _LEFTOVER and is_unlocked(path):
                    path.unlink()

    def is_gone(self, node: str, creation: int) -> bool:
        """As :meth:`Store.is_gone`."""
        path = self._presence_file(node, creation)
        try:
            return path != self._presence and is_unlocked(path)
        except OSError:  # the file is missing: a cleaner of temporary files may have removed it
            return False

    def close(self) -> None:
        """Tell the other nodes that the program does not use the store any more."""
        lock, self._presence_lock = self._presence_lock, -1
        if lock >= 0:
            with suppress(OSError):
                self._presence.unlink()
            os.close(lock)

    def forked(self) -> None:
        """Close the copy of the lock in a forked child: other nodes would take the program for a
        running program when it has ended.
        """
        lock, self._presence_lock = self._presence_lock, -1
        if lock >= 0:
            os.close(lock)


def _revision(digits: bytes) -> int:
    """The revision in a file; 0 if the file does not hold one."""
    is_number = digits.isdigit() and len(digits) <= _REVISION
    return int(digits) if is_number and int(digits) <= LARGEST else 0


def _is_used(presence: Path) -> bool:
    """Whether a program runs that may have entries."""
    try:
        return presence.stat().st_size > 0 and not is_unlocked(presence)
    except OSError:  # the program has just ended, or the file is a socket
        return False


def _boot() -> str:
    """The identity of this start of the machine; empty where the system does not tell it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
