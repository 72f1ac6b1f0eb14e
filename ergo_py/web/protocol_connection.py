"""`ProtocolConnection`: a connection that speaks HTTP or WebSocket, as its protocol uses it."""

from collections.abc import Callable
from typing import Any

from .._core.tables.pending_calls import Deadline
from .._core.verbs.meta_process import MetaProcess
from .._core.vocabulary.ids import PID, Alias
from ..meta.readers import when_served
from ..meta.sockets.messages import Cause, TCPClose
from ..meta.sockets.streams.shutdown import Reminder
from ..meta.sockets.tcp import TCPConnection

__all__ = ["ProtocolConnection"]


class ProtocolConnection(TCPConnection):
    """A connection whose protocol is its parser, and writes with its writer. Everything here
    happens on the loop.
    """

    alias: Alias
    """The alias of the connection, for its protocol: an attribute, since each request reads it."""

    # -- for the protocol --------------------------------------------------------------------------

    @property
    def last_out(self) -> float:
        """When the operating system last took bytes for the peer."""
        return self._writer.last

    @property
    def is_held_up(self) -> bool:
        """Whether this side does not read, since its receiver is behind, or since the connection is
        on its way to the next program.
        """
        return self._writer.is_frozen or self._reader.is_held_up()

    def now(self) -> float:
        """The time on the node's clock."""
        return self._meta.kernel.clock.now()

    def arm(self, deadline: Deadline, seconds: float) -> None:
        """Let a deadline expire."""
        self._meta.kernel.clock.arm_call(deadline, seconds)

    def hang_up(self) -> None:
        """Close, after everything is written."""
        self._shutdown.close(TCPClose())

    def cut(self, cause: Cause, detail: str) -> None:
        """End at once: the peer sees a reset."""
        self._shutdown.abort(cause, detail)
        self._shutdown.end(cause, detail)

    def blame(self, detail: str) -> None:
        """End because of an error of the peer, after everything is written."""
        self._shutdown.note_mistake(detail)

    def read_on(self) -> None:
        """Wake the reader, which waits because its protocol was paused."""
        self._reader.wake()

    def when_answered(self, then: Callable[[], None]) -> None:
        """Call ``then`` when the receiver has served all messages, and its answers are written."""
        meta = self._meta
        receiver = meta.router.resolve(self._receiver())
        when_served(meta, receiver, lambda: when_served(meta, meta, then))

    # -- messages ----------------------------------------------------------------------------------

    def _serve_message(self, message: Any) -> bool:
        """Serve a message for the peer. False if it is none."""
        raise NotImplementedError

    def _serve_now(self, message: Any, _sender: PID | Alias) -> bool:
        """Serve a message in the sender's turn, if nothing waits for the peer."""
        return not self._writer.pending and self._serve_message(message)

    async def handle_message(self, message: Any, sender: PID | Alias) -> None:
        """Serve messages to the peer: those of a WebSocket, and pieces of a streamed response."""
        if self._serve_message(message):
            if self._writer.is_slow:
                await self._peer_is_slow()
        elif isinstance(message, Reminder):
            await super().handle_message(message, sender)
        else:
            MetaProcess.handle_message(self, message, sender)
