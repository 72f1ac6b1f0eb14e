"""The operations that travel in a session: messages, calls, answers, links and monitors, events."""

from collections.abc import Callable
from typing import Final

from ..._core.vocabulary.ids import PID, Alias, EventName, Key, Name, ServiceName
from ..messages.codec import msgspec
from .frames import NOT_A_FRAME

__all__ = [
    "Answer",
    "ConfirmedSend",
    "Call",
    "Counts",
    "Ended",
    "Event",
    "Exit",
    "Failed",
    "Failure",
    "NOT_AN_OPERATION",
    "Operation",
    "Part",
    "Place",
    "Probe",
    "ROUTES",
    "NodeRequest",
    "Route",
    "Send",
    "Sender",
    "Subscribed",
    "Unwatch",
    "Watch",
    "Withdraw",
    "address_of",
    "decode_operation",
    "decode_route",
    "encode_operation",
    "encode_part",
    "encode_route",
    "place_of",
    "read_operation",
    "receiver_of",
    "sender_of",
    "sender_place",
    "target_of",
]

# Each end clears its table as a whole when it is full. An order of use, to forget the oldest route
# only, would cost a step for each message; to encode a thousand routes again costs that many short
# encodings, now and then.
ROUTES: Final = 1024
"""How many routes each end of a session remembers."""

_PID, _ALIAS, _NAME, _EVENT, _KEY, _SERVICE = 0, 1, 2, 3, 4, 5


class Place(msgspec.Struct, array_like=True, frozen=True):
    """An address on the node that receives the operation."""

    kind: int
    creation: int
    number: int
    name: str
    key: bytes = b""
    """The encoded key of a `Key`, whose registry is the ``name``."""


class Sender(msgspec.Struct, array_like=True, frozen=True):
    """The PID or alias of a sender, of any node."""

    is_alias: bool
    node: str
    creation: int
    number: int


class Route(msgspec.Struct, array_like=True, frozen=True):
    """Receiver, sender and priority of a message or a call. It travels as bytes inside operations,
    so that both ends remember the routes that they use, and do not encode and decode them again.
    """

    to: Place
    sender: Sender
    priority: int


class Send(msgspec.Struct, array_like=True, tag=0, frozen=True):
    """A message."""

    route: bytes
    body: bytes
    headers: dict[str, str] | None = None
    """The context of its trace."""


class ConfirmedSend(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """A message whose sender waits until a mailbox has taken it."""

    number: int
    route: bytes
    body: bytes


class Call(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """A call. ``number`` identifies it for its answer."""

    number: int
    route: bytes
    body: bytes
    headers: dict[str, str] | None = None
    """The context of its trace."""


class Answer(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """The answer to a call."""

    number: int
    body: bytes


class Failed(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """The failure of a call: its kind, and a reason, an exception or a text."""

    number: int
    kind: str
    body: bytes
    begun: bool = True
    """Whether a process may have begun to handle the request."""


class Watch(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """Tell this node when the target ends. A watched event also sends its publications, and first
    the publications that it keeps, to the new subscriber.
    """

    number: int
    to: Place
    subscriber: int


class Unwatch(msgspec.Struct, array_like=True, tag=6, frozen=True):
    """End a watch."""

    number: int


class Ended(msgspec.Struct, array_like=True, tag=7, frozen=True):
    """The target of a watch has ended."""

    number: int
    body: bytes


class Exit(msgspec.Struct, array_like=True, tag=8, frozen=True):
    """Ask a process to end, or kill it."""

    to: Place
    sender: Sender
    is_kill: bool
    body: bytes


class Event(msgspec.Struct, array_like=True, tag=9, frozen=True):
    """A publication of a watched event. ``subscriber`` is the number of the only process that gets
    it, or 0.
    """

    number: int
    subscriber: int
    producer: Sender
    at: float
    body: bytes
    headers: dict[str, str] | None = None
    """The context of its trace."""


class Subscribed(msgspec.Struct, array_like=True, tag=10, frozen=True):
    """A new subscriber has got all publications that the event keeps."""

    number: int
    subscriber: int


class NodeRequest(msgspec.Struct, array_like=True, tag=11, frozen=True):
    """A request to the node itself. ``number`` identifies it for its answer. A node that does not
    know the request says so, and the session continues.
    """

    number: int
    about: str
    body: bytes


class Probe(msgspec.Struct, array_like=True, tag=12, frozen=True):
    """Follows processes that wait for each other. The last process of the ``path`` waits in the
    call ``number`` of the sending node; the process ``origin`` waits in its own call ``call``.
    """

    origin: Sender
    call: int
    path: list[Sender]
    number: int


# Tags are part of the protocol: `Withdraw` has 14 and `Counts` 13, however they are sorted here.
class Withdraw(msgspec.Struct, array_like=True, tag=14, frozen=True):
    """The call ``number`` was refused, because it closes a ring. Its request must not be handled,
    if it still waits.
    """

    number: int


class Counts(msgspec.Struct, array_like=True, tag=13, frozen=True):
    """What the sending node has not carried out, by cause, since it knows this node; and the
    operations that had arrived there when sessions ended: this node's number of the session, that
    node's number, and the operations.
    """

    refused: dict[str, int]
    arrived: list[tuple[int, int, int]]


class Part(msgspec.Struct, array_like=True, tag=15, frozen=True):
    """A part of a long operation. The parts follow each other; other operations, but no parts of
    another one, may come between them.
    """

    number: int
    """Counts the parts of the operation, from 0."""
    is_last: bool
    route: bytes
    """The route of a message, so that a message whose end is lost becomes a dead letter."""
    data: memoryview
    """A view, also of a part that is decoded: a copy would take as long as all other work on it."""


Operation = (
    Send
    | ConfirmedSend
    | Call
    | Answer
    | Failed
    | Watch
    | Unwatch
    | Ended
    | Exit
    | Event
    | Subscribed
    | NodeRequest
    | Probe
    | Counts
    | Withdraw
    | Part
)


class Failure:
    """The kinds of failures of a call."""

    DOWN: Final = "down"
    CRASHED: Final = "crashed"
    FULL: Final = "full"
    UNHANDLED: Final = "unhandled"
    DEADLOCK: Final = "deadlock"
    UNREADABLE: Final = "unreadable"
    UNSENDABLE: Final = "unsendable"
    ERGO: Final = "ergo"
    """An error of the framework, which has a class and fields of its own."""
    REJECTED: Final = "rejected"
    SERVICE_GONE: Final = "service gone"
    SERVICE_BUSY: Final = "service busy"
    SERVICE_UNKNOWN: Final = "service unknown"


encode_operation: Final = msgspec.msgpack.Encoder().encode
encode_route: Final = msgspec.msgpack.Encoder().encode
read_operation: Final[Callable[[bytes | bytearray], Operation]] = msgspec.msgpack.Decoder(
    Operation
).decode
"""The operation with these bytes. Raises one of `NOT_AN_OPERATION`."""
NOT_AN_OPERATION: Final = NOT_A_FRAME
_route_decoder: Final = msgspec.msgpack.Decoder(Route)


def decode_operation(data: bytes) -> Operation:
    """The operation with these bytes.

    Raises:
        ValueError: the bytes are not an operation.
    """
    try:
        return read_operation(data)
    except NOT_AN_OPERATION as error:
        raise ValueError(f"not an operation of this protocol: {error}") from None


def encode_part(number: int, is_last: bool, route: bytes, data: memoryview) -> bytes:
    """A part, encoded."""
    return encode_operation(Part(number, is_last, route, data))


def decode_route(data: bytes) -> Route:
    """The route with these bytes.

    Raises:
        ValueError: the bytes are not a route.
    """
    try:
        return _route_decoder.decode(data)
    except NOT_A_FRAME as error:
        raise ValueError(f"not a route of this protocol: {error}") from None


def place_of(
    target: PID | Alias | Name | Key | EventName | ServiceName, encode: Callable[[object], bytes]
) -> Place:
    """An address, as its own node reads it."""
    if isinstance(target, PID):
        return Place(_PID, target.creation, target.number, "")
    if isinstance(target, Alias):
        return Place(_ALIAS, target.creation, target.number, "")
    if isinstance(target, Key):
        return Place(_KEY, 0, 0, target.registry, encode(target.key))
    if isinstance(target, ServiceName):
        # A service has no number of its own, so the field tells whether its request may be
        # repeated, and the frame needs no further field.
        return Place(_SERVICE, 0, int(target.is_repeatable), target.name)
    return Place(_EVENT if isinstance(target, EventName) else _NAME, 0, 0, target.name)


def address_of(
    place: Place, node: str, decode: Callable[[bytes], object]
) -> PID | Alias | Name | Key:
    """The address of a place on ``node``: the process there."""
    if place.kind == _PID:
        return PID(node, place.creation, place.number)
    if place.kind == _ALIAS:
        return Alias(node, place.creation, place.number)
    if place.kind == _KEY:
        return Key(place.name, decode(place.key), node)
    return Name(place.name, node)


def receiver_of(place: Place, node: str, decode: Callable[[bytes], object]) -> object:
    """The address of a place on ``node``, for a message or a call: a process, or a service."""
    if place.kind == _SERVICE:
        return ServiceName(place.name, node, bool(place.number))
    return address_of(place, node, decode)


def target_of(
    place: Place, node: str, decode: Callable[[bytes], object]
) -> PID | Alias | Name | Key | EventName:
    """The target of a watch on ``node``."""
    return EventName(place.name, node) if place.kind == _EVENT else address_of(place, node, decode)


def sender_place(sender: PID | Alias) -> Sender:
    """The sender of an operation."""
    return Sender(isinstance(sender, Alias), sender.node, sender.creation, sender.number)


def sender_of(place: Sender) -> PID | Alias:
    """The PID or alias of a sender."""
    return (Alias if place.is_alias else PID)(place.node, place.creation, place.number)
