"""`Wire`: the part of a connection that its HTTP uses, beside its writer."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from ..._core.vocabulary.ids import Alias
from ...meta.sockets.messages import Address, Cause
from ..messages.requests import HTTPRequest
from .limits import Traffic

__all__ = ["Wire"]


class Wire(Traffic, Protocol):
    """The connection of an HTTP protocol."""

    alias: Alias
    peer: Address

    def hang_up(self) -> None:
        """Close, after everything is written."""
        ...

    def cut(self, cause: Cause, detail: str) -> None:
        """End at once, so that the peer does not take a part for the whole."""
        ...

    def read_on(self) -> None:
        """Wake the reader, which waits because the protocol was paused."""
        ...

    def begin_beside(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run an async function beside the reader."""
        ...

    def upgrade(self, http: Any, request: HTTPRequest, place: Any) -> None:
        """Begin to answer a request for a WebSocket."""
        ...
