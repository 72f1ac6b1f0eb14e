"""`Refusals`: what a node and another node refuse each other."""

from collections import Counter
from typing import TYPE_CHECKING, Final

from ..._core.tables.pending_calls import Deadline
from ..._core.vocabulary.ids import NodeName
from ..errors import NotPermittedError
from ..node_requests.permits import PERMITS, refusal_text
from ..protocol.operations import Counts
from .info import PeerInfo

if TYPE_CHECKING:
    from ..peer import Peer

__all__ = ["NOT_PERMITTED", "Refusals"]

FORGED: Final = "forged sender"
NOT_PERMITTED: Final = "not permitted: "
"""The beginning of a cause, before the name of the permit."""
_CAUSES: Final = 100
"""Most causes that another node may tell."""


class Refusals:
    """The accounts of a single other node."""

    def __init__(self, peer: "Peer") -> None:
        self._peer = peer
        self._refused: Counter[str] = Counter()
        self._refused_there: dict[str, int] = {}
        self._telling: Deadline | None = None
        self._creation = 0
        """The start of the other node that is counted; 0 before the first session."""

    def begin(self, creation: int) -> None:
        """Note the start of the other node that a session has begun with. The accounts are those of
        a single start.
        """
        if self._creation not in (0, creation):
            self._peer.session.begin_accounts(self._peer.session.queued)
            self._refused.clear()
            self._refused_there.clear()
        self._creation = creation
        self.tell()

    def refuse(self, cause: str) -> None:
        """Count an operation of that node that was not carried out, and tell that node soon."""
        self._refused[cause] += 1
        if self._telling is None:
            network = self._peer.network
            self._telling = telling = Deadline(self._tell)
            network.kernel.clock.arm_call(telling, network.timing.beat / 2)

    def refuse_act(self, permit: str) -> NotPermittedError:
        """Count an act of that node that is not permitted, and return the error that says so."""
        self.refuse(NOT_PERMITTED + permit)
        peer = self._peer
        peer.network.log_once(
            f"the node {peer.node} lacks the permit {permit!r}",
            f"it tried to {PERMITS[permit]}; allow= of this network permits it",
        )
        here = peer.router.node
        return NotPermittedError(refusal_text(here, peer.node, permit), NodeName(here), None)

    def refuse_sender(self, sender: object) -> NotPermittedError:
        """Count an act of that node in the name of a process here, and return the error that says
        so.
        """
        self.refuse(FORGED)
        peer, here = self._peer, self._peer.router.node
        text = (
            f"{peer.node!r} sends in the name of {sender!r}, a process of {here!r} that has sent "
            "nothing to another node; a node forwards only messages that it has got"
        )
        peer.network.log_once(f"the node {peer.node} uses a sender of this node", text)
        return NotPermittedError(text, NodeName(here), None)

    def _tell(self) -> None:
        self._telling = None
        if self._peer.is_up:
            self.tell()

    def tell(self) -> None:
        """Tell that node the operations that were refused here, and those that had arrived when
        the last sessions ended.
        """
        arrived = self._peer.session.arrived()
        if self._refused or arrived:
            self._peer.push(Counts(dict(self._refused), arrived))

    def note_counts(self, op: Counts) -> None:
        """Take what that node tells."""
        for mine, yours, count in op.arrived:
            self._peer.session.confirm(mine, yours, count)
        for cause, count in list(op.refused.items())[:_CAUSES]:
            if cause.startswith(NOT_PERMITTED) and count > self._refused_there.get(cause, 0):
                permit = cause.removeprefix(NOT_PERMITTED)
                self._peer.network.warn_of_refusal(self._peer.node, permit)
            if cause in self._refused_there or len(self._refused_there) < _CAUSES:
                self._refused_there[cause] = count

    def info(self) -> PeerInfo:
        """A snapshot of the accounts."""
        peer = self._peer
        session = peer.session
        return PeerInfo(
            node=peer.node,
            state=session.state.value,
            sessions=session.sessions,
            sent=session.sent,
            confirmed=session.confirmed,
            on_the_way=session.unacknowledged,
            waiting=session.queued,
            unconfirmed=session.unconfirmed,
            unsent=session.unsent,
            resent=session.resent,
            received=session.received,
            refused=dict(self._refused),
            refused_there=dict(self._refused_there),
            dropped=peer.mailbox.dropped,
            waiting_bytes=session.queued_bytes,
            on_the_way_bytes=session.unacknowledged_bytes,
            bytes_out=peer.bytes_out,
            bytes_in=peer.bytes_in,
            frames_out=peer.frames_out,
            frames_in=peer.frames_in,
            window=session.window,
            round_trip=session.round_trip,
            calls=peer.calls_in_flight,
            calls_in=peer.executor.calls_in_flight,
            watches=len(peer.watches),
            watches_in=peer.executor.watches,
        )
