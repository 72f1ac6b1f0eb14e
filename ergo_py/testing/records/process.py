"""`RecordingProcess`: the process of a behaviour without a node. It has the interface that the
verbs of a behaviour use, and writes each action into `Notes`.
"""

from collections.abc import Coroutine, Iterator
from itertools import count
from typing import Any, Final, NoReturn, TypeVar

from ..._core.messaging.receiver import NO_RECEIVER
from ..._core.runtime.bridge import get_ident
from ..._core.tables.callbacks import Callbacks
from ..._core.tables.pending_calls import Caller
from ..._core.tables.relations import Kind
from ..._core.tables.timers import Owned, Timer
from ..._core.verbs.common import check_priority
from ..._core.vocabulary.envelopes import Priority
from ..._core.vocabulary.errors import NotAllowedError, RelationExistsError, RelationUnknownError
from ..._core.vocabulary.ids import PID, Alias, EventName, Ref
from ..._core.vocabulary.reasons import Reason
from ..._core.vocabulary.states import RUNNING
from ..patterns import describe, matches
from .notes import NODE, Called, Notes, Publication, Requested, Sent

__all__ = ["RecordingProcess"]

R = TypeVar("R")


class RecordingProcess:
    """A process that records every action in its notes, and does none of them."""

    is_remote: Final = False
    parent: Final = None

    def __init__(self, notes: Notes, callbacks: Callbacks) -> None:
        self.notes = notes
        self.callbacks = callbacks
        self.id: PID = notes.identity.pid
        self.env: Final = notes.identity.env
        self.name = notes.identity.name
        self.log: object = notes.log
        self.priority: Priority = Priority.NORMAL
        self.trap_exit: bool = False
        self.state = RUNNING
        self.sent = 0
        self.last_receiver = NO_RECEIVER
        self.timers: Owned = Owned()
        self.aliases: dict[Alias, None] = {}
        self.events: list[EventName] = notes.events
        self.router: _Router = _Router(self)
        self.kernel: _Kernel = _Kernel(self)
        self.turn = self

    def __str__(self) -> str:
        return str(self.id)

    def allow(self, operation: object) -> None:
        """A behaviour alone may use each verb at any time."""

    def count_sent(self) -> None:
        """The notes have the messages."""

    def count_published(self, receivers: int) -> None:
        """The notes have the publications."""

    def count_unhandled(self) -> None:
        """The log has the message."""

    def use_logger(self, logger: object) -> None:
        """Log with another logger from now on."""
        self.log = logger

    def trap_exits(self, value: bool) -> None:
        """Trap exits from now on, or not."""
        self.trap_exit = value

    def send_with(self, priority: Priority) -> None:
        """Send with another priority from now on."""
        self.priority = priority

    def take_name(self, name: str) -> None:
        """Register the process."""
        self.name = name

    def be_called(self, name: str | None) -> None:
        """Note the name; None without one."""
        self.name = name

    def make_alias(self) -> Alias:
        """Make a further address."""
        alias = Alias(NODE, 0, self.notes.identity.number())
        self.aliases[alias] = None
        return alias

    def add_event(self, event: EventName) -> None:
        """Note an event of the behaviour."""
        self.events.append(event)

    def request(
        self, to: object, request: object, timeout: float | None, priority: Priority | None
    ) -> Requested:
        """Note a request."""
        requested = Requested(to, request, Ref(NODE, 1, self.notes.identity.number()))
        self.notes.requests.append(requested)
        return requested

    def cancel_request(self, ref: Ref) -> bool:
        """Forget a request. False if it is not open."""
        requests = self.notes.requests
        before = len(requests)
        requests[:] = [requested for requested in requests if requested.ref != ref]
        return len(requests) < before

    def wait_for(self, waiting: Coroutine[Any, Any, R]) -> R:
        """The result of a coroutine that waits for nothing."""
        try:
            waiting.send(None)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        waiting.close()
        raise NotAllowedError(
            "a behaviour alone cannot wait for anything real; test this with a node"
        )

    def end(self, kind: object, reason: Reason) -> None:
        """Note that the behaviour stops."""
        self.notes.stop(reason)

    def ask_to_exit(self, sender: PID, reason: Reason) -> None:
        """Note an exit that the behaviour sends to itself."""
        self.notes.exits.append(Sent(self.id, reason))

    def kill(self) -> None:
        """Note that the behaviour kills itself."""
        self.notes.killed.append(self.id)


class _Other:
    """The receiver at any other address."""

    is_remote: Final = False

    def __init__(self, notes: Notes, to: object) -> None:
        self._notes = notes
        self._to = to

    def ask_to_exit(self, sender: PID, reason: Reason) -> None:
        self._notes.exits.append(Sent(self._to, reason))

    def kill(self) -> None:
        self._notes.killed.append(self._to)


class _Router:
    """Records messages. It finds a receiver at every address."""

    node: Final = NODE
    creation: Final = 0
    remote: Final = None

    def __init__(self, process: RecordingProcess) -> None:
        self._process = process
        self._notes = process.notes
        self.processes: dict[PID, Any] = {}
        self.loop_thread: int = get_ident()
        self.references: Iterator[int] = count(1)
        self.registry = self

    def send(self, sender: PID, to: object, message: object, priority: Priority) -> bool:
        self._notes.sent.append(Sent(to, message, check_priority(priority)))
        return True

    async def send_wait(
        self,
        _process: object,
        sender: PID,
        to: object,
        message: object,
        priority: Priority,
        timeout: float | None,
    ) -> bool:
        return self.send(sender, to, message, priority)

    def resolve(self, to: object) -> "RecordingProcess | _Other":
        process = self._process
        if to == process.id or to in process.aliases or (to is not None and to == process.name):
            return process
        return _Other(self._notes, to)

    def free_name(self, name: str) -> None:
        """No other process could take the name."""

    def drop_alias(self, alias: Alias) -> None:
        """No message could arrive at the alias."""


class _Kernel:
    """Records links, monitors and subscriptions, and has the other parts."""

    def __init__(self, process: RecordingProcess) -> None:
        self._notes = process.notes
        self.pid: PID = process.notes.identity.parent
        self.calls: _Calls = _Calls(process)
        self.clock: _Clock = _Clock(process.notes)
        self.publisher: _Publisher = _Publisher(process.notes)
        self.relations = self.links = self
        self.services = self

    @property
    def node(self) -> NoReturn:
        raise NotAllowedError(
            "a behaviour alone has no node; test this with a node, or pass the value to the "
            "behaviour"
        )

    def get(self, name: str) -> NoReturn:
        """No service is there."""
        raise NotAllowedError(
            f"a behaviour alone has no service {name!r}; test this with a node, or pass the "
            "address to the behaviour"
        )

    def relate(
        self, process: RecordingProcess, target: object, kind: Kind, *, follow: bool = False
    ) -> None:
        relations, named = self._relations(target, kind)
        if named in relations:
            raise RelationExistsError(kind.value, target)
        relations.append(named)

    def unrelate(self, process: RecordingProcess, target: object, kind: Kind) -> None:
        relations, named = self._relations(target, kind)
        if named not in relations:
            raise RelationUnknownError(kind.value, target)
        relations.remove(named)

    def _relations(self, target: object, kind: Kind) -> tuple[list[Any], Any]:
        if isinstance(target, EventName):
            return self._notes.subscribed, target.name
        return self._notes.links if kind is Kind.LINK else self._notes.monitors, target

    def of_watcher(self, watcher: PID, kind: Kind) -> tuple[Any, ...]:
        """No subscription is a link: its kind is not recorded."""
        return ()

    def tell_all(self, target: object, reason: Reason) -> None:
        """No process watches a behaviour alone."""

    def register_event(self, event: object) -> None:
        """The process notes its events."""

    def end_event(self, event: EventName, reason: Reason) -> None:
        """The events have no subscribers."""


class _Calls:
    """Records calls, and answers them as the test has said."""

    def __init__(self, process: RecordingProcess) -> None:
        self._router = process.router
        self._notes = process.notes

    def forward(self, to: object, message: object, origin: object, priority: Priority) -> bool:
        return self._router.send(self._notes.identity.pid, to, message, priority)

    async def call(
        self,
        process: object,
        sender: PID,
        to: object,
        request: object,
        timeout: object,
        priority: object,
    ) -> Any:
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

    def reply(self, caller: Caller, value: object, error: BaseException | None) -> bool:
        return caller.settle(value, error)


class _Clock:
    """Records timers. They fire when the test lets time pass."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def arm_timer(
        self,
        delay: float,
        owner: object,
        to: object,
        message: object,
        priority: object,
        period: float = 0.0,
    ) -> Timer:
        return self._notes.schedule.arm(delay, owner, to, message, priority, period)


class _Publisher:
    """Records publications. Every event exists, and has no subscribers."""

    recent: Final = ()

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self.events = self

    def name(self, event: str | EventName) -> EventName:
        return EventName(event, NODE) if isinstance(event, str) else EventName(event.name, NODE)

    def get(self, event: EventName) -> "_Publisher":
        return self

    find = get

    def publish(self, sender: PID, event: EventName, message: object, token: Ref | None) -> int:
        self._notes.published.append(Publication(event.name, message))
        return 0
