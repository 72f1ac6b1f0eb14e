"""`FrameWriter`: writes the frames to another node on a connection."""

import socket
from collections import deque
from typing import Final

import trio
from trio.lowlevel import current_task

from ..._core.runtime.parking import park, wake
from .frame_reader import HEADER

__all__ = ["FrameWriter"]

# Not measured: four times the default window, which the frames of a session hardly exceed. A
# dropped frame is sent again when the peer asks for it.
_BUFFER: Final = 4 << 20
"""Bytes that may wait for a connection. More are dropped: the session sends them again."""
# Measured on a Unix socket: a copy is quicker up to 8 KiB (1.1 µs for 256 bytes, 1.3 µs in two
# pieces), and slower from 16 KiB on (6.1 µs for 64 KiB, 4.4 µs in two pieces).
_COPIED: Final = 16 * 1024
"""Most bytes of a frame that is copied behind its header, for a single write."""


class FrameWriter:
    """A connection to another node, and the frames that wait for it."""

    def __init__(self) -> None:
        self._waiting: deque[bytes | memoryview] = deque()
        """Frames, and a view of the rest of a frame that is partly written: copies of the rest of
        a long frame would be as many as its writes.
        """
        self._size = 0
        self._socket: socket.socket | None = None
        self._task: trio.lowlevel.Task | None = None
        self._is_writing = False
        self._written = trio.Event()
        self.is_closed: bool = False

    async def wait_written(self) -> None:
        """Wait until no frame waits."""
        while self._waiting:
            await self._written.wait()

    def send(self, frame: bytes) -> None:
        """Write a frame now if the socket takes it, else soon."""
        header = HEADER.pack(len(frame))
        # A copy of a long frame behind its header would take as long as its way to the socket.
        pieces = (header, frame) if len(frame) > _COPIED else (header + frame,)
        size = len(header) + len(frame)
        if self._socket is not None and not self._waiting and not self._is_writing:
            try:
                sent = (
                    self._socket.send(pieces[0])
                    if len(pieces) == 1
                    else self._socket.sendmsg(pieces)
                )
            except BlockingIOError:
                sent = 0
            except OSError:  # the writing task finds the error, too
                sent = 0
            if sent == size:
                return
            self._size += size - sent
            for piece in pieces:
                if sent < len(piece):
                    self._waiting.append(memoryview(piece)[sent:])
                sent = max(0, sent - len(piece))
        # A frame that is longer than the buffer goes if no other waits: it could never go
        # otherwise, and the session would send it again and again.
        elif self._size + size <= _BUFFER or not self._waiting:
            self._waiting.extend(pieces)
            self._size += size
        if self._task is not None:
            wake(self._task)

    async def run(self, connection: socket.socket, name: bytes) -> None:
        """Write frames until the other end closes the connection."""
        # In front of the frames that were sent while the connection was made: the other end reads
        # the name of this node from the first frame.
        self._waiting.appendleft(HEADER.pack(len(name)) + name)
        self._size += HEADER.size + len(name)
        self._socket = connection
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._wait_for_end, connection, nursery.cancel_scope)
            self._task = task = current_task()
            try:
                while True:
                    while self._waiting:
                        await self._write(connection)
                    self._note_written()
                    await park(task)
            except OSError:  # the other end is gone
                nursery.cancel_scope.cancel()

    async def _write(self, connection: socket.socket) -> None:
        data = self._waiting[0]
        self._is_writing = True
        try:
            # A cancellation can only come in the wait below, between two writes: no frame is
            # written twice, and the rest is dropped with the connection.
            sent = connection.send(data)
        except BlockingIOError:
            await trio.lowlevel.wait_writable(connection)
            return
        finally:
            self._is_writing = False
        self._size -= sent
        if sent == len(data):
            self._waiting.popleft()
        else:
            # Not the copy of the rest: a frame of 16 MiB takes hundreds of writes.
            self._waiting[0] = memoryview(data)[sent:]

    async def _wait_for_end(self, connection: socket.socket, scope: trio.CancelScope) -> None:
        # The other end never writes on this connection: it is readable when it is closed.
        await trio.lowlevel.wait_readable(connection)
        scope.cancel()

    def _note_written(self) -> None:
        self._written.set()
        self._written = trio.Event()

    def close(self) -> None:
        """Drop the frames that wait: the session sends them again."""
        self.is_closed = True
        self._socket = None
        self._waiting.clear()
        self._size = 0
        self._note_written()
