"""`FollowedFiles`: the files of a path whose file is replaced from time to time, as log files are;
oldest first.
"""

import os
import stat
from collections.abc import Callable, Iterator
from errno import EISDIR
from typing import Final

from ..parsing.cutter import MessageCutter

__all__ = ["FollowedFiles", "FollowedFile"]

_CHUNK: Final = 65_536
_NO_LIMIT: Final = 1 << 63
_TAIL: Final = 64
"""How many of the last bytes are compared at a check: if they have changed, the file was
rewritten.
"""


class FollowedFile:
    """An open file, the position in it, and its cutter. Used by a single thread once it is in
    :class:`FollowedFiles`.
    """

    def __init__(
        self,
        path: str,
        cutter: MessageCutter,
        now: Callable[[], float],
        *,
        follow: bool,
        from_end: bool,
    ) -> None:
        # Open a fifo without waiting for a writer. To follow a fifo, open it for writing, too: then
        # it has no end when the other writers leave.
        is_fifo = stat.S_ISFIFO(os.stat(path).st_mode)
        access = os.O_RDWR if follow and is_fifo else os.O_RDONLY
        self.fd: int = os.open(path, access | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        status = os.fstat(self.fd)
        if stat.S_ISDIR(status.st_mode):
            os.close(self.fd)
            raise IsADirectoryError(
                EISDIR, "a directory has no lines; its changes are told by DirectoryWatch", path
            )
        self.cutter = cutter
        self.identity: tuple[int, int] = status.st_dev, status.st_ino
        self.number = 0
        """Its place in the sequence of files at the path, from 1."""
        self._follows = follow
        self._has_size = stat.S_ISREG(status.st_mode)
        self._position = os.lseek(self.fd, 0, os.SEEK_END) if from_end and self._has_size else 0
        self._changed = status.st_mtime_ns
        self._tail = b""
        if self._position:
            self._tail = os.pread(self.fd, _TAIL, max(0, self._position - _TAIL))
        self.error: OSError | None = None
        """The error of the last check, if any: a temporary error of a followed file."""
        self.count: int = 0
        """Bytes that were read."""
        self._now = now
        self.opened: float = now()
        """When the file was opened."""
        self.grew: float = self.opened
        """When it last had data to read."""

    def rests(self, successor: "FollowedFile") -> float:
        """Seconds since it last grew, or since this successor came, whichever is later."""
        return self._now() - max(self.grew, successor.opened)

    def size(self) -> int:
        """The size in bytes; a fifo has none."""
        if not self._has_size:
            return _NO_LIMIT
        try:
            return os.fstat(self.fd).st_size
        except OSError as error:
            self.error = error
            return self._position

    def was_truncated(self) -> bool:
        """Whether it is shorter than the position, or was shorter and has grown again since the
        last check.
        """
        self.error = None
        if not self._has_size:
            return False
        try:
            status = os.fstat(self.fd)
            if status.st_size < self._position:
                return not self._lies_about_size(status.st_size)
            if status.st_mtime_ns == self._changed and status.st_size == self._position:
                return False
            self._changed = status.st_mtime_ns
            tail = self._tail
            return bool(tail) and os.pread(self.fd, len(tail), self._position - len(tail)) != tail
        except OSError as error:
            self.error = error
            return False

    def _lies_about_size(self, size: int) -> bool:
        """Files such as those in /proc have size 0, and can be read all the same."""
        if size == 0 and os.pread(self.fd, 1, 0) and os.fstat(self.fd).st_size == 0:
            self._has_size = False
        return not self._has_size

    def rewind(self) -> None:
        """Start again from the beginning."""
        os.lseek(self.fd, 0, os.SEEK_SET)
        self._position = 0
        self._tail = b""
        self.cutter.restart()

    def read(self, limit: int = _NO_LIMIT) -> bytes:
        """Read more, up to the first ``limit`` bytes of the file. Empty if the file has
        no further bytes at this moment.

        Raises:
            OSError: the file cannot be read. Not with ``follow``: then the reader tries again at
                the next check.
        """
        try:
            data = os.read(self.fd, max(0, min(_CHUNK, limit - self._position)))
        except BlockingIOError:
            return b""
        except OSError as error:
            if not self._follows:
                raise
            self.error = error
            return b""
        if data:
            self.grew = self._now()
            self._position += len(data)
            self.count += len(data)
            self._tail = data[-_TAIL:] if len(data) >= _TAIL else (self._tail + data)[-_TAIL:]
        return data

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)


class FollowedFiles:
    """The followed file, and earlier files that may still grow. One thread adds files, another
    reads them.
    """

    def __init__(self) -> None:
        self._files: list[FollowedFile] = []
        self._count = 0
        self._reached = 0
        self._closed = False
        self.rotations: int = 0
        self.truncations: int = 0

    def __len__(self) -> int:
        return len(self._files)

    def has_newest(self, status: os.stat_result) -> bool:
        """Whether this is the file that was added last.

        The system does not reuse the inode of an open file, and a file is closed only after its
        successor is open: so a new file never looks like an old file.
        """
        files = self._files
        return bool(files) and files[-1].identity == (status.st_dev, status.st_ino)

    def add(self, file: FollowedFile) -> None:
        """Add a file that took the place of the file before."""
        self._count += 1
        file.number = self._count
        self._files.append(file)
        if self._closed:
            self.close()

    def read(self, linger: float, rotated: object, truncated: object) -> Iterator[object]:
        """The messages of all files at this moment, oldest first, with ``rotated`` and
        ``truncated`` in their places.

        The oldest file is closed when it has a successor, and for ``linger`` seconds has neither
        grown nor got that successor.
        """
        files = list(self._files)
        # A program that writes to a new file has finished with the old file. So take the sizes
        # newest first, before reading any: then no line overtakes an earlier line.
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
            # Check directly after the last read, which found nothing: the next steps may take long.
            if index == 0 and len(self._files) > 1:
                successor = self._files[1]
                if file.rests(successor) > linger:
                    yield from file.cutter.end()
                    self._files.remove(file)
                    file.close()

    def error(self) -> OSError | None:
        """The error of a file at its last check, if any."""
        return next((file.error for file in list(self._files) if file.error is not None), None)

    def newest(self) -> FollowedFile:
        """The file that was added last."""
        return self._files[-1]

    def close(self) -> None:
        """Close all files, also those that are added later."""
        self._closed = True
        while self._files:
            try:
                self._files.pop().close()
            except IndexError:  # the other thread was faster
                return
