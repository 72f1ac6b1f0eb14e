"""The place of a supervised child: what outlives the processes that sit in it, one after the other.

A supervisor has a slot for each child. The kernel tells the slot when its process stops taking
messages and leaves there what the process did not come to; services wait at it for the successor.
So nobody needs to hear from the supervisor first.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from ..vocabulary.envelopes import Envelope, Lane
from ..vocabulary.errors import BadInputError
from ..vocabulary.ids import PID
from ..vocabulary.reasons import Reason, is_failure

__all__ = ["Claim", "Decision", "Fate", "Redirect", "ChildSlot"]


class Decision(Enum):
    """What a failure means, as the ``decide`` function of a child says for an exception."""

    RESUME = "resume"
    """Drop the message, keep the state, go on with the next message."""
    RESTART = "restart"
    """End, and come back if the child's restart policy says so."""
    STOP = "stop"
    """End, and do not come back."""
    ESCALATE = "escalate"
    """End, and end the supervisor with the same reason."""


class Fate(Enum):
    """What happens to the messages that an ended child had not come to; see also :class:`Redirect`."""

    DEAD_LETTER = "dead letter"
    """They become dead letters, and calls among them are answered with ``TargetDownError``."""
    KEEP = "keep"
    """They wait for the successor, which handles them in order. The one that was being handled is
    not among them.
    """
    DROP = "drop"
    """They are counted and dropped, and calls among them are answered with ``TargetDownError``."""


@dataclass(frozen=True, slots=True)
class Redirect:
    """Mailbox fate: hand what is left to the process registered as ``to``, as if its senders had
    sent it there.
    """

    to: str

    def __post_init__(self) -> None:
        if not isinstance(self.to, str) or not self.to:
            raise BadInputError("Redirect(to)", self.to, "the registered name of a process")


class Claim(Protocol):
    """Somebody who waits at a slot for its next process."""

    @property
    def waiter(self) -> Any:
        """The process that is held up by this; None if it is none, or goes on meanwhile."""

    def admit(self, pid: PID, /) -> None:
        """Go on with this process."""

    def refuse(self, reason: Reason, /) -> None:
        """Give up: there will be none."""


def _never(_reason: Reason) -> bool:
    return False


class ChildSlot:
    """One child's place. Only the loop's own thread changes it."""

    __slots__ = (
        "decide",
        "decision",
        "dropped",
        "fate",
        "goes_first",
        "gone",
        "heir",
        "inner",
        "kept",
        "line",
        "max_waiters",
        "name",
        "pid",
        "plan",
        "returns_after",
        "resumed",
        "successor_of",
        "supervisor",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.supervisor: Any = None
        """The process that supervises it."""
        self.decide: Callable[[Exception], Decision] | None = None
        self.fate: Fate | Redirect = Fate.DEAD_LETTER
        self.max_waiters = 0
        self.returns_after: Callable[[Reason], bool] = _never
        """The child's restart policy: whether it comes back after it ended by itself like this."""
        self.plan: bool | None = None
        """Whether its supervisor, which is stopping it, means to start it again; None if it is not
        being stopped.
        """
        self.goes_first = False
        """It is stopped with its siblings, now or when it is its turn; none of them is started
        before it has ended.
        """
        self.decision: Decision | None = None
        """What was decided about the failure that the process ends of."""
        self.successor_of: Reason | None = None
        """Why the predecessor of the present process ended; None for the first one."""
        self.pid: PID | None = None
        """Who sits here and takes messages."""
        self.gone: Reason | None = None
        """Why nobody sits here and nobody will, as far as is known."""
        self.kept: dict[Lane, deque[Envelope]] = {}
        """What the last process did not come to and its successor gets, in the order of service."""
        self.heir: Any = None
        """The last process that was given a place here, and with it what its predecessors had left.
        """
        self.line: dict[Claim, None] = {}
        """Those who wait for the next process, in order."""
        self.inner: dict[str, ChildSlot] = {}
        """If the child is a supervisor: the slots of its own children, which its successor takes
        over.
        """
        self.resumed = 0
        self.dropped = 0

    def __repr__(self) -> str:
        state = (
            str(self.pid)
            if self.pid is not None
            else f"gone: {self.gone}"
            if self.gone is not None
            else "vacant"
        )
        return f"<ChildSlot {self.name!r} {state}>"

    def occupy(self, pid: PID) -> None:
        """A process has started here: everybody who waited goes on with it, first come first
        served.
        """
        self.pid = pid
        self.gone = self.decision = self.plan = None
        self.goes_first = False
        if self.line:
            waiting, self.line = self.line, {}
            for claim in waiting:
                claim.admit(pid)

    def vacate(self, pid: PID) -> None:
        """The process takes no more messages; who comes now waits for its successor."""
        if self.pid == pid:
            self.pid = None

    def judge(self, error: Exception) -> Decision:
        """Have the child's ``decide`` say what a failure means.

        Raises:
            BadInputError: it returned something else than a decision.
        """
        assert self.decide is not None
        decision = self.decide(error)
        if not isinstance(decision, Decision):
            raise BadInputError(
                "what decide returned", decision, "RESUME, RESTART, STOP or ESCALATE"
            )
        self.decision = decision
        return decision

    def returns(self, reason: Reason) -> bool:
        """Say whether a process that ends here like this will have a successor, as far as limits
        allow.
        """
        if self.plan is not None:
            return self.plan
        above = self.supervisor
        if above is not None and not above.accepting:
            # It ends because its supervisor does, and comes back if that one does.
            return above.slot is not None and above.slot.returns(above.reason)
        if self.decision in (Decision.STOP, Decision.ESCALATE) and is_failure(reason):
            return False
        return self.returns_after(reason)

    def is_closed_to(self, process: Any) -> bool:
        """Say whether a process would wait here in vain, because it has to end before anybody can
        be started here.
        """
        slot: ChildSlot | None = self
        while slot is not None and slot.supervisor is not None:
            above, below = slot.supervisor, process
            while below is not None and below.parent is not above:
                below = below.parent
            if below is not None and (
                not above.accepting or (below.slot is not None and below.slot.goes_first)
            ):
                return True
            # A supervisor that is down has to be started itself, by the one above it.
            slot = None if above.accepting else above.slot
        return False

    def turn_away(self, reason: Reason) -> None:
        """Tell those who wait here, or at the places below, in vain."""
        for claim in [claim for claim in self.line if self.is_closed_to(claim.waiter)]:
            del self.line[claim]
            claim.refuse(reason)
        for inner in self.inner.values():
            inner.turn_away(reason)

    def keep(self, lane: Lane, envelope: Envelope) -> None:
        """Keep a message for the successor."""
        self.kept.setdefault(lane, deque()).append(envelope)

    def keep_lane(self, main: deque[Envelope]) -> None:
        """Keep a whole main lane for the successor, as it is."""
        self.kept[Lane.MAIN] = main

    def inherit(self, heir: Any) -> dict[Lane, deque[Envelope]]:
        """Take what the predecessor left, to be put before everything else."""
        self.heir = heir
        kept, self.kept = self.kept, {}
        return kept

    def close(self, reason: Reason) -> deque[Envelope]:
        """Nobody comes back here. Whoever waits is told; what was kept is given back, to be buried."""
        self.gone = reason
        self.pid = self.plan = None
        self.goes_first = False
        waiting, self.line = self.line, {}
        for claim in waiting:
            claim.refuse(reason)
        kept, self.kept = self.kept, {}
        # Around the main lane, which may be long.
        envelopes = kept.get(Lane.MAIN, deque())
        for lane in (Lane.SYSTEM, Lane.URGENT):
            envelopes.extendleft(reversed(kept.get(lane, ())))
        return envelopes
