"""A path whose file is replaced now and then, as log files are: the files that have been there, oldest first."""

import os
import stat
from collections.abc import Callable, Iterator
from errno import EISDIR
from typing import Final

from .cutting import MessageCutter

__all__ = ["Files", "Followed"]

_CHUNK: Final = 65_536
_NO_LIMIT: Final = 1 << 63


class Followed:
    """One open file, the place in it, and what cuts it. Used by one thread, once it was added to :class:`Files`."""

    def __init__(
        self, path: str, cutter: MessageCutter, now: Callable[[], float], *, follow: bool, from_end: bool
    ) -> None:
        # A fifo is opened without waiting for a writer; and, to be followed, as one of its writers, so that it has no end when the
        # others leave.
        is_fifo = stat.S_ISFIFO(os.stat(path).st_mode)
        access = os.O_RDWR if follow and is_fifo else os.O_RDONLY
        self.fd = os.open(path, access | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        status = os.fstat(self.fd)
        if stat.S_ISDIR(status.st_mode):
            os.close(self.fd)
            raise IsADirectoryError(EISDIR, "a directory has no lines; its changes are told by DirectoryWatch", path)
        self.cutter = cutter
        self.identity = status.st_dev, status.st_ino
        self.number = 0
        """Which of the files at its path it is, from 1."""
        self._is_regular = stat.S_ISREG(status.st_mode)
        self._position = os.lseek(self.fd, 0, os.SEEK_END) if from_end and self._is_regular else 0
        self.count = 0
        """Bytes that were read."""
        self._now = now
        self.opened = self.grew = now()
        """When it was opened, and when there was last something to read."""

    def rests(self, successor: "Followed") -> float:
        """For how many seconds it has neither grown nor had this successor."""
        return self._now() - max(self.grew, successor.opened)

    def size(self) -> int:
        """How many bytes there are; for a fifo nobody knows."""
        return os.fstat(self.fd).st_size if self._is_regular else _NO_LIMIT

    def was_truncated(self) -> bool:
        """Whether it is shorter than what was read of it."""
        return self.size() < self._position

    def rewind(self) -> None:
        """Begin anew."""
        os.lseek(self.fd, 0, os.SEEK_SET)
        self._position = 0
        self.cutter.restart()

    def read(self, limit: int = _NO_LIMIT) -> bytes:
        """Some more of it, of its first ``limit`` bytes; nothing if there is no more at this moment."""
        try:
            data = os.read(self.fd, max(0, min(_CHUNK, limit - self._position)))
        except BlockingIOError:
            return b""
        if data:
            self.grew = self._now()
            self._position += len(data)
            self.count += len(data)
        return data

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)


class Files:
    """The file that is followed, and those before it that may still grow. One thread adds, another reads."""

    def __init__(self) -> None:
        self._files: list[Followed] = []
        self._count = 0
        self._reached = 0
        self._closed = False
        self.rotations = 0
        self.truncations = 0

    def __len__(self) -> int:
        return len(self._files)

    def has_newest(self, status: os.stat_result) -> bool:
        """Whether this is the file that was added last.

        One that is held open keeps its number, and none is let go of before the next is there: so a new file never looks like an
        old one.
        """
        files = self._files
        return bool(files) and files[-1].identity == (status.st_dev, status.st_ino)

    def add(self, file: Followed) -> None:
        """A file that took the place of the one before."""
        self._count += 1
        file.number = self._count
        self._files.append(file)
        if self._closed:
            self.close()

    def read(self, linger: float, rotated: object, truncated: object) -> Iterator[object]:
        """What there is to tell of all of them at this moment, oldest first; ``rotated`` and ``truncated`` in their places.

        The oldest one is let go of when it has a successor, and has neither grown nor got that successor for ``linger`` seconds.
        """
        files = list(self._files)
        # Who writes to a new file has written its last to the old one. So they are measured newest first, and each before those
        # that came before it are read: then no line overtakes an earlier one.
        limits = [file.size() for file in reversed(files)][::-1]
        limits[:1] = [_NO_LIMIT] * len(files[:1])
        for index, (file, limit) in enumerate(zip(files, limits, strict=True)):
            if file.number > self._reached:
                if self._reached:
                    self.rotations += 1
                    yield rotated
                self._reached = file.number
            if file.was_truncated():
                yield from file.cutter.end()
                self.truncations += 1
                file.rewind()
                yield truncated
            while data := file.read(limit):
                yield from file.cutter.feed(data)
            # At once after the last read, which found nothing: who knows how long what follows takes.
            if index == 0 and len(self._files) > 1:
                successor = self._files[1]
                if file.rests(successor) > linger:
                    yield from file.cutter.end()
                    self._files.remove(file)
                    file.close()

    def newest(self) -> Followed:
        """The one that was added last."""
        return self._files[-1]

    def close(self) -> None:
        """Close all of them, and what is added later."""
        self._closed = True
        while self._files:
            try:
                self._files.pop().close()
            except IndexError:  # the other thread was faster
                return
