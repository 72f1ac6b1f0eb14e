"""`Child`: a supervisor's record of a child, and `Window`, the restart counter."""

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
    """A supervisor's record of a child: its state, and the intended next step."""

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
        """The child is to run, now or later."""
        self.cycles = False
        """The child is to be stopped with its siblings, and they restart together."""
        self.due = 0.0
        self.tries = 0
        """Restarts in a row."""
        self.restarts = 0
        self.has_run = False
        """The child has started successfully at least once."""
        self.started_at: float
        self.window: Window | None = (
            None if spec.budget is None else Window(spec.budget.restarts, spec.budget.period)
        )
        self.asker: Any = None
        """The caller that waits for an operation on the child."""
        self.before: Phase | None = None
        """The phase to return to if a start on request fails; None if a failed start counts as a
        failure.
        """
        self.leaves_as: Phase | None = None
        """The phase after the child has stopped; None if the supervisor removes it."""
        self.ticket: int
        """Number of the child's valid entry in the start queue; entries with other tickets are
        outdated.
        """

    @property
    def is_waiting(self) -> bool:
        """The child will start, when its turn and its time come."""
        return self.wanted and self.phase in (PENDING, BACKING_OFF)

    def __repr__(self) -> str:
        return f"<Child {self.name!r} {self.phase.value}>"


class Window:
    """Counts restarts inside a sliding period: of a single child, or of all children without a
    budget.
    """

    __slots__ = ("most", "period", "times")

    def __init__(self, most: int, period: float) -> None:
        self.most = most
        self.period = period
        self.times: deque[float] = deque()

    def admits(self, now: float) -> bool:
        """Count a restart; False if it exceeds the limit."""
        times = self.times
        times.append(now)
        while now - times[0] > self.period:
            times.popleft()
        return len(times) <= self.most
