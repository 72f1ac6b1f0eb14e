"""Streams both ways: bodies that an actor pulls, streamed responses, server-sent events; and the
end of a server in order.
"""

import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import NO_REPLY, PID, Actor, Alias, BadInputError, Caller, LogRecord, NotAllowedError
from ergo_py.meta import TLSFiles
from ergo_py.testing import VirtualClock
from ergo_py.web import WS, Drain, HTTPRequest, Mount, Response, Route
from ergo_py.web.routes import Place
from tests.web.rig import Peer, get, post, serving, until

PLACE = Path(__file__).parent.parent / "meta" / "certificates"


class Streamer(Actor):
    """Begins a stream for each request, and keeps the messages."""

    def __init__(self, response: Response) -> None:
        self.response = response
        self.requests: list[HTTPRequest] = []
        self.messages: list[object] = []

    def handle_call(self, request: object, caller: Caller) -> object:
        if not isinstance(request, HTTPRequest):
            return self
        self.requests.append(request)
        return self.response

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        self.messages.append(message)
        if message == "crash":
            raise RuntimeError("crash")


async def spawn(served: Any, response: Response) -> Any:
    return await served.node.call(await served.node.spawn(Streamer, response, name="s"), None)


ROUTES = [Route("/", to="s")]

# -- responses -------------------------------------------------------------------------------------


async def test_a_streamed_response_comes_in_chunks_and_ends_with_end() -> None:
    async with serving(routes=ROUTES) as served:
        streamer = await spawn(served, Response(200, stream=True))
        peer = await served.dial()
        await peer.send(get() + get("/second"))
        await until(lambda: streamer.requests)
        (request,) = streamer.requests
        served.node.send(request.connection, Response.Write(request.ref, b"one "))
        served.node.send(request.connection, Response.Write(request.ref, b""))
        assert await served.node.call(request.connection, Response.Write(request.ref, b"two")) == 3
        served.node.send(request.connection, Response.End(request.ref))
        reply = await peer.reply()
        assert (reply.headers["transfer-encoding"], reply.body) == ("chunked", b"one two")
        await until(lambda: len(streamer.requests) == 2)
        second = streamer.requests[1]
        # Messages of the first exchange are late.
        served.node.send(request.connection, Response.Write(request.ref, b"late"))
        with pytest.raises(BrokenPipeError):
            await served.node.call(request.connection, Response.End(request.ref))
        await served.node.call(second.connection, Response.End(second.ref))
        assert (await peer.reply()).body == b""
        await peer.aclose()


async def test_a_streamed_response_with_a_length_has_no_chunks() -> None:
    async with serving(routes=ROUTES) as served:
        streamer = await spawn(served, Response(200, stream=True, length=5))
        peer = await served.dial()
        await peer.send(get())
        await until(lambda: streamer.requests)
        (request,) = streamer.requests
        served.node.send(request.connection, Response.Write(request.ref, b"he"))
        served.node.send(request.connection, Response.Write(request.ref, b"llo"))
        served.node.send(request.connection, Response.End(request.ref))
        reply = await peer.reply()
        assert (reply.headers["content-length"], reply.body) == ("5", b"hello")
        await peer.aclose()


async def test_a_peer_of_http_1_0_reads_until_the_end() -> None:
    async with serving(routes=ROUTES) as served:
        streamer = await spawn(served, Response(200, stream=True))
        peer = await served.dial()
        await peer.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        await until(lambda: streamer.requests)
        (request,) = streamer.requests
        served.node.send(request.connection, Response.Write(request.ref, b"hello"))
        served.node.send(request.connection, Response.End(request.ref))
        reply = await peer.reply()
        assert (reply.headers["connection"], reply.body) == ("close", b"hello")
        await peer.aclose()


async def _is_cut(peer: Peer) -> bool:
    try:
        rest = await peer.rest()
    except trio.BrokenResourceError:
        return True
    assert rest is not None
    return False


@pytest.mark.parametrize("fault", ["crash", "kill", "stop", "long", "short"])
async def test_a_stream_that_is_not_whole_is_cut(fault: str) -> None:
    length = 5 if fault in ("long", "short") else None
    async with serving(routes=ROUTES) as served:
        streamer = await spawn(served, Response(200, stream=True, length=length))
        peer = await served.dial()
        await peer.send(get())
        await until(lambda: streamer.requests)
        (request,) = streamer.requests
        served.node.send(request.connection, Response.Write(request.ref, b"part"))
        await peer.head()
        match fault:
            case "long":
                served.node.send(request.connection, Response.Write(request.ref, b"longer"))
            case "short":
                served.node.send(request.connection, Response.End(request.ref))
            case "kill":
                served.node.kill(streamer.pid)
            case "stop":
                served.node.send_exit(streamer.pid, "stop")
            case "crash":
                served.node.send(streamer.pid, "crash")
        assert await _is_cut(peer)
        await peer.aclose()


async def test_the_actor_of_a_stream_hears_that_its_peer_has_left() -> None:
    async with serving(routes=ROUTES) as served:
        streamer = await spawn(served, Response(200, stream=True))
        peer = await served.dial()
        await peer.send(get())
        await peer.head()
        await peer.aclose()
        await until(lambda: streamer.messages)

    (gone,) = streamer.messages
    assert isinstance(gone, HTTPRequest.Gone)
    assert (gone.connection, gone.ref.number) == (
        streamer.requests[0].connection,
        streamer.requests[0].ref.number,
    )


async def test_a_call_of_write_waits_for_a_slow_peer() -> None:
    async with serving(routes=ROUTES, write_limit=100_000) as served:
        streamer = await spawn(served, Response(200, stream=True))
        peer = await served.dial()
        await peer.send(get())
        await peer.head()
        (request,) = streamer.requests
        total = 200

        async def write() -> None:
            for _ in range(total):
                await served.node.call(
                    request.connection, Response.Write(request.ref, bytes(100_000)), timeout=None
                )
            served.node.send(request.connection, Response.End(request.ref))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            body = 0
            while size := int(await peer.until(b"\r\n"), 16):
                body += len(await peer.exactly(size + 2)) - 2
        assert body == total * 100_000
        await peer.aclose()


# -- events ----------------------------------------------------------------------------------------


def read_events(stream: bytes) -> list[dict[str, str]]:
    """The events as a browser reads them (HTML standard, section 9.2.6)."""
    events: list[dict[str, str]] = []
    fields: dict[str, str] = {}
    for line in stream.decode().split("\n"):
        if not line:
            if "data" in fields:
                events.append(fields)
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            fields[name] = f"{fields[name]}\n{value}" if name in fields else value
    return events


async def test_events_arrive_as_their_text() -> None:
    texts = ["hello", "", "two\nlines", "data: x\n\nevent: forged", " blank", "ä€😀", "a\r\nb\rc"]
    async with serving(routes=ROUTES) as served:
        streamer = await spawn(served, Response.events())
        peer = await served.dial()
        await peer.send(get("/", "Last-Event-ID: 7"))
        head = await peer.head()
        (request,) = streamer.requests
        for number, text in enumerate(texts):
            event = Response.Event(request.ref, text, event="e", id=str(number), retry=5)
            served.node.send(request.connection, event)
        served.node.send(request.connection, Response.End(request.ref))
        body = b""
        while size := int(await peer.until(b"\r\n"), 16):
            body += (await peer.exactly(size + 2))[:-2]
        await peer.aclose()

    assert request.last_event_id == "7"
    assert head.headers["content-type"] == "text/event-stream"
    assert head.headers["cache-control"] == "no-store"
    expected = [text.replace("\r\n", "\n").replace("\r", "\n") for text in texts]
    assert read_events(body) == [
        {"event": "e", "id": str(number), "retry": "5", "data": text}
        for number, text in enumerate(expected)
    ]


@pytest.mark.parametrize(
    "fields", [{"data": 5}, {"event": "a\nb"}, {"id": "a\rb"}, {"id": "\0"}, {"retry": -1}]
)
def test_an_event_that_forges_a_field_is_refused(fields: dict[str, Any]) -> None:
    ref: Any = None
    with pytest.raises(BadInputError):
        Response.Event(**{"ref": ref, "data": "", **fields})


def in_virtual_time(test: Callable[[], object]) -> None:
    trio.run(test, clock=VirtualClock())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_a_silent_stream_of_events_gets_comments() -> None:
    async def run() -> None:
        async with serving(routes=ROUTES) as served:
            await spawn(served, Response.events())
            peer = await served.dial()
            await peer.send(get())
            await peer.head()
            for _ in range(8):
                assert await peer.until(b"\r\n:\n\n\r\n") == b"3\r\n:\n\n\r\n"
            assert 120.0 <= trio.current_time() <= 130.0
            await peer.aclose()

    in_virtual_time(run)


# -- bodies ----------------------------------------------------------------------------------------


class Store(Actor):
    """Pulls a body, and answers with its length."""

    sizes: list[int] = []

    async def handle_call(self, request: object, caller: Caller) -> object:
        assert isinstance(request, HTTPRequest)
        if request.path == ("unread",):
            return Response(200, "unread")
        total = 0
        while piece := await self.call(request.connection, HTTPRequest.ReadBody(request.ref)):
            assert len(piece) <= 64 * 1024
            total += len(piece)
            Store.sizes.append(len(piece))
        return Response(200, str(total))


STORE = [Route("/", to=Store, body=Route.Body.STREAM, max_body=50_000_000)]


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_large_body_is_pulled(chunked: bool) -> None:
    size = 10_000_000
    async with serving(routes=STORE) as served:
        peer = await served.dial()
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                if chunked:
                    await peer.send(get("/", "Transfer-Encoding: chunked", method="POST"))
                    for _ in range(10):
                        await peer.send(b"f4240\r\n" + bytes(1_000_000) + b"\r\n")
                    await peer.send(b"0\r\n\r\n")
                else:
                    await peer.send(post("/", bytes(size)))

            nursery.start_soon(send)
            assert (await peer.reply()).body == str(size).encode()
        assert (await peer.ask(post("/", b"again"))).body == b"5"
        await peer.aclose()


async def test_a_body_that_is_not_pulled_is_not_read() -> None:
    async with serving(
        later, routes=[Route("/", body=Route.Body.STREAM, max_body=1 << 30)]
    ) as served:
        peer = await served.dial()
        with trio.move_on_after(1.0) as scope:
            await peer.send(get("/", "Content-Length: 1000000000", method="POST"))
            await peer.send(bytes(100_000_000))
        assert scope.cancelled_caught
        assert int((await served.facts("bytes in"))["bytes in"]) < 2_000_000
        await peer.aclose()


def later(_: HTTPRequest) -> object:
    return NO_REPLY


async def test_a_streamed_body_has_its_limit_and_its_continue() -> None:
    async with serving(
        routes=[Route("/", to=Store, body=Route.Body.STREAM, max_body=10)]
    ) as served:
        peer = await served.dial()
        await peer.send(get("/", "Expect: 100-continue", "Content-Length: 5", method="POST"))
        assert await peer.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await peer.send(b"hello")
        assert (await peer.reply()).body == b"5"
        refused = get("/unread", "Expect: 100-continue", "Content-Length: 5", method="POST")
        reply = await peer.ask(refused)
        assert (reply.body, reply.headers["connection"]) == (b"unread", "close")
        await peer.aclose()
        chunks = b"6\r\nhello!\r\n6\r\nhello!\r\n0\r\n\r\n"
        long = get("/", "Transfer-Encoding: chunked", method="POST") + chunks
        assert (await served.ask(long)).status == 413


async def test_a_body_has_a_single_reader_while_its_exchange_lasts() -> None:
    errors: list[BaseException] = []
    requests: list[HTTPRequest] = []

    def handle(request: HTTPRequest) -> object:
        requests.append(request)
        return NO_REPLY

    async with serving(handle, routes=[Route("/", body=Route.Body.STREAM)]) as served:
        peer = await served.dial()
        await peer.send(post("/", b"hello")[:-5])
        await until(lambda: requests)
        (request,) = requests

        async def read() -> None:
            try:
                await served.node.call(request.connection, HTTPRequest.ReadBody(request.ref))
            except NotAllowedError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            nursery.start_soon(read)
            await until(lambda: errors)
            served.node.reply(served.owner.callers[0], Response(200))
        assert (await peer.reply()).status == 200
        with pytest.raises(NotAllowedError):
            await served.node.call(request.connection, HTTPRequest.ReadBody(request.ref))
        await peer.aclose()

    assert len(errors) == 2


class Slow(Actor):
    """Pulls a body, and answers, or stops somewhere."""

    async def handle_call(self, request: object, caller: Caller) -> object:
        assert isinstance(request, HTTPRequest)
        total = 0
        while piece := await self.call(
            request.connection, HTTPRequest.ReadBody(request.ref), timeout=None
        ):
            total += len(piece)
            if request.path == ("stuck",):
                return NO_REPLY
        return NO_REPLY if request.path == ("silent",) else Response(200, str(total))


async def pull_asgi(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """The same as an ASGI application."""
    assert scope["type"] != "lifespan"
    total, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        total, more = total + len(message["body"]), message["more_body"]
        if scope["path"] == "/stuck" and message["body"]:
            await trio.sleep_forever()
    if scope["path"] == "/silent":
        await receive()
        return
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": str(total).encode()})


PULLING: dict[str, Callable[[], Place]] = {
    "actor": lambda: Route("/", to=Slow, body=Route.Body.STREAM, request_timeout=1.0),
    "asgi": lambda: Mount("/", asgi=pull_asgi, request_timeout=1.0),
}


@pytest.mark.parametrize("place", list(PULLING))
@pytest.mark.parametrize(
    "path,pieces,pause,status,least,most",
    [
        ("/", 10, 0.5, 200, 5.0, 5.5),  # steady, and longer than the time for the answer
        ("/", 2, 8.0, 200, 16.0, 16.5),  # pauses longer than the time for the answer
        ("/silent", 4, 0.5, 504, 2.9, 3.5),  # the time begins with the whole body
        ("/stuck", 4, 0.5, 504, 0.9, 1.6),  # the application does not read on
        ("/", 2, 12.0, 408, 9.9, 10.5),  # pauses longer than a body may
        ("/", 60, 2.0, 408, 29.0, 41.0),  # slower than a body may be, with short pauses
    ],
)
def test_the_time_for_the_answer_does_not_run_while_the_body_comes(
    place: str, path: str, pieces: int, pause: float, status: int, least: float, most: float
) -> None:
    async def run() -> None:
        async with serving(routes=[PULLING[place]()], log_level="critical") as served:
            peer = await served.dial()
            await peer.send(get(path, f"Content-Length: {pieces}", method="POST"))
            begun = trio.current_time()

            async def upload() -> None:
                for _ in range(pieces):
                    await trio.sleep(pause)
                    await peer.send(b"x")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(upload)
                reply = await peer.reply()
                nursery.cancel_scope.cancel()
            assert reply.status == status
            assert least <= trio.current_time() - begun <= most
            if status == 200:
                assert reply.body == str(pieces).encode()
            await peer.aclose()

    in_virtual_time(run)


# -- W15: TLS --------------------------------------------------------------------------------------


async def dial_tls(served: Any) -> Peer:
    context = ssl.create_default_context(cafile=str(PLACE / "authority.pem"))
    context.set_alpn_protocols(["h2", "http/1.1"])
    stream = trio.SSLStream(
        await trio.open_tcp_stream(*served.server.local), context, server_hostname="localhost"
    )
    await stream.do_handshake()
    return Peer(stream)


async def test_requests_over_tls_with_http_1_1_as_their_protocol() -> None:
    files = TLSFiles(PLACE / "server.pem", PLACE / "server.key")

    def handle(request: HTTPRequest) -> object:
        return Response(200, f"{request.scheme} {len(request.body)}")

    async with serving(handle, tls=files) as served:
        peer = await dial_tls(served)
        stream = peer.stream
        assert isinstance(stream, trio.SSLStream)
        assert (await peer.ask(post("/", bytes(200_000)))).body == b"https 200000"
        assert (await peer.ask(get())).body == b"https 0"
        assert stream.selected_alpn_protocol() == "http/1.1"
        await peer.aclose()


# -- W16: drain ------------------------------------------------------------------------------------


async def test_a_drain_lets_exchanges_finish_and_ends_the_rest() -> None:
    class Talk(Actor):
        def handle_message(self, message: object, sender: PID | Alias) -> None:
            told.append(message)

    told: list[object] = []
    routes = [Route("/", to=None), Route("/events", to="s"), Route("/ws", websocket=Talk)]
    async with serving(later, routes=routes) as served, trio.open_nursery() as nursery:
        await spawn(served, Response.events())
        idle, busy, events, socket = [await served.dial() for _ in range(4)]
        await idle.send(get())
        await until(lambda: served.owner.callers)
        served.node.reply(served.owner.callers.pop(), Response(200))
        await idle.reply()
        await busy.send(get())
        await events.send(get("/events"))
        await events.head()
        from tests.web.test_websocket import upgrade

        assert (await socket.ask(upgrade("/ws"))).status == 101
        await until(lambda: served.owner.callers and told)
        assert isinstance(told[0], WS.Connected)
        cut: list[int] = []

        async def drain() -> None:
            cut.append(await served.node.call(served.owner.alias, Drain(60.0), timeout=None))

        nursery.start_soon(drain)
        assert await idle.rest() == b""
        assert await events.rest() == b"0\r\n\r\n"
        assert (await socket.exactly(4)) == b"\x88\x02\x03\xe9"
        await socket.send(b"\x88\x82\0\0\0\0\x03\xe9")
        assert await socket.rest() == b""
        with pytest.raises(OSError, match="all attempts to connect"):
            await served.dial()
        assert cut == []
        served.node.reply(served.owner.callers[0], Response(200, "done"))
        reply = await busy.reply()
        assert (reply.body, reply.headers["connection"]) == (b"done", "close")
        for peer in (idle, busy, events, socket):
            await peer.aclose()
        await until(lambda: cut)

    assert cut == [0]


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
async def test_the_first_request_of_a_connection_is_answered_while_the_server_drains(
    encrypted: bool,
) -> None:
    from tests.web.test_websocket import upgrade

    files = TLSFiles(PLACE / "server.pem", PLACE / "server.key") if encrypted else None
    routes = [Route("/", to=None), Route("/ws", websocket=Actor)]
    async with serving(lambda _: Response(200, "in time"), routes=routes, tls=files) as served:
        dial = partial(dial_tls, served) if encrypted else served.dial
        fresh, begun, upgrading = [await dial() for _ in range(3)]
        await begun.send(b"GET /a")
        await until(lambda: served.server.connections == 3)
        answers: list[int] = []

        async def drain() -> None:
            answers.append(await served.node.call(served.owner.alias, Drain(60.0), timeout=None))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain)
            await until(lambda: served.server.is_draining)
            await begun.send(b" HTTP/1.1\r\nhost: a\r\n\r\n")
            replies = [await fresh.ask(get()), await begun.reply()]
            refused = await upgrading.ask(upgrade("/ws"))
            for peer in (fresh, begun, upgrading):
                assert await peer.rest() == b""
                await peer.aclose()

    assert [(reply.body, reply.headers["connection"]) for reply in replies] == [
        (b"in time", "close")
    ] * 2
    assert refused.status == 503
    assert answers == [0]


async def test_a_drain_without_time_ends_the_peers_without_a_request() -> None:
    async with serving() as served:
        silent = await served.dial()
        await until(lambda: served.server.connections)

        assert await served.node.call(served.owner.alias, Drain(0.0), timeout=None) == 0

        assert await silent.rest() == b""


async def test_a_stream_of_events_that_begins_while_the_server_drains_ends_at_once() -> None:
    async with serving(lambda _: Response.events()) as served, trio.open_nursery() as nursery:
        peer = await served.dial()
        await until(lambda: served.server.connections)
        nursery.start_soon(served.node.call, served.owner.alias, Drain(60.0))
        await until(lambda: served.server.is_draining)
        await peer.send(get())
        head = await peer.head()
        assert head.status == 200
        assert await peer.rest() == b"0\r\n\r\n"
        await peer.aclose()


async def test_a_drain_cuts_the_exchanges_that_take_too_long() -> None:
    async with serving(later) as served:
        peer = await served.dial()
        await peer.send(get())
        await until(lambda: served.owner.callers)
        assert await served.node.call(served.owner.alias, Drain(0.01)) == 1
        assert await _is_cut(peer)
        await peer.aclose()
        assert await served.node.call(served.owner.alias, Drain(0.01)) == 0


async def test_a_draining_server_refuses_further_requests_of_a_connection() -> None:
    async with serving(later) as served, trio.open_nursery() as nursery:
        peer = await served.dial()
        await peer.send(get() + get())
        await until(lambda: served.owner.callers)
        nursery.start_soon(served.node.call, served.owner.alias, Drain(60.0))
        await until(lambda: served.server.is_draining)
        served.node.reply(served.owner.callers[0], Response(200))
        assert (await peer.reply()).headers["connection"] == "close"
        assert await peer.rest() == b""
        await peer.aclose()


# -- W19: looking inside ---------------------------------------------------------------------------


async def test_server_and_connection_tell_their_counters() -> None:
    async with serving(lambda request: Response(int(request.path[0]))) as served:
        peer = await served.dial()
        for status in (200, 404, 404, 503):
            await peer.ask(get(f"/{status}"))
        facts = await served.facts()
        assert {name: facts[name] for name in ("requests", "2xx", "4xx", "5xx", "open")} == {
            "requests": "4",
            "2xx": "1",
            "4xx": "2",
            "5xx": "1",
            "open": "1",
        }
        assert (facts["routes"], facts["draining"]) == ("/", "")
        alias = served.owner.callers[0].pid
        inside = await served.node.inspect_meta(alias, "requests", "phase", "peer")
        assert (inside["requests"], inside["phase"]) == ("4", "head")
        await peer.aclose()


async def test_the_access_log_has_a_line_for_each_response_without_secrets() -> None:
    lines: list[LogRecord] = []

    class Logger(Actor):
        def handle_log(self, record: LogRecord) -> None:
            lines.append(record)

    async with serving(access_log=True, log_level="info") as served:
        served.node.add_logger(await served.node.spawn(Logger), level="info")
        await served.ask(get("/a/b?token=secret", "Cookie: secret"))
        await until(lambda: lines)

    (line,) = [line for line in lines if line.event == "request"]
    assert (line.fields["method"], line.fields["path"], line.fields["status"]) == (
        "GET",
        "/a/b",
        200,
    )
    assert "secret" not in str(line)


async def test_a_peer_that_waits_hears_of_the_end_of_the_server() -> None:
    async with serving(later) as served:
        peer = await served.dial()
        await peer.send(get())
        await until(lambda: served.owner.callers)
        served.node.send_exit(served.pid, "stop")
        reply = await peer.reply()
        assert (reply.status, reply.headers["connection"]) == (503, "close")
        await peer.aclose()
