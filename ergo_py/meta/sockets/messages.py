"""`TCP`: the messages between stream connections and their receivers, and the options of both
ends; TCP and Unix sockets share them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from ..._core.vocabulary.ids import Alias
from ..._core.vocabulary.messages import MayBeLate, Request
from ..._core.vocabulary.options import check_number
from ..._core.vocabulary.public_names import show_members, show_public_names
from ..._core.vocabulary.states import IdentityEnum
from ..checks import check_bytes, setters

__all__ = [
    "TCP",
    "Address",
    "Cause",
    "ORDERLY",
    "Endpoint",
    "KeepAlive",
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
    "WhenFull",
    "WhenSlow",
]


class Endpoint(NamedTuple):
    """An end of an internet connection: the pair of host and port of the ``socket`` module. It
    prints in the usual notation.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Address = Endpoint | str
"""An end of a connection: an endpoint, or the path of a Unix socket. The path of a client's Unix
socket is usually empty.
"""


class Cause(IdentityEnum):
    """Why a connection has ended."""

    EOF = "closed by the peer"
    TRUNCATED = "cut off"
    """The stream ended inside a frame, or without the notice that ends TLS: the data may be only
    the first part.
    """
    RESET = "reset by the peer"
    TIMEOUT = "timed out"
    PROTOCOL_ERROR = "protocol error"
    ASKED = "closed on request"
    SLOW_PEER = "the peer is too slow to take its data"
    NO_RECEIVER = "the receiver is gone"
    FAILED = "failed on this side"
    """The framing raised an error other than ``FramingError``, such as a ``KeyError``: a fault of
    this side, not of the stream.
    """


_KEEP_ALIVE: Final = {"idle": 32767, "interval": 32767, "count": 127}
ORDERLY: Final = frozenset({Cause.EOF, Cause.TRUNCATED, Cause.ASKED})
"""After these causes, the connection still writes the last answers."""


@dataclass(frozen=True, slots=True)
class TLSFacts:
    """The facts that both sides of a TLS connection agreed on. ``peer_certificate`` has the form of
    ``ssl.SSLSocket.getpeercert``; it is empty if the peer has shown none.
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
    """A connection is made; with TLS, after the handshake. The first message about a connection."""

    connection: Alias
    peer: Address
    local: Address
    tls: TLSFacts | None = None
    server: Alias | None = None
    """The server that accepted the connection; None for a client."""


@dataclass(frozen=True, slots=True, init=False)
class TCPData:
    """A frame, or with raw framing the bytes of a single read. A decoder of your own may put other
    objects than bytes into it.
    """

    connection: Alias
    data: bytes

    def __init__(self, connection: Alias, data: bytes) -> None:
        _set_connection(self, connection)
        _set_data(self, data)


_set_connection, _set_data = setters(TCPData)


@dataclass(frozen=True, slots=True, init=False)
class TCPFrames:
    """All frames that a read has completed, in their order. With ``batch=True``, this message
    replaces ``TCP.Data``.

    A large read may come as several of these messages. Frames are ``bytes``, unless a decoder of
    your own makes other objects of them.
    """

    connection: Alias
    frames: Sequence[Any]

    def __init__(self, connection: Alias, frames: Sequence[Any]) -> None:
        _set_origin(self, connection)
        _set_frames(self, frames)


_set_origin, _set_frames = setters(TCPFrames)


@dataclass(frozen=True, slots=True)
class TCPProtocolError:
    """The peer's bytes cannot be cut into frames. Sent only with ``last_word=True``.

    All frames before the error came before this message. The connection still writes the data that
    the receiver sends while it serves this message, such as the error reply of the protocol. Then
    it closes, and ends with ``Cause.PROTOCOL_ERROR``.
    """

    connection: Alias
    detail: str
    """A description of the error, for people."""


@dataclass(frozen=True, slots=True)
class TCPSecured:
    """TLS has begun on a connection that was in clear (``TCP.StartTLS``). All data from now on was
    encrypted.
    """

    connection: Alias
    tls: TLSFacts


@dataclass(frozen=True, slots=True)
class TCPDisconnected(MayBeLate):
    """The connection has ended. The last message about it, after all its data."""

    connection: Alias
    reason: Cause
    bytes_in: int
    bytes_out: int
    duration: float
    """Seconds from the connection's start to its end."""
    detail: str = ""
    """More about the reason, for people."""


@dataclass(frozen=True, slots=True, init=False)
class TCPSend(MayBeLate, Request[int]):
    """Tell a connection to send data. With ``call``, it answers with the number of bytes, once all
    of them are in the operating system.

    A list of pieces is joined and sent at once, such as the answers to all frames of
    :class:`TCP.Frames`.
    """

    data: bytes

    def __init__(self, data: bytes | list[bytes] | tuple[bytes, ...]) -> None:
        if type(data) is not bytes:
            if isinstance(data, list | tuple):
                for piece in data:
                    check_bytes("TCP.Send(data)", piece)
                data = b"".join(data)
            check_bytes("TCP.Send(data)", data)
        _set_sent(self, data)


(_set_sent,) = setters(TCPSend)


@dataclass(frozen=True, slots=True)
class TCPClose(MayBeLate, Request[None]):
    """Tell a connection to close (graceful shutdown). With ``call``, it answers when the connection
    is closed.

    The connection writes the data that was sent before, half-closes, so that the peer sees the end,
    and ends when the peer has closed, too. If the peer takes nothing for ``linger`` seconds (by
    default those of the connection), it ends all the same. With ``abort`` it ends at once, and the
    peer sees a reset.
    """

    abort: bool = False
    linger: float | None = None

    def __post_init__(self) -> None:
        if self.linger is not None:
            check_number("TCP.Close(linger)", self.linger, least=0.0)


class Same(Enum):
    """Stands for a setting that stays as it is."""

    SAME = "as before"


SAME: Final = Same.SAME


@dataclass(frozen=True, slots=True)
class TCPSet(MayBeLate, Request[None]):
    """Change the time limits of a connection while it is open. Settings that are left out stay as
    they are; None is no limit.

    For limits that both sides agree on, such as the keep-alive time of MQTT. With ``call``, the
    connection answers when it has changed them.
    """

    idle_timeout: float | Same | None = SAME
    frame_timeout: float | Same | None = SAME
    linger: float | Same = SAME

    def __post_init__(self) -> None:
        for name in ("idle_timeout", "frame_timeout"):
            if getattr(self, name) is not None and getattr(self, name) is not SAME:
                check_number(f"TCP.Set({name})", getattr(self, name), least=0.001)
        if self.linger is not SAME:
            check_number("TCP.Set(linger)", self.linger, least=0.0)

    def changes(self) -> dict[str, Any]:
        """The settings that change, by their names."""
        settings = {setting.name: getattr(self, setting.name) for setting in fields(self)}
        return {name: value for name, value in settings.items() if value is not SAME}


@dataclass(frozen=True, slots=True)
class TCPStartTLS(Request[None]):
    """Start TLS on a connection with ``start_tls=True`` (STARTTLS of SMTP, IMAP, LDAP and
    PostgreSQL).

    Send it while you serve the message that agrees on TLS: for a server, the request of the peer;
    for a client, the answer of the server. The connection reads nothing in the meantime. ``say`` is
    sent in clear before TLS begins, such as the reply of a server; all later data is encrypted.
    ``TCP.Secured`` tells that TLS has begun. If the peer has sent anything in clear after its
    request, the connection ends with ``Cause.PROTOCOL_ERROR``: an attacker in between could have
    inserted it.
    """

    say: bytes = b""

    def __post_init__(self) -> None:
        check_bytes("TCP.StartTLS(say)", self.say)


class WhenSlow(Enum):
    """How to treat a slow peer, for which more than ``write_limit`` bytes are waiting."""

    WAIT = "wait"
    """Further data waits in the mailbox of the connection, and a server stops reading from that
    peer (backpressure).
    """
    DROP = "drop"
    """The connection is dropped."""


class WhenFull(Enum):
    """How a server with ``max_connections`` open connections treats further peers."""

    PAUSE = "pause"
    """The server accepts no peer until a connection ends; peers wait in the queue of the operating
    system.
    """
    REFUSE = "refuse"
    """The server accepts and closes at once."""


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """When the operating system probes a silent peer: after ``idle`` seconds, then every
    ``interval`` seconds. After ``count`` unanswered probes it gives up.
    """

    idle: int = 60
    interval: int = 10
    count: int = 6

    def __post_init__(self) -> None:
        for name, most in _KEEP_ALIVE.items():
            check_number(
                f"TCP.KeepAlive({name})", getattr(self, name), least=1, whole=True, most=most
            )


class TCP:
    """The messages and options of TCP and Unix sockets."""

    Close: TypeAlias = TCPClose
    Connected: TypeAlias = TCPConnected
    Data: TypeAlias = TCPData
    Disconnected: TypeAlias = TCPDisconnected
    Frames: TypeAlias = TCPFrames
    KeepAlive: TypeAlias = KeepAlive
    ProtocolError: TypeAlias = TCPProtocolError
    Secured: TypeAlias = TCPSecured
    Send: TypeAlias = TCPSend
    Set: TypeAlias = TCPSet
    StartTLS: TypeAlias = TCPStartTLS
    WhenFull: TypeAlias = WhenFull
    WhenSlow: TypeAlias = WhenSlow


show_public_names(__name__)
show_members(TCP)
