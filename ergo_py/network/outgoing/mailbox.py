"""`PeerMailbox`: the mailbox of another node. It holds no envelopes: each becomes an operation of
the session at once, and its bound counts the bytes that wait there.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..._core.tables.mailbox import Mailbox, Verdict
from ..._core.tables.pending_calls import Caller
from ..._core.vocabulary.envelopes import Envelope, Lane, Overflow
from ..._core.vocabulary.messages import Why
from ..._core.vocabulary.reasons import NoNode
from ..errors import NodeBusyError

if TYPE_CHECKING:
    from .peer import Peer

__all__ = ["CallerWaiter", "PeerMailbox", "Packed"]

# Not measured: in the worst case, with the largest messages, they have 1 GiB together.
_PROMISES: Final = 64
"""Most messages of threads that may be on their way to the loop. Their size is not known yet."""


class Packed:
    """A message that was encoded when it was sent."""

    __slots__ = ("body", "headers", "message")

    def __init__(self, message: object, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.message: object = message
        self.body: bytes = body
        self.headers: dict[str, str] | None = headers
        """The context of its trace."""


class PeerMailbox(Mailbox):
    """The mailbox through which all messages to another node pass."""

    __slots__ = ("_peer",)

    def __init__(self, peer: "Peer", backlog: int) -> None:
        super().__init__(backlog, Overflow.WAIT)
        self._peer = peer

    def __len__(self) -> int:
        return self._peer.session.queued

    def depth(self, lane: Lane) -> int:
        """The number of operations that wait. They have no lanes: each carries its priority."""
        return self._peer.session.queued

    def admit(self, lane: Lane, envelope: Envelope) -> tuple[Verdict, Envelope | None]:
        """Put a message or a call, unless too many bytes wait.

        Raises:
            MessageError: of kind ``"type"``; the message cannot travel.
            NodeBusyError: too many bytes wait, and the envelope is a message.
        """
        _, sender, to, message = envelope
        if isinstance(to, Caller):
            if not self.has_room(lane):
                self.count_dropped()
                return Verdict.REFUSED, None
            self._peer.push_call(lane, to, message)
            return Verdict.ACCEPTED, None
        # Before the look at the room: a message that cannot travel raises the error about its type,
        # however many bytes wait.
        packed = self._peer.pack(to, message)
        if not self.has_room(lane):
            self.count_dropped()
            self._peer.router.dead_letters.add(sender, to, packed.message, Why.FULL)
            raise NodeBusyError(to, packed.message, self._peer.node, self.limit)
        self._peer.push_message(lane, sender, to, packed)
        return Verdict.ACCEPTED, None

    def push(self, lane: Lane, envelope: Envelope) -> None:
        """Put an envelope that has waited for room."""
        _, sender, to, message = envelope
        if isinstance(to, Caller):
            self._peer.push_call(lane, to, message)
        else:
            self._peer.push_waiting(lane, sender, to, message)

    def _has_space(self, lane: Lane) -> bool:
        promised = sum(self.inbound.values()) if self.inbound else 0
        return self._peer.session.sending.queued_bytes < self.limit and promised < _PROMISES


class CallerWaiter:
    """A task that waits for room, and then for the answer to its message."""

    __slots__ = ("_caller", "_push")

    def __init__(self, caller: Caller, push: Callable[[], None]) -> None:
        self._caller = caller
        self._push = push

    def settle(self, admitted: bool, /) -> None:
        """Send the message, or fail: the node is lost."""
        caller = self._caller
        if not admitted:
            caller.fail_queued(NoNode(caller.to.node))
        # A sender that has timed out or was cancelled while it waited for room sends nothing.
        elif not caller.settled:
            self._push()
