"""Messages between a WebSocket connection and its actor."""

from dataclasses import dataclass
from typing import Final, TypeAlias

from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.ids import Alias
from ..._core.vocabulary.messages import MayBeLate, Request
from ..._core.vocabulary.public_names import show_members, show_public_names
from ...meta.sockets.messages import Cause
from ..parsing.frames import is_close_code
from .requests import HTTPRequest
from .responses import Headers, HTTPError, Response

__all__ = [
    "WS",
    "Accept",
    "WSBinary",
    "WSClose",
    "WSConnected",
    "WSDisconnected",
    "WSSend",
    "WSText",
    "WSUpgrade",
]

_MOST_REASON: Final = 123
"""Bytes of the reason in a close frame."""


@dataclass(frozen=True, slots=True)
class WSConnected:
    """A WebSocket connection is open. The first message about it."""

    connection: Alias
    request: HTTPRequest | None
    """The request of the peer; None for a client of ours."""
    subprotocol: str | None = None


@dataclass(frozen=True, slots=True)
class WSText:
    """A text message."""

    connection: Alias
    text: str


@dataclass(frozen=True, slots=True)
class WSBinary:
    """A binary message."""

    connection: Alias
    data: bytes


@dataclass(frozen=True, slots=True)
class WSDisconnected(MayBeLate):
    """The connection has ended. The last message about it."""

    connection: Alias
    code: int | None
    """The code of the peer's close, 1005 if the close had none; None without a close."""
    reason: str
    cause: Cause
    """Why the connection has ended."""
    detail: str = ""
    """More about the cause, for people."""


@dataclass(frozen=True, slots=True)
class WSSend(MayBeLate, Request[int]):
    """Send a message: a ``str`` as text, ``bytes`` as binary. With ``call``, the answer is the
    number of bytes, when the operating system has taken them.
    """

    data: str | bytes

    def __post_init__(self) -> None:
        if not isinstance(self.data, str | bytes | bytearray | memoryview):
            raise BadInputError("WS.Send(data)", self.data, "a str or bytes")
        if isinstance(self.data, str) and not self.data.isascii():
            try:
                self.data.encode()
            except UnicodeEncodeError as error:
                raise BadInputError(
                    "WS.Send(data)", self.data, "a text without lone surrogates, or bytes"
                ) from error


@dataclass(frozen=True, slots=True)
class WSClose(MayBeLate, Request[None]):
    """Close the connection with a code and a reason."""

    code: int = 1000
    reason: str = ""

    def __post_init__(self) -> None:
        if type(self.code) is not int or not is_close_code(self.code):
            raise BadInputError(
                "WS.Close(code)", self.code, "1000 to 1003, 1007 to 1014, or 3000 to 4999"
            )
        if not isinstance(self.reason, str) or len(self.reason.encode(errors="replace")) > (
            _MOST_REASON
        ):
            raise BadInputError(
                "WS.Close(reason)", self.reason, f"a text of at most {_MOST_REASON} bytes"
            )


@dataclass(frozen=True, slots=True)
class Accept:
    """The decision to accept a WebSocket connection."""

    subprotocol: str | None = None
    """One of the names that the client offers."""
    headers: Headers = ()
    """Further fields of the response, such as ``set-cookie``."""

    def __post_init__(self) -> None:
        # An iterator would be used up by the check.
        object.__setattr__(self, "headers", Response(200, headers=self.headers).headers)
        if self.subprotocol is not None and not isinstance(self.subprotocol, str):
            raise BadInputError("Accept(subprotocol)", self.subprotocol, "a str or None")


@dataclass(frozen=True, slots=True)
class WSUpgrade(Request[Accept | HTTPError]):
    """Asks a process whether to accept a WebSocket connection."""

    request: HTTPRequest


class WS:
    """The messages of WebSockets."""

    Accept: TypeAlias = Accept
    Binary: TypeAlias = WSBinary
    Close: TypeAlias = WSClose
    Connected: TypeAlias = WSConnected
    Disconnected: TypeAlias = WSDisconnected
    Send: TypeAlias = WSSend
    Text: TypeAlias = WSText
    Upgrade: TypeAlias = WSUpgrade


show_public_names(__name__)
show_members(WS)
