"""`Child`: a supervisor's record of a child, and `Window`, the restart counter."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from .._core.vocabulary.info import Phase
from .._core.vocabulary.reasons import Reason, is_failure
from .specs import ChildSpec, RestartPolicy

__all__ = ["PENDING", "RUNNING", "STARTING", "STOPPING", "WAITING", "Child", "Window"]

# The phases that every restart reads: on CPython 3.11 reading a member of an enumeration is slow.
_BACKING_OFF: Final = Phase.BACKING_OFF
PENDING: Final = Phase.PENDING
RUNNING: Final = Phase.RUNNING
STARTING: Final = Phase.STARTING
STOPPING: Final = Phase.STOPPING
WAITING: Final = (PENDING, _BACKING_OFF)
"""The phases of a child that will start, if it is wanted."""
_COMPLETED: Final = Phase.COMPLETED
_FAILED: Final = Phase.FAILED
_PERMANENT: Final = RestartPolicy.PERMANENT
_TEMPORARY: Final = RestartPolicy.TEMPORARY


class Child:
    """A supervisor's record of a child: its state, and the intended next step.

    Only its transitions change it::

        PENDING, BACKING_OFF ─ begins_start ▶ STARTING ─ started ▶ RUNNING ─ stops ▶ STOPPING
          ▲           ▲                          │                    │                 │
          │           │                    start_failed           went_down         went_down
          │           │                          ▼                    ▼                 ▼
          │           └─ awaits_(re)start ───────┴──── no process ────┴─────────────────┘
          │                                                 │
          │                        finishes, leaves, gets_disabled, gives_up_start
          │                                                 ▼
          └─ is_asked_to_start ──────────────── COMPLETED, FAILED, DISABLED
    """

    __slots__ = (
        "args",
        "asker",
        "before",
        "cycles",
        "down_since",
        "due",
        "in_a_row",
        "last_pid",
        "leaves_as",
        "name",
        "options",
        "phase",
        "pid",
        "position",
        "reason",
        "spec",
        "started_at",
        "wanted",
        "window",
    )

    def __init__(
        self, name: str, spec: ChildSpec, position: int, args: tuple[Any, ...] = ()
    ) -> None:
        self.name: str = name
        """Its name below the supervisor."""
        self.spec: ChildSpec = spec
        self.position: int = position
        """Its place in the order of starts."""
        self.args: tuple[Any, ...] = spec.args + args
        """The arguments of its class: those of the spec, then those of the request."""
        # A template's children would all be registered under its name, so they have none.
        self.options: Final = (
            spec.options if spec.options.name in (None, name) else replace(spec.options, name=None)
        )
        """The options of its process."""
        self.phase: Phase = PENDING
        """Its place in the drawing above."""
        self.pid: Any = None
        """Its process, while it is up."""
        self.last_pid: object = None
        """Its last process; None if there was none."""
        self.reason: Reason | None = None
        """Why its last process ended."""
        self.wanted: bool = True
        """The child is to run, now or later."""
        self.cycles: bool = False
        """The child is to be stopped with its siblings, and they restart together."""
        self.down_since: float | None = None
        """When its last process ended or could not be started; None while it runs."""
        self.due: float = 0.0
        """When it may start, if it waits."""
        self.in_a_row: int = 0
        """Restarts since the child was last healthy: the back-off grows with them."""
        budget = spec.budget
        self.window: Window | None = (
            None if budget is None else Window(budget.restarts, budget.period)
        )
        """Counts restarts against the budget of the child, if it has one of its own."""
        self.started_at: float
        """When its last process came up."""
        self.asker: object = None
        """The caller that waits for an operation on the child."""
        self.before: Phase | None = None
        """The phase to return to if a start on request fails; None if a failed start counts as a
        failure.
        """
        self.leaves_as: Phase | None = None
        """The phase after the child has stopped; None if the supervisor removes it."""

    def __repr__(self) -> str:
        return f"<Child {self.name!r} {self.phase.value}>"

    @property
    def has_run(self) -> bool:
        """The child has started successfully at least once."""
        return self.last_pid is not None

    @property
    def is_waiting(self) -> bool:
        """The child will start, when its turn and its time come."""
        return self.wanted and self.phase in WAITING

    def is_missing(self, now: float, patience: float) -> bool:
        """Whether it should always run, and does not: it has failed for good, or has been down for
        longer than ``patience`` seconds. From any thread.
        """
        if self.spec.restart is not _PERMANENT or self.phase is RUNNING:
            return False
        if self.phase in (_FAILED, Phase.DISABLED):
            return True
        down_since = self.down_since
        return self.wanted and down_since is not None and now - down_since > patience

    # -- starts ------------------------------------------------------------------------------------

    @property
    def tries_until_started(self) -> bool:
        """A start that fails is tried again, also the first start, and is not counted."""
        backoff = self.spec.backoff
        return backoff is not None and backoff.until_started

    def awaits_start(self, now: float) -> None:
        """The child starts as soon as its turn comes."""
        self.phase = PENDING
        self.due = now

    def awaits_restart(self, now: float, chance: Callable[[], float]) -> float:
        """The child starts when its turn comes and its back-off is over. Return the back-off."""
        backoff = self.spec.backoff
        delay = 0.0 if backoff is None else backoff.delay(self.in_a_row, chance())
        self.in_a_row += 1
        self.phase = _BACKING_OFF if delay > 0 else PENDING
        self.due = now + delay
        return delay

    def is_asked_to_start(self, asker: object, or_back_to: Phase | None) -> None:
        """A caller waits for its start. If the start fails, the child returns to ``or_back_to``."""
        self.asker = asker
        self.before = or_back_to
        self.wanted = True
        self.phase = PENDING

    def begins_start(self) -> Reason | None:
        """Its process is being spawned. Return why its predecessor ended; None without any."""
        self.phase = STARTING
        return None if self.last_pid is None else self.reason

    def started(self, pid: object, now: float) -> None:
        """Its process is up."""
        self.phase = RUNNING
        self.down_since = None
        self.pid = self.last_pid = pid
        self.started_at = now
        self.before = None

    def start_failed(self, reason: Reason, now: float) -> object:
        """Its process could not be started. Return the caller that waits for it, if any."""
        self.reason = reason
        if self.down_since is None:
            self.down_since = now
        return self.take_asker()

    def gives_up_start(self) -> None:
        """A start on request has failed, and changes nothing."""
        assert self.before is not None
        self.phase, self.before, self.wanted = self.before, None, False

    def gets_fresh_budget(self) -> None:
        """Forget its restarts: neither back-off nor budget counts them any more."""
        self.in_a_row = 0
        if self.window is not None:
            self.window.times.clear()

    # -- stops and ends ----------------------------------------------------------------------------

    def joins_cycle(self) -> None:
        """The child is to be stopped with its siblings; unless it is temporary, it restarts with
        them.
        """
        self.cycles = True
        self.wanted = self.spec.restart is not _TEMPORARY
        self.leaves_as = _COMPLETED

    def leaves_cycle(self) -> None:
        """The child is down, so that its siblings no longer wait for its stop."""
        self.cycles = False

    def stops(self) -> None:
        """Its process is being stopped."""
        self.phase = STOPPING

    def is_asked_to_restart(self, asker: object) -> None:
        """A caller waits for a stop and a start."""
        self.asker = asker
        self.wanted = True
        self.phase = STOPPING

    def is_asked_to_leave(self, asker: object, leaves_as: Phase | None) -> None:
        """A caller waits for its stop, after which it does not start again by itself."""
        self.asker = asker
        self.wanted = False
        self.leaves_as = leaves_as

    def went_down(self, reason: Reason, now: float) -> None:
        """Its process has ended."""
        self.pid = None
        self.reason = reason
        self.down_since = now
        backoff = self.spec.backoff
        if backoff is not None and backoff.is_healthy(now - self.started_at):
            self.in_a_row = 0

    def leaves(self) -> None:
        """The child has stopped on request."""
        assert self.leaves_as is not None
        self.phase = self.leaves_as

    def finishes(self, reason: Reason) -> None:
        """The child has ended by itself, and does not start again."""
        self.wanted = False
        self.phase = _FAILED if is_failure(reason) else _COMPLETED

    def gets_disabled(self) -> None:
        """The child has failed too often."""
        self.wanted = False
        self.phase = Phase.DISABLED

    def is_upgraded(self, spec: ChildSpec) -> None:
        """Its process has another class now, and so have later processes."""
        self.spec, self.args = spec, spec.args

    def take_asker(self) -> object:
        """Return the caller that waits, if any; it is about to get its answer."""
        asker, self.asker = self.asker, None
        return asker


class Window:
    """Counts restarts inside a sliding period: of a single child, or of all children without a
    budget.
    """

    __slots__ = ("most", "period", "times")

    def __init__(self, most: int, period: float) -> None:
        self.most: int = most
        self.period: float = period
        self.times: deque[float] = deque()

    def admits(self, now: float) -> bool:
        """Count a restart; False if it exceeds the limit."""
        times = self.times
        times.append(now)
        while now - times[0] > self.period:
            times.popleft()
        return len(times) <= self.most
