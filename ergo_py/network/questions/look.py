"""`look` and `fetch`: answers of another node to questions about itself, of any size."""

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from ..._core.vocabulary.errors import CallTimeoutError
from ..._core.vocabulary.ids import NodeName
from ..errors import UnreadableError
from ..messages.message_types import UnreadableValueError
from .pieces import LARGEST_ANSWER

if TYPE_CHECKING:
    from .questioner import Questioner

__all__ = ["Look", "checked", "fetch", "look", "not_an_answer"]

T = TypeVar("T")


@dataclass(frozen=True)
class Look:
    """The question of the verbs that look into a node, as errors show it."""

    verb: str
    arguments: tuple[object, ...] = ()


async def look(
    peer: "Questioner", request: Look, keywords: dict[str, Any], timeout: float | None
) -> Any:
    """The answer of another node to a look at it."""
    asked = [request.verb, list(request.arguments), keywords]
    data = await fetch(peer, "look", request, asked, timeout)
    try:
        return peer.network.snapshots.decode(data)
    except UnreadableValueError as error:
        to = NodeName(peer.node)
        text = f"the answer of {peer.node!r} is unreadable here: {error}"
        raise UnreadableError(text, to, request) from None


async def fetch(
    peer: "Questioner", about: str, request: object, value: object, timeout: float | None
) -> bytes:
    """All pieces of an answer that may be large."""
    end = inf if timeout is None else trio.current_time() + timeout
    match await peer.ask(about, request, value, timeout):
        case [int(size), int(number), bytes(piece)] if size <= LARGEST_ANSWER:
            data = bytearray(piece)
        case _:
            raise not_an_answer(peer.node, request)
    while len(data) < size:
        left = None if timeout is None else end - trio.current_time()
        if left is not None and left <= 0:
            raise CallTimeoutError(NodeName(peer.node), request, timeout or 0.0)
        piece = await peer.ask("more", request, [number, len(data)], left)
        if not isinstance(piece, bytes) or not piece:
            raise not_an_answer(peer.node, request)
        data += piece
    return bytes(data)


def checked(found: object, cls: type[T], node: str, request: object) -> T:
    """The answer, if it is of this class."""
    if not isinstance(found, cls):
        raise not_an_answer(node, request)
    return found


def not_an_answer(node: str, request: object) -> UnreadableError:
    """The error for an answer that is no answer to this question."""
    text = f"the node {node!r} gave another kind of answer; perhaps it runs another version"
    return UnreadableError(text, NodeName(node), request)
