"""`ThreadInbox`: a single task that hands over the bytes of many reader threads.

With the C extension, the reader threads of a server read without the GIL: each appends to a buffer
of its own. Each wake-up of the loop serves all buffers with bytes, like `SocketPoller` its sockets.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import trio
from trio.lowlevel import current_task, wait_readable

from .._core import sources
from .._core.runtime.parking import TrioTurns, yield_turn
from .._core.runtime.time_slices import SLICE
from .._core.speed.installation import buffer_queue, stream_buffer

if TYPE_CHECKING:
    from .._core.speed._speed import BufferQueue, StreamBuffer

__all__ = ["ThreadInbox"]

Start = Callable[[Callable[[], Awaitable[None]]], None]


class ThreadInbox:
    """Serves the reader threads of a server. Everything here happens on the loop, but for
    :meth:`StreamBuffer.read`.
    """

    is_possible: Final[bool] = buffer_queue is not None
    """Whether threads can read without the GIL here."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._turns = TrioTurns()
        self._queue: BufferQueue | None = None
        self._scope: trio.CancelScope | None = None

    def open(self, turns: TrioTurns) -> None:
        """Open the eventfd before there are connections: if no descriptor is left, the server fails
        to start, and not its connections.

        Raises:
            OSError: no descriptor is left.
        """
        self._queue = buffer_queue()
        self._turns = turns

    def new_buffer(self, has_bytes: Callable[[], None]) -> "StreamBuffer | None":
        """Make the buffer of a thread. ``has_bytes`` is called on the loop when there are bytes to
        take. None if the server was closed.
        """
        if self._queue is None:
            return None
        if self._scope is None:
            self._scope = trio.CancelScope()
            self._start(self._serve)
        buffer: StreamBuffer = stream_buffer(self._queue, has_bytes)
        return buffer

    def close(self) -> None:
        """Serve no buffer any more. No thread may be reading."""
        self._queue = None
        if self._scope is not None:
            self._scope.cancel()

    async def _serve(self) -> None:
        queue = self._queue
        assert queue is not None
        assert self._scope is not None
        turns, task, descriptor = self._turns, current_task(), queue.fileno()
        with self._scope:
            while True:
                await wait_readable(descriptor)
                end = sources.slice_clock() + SLICE
                ready = queue.pop()
                is_root = turns.begin(task, ready is not None and ready[1])
                try:
                    while ready is not None:
                        ready[0]()
                        ready = queue.pop()
                        if ready is not None and sources.slice_clock() >= end:
                            if is_root:
                                turns.serve(task)
                            await yield_turn(task)
                            end = sources.slice_clock() + SLICE
                            is_root = turns.begin(task, True)
                except BaseException:
                    turns.end(task)
                    raise
                if is_root:
                    turns.serve(task)
