"""Judges of the HTTP parser: h11 and httptools (llhttp) read the same bytes. A request that our
parser accepts must be a request for them, with the same content and the same last byte.
"""

from dataclasses import dataclass
from typing import Final

import h11
import httptools

from ergo_py.web.parsing.http1 import RequestError, RequestParser

__all__ = ["CutRequest", "cut", "judge", "llhttp_methods"]

_AFTER: Final = 200
"""Bytes after a request that a judge sees, too, and must not take for a part of it."""


@dataclass(frozen=True, slots=True)
class CutRequest:
    """A request that was cut out of a stream."""

    method: str
    target: str
    fields: tuple[tuple[str, str], ...]
    body: bytes
    begin: int
    end: int


def cut(pieces: list[bytes]) -> tuple[list[CutRequest], RequestError | None]:
    """The requests of a stream that comes in these pieces, and the error that ends it."""
    parser, found, fed, begin = RequestParser(), list[CutRequest](), 0, 0
    head, body = None, bytearray()
    for piece in pieces:
        parser.feed(piece)
        fed += len(piece)
        try:
            while True:
                if head is None:
                    head = parser.next_head()
                    if head is None:
                        break
                    body = bytearray()
                while not parser.body_is_done:
                    more = parser.take_body(1 << 30)
                    body += more
                    if not more and not parser.has_more:
                        break
                if not parser.body_is_done:
                    break
                end = fed - parser.unread
                found.append(
                    CutRequest(
                        head.method, head.target, tuple(head.fields), bytes(body), begin, end
                    )
                )
                head, begin = None, end
        except RequestError as error:
            return found, error
    return found, None


def judge(stream: bytes) -> list[CutRequest]:
    """Compare our requests of a stream with those of both judges.

    Raises:
        AssertionError: a judge refuses a request of ours, or sees another request in its bytes.
    """
    found, _ = cut([stream])
    for request in found:
        _ask_h11(request, stream[request.begin : request.end + _AFTER])
        if request.method in llhttp_methods:
            _ask_llhttp(request, stream[request.begin : request.end])
    return found


def _ask_h11(request: CutRequest, rest: bytes) -> None:
    skipped = 2 if rest.startswith(b"\r\n") else 0
    rest = rest[skipped:]  # h11 refuses an empty line before a request line
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    connection.receive_data(rest)
    event = connection.next_event()
    assert isinstance(event, h11.Request), f"h11 sees {event!r}"
    assert event.method.decode() == request.method
    assert event.target.decode() == request.target
    fields = [
        (name.decode("latin-1").lower(), value.decode("latin-1"))
        for name, value in event.headers
        if name.lower() != b"transfer-encoding"  # h11 writes its value in lower case
    ]
    ours = [field for field in request.fields if field[0] != "transfer-encoding"]
    assert fields == ours, f"h11 sees the fields {fields}"
    body = b""
    while isinstance(event := connection.next_event(), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage), f"h11 sees {event!r} after the body"
    assert body == request.body, "h11 sees another body"
    left = len(connection.trailing_data[0])
    assert len(rest) - left + skipped == request.end - request.begin, "h11 cuts at another byte"


class _Listener:
    def __init__(self) -> None:
        self.url = self.body = b""
        self.fields: list[tuple[str, str]] = []
        self.completed = 0

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.decode("latin-1").lower(), value.decode("latin-1").strip(" \t")))

    def on_message_complete(self) -> None:
        self.completed += 1


def _ask_llhttp(request: CutRequest, data: bytes) -> None:
    listener = _Listener()
    parser = httptools.HttpRequestParser(listener)
    try:
        parser.feed_data(data[:-1])
        assert listener.completed == 0, "llhttp sees an earlier end"
        parser.feed_data(data[-1:])
    except httptools.HttpParserUpgrade:  # the end of a request that asks for another protocol
        pass
    assert listener.completed == 1, "llhttp sees no end"
    assert parser.get_method().decode() == request.method
    assert listener.url.decode() == request.target, "llhttp sees another target"
    assert listener.fields[: len(request.fields)] == list(request.fields)
    assert listener.body == request.body, "llhttp sees another body"


llhttp_methods = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"))
"""llhttp knows a list of methods; HTTP allows any token."""
