"""Files on pipes and terminals that can be woken: their reads end when the doorbell rings.

A thread in ``read`` on a pipe stays there until a byte comes or the last writer leaves; closing the
file under it helps nobody, and a byte of our own would be a lie to whoever reads. So the file is
given another bottom, which looks at the doorbell, too, before it reads. The file itself, with its
encoding and its idea of a line, is the user's own.
"""

import io
import os
import select
import stat
from typing import Any, Protocol, cast

__all__ = ["can_block", "make_wakeable"]

_CHUNK = select.PIPE_BUF
"""What can be written without blocking when a descriptor says that it can be written."""


class Bell(Protocol):
    """Becomes readable when the stop has come."""

    def fileno(self) -> int: ...


def can_block(fd: int) -> bool:
    """Say whether a read may wait for somebody, and is woken by the bell: not on a disk, and
    sockets have a way of their own.
    """
    mode = os.fstat(fd).st_mode
    return not (
        stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISBLK(mode) or stat.S_ISSOCK(mode)
    )


def make_wakeable(file: Any, bell: Bell) -> bool:
    """Have reads and writes of a buffered file end when ``bell`` rings. False if it is not a
    buffered file.
    """
    buffer = file.buffer if isinstance(file, io.TextIOWrapper) else file
    if not isinstance(buffer, io.BufferedReader | io.BufferedWriter) or not isinstance(
        buffer.raw, io.FileIO
    ):
        return False
    original = buffer.raw
    read = b""
    if isinstance(buffer, io.BufferedReader):
        read = _buffered(buffer, original.fileno())
    else:
        buffer.flush()
    # The same object gets another bottom: there is no other way to keep the newline mode of a text
    # file.
    cast(Any, buffer).__init__(_Wakeable(original, bell, read))
    return True


def _buffered(buffer: io.BufferedReader, fd: int) -> bytes:
    """What has been read and not been taken; without reading on, which might block."""
    aside = os.dup(fd)
    try:
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), fd, inheritable=os.get_inheritable(aside))
        try:
            return buffer.peek()
        finally:
            os.dup2(aside, fd, inheritable=False)
    finally:
        os.close(aside)


class _Wakeable(io.RawIOBase):
    """Reads from and writes to a descriptor that belongs to another file, and looks at the bell
    while it waits.
    """

    def __init__(self, original: io.FileIO, bell: Bell, read: bytes) -> None:
        self._original = original
        self._bell = bell.fileno()
        self._read = memoryview(read)

    def readable(self) -> bool:
        return self._original.readable()

    def writable(self) -> bool:
        return self._original.writable()

    def fileno(self) -> int:
        return self._original.fileno()

    def isatty(self) -> bool:
        return self._original.isatty()

    @property
    def name(self) -> Any:
        return self._original.name

    @property
    def mode(self) -> str:
        return self._original.mode

    def readinto(self, target: Any, /) -> int:
        room = memoryview(target).cast("B")
        if self._read:
            count = min(len(self._read), len(room))
            room[:count] = self._read[:count]
            self._read = self._read[count:]
            return count
        if not self._wait(select.POLLIN):
            return 0
        data = os.read(self.fileno(), len(room))
        room[: len(data)] = data
        return len(data)

    def write(self, data: Any, /) -> int:
        if not self._wait(select.POLLOUT):
            raise BrokenPipeError("the meta-process is to end")
        return os.write(self.fileno(), memoryview(data).cast("B")[:_CHUNK])

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._original.close()

    def _wait(self, event: int) -> bool:
        """Wait until the descriptor is ready. False when the bell has rung."""
        poll = select.poll()
        poll.register(self.fileno(), event)
        poll.register(self._bell, select.POLLIN)
        return all(fd != self._bell for fd, _ in poll.poll())
