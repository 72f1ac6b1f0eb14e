"""`make_wakeable`: makes the reads of a pipe or terminal file end when the doorbell rings.

A thread in ``read`` on a pipe blocks until a byte comes or the last writer closes. Closing the file
does not wake the thread, and a byte written by us would corrupt the data. So the file gets another
raw layer, which polls the doorbell, too, before it reads. The file object itself, with its encoding
and its newline mode, stays the user's own.
"""

import io
import os
import select
import stat
from typing import TYPE_CHECKING, Any, Protocol, cast

from ..runtime.bridge import poll_in_thread

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

__all__ = ["can_block", "make_wakeable"]

_CHUNK = getattr(select, "PIPE_BUF", 512)
"""Bytes that can be written without blocking to a descriptor that polls as writable: at least 512
by POSIX. Windows has no such number.
"""


class Bell(Protocol):
    """A descriptor that becomes readable when the meta-process stops."""

    def fileno(self) -> int: ...


def can_block(fd: int) -> bool:
    """Say whether a read may block and needs the bell: reads from disk do not block, and sockets
    are woken by ``shutdown``.
    """
    mode = os.fstat(fd).st_mode
    return not (
        stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISBLK(mode) or stat.S_ISSOCK(mode)
    )


def make_wakeable(file: object, bell: Bell) -> bool:
    """Make reads and writes of a buffered file end when ``bell`` rings. False if the file is not
    buffered.
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
    # Initialise the same object with another raw layer: a new TextIOWrapper could not take over the
    # newline mode, which cannot be read back.
    cast(Any, buffer).__init__(_Wakeable(original, bell, read))
    return True


def _buffered(buffer: io.BufferedReader, fd: int) -> bytes:
    """The bytes in the buffer. peek() would read on and might block, so the descriptor is replaced
    by the empty /dev/null meanwhile.
    """
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
    """Raw layer that reads and writes the descriptor of another file, and polls the bell while it
    waits.
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

    def readinto(self, target: "WriteableBuffer", /) -> int:
        room = memoryview(target).cast("B")
        if self._read:
            count = min(len(self._read), len(room))
            room[:count] = self._read[:count]
            self._read = self._read[count:]
            return count
        # 0 bytes are the end of the file for the buffer above: a loop over the lines ends as if the
        # writer had left.
        if not self._wait(select.POLLIN):
            return 0
        data = os.read(self.fileno(), len(room))
        room[: len(data)] = data
        return len(data)

    def write(self, data: "ReadableBuffer", /) -> int:
        if not self._wait(select.POLLOUT):
            raise BrokenPipeError("the meta-process is stopping")
        # A larger write may block although the descriptor polls as writable, and the bell would not
        # wake it.
        return os.write(self.fileno(), memoryview(data).cast("B")[:_CHUNK])

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._original.close()

    def _wait(self, event: int) -> bool:
        """Block until the descriptor is ready. False when the bell has rung."""
        poll = select.poll()
        poll.register(self.fileno(), event)
        poll.register(self._bell, select.POLLIN)
        return all(fd != self._bell for fd, _ in poll_in_thread(poll, None))
