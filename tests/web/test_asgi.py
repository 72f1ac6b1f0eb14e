"""`Mount` of ASGI applications: requests and lifespan."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from ergo_py import Actor, BadInputError, InitError, LogRecord, open_node
from ergo_py.web import Mount, Response, Route, WebServer
from tests.web.rig import Owner, Served, get, post, serving, until
from tests.web.test_websocket import in_virtual_time

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


def start(status: int = 200, *headers: tuple[bytes, bytes]) -> Message:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data: bytes = b"", more: bool = False) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


def only_http(app: Callable[[Message, Receive, Send], Awaitable[None]]) -> Any:
    """An application without a lifespan."""

    async def outer(scope: Message, receive: Receive, send: Send) -> None:
        assert scope["type"] != "lifespan"
        await app(scope, receive, send)

    return outer


async def read_all(receive: Receive) -> bytes:
    data, more = b"", True
    while more:
        message = await receive()
        assert message["type"] == "http.request"
        data += message["body"]
        more = message["more_body"]
    return data


async def echo(scope: Message, receive: Receive, send: Send) -> None:
    data = await read_all(receive)
    await send(start(201, (b"Content-Type", b"text/plain"), (b"X-Path", scope["path"].encode())))
    await send(body(data))


def mounted(app: Any, **options: Any) -> Any:
    return serving(routes=[Mount("/api", asgi=only_http(app), **options)])


# -- ASGI: requests --------------------------------------------------------------------------------


async def test_an_asgi_application_sees_the_request_and_its_response_is_sent() -> None:
    seen: list[Message] = []

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        seen.append(scope)
        await echo(scope, receive, send)

    async with mounted(app) as served:
        reply = await served.ask(post("/api/caf%C3%A9/x?y=%20z", b"hello", "X-A: 1", "X-A: 2"))

    assert (reply.status, reply.body) == (201, b"hello")
    assert reply.headers["content-type"] == "text/plain"
    assert reply.headers["content-length"] == "5"
    scope = seen[0]
    assert scope["type"] == "http"
    assert scope["method"] == "POST"
    assert scope["path"] == "/api/café/x"
    assert scope["raw_path"] == b"/api/caf%C3%A9/x"
    assert scope["root_path"] == "/api"
    assert scope["query_string"] == b"y=%20z"
    assert [pair for pair in scope["headers"] if pair[0] == b"x-a"] == [
        (b"x-a", b"1"),
        (b"x-a", b"2"),
    ]
    assert scope["client"][0] == "127.0.0.1"
    assert scope["server"] == tuple(served.server.local)
    assert scope["http_version"] == "1.1"
    assert scope["scheme"] == "http"


async def test_bodies_stream_both_ways_at_the_same_time() -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await send(start(200))
        more = True
        while more:
            message = await receive()
            more = message["more_body"]
            await send(body(message["body"].upper(), more))

    async with mounted(app) as served:
        peer = await served.dial()
        await peer.send(get("/api", "Transfer-Encoding: chunked", method="POST"))
        await peer.send(b"3\r\none\r\n")
        assert (await peer.head()).headers["transfer-encoding"] == "chunked"
        assert await peer.until(b"ONE\r\n") == b"3\r\nONE\r\n"
        await peer.send(b"3\r\ntwo\r\n")
        assert await peer.until(b"TWO\r\n") == b"3\r\nTWO\r\n"
        await peer.send(b"0\r\n\r\n")
        assert await peer.until(b"0\r\n\r\n") == b"0\r\n\r\n"
        assert (await peer.ask(post("/api", b"again"))).body == b"AGAIN"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_length_that_the_application_tells_is_kept(method: str) -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await send(start(200, (b"content-length", b"4"), (b"connection", b"close")))
        await send(body(b"ab", True))
        await send(body(b"cd"))

    async with mounted(app) as served:
        peer = await served.dial()
        for _ in range(2):
            reply = await peer.ask(get("/api", method=method))

            assert reply.headers["content-length"] == "4"
            assert reply.body == (b"abcd" if method == "GET" else b"")


@pytest.mark.parametrize("status", [204, 304])
async def test_a_status_without_a_body_has_none(status: int) -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await send(start(status, (b"content-length", b"0")))
        await send(body())

    async with mounted(app) as served:
        peer = await served.dial()
        assert (await peer.ask(get("/api"))).status == status
        assert (await peer.ask(get("/api"))).status == status


async def fails(scope: Message, receive: Receive, send: Send) -> None:
    raise KeyError("secret")


async def ends_early(scope: Message, receive: Receive, send: Send) -> None:
    pass


async def starts_only(scope: Message, receive: Receive, send: Send) -> None:
    await send(start(200))


async def lies_about_its_length(scope: Message, receive: Receive, send: Send) -> None:
    await send(start(200, (b"content-length", b"5")))
    await send(body(b"four"))


async def splits_its_response(scope: Message, receive: Receive, send: Send) -> None:
    await send(start(200, (b"x-a", b"1\r\nx-b: 2")))
    await send(body(b"four"))


async def sends_a_body_first(scope: Message, receive: Receive, send: Send) -> None:
    await send(body(b"four"))


async def starts_twice(scope: Message, receive: Receive, send: Send) -> None:
    await send(start(200))
    await send(start(200))


async def sends_nonsense(scope: Message, receive: Receive, send: Send) -> None:
    await send({"type": "http.nonsense"})


async def needs_asyncio(scope: Message, receive: Receive, send: Send) -> None:
    asyncio.get_running_loop()


@pytest.mark.parametrize(
    "path,status",
    [
        ("/admin/x", 403),
        ("/admin%2Fx", 400),
        ("/admin%2fx", 400),
        ("/admin%2F", 400),
        ("/%2Fadmin/x", 200),
        ("/shop%2Fx", 400),
        ("/shop/a%2Fb", 200),
        ("/a%2Fb/c", 200),
        ("/%61dmin/x", 403),
        ("/%61dmin%2Fx", 400),
    ],
)
async def test_an_escaped_slash_leads_past_no_route(path: str, status: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            assert not scope["path"].startswith("/admin")
            await send({"type": "http.response.start", "status": 200})
            await send({"type": "http.response.body", "body": scope["path"].encode()})

    routes = [Route("/admin"), Mount("/shop", asgi=app), Mount("/", asgi=app)]
    async with serving(lambda _: Response(403), routes=routes) as served:
        assert (await served.ask(get(path))).status == status


@pytest.mark.parametrize(
    "app",
    [
        fails,
        ends_early,
        starts_only,
        lies_about_its_length,
        splits_its_response,
        sends_a_body_first,
        starts_twice,
        sends_nonsense,
        needs_asyncio,
    ],
)
async def test_a_failure_of_an_application_is_its_500(app: Any) -> None:
    async with mounted(app) as served:
        peer = await served.dial()
        reply = await peer.ask(get("/api"))

        assert reply.status == 500
        assert b"secret" not in reply.body
        assert (await peer.ask(get("/api"))).status == 500


async def awaits_future(scope: Any, receive: Any, send: Any) -> None:
    loop = asyncio.new_event_loop()
    try:
        if scope["type"] == "http":
            await loop.create_future()
    finally:
        loop.close()


async def asks_for_a_loop(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        # The word of asyncio.gather() where no loop is current.
        raise RuntimeError("There is no current event loop in thread 'MainThread'.")


@pytest.mark.parametrize("app", [needs_asyncio, awaits_future, asks_for_a_loop])
async def test_an_application_that_needs_asyncio_is_told_so(app: Any) -> None:
    async with mounted(app) as served:
        lines = await logged(served)
        assert (await served.ask(get("/api"))).status == 500
        with trio.fail_after(30):
            await until(lambda: any("This application needs asyncio" in line for line in lines))


async def logged(served: Served) -> list[str]:
    """The lines of the log from now on."""
    lines: list[str] = []

    class Logger(Actor):
        def handle_log(self, record: LogRecord) -> None:
            lines.append(f"{record.event} {record.fields}")

    served.node.add_logger(await served.node.spawn(Logger))
    return lines


async def test_a_failure_inside_a_response_cuts_the_connection() -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await send(start(200))
        await send(body(b"part", True))
        raise KeyError("secret")

    async with mounted(app) as served:
        peer = await served.dial()
        await peer.send(get("/api"))

        with pytest.raises((AssertionError, trio.BrokenResourceError)):
            await peer.reply()


async def test_the_application_hears_that_its_client_has_left() -> None:
    heard: list[Message] = []

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await read_all(receive)
        heard.append(await receive())
        await send(start(200))
        with pytest.raises(OSError, match="the client has left"):
            await send(body(b"late"))
        heard.append({"type": "done"})

    async with mounted(app) as served:
        peer = await served.dial()
        await peer.send(get("/api"))
        await peer.aclose()
        await until(lambda: len(heard) == 2)

    assert heard[0] == {"type": "http.disconnect"}


async def test_an_application_that_writes_without_an_end_ends_with_its_client() -> None:
    ended = trio.Event()

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await send(start(200))
        try:
            while True:
                await send(body(b"x" * 65536, True))
        finally:
            ended.set()

    async with mounted(app) as served:
        peer = await served.dial()
        await peer.send(get("/api"))
        await peer.exactly(100_000)
        await peer.aclose()
        await ended.wait()


async def test_a_response_that_does_not_begin_in_time_is_504() -> None:
    heard = trio.Event()

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await read_all(receive)
        await receive()
        heard.set()

    async with mounted(app, request_timeout=0.02) as served:
        assert (await served.ask(get("/api"))).status == 504
        await heard.wait()


def test_a_response_may_take_longer_than_the_time_for_its_beginning() -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await send(start(200))
        await send(body(b"a", True))
        await trio.sleep(6.0)
        await send(body(b"b"))

    async def run() -> None:
        async with mounted(app, request_timeout=2.0) as served:
            assert (await served.ask(get("/api"))).body == b"ab"

    in_virtual_time(run)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("status,length", [(200, None), (200, 5), (204, None)])
def test_a_head_without_a_body_counts_as_the_beginning_and_is_written_soon(
    method: str, status: int, length: int | None
) -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        fields = [] if length is None else [(b"content-length", str(length).encode())]
        await send(start(status, *fields))
        await trio.sleep(6.0)
        await send(body(b"event" if status == 200 else b""))

    async def run() -> None:
        async with mounted(app, request_timeout=2.0) as served:
            peer = await served.dial()
            begun = trio.current_time()
            await peer.send(get("/api", method=method))
            assert (await peer.head()).status == status
            assert trio.current_time() - begun <= 0.1
            if method == "GET" and status == 200:
                rest = b"event" if length else b"5\r\nevent\r\n0\r\n\r\n"
                assert await peer.exactly(len(rest)) == rest
            await peer.aclose()

    in_virtual_time(run)


async def test_a_head_that_could_be_misread_is_500_also_without_a_body() -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await send(start(200, (b"x-a", b"1\r\nx-b: 2")))
        while (await receive())["type"] != "http.disconnect":
            pass
        with pytest.raises(OSError, match="the client has left"):
            await send(body(b"late"))
        ended.set()

    ended = trio.Event()
    async with mounted(app) as served:
        peer = await served.dial()
        assert (await peer.ask(get("/api"))).status == 500
        await ended.wait()
        await peer.aclose()


def test_a_head_and_a_body_at_once_are_a_whole_response() -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await send(start(200))
        await trio.lowlevel.checkpoint()
        await send(body(b"whole"))

    async def run() -> None:
        async with mounted(app) as served:
            reply = await served.ask(get("/api"))
        assert (reply.headers["content-length"], reply.body) == ("5", b"whole")

    in_virtual_time(run)


async def test_a_body_over_the_limit_is_413_and_the_application_hears_the_end() -> None:
    heard: list[Message] = []

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] == "http.request":
            pass
        heard.append(message)

    async with mounted(app, max_body=10) as served:
        chunked = get("/api", "Transfer-Encoding: chunked", method="POST")
        reply = await served.ask(chunked + b"20\r\n" + b"x" * 32 + b"\r\n0\r\n\r\n")

        assert reply.status == 413
        await until(lambda: heard)
        assert heard == [{"type": "http.disconnect"}]


async def test_work_after_the_response_does_not_delay_the_next_request() -> None:
    release, done = trio.Event(), trio.Event()

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await send(start(200))
        await send(body(b"ok"))
        if scope["path"] == "/api/slow":
            await release.wait()
            done.set()

    async with mounted(app) as served:
        peer = await served.dial()
        assert (await peer.ask(get("/api/slow"))).body == b"ok"
        assert (await peer.ask(get("/api"))).body == b"ok"
        release.set()
        await done.wait()


# -- ASGI: lifespan --------------------------------------------------------------------------------


class Life:
    """An application with a lifespan."""

    def __init__(self, failure: str | None = None) -> None:
        self.events: list[str] = []
        self.failure = failure

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await send(start(200))
            await send(body(str(scope["state"]).encode()))
            scope["state"]["mine"] = 1
            return
        self.events.append((await receive())["type"])
        scope["state"]["pool"] = 7
        if self.failure is not None:
            await send({"type": "lifespan.startup.failed", "message": self.failure})
            return
        await send({"type": "lifespan.startup.complete"})
        self.events.append((await receive())["type"])
        await send({"type": "lifespan.shutdown.complete"})


async def test_a_lifespan_begins_before_the_first_request_and_ends_with_the_server() -> None:
    app = Life()
    async with serving(routes=[Mount("/", asgi=app)]) as served:
        assert app.events == ["lifespan.startup"]
        assert (await served.ask(get())).body == b"{'pool': 7}"
        assert (await served.ask(get())).body == b"{'pool': 7}"
        assert app.events == ["lifespan.startup"]

    assert app.events == ["lifespan.startup", "lifespan.shutdown"]


async def test_a_lifespan_that_fails_keeps_the_server_from_starting() -> None:
    first = Life()
    server = WebServer(
        routes=[Mount("/a", asgi=first), Mount("/b", asgi=Life("no database"))],
    )
    async with open_node("web@localhost", log_output="none") as node:
        with pytest.raises(InitError) as caught:
            await node.spawn(Owner, server, None)

        assert "no database" in str(caught.value)
        assert first.events == ["lifespan.startup", "lifespan.shutdown"]
        with pytest.raises(OSError, match=r"all attempts|refused"):
            await trio.open_tcp_stream(*server.local)


def test_tasks_of_an_application_end_with_the_server() -> None:
    begun, ended = trio.Event(), trio.Event()

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await send(start(200))
        await send(body(b"ok"))
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async def run() -> None:
        async with mounted(app) as served:
            await served.ask(get("/api"))
            await begun.wait()

    in_virtual_time(run)
    assert ended.is_set()


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"asgi": 5},
        {"asgi": None},
        {"asgi": echo, "origins": "https://a.example"},
        {"asgi": echo, "max_message": 0},
        {"asgi": echo, "compress": 1},
        {"asgi": echo, "ping_interval": 0},
        {"asgi": echo, "max_body": -1},
    ],
)
def test_wrong_values_of_a_mount_are_refused(options: Message) -> None:
    with pytest.raises(BadInputError):
        Mount("/api", **options)
