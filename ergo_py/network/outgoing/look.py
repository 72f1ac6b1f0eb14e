"""`look` and `fetch`: answers of another node to requests about itself, of any size."""

from dataclasses import dataclass
from math import inf
from typing import Any, Final, Protocol, TypeVar

import trio

from ..._core.vocabulary.errors import CallTimeoutError
from ..._core.vocabulary.ids import NodeName
from ..access.limits import LARGEST_ANSWER
from ..context import NetworkContext
from ..errors import UnreadableError
from ..messages.listed_class import UnreadableValueError

__all__ = ["Asked", "Look", "Ping", "checked", "fetch", "look", "not_an_answer"]

T = TypeVar("T")

_LONG: Final = 64 << 10
"""Bytes of an answer that is decoded in a thread: it would take 10 ms and more on the loop."""


class Asked(Protocol):
    """Another node, as the receiver of requests to itself."""

    @property
    def network(self) -> NetworkContext:
        """The network of this node."""
        ...

    @property
    def node(self) -> str:
        """The name of that node."""
        ...

    async def ask(self, about: str, request: object, value: object, timeout: float | None) -> Any:
        """Ask that node itself, and wait for the answer."""


@dataclass(frozen=True)
class Ping:
    """The request of :meth:`RemoteNode.ping`, as errors show it."""


@dataclass(frozen=True)
class Look:
    """The request of the verbs that look into a node, as errors show it."""

    verb: str
    arguments: tuple[object, ...] = ()


async def look(peer: Asked, request: Look, keywords: dict[str, Any], timeout: float | None) -> Any:
    """The answer of another node to a look at it."""
    asked = [request.verb, list(request.arguments), keywords]
    data = await fetch(peer, "look", request, asked, timeout)
    decode = peer.network.snapshots.decode
    try:
        if len(data) <= _LONG:
            return decode(data)
        # It would block the loop. The thread lets others run between two values that it makes.
        return await trio.to_thread.run_sync(decode, data)
    except UnreadableValueError as error:
        to = NodeName(peer.node)
        text = f"the answer of {peer.node!r} is unreadable here: {error}"
        raise UnreadableError(text, to, request) from None


async def fetch(
    peer: Asked, about: str, request: object, value: object, timeout: float | None
) -> bytes:
    """All chunks of an answer that may be large."""
    end = inf if timeout is None else trio.current_time() + timeout
    match await peer.ask(about, request, value, timeout):
        # The other node tells the size: without a limit here, a hostile node could send an answer
        # without end.
        case [int(size), int(number), bytes(chunk)] if size <= LARGEST_ANSWER:
            data = bytearray(chunk)
        case _:
            raise not_an_answer(peer.node, request)
    while len(data) < size:
        left = None if timeout is None else end - trio.current_time()
        if left is not None and left <= 0:
            raise CallTimeoutError(NodeName(peer.node), request, timeout or 0.0)
        chunk = await peer.ask("more", request, [number, len(data)], left)
        # An empty chunk brings the answer no further: the loop would ask for it again and again.
        if not isinstance(chunk, bytes) or not chunk:
            raise not_an_answer(peer.node, request)
        data += chunk
    return bytes(data)


def checked(found: object, cls: type[T], node: str, request: object) -> T:
    """The answer, if it is of this class."""
    if not isinstance(found, cls):
        raise not_an_answer(node, request)
    return found


def not_an_answer(node: str, request: object) -> UnreadableError:
    """The error for an answer that is no answer to this request."""
    text = f"the node {node!r} gave another kind of answer; perhaps it runs another version"
    return UnreadableError(text, NodeName(node), request)
