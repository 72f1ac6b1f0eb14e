"""The states of a state machine: how they are written down, and the timeouts that come to them."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from .._core.vocabulary.errors import BehaviourError
from .._core.vocabulary.options import check_number

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
    """The machine has been in this state for as long as the state allows."""

    state: str


@dataclass(frozen=True, slots=True)
class EventTimeout:
    """Nothing came in for as long as ``event_timeout`` said."""

    state: str
    """The state in which the machine began to wait."""


@dataclass(frozen=True, slots=True)
class NamedTimeout:
    """A timeout that ``start_timeout`` began, whatever has happened since."""

    name: str
    message: object = None


Timeout = StateTimeout | EventTimeout | NamedTimeout


class MachineState(Generic[M]):
    """One state of a machine, as a class: an instance lives from entering the state to leaving it.

    List the classes in ``states`` of the machine. Hooks and ``handle`` may be ``def`` or ``async
    def``.
    """

    machine: M
    """The machine this is a state of."""
    timeout: float | None = None
    """Seconds after which a ``StateTimeout`` comes, unless the machine has left the state; None for
    never.
    """

    @property
    def name(self) -> str:
        """What the state is called: the name of the class."""
        return type(self).__name__

    def enter(self, previous: str | None) -> Awaitable[None] | None:
        """Called when the machine has come from ``previous``; None when it starts here."""
        return None

    def handle(self, message: Any, sender: Any) -> object:
        """Called for each message, timeout and call. For a call ``sender`` is its ``Caller``, and
        what it returns the answer.
        """
        raise NotImplementedError

    def exit(self, following: str) -> Awaitable[None] | None:
        """Called before the machine goes to ``following``."""
        return None


class StateMethod:
    """A state that is a method of its machine; made by :func:`state`. Its name is the method's."""

    def __init__(self, function: Callable[..., Any], timeout: float | None) -> None:
        self.name = function.__name__
        self.timeout = timeout
        self.handle = function
        self.on_enter: Callable[..., Any] | None = None
        self.on_exit: Callable[..., Any] | None = None

    def enter(self, hook: F) -> F:
        """Decorate the method to be called, with the previous state or None, when the machine has
        come to this state.
        """
        self.on_enter = hook
        return hook

    def exit(self, hook: F) -> F:
        """Decorate the method to be called, with the following state, before the machine leaves
        this state.
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
    """Decorate a method of a machine: it is called for each message while the machine is in the
    state of that name.

    ``timeout`` is after how many seconds in this state a ``StateTimeout`` comes.
    """
    if timeout is not None:
        check_number("state(timeout=…)", timeout, least=0.0)
    if function is not None:
        return StateMethod(function, timeout)
    return lambda method: StateMethod(method, timeout)


class AtMethod(MachineState[Any]):
    """Being in a state that is a method."""

    def __init__(self, method: StateMethod) -> None:
        self.timeout = method.timeout
        self._method = method

    @property
    def name(self) -> str:
        """The name of the method."""
        return self._method.name

    def enter(self, previous: str | None) -> Awaitable[None] | None:
        """Call the method's enter hook, if it has one."""
        hook = self._method.on_enter
        return None if hook is None else hook(self.machine, previous)

    def handle(self, message: Any, sender: Any) -> object:
        """Call the method."""
        return self._method.handle(self.machine, message, sender)

    def exit(self, following: str) -> Awaitable[None] | None:
        """Call the method's exit hook, if it has one."""
        hook = self._method.on_exit
        return None if hook is None else hook(self.machine, following)


def read_states(
    cls: type[Any], classes: tuple[object, ...], taken: Callable[[str], bool]
) -> dict[str, StateMethod | type[MachineState[Any]]]:
    """The states of a machine by name, in the order in which they are written down.

    Raises:
        BehaviourError: one of them cannot be a state, or has a name that is ``taken``.
    """
    table: dict[str, StateMethod | type[MachineState[Any]]] = {}
    for base in reversed(cls.__mro__):
        table |= {name: one for name, one in vars(base).items() if isinstance(one, StateMethod)}
    for one in classes:
        if not (isinstance(one, type) and issubclass(one, MachineState)):
            raise BehaviourError(
                f"{cls.__qualname__}.states", one, "a tuple of subclasses of MachineState"
            )
        if one.__name__ in table and table[one.__name__] is not one:
            raise BehaviourError(
                f"{cls.__qualname__}.states",
                one.__name__,
                "names that differ: two states have this one",
            )
        if one.handle is MachineState.handle:
            raise BehaviourError(
                f"{one.__qualname__}", one, "a state with `def handle(self, message, sender)`"
            )
        if one.timeout is not None:
            check_number(f"{one.__qualname__}.timeout", one.timeout, least=0.0)
        table[one.__name__] = one
    for name in table:
        if taken(name):
            raise BehaviourError(
                f"{cls.__qualname__}.{name}",
                name,
                "another name for this state: every machine has something of that name",
            )
    return table


def is_async(one: StateMethod | type[MachineState[Any]]) -> bool:
    """Say whether anything of a state may wait."""
    called = (
        (one.handle, one.on_enter, one.on_exit)
        if isinstance(one, StateMethod)
        else (one.handle, one.enter, one.exit)
    )
    return any(map(inspect.iscoroutinefunction, called))
