"""`LocalStore`: the store of a `Local` network: small files in its directory, and locks on files.

A lock (``flock``) makes a comparison and the write after it a single step. Another lock belongs to
a node for as long as its program runs: so other nodes know at once that the program has ended.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

import trio

from ..errors import StoreError
from .store import TIMEOUT, ConflictError, Entry

__all__ = ["LocalStore"]

T = TypeVar("T")

_PAUSE: Final = 0.005
"""Seconds between attempts to get the lock, which a program holds for less than a millisecond."""
_REVISION: Final = 20
"""Bytes of the revision at the beginning of a file."""
_LEFTOVER: Final = 24 * 3600.0
"""Seconds after which the lock file of a program that has ended is removed."""


class LocalStore:
    """The table, as a single node sees it."""

    def __init__(self, directory: Path, node: str, creation: int) -> None:
        self._directory = directory / "names"
        self._presence = self._presence_file(node, creation)
        self._presence_lock = -1

    # -- entries -----------------------------------------------------------------------------------

    async def get(self, key: str) -> Entry | None:
        """As :meth:`Store.get`."""
        await trio.lowlevel.checkpoint()
        try:
            return self._read(key)
        except OSError as error:
            raise self._error(error) from None

    async def put(self, key: str, value: bytes, revision: int) -> int:
        """As :meth:`Store.put`."""
        return await self._locked(lambda: self._replace(key, value, revision))

    async def delete(self, key: str, revision: int) -> None:
        """As :meth:`Store.delete`."""
        await self._locked(lambda: self._remove(key, revision))

    async def age(self) -> float:
        """As :meth:`Store.age`. Files are not lost while the machine runs."""
        await trio.lowlevel.checkpoint()
        return inf

    def _read(self, key: str) -> Entry | None:
        try:
            data = self._file(key).read_bytes()
        except FileNotFoundError:
            return None
        try:
            return Entry(data[_REVISION:], int(data[:_REVISION]))
        except ValueError:
            raise StoreError(f"{self._file(key)} is no entry of a name; remove the file") from None

    def _check(self, key: str, revision: int) -> None:
        found = self._read(key)
        if revision != (0 if found is None else found.revision):
            raise ConflictError(key)

    def _replace(self, key: str, value: bytes, revision: int) -> int:
        self._check(key, revision)
        fresh = self._next_revision()
        self._write(self._file(key), b"%0*d" % (_REVISION, fresh) + value)
        if self._presence_lock >= 0:
            os.utime(self._presence_lock)  # so that no cleaner of temporary files removes it
        return fresh

    def _next_revision(self) -> int:
        """A revision that no entry ever had. A moment, since a cleaner of temporary files may have
        removed the last revision; and larger than the last, since clocks are set back.
        """
        path = self._directory / ".last"
        try:
            last = int(path.read_bytes())
        except (FileNotFoundError, ValueError):
            last = 0
        fresh = max(last + 1, time.time_ns())
        self._write(path, b"%d" % fresh)
        return fresh

    def _write(self, path: Path, data: bytes) -> None:
        hidden = path.with_name(f".{os.getpid()}+{id(self):x}")
        hidden.write_bytes(data)
        os.replace(hidden, path)

    def _remove(self, key: str, revision: int) -> None:
        self._check(key, revision)
        self._file(key).unlink(missing_ok=True)

    async def _locked(self, function: Callable[[], T]) -> T:
        """Call a function while no other program does."""
        end = time.monotonic() + TIMEOUT
        while True:
            await trio.lowlevel.checkpoint()
            try:
                self._prepare()
                with _lock(self._directory / ".lock"):
                    return function()
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

    def _file(self, key: str) -> Path:
        # The names of files begin with "=", so that none is hidden, or a lock.
        return self._directory / f"={quote(key, safe='')}"

    # -- programs ----------------------------------------------------------------------------------

    def _presence_file(self, node: str, creation: int) -> Path:
        return self._directory / f".{quote(node, safe='')}+{creation}"

    def _prepare(self) -> None:
        if self._presence_lock >= 0:
            return
        self._directory.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(self._presence, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another program looks at it at this moment
            os.close(lock)
            raise
        self._presence_lock = lock
        for path in self._directory.glob(".*+*"):
            with suppress(OSError):
                if path.stat().st_mtime < time.time() - _LEFTOVER and _is_unlocked(path):
                    path.unlink()

    def is_gone(self, node: str, creation: int) -> bool:
        """As :meth:`Store.is_gone`."""
        path = self._presence_file(node, creation)
        try:
            return path != self._presence and _is_unlocked(path)
        except OSError:  # the file is missing: a cleaner of temporary files may have removed it
            return False

    def close(self) -> None:
        """Tell the other nodes that the program does not use the store any more."""
        lock, self._presence_lock = self._presence_lock, -1
        if lock >= 0:
            with suppress(OSError):
                self._presence.unlink()
            os.close(lock)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _is_unlocked(path: Path) -> bool:
    """Whether no program holds the lock of a file.

    Raises:
        OSError: there is no such file.
    """
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
