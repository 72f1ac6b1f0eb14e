"""`Response`: an answer to an HTTP request, with the messages of a streamed one; `HTTPError`: a
refusal of a request.
"""

import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Self, TypeAlias, cast

from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.ids import Ref
from ..._core.vocabulary.messages import MayBeLate, Request
from ..._core.vocabulary.options import check_flag, check_number
from ..._core.vocabulary.public_names import show_members, show_public_names
from ...meta.checks import check_bytes

__all__ = [
    "HOP_BY_HOP",
    "EndStream",
    "HTTPError",
    "Headers",
    "Response",
    "SentEvent",
    "WritePiece",
    "bare_response",
    "http_date",
    "response_head",
    "upgrade_response",
]

Headers = Mapping[str, str] | Iterable[tuple[str, str]]
"""Header fields: a mapping, or pairs of name and value where a name may come several times."""

_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", re.ASCII)
_VALUE: Final = re.compile(r"[\t -~\x80-\xff]*")
HOP_BY_HOP: Final = frozenset(
    (
        "connection",
        "content-length",
        "date",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
"""Fields that decide where a response ends: the server writes them itself."""
_STATUS_LINES: Final[dict[int, bytes]] = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
_TEXT: Final = "text/plain; charset=utf-8"
_WITHOUT_BODY: Final = (204, 304)


def status_line(status: int) -> bytes:
    """The first line of a response."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


@dataclass(frozen=True, slots=True)
class WritePiece(MayBeLate, Request[int]):
    """Write a piece of a streamed response. With ``call``, the answer is the number of bytes, when
    the operating system has taken them.
    """

    ref: Ref
    data: bytes

    def __post_init__(self) -> None:
        check_bytes("Response.Write(data)", self.data)


@dataclass(frozen=True, slots=True)
class EndStream(MayBeLate, Request[None]):
    """End a streamed response."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class SentEvent(MayBeLate, Request[int]):
    """Write a server-sent event to a response that ``Response.events()`` has begun."""

    ref: Ref
    data: str
    event: str = ""
    id: str = ""
    retry: int | None = None
    """Milliseconds after which the reader connects again once the stream has ended."""

    def __post_init__(self) -> None:
        for name in ("data", "event", "id"):
            if not isinstance(getattr(self, name), str):
                raise BadInputError(f"Response.Event({name})", getattr(self, name), "a str")
        for name in ("event", "id"):
            if not {*getattr(self, name)}.isdisjoint("\r\n\0"):
                raise BadInputError(
                    f"Response.Event({name})", getattr(self, name), "a text without CR, LF and NUL"
                )
        if self.retry is not None:
            check_number("Response.Event(retry)", self.retry, least=0, whole=True)

    def encode(self) -> bytes:
        """The event as the stream has it."""
        lines = []
        if self.event:
            lines.append(f"event: {self.event}\n")
        if self.id:
            lines.append(f"id: {self.id}\n")
        if self.retry is not None:
            lines.append(f"retry: {self.retry}\n")
        # A reader takes CR, LF and CRLF for the end of a line.
        text = self.data.replace("\r\n", "\n").replace("\r", "\n")
        lines += [f"data: {line}\n" for line in text.split("\n")]
        lines.append("\n")
        return "".join(lines).encode(errors="replace")


class Response:
    """An answer to an ``HTTPRequest``. It is checked when it is made, and may be sent many times.

    Args:
        status: 200 to 599.
        body: bytes, or a text, which is sent as UTF-8.
        headers: a mapping, or pairs of name and value. The server itself writes ``content-length``,
            ``transfer-encoding``, ``connection`` and ``date``. Without a ``content-type``, bytes
            are ``application/octet-stream``, so that no browser guesses.
        stream: the body follows as ``Response.Write`` messages, and ends with ``Response.End``.
        length: the bytes of a streamed body, if they are known; otherwise it is sent in chunks.

    Raises:
        BadInputError: a value has a wrong type, or could change where the response ends.
    """

    End: TypeAlias = EndStream
    Event: TypeAlias = SentEvent
    Write: TypeAlias = WritePiece

    __slots__ = ("body", "head", "headers", "is_events", "length", "status", "stream")

    def __init__(
        self,
        status: int = 200,
        body: bytes | str = b"",
        headers: Headers = (),
        *,
        stream: bool = False,
        length: int | None = None,
    ) -> None:
        self.status: int = status
        self.stream: bool = stream
        self.length: int | None = length
        self.is_events: bool = False
        head = _STATUS_LINES.get(status)
        if head is None:
            check_number("Response(status)", status, least=200, whole=True, most=599)
            head = status_line(status)
        elif status < 200:
            raise BadInputError("Response(status)", status, "a status from 200 to 599")
        kind = b""
        if body:
            if type(body) is str:
                body, kind = body.encode(), b"content-type: text/plain; charset=utf-8\r\n"
            elif isinstance(body, bytes):
                kind = b"content-type: application/octet-stream\r\n"
            else:
                raise BadInputError("Response(body)", body, "bytes or a str")
            if status in _WITHOUT_BODY or stream:
                raise BadInputError(
                    "Response(body)", body, f"no body with {'stream' if stream else status}"
                )
        elif not isinstance(body, bytes | str):
            raise BadInputError("Response(body)", body, "bytes or a str")
        self.body: bytes = body or b""
        self.headers: tuple[tuple[str, str], ...] = ()
        if headers:
            self.headers, lines, has_type = _checked(headers)
            head = head + lines if has_type else head + lines + kind
        elif kind:
            head += kind
        self.head: bytes = head
        """The status line and the fields that were given, as they are written."""
        if stream is not False or length is not None:
            self._check_stream()

    def _check_stream(self) -> None:
        check_flag("Response(stream)", self.stream)
        if self.stream and self.status in _WITHOUT_BODY:
            raise BadInputError("Response(stream)", True, f"no body with status {self.status}")
        if self.length is not None:
            check_number("Response(length)", self.length, least=0, whole=True)
            if not self.stream:
                raise BadInputError("Response(length)", self.length, "a length with stream=True")

    def with_lines(self, lines: bytes) -> Self:
        """Add fields that the server writes itself. For the server."""
        self.head += lines
        return self

    def with_body(self, body: bytes) -> Self:
        """The same response with another body; its fields are not checked again. For the server,
        which names the type of the body among the fields.
        """
        # By hand: copy() takes longer than the system calls that read a small file.
        made = object.__new__(type(self))
        made.status, made.head, made.headers = self.status, self.head, self.headers
        made.stream, made.length, made.is_events = self.stream, self.length, self.is_events
        made.body = body
        return made

    @classmethod
    def json(cls, value: object, status: int = 200, headers: Headers = ()) -> Self:
        """A response with a value as JSON.

        Raises:
            BadInputError: the value has no JSON form.
        """
        try:
            body = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError) as error:
            raise BadInputError(
                "Response.json(value)", value, f"a value that JSON can hold: {error}"
            ) from error
        return cls(status, body.encode(), _with_type(headers, "application/json"))

    @classmethod
    def html(cls, text: str, status: int = 200, headers: Headers = ()) -> Self:
        """A response with HTML."""
        return cls(status, text.encode(), _with_type(headers, "text/html; charset=utf-8"))

    @classmethod
    def redirect(cls, location: str, status: int = 303) -> Self:
        """A response that leads to another URL. Percent-encode characters outside of ASCII first.

        Raises:
            BadInputError: the status is not 301, 302, 303, 307 or 308.
        """
        if status not in (301, 302, 303, 307, 308):
            raise BadInputError("Response.redirect(status)", status, "301, 302, 303, 307 or 308")
        return cls(status, b"", [("location", location)])

    @classmethod
    def events(cls, headers: Headers = ()) -> Self:
        """The beginning of a stream of server-sent events; ``Response.Event`` messages follow."""
        given = [*_pairs(headers)]
        if not any(name.lower() == "cache-control" for name, _ in given):
            given.append(("cache-control", "no-store"))
        made = cls(200, b"", _with_type(given, "text/event-stream"), stream=True)
        made.is_events = True
        return made

    def __repr__(self) -> str:
        body = "a stream" if self.stream else f"{len(self.body)} bytes"
        return f"<Response {self.status}, {body}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Response):
            return NotImplemented
        return (self.head, self.body, self.stream, self.length) == (
            other.head,
            other.body,
            other.stream,
            other.length,
        )

    def __hash__(self) -> int:
        return hash((self.head, self.body))


class HTTPError(Exception):
    """A refusal of a request: ``raise Reject(HTTPError(404))`` answers with that status, and the
    actor lives.

    Args:
        status: 400 to 599.
        text: the body, for people; by default the name of the status. Put nothing secret into it.
        headers: further fields of the response.

    Raises:
        BadInputError: a value is wrong.
    """

    def __init__(self, status: int, text: str = "", headers: Headers = ()) -> None:
        check_number("HTTPError(status)", status, least=400, whole=True, most=599)
        self.status = status
        self.text = text
        self.response: Response = Response(status, f"{text or phrase(status)}\n", headers)
        super().__init__(f"{status} {text or phrase(status)}")


def phrase(status: int) -> str:
    """The name of a status."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return str(status)


def bare_response(status: int, headers: Headers = ()) -> Response:
    """A response of the server itself: its body is the name of the status."""
    return Response(status, f"{phrase(status)}\n", headers)


def upgrade_response(detail: str) -> Response:
    """The response to a plain request for a WebSocket."""
    made = Response(426, f"{detail}\n", [("sec-websocket-version", "13")])
    return made.with_lines(b"upgrade: websocket\r\nconnection: upgrade\r\n")


def _pairs(headers: Headers) -> Iterable[tuple[str, str]]:
    if isinstance(headers, Mapping):
        return cast("Mapping[str, str]", headers).items()
    return headers


def _with_type(headers: Headers, kind: str) -> list[tuple[str, str]]:
    given = [*_pairs(headers)]
    if any(isinstance(name, str) and name.lower() == "content-type" for name, _ in given):
        return given
    return [*given, ("content-type", kind)]


def _checked(headers: Headers) -> tuple[tuple[tuple[str, str], ...], bytes, bool]:
    """Header fields, as lines; and whether the content type is among them."""
    fields: list[tuple[str, str]] = []
    has_type = False
    try:
        for name, value in _pairs(headers):
            if not isinstance(name, str) or _NAME.fullmatch(name) is None:
                raise BadInputError("Response(headers)", name, "the name of a field, a token")
            key = name.lower()
            if key in HOP_BY_HOP:
                raise BadInputError(
                    "Response(headers)", name, "other fields; the server writes this field itself"
                )
            if not isinstance(value, str) or _VALUE.fullmatch(value) is None:
                raise BadInputError(
                    f"Response(headers[{name!r}])",
                    value,
                    "a text of Latin-1 without control characters such as CR, LF and NUL",
                )
            has_type = has_type or key == "content-type"
            fields.append((key, value))
    except (TypeError, ValueError) as error:
        if isinstance(error, BadInputError):
            raise
        raise BadInputError(
            "Response(headers)", headers, "a mapping, or pairs of name and value"
        ) from error
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields).encode("latin-1")
    return tuple(fields), lines, has_type


_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = (
    *("Jan", "Feb", "Mar", "Apr", "May", "Jun"),
    *("Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
)
_date: tuple[int, bytes] = (-1, b"")


def http_date(seconds: float) -> str:
    """A time as HTTP writes it, independent of the locale."""
    when = time.gmtime(seconds)
    return (
        f"{_DAYS[when.tm_wday]}, {when.tm_mday:02} {_MONTHS[when.tm_mon - 1]} {when.tm_year:04} "
        f"{when.tm_hour:02}:{when.tm_min:02}:{when.tm_sec:02} GMT"
    )


def _date_line(now: int) -> bytes:
    """The field ``date``; made once a second."""
    global _date  # noqa: PLW0603 - remembered for all servers of the program
    line = f"date: {http_date(now)}\r\n".encode()
    _date = now, line
    return line


def response_head(response: Response, closes: bool, is_http_10: bool) -> bytes:
    """The head of a response, as it is written. ``closes`` says that the connection ends after it,
    and ``is_http_10`` that its peer knows no chunks.
    """
    lines = (
        b"connection: close\r\n" if closes else b"connection: keep-alive\r\n" if is_http_10 else b""
    )
    length = response.length if response.stream else len(response.body)
    if length is None:
        if not is_http_10:
            lines += b"transfer-encoding: chunked\r\n"
    elif response.status not in _WITHOUT_BODY:
        lines += b"content-length: %d\r\n" % length
    second, date = _date
    if (now := int(time.time())) != second:
        date = _date_line(now)
    return b"%b%b%b\r\n" % (response.head, date, lines)


show_public_names(__name__)
show_members(Response)
