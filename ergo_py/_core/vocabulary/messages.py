"""Messages from the kernel to user code: exits, downs, publications, diverted messages, dead
letters, log records.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from enum import Enum
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    Protocol,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
)
from weakref import WeakKeyDictionary

from .errors import BadInputError
from .ids import PID, Address, Alias, B_co, EventName, Late, NodeName, Ref
from .late_methods import dataclass
from .options import KeepMessages, check_number
from .public_names import show_public_names
from .reasons import Reason

if TYPE_CHECKING:  # type checkers bring it along; with it, `Request[int]` is a `Request[int, Any]`
    import typing_extensions

    B_contra = typing_extensions.TypeVar("B_contra", contravariant=True, default=Any)
else:
    B_contra = TypeVar("B_contra", contravariant=True)

__all__ = [
    "DeadLetter",
    "Diverted",
    "Down",
    "Drain",
    "EventStarted",
    "EventStopped",
    "Exit",
    "GroupJoined",
    "GroupLeft",
    "LogRecord",
    "MayBeLate",
    "NO_REPLY",
    "NoReply",
    "NodeDown",
    "NodeUp",
    "Published",
    "Relay",
    "Request",
    "Response",
    "Sent",
    "ServedMessage",
    "Untyped",
    "Why",
    "answer_but_not_none",
]

M = TypeVar("M")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Request(Generic[R_co, B_contra]):
    """Base class of requests with a declared type of answer: with ``class Total(Request[int])``, a
    type checker knows that ``await call(pid, Total())`` is an ``int``. ``Request[int, Counter]``
    also says which class of processes answers it.
    """

    __slots__ = ()

    def answer_with(self, value: R_co) -> R_co:  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
        """Return ``value``, the answer to this request, unchanged. With ``return
        request.answer_with(value)`` in ``handle_call``, a type checker compares the answer with the
        declared type.
        """
        return value

    if TYPE_CHECKING:

        def __sizeof__(self) -> str:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
            """No `Untyped`, for type checkers."""
            ...

    else:

        def __class_getitem__(cls, types: object) -> object:
            # Python has defaults of type parameters from version 3.13 on.
            if cls.__parameters__[1:] == (B_contra,) and not isinstance(types, tuple):
                types = (types, Any)
            return super().__class_getitem__(types)


class Untyped(Protocol):
    """A request that declares no type of answer: every object but a `Request`. Without it, a
    `Request` for another class of processes would pass for a request of no declared type.
    """

    def __sizeof__(self) -> int:
        """The same method as that of ``object``, whose type `Request` changes."""
        ...


class ServedMessage:
    """Base class of messages that every actor takes, whatever messages its class declares."""

    __slots__ = ()


class Relay(Generic[B_co]):
    """Base class of processes whose address leads to processes of the class ``B``, such as a pool
    of workers.
    """


Sent: TypeAlias = M | ServedMessage | Late[Callable[[M], object]]
"""The message for a process whose class declares the messages ``M``. Its address decides ``M``."""


@dataclass(frozen=True, slots=True)
class Drain(Request[int]):
    """Asks a process to finish its work within ``timeout`` seconds, and to take no more. The answer
    is how much of the work was cut off.

    ``node.drain()`` asks every process whose class says ``drains = True``: ``WebServer``, the
    keepers of singletons and of names of a cluster, and actors that answer it in ``handle_call``.
    """

    timeout: float = 10.0

    def __post_init__(self) -> None:
        check_number("Drain(timeout)", self.timeout, least=0.0)


_NONE_IS_FINE: Final = ""
_declared: Final[WeakKeyDictionary[type, str]] = WeakKeyDictionary()


def answer_but_not_none(request: object) -> str:
    """The type of answer that a request declares, as text; empty if the answer may be None, or if
    the request declares nothing.
    """
    kind = type(request)  # not isinstance(), which asks a lazy proxy for its `__class__`
    if not issubclass(kind, Request):
        return _NONE_IS_FINE
    declared = _declared.get(kind)
    if declared is None:
        declared = _declared[kind] = _declared_by(kind)
    return declared


def _declared_by(kind: type) -> str:
    for cls in kind.__mro__:
        for base in vars(cls).get("__orig_bases__", ()):
            if get_origin(base) is Request:
                answer, _ = get_args(base)
                text = answer.__name__ if isinstance(answer, type) else repr(answer)
                return _NONE_IS_FINE if _may_be_none(answer) else text
    return _NONE_IS_FINE


def _may_be_none(answer: object) -> bool:
    """Whether None is a value of a type. Also True for types that cannot be decided."""
    origin = get_origin(answer)
    if origin in (Union, UnionType):
        return any(map(_may_be_none, get_args(answer)))
    if origin is Annotated:
        return _may_be_none(get_args(answer)[0])
    if origin is Literal:
        return None in get_args(answer)
    # The class of a generic type, the type of a NewType, the type behind an alias.
    for name in ("__origin__", "__supertype__", "__value__"):
        inner = getattr(answer, name, None)
        if inner is not None:
            return _may_be_none(inner)
    try:
        return answer is None or not isinstance(answer, type) or isinstance(None, answer)
    except TypeError:  # a protocol that cannot be checked
        return True


class MayBeLate:
    """Base class of messages that may arrive after the end of their receiver without harm.

    Examples: data for a connection that its peer has just closed, or the notice of a closed
    connection for a receiver that has ended. They are counted as late, and do not become dead
    letters.
    """

    __slots__ = ()


class NoReply(Enum):
    """The type of :data:`NO_REPLY`."""

    NO_REPLY = "NO_REPLY"


NO_REPLY: Final = NoReply.NO_REPLY
"""Return it from ``handle_call`` to answer later, with ``reply`` or ``reply_error``."""


@dataclass(frozen=True, slots=True)
class Exit:
    """A linked target ended, or a process called ``send_exit``. Only processes with ``trap_exit``
    get this message.
    """

    source: Address | EventName | NodeName
    """The linked target, or the sender of the exit."""
    reason: Reason


@dataclass(frozen=True, slots=True)
class Down:
    """A monitored target ended."""

    target: Address | EventName | NodeName
    reason: Reason


@dataclass(frozen=True, slots=True)
class NodeUp:
    """Another node is connected; a publication of the event ``ergo.node_up``."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeDown:
    """Another node is not connected any more; a publication of the event ``ergo.node_down``."""

    node: str
    reason: Reason
    """``Shutdown`` if that node went down in order, else ``NoNode``."""


@dataclass(frozen=True, slots=True)
class Diverted:
    """A message for a full mailbox, diverted by the receiver's overflow rule :class:`Divert`."""

    origin: PID | Alias
    """The receiver with the full mailbox."""
    tag: str
    """The ``tag`` of the overflow rule."""
    message: Any
    sender: PID | Alias


@dataclass(frozen=True, slots=True)
class Published:
    """A publication of an event, as ``handle_event`` gets it. Subscribers share the same object."""

    event: EventName
    message: Any
    at: float
    """When it was published, as ``time.time()`` counts."""


@dataclass(frozen=True, slots=True)
class EventStarted:
    """To the producer of an event registered with ``notify``: the first subscriber has come."""

    event: EventName


@dataclass(frozen=True, slots=True)
class EventStopped:
    """To the producer of an event registered with ``notify``: the last subscriber has left."""

    event: EventName


@dataclass(frozen=True, slots=True)
class GroupJoined:
    """To a process that monitors a group: a process has joined."""

    group: Any
    pid: PID


@dataclass(frozen=True, slots=True)
class GroupLeft:
    """To a process that monitors a group: a process has left, or has ended."""

    group: Any
    pid: PID
    reason: Reason
    """``Unregistered`` if it left by itself; else the reason it ended with."""


class Why(Enum):
    """The cause of a dead letter."""

    NO_PROCESS = "there is no process at this address"
    NO_NODE = "the node in the address is not connected"
    STOPPING = "the receiver is past its stopping point"
    FULL = "the receiver's mailbox was full"
    DISPLACED = "a newer message took its place in a full mailbox"
    UNREADABLE = "this node does not know the type of the message"
    UNORDERED = "the receiver has no place for the message in its order"
    UNCONFIRMED = "its node was lost before it confirmed the message"
    NOT_PERMITTED = "this node does not permit the message to the node of its sender"
    UNHANDLED_AT_EXIT = "the receiver ended before it handled the message"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An undelivered message. By default only its type is kept, since the message itself may hold
    secrets; :class:`DeadLetter.Keep` keeps the message, too.
    """

    sender: PID | Alias
    target: object
    """The address it was sent to."""
    message_type: str
    why: Why
    at: float
    """When the message became a dead letter, as ``time.time()`` counts."""
    number: int = 0
    """The number of the dead letter on its node, from 1."""
    contents: str | None = None
    """The message as text, after the node's ``redact``: only if it was asked for, and if the node
    keeps the message.
    """

    Keep = KeepMessages


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A line of the log, as a logger process receives it."""

    level: str
    event: str
    """The text of the line."""
    at: float
    """When it was logged, as ``time.time()`` counts."""
    node: str
    source: PID | Alias
    """The process or meta-process that logged the line."""
    fields: Mapping[str, object] = field(default_factory=dict)
    """The structured fields of the line."""


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to a ``request``, as ``handle_response`` gets it."""

    ref: Ref
    """The identity that ``request`` returned."""
    value: Any
    error: BaseException | None
    """The reason why there is no answer; the same error that ``call`` would raise."""
    request: Any = None
    """The request, as it was sent."""

    def result(self) -> Any:
        """Return the answer, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value

    def result_of(self, request: Request[R]) -> R:
        """Return the answer, or raise the error. ``request`` is :attr:`request`, and tells a type
        checker which type the answer has.

        Raises:
            BadInputError: this is the answer to another request.
        """
        if request is not self.request:
            raise BadInputError(
                "result_of(request)", request, "`response.request`, whose answer this is"
            )
        value: R = self.result()
        return value


show_public_names(__name__, {"ergo_py.info": "NoReply"})
