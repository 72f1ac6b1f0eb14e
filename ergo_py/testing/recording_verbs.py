"""`RecordingVerbs`: the verbs of a behaviour without a node. Each verb records its arguments and
does nothing else.
"""

from collections.abc import (
    AsyncIterable,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    MutableMapping,
)
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final, NoReturn, TypeVar, TypeVarTuple, Unpack, cast

import structlog

from .._core.tables.callbacks import CALLBACKS, Callbacks
from .._core.tables.class_mistakes import misspelled
from .._core.tables.pending_calls import Caller
from .._core.tables.timers import Owned, Timer, Timers
from .._core.verbs.behaviour import Behaviour, behaviour_of, check_task
from .._core.verbs.common import check_caller, check_error, check_priority, check_timeout
from .._core.verbs.meta_process import MetaProcess, check_meta_behaviour
from .._core.vocabulary.dispatchers import Dispatcher
from .._core.vocabulary.envelopes import Priority
from .._core.vocabulary.errors import (
    NameUnknownError,
    NotAllowedError,
    RelationExistsError,
    RelationUnknownError,
)
from .._core.vocabulary.ids import PID, Alias, EventName, Ref, Target
from .._core.vocabulary.messages import NO_REPLY
from .._core.vocabulary.options import (
    MetaKeywords,
    SpawnKeywords,
    check_name,
    check_number,
    read_meta_options,
    read_options,
)
from .._core.vocabulary.reasons import Crashed, Normal, Reason, as_reason
from ..idle import IdleVerbs
from ..streams.verbs import StreamVerbs
from ..tasks.function import Work, name_of, refuse_keywords
from ..tasks.handle import Completion, Task
from .patterns import describe, matches

__all__ = [
    "Armed",
    "Called",
    "RecordingVerbs",
    "Notes",
    "Publication",
    "Requested",
    "Sent",
    "Spawned",
    "StartedTask",
]

NODE: Final = "alone@localhost"

R = TypeVar("R")
Ts = TypeVarTuple("Ts")


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was sent or forwarded, or an exit that was sent."""

    to: Any
    message: Any
    priority: Priority = Priority.NORMAL


@dataclass(frozen=True, slots=True)
class Called:
    """A call that was made."""

    to: Any
    request: Any


@dataclass(frozen=True, slots=True)
class Requested:
    """A request that was sent without waiting, and is not answered yet."""

    to: Any
    request: Any
    ref: Ref
    """The identity that the behaviour received."""


@dataclass(frozen=True, slots=True)
class Spawned:
    """A process or meta-process that was requested. Only its address exists."""

    behaviour: Any
    """The given class, or the instance of a meta-process."""
    args: tuple[Any, ...]
    options: Mapping[str, Any]
    id: Any
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
    to: Any
    message: Any
    timer: Timer

    @property
    def active(self) -> bool:
        """Whether it is going to fire."""
        return self.timer.active


@dataclass(slots=True)
class Notes:
    """The recorded actions of a behaviour without a node, each kind in order."""

    name: str | None = None
    env: Mapping[str, object] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    calls: list[Called] = field(default_factory=list)
    requests: list[Requested] = field(default_factory=list)
    spawned: list[Spawned] = field(default_factory=list)
    tasks: list[StartedTask] = field(default_factory=list)
    links: list[Any] = field(default_factory=list)
    monitors: list[Any] = field(default_factory=list)
    timers: list[Armed] = field(default_factory=list)
    published: list[Publication] = field(default_factory=list)
    subscribed: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    aliases: list[Alias] = field(default_factory=list)
    exits: list[Sent] = field(default_factory=list)
    killed: list[Any] = field(default_factory=list)
    logged: list[dict[str, Any]] = field(default_factory=list)
    stopped: Reason | None = None
    trap_exit: bool = False
    idle_timeout: float | None = None
    priority: Priority = Priority.NORMAL
    now: float = 0.0
    table: Timers = field(default_factory=Timers)
    answers: list[tuple[Any, Any]] = field(default_factory=list)
    numbers: Any = field(default_factory=lambda: count(1))
    parent: PID = field(init=False)
    pid: PID = field(init=False)
    log: Any = field(init=False)

    def __post_init__(self) -> None:
        self.parent = PID(NODE, 0, 0)
        self.pid = PID(NODE, 0, self.number())
        self.log = structlog.wrap_logger(
            object(),
            processors=[self._keep],
            wrapper_class=structlog.make_filtering_bound_logger(0),
        ).bind()

    def number(self) -> int:
        """The next number of an address."""
        return int(next(self.numbers))

    def pass_time(self, to: float) -> None:
        """Set the clock to a later time."""
        self.now = to

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

    def relate(self, kind: str, relations: list[Any], target: object) -> None:
        """Note a relation."""
        if target == self.pid:
            raise NotAllowedError(
                f"a process cannot {kind} itself; its own end is told to terminate(reason)"
            )
        if target in relations:
            raise RelationExistsError(kind, target)
        relations.append(target)

    def unrelate(self, kind: str, relations: list[Any], target: object) -> None:
        """Take it back."""
        if target not in relations:
            raise RelationUnknownError(kind, target)
        relations.remove(target)

    def arm(
        self, delay: float, period: float, to: object, message: object, priority: Priority | None
    ) -> Timer:
        """Note a timer."""
        chosen = self.priority if priority is None else check_priority(priority)
        owner = SimpleNamespace(timers=Owned())
        timer = Timer(self.table, owner, to, message, chosen, period)
        self.table.arm(timer, self.now + delay)
        self.timers.append(Armed(delay, period, to, message, timer))
        return timer


class RecordingVerbs(StreamVerbs, IdleVerbs):
    """A base placed just before ``Behaviour`` in the method resolution order, so that overrides in
    the class still win.
    """

    # The placeholder for the process while __init__ runs; its use raises an error.
    _notes: Notes = cast(Notes, Behaviour._process)

    def _record_in(self, notes: Notes) -> None:
        """Record from now on: ``__init__`` has run."""
        self._notes = notes
        # The default callbacks of `Actor` use these attributes.
        callbacks = Callbacks(type(self))
        callbacks.suspect(misspelled(type(self), CALLBACKS, callbacks.defined))
        process = SimpleNamespace(callbacks=callbacks, count_unhandled=lambda: None, log=notes.log)
        self._process = cast(Any, process)

    @property
    def pid(self) -> PID:
        return self._notes.pid

    @property
    def registered_name(self) -> str | None:
        return self._notes.name

    @property
    def parent(self) -> PID:
        return self._notes.parent

    @property
    def node(self) -> NoReturn:
        raise NotAllowedError(
            "a behaviour alone has no node; test this with a node, or pass the value to the "
            "behaviour"
        )

    @property
    def env(self) -> Mapping[str, object]:
        return MappingProxyType(dict(self._notes.env))

    @property
    def log(self) -> Any:
        return self._notes.log

    @log.setter
    def log(self, logger: Any) -> None:
        self._notes.log = logger

    @property
    def trap_exit(self) -> bool:
        return self._notes.trap_exit

    @trap_exit.setter
    def trap_exit(self, value: bool) -> None:
        self._notes.trap_exit = bool(value)

    @property
    def send_priority(self) -> Priority:
        return self._notes.priority

    @send_priority.setter
    def send_priority(self, value: Priority) -> None:
        self._notes.priority = check_priority(value)

    # -- messages and calls ------------------------------------------------------------------------

    def send(self, to: Target, message: object, *, priority: Priority | None = None) -> bool:
        notes = self._notes
        notes.sent.append(
            Sent(to, message, notes.priority if priority is None else check_priority(priority))
        )
        return True

    async def send_wait(
        self,
        to: Target,
        message: object,
        *,
        priority: Priority | None = None,
        timeout: float | None = None,
    ) -> bool:
        check_timeout(timeout)
        return self.send(to, message, priority=priority)

    def send_after(
        self, delay: float, to: Target, message: object, *, priority: Priority | None = None
    ) -> Timer:
        check_number("delay", delay, least=0.0)
        return self._notes.arm(delay, 0.0, to, message, priority)

    def send_every(
        self, period: float, to: Target, message: object, *, priority: Priority | None = None
    ) -> Timer:
        check_number("period", period, least=1e-6)
        return self._notes.arm(period, period, to, message, priority)

    def forward(
        self,
        to: Target,
        message: object,
        origin: PID | Alias | Caller,
        *,
        priority: Priority | None = None,
    ) -> Any:
        self.send(to, message, priority=priority)
        return NO_REPLY if isinstance(origin, Caller) else True

    def call(
        self,
        to: Target,
        request: Any,
        *,
        timeout: float | None = 5.0,
        priority: Priority | None = None,
    ) -> Coroutine[Any, Any, Any]:
        check_timeout(timeout)
        return self._call(to, request)

    async def _call(self, to: Target, request: Any) -> Any:
        notes = self._notes
        notes.calls.append(Called(to, request))
        for pattern, answer in notes.answers:
            if matches(pattern, request):
                if isinstance(answer, BaseException):
                    raise answer
                return answer
        known = ", ".join(describe(pattern) for pattern, _ in notes.answers) or "none"
        raise AssertionError(
            f"{to} was asked {request!r}, and no answer is known; `alone.answer(…)` gives one. "
            f"Known: {known}"
        )

    def request(
        self,
        to: Target,
        request: object,
        *,
        timeout: float | None = 5.0,
        priority: Priority | None = None,
    ) -> Ref:
        check_timeout(timeout)
        notes = self._notes
        requested = Requested(to, request, Ref(NODE, 1, notes.number()))
        notes.requests.append(requested)
        return requested.ref

    def cancel_request(self, ref: Ref) -> bool:
        requests = self._notes.requests
        before = len(requests)
        requests[:] = [requested for requested in requests if requested.ref != ref]
        return len(requests) < before

    def wait_for(self, waiting: Coroutine[Any, Any, R]) -> R:
        try:
            waiting.send(None)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        waiting.close()
        raise NotAllowedError(
            "a behaviour alone cannot wait for anything real; test this with a node"
        )

    def reply(self, caller: Caller, value: object) -> bool:
        return check_caller(caller).settle(value, None)

    def reply_error(self, caller: Caller, error: BaseException) -> bool:
        return check_caller(caller).settle(None, check_error(error))

    # -- children and ends -------------------------------------------------------------------------

    async def spawn(
        self, behaviour: Callable[[*Ts], Behaviour], *args: *Ts, **options: Unpack[SpawnKeywords]
    ) -> PID:
        behaviour_of(behaviour)
        read_options(options)
        pid = PID(NODE, 0, self._notes.number())
        self._notes.spawned.append(Spawned(behaviour, args, dict(options), pid))
        return pid

    async def spawn_meta(self, behaviour: MetaProcess, **options: Unpack[MetaKeywords]) -> Alias:
        check_meta_behaviour(behaviour)
        read_meta_options(options)
        alias = Alias(NODE, 0, self._notes.number())
        self._notes.spawned.append(Spawned(behaviour, (), dict(options), alias))
        return alias

    def start_task(
        self, function: Callable[[*Ts], Awaitable[object]], *args: *Ts, name: str | None = None
    ) -> Any:
        check_task(function)
        task = StartedTask(function, args, name)
        self._notes.tasks.append(task)
        return task

    def run_task(
        self,
        function: Callable[[*Ts], Any],
        *args: *Ts,
        name: str | None = None,
        timeout: float | None = None,
        dispatcher: Dispatcher | None = None,
        under: Target | None = None,
        reply_to: Target | None = None,
        **unknown: Any,
    ) -> Any:
        refuse_keywords(function, unknown)
        Work(function, dispatcher, "run_task(function)", "run_task(fetch, url)")
        check_timeout(timeout)
        completion: Completion[Any] = Completion(name or name_of(function))
        started = StartedTask(function, args, name, False, completion)
        completion.belong_to(
            PID(NODE, 0, self._notes.number()), started.cancel, _gone, lambda _error: None
        )
        self._notes.tasks.append(started)
        return Task(completion)

    def map_stream(
        self,
        function: Callable[[Any], Any],
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        at_once: int = 8,
        ordered: bool = True,
        timeout: float | None = None,
        on_failure: Callable[[Any, Exception], Any] | None = None,
    ) -> NoReturn:
        raise NotAllowedError("a behaviour alone runs no functions; test map_stream with a node")

    def set_idle_timeout(self, seconds: float | None) -> None:
        if seconds is not None:
            check_number("idle timeout", seconds, least=1e-6, hint=", or None")
        self._notes.idle_timeout = seconds

    def stream(self, parts: Iterable[Any] | AsyncIterable[Any], *, credit: int = 16) -> NoReturn:
        raise NotAllowedError("a behaviour alone answers no parts; test stream with a node")

    def call_stream(
        self,
        to: Target,
        request: Any,
        *,
        timeout: float | None = 5.0,
        credit: int | None = None,
    ) -> NoReturn:
        raise NotAllowedError("a behaviour alone gets no parts; test call_stream with a node")

    def stop(self, reason: object = Normal()) -> None:
        self._notes.stop(as_reason(reason))

    def send_exit(self, to: Target, reason: object) -> bool:
        self._notes.exits.append(Sent(to, as_reason(reason)))
        return True

    def kill(self, to: Target) -> bool:
        self._notes.killed.append(to)
        return True

    # -- names, relations, events ------------------------------------------------------------------

    def register(self, name: str) -> None:
        check_name(name)
        if self._notes.name not in (None, name):
            raise NotAllowedError(f"it has the name {self._notes.name!r}; unregister() first")
        self._notes.name = name

    def unregister(self) -> None:
        if self._notes.name is None:
            raise NameUnknownError(None)
        self._notes.name = None

    def create_alias(self) -> Alias:
        alias = Alias(NODE, 0, self._notes.number())
        self._notes.aliases.append(alias)
        return alias

    def delete_alias(self, alias: Alias) -> None:
        if alias not in self._notes.aliases:
            raise NameUnknownError(alias)
        self._notes.aliases.remove(alias)

    def link(self, target: object) -> None:
        self._notes.relate("link", self._notes.links, target)

    def unlink(self, target: object) -> None:
        self._notes.unrelate("link", self._notes.links, target)

    def monitor(self, target: object) -> None:
        self._notes.relate("monitor", self._notes.monitors, target)

    def demonitor(self, target: object) -> None:
        self._notes.unrelate("monitor", self._notes.monitors, target)

    def register_event(
        self, name: str, *, buffer: int = 0, notify: bool = False, open: bool = False
    ) -> Ref:
        check_number("buffer", buffer, least=0, whole=True)
        self._notes.events.append(check_name(name))
        return Ref(NODE, 0, self._notes.number())

    def unregister_event(self, name: str) -> None:
        self._notes.unrelate("event", self._notes.events, name)

    def publish(self, event: str | EventName, message: object, *, token: Ref | None = None) -> int:
        self._notes.published.append(Publication(_event(event), message))
        return 0

    def subscribe(self, event: str | EventName, *, link: bool = False) -> tuple[Any, ...]:
        self._notes.relate("subscription", self._notes.subscribed, _event(event))
        return ()

    def unsubscribe(self, event: str | EventName) -> None:
        self._notes.unrelate("subscription", self._notes.subscribed, _event(event))


async def _gone() -> None:
    """A task of a behaviour alone has no process that could end."""


def _event(event: str | EventName) -> str:
    return event if isinstance(event, str) else event.name
