"""Fuzzing targets for the bytes of the clients and servers of the web."""

import re
from types import SimpleNamespace
from typing import Any, Final

from hypothesis import strategies as st

from benchmarks.budgets import Budget
from benchmarks.http_judges import cut, judge
from benchmarks.targets.target import Target, in_pieces, spliced
from ergo_py import Alias
from ergo_py.meta import Endpoint
from ergo_py.web.messages.requests import HTTPRequest, read_path
from ergo_py.web.mounts.asgi import ASGIApplication
from ergo_py.web.mounts.file_conditions import (
    NO_SUCH_PART,
    asks_for_all,
    choose_part,
    refusal,
    takes_gzip,
)
from ergo_py.web.parsing.deflate import Deflate
from ergo_py.web.parsing.forwarded import FAMILIES, read_hops
from ergo_py.web.parsing.frames import WebSocketParser, encode_frame
from ergo_py.web.parsing.handshake import HandshakeError, check_upgrade, key_answer, read_answer
from ergo_py.web.parsing.http1 import RequestError, RequestParser, is_host

__all__ = ["TARGETS"]

_LONGEST: Final = 1 << 18
"""Bytes of the longest message of a WebSocket."""


def http_request(data: bytes) -> str:
    """The bytes of a client. The first byte says how the rest is cut into pieces; h11 and llhttp
    judge what our parser accepts.
    """
    stream, pieces = in_pieces(data)
    found, error = cut(pieces)
    whole, whole_error = cut([stream])
    assert found == whole, "requests depend on how the stream comes"
    if whole_error is not None:
        assert error is not None, "errors depend on how the stream comes"
    judge(stream)
    end = "more" if whole_error is None else f"{whole_error.status} {whole_error.detail[:40]}"
    end = re.sub(r"b'.*", "x", end)
    return f"{min(len(found), 3)} requests, {end}"


def _read_frames(pieces: list[bytes], is_masked: bool) -> tuple[list[Any], str]:
    """The messages of a peer that may compress, each as its hash, since a stream of small packed
    messages unpacks to a thousand times its size; and why there are no more. No step makes more
    than a step may.
    """
    parser = WebSocketParser(is_masked=is_masked, max_message=_LONGEST, deflate=Deflate())
    found: list[Any] = []
    most = 2 + len(pieces) + sum(map(len, pieces)) * 20  # once: a long stream may come byte by byte
    for piece in pieces:
        events, error = parser.feed(piece)
        steps = 1
        while True:
            assert len(events) <= 512, "a step of too many frames"
            assert sum(len(event[1]) for event in events) <= _LONGEST + (1 << 18), "a long step"
            found += [(kind, hash(content), code) for kind, content, code in events]
            if error is not None:
                return found, f"{error.code} {re.sub(r'[0-9]+', 'n', error.detail)[:40]}"
            if not parser.has_more:
                break
            events, error = parser.feed(b"")
            steps += 1
        assert steps <= most, "too many steps"
    return found, "more"


def websocket_frames(data: bytes) -> str:
    """The bytes of a WebSocket peer. The first byte says how the rest is cut into pieces, and
    whether the peer masks.
    """
    is_masked = data[:1] < b"\x80"
    stream, pieces = in_pieces(data)
    found, end = _read_frames(pieces, is_masked)
    whole, whole_end = _read_frames([stream], is_masked)
    assert found == whole, "messages depend on how the stream comes"
    if whole_end != "more":
        assert end == whole_end, "errors depend on how the stream comes"
    kinds = "".join(sorted({str(event[0]) for event in whole}))
    return f"{min(len(whole), 3)} of {kinds}, {whole_end}"


def forwarded_fields(data: bytes) -> str:
    """The words of a client and of proxies about the client: lines of fields."""
    names = ("forwarded", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host")
    headers: dict[str, str] = dict(zip(names, data.decode("latin-1").split("\n"), strict=False))
    outcome = []
    for family in FAMILIES:
        hops = list(read_hops(headers, family))
        assert len(hops) <= 64, "hops without an end"
        for hop in hops:
            assert "," not in "".join(hop), "a word of two values"
            assert hop.scheme in ("", "http", "https")
            assert not hop.host or is_host(hop.host)
        proxied = {name: f"{value}, 192.0.2.1" for name, value in headers.items()}
        proxied["forwarded"] = f"{headers.get('forwarded', '')}, for=192.0.2.1"
        proxied.setdefault("x-forwarded-for", "192.0.2.1")
        assert next(read_hops(proxied, family)).client == "192.0.2.1", "a client hides a proxy"
        words = {name for hop in hops for name, word in hop._asdict().items() if word}
        outcome.append(f"{min(len(hops), 3)} {'+'.join(sorted(words))}")
    return ", ".join(outcome)


_KEY: Final = "dGhlIHNhbXBsZSBub25jZQ=="


def websocket_handshake(data: bytes) -> str:
    """The answer of a server, and the request of a client."""
    try:
        read_answer(data, _KEY)
    except HandshakeError as error:
        outcome = re.sub(r"[0-9]+", "n", error.detail)
    else:
        outcome = "a WebSocket"
    parser = RequestParser()
    parser.feed(data)
    try:
        head = parser.next_head()
        if head is not None:
            check_upgrade(head)
            return "a request for a WebSocket"
    except RequestError:
        return outcome
    except HandshakeError as error:
        return f"{error.status} {error.detail}"
    return outcome


_CONDITION_FIELDS: Final = (
    *("range", "if-range", "if-match", "if-none-match"),
    *("if-modified-since", "if-unmodified-since", "accept-encoding"),
)
_TAG: Final = '"5f-1"'
_MODIFIED: Final = "Sun, 06 Nov 1994 08:49:37 GMT"
_MOMENT: Final = 784111777
_SIZE: Final = 1000


def file_conditions(data: bytes) -> str:
    """The fields of a client that asks for a part of a file, or for a file that has changed: a line
    for each.
    """
    lines = data.decode("latin-1").split("\n")
    headers = {
        name: line for name, line in zip(_CONDITION_FIELDS, lines, strict=False) if line != "-"
    }
    status = refusal(headers, _TAG, _MODIFIED, _MOMENT)
    assert status in (0, 304, 412)
    part = choose_part(headers, _TAG, _MOMENT, _SIZE)
    if part is None or part == NO_SUCH_PART:
        named = "all" if part is None else "none"
    else:
        begin, end = part
        assert 0 <= begin < end <= _SIZE, "a part outside of the file"
        named = "a part"
    assert choose_part(headers, _TAG, _MOMENT, 0) is None, "a part of an empty file"
    if asks_for_all(headers):
        assert status == 0
        assert part is None
    packed = takes_gzip(headers.get("accept-encoding", ""))
    return f"{status}, {named}, packed {packed}"


_SITE: Any = SimpleNamespace(
    applications=SimpleNamespace(local=Endpoint("127.0.0.1", 80)), report=None
)


async def _no_application(scope: Any, receive: Any, send: Any) -> None:
    """Is never called."""


_MOUNTED = ASGIApplication(_no_application, "/api", _SITE)


def asgi_scope(data: bytes) -> str:
    """The bytes of a client of a mounted application: any head that is accepted has a scope."""
    parser = RequestParser()
    parser.feed(data)
    try:
        head = parser.next_head()
        if head is None:
            return "more"
        path = read_path(head.path)
    except RequestError as error:
        return re.sub(r"b'.*|[0-9]+", "n", error.detail)[:40]
    request = HTTPRequest(head.method, path, head, connection=Alias("fuzz", 1, 1), host=head.host)
    scope = _MOUNTED._scope(request, "http")
    assert scope["path"].startswith("/")
    assert scope["raw_path"].decode("ascii").isprintable()
    assert all(name.islower() or not name.isalpha() for name, _ in scope["headers"])
    assert b"?" not in scope["raw_path"]
    return f"a scope, {min(len(path), 3)} parts, query {bool(scope['query_string'])}"


_REQUEST_LINES = (
    b"GET / HTTP/1.1",
    b"POST /a?b=c HTTP/1.1",
    b"HEAD /%41 HTTP/1.0",
    b"OPTIONS * HTTP/1.1",
    b"PRI * HTTP/2.0",
    b"CONNECT a:1 HTTP/1.1",
    b"get http://a/b HTTP/1.1",
    b"GET /",
)
_FIELD_LINES = (
    b"Host: a",
    b"host:b:80",
    b"Content-Length: 5",
    b"Content-Length: 05",
    b"content-length: +5",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: Chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Connection: close, x",
    b"Connection: upgrade\r\nUpgrade: websocket",
    b"Expect: 100-continue",
    b"Cookie: a=b",
    b"X-\xff: \xff",
    b"X: \xff\t ",
    b" folded",
    b"Name : value",
    b"Empty:",
)
_BODIES = (
    b"",
    b"hello",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"5;a=b;c\r\nhello\r\n00\r\nX: y\r\n\r\n",
    b'5;a="b c"\r\nhello\r\n0\r\n\r\n',
    b"A\r\n0123456789\r\n1\r\nx\r\n0\r\n\r\n",
    b"5\nhello\n0\n\n",
    b"5\r\nhello0\r\n\r\n",
    b"0\r\n\n",
    b"-1\r\n",
    b"5 \r\nhello\r\n0\r\nContent-Length: 3\r\n\r\n",
)
_NEWLINES = st.sampled_from((b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"\r\n\r\n"))
_ONE_REQUEST = st.builds(
    lambda line, fields, newline, body: (
        line + newline + b"".join(field + newline for field in fields) + newline + body
    ),
    st.sampled_from(_REQUEST_LINES),
    st.lists(st.sampled_from(_FIELD_LINES), max_size=4).map(lambda some: [b"Host: a", *some])
    | st.lists(st.sampled_from(_FIELD_LINES), max_size=4),
    _NEWLINES,
    st.sampled_from(_BODIES),
)
_REQUESTS = st.builds(
    lambda first, some, at, new: spliced(bytes([first]) + b"".join(some), at, 1 if new else 0, new),
    st.integers(0, 255),
    st.lists(_ONE_REQUEST, min_size=1, max_size=3),
    st.integers(1, 400),
    st.sampled_from((b"", b"", b"\x00", b"\r", b"\n", b" ", b"\t", b":", b"\r\n", b"\x80", b"0")),
)

_MASK = b"\x01\x02\x03\x04"
_PAYLOADS = (b"", b"x", b"\xc3\xa4", b"\xff", b"\x03\xe8bye", bytes(200), b"ab" * 100)
_FRAMES = st.builds(
    lambda opcode, payload, is_packed, is_last, is_masked: _frame(
        opcode, payload, is_packed=is_packed, is_last=is_last, key=_MASK if is_masked else None
    ),
    st.sampled_from((0, 1, 2, 8, 9, 10, 3)),
    st.sampled_from((*_PAYLOADS, bytes(_LONGEST), bytes(_LONGEST + 1))),
    st.booleans(),
    st.sampled_from((True, True, False)),
    st.sampled_from((True, True, True, False)),
)


def _frame(
    opcode: int, payload: bytes, *, is_packed: bool, is_last: bool, key: bytes | None
) -> bytes:
    payload = Deflate().compress(payload) if is_packed else payload[:300]
    whole = encode_frame(opcode, payload, key, compressed=is_packed)
    return bytes([whole[0] if is_last else whole[0] & 0x7F]) + whole[1:]


_FRAME_STREAMS = st.builds(
    lambda first, some, at, new: spliced(bytes([first]) + b"".join(some), at, 1 if new else 0, new),
    st.integers(0, 255),
    st.lists(_FRAMES, min_size=1, max_size=5),
    st.integers(1, 400),
    st.sampled_from((b"", b"", b"", b"\x00", b"\xff", b"\x80", b"\x7f")),
)
_FORWARDED_WORDS = (
    *(b"for=1.2.3.4", b'for="[::1]:5"', b"proto=https", b"host=a:80", b"For=_x;Proto=HTTP"),
    *(b"1.2.3.4:5", b"[::1]", b"::1", b"unknown", b"https", b"a.example", b'"', b";", b"=", b"%"),
)
_FORWARDED_FIELDS = st.lists(
    st.lists(st.sampled_from(_FORWARDED_WORDS), max_size=4).map(b", ".join), max_size=4
).map(b"\n".join)

_HANDSHAKES = st.builds(
    lambda line, fields, at, new: spliced(
        b"\r\n".join((line, *fields)) + b"\r\n\r\n", at, 1 if new else 0, new
    ),
    st.sampled_from((b"HTTP/1.1 101 Switching", b"HTTP/1.1 404", b"GET / HTTP/1.1", b"POST / X")),
    st.lists(
        st.sampled_from(
            (
                b"Host: a",
                b"Upgrade: websocket",
                b"Connection: keep-alive, Upgrade",
                b"Sec-WebSocket-Accept: " + key_answer(_KEY).encode(),
                b"Sec-WebSocket-Key: " + _KEY.encode(),
                b"Sec-WebSocket-Version: 13",
            )
        ),
        max_size=7,
    ),
    st.integers(0, 300),
    st.sampled_from((b"", b"", b"", b"\x00", b"\r", b" ", b":", b"\xff")),
)
_DATES = (_MODIFIED, "Mon, 07 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "0 GMT")
_TAGS = (_TAG, f"W/{_TAG}", "*", f'"a", {_TAG}', '"a"', ",", "")
_CONDITIONS = st.tuples(
    st.sampled_from(("-", "bytes=0-", "bytes=-5", "bytes=5-9", "BYTES=9-5", "bytes=0-1,3-", "x"))
    | st.builds("bytes={}-{}".format, st.integers(0, 2000), st.integers(0, 10**20)),
    st.sampled_from(("-", *_TAGS, *_DATES)),
    st.sampled_from(("-", *_TAGS)),
    st.sampled_from(("-", *_TAGS)),
    st.sampled_from(("-", *_DATES)),
    st.sampled_from(("-", *_DATES)),
    st.sampled_from(("-", "gzip", "x-gzip;q=0", "*;q=0.5", "gzip;q=nan", "br, gzip ; q=1", ";")),
).map(lambda lines: "\n".join(lines).encode("latin-1"))

TARGETS: Final[dict[str, Target]] = {
    "http request": Target(http_request, _REQUESTS),
    # A packed byte stands for up to a thousand bytes, which are inflated and checked twice.
    "websocket frames": Target(
        websocket_frames, _FRAME_STREAMS, budget=Budget(seconds_per_byte=80e-6)
    ),
    "websocket handshake": Target(websocket_handshake, _HANDSHAKES),
    "forwarded fields": Target(forwarded_fields, _FORWARDED_FIELDS),
    "asgi scope": Target(asgi_scope, _ONE_REQUEST),
    "file conditions": Target(file_conditions, _CONDITIONS),
}
