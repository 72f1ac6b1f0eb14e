"""`MachineState`, `state` and the timeouts: the definition of a state machine's states."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from .._core.vocabulary.errors import BehaviourError
from .._core.vocabulary.options import check_number
from .._core.vocabulary.public_names import show_public_names

__all__ = [
    "AtMethod",
    "EventTimeout",
    "MachineState",
    "NamedTimeout",
    "StateMethod",
    "StateTimeout",
    "Timeout",
    "is_async",
    "read_states",
    "state",
]

M = TypeVar("M")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class StateTimeout:
    """The machine has been in this state for its full ``timeout``."""

    state: str


@dataclass(frozen=True, slots=True)
class EventTimeout:
    """No message arrived for the time given to ``event_timeout``."""

    state: str
    """The state in which the machine began to wait."""


@dataclass(frozen=True, slots=True)
class NamedTimeout:
    """A timeout started by ``start_timeout``; it arrives in any state."""

    name: str
    message: object = None


Timeout = StateTimeout | EventTimeout | NamedTimeout


class MachineState(Generic[M]):
    """A state of a machine, as a class: an instance lives from entering the state to leaving it.

    List the classes in ``states`` of the machine. Hooks and ``handle`` may be ``def`` or ``async
    def``.
    """

    machine: M
    """The machine that is in this state."""
    timeout: float | None = None
    """Seconds until a ``StateTimeout`` arrives, unless the machine has left the state; None for
    never.
    """

    def _belong_to(self, machine: M) -> None:
        """The machine is about to enter the state."""
        self.machine = machine

    @property
    def name(self) -> str:
        """The name of the state: the name of the class."""
        return type(self).__name__

    def enter(self, previous: str | None) -> Awaitable[None] | None:
        """Called when the machine enters this state; ``previous`` is None for the initial state."""
        return None

    def handle(self, message: object, sender: object) -> object:
        """Called for each message, timeout and call. For a call, ``sender`` is its ``Caller`` and
        the return value is the answer.
        """
        raise NotImplementedError

    def exit(self, following: str) -> Awaitable[None] | None:
        """Called before the machine moves to ``following``."""
        return None


class StateMethod:
    """A state that is a method of its machine, made by :func:`state`. Its name is the method's."""

    def __init__(self, function: Callable[..., Any], timeout: float | None) -> None:
        self.name: str = function.__name__
        self.timeout = timeout
        self.handle = function
        self.on_enter: Callable[..., Any] | None = None
        self.on_exit: Callable[..., Any] | None = None

    def enter(self, hook: F) -> F:
        """Decorate the method to call, with the previous state or None, when the machine enters
        this state.
        """
        self.on_enter = hook
        return hook

    def exit(self, hook: F) -> F:
        """Decorate the method to call, with the following state, before the machine leaves this
        state.
        """
        self.on_exit = hook
        return hook


@overload
def state(function: Callable[..., Any], /) -> StateMethod: ...
@overload
def state(*, timeout: float | None = None) -> Callable[[Callable[..., Any]], StateMethod]: ...
def state(
    function: Callable[..., Any] | None = None, /, *, timeout: float | None = None
) -> StateMethod | Callable[[Callable[..., Any]], StateMethod]:
    """Decorate a method of a machine: it handles each message while the machine is in the state of
    that name.

    ``timeout``: seconds in this state until a ``StateTimeout`` arrives.
    """
    if timeout is not None:
        check_number("state(timeout=…)", timeout, least=0.0)
    if function is not None:
        return StateMethod(function, timeout)
    return lambda method: StateMethod(method, timeout)


class AtMethod(MachineState[Any]):
    """The current state of a machine, if that state is a method."""

    def __init__(self, method: StateMethod, machine: object) -> None:
        self.machine = machine
        self.timeout: float | None = method.timeout
        self._method = method

    @property
    def name(self) -> str:
        """The name of the method."""
        return self._method.name

    def enter(self, previous: str | None) -> Awaitable[None] | None:
        """Call the method's enter hook, if it has one."""
        hook = self._method.on_enter
        return None if hook is None else hook(self.machine, previous)

    def handle(self, message: object, sender: object) -> object:
        """Call the method."""
        return self._method.handle(self.machine, message, sender)

    def exit(self, following: str) -> Awaitable[None] | None:
        """Call the method's exit hook, if it has one."""
        hook = self._method.on_exit
        return None if hook is None else hook(self.machine, following)


def read_states(
    cls: type[Any], classes: tuple[object, ...], taken: Callable[[str], bool]
) -> dict[str, StateMethod | type[MachineState[Any]]]:
    """The states of a machine by name, in the order of their definition.

    Raises:
        BehaviourError: an entry cannot be a state, or its name is ``taken``.
    """
    table: dict[str, StateMethod | type[MachineState[Any]]] = {}
    for base in reversed(cls.__mro__):
        table |= {name: each for name, each in vars(base).items() if isinstance(each, StateMethod)}
    for state_type in classes:
        if not (isinstance(state_type, type) and issubclass(state_type, MachineState)):
            raise BehaviourError(
                f"{cls.__qualname__}.states", state_type, "a tuple of subclasses of MachineState"
            )
        name = state_type.__name__
        if name in table and table[name] is not state_type:
            raise BehaviourError(
                f"{cls.__qualname__}.states",
                name,
                "a different name for each state: two states have this name",
            )
        if state_type.handle is MachineState.handle:
            raise BehaviourError(
                state_type.__qualname__,
                state_type,
                "a state with `def handle(self, message, sender)`",
            )
        if state_type.timeout is not None:
            check_number(f"{state_type.__qualname__}.timeout", state_type.timeout, least=0.0)
        table[name] = state_type
    for name in table:
        if taken(name):
            raise BehaviourError(
                f"{cls.__qualname__}.{name}",
                name,
                "another name for this state: StateMachine has an attribute of that name",
            )
    return table


def is_async(given: StateMethod | type[MachineState[Any]]) -> bool:
    """Return whether a handler or hook of the state is ``async def``."""
    called = (
        (given.handle, given.on_enter, given.on_exit)
        if isinstance(given, StateMethod)
        else (given.handle, given.enter, given.exit)
    )
    return any(map(inspect.iscoroutinefunction, called))


show_public_names(__name__)
