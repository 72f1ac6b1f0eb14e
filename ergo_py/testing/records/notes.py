"""`Notes`: the recorded actions of a behaviour without a node, and their types."""

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import structlog

from ..._core.tables.timers import Timer, Timers
from ..._core.vocabulary.envelopes import Priority
from ..._core.vocabulary.errors import NotAllowedError
from ..._core.vocabulary.ids import PID, Alias, EventName, Ref
from ..._core.vocabulary.reasons import Crashed, Reason
from ...tasks.handle import Completion

__all__ = [
    "NODE",
    "Armed",
    "Called",
    "Identity",
    "Notes",
    "Publication",
    "Requested",
    "Schedule",
    "Sent",
    "Spawned",
    "StartedTask",
]

NODE: Final = "alone@localhost"


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was sent or forwarded, or an exit that was sent."""

    to: object
    message: Any
    priority: Priority = Priority.NORMAL


@dataclass(frozen=True, slots=True)
class Called:
    """A call that was made."""

    to: object
    request: Any


@dataclass(frozen=True, slots=True)
class Requested:
    """A request that was sent without waiting, and is not answered yet."""

    to: object
    request: Any
    ref: Ref
    """The identity that the behaviour received."""


@dataclass(frozen=True, slots=True)
class Spawned:
    """A process or meta-process that was requested. Only its address exists."""

    behaviour: object
    """The given class, or the instance of a meta-process."""
    args: tuple[Any, ...]
    options: Mapping[str, Any]
    id: PID | Alias
    """The PID or alias that the behaviour received."""


@dataclass(slots=True)
class StartedTask:
    """A task requested with ``start_task`` or ``run_task``. It does not run; a test may await
    ``function(*args)`` itself, and give a task of ``run_task`` its result.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    name: str | None
    done: bool = False
    """Set by ``cancel()``, as the behaviour sees it, and by ``finish`` and ``fail``."""
    _completion: Completion[Any] | None = None

    def cancel(self) -> None:
        """Note that the behaviour has cancelled it."""
        self.done = True

    def finish(self, value: object) -> None:
        """Give a task of ``run_task`` its result."""
        self._settle(value, None)

    def fail(self, error: Exception) -> None:
        """Let a task of ``run_task`` fail with an exception."""
        self._settle(None, error)

    def _settle(self, value: object, error: Exception | None) -> None:
        if self._completion is None:
            raise NotAllowedError("a background task of start_task has no result")
        self.done = True
        self._completion.settle(value, error)


@dataclass(frozen=True, slots=True)
class Publication:
    """A message that was published."""

    event: str
    message: Any


@dataclass(frozen=True, slots=True)
class Armed:
    """A timer that was armed."""

    delay: float
    period: float
    """Zero if it fires once."""
    to: object
    message: Any
    timer: Timer

    @property
    def active(self) -> bool:
        """Whether it is going to fire."""
        return self.timer.active


class Identity:
    """The addresses of a behaviour without a node, and of all that it asks for."""

    __slots__ = ("_numbers", "env", "name", "parent", "pid")

    def __init__(self, name: str | None, env: Mapping[str, object]) -> None:
        self._numbers = count(1)
        self.name: str | None = name
        """The registered name."""
        self.env: Mapping[str, object] = env
        """The environment of the process."""
        self.parent: PID = PID(NODE, 0, 0)
        self.pid: PID = PID(NODE, 0, self.number())

    def number(self) -> int:
        """The next number of an address."""
        return next(self._numbers)


class Schedule:
    """The timers of a behaviour without a node, and its time, which only a test lets pass."""

    __slots__ = ("armed", "now", "table")

    def __init__(self) -> None:
        self.now: float = 0.0
        self.table: Timers = Timers()
        self.armed: list[Armed] = []
        """All timers so far, in order."""

    def arm(
        self,
        delay: float,
        owner: object,
        to: object,
        message: object,
        priority: object,
        period: float,
    ) -> Timer:
        """Make a timer that fires when a test has let ``delay`` seconds pass."""
        timer = Timer(self.table, self.now + delay, owner, to, message, priority, period)
        self.armed.append(Armed(delay, period, to, message, timer))
        return timer

    def pass_time(self, to: float) -> None:
        """Set the clock to a later time."""
        self.now = to


@dataclass(slots=True)
class Notes:
    """The recorded actions of a behaviour without a node, each kind in order."""

    identity: Identity
    schedule: Schedule = field(default_factory=Schedule)
    sent: list[Sent] = field(default_factory=list)
    calls: list[Called] = field(default_factory=list)
    requests: list[Requested] = field(default_factory=list)
    spawned: list[Spawned] = field(default_factory=list)
    tasks: list[StartedTask] = field(default_factory=list)
    links: list[Any] = field(default_factory=list)
    monitors: list[Any] = field(default_factory=list)
    published: list[Publication] = field(default_factory=list)
    subscribed: list[str] = field(default_factory=list)
    events: list[EventName] = field(default_factory=list)
    exits: list[Sent] = field(default_factory=list)
    killed: list[Any] = field(default_factory=list)
    logged: list[dict[str, Any]] = field(default_factory=list)
    stopped: Reason | None = None
    idle_timeout: float | None = None
    answers: list[tuple[Any, Any]] = field(default_factory=list)
    log: Any = field(init=False)

    def __post_init__(self) -> None:
        self.log = structlog.wrap_logger(
            object(),
            processors=[self._keep],
            wrapper_class=structlog.make_filtering_bound_logger(0),
        ).bind()

    def set_idle_timeout(self, seconds: float | None) -> None:
        """Note the idle timeout; None without one."""
        self.idle_timeout = seconds

    def stop(self, reason: Reason) -> Reason:
        """Note that the behaviour stops, and return the reason: the first one counts."""
        self.stopped = self.stopped or reason
        return self.stopped

    def fail(self, error: Exception) -> None:
        """Note that a callback has raised, which stops the behaviour."""
        self.stopped = Crashed(error)

    def _keep(self, _logger: object, level: str, event: MutableMapping[str, Any]) -> Any:
        self.logged.append({"level": level, **event})
        raise structlog.DropEvent
