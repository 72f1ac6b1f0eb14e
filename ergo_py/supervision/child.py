"""A child, as its supervisor knows it."""

from collections import deque
from typing import Any, Final

from .._core.vocabulary.info import Phase
from .._core.vocabulary.reasons import Reason
from .specs import ChildSpec

__all__ = ["BACKING_OFF", "PENDING", "RUNNING", "STARTING", "STOPPING", "Child", "Window"]

# The phases that every restart reads: on CPython 3.11 reading a member of an enumeration is slow.
BACKING_OFF: Final = Phase.BACKING_OFF
PENDING: Final = Phase.PENDING
RUNNING: Final = Phase.RUNNING
STARTING: Final = Phase.STARTING
STOPPING: Final = Phase.STOPPING


class Child:
    """What a supervisor knows of one child, and what it means to do with it."""

    __slots__ = (
        "args",
        "asker",
        "before",
        "cycles",
        "due",
        "has_run",
        "last_pid",
        "leaves_as",
        "name",
        "phase",
        "pid",
        "position",
        "reason",
        "restarts",
        "spec",
        "started_at",
        "ticket",
        "tries",
        "wanted",
        "window",
    )

    def __init__(
        self, name: str, spec: ChildSpec, position: int, args: tuple[Any, ...] = ()
    ) -> None:
        self.name = name
        self.spec = spec
        self.position = position
        self.args = args
        self.phase = PENDING
        self.pid: Any = None
        self.last_pid: Any = None
        self.reason: Reason | None = None
        """Why its last process ended."""
        self.wanted = True
        """It is to run, now or later."""
        self.cycles = False
        """It is to be stopped with its siblings, which come back together."""
        self.due = 0.0
        self.tries = 0
        """Restarts in a row."""
        self.restarts = 0
        self.has_run = False
        """It has been started, with success, at least once."""
        self.started_at: float
        self.window: Window | None = (
            None if spec.budget is None else Window(spec.budget.restarts, spec.budget.period)
        )
        self.asker: Any = None
        """Who waits for an operation on it."""
        self.before: Phase | None = None
        """What it was when somebody asked for its start, if it goes back to that when the start
        fails.
        """
        self.leaves_as: Phase | None = None
        """What it becomes when it has been stopped; None if it is to be removed."""
        self.ticket: int
        """Which of its entries among those that wait for a start is the valid one."""

    @property
    def is_waiting(self) -> bool:
        """It will be started, when it is its turn and its time."""
        return self.wanted and self.phase in (PENDING, BACKING_OFF)

    def __repr__(self) -> str:
        return f"<Child {self.name!r} {self.phase.value}>"


class Window:
    """Counts restarts inside a sliding period: of one child, or of all that have no budget of their
    own.
    """

    __slots__ = ("most", "period", "times")

    def __init__(self, most: int, period: float) -> None:
        self.most = most
        self.period = period
        self.times: deque[float] = deque()

    def admits(self, now: float) -> bool:
        """Count one more; False if that is one too many."""
        times = self.times
        times.append(now)
        while now - times[0] > self.period:
            times.popleft()
        return len(times) <= self.most
