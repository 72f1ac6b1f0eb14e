"""Web servers to measure: ``python -m benchmarks.peers.web_servers NAME``. Each answers ``GET
/hello`` with 13 bytes, or ``GET /BYTES`` with a file of that size, or sends every WebSocket message
back; each prints its port.

``hand`` is the least that a server with this parser can do on trio: plain sockets, a single poller
for all of them, the parser, and a response from a constant; no actors, no limits, no time limits.
``files by hand`` looks at the file for each request, too, and sends its bytes from memory.
"""

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import trio
from trio.lowlevel import wait_readable

from ergo_py import PID, Actor, Alias, Caller, Node, Pool, PoolSpec, run
from ergo_py._core.runtime.parking import TrioTurns
from ergo_py.meta.poller import SocketPoller
from ergo_py.web import WS, Files, HTTPRequest, Mount, Response, Route, WebServer
from ergo_py.web.parsing.http1 import RequestParser

__all__ = ["FILES", "SERVERS"]

FILES = (10_000, 1_000_000)
"""The sizes of the files, which are their names."""
_HELLO = b"Hello, world!"
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"date: Mon, 16 Nov 2026 09:00:00 GMT\r\ncontent-length: %d\r\n\r\n"
)


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


def _by_hand(answer_to: Callable[[str], bytes]) -> None:
    async def finish(sock: socket.socket, rest: memoryview) -> None:
        # The client asks again when it has everything: no other code writes meanwhile.
        with suppress(OSError):  # the client has left
            while rest:
                await trio.lowlevel.wait_writable(sock)
                rest = rest[sock.send(rest) :]

    async def serve(
        poller: SocketPoller, sock: socket.socket, start: Callable[..., object]
    ) -> None:
        parser = RequestParser()

        def read() -> bool:
            try:
                data = sock.recv(4096)
            except BlockingIOError:
                return True
            except OSError:  # the client has left
                data = b""
            parser.feed(data)
            while (head := parser.next_head()) is not None:
                answer = answer_to(head.target)
                sent = sock.send(answer)
                if sent < len(answer):
                    start(finish, sock, memoryview(answer)[sent:])
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
                    nursery.start_soon(serve, poller, sock, nursery.start_soon)

    trio.run(main)


def _hello_by_hand() -> None:
    answer = _HEAD % len(_HELLO) + _HELLO
    _by_hand(lambda _target: answer)


# -- files -----------------------------------------------------------------------------------------


def _with_files(serve: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for size in FILES:
            Path(directory, str(size)).write_bytes(b"x" * size)
        serve(Path(directory))


def _files_by_hand(directory: Path) -> None:
    kept: dict[str, tuple[str, int, bytes]] = {}
    for size in FILES:
        path = directory / str(size)
        content = path.read_bytes()
        changed = path.stat().st_mtime_ns
        kept[f"/{size}"] = (str(path), changed, _HEAD % len(content) + content)

    def answer_to(target: str) -> bytes:
        path, changed, answer = kept[target]
        if os.stat(path).st_mtime_ns != changed:
            raise AssertionError(f"{path} has changed")
        return answer

    _by_hand(answer_to)


SERVERS: dict[str, Callable[[], object]] = {
    "plain": lambda: _ours(Route("/", to="answers"), answers=Plain),
    "async": lambda: _ours(Route("/", to="answers"), answers=Async),
    "pool": lambda: _ours(Route("/", to="answers"), answers=Plain, workers=8),
    "mounted": lambda: _ours(Mount("/", asgi=application)),
    "echo": lambda: _ours(Route("/", websocket=Echo)),
    "hand": _hello_by_hand,
    "files": lambda: _with_files(lambda directory: _ours(Files("/", directory))),
    "files by hand": lambda: _with_files(_files_by_hand),
    "uvicorn": _uvicorn,
    "hypercorn": _hypercorn,
    "aiohttp": _aiohttp,
    "websockets": _websockets,
}

if __name__ == "__main__":
    SERVERS[sys.argv[1]]()
