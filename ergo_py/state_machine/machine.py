"""`StateMachine`: an actor whose reaction to a message depends on its current state."""

import inspect
from collections.abc import Awaitable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from types import CoroutineType
from typing import Any, ClassVar, Final, TypeAlias

from .._core.processes.envelope_handlers import callback
from .._core.tables.pending_calls import Caller
from .._core.tables.timers import Timer
from .._core.verbs.behaviour import Behaviour
from .._core.vocabulary.envelopes import EVENT, MESSAGE, Priority
from .._core.vocabulary.errors import (
    BadInputError,
    BehaviourError,
    CallbackError,
    NotAllowedError,
    Reject,
)
from .._core.vocabulary.ids import PID
from .._core.vocabulary.messages import NO_REPLY, Response
from .._core.vocabulary.options import check_name, check_number
from .._core.vocabulary.public_names import show_members, show_public_names
from .._core.vocabulary.states import Operation
from ..actor import Actor
from ..idle import serve_idle
from ..methods import serve_methods
from .states import (
    AtMethod,
    EventTimeout,
    MachineState,
    NamedTimeout,
    StateMethod,
    StateTimeout,
    Timeout,
    is_async,
    read_states,
)

__all__ = ["StateMachine"]


@dataclass(frozen=True, slots=True)
class _Due:
    """The payload of a timer. If the machine no longer holds it, the timer was cancelled after it
    fired.
    """

    timeout: Timeout
    at: float


_STATE: Final = "the state's"
_EVENT: Final = "the next event's"
Key = str | tuple[str]
StateGiven = str | StateMethod | type[MachineState[Any]]


class StateMachine(Actor):
    """An actor with a current state: messages and calls go to that state.

    States are methods marked with ``@state``, or classes listed in ``states``. The lifecycle, in
    order:

    1. ``first_state`` runs before ``spawn`` returns and names the initial state; by default the
       first state defined.
    2. The current state handles each message, timeout and call. For a call, ``sender`` is its
       ``Caller`` and the return value is the answer.
    3. ``become`` changes the state after the handler has returned: ``exit`` of the old state runs,
       then ``enter`` of the new state; then postponed messages are handled again.
    4. ``pre_stop`` and ``terminate`` run at the end, as in every actor.

    A turnstile that locks again after a push, or after 30 seconds::

        from ergo_py import Node, StateMachine, run
        from ergo_py.state_machine import state

        class Turnstile(StateMachine):
            @state
            def locked(self, message, sender):
                if message == "coin":
                    self.become("unlocked")
                    return "welcome"
                return "insert a coin"

            @state(timeout=30.0)
            def unlocked(self, message, sender):
                if message == "push" or isinstance(message, self.StateTimeout):
                    self.become("locked")
                return "go"

        async def main(node: Node):
            turnstile = await node.spawn(Turnstile)
            for request in ("push", "coin", "push"):
                print(await node.call(turnstile, request))

        run(main)  # prints "insert a coin", "welcome", "go"

    A machine defines no ``init``, ``handle_message`` or ``handle_call``: do the preparation in
    ``first_state``.
    """

    EventTimeout: TypeAlias = EventTimeout
    NamedTimeout: TypeAlias = NamedTimeout
    StateTimeout: TypeAlias = StateTimeout

    states: ClassVar[tuple[type[MachineState[Any]], ...]] = ()
    """States that are classes, in addition to the methods with ``@state``."""
    _table: ClassVar[Mapping[str, StateMethod | type[MachineState[Any]]]] = {}
    _at: MachineState[Any] | None = None
    _since = 0.0
    _next: str | None = None
    _puts_aside = False
    _is_moving = True
    _timers: dict[Key, tuple[_Due, Timer]]

    def __init_subclass__(cls: Any, **keywords: object) -> None:
        for name in ("init", "handle_message", "handle_call"):
            if name in cls.__dict__:
                raise BehaviourError(
                    f"{cls.__qualname__}.{name}",
                    cls.__dict__[name],
                    "`first_state` for the work at the start, and a method with @state for each "
                    "state",
                )
        super().__init_subclass__(**keywords)
        cls._table = read_states(cls, cls.states, partial(hasattr, StateMachine))
        # Without async states, install plain callbacks: such a machine can answer calls inline and
        # can use thread dispatchers.
        waits = any(map(is_async, cls._table.values()))
        cls.handle_message = StateMachine.handle_message if waits else _handle_message_at_once
        cls.handle_call = StateMachine.handle_call if waits else _handle_call_at_once
        serve_methods(cls)
        serve_idle(cls)
        cls.init = (
            StateMachine.init
            if waits or inspect.iscoroutinefunction(cls.first_state)
            else _init_at_once
        )

    # -- public methods ----------------------------------------------------------------------------

    def first_state(self) -> StateGiven | Awaitable[StateGiven]:
        """Return the initial state. Called once, before ``spawn`` returns; may be ``async``. Do
        here the preparation that another actor does in ``init``.
        """
        return next(iter(self._table))

    @property
    def state_name(self) -> str:
        """The name of the current state."""
        if self._at is None:
            raise NotAllowedError(
                "the machine has no state until first_state has returned; use state_name after that"
            )
        return self._at.name

    def become(self, state: StateGiven) -> None:
        """Change the state after the current handler returns. If called several times, the last
        call counts.

        ``exit`` of the old state runs, then ``enter`` of the new state; then the postponed messages
        are delivered again. To become the current state means to leave it and enter it again.

        Raises:
            BadInputError: the machine has no such state.
            NotAllowedError: an ``enter`` or ``exit`` hook is running.
        """
        self._check_handling("become")
        self._next = self._name_of("become(state)", state)

    def postpone(self) -> None:
        """Set the current message or call aside until the state changes; then it is delivered
        again, before newer messages.

        A machine with a ``mailbox_size`` postpones at most that many; it refuses the rest like a
        full mailbox.
        """
        self._check_handling("postpone")
        self._puts_aside = True

    def state_timeout(self, seconds: float | None) -> None:
        """Deliver a ``StateTimeout`` after so many seconds, unless the machine leaves this state
        first; None for never.
        """
        self._start("state_timeout", _STATE, seconds, StateTimeout(self.state_name))

    def event_timeout(self, seconds: float | None) -> None:
        """Deliver an ``EventTimeout`` after so many seconds without another message; None for
        never.
        """
        self._start("event_timeout", _EVENT, seconds, EventTimeout(self.state_name))

    def start_timeout(self, name: str, seconds: float, message: object = None) -> None:
        """Deliver a ``NamedTimeout`` after so many seconds, in any state. If a timeout of that name
        runs, it starts again.
        """
        self._start("start_timeout", (check_name(name),), seconds, NamedTimeout(name, message))

    def cancel_timeout(self, name: str) -> bool:
        """Cancel a named timeout, so that its message never arrives. False if no such
        timeout runs.
        """
        return self._cancel((check_name(name),))

    def handle_inspect(self, *items: str) -> Mapping[str, str] | Awaitable[Mapping[str, str]]:
        """Diagnostics for a human reader. To add to them, return ``{**self.describe(), …}``."""
        return self.describe()

    def describe(self) -> dict[str, str]:
        """The current state and its age, the number of postponed messages, and the running
        timeouts.
        """
        now = self._process.kernel.clock.now()
        pairs = {
            "state": self.state_name,
            "for": f"{now - self._since:.3f} s",
            "postponed": str(self._postponed()),
        }
        for key, (due, _) in list(self._timers.items()):
            pairs[f"timeout {key if isinstance(key, str) else key[0]}"] = f"in {due.at - now:.3f} s"
        return pairs

    # -- message handling --------------------------------------------------------------------------

    async def init(self) -> None:
        """Enter the first state."""
        self._timers = {}
        if not self._table:
            raise BehaviourError(
                type(self).__qualname__,
                type(self),
                "a machine with states: methods with @state, or classes in `states`",
            )
        first = self.first_state()
        given = await first if inspect.isawaitable(first) else first
        await self._enter(self._name_of("the return value of first_state", given), None)
        self._is_moving = False

    async def handle_message(self, message: Any, sender: Any) -> None:
        """Pass a message, or a timeout that is due, to the current state."""
        if type(message) is _Due:
            key = _key_of(message.timeout)
            if self._timers.get(key, (None, None))[0] is not message:
                return  # cancelled after it fired
            del self._timers[key]
            message = message.timeout
            self._process.turn.handle_again((MESSAGE, sender, None, message))
        await self._handle(message, sender)

    async def handle_call(self, request: Any, caller: Caller) -> object:
        """Pass a call to the current state."""
        return await self._handle(request, caller)

    async def handle_response(self, response: Response) -> None:
        """Pass the answer to a request to the current state, as a message of this machine."""
        await callback(self._process, "handle_message", response, self.pid)

    async def _control(self, sender: PID, caller: Caller | None, payload: object) -> None:
        """Handle a timer of the machine. It arrives as a signal: a full mailbox must not keep a
        machine in a state.
        """
        await callback(self._process, "handle_message", payload, sender)

    async def _handle(self, message: object, sender: object) -> object:
        assert self._at is not None
        self._cancel(_EVENT)
        rejection: Reject | None = None
        answer: object = None
        try:
            answer = self._at.handle(message, sender)
            if isinstance(answer, CoroutineType):
                answer = await answer
        except Reject as refusal:
            rejection = refusal  # a refused call is handled: it may still change the state
        except BaseException:
            # A supervisor may RESUME the process; then the machine stays in its state.
            self._next, self._puts_aside = None, False
            raise
        if self._puts_aside:
            self._puts_aside = False
            if rejection is None:
                answer = NO_REPLY
                self._put_aside(message, sender)
        if self._next is not None:
            following, self._next = self._next, None
            await self._move(following)
        if rejection is not None:
            raise rejection
        return answer

    async def _move(self, following: str) -> None:
        assert self._at is not None
        left = self._at
        self._is_moving = True
        try:
            leaving = left.exit(following)
            if leaving is not None:
                await leaving
            self._cancel(_STATE)
            await self._enter(following, left.name)
        finally:
            # Also after a failed hook: a supervisor may RESUME the process, in either state.
            self._is_moving = False
            if self._at is not left:
                self._hand_out()

    async def _enter(self, name: str, previous: str | None) -> None:
        plan = self._table[name]
        at: MachineState[Any]
        if isinstance(plan, StateMethod):
            at = AtMethod(plan, self)
        else:
            at = plan()
            at._belong_to(self)
        self._at = at
        self._since = self._process.kernel.clock.now()
        if at.timeout is not None:
            self.state_timeout(at.timeout)
        entering = at.enter(previous)
        if entering is not None:
            await entering

    def _succeed(self, former: Behaviour) -> None:
        """Go on in the state of the former machine, without ``enter``, and with its timeouts."""
        super()._succeed(former)
        assert isinstance(former, StateMachine)
        assert former._at is not None
        left = former._at
        plan = self._table[self._name_of("state of the machine before upgrade_child", left.name)]
        if isinstance(plan, StateMethod):
            self._at = AtMethod(plan, self)
        else:
            self._at = plan()
            if not isinstance(left, AtMethod):
                vars(self._at).update(vars(left))
            self._at._belong_to(self)
        self._since, self._timers, self._is_moving = former._since, former._timers, False

    # -- postponed messages ------------------------------------------------------------------------

    def _postponed(self) -> int:
        return len(self._process.postponed or ())

    def _put_aside(self, message: object, sender: object) -> None:
        process = self._process
        envelope = process.handling
        assert envelope is not None
        if envelope[0] > EVENT:
            # A Down or Exit notification: the process receives it once, so redeliver it as an
            # ordinary message.
            envelope = (MESSAGE, sender, None, message)
        process.postpone(envelope)

    def _hand_out(self) -> None:
        process = self._process
        if process.postponed:
            process.router.bridge.run(self._put_back)

    def _put_back(self) -> None:
        process = self._process
        for _, _, ref, _ in process.requeue_postponed():
            if isinstance(ref, Caller):
                ref.undefer()
        # A machine that answered a call inline is asleep: wake it to handle the postponed messages.
        process.wake()

    # -- timeouts ----------------------------------------------------------------------------------

    def _start(self, verb: str, key: Key, seconds: float | None, timeout: Timeout) -> None:
        process = self._process
        process.allow(Operation.ARM_TIMER)
        if seconds is not None:
            check_number(f"{verb}(seconds)", seconds, least=0.0)
        self._cancel(key)
        if seconds is None:
            return
        due = _Due(timeout, process.kernel.clock.now() + seconds)
        process.router.bridge.run(self._arm, key, seconds, due)

    def _arm(self, key: Key, seconds: float, due: _Due) -> None:
        process = self._process
        timer = process.kernel.clock.arm_timer(seconds, process, None, due, Priority.NORMAL)
        self._timers[key] = (due, timer)

    def _cancel(self, key: Key) -> bool:
        found = self._timers.pop(key, None)
        if found is not None:
            found[1].cancel()
        return found is not None

    # -- checks ------------------------------------------------------------------------------------

    def _check_handling(self, verb: str) -> None:
        self._process.allow(Operation.CONFIGURE)
        if self._is_moving:
            raise NotAllowedError(
                f"{verb} belongs into the handler of a state, not into first_state or a hook of a "
                "state; to leave a state at once, give it a timeout of 0 and become another on "
                "StateTimeout"
            )

    def _name_of(self, label: str, given: object) -> str:
        name = (
            given
            if isinstance(given, str)
            else getattr(given, "name" if isinstance(given, StateMethod) else "__name__", None)
        )
        if not isinstance(name, str) or name not in self._table:
            raise BadInputError(
                label, given, f"a state of {type(self).__qualname__}: {', '.join(self._table)}"
            )
        return name


def _key_of(timeout: Timeout) -> Key:
    match timeout:
        case StateTimeout():
            return _STATE
        case EventTimeout():
            return _EVENT
        case NamedTimeout(name):
            return (name,)


def _init_at_once(self: StateMachine) -> None:
    _at_once(self, StateMachine.init(self))


def _handle_message_at_once(self: StateMachine, message: object, sender: object) -> None:
    _at_once(self, StateMachine.handle_message(self, message, sender))


def _handle_call_at_once(self: StateMachine, request: object, caller: Caller) -> object:
    return _at_once(self, StateMachine.handle_call(self, request, caller))


def _at_once(machine: StateMachine, work: Coroutine[Any, Any, Any]) -> object:
    """Run a coroutine that never waits, because no state of the machine is ``async``."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    raise CallbackError(
        f"a state of {type(machine).__qualname__} is a plain `def` but waits for something; write "
        "`async def`"
    )


show_public_names(__name__)
show_members(StateMachine)
