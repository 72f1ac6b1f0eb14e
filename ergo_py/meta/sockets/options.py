"""`StreamOptions`: the options that TCP and Unix sockets, servers and clients have in common."""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from inspect import signature
from typing import Any, Final, TypedDict

from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.hints import did_you_mean
from ..._core.vocabulary.options import MetaKeywords, check_flag, check_number
from ..._core.vocabulary.public_names import show_public_names
from ..checks import check_bytes
from ..parsing.framing import Framing, Raw
from .messages import KeepAlive, WhenSlow
from .tls import TLSFiles

__all__ = [
    "LARGEST",
    "StreamKeywords",
    "StreamOptions",
    "read_stream_options",
]


_RAW: Final = Raw()
LARGEST: Final = 2**31 - 1
"""The largest size that the operating system accepts."""


class StreamKeywords(TypedDict, total=False):
    """The keywords of a connection, which a server takes for its connections."""

    framing: Framing
    batch: bool
    last_word: bool
    tls: ssl.SSLContext | TLSFiles | bool | None
    start_tls: bool
    server_name: str | None
    write_limit: int
    when_slow: WhenSlow
    idle_timeout: float | None
    frame_timeout: float | None
    handshake_timeout: float
    linger: float
    nodelay: bool
    keepalive: KeepAlive | bool
    receive_buffer: int | None
    send_buffer: int | None
    keepalive_bytes: bytes
    keepalive_period: float | None


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of a connection, with their defaults. Clients take them as keywords, and servers
    for their connections.
    """

    framing: Framing = _RAW
    """How the stream is cut into frames; raw by default."""
    batch: bool = False
    """Deliver all frames of a read as one ``TCP.Frames`` instead of a ``TCP.Data`` for each."""
    last_word: bool = False
    """After a protocol error, send ``TCP.ProtocolError`` to the receiver, and write its answer
    before the connection ends.
    """
    tls: ssl.SSLContext | TLSFiles | bool | None = None
    """None for no TLS. For a client, True trusts the authorities of the system."""
    start_tls: bool = False
    """Begin in clear; TLS begins with ``TCP.StartTLS``. Until then, the receiver gets a single
    message at a time.
    """
    server_name: str | None = None
    """The name that a TLS client asks for and verifies; by default the host it connects to."""
    write_limit: int = 1024 * 1024
    """Bytes that may wait for the peer before it counts as slow."""
    when_slow: WhenSlow = WhenSlow.WAIT
    """Whether further data for a slow peer waits, or its connection is dropped."""
    idle_timeout: float | None = None
    """End the connection after so many seconds without a byte in either direction; None for no
    limit.

    Bytes of a TLS record count when the record is complete.
    """
    frame_timeout: float | None = None
    """Seconds within which a frame, or a TLS record, must be complete once it has begun; None for
    no limit.
    """
    handshake_timeout: float = 10.0
    """Seconds within which the TLS handshake must be done."""
    linger: float = 5.0
    """How long, in seconds, closing waits for a peer that has stopped reading the last answers, or
    does not close its side.
    """
    nodelay: bool = True
    """Send small pieces at once (``TCP_NODELAY``). False lets the system wait a little, and put
    several into a packet.
    """
    keepalive: KeepAlive | bool = False
    """Let the operating system probe a silent peer; True for the system's own times. This adds
    nothing to the stream.
    """
    receive_buffer: int | None = None
    """Bytes of unread input that the operating system keeps; None for its default."""
    send_buffer: int | None = None
    """Bytes of unsent output that the operating system keeps; None for its default."""
    keepalive_bytes: bytes = b""
    """A heartbeat in the stream, written after ``keepalive_period`` seconds without other output,
    such as a line feed where the protocol allows it.
    """
    keepalive_period: float | None = None
    """The seconds for ``keepalive_bytes``; give both, or neither."""

    def __post_init__(self) -> None:
        if not isinstance(self.framing, Framing):
            raise BadInputError(
                "framing", self.framing, "a framing, such as Delimiter(b'\\n') or LengthHeader()"
            )
        if not isinstance(self.tls, ssl.SSLContext | TLSFiles | bool | None):
            raise BadInputError(
                "tls",
                self.tls,
                "an ssl.SSLContext, TLSFiles(certificate, key), or True for a client",
            )
        if not isinstance(self.when_slow, WhenSlow):
            raise BadInputError(
                "when_slow", self.when_slow, "TCP.WhenSlow.WAIT or TCP.WhenSlow.DROP"
            )
        if not isinstance(self.keepalive, KeepAlive | bool):
            raise BadInputError(
                "keepalive", self.keepalive, "True, False or TCP.KeepAlive(idle, interval, count)"
            )
        check_number("write_limit", self.write_limit, least=1, whole=True)
        for name in ("receive_buffer", "send_buffer"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), least=1, whole=True, most=LARGEST)
        for name in ("idle_timeout", "frame_timeout", "keepalive_period"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), least=0.001)
        check_number("handshake_timeout", self.handshake_timeout, least=0.001)
        check_number("linger", self.linger, least=0.0)
        check_flag("nodelay", self.nodelay)
        check_flag("batch", self.batch)
        check_flag("last_word", self.last_word)
        check_flag("start_tls", self.start_tls)
        if self.start_tls and (not self.tls or self.batch or isinstance(self.framing, Raw)):
            # Bytes that follow the request in the same message came in clear, but would look as if
            # they had come through TLS.
            raise BadInputError(
                "start_tls", True, "True together with tls and a framing, and without batch"
            )
        if self.batch and isinstance(self.framing, Raw):
            raise BadInputError(
                "batch",
                True,
                "True together with a framing; raw streams have no frames to put together",
            )
        check_bytes("keepalive_bytes", self.keepalive_bytes)
        if bool(self.keepalive_bytes) != (self.keepalive_period is not None):
            raise BadInputError(
                "keepalive_bytes", self.keepalive_bytes, "bytes together with a keepalive_period"
            )


def read_stream_options(
    what: str, keywords: Mapping[str, Any], made_by: Callable[..., object]
) -> StreamOptions:
    """Check the options of a connection. ``made_by`` is the function that got them, together with
    options of its own.

    Raises:
        BadInputError: an option is unknown, or has a wrong type or value.
    """
    known = {field.name for field in fields(StreamOptions)}
    unknown = sorted(keywords.keys() - known)
    if unknown:
        own = {
            parameter.name
            for parameter in signature(made_by).parameters.values()
            if parameter.kind is parameter.KEYWORD_ONLY
        }
        allowed = sorted(known | own)
        if unknown[0] in MetaKeywords.__annotations__:
            right = f"`spawn_meta({what}(…), {unknown[0]}=…)`: it is an option of spawn_meta"
        else:
            right = "one of " + ", ".join(allowed) + did_you_mean(unknown[0], allowed, "{}")
        raise BadInputError(f"{what}(…, {unknown[0]}=…)", keywords[unknown[0]], right)
    return StreamOptions(**keywords)


show_public_names(__name__)
