"""`Alone`: runs a behaviour without a node. The test calls its callbacks and checks its recorded
actions.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar, TypeVarTuple, overload

from .._core.tables.callbacks import BATCHES, CALLBACKS, diagnostics
from .._core.tables.class_mistakes import check_names
from .._core.tables.pending_calls import Caller
from .._core.tables.timers import Timer
from .._core.verbs.behaviour import Behaviour, behaviour_of
from .._core.vocabulary.errors import BadInputError, NotAllowedError, Reject
from .._core.vocabulary.ids import PID, Alias, EventName
from .._core.vocabulary.messages import NO_REPLY, Published, Request, Response
from .._core.vocabulary.options import check_name, check_number
from .._core.vocabulary.reasons import Reason, Shutdown, as_reason
from ..state_machine.machine import StateMachine
from .records.notes import (
    NODE,
    Armed,
    Called,
    Identity,
    Notes,
    Publication,
    Requested,
    Sent,
    Spawned,
    StartedTask,
)
from .records.verbs import RecordingVerbs

__all__ = ["Alone", "Ask"]

B = TypeVar("B", bound=Behaviour)
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class _AskCaller(Caller):
    __slots__ = ()

    def awaken(self) -> None:
        """No task waits: the test reads the result."""


class Ask:
    """A call to a behaviour without a node, answered or not yet."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    @property
    def answered(self) -> bool:
        """Whether the call is answered."""
        return self.caller.settled

    def result(self) -> Any:
        """Return the answer, or raise the error that the behaviour answered with.

        Raises:
            AssertionError: the call is not answered yet.
        """
        __tracebackhide__ = True
        if not self.caller.settled:
            raise AssertionError(
                f"{self.caller.request!r} was deferred (NO_REPLY) and is not answered yet"
            )
        error = self.caller.error
        if error is None and self.caller.value is None:
            error = self.caller.refusal_of_none()
        if error is not None:
            raise error
        return self.caller.value


class Alone(Generic[B]):
    """An instance of a behaviour whose verbs record their arguments instead of acting.

    ``Alone(Counter, 5)`` takes the arguments of ``spawn``. The test itself awaits each callback, so
    an exception in a callback is an exception in the test. ``init`` runs before the first callback.
    Messages that the behaviour sends to itself are recorded like all others.

    Supervisors are refused, because they act on processes. So are state machines, because their
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
        check_names(cls, CALLBACKS)
        namespace = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        kind: Any = type(cls)
        made: Any = kind(cls.__name__, (cls, RecordingVerbs), namespace)
        if isinstance(behaviour, partial):
            made = partial(made, *behaviour.args, **behaviour.keywords)
        self.behaviour: B = made(*args)
        """The instance itself, for checks of its attributes."""
        self._notes = notes = Notes(
            Identity(None if name is None else check_name(name), dict(env or {}))
        )
        instance: Any = self.behaviour
        instance._record_in(notes)
        self._begun = False

    def __repr__(self) -> str:
        return f"<Alone {type(self.behaviour).__qualname__}>"

    # -- recorded actions --------------------------------------------------------------------------

    @property
    def pid(self) -> PID:
        """The PID that the behaviour sees as its own."""
        return self._notes.identity.pid

    @property
    def sent(self) -> list[Sent]:
        """The messages it has sent and forwarded, oldest first."""
        return self._notes.sent

    @property
    def messages(self) -> list[Any]:
        """Only the messages of ``sent``."""
        return [sent.message for sent in self._notes.sent]

    @property
    def calls(self) -> list[Called]:
        """The calls it has made."""
        return self._notes.calls

    @property
    def requests(self) -> list[Requested]:
        """The requests it has sent without waiting, and that are neither answered nor cancelled."""
        return self._notes.requests

    @property
    def spawned(self) -> list[Spawned]:
        """The processes and meta-processes it has started."""
        return self._notes.spawned

    @property
    def tasks(self) -> list[StartedTask]:
        """The tasks it has requested with ``start_task`` and ``run_task``. None of them runs."""
        return self._notes.tasks

    @property
    def idle_timeout(self) -> float | None:
        """The idle timeout it has set; None without one. No time passes by itself."""
        return self._notes.idle_timeout

    @property
    def links(self) -> list[Any]:
        """The targets it is linked to."""
        return self._notes.links

    @property
    def monitors(self) -> list[Any]:
        """The targets it monitors."""
        return self._notes.monitors

    @property
    def timers(self) -> list[Armed]:
        """The timers it has armed that have not fired or been cancelled."""
        return [timer for timer in self._notes.schedule.armed if timer.active]

    @property
    def published(self) -> list[Publication]:
        """The events it has published."""
        return self._notes.published

    @property
    def subscribed(self) -> list[str]:
        """The events it has subscribed to."""
        return self._notes.subscribed

    @property
    def events(self) -> list[str]:
        """The events it has registered."""
        return [event.name for event in self._notes.events]

    @property
    def exits(self) -> list[Sent]:
        """The exits it has sent."""
        return self._notes.exits

    @property
    def killed(self) -> list[Any]:
        """The processes it has killed."""
        return self._notes.killed

    @property
    def logged(self) -> list[dict[str, Any]]:
        """Its log lines: ``level``, ``event`` and the fields of each line."""
        return self._notes.logged

    @property
    def stopped(self) -> Reason | None:
        """The reason it has stopped with, by itself or by an exception; None while it runs."""
        return self._notes.stopped

    # -- input -------------------------------------------------------------------------------------

    def answer(self, what: object, value: object) -> None:
        """Answer its calls with ``value``, if the request is of a type, accepted by a function, or
        equal to a value.

        If ``value`` is an exception, the call raises it. The first match counts.
        """
        self._notes.answers.append((what, value))

    async def init(self) -> None:
        """Run ``init`` and ``post_start``. Every other method does this first, if needed."""
        if not self._begun:
            self._begun = True
            await self._callback("init")
            await self._callback("post_start")

    async def message(self, message: object, sender: PID | Alias | None = None) -> None:
        """Deliver a message; to an actor with ``handle_batch``, as a batch of one."""
        if hasattr(getattr(self.behaviour, "handle_message", None), BATCHES):
            await self._run("handle_batch", [message])
            return
        await self._run(
            "handle_message", message, self._notes.identity.parent if sender is None else sender
        )

    @overload
    async def call(self, request: Request[R]) -> R: ...
    @overload
    async def call(self, request: object) -> Any: ...
    async def call(self, request: object) -> Any:
        """Deliver a call; return the answer, or raise the error that refuses it.

        Raises:
            AssertionError: the behaviour has deferred the answer; use :meth:`ask`.
        """
        __tracebackhide__ = True
        return (await self.ask(request)).result()

    async def ask(self, request: object) -> Ask:
        """Deliver a call whose answer may come later."""
        caller = _AskCaller(
            self._notes.identity.parent, self._notes.identity.number(), self.pid, request
        )
        try:
            answer = await self._run("handle_call", request, caller)
        except Reject as rejection:
            caller.settle(None, rejection.error)
        else:
            if answer is not NO_REPLY:
                caller.settle(answer, None)
        return Ask(caller)

    async def respond(self, requested: Requested, value: object) -> None:
        """Answer a request of :attr:`requests`: run ``handle_response``. If ``value`` is an
        exception, the response carries it as its error.

        Raises:
            BadInputError: the request is answered or cancelled already.
        """
        if requested not in self._notes.requests:
            raise BadInputError(
                "respond(requested)", requested, "an entry of `alone.requests` that is still open"
            )
        self._notes.requests.remove(requested)
        error = value if isinstance(value, BaseException) else None
        response = Response(
            requested.ref, None if error is not None else value, error, requested.request
        )
        await self._run("handle_response", response)

    async def event(self, name: str, message: object) -> None:
        """Deliver a publication of an event."""
        await self._run("handle_event", Published(EventName(name, NODE), message, 0.0))

    async def child_exit(self, child: PID | Alias, reason: object) -> None:
        """Report the end of a spawned child."""
        await self._run("handle_child_exit", child, as_reason(reason))

    async def inspect(self, *items: str) -> dict[str, str]:
        """Return its diagnostics."""
        process: Any = self.behaviour
        return diagnostics(process._process, await self._run("handle_inspect", *items))

    async def pass_time(self, seconds: float) -> None:
        """Let time pass: its timers fire, in order. Timer messages to itself are delivered; timer
        messages to others are recorded.
        """
        check_number("seconds", seconds, least=0.0)
        notes = self._notes
        end = notes.schedule.now + seconds
        while (due := notes.schedule.table.next()) <= end:
            notes.schedule.pass_time(due)
            due_now: list[Sent] = []
            notes.schedule.table.expire(due, 1, partial(_note_fired, due_now))
            for sent in due_now:
                if sent.to in (self.pid, self.behaviour.registered_name):
                    await self.message(sent.message, self.pid)
                else:
                    notes.sent.append(sent)
        notes.schedule.pass_time(end)

    async def terminate(self, reason: object = Shutdown()) -> None:
        """End it: run ``pre_stop`` and ``terminate``, with the reason it has stopped with, or else
        with ``reason``.
        """
        await self.init()
        reason = self._notes.stop(as_reason(reason))
        await self._callback("pre_stop", reason)
        await self._callback("terminate", reason)

    async def _run(self, callback: str, *args: object) -> Any:
        if self._notes.stopped is not None:
            raise NotAllowedError(
                f"it has stopped ({self._notes.stopped}), so it gets no more input"
            )
        await self.init()
        return await self._callback(callback, *args)

    async def _callback(self, callback: str, *args: object) -> Any:
        try:
            result = getattr(self.behaviour, callback)(*args)
            return await result if inspect.iscoroutine(result) else result
        except Reject:
            raise
        except Exception as error:
            self._notes.fail(error)
            raise


def _note_fired(fired: list[Sent], timer: Timer) -> None:
    fired.append(Sent(timer.to, timer.message, timer.priority))
