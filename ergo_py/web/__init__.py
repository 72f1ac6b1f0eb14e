"""HTTP and WebSocket as meta-processes: a request is a call of an actor."""

from typing import TYPE_CHECKING

from .._core.vocabulary.messages import Drain
from .._core.vocabulary.public_names import load_on_first_use

if TYPE_CHECKING:
    from .client import WebSocketClient
    from .messages.requests import (
        End,
        HTTPGone,
        HTTPRequest,
        ReadBody,
        SentEvent,
        Write,
    )
    from .messages.responses import HTTPError, Response
    from .messages.websockets import WS
    from .mounts.files import Files
    from .mounts.mount import Mount
    from .routes import Body, Route
    from .server import WebServer

__all__ = [
    "WS",
    "Body",
    "Drain",
    "End",
    "Files",
    "HTTPError",
    "HTTPGone",
    "HTTPRequest",
    "Mount",
    "ReadBody",
    "Response",
    "Route",
    "SentEvent",
    "WebServer",
    "WebSocketClient",
    "Write",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(
        __name__,
        {
            "client": "WebSocketClient",
            "messages.requests": "End HTTPGone HTTPRequest ReadBody SentEvent Write",
            "messages.responses": "HTTPError Response",
            "messages.websockets": "WS",
            "mounts.files": "Files",
            "mounts.mount": "Mount",
            "routes": "Body Route",
            "server": "WebServer",
        },
    )
