"""Parts of the tests of sockets: an owner that keeps its messages, and servers and peers of each
kind of stream socket.
"""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import pytest
import trio

from ergo_py import PID, Alias, Node, Reject, SpawnError
from ergo_py.meta.readers import ReaderKind
from ergo_py.meta.sockets.handshakes import handshakes_at
from ergo_py.meta.sockets.messages import TCPData, TCPSend
from ergo_py.meta.sockets.streams.connection import StreamConnection
from ergo_py.meta.sockets.tcp import TCPConnection, TCPServer
from ergo_py.meta.sockets.unix import UnixConnection, UnixServer
from tests.actors import Puppet
from tests.support import running_node

__all__ = [
    "Ear",
    "Mail",
    "MovableClock",
    "Wire",
    "dial_with_late_ack",
    "echo",
    "needs_handshakes",
    "needs_ipv6",
    "serve",
    "spawn_meta",
    "until",
    "wired_node",
]

M = TypeVar("M")


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")


def _lists_handshakes() -> bool:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return handshakes_at(listening) is not None


needs_handshakes = pytest.mark.skipif(
    not _lists_handshakes(), reason="this system does not list handshakes"
)


def dial_with_late_ack(address: tuple[str, int]) -> trio.SocketStream:
    """A client whose system sends the last ACK of the handshake with the first data, or after 0.2
    seconds. Until then the connection is not in the queue of the server.
    """
    sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
    sock.connect(address)
    return trio.SocketStream(trio.socket.from_stdlib_socket(sock))


class MovableClock(trio.abc.Clock):
    """Real time, counted from zero, that a test may move ahead: long times need not be waited
    for.
    """

    def __init__(self) -> None:
        self._began = perf_counter()

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return perf_counter() - self._began

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return max(0.0, deadline - self.current_time())

    def move(self, seconds: float) -> None:
        """Let so much time have passed."""
        self._began -= seconds


class Mail:
    """Received messages, in order, and a way to wait for them."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self._news = trio.Event()

    def add(self, message: object) -> None:
        self.heard.append(message)
        self._news.set()
        self._news = trio.Event()

    def of(self, kind: type[M]) -> list[M]:
        return [message for message in self.heard if isinstance(message, kind)]

    async def wait_for(self, kind: type[M], count: int = 1) -> list[M]:
        """The messages of a kind, as soon as there are so many."""
        while len(self.of(kind)) < count:
            await self._news.wait()
        return self.of(kind)

    async def first(self, kind: type[M]) -> M:
        return (await self.wait_for(kind))[0]

    async def bytes(self, count: int) -> bytes:
        """The data of all connections together, as soon as it is so much."""
        while sum(len(message.data) for message in self.of(TCPData)) < count:
            await self._news.wait()
        return b"".join(message.data for message in self.of(TCPData))


class Ear(Puppet):
    """Keeps its messages in a :class:`Mail`, and may react to them; it executes its calls, as any
    puppet.
    """

    def __init__(self, mail: Mail, react: "Callable[[Ear, Any], object] | None" = None) -> None:
        super().__init__()
        self.mail = mail
        self.react = react

    async def handle_message(self, message: Any, sender: Any) -> None:
        self.mail.add(message)
        if self.react is not None:
            self.react(self, message)


def echo(me: Ear, message: object) -> None:
    if isinstance(message, TCPData):
        me.send(message.connection, TCPSend(message.data))


async def spawn_meta(node: Node, owner: PID, behaviour: Any, **options: Any) -> Alias:
    """Have a puppet spawn a meta-process. An error is raised here, and the puppet lives."""

    async def spawn(me: Puppet) -> Alias:
        try:
            return await me.spawn_meta(behaviour, **options)
        except SpawnError as error:
            raise Reject(error) from None

    def request(me: Puppet) -> Any:
        return spawn(me)

    alias = await node.call(owner, request)
    assert isinstance(alias, Alias)
    return alias


async def until(condition: Callable[[], object]) -> None:
    """Wait for a change for which there is no event; the node's time limit bounds it."""
    while not condition():  # noqa: ASYNC110 - there is no event
        await trio.sleep(0.005)


@dataclass
class Wire:
    """A kind of stream socket with a kind of reader."""

    kind: str
    reader: ReaderKind
    directory: Path
    count: int = 0

    def server(self, **options: Any) -> Any:
        if self.kind == "tcp":
            return TCPServer(reader=self.reader, **options)
        self.count += 1
        return UnixServer(self.directory / f"{self.count}.sock", reader=self.reader, **options)

    def server_at(self, address: Any) -> Any:
        """A server for the address of another."""
        if self.kind == "tcp":
            return TCPServer(port=address[1], reader=self.reader)
        return UnixServer(address, reader=self.reader)

    def client(self, server: Any, **options: Any) -> StreamConnection:
        """A client of ours."""
        if self.kind == "tcp":
            return TCPConnection.connect(*server.local, reader=self.reader, **options)
        return UnixConnection.connect(server.local, reader=self.reader, **options)

    async def dial(self, server: Any) -> trio.SocketStream:
        """A client that is not ours."""
        if self.kind == "tcp":
            return await trio.open_tcp_stream(*server.local)
        return await trio.open_unix_socket(server.local)

    def dial_plain(self, server: Any) -> socket.socket:
        """A socket with nothing around it; connecting to a server on this machine does not
        block.
        """
        sock = socket.socket(socket.AF_INET if self.kind == "tcp" else socket.AF_UNIX)
        sock.connect(server.local)
        return sock


@asynccontextmanager
async def wired_node(*, limit: float = 100.0, **options: Any) -> AsyncIterator[Node]:
    """A node for tests with sockets: a test that hangs is ended. A test that moves the clock says
    by how much with ``limit``.
    """
    async with running_node(limit=limit, **options) as node:
        yield node


async def serve(
    node: Node, wire: Wire, react: Callable[[Ear, Any], object] | None = echo, **options: Any
) -> tuple[Any, Mail]:
    """A server with an owner that keeps its mail; by default it is an echo server."""
    mail = Mail()
    owner = await node.spawn(Ear, mail, react)
    server = wire.server(**options)
    await spawn_meta(node, owner, server)
    return server, mail
