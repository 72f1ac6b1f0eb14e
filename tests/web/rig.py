"""A web server in a test, and a peer that speaks HTTP by hand."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from ergo_py import NO_REPLY, PID, Actor, Alias, Caller, Node, open_node
from ergo_py.web import HTTPRequest, Response, WebServer

__all__ = [
    "UPGRADE",
    "Owner",
    "Peer",
    "Reply",
    "Served",
    "get",
    "later",
    "post",
    "serving",
    "until",
]

Handle = Callable[[HTTPRequest], object]


def get(path: str = "/", *fields: str, host: str = "a", method: str = "GET") -> bytes:
    """A request without a body."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *fields, "", ""]
    return "\r\n".join(lines).encode()


UPGRADE = get(
    "/talk",
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
"""The request for a WebSocket at ``/talk``."""


def post(path: str, body: bytes, *fields: str) -> bytes:
    """A request with a body."""
    return get(path, f"Content-Length: {len(body)}", *fields, method="POST") + body


@dataclass
class Reply:
    """A response, as the peer sees it."""

    status: int
    headers: dict[str, str]
    body: bytes


class Peer:
    """A client that speaks HTTP by hand."""

    def __init__(self, stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]) -> None:
        self.stream = stream
        self.buffer = b""

    async def send(self, data: bytes) -> None:
        """Send bytes."""
        await self.stream.send_all(data)

    async def more(self) -> bool:
        """Read more bytes. False at the end."""
        data = await self.stream.receive_some(65536)
        self.buffer += data
        return bool(data)

    async def until(self, end: bytes) -> bytes:
        """Read up to and including ``end``."""
        while end not in self.buffer:
            assert await self.more(), f"the stream ended with {self.buffer!r}"
        found, _, self.buffer = self.buffer.partition(end)
        return found + end

    async def exactly(self, size: int) -> bytes:
        """Read so many bytes."""
        while len(self.buffer) < size:
            assert await self.more(), f"the stream ended with {self.buffer!r}"
        found, self.buffer = self.buffer[:size], self.buffer[size:]
        return found

    async def rest(self) -> bytes:
        """Read until the end."""
        while await self.more():
            pass
        found, self.buffer = self.buffer, b""
        return found

    async def head(self) -> Reply:
        """Read the head of a response."""
        lines = (await self.until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        version, status, _ = lines[0].split(" ", 2)
        assert version == "HTTP/1.1"
        headers: dict[str, str] = {}
        for line in filter(None, lines[1:]):
            name, _, value = line.partition(": ")
            assert name not in headers or name == "set-cookie"
            headers[name] = value
        return Reply(int(status), headers, b"")

    async def reply(self, method: str = "GET") -> Reply:
        """Read a whole response."""
        reply = await self.head()
        if method == "HEAD" or reply.status in (101, 204, 304):
            return reply
        if reply.headers.get("transfer-encoding") == "chunked":
            while size := int(await self.until(b"\r\n"), 16):
                reply.body += await self.exactly(size)
                assert await self.exactly(2) == b"\r\n"
            assert await self.exactly(2) == b"\r\n"
        elif "content-length" in reply.headers:
            reply.body = await self.exactly(int(reply.headers["content-length"]))
        else:
            reply.body = await self.rest()
        return reply

    async def ask(self, data: bytes) -> Reply:
        """Send a request, and read its response."""
        await self.send(data)
        return await self.reply(data.split(b" ", 1)[0].decode())

    async def aclose(self) -> None:
        """Leave."""
        await self.stream.aclose()


class Owner(Actor):
    """Owns the server, and answers with a function."""

    def __init__(self, server: WebServer, handle: Handle | None) -> None:
        self.server = server
        self.handle = handle
        self.messages: list[object] = []
        self.callers: list[Caller] = []

    async def init(self) -> None:
        self.alias = await self.spawn_meta(self.server)

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        self.messages.append(message)
        if callable(message):
            message(self)

    def handle_call(self, request: object, caller: Caller) -> object:
        if not isinstance(request, HTTPRequest):
            return self
        self.callers.append(caller)
        return Response(200, "ok") if self.handle is None else self.handle(request)


@dataclass
class Served:
    """A node with a web server."""

    node: Node
    server: WebServer
    owner: Any
    pid: PID
    peers: list[Peer] = field(default_factory=list)

    async def dial(self) -> Peer:
        """Connect to the server. The connection is closed after the server, if not before."""
        peer = Peer(await trio.open_tcp_stream(*self.server.local))
        self.peers.append(peer)
        return peer

    async def ask(self, data: bytes) -> Reply:
        """Ask over a connection of its own."""
        peer = await self.dial()
        try:
            return await peer.ask(data)
        finally:
            await peer.aclose()

    async def facts(self, *items: str) -> dict[str, str]:
        """The counters of the server."""
        return await self.node.inspect_meta(self.owner.alias, *items)

    def run(self, work: Callable[[Any], object]) -> None:
        """Let the owner do something in its turn."""
        self.node.send(self.pid, work)


@asynccontextmanager
async def serving(handle: Handle | None = None, **options: Any) -> AsyncIterator[Served]:
    """A node with a web server, whose owner answers with ``handle``."""
    level = options.pop("log_level", "warning")
    server = WebServer(**options)
    peers: list[Peer] = []
    async with open_node("web@localhost", log_output="none", log_level=level) as node:
        pid = await node.spawn(Owner, server, handle)
        yield Served(node, server, await node.call(pid, None), pid, peers)
    for peer in peers:
        await trio.aclose_forcefully(peer.stream)


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    while not condition():  # noqa: ASYNC110 - the condition may be anything
        await trio.sleep(0.001)


def later(_: HTTPRequest) -> object:
    """Defer the answer."""
    return NO_REPLY


Work = Callable[[], Awaitable[None]]
