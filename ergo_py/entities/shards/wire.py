"""The messages between hosts, as values that every network carries."""

from typing import Any, Final

from ..._core.vocabulary.ids import PID, Alias
from ...entity_handles import Address, Fresh, Once, Post, Retry, check_key, check_stored
from ...methods import MethodCall, MethodCast
from ...network.protocol.failures import add_errors
from ..activations.deliveries import Ask, Deliver, Delivery, Done, Forget, Inquire
from ..errors import (
    AnswerUnknownError,
    EntityStoreError,
    StateTooLargeError,
    StateTypeError,
    StateUnreadableError,
)
from ..record import Origin

__all__ = [
    "ENTITY",
    "delivery_of",
    "message_of",
    "request_of",
    "sender_of",
    "wire_delivery",
    "wire_message",
    "wire_request",
]

ENTITY: Final = "ergo.entities"
"""The first part of all messages between hosts."""

add_errors(
    {
        "AnswerUnknownError": AnswerUnknownError,
        "EntityStoreError": EntityStoreError,
        "StateTooLargeError": StateTooLargeError,
        "StateTypeError": StateTypeError,
        "StateUnreadableError": StateUnreadableError,
    }
)


def wire_message(message: object) -> list[object]:
    """A message or a request of the user: as it is, or the call of a method."""
    if isinstance(message, MethodCall | MethodCast):
        verb = "ask" if isinstance(message, MethodCall) else "cast"
        return [verb, message.method, list(message.args), dict(message.kwargs)]
    return ["", message]


def message_of(parts: list[object]) -> object:
    """The message of these parts. The entity checks that its class exposes the method.

    Raises:
        ValueError: there is no such message.
    """
    match parts:
        case ["", message]:
            return message
        case ["ask" | "cast" as verb, str(method), [*args], dict(kwargs)] if all(
            isinstance(name, str) for name in kwargs
        ):
            made = MethodCall[Any] if verb == "ask" else MethodCast
            return made(method, tuple(args), kwargs)
    raise ValueError("no message to an entity")


def wire_request(request: object) -> list[object]:
    """A request to an entity: the id of a command, its kind, and the user's request in it."""
    id, inner = (request.id, request.request) if isinstance(request, Once) else (None, request)
    if isinstance(inner, Fresh):
        return [id, "fresh", wire_message(inner.request)]
    if isinstance(inner, Post):
        return [id, "post", wire_message(inner.message)]
    if isinstance(inner, Retry):
        return [id, "retry", wire_message(None)]
    return [id, "call", wire_message(inner)]


def request_of(id: str | None, kind: str, parts: list[object]) -> object:
    """The request of these parts.

    Raises:
        ValueError: there is no such request.
    """
    inner = message_of(parts)
    match kind:
        case "post":
            inner = Post(inner)
        case "retry":
            inner = Retry()
        case "fresh":
            inner = Fresh[Any](inner)
        case "call":
            pass
        case _:
            raise ValueError("no request to an entity")
    return inner if id is None else Once[Any](id, inner)


def wire_delivery(message: Delivery) -> tuple[str, list[object]]:
    """A message between entities: its class, and its parts."""
    parts: list[object] = [list(each) if isinstance(each, tuple) else each for each in message]
    return type(message).__name__, parts


def delivery_of(name: str, parts: list[object]) -> Delivery:
    """The message of these parts.

    Raises:
        ValueError: there is no such message.
    """
    match name, parts:
        case "Deliver", [origin, int(number), int(after), int(token), bytes(message)]:
            return Deliver(_origin_of(origin), _whole(number), after, token, message)
        case "Done", [origin, int(number)]:
            return Done(_origin_of(origin), number)
        case "Forget", [origin, int(number)]:
            return Forget(_origin_of(origin), number)
        case "Ask", [origin, str(question)]:
            return Ask(_origin_of(origin), question)
        case "Inquire", [origin, int(number), [str(kind), str(key)], str(question)]:
            receiver = Address(check_stored("kind", kind, most=200), check_key(key))
            return Inquire(_origin_of(origin), number, receiver, question)
    raise ValueError(f"{name} is no message between entities")


def _origin_of(value: object) -> Origin:
    match value:
        case [str(kind), str(key), int(birth)]:
            return Origin(check_stored("kind", kind, most=200), check_key(key), _whole(birth))
    raise ValueError("an entity has a kind, a key and a birth")


def _whole(number: int) -> int:
    """A number that is stored. A bool is an int, and would come back as a bool."""
    if isinstance(number, bool):
        raise ValueError("a message has a number, and no bool")
    return number


def sender_of(value: object) -> PID | Alias | None:
    """The sender of a message that another host passes on."""
    return value if isinstance(value, PID | Alias) else None
