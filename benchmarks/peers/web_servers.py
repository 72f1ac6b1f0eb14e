"""Web servers to measure: ``python -m benchmarks.peers.web_servers NAME``. Each answers ``GET
/hello`` with 13 bytes, or sends every WebSocket message back; each prints its port.

``hand`` is the least that a server with this parser can do on trio: plain sockets, a single poller
for all of them, the parser, and a response from a constant; no actors, no limits, no time limits.
"""

import asyncio
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

import trio
from trio.lowlevel import wait_readable

from ergo_py import PID, Actor, Alias, Caller, Node, Pool, PoolSpec, run
from ergo_py._core.runtime.parking import TrioTurns
from ergo_py.meta.poller import SocketPoller
from ergo_py.web import WS, HTTPRequest, Mount, Response, Route, WebServer
from ergo_py.web.parsing.http1 import RequestParser

__all__ = ["SERVERS"]

_HELLO = b"Hello, world!"


def _tell(port: int) -> None:
    print(f"listening at 127.0.0.1:{port}", flush=True)


def _listener() -> socket.socket:
    sock = socket.create_server(("127.0.0.1", 0), backlog=1024)
    _tell(sock.getsockname()[1])
    return sock


# -- ours ------------------------------------------------------------------------------------------


class Plain(Actor):
    """Answers on the spot."""

    def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case HTTPRequest("GET", ("hello",)):
                return Response(200, "Hello, world!")
        return Response(404)


class Async(Actor):
    """Answers in an async callback."""

    async def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case HTTPRequest("GET", ("hello",)):
                return Response(200, "Hello, world!")
        return Response(404)


class Echo(Actor):
    """The actor of a WebSocket."""

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case WS.Text(connection, content) | WS.Binary(connection, content):
                self.send(connection, WS.Send(content))


class Owner(Actor):
    def __init__(self, *routes: Any) -> None:
        self.server = WebServer(routes=routes)

    async def init(self) -> None:
        await self.spawn_meta(self.server)
        _tell(self.server.local.port)


async def application(scope: Any, receive: Any, send: Any) -> None:
    """The ASGI application of all servers that take one."""
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"13")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": _HELLO})


def _ours(*routes: Any, answers: type[Actor] | None = None, workers: int = 0) -> None:
    async def main(node: Node) -> None:
        if answers is not None and workers:
            await node.spawn(Pool, PoolSpec(answers, size=workers), name="answers")
        elif answers is not None:
            await node.spawn(answers, name="answers")
        await node.spawn(Owner, *routes)
        await trio.sleep_forever()

    run(main, name="web@localhost", log_output="none")


# -- others ----------------------------------------------------------------------------------------


def _uvicorn() -> None:
    uvicorn: Any = import_module("uvicorn")

    sock = _listener()
    config = uvicorn.Config(
        application, loop="uvloop", http="httptools", access_log=False, log_level="error"
    )
    uvicorn.Server(config).run(sockets=[sock])


def _hypercorn() -> None:
    serve: Any = import_module("hypercorn.trio").serve

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config: Any = import_module("hypercorn.config").Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.accesslog = config.errorlog = None

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, application, config)
            while True:
                try:
                    await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                    break
                except OSError:
                    await trio.sleep(0.01)
            _tell(port)

    trio.run(main)


def _aiohttp() -> None:
    import uvloop  # noqa: PLC0415

    web: Any = import_module("aiohttp.web")

    async def hello(_: Any) -> Any:
        return web.Response(body=_HELLO, content_type="text/plain")

    async def main() -> None:
        app = web.Application()
        app.router.add_get("/hello", hello)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.SockSite(runner, _listener()).start()
        await asyncio.Event().wait()

    uvloop.run(main())


def _websockets() -> None:
    from websockets.asyncio.server import serve  # noqa: PLC0415
    from websockets.exceptions import ConnectionClosed  # noqa: PLC0415

    async def echo(connection: Any) -> None:
        with suppress(ConnectionClosed):  # the load leaves without a close
            async for message in connection:
                await connection.send(message)

    async def main() -> None:
        async with serve(echo, sock=_listener(), compression=None):
            await asyncio.Event().wait()

    asyncio.run(main())


def _by_hand() -> None:
    answer = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=utf-8\r\n"
        b"date: Mon, 16 Nov 2026 09:00:00 GMT\r\ncontent-length: 13\r\n\r\n" + _HELLO
    )

    async def serve(poller: SocketPoller, sock: socket.socket) -> None:
        parser = RequestParser()

        def read() -> bool:
            try:
                data = sock.recv(4096)
            except BlockingIOError:
                return True
            except OSError:  # the client has left
                data = b""
            parser.feed(data)
            while parser.next_head() is not None:
                sock.send(answer)
            return bool(data)

        with sock:
            await poller.watch(sock, read)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            poller = SocketPoller(nursery.start_soon)
            poller.open(TrioTurns())
            with _listener() as listener:
                listener.setblocking(False)
                while True:
                    await wait_readable(listener)
                    sock, _ = listener.accept()
                    sock.setblocking(False)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    nursery.start_soon(serve, poller, sock)

    trio.run(main)


SERVERS: dict[str, Callable[[], object]] = {
    "plain": lambda: _ours(Route("/", to="answers"), answers=Plain),
    "async": lambda: _ours(Route("/", to="answers"), answers=Async),
    "pool": lambda: _ours(Route("/", to="answers"), answers=Plain, workers=8),
    "mounted": lambda: _ours(Mount("/", asgi=application)),
    "echo": lambda: _ours(Route("/", websocket=Echo)),
    "hand": _by_hand,
    "uvicorn": _uvicorn,
    "hypercorn": _hypercorn,
    "aiohttp": _aiohttp,
    "websockets": _websockets,
}

if __name__ == "__main__":
    SERVERS[sys.argv[1]]()
