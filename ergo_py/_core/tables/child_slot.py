"""`ChildSlot`: the state of a supervised child that survives its restarts.

A supervisor has a slot for each child. When the process of a slot stops taking messages, the kernel
clears ``pid`` and leaves the unhandled messages in the slot. Services wait at the slot for the
successor. So neither has to ask the supervisor first.
"""

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, ClassVar, Final, Protocol

from ..vocabulary.envelopes import Envelope, Lane
from ..vocabulary.errors import BadInputError
from ..vocabulary.ids import PID
from ..vocabulary.late_methods import dataclass, of_defaults
from ..vocabulary.public_names import show_public_names
from ..vocabulary.reasons import Crashed, Reason, is_failure

__all__ = ["ChildSlot", "Claim", "Decision", "Fate", "Redirect", "Rules"]


class Decision(Enum):
    """How to handle an exception of a child: the result of its ``decide`` function."""

    RESUME = "resume"
    """Drop the message, keep the state, continue with the next message."""
    RESTART = "restart"
    """End the process, and restart it if the child's restart policy allows."""
    STOP = "stop"
    """End the process, and do not restart it."""
    ESCALATE = "escalate"
    """End the process, and end the supervisor with the same reason."""


class Fate(Enum):
    """The fate of messages still queued when a child ends; see also :class:`Redirect`."""

    DEAD_LETTER = "dead letter"
    """They become dead letters. Callers among the senders get ``TargetDownError``."""
    KEEP = "keep"
    """They wait for the successor, which handles them in order. The message that was being handled
    is not among them.
    """
    DROP = "drop"
    """They are counted and dropped. Callers among the senders get ``TargetDownError``."""


@dataclass(frozen=True, slots=True)
class Redirect:
    """Mailbox fate: hand the queued messages to the process registered as ``to``, as if the senders
    had sent them there.
    """

    to: str
    """The registered name of the process that gets the messages."""

    def __post_init__(self) -> None:
        if not isinstance(self.to, str) or not self.to:
            raise BadInputError("Redirect(to)", self.to, "the registered name of a process")


class Claim(Protocol):
    """A request that waits at a slot for its next process."""

    @property
    def waiter(self) -> Any:
        """The process that is blocked until this request ends; None if no process is."""

    def admit(self, pid: PID, /) -> None:
        """Continue with the process ``pid``."""

    def refuse(self, reason: Reason, /) -> None:
        """Give up: the slot gets no further process."""


def _never(_reason: Reason) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Rules:
    """The part of a child's spec that its slot follows. Slots of the same spec share it."""

    decide: Callable[[Exception], Decision] | None = None
    """How to handle an exception of the child; None to end the process."""
    fate: Fate | Redirect = Fate.DEAD_LETTER
    """What happens to the messages that a process leaves."""
    max_waiters: int = 0
    """How many requests may wait for the next process."""
    returns_after: Callable[[Reason], bool] = _never
    """The child's restart policy: whether the child restarts after it ended by itself with this
    reason.
    """


_NO_RULES: Final = of_defaults(Rules)
"""The rules of a slot that is under no supervisor yet."""


class ChildSlot:
    """The slot of a child. Only the loop's thread changes it."""

    is_of_entity: ClassVar[bool] = False
    """Whether its name is the kind and key of an entity. Its supervisor keeps entities then."""

    __slots__ = (
        "decision",
        "dropped",
        "failed_in",
        "goes_first",
        "gone",
        "successor",
        "inner",
        "kept",
        "name",
        "pid",
        "restart_intended",
        "restarts",
        "resumed",
        "rules",
        "successor_of",
        "supervisor",
        "waiters",
    )

    def __init__(self, name: str) -> None:
        self.name: str = name
        """The name of the child in its spec."""
        self.supervisor: Any = None
        """The process that supervises the child."""
        self.rules: Rules = _NO_RULES
        """The part of the child's spec that the slot follows."""
        self.restart_intended: bool | None = None
        """Whether the supervisor, which is stopping the child, will restart it; None if the child
        is not being stopped.
        """
        self.goes_first: bool = False
        """The supervisor stops the child together with siblings, now or in its turn, and starts
        none of them before the child has ended.
        """
        self.decision: Decision | None = None
        """The decision about the failure that ends the process."""
        self.successor_of: Reason | None = None
        """The reason the predecessor ended with; None for the first process."""
        self.failed_in: tuple[BaseException, Any] | None = None
        """The last exception that left a span, and that span. Only in a traced node."""
        self.pid: PID | None = None
        """The process that takes messages now."""
        self.gone: Reason | None = None
        """Set if no process is here and none will be started, as far as is known; the reason why.
        """
        self.kept: dict[Lane, deque[Envelope]] = {}
        """Unhandled messages of the last process, for its successor, in the order of service."""
        self.successor: Any = None
        """The last process that took this slot, together with the kept messages."""
        self.waiters: dict[Claim, None] = {}
        """Requests that wait for the next process, in order."""
        self.inner: dict[str, ChildSlot] = {}
        """If the child is a supervisor: the slots of its own children, which its successor takes
        over.
        """
        self.restarts: int = 0
        """How often the supervisor has restarted the child."""
        self.resumed: int = 0
        """How many failures were answered with `Decision.RESUME`."""
        self.dropped: int = 0
        """How many messages were dropped with `Fate.DROP`."""

    def __repr__(self) -> str:
        state = (
            str(self.pid)
            if self.pid is not None
            else f"gone: {self.gone}"
            if self.gone is not None
            else "vacant"
        )
        return f"<ChildSlot {self.name!r} {state}>"

    def join(self, supervisor: object, rules: Rules) -> None:
        """Come under a supervisor, which starts the next process, with the rules of its spec."""
        self.supervisor = supervisor
        self.rules = rules
        self.restarts = 0

    def expect_stop(self, *, returns: bool) -> None:
        """Note that the supervisor stops the process, and whether it starts another one then."""
        self.restart_intended = returns

    def expect_group_stop(self) -> None:
        """Note that the process is to be stopped together with its siblings."""
        self.goes_first = True

    def occupy(self, pid: PID) -> None:
        """Note that a process has started here. All waiting requests continue with it, first come
        first served.
        """
        self.pid = pid
        if self.successor_of is not None:
            self.restarts += 1
        self.gone = self.decision = self.restart_intended = None
        self.goes_first = False
        if self.waiters:
            for claim in self.take_waiters():
                claim.admit(pid)

    def vacate(self, pid: PID) -> None:
        """Note that the process takes no more messages. New requests wait for its successor."""
        if self.pid == pid:
            self.pid = None

    def judge(self, error: Exception) -> Decision:
        """Ask the child's ``decide`` function how to handle a failure.

        Raises:
            BadInputError: ``decide`` returned no `Decision`.
        """
        decide = self.rules.decide
        assert decide is not None
        decision = decide(error)
        if not isinstance(decision, Decision):
            raise BadInputError(
                "the result of decide", decision, "RESUME, RESTART, STOP or ESCALATE"
            )
        self.decision = decision
        return decision

    def note_span(self, error: BaseException, span: object) -> None:
        """Note that an exception has left a span."""
        self.failed_in = error, span

    def take_span(self) -> object:
        """Return the span in which the predecessor of the process crashed, the first time; None if
        there is no such span.
        """
        noted, after = self.failed_in, self.successor_of
        if noted is None or not isinstance(after, Crashed) or after.error is not noted[0]:
            return None
        self.failed_in = None
        return noted[1]

    def count_resumed(self) -> None:
        """Count a failure after which the process goes on."""
        self.resumed += 1

    def count_dropped(self) -> None:
        """Count a message that was dropped with `Fate.DROP`."""
        self.dropped += 1

    def returns(self, reason: Reason) -> bool:
        """Say whether a process that ends with this reason gets a successor, as far as restart
        limits allow.
        """
        if self.restart_intended is not None:
            return self.restart_intended
        above = self.supervisor
        if above is not None and not above.accepting:
            # The child ends because its supervisor ends, and restarts if the supervisor does.
            return above.slot is not None and above.slot.returns(above.reason)
        if self.decision in (Decision.STOP, Decision.ESCALATE) and is_failure(reason):
            return False
        return self.rules.returns_after(reason)

    def is_closed_to(self, process: Any) -> bool:
        """Say whether ``process`` would deadlock by waiting here: the supervisor starts no
        successor before ``process`` itself has ended.
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
            # A supervisor that is down must be restarted first, by its own supervisor.
            slot = None if above.accepting else above.slot
        return False

    def turn_away(self, reason: Reason) -> None:
        """Refuse the requests, here and in the slots below, whose processes would deadlock."""
        for claim in [claim for claim in self.waiters if self.is_closed_to(claim.waiter)]:
            del self.waiters[claim]
            claim.refuse(reason)
        for inner in self.inner.values():
            inner.turn_away(reason)

    def keep(self, lane: Lane, envelope: Envelope) -> None:
        """Keep a message for the successor."""
        self.kept.setdefault(lane, deque()).append(envelope)

    def keep_lane(self, main: deque[Envelope]) -> None:
        """Keep the whole MAIN lane for the successor, without a copy."""
        self.kept[Lane.MAIN] = main

    def inherit(
        self, successor: object, after: Reason | None = None
    ) -> dict[Lane, deque[Envelope]]:
        """Take the kept messages. The new process handles them before all others. ``after`` is why
        its predecessor ended.
        """
        self.successor, self.successor_of = successor, after
        kept, self.kept = self.kept, {}
        return kept

    def take_waiters(self) -> Iterable[Claim]:
        """Take the waiting requests, to refuse them with errors of their own."""
        waiting, self.waiters = self.waiters, {}
        return waiting

    def close(self, reason: Reason) -> deque[Envelope]:
        """Close the slot: no process follows. Refuse all waiting requests, and return the kept
        messages, which become dead letters.
        """
        self.gone = reason
        self.pid = self.restart_intended = None
        self.goes_first = False
        for claim in self.take_waiters():
            claim.refuse(reason)
        kept, self.kept = self.kept, {}
        # Extend MAIN, which may be long, at its front instead of copying it.
        envelopes = kept.get(Lane.MAIN, deque())
        for lane in (Lane.SYSTEM, Lane.URGENT):
            envelopes.extendleft(reversed(kept.get(lane, ())))
        return envelopes


show_public_names(__name__, {"ergo_py.supervision": "Decision Fate Redirect"})
