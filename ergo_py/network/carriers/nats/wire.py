"""The protocol between a NATS client and its server, without I/O.

`ServerParser` cuts the bytes of a server into operations. The functions make the bytes of a client.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

__all__ = [
    "PING",
    "PONG",
    "Message",
    "Ping",
    "Pong",
    "ServerError",
    "ServerInfo",
    "ServerOperation",
    "ServerParser",
    "WireError",
    "connect",
    "publish",
    "publish_head",
    "subscribe",
]

_LINE: Final = 1 << 20
"""The most bytes of a control line: the greeting of a server lists all servers of its cluster."""
_PAYLOAD: Final = 64 << 20
"""The most bytes of a message. A server allows no larger limit."""

# A node has as many heads as nodes that send to it, and a network has about 1,000 nodes at most.
# Longer heads come of reply subjects that clients choose; to keep them would let a client fill the
# memory.
_HEADS: Final = 1000
_SHORT: Final = 512
"""How many headers of messages a parser remembers, and the most bytes of each."""
_FIELD: Final = re.compile(rb"[^ \t]+")
_TOO_LONG: Final = "a message is longer than its header says"

PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"


class WireError(ValueError):
    """The bytes are not of a NATS server."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The greeting of a server. A server sends another when it changes."""

    name: str = ""
    version: str = ""
    max_payload: int = 1 << 20
    nonce: str = ""
    headers: bool = False
    tls_required: bool = False
    tls_available: bool = False
    auth_required: bool = False
    is_lame_duck: bool = False
    """The server goes down soon: a client has to connect to another."""
    connect_urls: tuple[str, ...] = ()
    """The addresses of all servers of the cluster, such as ``10.0.0.1:4222``."""


class Message(NamedTuple):
    """A message for a subscription."""

    subject: str
    subscription: int
    reply: str
    status: int
    """503 if no client listens to the subject of a request; 0 for a usual message."""
    payload: bytes


@dataclass(frozen=True, slots=True)
class Ping:
    """The server asks for a sign of life."""


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer of the server to a ping."""


@dataclass(frozen=True, slots=True)
class ServerError:
    """An error of the server. After most of them it closes the connection."""

    text: str

    @property
    def is_permission(self) -> bool:
        """Whether the server refused an operation and keeps the connection open."""
        return self.text.lower().startswith("permissions violation")


ServerOperation = ServerInfo | Message | Ping | Pong | ServerError

_SIZES: Final = {b"MSG ": 1, b"MSG\t": 1, b"HMSG": 2}
"""How many sizes the header of a message has."""
_ping: Final = Ping()
_pong: Final = Pong()


class ServerParser:
    """Cuts the bytes of a server into operations."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        """The beginning of an operation that has not arrived whole."""
        self._heads: dict[bytes, tuple[str, int, str]] = {}
        """Subject, subscription and reply subject of messages, by their headers up to the size.
        Most messages repeat them.
        """
        self._needed = 0
        """The bytes of it that must be there before it is read again."""
        self._is_in_line = False
        """Whether the line end of its first line is missing."""

    @property
    def is_empty(self) -> bool:
        """Whether no operation has begun to arrive."""
        return not self._buffer

    def feed(self, data: bytes | bytearray) -> Iterator[ServerOperation]:
        """The operations that these bytes complete.

        Raises:
            WireError: a server of NATS does not send this.
        """
        if self._buffer:
            if not self._continue(data):
                return
            data = bytes(self._buffer)
            self._buffer.clear()
        start, needed, is_in_line = 0, 0, False
        try:
            while True:
                end = data.find(b"\r\n", start)
                if end < 0:
                    _check_line(len(data) - start)
                    is_in_line = True
                    return
                line = bytes(data[start:end])
                end += 2
                head, _, digits = line.rpartition(b" ")
                known = self._heads.get(head)
                if known is not None and digits.isdigit():
                    # A message as before, perhaps of another size.
                    size = _number(digits, _PAYLOAD)
                    if len(data) < end + size + 2:
                        needed = end + size + 2 - start
                        return
                    start = end + size + 2
                    if data[end + size : start] != b"\r\n":
                        raise WireError(_TOO_LONG)
                    yield Message(*known, 0, bytes(data[end : end + size]))
                elif sizes := _SIZES.get(line[:4].upper()):
                    fields = _fields(line, sizes)
                    size = _number(fields[-1], _PAYLOAD)
                    if len(data) < end + size + 2:
                        needed = end + size + 2 - start
                        return
                    if data[end + size : end + size + 2] != b"\r\n":
                        raise WireError(_TOO_LONG)
                    message = _message(fields, sizes, bytes(data[end : end + size]))
                    # Not with headers, which have two sizes, and not if a tab stands before the
                    # size: then `head` is not everything before it, and would stand for another
                    # message.
                    if sizes == 1 and digits == fields[-1] and len(head) <= _SHORT:
                        self._remember(head, message)
                    start = end + size + 2
                    yield message
                else:
                    start = end
                    operation = _operation(line)
                    if operation is not None:
                        yield operation
        finally:
            # Also if the reader of these operations leaves early.
            self._needed, self._is_in_line = needed, is_in_line
            if start < len(data):
                self._buffer += data[start:]

    def _continue(self, data: bytes | bytearray) -> bool:
        """Add bytes to the beginning of an operation. Returns whether to read it again."""
        buffer = self._buffer
        searched = len(buffer)
        buffer += data
        if len(buffer) < self._needed:
            return False
        # Do not search the same bytes again; but a line end may have been cut in two.
        if self._is_in_line and buffer.find(b"\r\n", searched - 1) < 0:
            _check_line(len(buffer))
            return False
        return True

    def _remember(self, head: bytes, message: Message) -> None:
        if len(self._heads) >= _HEADS:
            self._heads.clear()
        self._heads[head] = message[:3]


def _fields(line: bytes, sizes: int) -> list[bytes]:
    # Only spaces and tabs separate: a reply subject, which any client may choose, may hold other
    # white space.
    fields = _FIELD.findall(line)
    if len(fields) not in (3 + sizes, 4 + sizes):
        raise WireError(f"the header of a message is malformed: {line[:100]!r}")
    return fields


def _check_line(size: int) -> None:
    if size > _LINE:
        raise WireError(f"a line is longer than {_LINE} bytes")


def _message(fields: list[bytes], sizes: int, body: bytes) -> Message:
    has_reply = len(fields) == 4 + sizes
    status = 0
    if sizes == 2:
        length = _number(fields[-2], len(body))
        status = _status(body[:length])
        body = body[length:]
    return Message(
        _text(fields[1]),
        _number(fields[2], 1 << 63),
        _text(fields[3]) if has_reply else "",
        status,
        body,
    )


def _status(headers: bytes) -> int:
    """The status in the headers of a message; 0 if there is none. Any client may send headers of
    any version, and the server passes them on: they are no fault of the connection.
    """
    version, _, rest = headers.partition(b"\r\n")[0].partition(b" ")
    if version != b"NATS/1.0":
        return 0
    code = rest.strip()[:3]
    return int(code) if len(code) == 3 and code.isdigit() else 0


def _operation(line: bytes) -> ServerOperation | None:
    word, _, rest = line.partition(b" ")
    match word.upper():
        case b"PING":
            return _ping
        case b"PONG":
            return _pong
        case b"+OK":
            return None
        case b"-ERR":
            return ServerError(_text(rest.strip().strip(b"'")))
        case b"INFO":
            return _info(rest)
    raise WireError(f"an unknown operation: {line[:40]!r}")


def _info(text: bytes) -> ServerInfo:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise WireError("the greeting of the server is not JSON") from None
    if not isinstance(values, dict):
        raise WireError("the greeting of the server is not a JSON object")
    urls = values.get("connect_urls")
    return ServerInfo(
        name=_value(values, "server_name", str, ""),
        version=_value(values, "version", str, ""),
        max_payload=_value(values, "max_payload", int, 1 << 20),
        nonce=_value(values, "nonce", str, ""),
        headers=_value(values, "headers", bool, False),
        tls_required=_value(values, "tls_required", bool, False),
        tls_available=_value(values, "tls_available", bool, False),
        auth_required=_value(values, "auth_required", bool, False),
        is_lame_duck=_value(values, "ldm", bool, False),
        connect_urls=tuple(url for url in urls if isinstance(url, str))
        if isinstance(urls, list)
        else (),
    )


def _value(values: dict[str, Any], key: str, kind: type, default: object) -> Any:
    value = values.get(key, default)
    # A server of a later version may write another type: the field counts as missing, and the
    # connection stays.
    return value if type(value) is kind else default


def _number(text: bytes, most: int) -> int:
    # The length first: int() takes longer than linear time for digits without end, and refuses more
    # than 4,300 of them with an error of its own.
    if not text.isdigit() or len(text) > 19 or int(text) > most:
        raise WireError(f"a number up to {most} was expected: {text[:40]!r}")
    return int(text)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def connect(options: dict[str, object]) -> bytes:
    """The first operation of a client."""
    return b"CONNECT " + json.dumps(options, separators=(",", ":")).encode() + b"\r\n"


def subscribe(subject: str, number: int) -> bytes:
    """Subscribe to a subject."""
    return f"SUB {subject} {number}\r\n".encode()


def publish(
    subject: str, reply: str, payload: bytes, headers: Mapping[str, str] | None = None
) -> bytes:
    """Publish a message. If no client listens, the server says so to the ``reply`` subject."""
    if headers:
        to = f"{subject} {reply}" if reply else subject
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"NATS/1.0\r\n{lines}\r\n".encode()
        sizes = b"%d %d" % (len(head), len(head) + len(payload))
        return b"HPUB %b %b\r\n%b%b\r\n" % (to.encode(), sizes, head, payload)
    return b"%b%d\r\n%b\r\n" % (publish_head(subject, reply), len(payload), payload)


def publish_head(subject: str, reply: str) -> bytes:
    """The first bytes of a message without headers: everything before its size."""
    return f"PUB {subject} {reply} ".encode() if reply else f"PUB {subject} ".encode()
