"""HTTP and WebSocket as meta-processes: a request is a call of an actor."""

from typing import TYPE_CHECKING

from .._core.vocabulary.messages import Drain
from .._core.vocabulary.public_names import load_on_first_use

if TYPE_CHECKING:
    from .client import WebSocketClient
    from .messages.requests import (
        HTTPRequest,
    )
    from .messages.responses import HTTPError, Response
    from .messages.websockets import WS
    from .mounts.files import Files
    from .mounts.mount import Mount
    from .routes import Route
    from .server import WebServer

__all__ = [
    "WS",
    "Drain",
    "Files",
    "HTTPError",
    "HTTPRequest",
    "Mount",
    "Response",
    "Route",
    "WebServer",
    "WebSocketClient",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(
        __name__,
        {
            "client": "WebSocketClient",
            "messages.requests": "HTTPRequest",
            "messages.responses": "HTTPError Response",
            "messages.websockets": "WS",
            "mounts.files": "Files",
            "mounts.mount": "Mount",
            "routes": "Route",
            "server": "WebServer",
        },
    )
