"""Identifiers: `PID`, `Alias`, `Ref`, `Name`, `Key`, `NodeName` and `EventName`.

A node numbers PIDs and aliases with the same counter, so a PID never equals an alias, although both
are tuples. Refs have a counter of their own, since there are many calls and people type the numbers
of processes; a fourth field keeps them from equalling the others. Identifiers are tuples because
each send hashes an identifier: C hashes a tuple in 0.07 µs, and a frozen dataclass takes five times
as long.

The address of a process may say for a type checker which class of processes is there:
``PID[Counter]``. The class is no part of the identifier, and no cost.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias

from .public_names import show_public_names

if TYPE_CHECKING:  # type checkers bring it along; with it, a plain `PID` is a `PID[Any]`
    from typing_extensions import TypeVar

    B_co = TypeVar("B_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    B_co = TypeVar("B_co", covariant=True)

__all__ = [
    "Address",
    "Alias",
    "Called",
    "EventName",
    "Key",
    "Late",
    "Name",
    "NodeName",
    "PID",
    "Ref",
    "Target",
]


class PID(NamedTuple, Generic[B_co]):
    """The identity of a process. A PID is never reused. ``PID[Counter]`` is the identity of a
    process of the class ``Counter`` or of a subclass.

    ``ergo ps`` shows the ``number``, and the other commands of ``ergo`` take it.
    """

    node: str
    """The name of its node."""
    creation: int
    """Identifies the start of that node."""
    number: int
    """The number of the process, unique on its node."""

    def __repr__(self) -> str:
        return f"<PID {self.number} {self.node}>"


class Alias(NamedTuple):
    """The identity of a meta-process, or a further identity of a process. ``ergo ps`` shows its
    ``number``.
    """

    node: str
    creation: int
    number: int

    def __repr__(self) -> str:
        return f"<Alias {self.number} {self.node}>"


class Ref(NamedTuple):
    """The identity of a call."""

    node: str
    creation: int
    number: int
    kind: str = "ref"
    """Keeps a Ref from equalling a :class:`PID` or :class:`Alias` of the same number: tuples
    compare by content.
    """

    def __repr__(self) -> str:
        return f"<Ref {self.number} {self.node}>"


class Name(NamedTuple, Generic[B_co]):
    """A registered name. Names are local to their node. An empty ``node`` means the node where the
    name is used. ``stock: Name[Stock] = Name("stock")`` says which class of processes has it.
    """

    name: str
    node: str = ""

    def __repr__(self) -> str:
        return f"Name({self.name!r}, {self.node!r})" if self.node else f"Name({self.name!r})"


class Key(NamedTuple, Generic[B_co]):
    """The process that has a key in a registry with unique keys: the address that
    ``node.registry("users").address(key)`` returns. An empty ``node`` means the node where it is
    used.
    """

    registry: str
    key: Any
    node: str = ""
    kind: str = "key"
    """Keeps a Key from equalling another identifier of the same content."""

    def __repr__(self) -> str:
        where = f", {self.node!r}" if self.node else ""
        return f"Key({self.registry!r}, {self.key!r}{where})"


def name_in(target: object) -> str | None:
    """The registered name in an address of any node; None if it has none."""
    return target.name if isinstance(target, Name) else local_name(target)


def local_name(target: object) -> str | None:
    """The registered name in an address; None if it has none, or belongs to another node."""
    if isinstance(target, Name):
        return None if target.node else target.name
    return target if isinstance(target, str) else None


class NodeName(NamedTuple):
    """A whole node as the target of a link or a monitor."""

    node: str


class EventName(NamedTuple):
    """A registered event, as the target of a link or a monitor. An empty ``node`` means the node
    where the name is used.
    """

    name: str
    node: str = ""
    kind: str = "event"
    """Keeps an EventName from equalling a :class:`Name` of the same content: tuples compare by
    content.
    """

    def __repr__(self) -> str:
        return (
            f"EventName({self.name!r}, {self.node!r})" if self.node else f"EventName({self.name!r})"
        )


class ServiceName(NamedTuple):
    """The service of a supervised child on another node. Its own node looks it up when a message
    arrives there.
    """

    name: str
    node: str
    is_repeatable: bool = False
    """The successor of a child that ended while it had the request may get it again."""
    kind: str = "service"
    """Keeps a ServiceName from equalling another identifier of the same content."""

    def __repr__(self) -> str:
        return f"the service {self.name!r} of {self.node!r}"


Address = PID[B_co] | Alias | Name[B_co] | Key[B_co]
"""The address of a message. A plain string has been converted to a name."""

Target = PID[B_co] | Alias | Name[B_co] | Key[B_co] | str
"""The target of a send, a call, an exit or an inspect, as users write it."""


class Late(str, Generic[B_co]):
    """Never an argument. mypy looks last at an argument whose type has a function in it. So the
    other arguments decide a type variable, and its error names both types instead of the variable.
    """

    __slots__ = ()


Called: TypeAlias = Target[B_co] | Late[Callable[[B_co], object]]
"""The target of a request that says which class of processes answers it."""


show_public_names(__name__)
