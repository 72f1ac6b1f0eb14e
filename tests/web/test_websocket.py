"""WebSocket connections of a server and of a client: handshake, messages, closing, time."""

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from websockets.sync.client import connect

from ergo_py import PID, Actor, Alias, BadInputError, Caller, InitError, Node
from ergo_py.meta.sockets.messages import Cause
from ergo_py.testing import VirtualClock
from ergo_py.web import WS, HTTPError, HTTPRequest, Route, WebSocketClient
from ergo_py.web.parsing.frames import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    WebSocketParser,
    encode_frame,
)
from tests.web.rig import Peer, Reply, Served, get, serving, until

KEY = base64.b64encode(b"the sample nonce").decode()
MASK = b"\x05\x06\x07\x08"


class Talk(Actor):
    """Sends every message back, and keeps the messages."""

    instances: list["Talk"] = []

    def init(self) -> None:
        self.got: list[Any] = []
        self.ended = False
        Talk.instances.append(self)

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        self.got.append(message)
        match message:
            case WS.Text(connection, "crash"):
                raise RuntimeError("secret")
            case WS.Text(connection, "stop"):
                self.send(connection, WS.Send("last"))
                self.stop()
            case WS.Text(connection, "close"):
                self.send(connection, WS.Close(4001, "enough"))
            case WS.Text(connection, content) | WS.Binary(connection, content):
                self.send(connection, WS.Send(content))

    def terminate(self, reason: object) -> None:
        self.ended = True


@pytest.fixture(autouse=True)
def forget_actors() -> None:
    Talk.instances = []


def upgrade(path: str = "/", *fields: str, key: str = KEY, version: str = "13") -> bytes:
    return get(
        path,
        "Upgrade: websocket",
        "Connection: keep-alive, Upgrade",
        f"Sec-WebSocket-Key: {key}",
        f"Sec-WebSocket-Version: {version}",
        *fields,
    )


class Client:
    """A WebSocket peer by hand."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.parser = WebSocketParser(is_masked=False, max_message=1 << 24, deflate=None)
        self.events: list[Any] = []

    async def send(self, opcode: int, payload: bytes = b"") -> None:
        await self.peer.send(encode_frame(opcode, payload, MASK))

    async def next(self) -> Any:
        while not self.events:
            waits = not self.peer.buffer and not self.parser.has_more
            if waits and not await self.peer.more():
                return None
            data, self.peer.buffer = self.peer.buffer, b""
            events, error = self.parser.feed(data)
            assert error is None
            self.events += events
        return self.events.pop(0)


@asynccontextmanager
async def talking(**options: Any) -> AsyncIterator[tuple[Served, Client]]:
    fields = options.pop("fields", ())
    async with serving(routes=[Route("/", websocket=Talk, **options)]) as served:
        peer = await served.dial()
        reply = await peer.ask(upgrade("/", *fields))
        assert reply.status == 101
        yield served, Client(peer)
        await peer.aclose()


# -- W10: handshake --------------------------------------------------------------------------------


async def test_an_upgrade_answers_the_key_and_spawns_an_actor() -> None:
    async with serving(routes=[Route("/chat", websocket=Talk, subprotocols=["b", "a"])]) as served:
        peer = await served.dial()
        reply = await peer.ask(upgrade("/chat?x=1", "Sec-WebSocket-Protocol: a, b, c"))
        await until(lambda: Talk.instances and Talk.instances[0].got)
        await peer.aclose()

    assert reply.status == 101
    assert reply.headers["sec-websocket-accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert reply.headers["sec-websocket-protocol"] == "b"
    (connected, *_) = Talk.instances[0].got
    assert isinstance(connected, WS.Connected)
    assert connected.request is not None
    assert (connected.subprotocol, dict(connected.request.query)) == ("b", {"x": "1"})


async def _refused(served: Served, request: bytes) -> Reply:
    reply = await served.ask(request)
    assert Talk.instances == []
    return reply


@pytest.mark.counted
async def test_requests_that_are_no_upgrade_are_refused() -> None:
    async with serving(routes=[Route("/", websocket=Talk)]) as served:
        plain = await _refused(served, get())
        assert (plain.status, plain.headers["upgrade"]) == (426, "websocket")
        version = await _refused(served, upgrade(version="8"))
        assert (version.status, version.headers["sec-websocket-version"]) == (426, "13")
        for key in ("", "short", "x" * 24, KEY[:-1], f"{KEY}, {KEY}"):
            assert (await _refused(served, upgrade(key=key))).status == 400
        put = upgrade().replace(b"GET", b"PUT")
        assert (await _refused(served, put)).status == 400


@pytest.mark.counted
@pytest.mark.parametrize(
    "origin,status",
    [
        ("http://a", 101),
        ("http://A:80", 101),
        ("https://shop.example.org", 101),
        ("https://SHOP.example.org", 101),
        ("http://evil.org", 403),
        ("http://a.evil.org", 403),
        ("http://shop.example.org", 403),
        ("null", 403),
        ("a", 403),
        ("https://a", 403),
        ("https://a:443", 403),
        ("http://a:443", 403),
        ("http://a:81", 403),
        ("ftp://a", 403),
        ("http://", 403),
        ("https://shop.example.org:443", 101),
        ("https://shop.example.org:80", 403),
        ("http://page.example.org", 101),
    ],
)
async def test_an_origin_is_this_host_or_a_named_host(origin: str, status: int) -> None:
    route = Route(
        "/", websocket=Talk, origins=["https://shop.example.org", "http://page.example.org:80"]
    )
    async with serving(routes=[route]) as served:
        assert (await served.ask(upgrade("/", f"Origin: {origin}"))).status == status


async def test_behind_a_proxy_that_ends_tls_the_scheme_of_an_origin_is_that_of_the_proxy() -> None:
    secure, fields = "X-Forwarded-Proto: https", ("Origin: https://a",)
    async with serving(routes=[Route("/", websocket=Talk)], trusted=["127.0.0.0/8"]) as served:
        assert (await served.ask(upgrade("/", secure, *fields))).status == 101
        assert (await served.ask(upgrade("/", secure, "Origin: http://a"))).status == 403
        reply = await served.ask(upgrade("/", *fields))
    assert reply.status == 403
    assert b"trusted=" in reply.body


async def test_no_origin_is_that_of_a_request_without_a_host() -> None:
    async with serving(routes=[Route("/", websocket=Talk)]) as served:
        request = upgrade("/", "Origin: http://").replace(b"Host: a", b"Host:")
        assert (await served.ask(request)).status == 403


async def test_any_origin_may_connect_where_the_route_says_so() -> None:
    async with serving(routes=[Route("/", websocket=Talk, origins=["*"])]) as served:
        assert (await served.ask(upgrade("/", "Origin: http://b"))).status == 101


@pytest.mark.parametrize(
    "decision,status",
    [
        (None, 101),
        (WS.Accept("a", [("set-cookie", "x=y")]), 101),
        (HTTPError(401, headers={"www-authenticate": "Basic"}), 401),
        (WS.Accept("not offered"), 500),
        ("nonsense", 500),
        (RuntimeError("secret"), 500),
    ],
)
@pytest.mark.parametrize("asks_a_process", [False, True])
async def test_a_program_decides_about_an_upgrade(
    decision: Any, status: int, asks_a_process: bool
) -> None:
    class Guard(Actor):
        def handle_call(self, request: object, caller: Caller) -> object:
            assert isinstance(request, WS.Upgrade)
            return check(request.request)

    def check(request: HTTPRequest) -> Any:
        if isinstance(decision, RuntimeError):
            raise decision
        return WS.Accept() if decision is None else decision

    accept = "guard" if asks_a_process else check
    async with serving(routes=[Route("/", websocket=Talk, accept=accept)]) as served:
        await served.node.spawn(Guard, name="guard")
        reply = await served.ask(upgrade("/", "Sec-WebSocket-Protocol: a"))

    if asks_a_process and isinstance(decision, RuntimeError):
        status = 503
    assert reply.status == status
    assert b"secret" not in reply.body
    if isinstance(decision, WS.Accept) and status == 101:
        assert reply.headers["set-cookie"] == "x=y"


async def test_a_missing_decider_is_503() -> None:
    async with serving(routes=[Route("/", websocket=Talk, accept="nobody")]) as served:
        assert (await _refused(served, upgrade())).status == 503


async def test_an_actor_that_cannot_start_refuses_the_upgrade() -> None:
    class Broken(Actor):
        def init(self) -> None:
            raise RuntimeError("secret")

    async with serving(routes=[Route("/", websocket=Broken)]) as served:
        assert (await served.ask(upgrade())).status == 500


async def test_other_routes_do_not_upgrade() -> None:
    async with serving() as served:
        assert (await served.ask(upgrade())).status == 200


# -- messages --------------------------------------------------------------------------------------


async def test_messages_go_both_ways_in_order() -> None:
    async with talking() as (_, client):
        await client.send(TEXT, "hellö".encode())
        await client.send(BINARY, bytes(70_000))
        await client.send(PING, b"p")
        assert await client.next() == (TEXT, "hellö", 0)
        found = [await client.next(), await client.next()]
        assert sorted(found) == [(BINARY, bytes(70_000), 0), (PONG, b"p", 0)]


async def test_frames_that_come_with_the_request_are_read() -> None:
    async with serving(routes=[Route("/", websocket=Talk)]) as served:
        peer = await served.dial()
        await peer.send(upgrade() + encode_frame(TEXT, b"early", MASK))
        assert (await peer.reply()).status == 101
        assert await Client(peer).next() == (TEXT, "early", 0)
        await peer.aclose()


async def test_a_call_waits_until_a_message_is_taken() -> None:
    async with talking() as (served, client):
        await until(lambda: Talk.instances[0].got)
        alias = Talk.instances[0].got[0].connection
        assert await served.node.call(alias, WS.Send("ä")) == 2
        assert await client.next() == (TEXT, "ä", 0)
        await served.node.call(alias, WS.Close())
        with pytest.raises(BrokenPipeError):
            await served.node.call(alias, WS.Send("late"))


async def test_a_receiver_that_is_behind_stops_the_reading() -> None:
    gate = trio.Event()
    got: list[object] = []

    class Slow(Actor):
        async def handle_message(self, message: object, sender: PID | Alias) -> None:
            await gate.wait()
            got.append(message)

    async with serving(routes=[Route("/", websocket=Slow)]) as served:
        peer = await served.dial()
        assert (await peer.ask(upgrade())).status == 101
        payload = encode_frame(BINARY, bytes(60_000), MASK)
        with trio.move_on_after(1.0) as scope:
            for _ in range(2_000):
                await peer.send(payload)
        assert scope.cancelled_caught
        read = int((await served.facts("bytes in"))["bytes in"])
        assert read < 40_000_000
        gate.set()
        await until(lambda: len(got) > 20)
        await peer.aclose()


async def test_compressed_messages_go_both_ways() -> None:
    offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"
    async with talking(compress=True, fields=[offer]) as (_, client):
        from ergo_py.web.parsing.deflate import Deflate

        client.parser = WebSocketParser(is_masked=False, max_message=1 << 20, deflate=Deflate())
        text = b"hello " * 1_000
        await client.peer.send(encode_frame(TEXT, Deflate().compress(text), MASK, compressed=True))
        while len(client.peer.buffer) < 4:
            await client.peer.more()
        assert client.peer.buffer[0] == 0xC1
        assert await client.next() == (TEXT, text.decode(), 0)
        await client.send(TEXT, b"short")
        await client.peer.more()
        assert client.peer.buffer[0] == 0x81


async def test_compression_is_off_unless_the_route_offers_it() -> None:
    async with serving(routes=[Route("/", websocket=Talk)]) as served:
        reply = await served.ask(upgrade("/", "Sec-WebSocket-Extensions: permessage-deflate"))

    assert "sec-websocket-extensions" not in reply.headers


# -- W11, W12: closing -----------------------------------------------------------------------------


def last() -> WS.Disconnected:
    message = Talk.instances[0].got[-1]
    assert isinstance(message, WS.Disconnected)
    return message


async def test_a_close_of_the_peer_is_answered_and_told() -> None:
    async with talking() as (_, client):
        await client.send(TEXT, b"x")
        await client.send(CLOSE, b"\x0f\xa0bye")
        assert await client.next() == (TEXT, "x", 0)
        assert await client.next() == (CLOSE, "", 4000)
        assert await client.next() is None
        await client.peer.aclose()
        await until(lambda: Talk.instances[0].ended)

    assert (last().code, last().reason, last().cause) == (4000, "bye", Cause.ASKED)
    assert [type(message) for message in Talk.instances[0].got] == [
        WS.Connected,
        WS.Text,
        WS.Disconnected,
    ]


async def test_a_close_of_the_actor_waits_for_that_of_the_peer() -> None:
    async with talking() as (_, client):
        await client.send(TEXT, b"close")
        assert await client.next() == (CLOSE, "enough", 4001)
        await client.send(CLOSE, b"\x0f\xa1")
        assert await client.next() is None
        await client.peer.aclose()
        await until(lambda: Talk.instances[0].ended)

    assert (last().code, last().cause) == (4001, Cause.ASKED)


async def test_a_peer_that_leaves_without_a_close_is_told_with_its_cause() -> None:
    async with talking() as (_, client):
        await client.peer.aclose()
        await until(lambda: Talk.instances and Talk.instances[0].ended)

    assert (last().code, last().cause) == (None, Cause.EOF)


@pytest.mark.parametrize(
    "stream,code",
    [
        (encode_frame(TEXT, b"x"), 1002),
        (encode_frame(TEXT, b"\xff", MASK), 1007),
        (encode_frame(BINARY, bytes(2_000), MASK), 1009),
    ],
)
async def test_a_breach_ends_the_connection_with_its_code(stream: bytes, code: int) -> None:
    async with talking(max_message=1_000) as (_, client):
        await client.peer.send(stream)
        kind, _, told = await client.next()
        assert (kind, told) == (CLOSE, code)
        assert await client.next() is None
        await client.peer.aclose()
        await until(lambda: Talk.instances[0].ended)

    assert (last().code, last().cause) == (None, Cause.PROTOCOL_ERROR)


async def test_a_crash_of_the_actor_ends_its_connection_only() -> None:
    async with talking() as (served, client):
        other = await served.dial()
        assert (await other.ask(upgrade())).status == 101
        await client.send(TEXT, b"crash")
        assert await client.next() == (CLOSE, "", 1011)
        assert await client.next() is None
        mate = Client(other)
        await mate.send(TEXT, b"alive")
        assert await mate.next() == (TEXT, "alive", 0)
        await other.aclose()


async def test_an_actor_that_stops_sends_its_last_words() -> None:
    async with talking() as (_, client):
        await client.send(TEXT, b"stop")
        assert await client.next() == (TEXT, "last", 0)
        assert await client.next() == (CLOSE, "", 1000)
        assert await client.next() is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: WS.Close(999),
        lambda: WS.Close(1004),
        lambda: WS.Close(1005),
        lambda: WS.Close(1006),
        lambda: WS.Close(1015),
        lambda: WS.Close(2000),
        lambda: WS.Close(5000),
        lambda: WS.Close("1000"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: WS.Close(1000, "x" * 124),
        lambda: WS.Send(5),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: WS.Send("\ud800"),
        lambda: WS.Accept(5),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: WS.Accept(headers={"x": "\n"}),
        lambda: WebSocketClient("http://a"),
        lambda: WebSocketClient("ws://"),
        lambda: WebSocketClient("ws://a:x"),
        lambda: WebSocketClient("ws://u@a/"),
        lambda: WebSocketClient("ws://a/ b"),
        lambda: WebSocketClient("ws://a/#b"),
        lambda: WebSocketClient(5),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: WebSocketClient("ws://a", subprotocols="a"),
        lambda: WebSocketClient("ws://a", headers={"connection": "a"}),
        lambda: WebSocketClient("ws://a", max_message=0),
    ],
)
def test_wrong_values_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(BadInputError):
        make()


# -- time ------------------------------------------------------------------------------------------


def in_virtual_time(test: Callable[[], object]) -> None:
    trio.run(test, clock=VirtualClock())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_a_silent_peer_gets_pings_and_is_cut_without_an_answer() -> None:
    async def run() -> None:
        async with talking() as (_, client):
            assert await client.next() == (PING, b"", 0)
            assert 20.0 <= trio.current_time() <= 21.0
            await client.send(PONG)
            assert await client.next() == (PING, b"", 0)
            assert 40.0 <= trio.current_time() <= 41.0
            with pytest.raises(trio.BrokenResourceError):
                await client.next()
            assert 60.0 <= trio.current_time() <= 61.0
            while not Talk.instances[0].ended:  # noqa: ASYNC110
                await trio.sleep(0.1)

    in_virtual_time(run)
    assert (last().code, last().cause) == (None, Cause.TIMEOUT)


def test_a_peer_that_does_not_answer_a_close_is_left() -> None:
    async def run() -> None:
        async with talking() as (_, client):
            await client.send(TEXT, b"close")
            assert await client.next() == (CLOSE, "enough", 4001)
            begun = trio.current_time()
            assert await client.next() is None
            assert 5.0 <= trio.current_time() - begun <= 6.0

    in_virtual_time(run)


# -- other clients, and ours -----------------------------------------------------------------------


async def test_the_client_of_websockets_talks_to_our_server() -> None:
    def talk(port: int) -> list[object]:
        with connect(f"ws://127.0.0.1:{port}/", origin=None) as socket:
            socket.send("hellö" * 1_000)
            socket.send(bytes(100_000))
            socket.ping().wait()
            return [socket.recv(), socket.recv()]

    async with serving(routes=[Route("/", websocket=Talk, compress=True)]) as served:
        found = await trio.to_thread.run_sync(talk, served.server.local.port)

    assert found == ["hellö" * 1_000, bytes(100_000)]


class Dialer(Actor):
    """Owns a client."""

    def __init__(self, client: WebSocketClient) -> None:
        self.client = client
        self.got: list[Any] = []

    async def init(self) -> None:
        self.alias = await self.spawn_meta(self.client)

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        self.got.append(message)

    def handle_call(self, request: object, caller: Caller) -> object:
        return self


async def _owner_of(node: Node, client: WebSocketClient) -> Any:
    return await node.call(await node.spawn(Dialer, client), None)


async def test_our_client_talks_to_our_server() -> None:
    route = Route("/chat", websocket=Talk, compress=True, subprotocols=["b"])
    async with serving(routes=[route]) as served:
        url = f"ws://127.0.0.1:{served.server.local.port}/chat?x=1"
        client = WebSocketClient(
            url, headers={"authorization": "me"}, subprotocols=["a", "b"], compress=True
        )
        owner = await _owner_of(served.node, client)
        served.node.send(owner.alias, WS.Send("hello" * 1_000))
        assert await served.node.call(owner.alias, WS.Send(b"\x00")) == 1
        await until(lambda: len(owner.got) == 3)
        served.node.send(owner.alias, WS.Close(4000, "bye"))
        await until(lambda: len(owner.got) == 4)

    first, *echoed, end = owner.got
    assert (first.request, first.subprotocol) == (None, "b")
    assert echoed == [WS.Text(owner.alias, "hello" * 1_000), WS.Binary(owner.alias, b"\x00")]
    assert (end.code, end.cause) == (4000, Cause.ASKED)
    request = Talk.instances[0].got[0].request
    assert request.headers["authorization"] == "me"


@pytest.mark.counted
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 403 Forbidden\r\n\r\n",
        b"HTTP/1.1 101 Yes\r\n\r\n",
        b"HTTP/1.1 101 Yes\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"SSH-2.0\r\n\r\n",
        b"HTTP/1.1 101 Yes\r\nBad Field\r\n\r\n",
        b"x" * 20_000,
        b"",
    ],
)
async def test_a_server_that_refuses_is_an_error_of_the_spawn(answer: bytes) -> None:
    async def refuse(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(answer)
        await stream.aclose()

    async with serving() as served, trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, refuse, listeners)
        port = listeners[0].socket.getsockname()[1]
        with pytest.raises(InitError) as caught:
            await served.node.spawn(Dialer, WebSocketClient(f"ws://127.0.0.1:{port}/"))
        nursery.cancel_scope.cancel()

    assert isinstance(caught.value.__cause__, ConnectionError)


def test_a_server_that_does_not_answer_is_a_timeout_of_the_spawn() -> None:
    async def run() -> None:
        async with serving() as served:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            port = listeners[0].socket.getsockname()[1]
            client = WebSocketClient(f"ws://127.0.0.1:{port}/", connect_timeout=3.0)
            with pytest.raises(InitError):
                await served.node.spawn(Dialer, client)
            assert 3.0 <= trio.current_time() <= 4.0
            await listeners[0].aclose()

    in_virtual_time(run)


async def test_our_client_hears_of_the_end_of_the_server() -> None:
    async with serving(routes=[Route("/", websocket=Talk)]) as served:
        url = f"ws://127.0.0.1:{served.server.local.port}/"
        owner = await _owner_of(served.node, WebSocketClient(url))
        await until(lambda: Talk.instances and Talk.instances[0].got)
        served.node.kill(Talk.instances[0].pid)
        await until(lambda: owner.got and isinstance(owner.got[-1], WS.Disconnected))

    assert owner.got[-1].cause is not None
