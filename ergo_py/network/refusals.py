"""`Refusals`: what a node and another node refuse each other."""

from collections import Counter
from typing import Final

from .._core.tables.pending_calls import Deadline
from .._core.vocabulary.ids import NodeName
from .access.permits import PERMITS, refusal_text
from .errors import NotPermittedError
from .outgoing.peer import Peer
from .protocol.operations import Counts

__all__ = ["NOT_PERMITTED", "Refusals"]

FORGED: Final = "forged sender"
NOT_PERMITTED: Final = "not permitted: "
"""The beginning of a cause, before the name of the permit."""
_CAUSES: Final = 100
"""Most causes that another node may tell."""


class Refusals:
    """The accounts of a single other node."""

    def __init__(self, peer: Peer) -> None:
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
            # The accounts compare a pair of starts: the whole life of this node and a single start
            # of the other would never agree.
            self._peer.session.totals.begin_again()
            self._refused.clear()
            self._refused_there.clear()
        self._creation = creation
        self.tell()

    def refuse(self, cause: str) -> None:
        """Count an operation of that node that was not carried out, and tell that node soon."""
        self._refused[cause] += 1
        if self._telling is None:
            network = self._peer.network
            # Once for all refusals of half a heartbeat: an answer to each refused operation would
            # double the traffic of a flood. The accounts of both nodes agree within a heartbeat.
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

    def refuse_excess(self, cause: str) -> None:
        """Count an operation of that node that is above a limit."""
        self.refuse(cause)
        self._peer.network.log_once(
            f"the node {self._peer.node} asks for {cause}",
            "max_calls= and max_watches= of this network limit them",
        )

    def _tell(self) -> None:
        self._telling = None
        if self._peer.is_up:
            self.tell()

    def tell(self) -> None:
        """Tell that node the operations that were refused here, and those that had arrived when
        the last sessions ended.
        """
        arrived = self._peer.session.totals.arrived()
        if self._refused or arrived:
            self._peer.push(Counts(dict(self._refused), arrived))

    def note_counts(self, op: Counts) -> None:
        """Take what that node tells."""
        for mine, yours, count in op.arrived:
            self._peer.session.totals.confirm(mine, yours, count)
        for cause, count in list(op.refused.items())[:_CAUSES]:
            if cause.startswith(NOT_PERMITTED) and count > self._refused_there.get(cause, 0):
                permit = cause.removeprefix(NOT_PERMITTED)
                self._peer.network.warn_of_refusal(self._peer.node, permit)
            # The other node writes the causes: invented causes must not fill this table.
            if cause in self._refused_there or len(self._refused_there) < _CAUSES:
                self._refused_there[cause] = count

    def here(self) -> dict[str, int]:
        """The operations of that node that were not carried out here, by cause."""
        return dict(self._refused)

    def there(self) -> dict[str, int]:
        """The operations of this node that were not carried out there, by cause."""
        return dict(self._refused_there)
