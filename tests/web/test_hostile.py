"""Hostile peers on real sockets: every refusal of the parser is a response, and the connection
ends; other peers are served meanwhile.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.lowlevel import checkpoint

from ergo_py import PID, Actor, Alias
from ergo_py.web import Mount, Route
from ergo_py.web.parsing.deflate import Deflate, Inflation
from ergo_py.web.parsing.frames import BINARY, TEXT, encode_frame
from ergo_py.web.parsing.http1 import RequestParser
from ergo_py.web.websocket import WebSocket
from tests.meta.support import connections_of, receiver_of
from tests.support import router_of
from tests.web.parsing.test_http1 import BAD, BAD_CHUNKS, line_of, with_field
from tests.web.rig import Peer, Served, get, serving, until
from tests.web.test_websocket import MASK, upgrade

REFUSED: dict[str, tuple[bytes, int]] = {
    **{name: (stream, 400) for name, stream in BAD.items()},
    **{
        f"chunk: {name}": (with_field(b"Transfer-Encoding: chunked", body), 400)
        for name, body in BAD_CHUNKS.items()
    },
    "other coding": (with_field(b"Transfer-Encoding: gzip"), 501),
    "CONNECT": (b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n", 501),
    "HTTP/1.2": (b"GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "long line": (line_of(9_000) + b"\r\nHost: a\r\n\r\n", 414),
    "endless line": (b"GET /" + b"a" * 10_000, 414),
    "long head": (with_field(b"X: " + b"y" * 17_000), 431),
    "endless head": (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 4_000, 431),
    "many fields": (with_field(b"X: y\r\n" * 101 + b"Z: z"), 431),
    "long body": (with_field(b"Content-Length: 1048577"), 413),
    "expectation": (with_field(b"Expect: tea\r\nContent-Length: 1"), 417),
    "bad path": (b"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400),
}


async def _refusal(served: Served, stream: bytes) -> tuple[int, str | None]:
    peer = await served.dial()
    try:
        await peer.send(stream)
        reply = await peer.reply()
        assert await peer.rest() == b"", "bytes after a refusal"
        return reply.status, reply.headers.get("connection")
    finally:
        await peer.aclose()


@pytest.mark.parametrize("name", REFUSED)
async def test_a_doubtful_request_is_refused_and_its_connection_closed(name: str) -> None:
    stream, status = REFUSED[name]

    async with serving() as served:
        assert await _refusal(served, stream) == (status, "close")
        assert served.owner.callers == []
        assert (await served.ask(get())).status == 200


async def test_a_request_after_a_doubtful_request_is_never_served() -> None:
    async with serving() as served:
        smuggled = with_field(b"Content-Length: 1\r\nTransfer-Encoding: chunked", b"0\r\n\r\n")
        peer = await served.dial()
        await peer.send(get() + smuggled + get("/smuggled"))
        assert [(await peer.reply()).status for _ in range(2)] == [200, 400]
        assert await peer.rest() == b""
        assert len(served.owner.callers) == 1
        await peer.aclose()


async def test_refused_peers_leave_nothing_behind() -> None:
    async with serving() as served:
        for stream, _ in REFUSED.values():
            peer = await served.dial()
            await peer.send(stream)
            await peer.aclose()
        await until(lambda: not served.server.connections)
        assert (await served.ask(get())).status == 200


async def test_peers_that_leave_at_any_byte_leave_nothing_behind() -> None:
    stream = get("/a") + with_field(b"Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n")
    async with serving() as served:
        for end in range(len(stream)):
            peer = await served.dial()
            await peer.send(stream[:end])
            await peer.aclose()
        await until(lambda: not served.server.connections)
        assert (await served.ask(get())).status == 200


# -- compressed WebSockets -------------------------------------------------------------------------

MIB = 1 << 20
OFFER = "Sec-WebSocket-Extensions: permessage-deflate"


class Turns:
    """Counts calls of a function of parsers in each turn of the loop, and the bytes that wait in
    them.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self._count = self.most = self.total = self.most_waiting = 0
        function = getattr(RequestParser, name)

        def counted(parser: RequestParser, *args: Any) -> Any:
            self._count += 1
            self.total += 1
            self.most_waiting = max(self.most_waiting, parser.unread)
            return function(parser, *args)

        monkeypatch.setattr(RequestParser, name, counted)

    async def watch(self) -> None:
        while True:
            await checkpoint()
            self.most = max(self.most, self._count)
            self._count = 0


async def read_and_drop(peer: Peer) -> None:
    while await peer.more():
        peer.buffer = b""


@pytest.mark.parametrize("peers", [1, 3])
async def test_requests_that_are_answered_at_once_begin_a_few_in_a_turn(
    peers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, count = Turns(monkeypatch, "next_head"), 4_000
    async with serving(routes=[Route("/other")]) as served, trio.open_nursery() as nursery:
        nursery.start_soon(turns.watch)
        for _ in range(peers):
            peer = await served.dial()
            nursery.start_soon(peer.send, get() * count)
            nursery.start_soon(read_and_drop, peer)
        await until(lambda: turns.total >= peers * count)
        nursery.cancel_scope.cancel()

    # Eight by the bytes of a peer, eight since it has more, and the same after a late batch.
    assert turns.most <= 4 * 8 * peers
    assert turns.most_waiting <= MIB // 2


async def test_many_small_chunks_are_taken_a_few_in_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns, count = Turns(monkeypatch, "_begin_chunk"), 50_000
    start = get("/", "Transfer-Encoding: chunked", method="POST")
    async with serving(routes=[Route("/")]) as served, trio.open_nursery() as nursery:
        nursery.start_soon(turns.watch)
        reply = await served.ask(start + b"1\r\nx\r\n" * count + b"0\r\n\r\n")
        nursery.cancel_scope.cancel()

    assert reply.status == 200
    assert turns.total > count
    assert turns.most <= 4 * 512


Websockets = Callable[[], Route | Mount]


class Deaf(Actor):
    def handle_message(self, message: object, sender: PID | Alias) -> None:
        pass


async def deaf_app(scope: Any, receive: Callable[[], Awaitable[Any]], send: Any) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass


def actor_route() -> Route:
    return Route("/ws", websocket=Deaf, compress=True)


def application() -> Mount:
    return Mount("/ws", asgi=deaf_app, compress=True)


async def open_websocket(served: Served) -> Peer:
    peer = await served.dial()
    assert (await peer.ask(upgrade("/ws", OFFER))).status == 101
    return peer


@pytest.mark.parametrize("websockets", [actor_route, application])
@pytest.mark.parametrize("peers", [1, 5])
async def test_a_request_is_served_between_the_steps_of_compressed_bombs(
    websockets: Websockets, peers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    feed, step = WebSocket.feed, Inflation.step

    def count_step(websocket: WebSocket, data: bytes) -> Any:
        made.append(0)
        return feed(websocket, data)

    def count_bytes(inflation: Inflation, most: int) -> tuple[bytes, int]:
        clear, cost = step(inflation, most)
        made[-1] += len(clear)
        return clear, cost

    monkeypatch.setattr(WebSocket, "feed", count_step)
    monkeypatch.setattr(Inflation, "step", count_bytes)
    bomb = encode_frame(BINARY, Deflate().compress(bytes(MIB)), MASK, compressed=True)

    async with serving(routes=[Route("/"), websockets()]) as served:
        honest = await served.dial()
        attackers = [await open_websocket(served) for _ in range(peers)]
        for attacker in attackers:
            await attacker.send(bomb * 100)
        await until(lambda: any(made))
        assert (await honest.ask(get("/"))).status == 200
        steps, size = len(made), sum(made)
        for attacker in attackers:
            await attacker.aclose()

    assert max(made) <= 64 * 1024
    # The request took some turns of the loop; the bombs would have taken 1,600 for each peer.
    assert steps < 100 * peers
    assert size < 10 * MIB * peers


async def test_inflated_messages_count_by_their_size_for_a_receiver_that_is_behind() -> None:
    gate, got = trio.Event(), list[object]()

    class Slow(Actor):
        async def handle_message(self, message: object, sender: PID | Alias) -> None:
            await gate.wait()
            got.append(message)

    bomb = encode_frame(BINARY, Deflate().compress(bytes(MIB // 4)), MASK, compressed=True)
    routes = [Route("/"), Route("/ws", websocket=Slow, compress=True)]
    async with serving(routes=routes) as served:
        peer = await open_websocket(served)
        await peer.send(bomb * 100)
        (connection,) = connections_of(served.server)
        receiver = router_of(served.node).resolve(receiver_of(connection))
        assert receiver is not None
        await until(lambda: len(receiver.mailbox) >= 16)
        honest = await served.dial()
        for _ in range(50):
            await honest.ask(get("/"))

        assert 4 * MIB // (MIB // 4) <= len(receiver.mailbox) <= 4 * MIB // (MIB // 4) + 1
        gate.set()
        await until(lambda: len(got) == 101)
        await peer.aclose()


@pytest.mark.parametrize("opcode", [TEXT, BINARY])
async def test_fragments_of_no_bytes_end_the_connection(opcode: int) -> None:
    start = encode_frame(opcode, b"", MASK)
    empty = b"\x00" + encode_frame(opcode, b"", MASK)[1:]
    async with serving(routes=[Route("/"), actor_route()]) as served:
        peer = await open_websocket(served)
        await peer.send(bytes([start[0] & 0x0F]) + start[1:] + empty * 20_000)
        assert b"\x03\xf1a message is in more than 17408 frames" in await peer.rest()
        assert (await served.ask(get("/"))).status == 200
