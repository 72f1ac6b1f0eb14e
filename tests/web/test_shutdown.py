"""The end of a web server with its owner: graceful shutdown through the supervision tree."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from ergo_py import (
    NO_REPLY,
    PID,
    Actor,
    Alias,
    Caller,
    ChildSpec,
    Shutdown,
    Supervisor,
    open_node,
)
from ergo_py.testing import VirtualClock
from ergo_py.web import Drain, HTTPRequest, Mount, Response, Route, WebServer
from ergo_py.web.routes import Place
from tests.web.rig import Owner, Peer, get, until

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Worker(Actor):
    """Answers when it is told to."""

    callers: list[Caller] = []

    def handle_call(self, request: object, caller: Caller) -> object:
        self.callers.append(caller)
        return NO_REPLY

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        self.reply(self.callers.pop(), Response(200, "in time"))


class Front(Actor):
    def __init__(self, servers: list[WebServer]) -> None:
        self.server = WebServer(routes=[Route("/", to="worker")])
        servers.append(self.server)

    async def init(self) -> None:
        await self.spawn_meta(self.server)


async def test_a_response_of_another_process_is_written_while_the_owner_stops() -> None:
    Worker.callers = []
    servers: list[WebServer] = []
    children = [ChildSpec("worker", Worker), ChildSpec("front", Front, servers)]
    async with open_node("web@localhost", log_output="none") as node:
        top = await node.spawn(Supervisor, children)
        peer = Peer(await trio.open_tcp_stream(*servers[0].local))
        await peer.send(get())
        await until(lambda: Worker.callers)
        node.send_exit(top, Shutdown())
        # The server accepts no connection, and the request under way still has its receiver.
        with pytest.raises(OSError, match=r"all attempts|refused"):
            while True:
                await (await trio.open_tcp_stream(*servers[0].local)).aclose()
                await trio.sleep(0.001)
        await trio.testing.wait_all_tasks_blocked(0.01)
        node.send("worker", "answer")
        reply = await peer.reply()
        assert (reply.status, reply.body) == (200, b"in time")
        assert reply.headers["connection"] == "close"
        assert await peer.rest() == b""
        await peer.aclose()
        await node.wait_ended(top)


def test_a_receiver_that_does_not_answer_delays_a_shutdown_for_a_bounded_time() -> None:
    async def run() -> None:
        Worker.callers = []
        servers: list[WebServer] = []
        children = [ChildSpec("worker", Worker), ChildSpec("front", Front, servers)]
        async with open_node("web@localhost", log_output="none") as node:
            top = await node.spawn(Supervisor, children)
            peer = Peer(await trio.open_tcp_stream(*servers[0].local))
            await peer.send(get())
            await until(lambda: Worker.callers)
            begun = trio.current_time()
            node.send_exit(top, Shutdown())
            assert (await peer.reply()).status == 503
            assert 3.9 <= trio.current_time() - begun <= 5.1
            await peer.aclose()

    trio.run(run, clock=VirtualClock())


# -- streamed responses ----------------------------------------------------------------------------


async def endless(scope: Message, receive: Receive, send: Send) -> None:
    """An ASGI application that streams until it is stopped."""
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": b"part", "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass


class Streaming(Owner):
    """Begins a stream that has no end, unless another place answers."""

    async def init(self) -> None:
        self.alias = await self.spawn_meta(self.server, stop_timeout=0.1)

    def handle_call(self, request: object, caller: Caller) -> object:
        if not isinstance(request, HTTPRequest):
            return self
        self.reply(caller, Response(200, stream=True))
        self.send(request.connection, Response.Write(request.ref, b"part"))
        return NO_REPLY


PLACES: dict[str, Callable[[], Place]] = {
    "actor": lambda: Route("/"),
    "asgi": lambda: Mount("/", asgi=endless),
}


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("end", ["shutdown", "exit", "kill", "half-close", "drain"])
@pytest.mark.parametrize("place", list(PLACES))
async def test_a_part_of_a_response_never_looks_like_the_whole(
    place: str, end: str, version: str
) -> None:
    server = WebServer(routes=[PLACES[place]()])
    async with open_node("web@localhost", log_output="none", log_level="critical") as node:
        pid = await node.spawn(Streaming, server, None)
        owner = await node.call(pid, None)
        peer = Peer(await trio.open_tcp_stream(*server.local))
        try:
            await peer.send(f"GET / HTTP/{version}\r\nHost: a\r\n\r\n".encode())
            await peer.until(b"part")
            match end:
                case "shutdown":
                    node.send_exit(pid, Shutdown())
                case "exit":
                    node.send_exit(pid, "stop")
                case "kill":
                    node.kill(pid)
                case "half-close":
                    await peer.stream.send_eof()
                case "drain":
                    assert await node.call(owner.alias, Drain(0.01)) == 1
            with pytest.raises(trio.BrokenResourceError):
                await peer.rest()
        finally:
            await peer.aclose()


# -- mounted applications --------------------------------------------------------------------------


class Shop:
    """An application whose requests end when the test says so."""

    def __init__(self) -> None:
        self.begun = 0
        self.release = trio.Event()
        self.heard: list[str] = []

    async def asgi(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            self.heard.append("lifespan.shutdown")
            await send({"type": "lifespan.shutdown.complete"})
            return
        await receive()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.listen, receive)
            self.begun += 1
            await self.release.wait()
            await send({"type": "http.response.start", "status": 200})
            for piece in (b"in ", b"time"):
                message = {"type": "http.response.body", "body": piece, "more_body": True}
                await send(message)
                await trio.lowlevel.checkpoint()
            await send({"type": "http.response.body", "body": b""})

    async def listen(self, receive: Receive) -> None:
        self.heard.append((await receive())["type"])

    def let_go(self) -> None:
        self.release.set()


async def test_a_request_of_an_application_finishes_while_the_server_stops() -> None:
    shop = Shop()
    server = WebServer(routes=[Mount("/", asgi=shop.asgi)])
    async with open_node("web@localhost", log_output="none") as node:
        pid = await node.spawn(Owner, server, None)
        peers = [Peer(await trio.open_tcp_stream(*server.local)) for _ in range(3)]
        for peer in peers:
            await peer.send(get())
        await until(lambda: shop.begun == 3)
        node.send_exit(pid, Shutdown())
        await until(lambda: server.is_draining)
        await trio.testing.wait_all_tasks_blocked(0.01)
        shop.let_go()
        for peer in peers:
            reply = await peer.reply()
            assert (reply.status, reply.body) == (200, b"in time")
            assert reply.headers["connection"] == "close"
            assert await peer.rest() == b""
            await peer.aclose()
        await node.wait_ended(pid)

    assert shop.heard == ["http.disconnect"] * 3 + ["lifespan.shutdown"]


def test_a_request_of_an_application_that_takes_too_long_is_503() -> None:
    async def run() -> None:
        shop = Shop()
        server = WebServer(routes=[Mount("/", asgi=shop.asgi)])
        async with open_node("web@localhost", log_output="none") as node:
            pid = await node.spawn(Owner, server, None)
            peer = Peer(await trio.open_tcp_stream(*server.local))
            await peer.send(get())
            await until(lambda: shop.begun)
            begun = trio.current_time()
            node.send_exit(pid, Shutdown())
            assert (await peer.reply()).status == 503
            assert 3.9 <= trio.current_time() - begun <= 4.5
            await node.wait_ended(pid)
            assert trio.current_time() - begun <= 7.0
            await peer.aclose()
        assert shop.heard[0] == "http.disconnect"

    trio.run(run, clock=VirtualClock())


async def test_an_upload_that_has_not_come_whole_is_503_at_once_when_the_server_stops() -> None:
    waits = trio.Event()

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        assert (await receive())["more_body"]
        waits.set()
        assert (await receive())["type"] == "http.disconnect"

    server = WebServer(routes=[Mount("/", asgi=without_lifespan(app))])
    async with open_node("web@localhost", log_output="none") as node:
        pid = await node.spawn(Owner, server, None)
        peer = Peer(await trio.open_tcp_stream(*server.local))
        await peer.send(get("/", "Content-Length: 10", method="POST") + b"12345")
        await waits.wait()
        await trio.testing.wait_all_tasks_blocked(0.01)
        node.send_exit(pid, Shutdown())
        with trio.fail_after(2.0):
            assert (await peer.reply()).status == 503
        await peer.aclose()


def without_lifespan(app: Callable[[Message, Receive, Send], Awaitable[None]]) -> Any:
    async def outer(scope: Message, receive: Receive, send: Send) -> None:
        assert scope["type"] != "lifespan"
        await app(scope, receive, send)

    return outer


# -- the bytes of a response -----------------------------------------------------------------------


class Large(Owner):
    """Answers with many bytes."""

    def handle_call(self, request: object, caller: Caller) -> object:
        return Response(200, bytes(LARGE)) if isinstance(request, HTTPRequest) else self


LARGE = 8_000_000


async def test_a_response_that_a_peer_still_takes_comes_whole_while_the_server_stops() -> None:
    server = WebServer()
    async with open_node("web@localhost", log_output="none") as node:
        pid = await node.spawn(Large, server, None)
        peer = Peer(await trio.open_tcp_stream(*server.local))
        await peer.send(get())
        await peer.head()
        node.send_exit(pid, Shutdown())
        await until(lambda: server.is_draining)
        taken = len(peer.buffer)
        while data := await peer.stream.receive_some(1 << 20):
            taken += len(data)
        assert taken == LARGE
        await peer.aclose()


def test_a_peer_that_takes_nothing_delays_a_shutdown_for_a_second() -> None:
    async def run() -> None:
        server = WebServer()
        async with open_node("web@localhost", log_output="none") as node:
            pid = await node.spawn(Large, server, None)
            peer = Peer(await trio.open_tcp_stream(*server.local))
            await peer.send(get())
            await peer.head()
            begun = trio.current_time()
            node.send_exit(pid, Shutdown())
            await node.wait_ended(pid)
            assert trio.current_time() - begun <= 2.5
            with pytest.raises(trio.BrokenResourceError):
                await peer.rest()
            await peer.aclose()

    trio.run(run, clock=VirtualClock())


async def test_a_stream_of_events_ends_in_order_when_the_server_stops() -> None:
    class Events(Owner):
        def handle_call(self, request: object, caller: Caller) -> object:
            return Response.events() if isinstance(request, HTTPRequest) else self

    server = WebServer()
    async with open_node("web@localhost", log_output="none") as node:
        pid = await node.spawn(Events, server, None)
        peer = Peer(await trio.open_tcp_stream(*server.local))
        await peer.send(get())
        await peer.head()
        node.send_exit(pid, Shutdown())
        assert await peer.rest() == b"0\r\n\r\n"
        await peer.aclose()
