"""`BufferedReads`: reads of a reader thread that need no GIL. The loop makes messages of the bytes.

A thread that takes the GIL for each read waits for it up to the switch interval beside a busy loop,
and the loop waits for the thread in turn. So while nothing is to be parsed or decrypted in the
thread, it stays in C code. It appends the bytes of small reads to a buffer. For large reads, the
loop gives the buffer a new bytes object whenever it takes bytes: the thread reads into that object,
and nothing copies the bytes after that.
"""

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...._core.runtime.bridge import Parker
from ...._core.verbs.meta_process import MetaProcess
from ...._core.vocabulary.ids import Target
from ...._core.vocabulary.options import Behind
from ...thread_inbox import ThreadInbox
from ..messages import Cause
from .input import StreamInput
from .shutdown import Shutdown
from .writer import Writer

if TYPE_CHECKING:
    from ...._core.speed._speed import StreamBuffer

__all__ = ["BufferedReads"]


class BufferedReads:
    """The buffer between the thread and the loop. While the thread is in :meth:`read`, the input
    belongs to the loop; otherwise to the thread.
    """

    __slots__ = (
        "_buffer",
        "_connection",
        "_input",
        "_is_paused",
        "_read_limit",
        "_shutdown",
        "_target",
        "_waits_for_receiver",
        "_writer",
    )

    def __init__(
        self,
        connection: MetaProcess,
        incoming: StreamInput,
        writer: Writer,
        shutdown: Shutdown,
        read_limit: float,
        to: Target,
    ) -> None:
        self._connection = connection
        self._input = incoming
        self._writer = writer
        self._shutdown = shutdown
        self._read_limit = read_limit
        self._target = to
        self._is_paused = False
        """Backpressure: the bytes stay in the buffer until :meth:`resume`."""
        self._waits_for_receiver = False
        """The outbox will call :meth:`settle`."""
        self._buffer: StreamBuffer | None = None

    def open(self, inbox: ThreadInbox) -> None:
        """Make the buffer."""
        self._buffer = inbox.new_buffer(self._has_bytes)

    @property
    def is_held_up(self) -> bool:
        """Whether this side holds up the reading, and not the peer."""
        return self._is_paused

    # -- in the thread -----------------------------------------------------------------------------

    def read(self, sock: socket.socket, at_end: Callable[[], None]) -> bool:
        """Read until the end of the stream, or until a small read is as large as it can be (True).
        All bytes are handed over when it returns or raises. At the end of the stream, the loop
        calls ``at_end`` after that.

        Raises:
            OSError: the connection is broken.
        """
        buffer = self._buffer
        assert buffer is not None
        then: Callable[[], None] | None = None
        try:
            has_more = buffer.read(sock.fileno(), self._input.size)
            # In the same turn of the loop: the thread would have to wait for another turn else.
            then = None if has_more else at_end
            return has_more
        finally:
            # The loop may be handing over some bytes now: it must also hand over the rest.
            parker: Parker[None] = Parker()
            self._connection._meta.router.bridge.post(self._finish, parker, then)
            parker.wait(None)

    # -- on the loop -------------------------------------------------------------------------------

    def _has_bytes(self) -> None:
        if not self._is_paused and self._buffer is not None:
            self._hand_over(self._buffer.take(self._input.size))

    def _finish(self, parker: Parker[None], then: Callable[[], None] | None) -> None:
        try:
            if self._buffer is not None:
                self._hand_over(self._buffer.take(0))
            if then is not None:
                then()
        finally:
            parker.settle(None)

    def _hand_over(self, data: bytes) -> None:
        if self._shutdown.cause is not None:
            # A peer that sends on and on must not keep the thread until its socket is empty.
            self.end()
            return
        if not data:
            return
        meta, to = self._connection._meta, self._target
        outbox = meta.outbox
        for message in self._input.take(data):
            if not (
                outbox.deliver(to, message, meta.priority)
                or outbox.forward(to, message, meta.priority)
                or self._keep(message)
            ):
                return
        self._pause_if_behind()

    def _pause_if_behind(self) -> None:
        outbox = self._connection._meta.outbox
        if outbox.released:
            return  # the stop lets the thread read the rest
        if outbox.limits.policy is Behind.WAIT and len(outbox):
            self._is_paused = True
            if not self._waits_for_receiver:
                self._waits_for_receiver = True
                outbox.when_empty(self)
        elif self._writer.pending > self._read_limit:
            self._is_paused = True

    def _keep(self, message: object) -> bool:
        """Queue a message that has to wait. False if there is no receiver: then the connection
        ends.
        """
        meta, to = self._connection._meta, self._target
        is_to_wait = meta.outbox.limits.policy is Behind.WAIT
        meta.outbox.offer(to, message, meta.priority, beyond_limit=is_to_wait)
        receiver = meta.router.resolve(to)
        if receiver is not None and receiver.accepting:
            return True
        self._shutdown.end(Cause.NO_RECEIVER)
        return False

    def settle(self, _admitted: bool, /) -> None:
        """The receiver has taken everything."""
        self._waits_for_receiver = False
        self.resume()

    def resume(self) -> None:
        """Go on, if the receiver keeps up and the peer takes its answers."""
        if self._is_paused and not (
            self._waits_for_receiver or self._writer.pending > self._read_limit
        ):
            self._is_paused = False
            self._has_bytes()

    def release(self) -> None:
        """The connection is stopping: do not hold up the thread any more."""
        self._is_paused = False
        self._has_bytes()

    def end(self) -> None:
        """Let the thread discard its next read, and end."""
        if self._buffer is not None:
            self._buffer.end()
