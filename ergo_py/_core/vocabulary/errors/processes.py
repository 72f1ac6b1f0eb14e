"""The errors of processes, of their names and relations, and of the node."""

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

from ..hints import did_you_mean
from ..ids import name_in
from ..reasons import Crashed, Reason, error_of
from ..text import text_of
from .base import ErgoError, Kinds, add_traceback

__all__ = [
    "ControlSocketError",
    "EscalationError",
    "EventError",
    "EventTakenError",
    "EventUnknownError",
    "InitError",
    "InitTimeoutError",
    "KeyTakenError",
    "LimitError",
    "NameTakenError",
    "NameUnknownError",
    "NodeStoppedError",
    "ProcessUnknownError",
    "RelationError",
    "RelationExistsError",
    "RelationUnknownError",
    "SpawnError",
    "TooManyProcessesError",
    "TooManyReadersError",
]


class SpawnError(ErgoError):
    """A process could not be started. Nothing of it remains."""


class InitError(SpawnError):
    """``init`` raised. The original exception is the ``__cause__``."""

    def __init__(self, behaviour: str, error: BaseException, reason: Reason | None = None) -> None:
        super().__init__(f"init of {behaviour} raised {type(error).__name__}: {text_of(error)}")
        self.behaviour = behaviour
        self.error = error
        if isinstance(reason, Crashed):
            add_traceback(self, "", reason)


class InitTimeoutError(SpawnError, TimeoutError):
    """``init`` took longer than ``init_timeout``."""

    def __init__(self, behaviour: str, timeout: float, holder: object = None) -> None:
        super().__init__(
            f"init of {behaviour} took more than {timeout:g} s; give spawn a larger init_timeout, "
            "or do less in init"
            if holder is None
            else f"init of {behaviour} has not begun within {timeout:g} s: a callback of {holder} "
            "holds its thread; if that callback waits for this start, make it an `async def` "
            "callback, or give the new process another dispatcher"
        )
        self.behaviour = behaviour
        self.timeout = timeout


class LimitError(Kinds, ErgoError):
    """A limit of the node is reached, and nothing was started. ``limit`` is that number, and
    ``kind`` says of what: ``"processes"`` (``max_processes``) and ``"readers"``
    (``max_reader_threads``), which are also a :class:`SpawnError`, and ``"calls"`` to another node
    (``max_calls`` of the network), which is also a :class:`CallError`.
    """

    kind: ClassVar[Literal["processes", "readers", "calls"]]
    limit: int


class TooManyProcessesError(LimitError, SpawnError):
    """The node runs as many processes as its ``max_processes`` allows."""

    kind = "processes"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the node already runs its max_processes={limit} processes; "
            "open_node(max_processes=…) sets the limit"
        )
        self.limit = limit


class TooManyReadersError(LimitError, SpawnError):
    """The node runs as many reader threads as its ``max_reader_threads`` allows."""

    kind = "readers"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the node already runs its max_reader_threads={limit}; "
            "open_node(max_reader_threads=…) sets the limit, "
            "and a meta-process with `async def start` needs no thread"
        )
        self.limit = limit


class NameTakenError(ErgoError):
    """The name belongs to another process."""

    def __init__(self, name: str, holder: object) -> None:
        super().__init__(
            f"the name {name!r} belongs to {holder}; it is free again once that process has "
            "terminated"
        )
        self.name = name
        self.holder = holder
        """The PID of the process that has the name."""


class KeyTakenError(ErgoError):
    """The key of a registry with unique keys belongs to another process."""

    def __init__(self, registry: str, key: object, holder: object) -> None:
        super().__init__(
            f"the key {key!r} of the registry {registry!r} belongs to {holder}; it is free again "
            "once that process has terminated"
        )
        self.registry = registry
        self.key = key
        self.holder = holder
        """The PID of the process that has the key."""


class NameUnknownError(ErgoError, LookupError):
    """No process on this node has that name or alias."""

    def __init__(self, name: object) -> None:
        super().__init__(f"no process on this node has the name or alias {name!r}")
        self.name = name


class EventError(Kinds, ErgoError):
    """An event cannot be registered or used. ``name`` is its name.

    ``kind`` says why: another process has registered an event of that name (``"taken"``, with that
    ``producer``), or there is no event of that name (``"unknown"``, which is also a
    :class:`LookupError`).
    """

    kind: ClassVar[Literal["taken", "unknown"]]
    name: str
    producer: object = None


class EventTakenError(EventError):
    """Another process has registered an event of that name."""

    kind = "taken"

    def __init__(self, name: str, producer: object) -> None:
        super().__init__(
            f"the event {name!r} belongs to {producer}; it is free again once that process ends "
            "or unregisters it"
        )
        self.name = name
        self.producer = producer


class EventUnknownError(EventError, LookupError):
    """There is no event of that name."""

    kind = "unknown"

    def __init__(self, name: str, names: Iterable[str] = ()) -> None:
        super().__init__(
            f"there is no event {name!r} on this node; a process creates it with "
            f"`self.register_event({name!r})`, or `node.open_topic({name!r})` makes an event that "
            f"all may publish{did_you_mean(name, names)}"
        )
        self.name = name


class ProcessUnknownError(ErgoError, LookupError):
    """There is no living process at this address."""

    def __init__(self, target: object, what: str = "process", names: Sequence[str] = ()) -> None:
        super().__init__(f"there is no {what} at {target!r}")
        self.target = target
        self._names = names

    def __str__(self) -> str:
        # Compared only when a person reads the text: many errors are caught and never shown.
        return super().__str__() + did_you_mean(name_in(self.target), self._names)


class RelationError(Kinds, ErgoError):
    """A link or monitor was not changed. ``target`` is its target.

    ``kind`` says why: the link or monitor exists already (``"exists"``), or there is none to remove
    (``"unknown"``, which is also a :class:`LookupError`).
    """

    kind: ClassVar[Literal["exists", "unknown"]]
    target: object


class RelationExistsError(RelationError):
    """The link or monitor exists already."""

    kind = "exists"

    def __init__(self, relation: str, target: object) -> None:
        super().__init__(
            f"this process already has a {relation} to {target!r}; a second {relation} is not "
            "needed"
        )
        self.target = target


class RelationUnknownError(RelationError, LookupError):
    """There is no such link or monitor to remove."""

    kind = "unknown"

    def __init__(self, relation: str, target: object) -> None:
        super().__init__(f"this process has no {relation} to {target!r}")
        self.target = target


class EscalationError(ErgoError):
    """The node stops, because a supervisor gave up with ``on_escalation="stop"``, or an application
    ended that must not end.
    """

    def __init__(self, supervisor: object, reason: Reason) -> None:
        super().__init__(f"{supervisor} gave up, and the node stopped: {reason}")
        self.supervisor = supervisor
        self.reason = reason
        self.__cause__: BaseException | None = error_of(reason)


class NodeStoppedError(ErgoError, RuntimeError):
    """The node has stopped or is stopping."""

    def __init__(self, node: str, what: str = "") -> None:
        super().__init__(
            f"node {node} has stopped{': ' + what if what else ''}; open a new node with "
            "open_node(...)"
        )
        self.node = node


class ControlSocketError(ErgoError, OSError):
    """The control socket cannot be opened, or its location is not safe. Nothing was opened."""
