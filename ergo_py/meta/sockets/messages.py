"""What stream connections and their receivers say to each other; TCP and Unix sockets speak alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Final, NamedTuple

from ..._core.vocabulary.ids import Alias
from ..._core.vocabulary.messages import MayBeLate, Request
from ..._core.vocabulary.options import check_number
from ..checks import check_bytes, setters

__all__ = [
    "Address",
    "Cause",
    "ORDERLY",
    "Endpoint",
    "TCPClose",
    "TCPConnected",
    "TCPData",
    "TCPDisconnected",
    "TCPFrames",
    "TCPProtocolError",
    "TCPSecured",
    "TCPSend",
    "TCPSet",
    "TCPStartTLS",
    "TLSFacts",
]


class Endpoint(NamedTuple):
    """One end of an internet connection. It is the pair that the ``socket`` module speaks of, and
    prints as people write it.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Address = Endpoint | str
"""One end of a connection: an endpoint, or the path of a Unix socket, which is empty for a client
without one.
"""


class Cause(Enum):
    """Why a connection is no more."""

    EOF = "closed by the peer"
    TRUNCATED = "cut off"
    """The stream ended inside a frame, or without the notice with which TLS ends: what came may be
    only the first part.
    """
    RESET = "reset by the peer"
    TIMEOUT = "timed out"
    PROTOCOL_ERROR = "protocol error"
    ASKED = "closed on request"
    SLOW_PEER = "the peer did not take what it was sent"
    NO_RECEIVER = "the receiver is gone"
    FAILED = "failed on this side"
    """The framing raised an error that says nothing about the stream, such as a ``KeyError``."""


ORDERLY: Final = frozenset({Cause.EOF, Cause.TRUNCATED, Cause.ASKED})
"""The causes after which the last answers are still written."""


@dataclass(frozen=True, slots=True)
class TLSFacts:
    """What two sides agreed on. ``peer_certificate`` is as ``ssl.SSLSocket.getpeercert`` has it;
    empty without one.
    """

    version: str
    cipher: str
    server_name: str | None = None
    alpn: str | None = None
    peer_certificate: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.version} {self.cipher}"


@dataclass(frozen=True, slots=True)
class TCPConnected:
    """A connection is there; with TLS, its handshake is done. The first message about it."""

    connection: Alias
    peer: Address
    local: Address
    tls: TLSFacts | None = None
    server: Alias | None = None
    """The server that accepted it; None for a client."""


@dataclass(frozen=True, slots=True, init=False)
class TCPData:
    """A frame, or with raw framing whatever came at once. A decoder of your own may put something
    else than bytes into it.
    """

    connection: Alias
    data: bytes

    def __init__(self, connection: Alias, data: bytes) -> None:
        _set_connection(self, connection)
        _set_data(self, data)


_set_connection, _set_data = setters(TCPData)


@dataclass(frozen=True, slots=True, init=False)
class TCPFrames:
    """All frames that one read has completed, in their order; instead of ``TCPData`` where
    ``batch=True`` was asked for.

    A large read may come as several of these. Frames are ``bytes``, unless a decoder of your own
    makes something else of them.
    """

    connection: Alias
    frames: Sequence[Any]

    def __init__(self, connection: Alias, frames: Sequence[Any]) -> None:
        _set_origin(self, connection)
        _set_frames(self, frames)


_set_origin, _set_frames = setters(TCPFrames)


@dataclass(frozen=True, slots=True)
class TCPProtocolError:
    """What the peer sent cannot be cut into frames; told where ``last_word=True`` was asked for.

    All frames before the mistake came before this message. What the receiver sends while it serves
    this message is written, such as the error reply of the protocol; then the connection is closed,
    and ends with ``Cause.PROTOCOL_ERROR``.
    """

    connection: Alias
    detail: str
    """What is wrong, for people."""


@dataclass(frozen=True, slots=True)
class TCPSecured:
    """TLS has begun on a connection that was in clear (``TCPStartTLS``). What comes from now on was
    encrypted.
    """

    connection: Alias
    tls: TLSFacts


@dataclass(frozen=True, slots=True)
class TCPDisconnected(MayBeLate):
    """The connection is no more. The last message about it, after all its data."""

    connection: Alias
    reason: Cause
    bytes_in: int
    bytes_out: int
    duration: float
    """Seconds since it was connected."""
    detail: str = ""
    """More about the reason, for people."""


@dataclass(frozen=True, slots=True, init=False)
class TCPSend(MayBeLate, Request[int]):
    """Tell a connection to send. Asked with ``call`` it answers, once all is in the operating
    system, with the number of bytes.

    Several pieces, such as the answers to all of :class:`TCPFrames`, may be given at once as a
    list: they are joined.
    """

    data: bytes

    def __init__(self, data: bytes | list[bytes] | tuple[bytes, ...]) -> None:
        if type(data) is not bytes:
            if isinstance(data, list | tuple):
                for piece in data:
                    check_bytes("TCPSend(data)", piece)
                data = b"".join(data)
            check_bytes("TCPSend(data)", data)
        _set_sent(self, data)


(_set_sent,) = setters(TCPSend)


@dataclass(frozen=True, slots=True)
class TCPClose(MayBeLate, Request[None]):
    """Tell a connection to close. Asked with ``call`` it answers when the connection is closed.

    What was sent before is written, the peer is told that no more comes, and the connection ends
    when the peer has closed, too, or after ``linger`` seconds in which it took nothing (by default
    those of the connection). With ``abort`` it ends at once, and the peer sees a reset.
    """

    abort: bool = False
    linger: float | None = None

    def __post_init__(self) -> None:
        if self.linger is not None:
            check_number("TCPClose(linger)", self.linger, least=0.0)


class Same(Enum):
    """Stands for a setting that stays as it is."""

    SAME = "as before"


SAME: Final = Same.SAME


@dataclass(frozen=True, slots=True)
class TCPSet(MayBeLate, Request[None]):
    """Change the time limits of one connection while it lives; what is not given stays as it is.
    None is no limit.

    For limits that two sides agree on, such as the keep-alive time of MQTT. Asked with ``call`` it
    answers when it is done.
    """

    idle_timeout: float | Same | None = SAME
    frame_timeout: float | Same | None = SAME
    linger: float | Same = SAME

    def __post_init__(self) -> None:
        for name in ("idle_timeout", "frame_timeout"):
            if getattr(self, name) is not None and getattr(self, name) is not SAME:
                check_number(f"TCPSet({name})", getattr(self, name), least=0.001)
        if self.linger is not SAME:
            check_number("TCPSet(linger)", self.linger, least=0.0)

    def changes(self) -> dict[str, Any]:
        """The settings that are to change, by their names."""
        settings = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in settings.items() if value is not SAME}


@dataclass(frozen=True, slots=True)
class TCPStartTLS(Request[None]):
    """Have a connection with ``start_tls=True`` go on with TLS (STARTTLS of SMTP, IMAP, LDAP and
    PostgreSQL).

    Send it while you serve the message that agrees on it: the request of the peer for a server, the
    answer of the server for a client. The connection reads nothing in the meantime. ``say`` is sent
    in clear before TLS begins, such as the reply of a server; what is sent afterwards is encrypted.
    ``TCPSecured`` tells that TLS has begun. A peer that has sent anything after its request in
    clear is cut off with ``Cause.PROTOCOL_ERROR``: it could have been put there by somebody in
    between.
    """

    say: bytes = b""

    def __post_init__(self) -> None:
        check_bytes("TCPStartTLS(say)", self.say)
