"""`Writer`: output queue of a stream socket. It writes on the loop: at once if the operating system
takes the bytes, otherwise as it does.
"""

import socket
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import islice
from math import inf
from typing import Final

import trio
from trio.lowlevel import notify_closing, wait_writable

from ..._core.tables.pending_calls import Caller

__all__ = ["Writer"]

_DONT_WAIT: Final = socket.MSG_DONTWAIT
_PIECES: Final = 64
"""Pieces to pass to the operating system in a call."""


class Writer:
    """The output of a socket. Everything here happens on the loop.

    A thread may be blocked reading the same socket: a write with ``MSG_DONTWAIT`` never blocks.
    Bytes that do not fit wait in a queue, which a task drains; the task exists only while bytes
    wait.
    """

    __slots__ = (
        "_answer",
        "_callers",
        "_changed",
        "_closed",
        "_failed",
        "_now",
        "_queue",
        "_scope",
        "_send",
        "_socket",
        "_start",
        "last",
        "pending",
        "stall",
        "written",
    )

    _send: Callable[[bytes, int], int]
    _now: Callable[[], float]
    _socket: socket.socket
    last: float
    """When the operating system last took some bytes; at first, when the writer got its socket."""

    def __init__(
        self,
        *,
        stall: float | None,
        start: Callable[[Callable[[], Awaitable[None]]], None],
        changed: Callable[[], None],
        failed: Callable[[OSError | TimeoutError], None],
        answer: Callable[[Caller, int], object],
    ) -> None:
        """``stall`` is how long the peer may take nothing; ``changed`` is called when waiting bytes
        are out.
        """
        self.stall = stall
        self._start = start
        self._changed = changed
        self._failed = failed
        self._answer = answer
        self._queue: deque[memoryview] = deque()
        self._callers: deque[tuple[int, Caller, int]] = deque()
        self._scope: trio.CancelScope | None = None
        self._closed = False
        self.pending = 0
        """Bytes that wait for the peer."""
        self.written = 0
        """Bytes that the operating system has taken."""

    def use(self, sock: socket.socket, now: Callable[[], float]) -> None:
        """Write to this socket from now on; ``now`` tells the time."""
        self._socket = sock
        self._now = now
        self._send = sock.send
        self.last = self._now()

    def write(self, data: bytes) -> bool:
        """Write as much as possible, and keep the rest. True if no bytes wait.

        Raises:
            OSError: the connection is broken.
        """
        if self._closed:
            return True
        sent = 0
        if not self._queue:
            try:
                sent = self._send(data, _DONT_WAIT)
            except BlockingIOError:  # no room: all of the data waits
                pass
            self.written += sent
            if sent == len(data):
                self.last = self._now()
                return True
        if not data:
            # Never queue an empty piece: sending it makes no progress, so it would stay in the
            # queue.
            return False
        # Copy a mutable buffer: the sender could still change it.
        self._queue.append(memoryview(data if type(data) is bytes else bytes(data))[sent:])
        self.pending += len(data) - sent
        if self._scope is None:
            self._scope = trio.CancelScope()
            self._start(self._drain)
        return False

    def answer_when_written(self, caller: Caller, size: int) -> None:
        """Answer a caller once all bytes that were written up to now are out."""
        self._callers.append((self.written + self.pending, caller, size))

    def close(self) -> None:
        """Drop the waiting bytes, and wake the task that waits for the socket, so that it can be
        closed.
        """
        self._closed = True
        self._queue.clear()
        self.pending = 0
        if self._scope is not None:
            self._scope.cancel()
            if self._socket.fileno() >= 0:
                notify_closing(self._socket)

    async def _drain(self) -> None:
        assert self._scope is not None
        try:
            with self._scope:
                while self._queue:
                    with trio.move_on_after(inf if self.stall is None else self.stall) as patience:
                        await wait_writable(self._socket)
                    if patience.cancelled_caught:
                        raise TimeoutError(f"the peer took nothing for {self.stall:g} s")
                    self._write_some()
        except (OSError, trio.ClosedResourceError) as error:
            if not self._closed:
                self._closed = True
                self._failed(error if isinstance(error, OSError) else OSError(str(error)))
        finally:
            self._scope = None

    def _write_some(self) -> None:
        queue = self._queue
        try:
            sent = self._socket.sendmsg(list(islice(queue, _PIECES)), (), _DONT_WAIT)
        except BlockingIOError:  # no room after all: the task waits again
            return
        self.last = self._now()
        self.written += sent
        self.pending -= sent
        while sent:
            first = queue[0]
            if sent < len(first):
                queue[0] = first[sent:]
                break
            sent -= len(first)
            queue.popleft()
        callers = self._callers
        while callers and callers[0][0] <= self.written:
            _, caller, size = callers.popleft()
            self._answer(caller, size)
        self._changed()
