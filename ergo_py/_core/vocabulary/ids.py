"""What identifies a process, a meta-process, a call or a name, and how it prints.

PID and Alias draw their numbers from one counter of their node, so that no value of one kind ever
equals a value of the other although both are tuples. A Ref has numbers of its own, since calls are
many and the numbers of processes are typed by people; its fourth field tells it from the others.
Tuples are used because hashing one in C is what every send pays for (0.07 µs); a frozen dataclass
costs five times as much.
"""

from typing import NamedTuple

__all__ = ["PID", "Address", "Alias", "EventName", "Name", "NodeName", "Ref", "Target"]


class PID(NamedTuple):
    """The identity of a process: ``node``, its node, ``creation``, the start of that node, and
    ``number``, never used again.

    The number is what ``ergo ps`` shows, and what its other commands take.
    """

    node: str
    creation: int
    number: int

    def __repr__(self) -> str:
        return f"<PID {self.number} {self.node}>"


class Alias(NamedTuple):
    """The identity of a meta-process, or a second identity of a process; ``number`` is what ``ergo
    ps`` shows.
    """

    node: str
    creation: int
    number: int

    def __repr__(self) -> str:
        return f"<Alias {self.number} {self.node}>"


class Ref(NamedTuple):
    """The identity of one call."""

    node: str
    creation: int
    number: int
    kind: str = "ref"
    """Tells it from a :class:`PID` or an :class:`Alias` of the same number: tuples are compared by
    what they hold.
    """

    def __repr__(self) -> str:
        return f"<Ref {self.number} {self.node}>"


class Name(NamedTuple):
    """A registered name. Names are local to their node; an empty ``node`` means the one where it is
    used.
    """

    name: str
    node: str = ""

    def __repr__(self) -> str:
        return f"Name({self.name!r}, {self.node!r})" if self.node else f"Name({self.name!r})"


class NodeName(NamedTuple):
    """A whole node as the target of a link or a monitor."""

    node: str


class EventName(NamedTuple):
    """A registered event, as the target of a link or a monitor; an empty ``node`` means the one
    where it is used.
    """

    name: str
    node: str = ""
    kind: str = "event"
    """Tells it from a :class:`Name` of the same content: tuples are compared by what they hold."""

    def __repr__(self) -> str:
        return (
            f"EventName({self.name!r}, {self.node!r})" if self.node else f"EventName({self.name!r})"
        )


Address = PID | Alias | Name
"""What a message can be sent to, once a plain string has been read as a name."""

Target = PID | Alias | Name | str
"""What a user may write as the target of a send, a call, an exit or an inspect."""
