"""`WorldDisk`: the files of a node of a world. A crash loses, keeps or tears the writes after the
last sync, as a power failure does.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

import trio

from ..._core.vocabulary.options import check_number

__all__ = ["WorldDisk", "WorldFile"]

SECTOR: Final = 512
"""A disk writes a sector as a whole, or not at all."""


@dataclass(frozen=True, slots=True)
class _Write:
    offset: int
    data: bytes


class WorldFile:
    """A file of a `WorldDisk`: bytes, and the writes that were not synced."""

    def __init__(self, random: Random, check: Callable[[], None]) -> None:
        self._random = random
        self._check = check
        self._content = bytearray()
        self._synced = b""
        self._writes: list[_Write] = []

    def __len__(self) -> int:
        return len(self._content)

    def read(self, offset: int = 0, size: int | None = None) -> bytes:
        """Read bytes; all from the offset on without a size."""
        return bytes(self._content[offset : None if size is None else offset + size])

    def write(self, data: bytes, offset: int | None = None) -> None:
        """Write bytes; at the end without an offset.

        Raises:
            OSError: the disk fails; nothing is written.
        """
        self._check()
        at = len(self._content) if offset is None else offset
        check_number("offset", at, least=0, whole=True)
        _put(self._content, at, data)
        self._writes.append(_Write(at, bytes(data)))

    def truncate(self, size: int = 0) -> None:
        """Cut the file, and sync it."""
        del self._content[size:]
        self._keep()

    def sync(self) -> None:
        """Make all writes so far survive a crash.

        Raises:
            OSError: the disk fails. The writes since the last sync are kept, lost or torn, as in a
                crash.
        """
        try:
            self._check()
        except OSError:
            self.crash()
            raise
        self._keep()

    def _keep(self) -> None:
        self._synced = bytes(self._content)
        self._writes.clear()

    def crash(self) -> None:
        """Draw for each write that was not synced whether it is kept, lost or torn at the border of
        a sector.
        """
        content = bytearray(self._synced)
        for write in self._writes:
            fate = self._random.choice(("kept", "lost", "torn"))
            if fate == "kept":
                _put(content, write.offset, write.data)
            elif fate == "torn":
                first = SECTOR - write.offset % SECTOR
                borders = range(first, len(write.data), SECTOR)
                if borders:
                    _put(content, write.offset, write.data[: self._random.choice(borders)])
        self._content = content
        self._keep()


class WorldDisk:
    """The disk of a node. It survives the crashes of the node."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._files: dict[str, WorldFile] = {}
        self.crashes: int = 0
        """How often the node has crashed."""
        self._failing = self._delay = 0.0

    def file(self, name: str) -> WorldFile:
        """The file of this name, which is empty at first."""
        if name not in self._files:
            self._files[name] = WorldFile(self._random, self.check)
        return self._files[name]

    def fail(self, share: float) -> None:
        """Let this share of all writes and syncs fail from now on."""
        self._failing = share

    def slow(self, seconds: float) -> None:
        """Let :meth:`wait` take up to so many seconds from now on."""
        self._delay = seconds

    def check(self) -> None:
        """Draw whether the disk fails.

        Raises:
            OSError: it fails.
        """
        if self._failing and self._random.random() < self._failing:
            raise OSError(errno.EIO, "the disk fails in this world")

    async def wait(self) -> None:
        """Wait as long as the disk takes: no time, unless it is slow."""
        if self._delay:
            await trio.sleep(self._random.uniform(0.0, self._delay))
        else:
            await trio.lowlevel.checkpoint()

    @property
    def names(self) -> list[str]:
        """The names of all files."""
        return list(self._files)

    def crash(self) -> None:
        """Lose writes that were not synced."""
        self.crashes += 1
        for file in self._files.values():
            file.crash()


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data
