"""`HTTPRequest`, with the messages about its body and its peer."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import unquote_to_bytes

from ..._core.vocabulary.errors import Reject
from ..._core.vocabulary.ids import Alias, Ref
from ..._core.vocabulary.messages import MayBeLate, Request
from ..._core.vocabulary.options import check_number
from ..._core.vocabulary.public_names import show_members, show_public_names
from ...meta.sockets.messages import Address, Cause
from ..parsing.http1 import Head, RequestError
from .responses import HTTPError, Response

__all__ = [
    "HTTPGone",
    "HTTPRequest",
    "ReadBody",
    "read_path",
]

_MAX_PAIRS: Final = 1_000
"""Pairs of a query or a form; and percent signs in it that begin no escape."""
_LARGEST_PIECE: Final = 64 * 1024
_NO_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
"""A percent sign without the two digits of an escape."""


def read_path(path: str) -> tuple[str, ...]:
    """The decoded parts of a path.

    Raises:
        RequestError: an escape is wrong, or the path is not UTF-8 or holds NUL.
    """
    path = path.partition("?")[0]
    if path == "/" or path == "*":
        return ()
    parts = path[1:].split("/")
    if "%" not in path:
        return tuple(parts)
    decoded = []
    for part in parts:
        raw = unquote_to_bytes(part)
        # An escape that is none stays as it is: then there are more percent signs than escapes.
        if part.count("%") * 2 != len(part) - len(raw) or b"\0" in raw:
            raise RequestError(400, "a wrong escape in the path")
        try:
            decoded.append(raw.decode())
        except UnicodeDecodeError:
            raise RequestError(400, "the path is not UTF-8") from None
    return tuple(decoded)


@dataclass(frozen=True, slots=True)
class ReadBody(Request[bytes]):
    """Read the next piece of a body, on a route with ``body=Route.Body.STREAM``: ``await
    self.call(request.connection, HTTPRequest.ReadBody(request.ref))``. Empty bytes are the end.

    The answer is an error if the peer has left, or has not sent the body in time.
    """

    ref: Ref
    most: int = _LARGEST_PIECE
    """The largest piece to return."""

    def __post_init__(self) -> None:
        check_number("HTTPRequest.ReadBody(most)", self.most, least=1, whole=True)


@dataclass(frozen=True, slots=True)
class HTTPGone(MayBeLate):
    """The peer of a streamed response has left before its ``Response.End``."""

    connection: Alias
    ref: Ref
    cause: Cause


class HTTPRequest(Request[Response]):
    """A request of a peer. It reaches an actor as a call, which the actor answers with a
    ``Response``.

    Match it by its method and the decoded parts of its path::

        match request:
            case HTTPRequest("GET", ("orders", number)):
                ...

    Do not change it.
    """

    Gone: TypeAlias = HTTPGone
    ReadBody: TypeAlias = ReadBody

    __slots__ = (
        "_query",
        "body",
        "client",
        "connection",
        "exchange",
        "head",
        "host",
        "method",
        "path",
        "peer",
        "prefix",
        "scheme",
    )
    __match_args__ = ("method", "path")

    def __init__(
        self,
        method: str,
        path: tuple[str, ...],
        head: Head,
        body: bytes = b"",
        *,
        connection: Alias,
        peer: Address = "",
        scheme: str = "http",
        client: str = "",
        host: str = "",
        prefix: int = 0,
    ) -> None:
        self.method: str = method
        """The method, such as ``"GET"``; it may be any token."""
        self.path: tuple[str, ...] = path
        """The decoded parts of the path: ``("orders", "7")`` for ``/orders/7``, ``()`` for ``/``,
        and ``("orders", "")`` for ``/orders/``.
        """
        self.head: Head = head
        self.body: bytes = body
        """The body; empty on a route with ``body=Route.Body.STREAM``, where
        ``HTTPRequest.ReadBody`` reads it."""
        self.connection: Alias = connection
        """The connection of the peer: send ``Response.Write``, ``Response.End`` and
        ``Response.Event`` there."""
        self.peer: Address = peer
        """The other end of the connection; a proxy, if there is one in front."""
        self.client: str = client
        """The address of the client: that of the peer, or what a trusted proxy says."""
        self.scheme: str = scheme
        """``"http"`` or ``"https"``, perhaps as a trusted proxy says it."""
        self.host: str = host
        """The host that the client asks for, perhaps as a trusted proxy says it."""
        self.prefix: int = prefix
        """How many parts of the path belong to the route."""
        self.exchange: Any = None
        self._query: dict[str, str] | None = None

    def __repr__(self) -> str:
        # Without query and headers: they may hold secrets.
        return f"<HTTPRequest {self.method} /{'/'.join(self.path)}>"

    def begin(self, exchange: object, prefix: int) -> None:
        """Note the exchange of this request. For the server."""
        self.exchange = exchange
        self.prefix = prefix

    def take_body(self, body: bytes) -> None:
        """Note the whole body. For the server."""
        self.body = body
        if not body:
            self.head = self.head.without_body()

    @property
    def ref(self) -> Ref:
        """The identity of this exchange, for ``Response.Write``, ``Response.End``,
        ``Response.Event`` and ``HTTPRequest.ReadBody``.
        """
        ref: Ref = self.exchange.ref
        return ref

    @property
    def gone(self) -> bool:
        """Whether nobody waits for the answer any more: the peer has left, the time is over, or the
        exchange has ended.
        """
        return self.exchange is None or bool(self.exchange.is_over)

    @property
    def target(self) -> str:
        """The target as the peer wrote it."""
        return self.head.target

    @property
    def headers(self) -> Mapping[str, str]:
        """The header fields, with names in lower case; values of a repeated field are joined with a
        comma.
        """
        return self.head.headers

    @property
    def version(self) -> str:
        """``"1.1"`` or ``"1.0"``."""
        return "1.0" if self.head.is_http_10 else "1.1"

    @property
    def query_string(self) -> str:
        """The query as the peer wrote it, without the question mark."""
        return self.head.path.partition("?")[2]

    @property
    def query(self) -> Mapping[str, str]:
        """The decoded query. Of a repeated name, the last value counts; see :meth:`query_pairs`.

        Raises:
            Reject: the query is wrong; the peer gets status 400.
        """
        if self._query is None:
            self._query = dict(self.query_pairs())
        return self._query

    def query_pairs(self) -> list[tuple[str, str]]:
        """All pairs of the query, in their order.

        Raises:
            Reject: the query is wrong; the peer gets status 400.
        """
        return _read_pairs(self.query_string, "the query")

    @property
    def cookies(self) -> dict[str, str]:
        """The cookies by name; the first of a name counts."""
        found: dict[str, str] = {}
        for pair in self.headers.get("cookie", "").split(";"):
            name, equals, value = pair.partition("=")
            if equals:
                found.setdefault(name.strip(" \t"), value.strip(' \t"'))
        return found

    @property
    def last_event_id(self) -> str:
        """The identifier of the last event that a reconnecting reader of server-sent events got."""
        return self.headers.get("last-event-id", "").encode("latin-1").decode(errors="replace")

    @property
    def content_type(self) -> str:
        """The type of the body in lower case, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip(" \t").lower()

    def text(self) -> str:
        """The body as UTF-8.

        Raises:
            Reject: it is not UTF-8; the peer gets status 400.
        """
        try:
            return self.body.decode()
        except UnicodeDecodeError:
            raise Reject(HTTPError(400, "the body is not UTF-8")) from None

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            Reject: it is not JSON; the peer gets status 400.
        """
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise Reject(HTTPError(400, "the body is not JSON")) from None

    def form(self) -> dict[str, str]:
        """The body as a form of the type ``application/x-www-form-urlencoded``.

        Raises:
            Reject: it is none; the peer gets status 400, or 415 for another type.
        """
        if self.content_type != "application/x-www-form-urlencoded":
            raise Reject(HTTPError(415))
        return dict(_read_pairs(self.text(), "the form"))


def _read_pairs(text: str, what: str) -> list[tuple[str, str]]:
    if not text:
        return []
    try:
        data, count = _NO_ESCAPE.subn(b"%25", text.encode(), _MAX_PAIRS)
        if max(count, text.count("&")) >= _MAX_PAIRS:
            raise ValueError
        pairs = (pair.partition(b"=") for pair in data.split(b"&") if pair)
        return [(_unescaped(name), _unescaped(value)) for name, _, value in pairs]
    except ValueError:
        raise Reject(HTTPError(400, f"{what} cannot be read")) from None


def _unescaped(part: bytes) -> str:
    """A name or a value, decoded. `urllib.parse` takes some steps of Python for each escape: for a
    form of a mebibyte, it held the loop for up to 0.6 s.
    """
    part = part.replace(b"+", b" ")
    if b"%" in part:
        escaped = part.replace(b"\\", rb"\x5c").replace(b"%", rb"\x")
        part = escaped.decode("unicode_escape").encode("latin-1")
    return part.decode()


show_public_names(__name__)
show_members(HTTPRequest)
