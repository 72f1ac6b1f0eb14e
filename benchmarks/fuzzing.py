"""``python -m benchmarks.fuzzing``: any input from outside is understood or refused, and nothing
else ever happens.

Each target takes bytes and returns the outcome in a word or two. Hypothesis makes the bytes up,
partly out of earlier findings. Inputs with a new outcome are kept in ``tests/corpus``, a small file
for each outcome, and the ordinary tests feed all of them to the targets again. An input that makes
a target fail is shrunk, shown, and tried first the next time; ``.fuzzed`` holds it.
"""

import argparse
import contextlib
import hashlib
import io
import json
import re
import shlex
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from benchmarks import network_targets
from benchmarks.http_judges import cut, judge
from ergo_py import Alias
from ergo_py.control.protocol import MAX_REQUEST, ControlError, answer, read_question, refusal
from ergo_py.control.request import Arguments
from ergo_py.meta import (
    Delimiter,
    Endpoint,
    FixedLength,
    Framing,
    FramingError,
    LengthHeader,
    Netstring,
    Raw,
    Varint,
)
from ergo_py.network.carriers.nats.wire import ServerParser, WireError
from ergo_py.shell.arguments import make_parser
from ergo_py.shell.exit_codes import Leave
from ergo_py.web.messages.requests import HTTPRequest, read_path
from ergo_py.web.mounts.asgi import ASGIApplication
from ergo_py.web.parsing.deflate import Deflate
from ergo_py.web.parsing.forwarded import FAMILIES, read_hops
from ergo_py.web.parsing.frames import WebSocketParser, encode_frame
from ergo_py.web.parsing.http1 import RequestError, RequestParser, is_host

__all__ = ["CORPUS", "TARGETS", "corpus_of", "main"]

_LONGEST = 1 << 18
"""Bytes of the longest message of a WebSocket."""
CORPUS = Path(__file__).resolve().parent.parent / "tests" / "corpus"

# -- framings --------------------------------------------------------------------------------------

FRAMINGS: dict[str, Framing] = {
    "raw": Raw(),
    "delimiter": Delimiter(b"\r\n", max_frame=20),
    "fixed length": FixedLength(3),
    "length header": LengthHeader(max_frame=40),
    "netstring": Netstring(max_frame=40),
    "varint": Varint(max_frame=300),
}


def _cut(framing: Framing, pieces: list[bytes]) -> tuple[list[bytes], str]:
    """The frames of a stream, and why there are no more."""
    decoder, frames = framing.decoder(), list[bytes]()
    for piece in pieces:
        try:
            frames += decoder.feed(piece)
        except FramingError as error:
            return [*frames, *error.frames], re.sub(r"\d+", "n", str(error))[:60]
    return frames, "more"


def framing_target(framing: Framing) -> Callable[[bytes], str]:
    def feed(data: bytes) -> str:
        """The first byte says how the rest is cut into pieces."""
        step, stream = (data[0] % 7 + 1 if data else 1), data[1:]
        pieces = [stream[begin : begin + step] for begin in range(0, len(stream), step)]
        frames, end = _cut(framing, pieces)
        whole, whole_end = _cut(framing, [stream])
        assert b"".join(frames) == b"".join(whole), "frames depend on how the stream comes"
        assert isinstance(framing, Raw) or frames == whole, "frames depend on how the stream comes"
        assert end == whole_end, "errors depend on how the stream comes"
        for frame in frames:
            try:
                again = framing.encode(frame)
            except FramingError:
                continue
            assert _cut(framing, [again])[0] == (
                [frame] if frame or not isinstance(framing, Raw) else []
            ), "no round trip"
        return f"{min(len(frames), 3)} frames, {end}"

    return feed


# -- the control socket ----------------------------------------------------------------------------

_NOBODY: Any = SimpleNamespace(
    name="fuzz@localhost",
    pid=SimpleNamespace(creation=1),
    _kernel=SimpleNamespace(router=SimpleNamespace(resolve=lambda _to: None)),
)


def control_line(line: bytes) -> str:
    """A line that a client says."""
    try:
        question = read_question(line[:MAX_REQUEST])
    except ControlError as error:
        told = json.loads(refusal(error.more.get("id"), error))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        assert told["ok"] is False
        return error.code
    echoed = json.loads(answer(question.id, question.arguments))
    assert echoed["ok"] is True
    return "read"


def control_arguments(data: bytes) -> str:
    """The arguments of a command from a client."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return "no JSON"
    if not isinstance(given, dict):
        return "no object"
    arguments = Arguments("fuzz", given)
    outcomes = []
    reads: tuple[Callable[[], object], ...] = (
        lambda: arguments.target(_NOBODY),
        lambda: arguments.number("number", 1.0, 0.0, 10.0),
        lambda: arguments.flag("flag"),
        lambda: arguments.text("text", "", ("", "a", "b")),
        lambda: arguments.words("words"),
        lambda: arguments.anything("anything"),
        arguments.done,
    )
    for read in reads:
        try:
            read()
        except ControlError as error:
            outcomes.append(error.code[0])
            json.loads(refusal(1, error))
        else:
            outcomes.append("-")
    return f"{outcomes.count('-')} taken, {''.join(sorted({*outcomes} - {'-'}))} refused"


# -- the command line ------------------------------------------------------------------------------


def command_line(data: bytes) -> str:
    """The words that a user types after ``ergo``."""
    try:
        words = shlex.split(data.decode(errors="replace"))
    except ValueError:
        return "no words"
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            chosen = make_parser().parse_args(words)
    except SystemExit as left:
        status = left.code
    except Leave:
        return "left"
    else:
        return f"does {chosen.command}"
    assert status in (0, 2), f"status {status}"
    return f"status {status}"


# -- HTTP ------------------------------------------------------------------------------------------


def http_request(data: bytes) -> str:
    """The bytes of a client. The first byte says how the rest is cut into pieces; h11 and llhttp
    judge what our parser accepts.
    """
    step, stream = (data[0] % 7 + 1 if data else 1), data[1:]
    pieces = [stream[begin : begin + step] for begin in range(0, len(stream), step)]
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
    """The messages of a peer that may compress, and why there are no more. No step makes more than
    a step may.
    """
    parser = WebSocketParser(is_masked=is_masked, max_message=_LONGEST, deflate=Deflate())
    found: list[Any] = []
    for piece in pieces:
        events, error = parser.feed(piece)
        steps = 1
        while True:
            assert len(events) <= 512, "a step of too many frames"
            assert sum(len(event[1]) for event in events) <= _LONGEST + (1 << 18), "a long step"
            found += events
            if error is not None:
                return found, f"{error.code} {re.sub(r'[0-9]+', 'n', error.detail)[:40]}"
            if not parser.has_more:
                break
            events, error = parser.feed(b"")
            steps += 1
        assert steps <= 2 + len(pieces) + sum(map(len, pieces)) * 20, "too many steps"
    return found, "more"


def websocket_frames(data: bytes) -> str:
    """The bytes of a WebSocket peer. The first byte says how the rest is cut into pieces, and
    whether the peer masks.
    """
    first, stream = (data[0] if data else 1), data[1:]
    step, is_masked = first % 7 + 1, first < 128
    pieces = [stream[begin : begin + step] for begin in range(0, len(stream), step)]
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


_SITE: Any = SimpleNamespace(local=Endpoint("127.0.0.1", 80), report=None)


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


# -- NATS ------------------------------------------------------------------------------------------


def _read(pieces: list[bytes]) -> tuple[list[object], str]:
    parser, found = ServerParser(), list[object]()
    for piece in pieces:
        try:
            for operation in parser.feed(piece):
                found.append(operation)
        except WireError as error:
            return found, re.sub(r"b['\"].*|\d+", "n", str(error))[:60]
    return found, "more"


def nats_server(data: bytes) -> str:
    """The bytes of a server. The first byte says how the rest is cut into pieces."""
    step, stream = (data[0] % 7 + 1 if data else 1), data[1:]
    pieces = [stream[begin : begin + step] for begin in range(0, len(stream), step)]
    found, end = _read(pieces)
    whole, whole_end = _read([stream])
    assert found == whole, "operations depend on how the stream comes"
    assert (end == "more") == (whole_end == "more"), "errors depend on how the stream comes"
    return f"{min(len(found), 3)} operations, {whole_end}"


TARGETS: dict[str, Callable[[bytes], str]] = {
    **{f"framing {name}": framing_target(framing) for name, framing in FRAMINGS.items()},
    "control line": control_line,
    "control arguments": control_arguments,
    "command line": command_line,
    "http request": http_request,
    "websocket frames": websocket_frames,
    "forwarded fields": forwarded_fields,
    "asgi scope": asgi_scope,
    "nats server": nats_server,
    **network_targets.TARGETS,
}

_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=10) | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)
_VOCABULARY = """
run shell nodes ps tree info inspect state top trace send kill exit --json --pid --name --limit
--sort --control --timeout -h --version demo 1 0 -1 99999 look,act x:y file.py -- '' "a
"""
_WORDS = st.lists(st.sampled_from(_VOCABULARY.split()), max_size=6).map(" ".join)

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
    lambda first, some, at, new: _spliced(
        bytes([first]) + b"".join(some), at, 1 if new else 0, new
    ),
    st.integers(0, 255),
    st.lists(_ONE_REQUEST, min_size=1, max_size=3),
    st.integers(1, 400),
    st.sampled_from((b"", b"", b"\x00", b"\r", b"\n", b" ", b"\t", b":", b"\r\n", b"\x80", b"0")),
)

_SERVER_OPERATIONS = (
    b"PING\r\n",
    b"+OK\r\n",
    b"pong\r\n",
    b"MSG a 1 5\r\nhello\r\n",
    b"MSG a.b 12 back 0\r\n\r\n",
    b"HMSG x.y 2 16 16\r\nNATS/1.0 503\r\n\r\n\r\n",
    b"HMSG x 2 r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
    b'INFO {"headers":true,"max_payload":10,"connect_urls":["a:1"]}\r\n',
    b"-ERR 'Permissions Violation for Publish'\r\n",
)
_SERVER_STREAMS = st.builds(
    lambda first, some, at, new: _spliced(
        bytes([first]) + b"".join(some), at, 1 if new else 0, new
    ),
    st.integers(0, 255),
    st.lists(st.sampled_from(_SERVER_OPERATIONS), min_size=1, max_size=4),
    st.integers(1, 200),
    st.sampled_from((b"", b"", b"\r", b"\n", b" ", b"9", b"-", b"x", b"\xff")),
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
    lambda first, some, at, new: _spliced(
        bytes([first]) + b"".join(some), at, 1 if new else 0, new
    ),
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

STRATEGIES: dict[str, st.SearchStrategy[bytes]] = {
    "websocket frames": _FRAME_STREAMS,
    "forwarded fields": _FORWARDED_FIELDS,
    "asgi scope": _ONE_REQUEST,
    "nats server": _SERVER_STREAMS,
    "http request": _REQUESTS,
    "control line": st.fixed_dictionaries(
        {},
        optional={
            "v": st.just(1) | _JSON,
            "id": _JSON,
            "do": st.text(max_size=5) | _JSON,
            "with": _JSON,
        },
    ).map(lambda said: json.dumps(said).encode()),
    "control arguments": st.fixed_dictionaries(
        {},
        optional={
            "to": st.integers() | st.text() | st.just("9" * 5000) | _JSON,
            "number": st.floats() | st.integers() | _JSON,
            "flag": st.booleans() | _JSON,
            "text": st.sampled_from(["a", "b", "c"]) | _JSON,
            "words": st.lists(st.text()) | _JSON,
            "anything": _JSON,
            "more": _JSON,
        },
    ).map(lambda said: json.dumps(said).encode()),
    "command line": _WORDS.map(str.encode),
    **network_targets.STRATEGIES,
}
"""Bytes that come further than any bytes would."""


def corpus_of(target: str) -> list[Path]:
    """Earlier findings."""
    return sorted((CORPUS / target.replace(" ", "-")).glob("*.bin"))


def made_up(target: str) -> st.SearchStrategy[bytes]:
    """Anything; nearly valid input; and earlier findings with a change in them."""
    ways: list[st.SearchStrategy[bytes]] = [st.binary(max_size=200)]
    if target in STRATEGIES:
        ways.append(STRATEGIES[target])
    if target.startswith("framing"):
        framing = FRAMINGS[target.removeprefix("framing ")]
        frame = st.binary(min_size=3, max_size=3).map(lambda one: one.replace(b"\r", b"x"))
        ways.append(
            st.tuples(
                st.binary(min_size=1, max_size=1),
                st.lists(frame.map(framing.encode), max_size=4),
                st.binary(max_size=8),
            ).map(lambda parts: parts[0] + b"".join(parts[1]) + parts[2])
        )
    if found := [path.read_bytes() for path in corpus_of(target)]:
        ways.append(
            st.builds(
                _spliced,
                st.sampled_from(found),
                st.integers(0, 200),
                st.integers(0, 4),
                st.binary(max_size=4),
            )
        )
    return st.one_of(ways)


def _spliced(whole: bytes, at: int, instead_of: int, new: bytes) -> bytes:
    at = min(at, len(whole))
    return whole[:at] + new + whole[at + instead_of :]


# -- the program -----------------------------------------------------------------------------------


def keep(target: str, outcome: str, data: bytes) -> bool:
    """Keep an input that led to a new outcome, or to a known outcome in fewer bytes. Returns
    whether it was kept.
    """
    words = re.sub(r"[^a-z0-9]+", "-", outcome.lower()).strip("-")[:40]
    name = f"{words}-{hashlib.sha1(outcome.encode()).hexdigest()[:8]}.bin"
    path = CORPUS / target.replace(" ", "-") / name
    if path.exists() and path.stat().st_size <= len(data):
        return False
    is_new = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return is_new


def fuzz(target: str, seconds: float) -> tuple[int, int, str]:
    """Try a single target for some time: how often, how much of it was new, and the failures."""
    function, tried, new = TARGETS[target], 0, 0
    deadline = time.monotonic() + seconds

    @settings(
        max_examples=500,
        deadline=None,
        database=DirectoryBasedExampleDatabase(CORPUS.parent.parent / ".fuzzed"),
        phases=[Phase.reuse, Phase.generate, Phase.shrink],
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.filter_too_much,
        ],
    )
    @given(made_up(target))
    def attempt(data: bytes) -> None:
        nonlocal tried, new
        tried += 1
        new += keep(target, function(data), data)

    while time.monotonic() < deadline:
        try:
            attempt()
        except Exception:
            return tried, new, traceback.format_exc()
    return tried, new, ""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzzing", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=3.0, help="how long, for all targets together (default: 3)"
    )
    parser.add_argument("--only", default="", help="only targets with this in their names")
    chosen = parser.parse_args(arguments)
    names = [name for name in TARGETS if chosen.only in name]
    problems = 0
    for name in names:
        tried, new, problem = fuzz(name, 60 * chosen.minutes / len(names))
        print(f"{name}: {tried} tried, {new} new outcomes, {len(corpus_of(name))} kept", flush=True)
        if problem:
            problems += 1
            print(problem, flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
