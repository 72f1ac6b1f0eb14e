"""The handshake of a WebSocket (RFC 6455, section 4): the checks of a server, and the request of a
client.
"""

import hashlib
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Final

from .http1 import Head

__all__ = [
    "HandshakeError",
    "check_upgrade",
    "client_request",
    "is_allowed_origin",
    "key_answer",
    "offered_names",
    "plain_origin",
    "read_answer",
    "wants_websocket",
]

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY: Final = re.compile(r"[A-Za-z0-9+/]{22}==", re.ASCII)
_STATUS: Final = re.compile(rb"HTTP/1\.1 ([0-9]{3})(?: [^\r\n]*)?")
_FIELD: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[\t ]*([\t -~\x80-\xff]*)")
_MAX_FIELDS: Final = 100


class HandshakeError(ConnectionError):
    """The handshake failed. ``status`` is the response of a server."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


def key_answer(key: str) -> str:
    """The value that proves to a client that the server speaks WebSocket."""
    digest = hashlib.sha1(key.encode("ascii") + _GUID, usedforsecurity=False).digest()
    return b64encode(digest).decode()


def _tokens(value: str) -> list[str]:
    return [token.strip(" \t") for token in value.split(",") if token.strip(" \t")]


def wants_websocket(head: Head) -> bool:
    """Whether a request asks for a WebSocket."""
    headers = head.headers
    return "websocket" in map(str.lower, _tokens(headers.get("upgrade", ""))) and (
        "upgrade" in map(str.lower, _tokens(headers.get("connection", "")))
    )


def check_upgrade(head: Head) -> str:
    """Check a request for a WebSocket. Returns the answer to its key.

    Raises:
        HandshakeError: 426 for a plain request or another version, 400 for a wrong request.
    """
    if not wants_websocket(head) or head.is_http_10:
        raise HandshakeError(426, "this is a WebSocket")
    if head.method != "GET":
        raise HandshakeError(400, "a WebSocket begins with GET")
    if head.headers.get("sec-websocket-version") != "13":
        raise HandshakeError(426, "only version 13 of WebSocket is offered")
    key = head.headers.get("sec-websocket-key", "")
    if _KEY.fullmatch(key) is None or len(b64decode(key)) != 16:
        raise HandshakeError(400, "Sec-WebSocket-Key is not 16 bytes in Base64")
    return key_answer(key)


def offered_names(head: Head) -> list[str]:
    """The subprotocols that a client offers, the best first."""
    return _tokens(head.headers.get("sec-websocket-protocol", ""))


def is_allowed_origin(origin: str | None, scheme: str, host: str, allowed: Iterable[str]) -> bool:
    """Whether pages of ``origin`` may connect: those of the same scheme, host and port, and those
    in ``allowed``. Programs without an origin may.
    """
    if origin is None or "*" in allowed:
        return True
    origin = plain_origin(origin)
    return origin in allowed or bool(host and origin == plain_origin(f"{scheme}://{host}"))


def plain_origin(origin: str) -> str:
    """An origin in lower case, without the default port of its scheme."""
    origin = origin.lower()
    scheme, _, _ = origin.partition("://")
    return origin.removesuffix({"http": ":80", "https": ":443"}.get(scheme, ":"))


def client_request(host: str, path: str, key: str, fields: Iterable[tuple[str, str]]) -> bytes:
    """The request of a client."""
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {host}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {key}",
        "Sec-WebSocket-Version: 13",
        *(f"{name}: {value}" for name, value in fields),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def read_answer(head: bytes, key: str) -> Mapping[str, str]:
    """Check the answer of a server, and return its fields.

    Raises:
        HandshakeError: the server refuses, or does not speak WebSocket.
    """
    line, *lines = head.split(b"\r\n")
    match = _STATUS.fullmatch(line)
    if match is None:
        raise HandshakeError(400, "the server does not answer with HTTP/1.1")
    status = int(match[1])
    if status != 101:
        raise HandshakeError(status, f"the server answers with status {status}")
    if len(lines) > _MAX_FIELDS:
        raise HandshakeError(400, f"the answer has more than {_MAX_FIELDS} fields")
    fields: dict[str, str] = {}
    for each in filter(None, lines):
        field = _FIELD.fullmatch(each)
        if field is None:
            raise HandshakeError(400, "a line of the answer is no field")
        name, value = field[1].decode("ascii").lower(), field[2].decode("latin-1").strip(" \t")
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    if fields.get("upgrade", "").lower() != "websocket" or "upgrade" not in map(
        str.lower, _tokens(fields.get("connection", ""))
    ):
        raise HandshakeError(400, "the server does not change to WebSocket")
    if fields.get("sec-websocket-accept") != key_answer(key):
        raise HandshakeError(400, "the server has not read the key")
    return fields
