"""`Wire` and `Host`: the parts of a connection that its HTTP uses."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from ..._core.vocabulary.ids import Alias
from ...meta.sockets.messages import Address
from ..messages.requests import HTTPRequest
from .limits import Traffic
from .response_stream import Outlet

__all__ = ["Host", "Wire"]


class Wire(Traffic, Outlet, Protocol):
    """The part of a connection that HTTP uses."""

    id: Alias
    peer: Address

    def hang_up(self) -> None:
        """Close, after everything is written."""
        ...

    def read_on(self) -> None:
        """Wake the reader, which waits because the protocol was paused."""
        ...


class Host(Protocol):
    """The connection of a protocol."""

    def begin_beside(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run an async function beside the reader."""
        ...

    def upgrade(self, http: Any, request: HTTPRequest, place: Any) -> None:
        """Begin to answer a request for a WebSocket."""
        ...
