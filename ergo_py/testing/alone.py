"""A behaviour without a node: call its callbacks one by one, and see what it would have done."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, Generic, NoReturn, TypeVar, TypeVarTuple, overload

from .._core.tables.pending_calls import Caller
from .._core.tables.timers import Timer
from .._core.verbs.behaviour import Behaviour, behaviour_of
from .._core.vocabulary.errors import BadInputError, NotAllowedError, Reject
from .._core.vocabulary.ids import PID, Alias, EventName
from .._core.vocabulary.messages import NO_REPLY, Published, Request
from .._core.vocabulary.options import check_name, check_number
from .._core.vocabulary.reasons import Crashed, Reason, Shutdown, as_reason
from ..state_machine.machine import StateMachine
from .recording_verbs import (
    NODE,
    Armed,
    Called,
    Lonely,
    Notes,
    Publication,
    Sent,
    Spawned,
    StartedTask,
)

__all__ = ["Alone", "Ask"]

B = TypeVar("B", bound=Behaviour)
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class _AskCaller(Caller):
    __slots__ = ()

    def awaken(self) -> None:
        """Nobody waits: the test looks."""


class Ask:
    """A call to a behaviour that is alone, answered or not yet."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    @property
    def answered(self) -> bool:
        """Whether there is an answer."""
        return self.caller.settled

    def result(self) -> Any:
        """The answer; an error that the behaviour has answered with is raised.

        Raises:
            AssertionError: there is none yet.
        """
        __tracebackhide__ = True
        if not self.caller.settled:
            raise AssertionError(
                f"{self.caller.request!r} was deferred (NO_REPLY) and is not answered yet"
            )
        if self.caller.error is not None:
            raise self.caller.error
        return self.caller.value


class Alone(Generic[B]):
    """One instance of a behaviour, whose verbs note what they were asked for instead of doing it.

    ``Alone(Counter, 5)`` takes what ``spawn`` takes. Each callback is awaited by the test itself,
    so an exception in it is an exception in the test. ``init`` runs before the first of them.
    Messages that it sends to itself are noted like all others.

    Supervisors are not for this: what they do is done to processes. Nor are state machines, whose
    postponed messages wait in the mailbox of a process.
    """

    def __init__(
        self,
        behaviour: Callable[[*Ts], B],
        *args: *Ts,
        name: str | None = None,
        env: Mapping[str, object] | None = None,
    ) -> None:
        cls = behaviour_of(behaviour)
        if getattr(cls, "is_supervisor", False) or issubclass(cls, StateMachine):
            raise BadInputError(
                "Alone(behaviour)",
                cls,
                "a behaviour that is no supervisor and no state machine; test those on a node",
            )
        namespace = {
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "service": _service,
        }
        kind: Any = type(cls)
        made: Any = kind(cls.__name__, (cls, Lonely), namespace)
        if isinstance(behaviour, partial):
            made = partial(made, *behaviour.args, **behaviour.keywords)
        self.behaviour: B = made(*args)
        """The instance itself, to look at its attributes."""
        self._notes = notes = Notes(None if name is None else check_name(name), dict(env or {}))
        instance: Any = self.behaviour
        instance._notes = notes
        # What the callbacks that a class has not overridden count on.
        instance._process = SimpleNamespace(unhandled=0, log=notes.log)
        self._begun = False

    def __repr__(self) -> str:
        return f"<Alone {type(self.behaviour).__qualname__}>"

    # -- what it has done --------------------------------------------------------------------------

    @property
    def pid(self) -> PID:
        """The PID it believes to have."""
        return self._notes.pid

    @property
    def sent(self) -> list[Sent]:
        """What it has sent and forwarded, oldest first."""
        return self._notes.sent

    @property
    def messages(self) -> list[Any]:
        """The messages of those alone."""
        return [one.message for one in self._notes.sent]

    @property
    def calls(self) -> list[Called]:
        """The calls it has made."""
        return self._notes.calls

    @property
    def spawned(self) -> list[Spawned]:
        """The processes and meta-processes it has started."""
        return self._notes.spawned

    @property
    def tasks(self) -> list[StartedTask]:
        """The background tasks it has asked for. None of them runs."""
        return self._notes.tasks

    @property
    def links(self) -> list[Any]:
        """What it is linked to."""
        return self._notes.links

    @property
    def monitors(self) -> list[Any]:
        """What it monitors."""
        return self._notes.monitors

    @property
    def timers(self) -> list[Armed]:
        """The timers it has armed and that are going to fire."""
        return [one for one in self._notes.timers if one.active]

    @property
    def published(self) -> list[Publication]:
        """What it has published."""
        return self._notes.published

    @property
    def subscribed(self) -> list[str]:
        """The events it has subscribed to."""
        return self._notes.subscribed

    @property
    def events(self) -> list[str]:
        """The events it has registered."""
        return self._notes.events

    @property
    def exits(self) -> list[Sent]:
        """The exits it has sent."""
        return self._notes.exits

    @property
    def killed(self) -> list[Any]:
        """Whom it has killed."""
        return self._notes.killed

    @property
    def logged(self) -> list[dict[str, Any]]:
        """What it has logged: ``level``, ``event`` and the fields of each line."""
        return self._notes.logged

    @property
    def stopped(self) -> Reason | None:
        """The reason it has stopped with, by itself or by an exception; None while it goes on."""
        return self._notes.stopped

    # -- what is done to it ------------------------------------------------------------------------

    def answer(self, what: Any, value: object) -> None:
        """Have its calls answered whose request is of a type, accepted by a function or equal to a
        value: with ``value``.

        An exception is raised by the call. The first that fits counts.
        """
        self._notes.answers.append((what, value))

    async def init(self) -> None:
        """Run ``init`` and ``post_start``. The first callback does this by itself."""
        if not self._begun:
            self._begun = True
            await self._callback("init")
            await self._callback("post_start")

    async def message(self, message: object, sender: PID | Alias | None = None) -> None:
        """Have it handle a message."""
        await self._run("handle_message", message, self._notes.parent if sender is None else sender)

    @overload
    async def call(self, request: Request[R]) -> R: ...
    @overload
    async def call(self, request: object) -> Any: ...
    async def call(self, request: Any) -> Any:
        """Have it handle a call; returns the answer, or raises what it was refused with.

        Raises:
            AssertionError: it has deferred the answer; use :meth:`ask`.
        """
        __tracebackhide__ = True
        return (await self.ask(request)).result()

    async def ask(self, request: object) -> Ask:
        """Have it handle a call whose answer may come later."""
        caller = _AskCaller(self._notes.parent, self._notes.number(), self.pid, request)
        try:
            answer = await self._run("handle_call", request, caller)
        except Reject as rejection:
            caller.settle(None, rejection.error)
        else:
            if answer is not NO_REPLY:
                caller.settle(answer, None)
        return Ask(caller)

    async def event(self, name: str, message: object) -> None:
        """Have it handle a publication of an event."""
        await self._run("handle_event", Published(EventName(name, NODE), message, 0.0))

    async def child_exit(self, child: PID | Alias, reason: object) -> None:
        """Tell it that something it has spawned has ended."""
        await self._run("handle_child_exit", child, as_reason(reason))

    async def inspect(self, *items: str) -> dict[str, str]:
        """Have it tell about itself."""
        return dict(await self._run("handle_inspect", *items))

    async def pass_time(self, seconds: float) -> None:
        """Let time pass: its timers fire, in order. What they send to itself it handles; what they
        send to others is noted.
        """
        check_number("seconds", seconds, least=0.0)
        notes = self._notes
        end = notes.now + seconds
        while (due := notes.table.next()) <= end:
            notes.now = due
            due_now: list[Sent] = []
            notes.table.expire(due, 1, partial(_note_fired, due_now))
            for one in due_now:
                if one.to in (self.pid, notes.name):
                    await self.message(one.message, self.pid)
                else:
                    notes.sent.append(one)
        notes.now = end

    async def terminate(self, reason: object = Shutdown()) -> None:
        """End it: ``pre_stop`` and ``terminate``, with the reason it has stopped with, or else with
        this one.
        """
        await self.init()
        notes = self._notes
        notes.stopped = notes.stopped or as_reason(reason)
        await self._callback("pre_stop", notes.stopped)
        await self._callback("terminate", notes.stopped)

    async def _run(self, callback: str, *args: Any) -> Any:
        if self._notes.stopped is not None:
            raise NotAllowedError(
                f"it has stopped ({self._notes.stopped}), and nothing reaches it any more"
            )
        await self.init()
        return await self._callback(callback, *args)

    async def _callback(self, callback: str, *args: Any) -> Any:
        try:
            result = getattr(self.behaviour, callback)(*args)
            return await result if inspect.iscoroutine(result) else result
        except Reject:
            raise
        except Exception as error:
            self._notes.stopped = Crashed(error)
            raise


def _note_fired(fired: list[Sent], timer: Timer) -> None:
    fired.append(Sent(timer.to, timer.message, timer.priority))


def _service(_self: object, name: str) -> NoReturn:
    raise NotAllowedError(
        f"a behaviour alone has no service {name!r}; test this with a node, or let it be given "
        "the address it sends to"
    )
