"""Worlds of nodes with sockets, for several tests."""

from typing import Any

import trio

from ergo_py import Actor, Caller, ErgoError, Node
from ergo_py.meta import TCP, Delimiter, TCPConnection, TCPServer, UnixConnection, UnixServer
from ergo_py.testing import World
from ergo_py.testing.world.node import WorldNode
from ergo_py.web import HTTPRequest, Response, Route, WebServer

__all__ = ["busy", "start"]

LINES = Delimiter(b"\n", max_frame=65_536)


class Echo(Actor):
    """Servers with reader tasks and with reader threads; each answers with the line."""

    async def init(self) -> None:
        await self.spawn_meta(TCPServer(port=7001, reader="task", framing=LINES))
        await self.spawn_meta(TCPServer(port=7002, reader="thread", framing=LINES))
        await self.spawn_meta(UnixServer("/run/echo", framing=LINES))
        await self.spawn_meta(WebServer(port=8000, routes=[Route("/")]))

    def handle_message(self, message: Any, sender: Any) -> None:
        match message:
            case TCP.Data(connection, line):
                self.send(connection, TCP.Send(line + b"\n"))

    def handle_call(self, request: Any, caller: Caller) -> Any:
        if isinstance(request, HTTPRequest):
            return Response.html("here are your orders")
        return None


class Client(Actor):
    """Sends lines to a server, and counts its answers."""

    def __init__(self, connect: Any, lines: list[bytes]) -> None:
        self.connect = connect
        self.lines = lines

    async def init(self) -> None:
        self.answers: list[bytes] = []
        self.ended = ""
        self.connection = await self.spawn_meta(self.connect())
        for line in self.lines:
            self.send(self.connection, TCP.Send(line))

    def handle_message(self, message: Any, sender: Any) -> None:
        match message:
            case TCP.Data(_, line):
                self.answers.append(line)
            case TCP.Disconnected(_, reason):
                self.ended = reason.value
            case ("send", line):
                self.send(self.connection, TCP.Send(line))

    def handle_call(self, request: Any, caller: Caller) -> Any:
        return [b"".join(self.answers), self.ended]


def over_tcp(port: int, reader: Any) -> Any:
    return lambda: TCPConnection.connect("localhost", port, reader=reader)


CONNECTS: list[Any] = [
    over_tcp(7001, "task"),
    over_tcp(7001, "thread"),
    over_tcp(7002, "task"),
    over_tcp(7002, "thread"),
    lambda: UnixConnection.connect("/run/echo"),
]
REQUEST = b"GET /orders HTTP/1.1\r\nHost: a\r\n\r\n"


async def start(node: Node) -> None:
    """Start the servers on the first node."""
    if node.name.startswith("a@"):
        await node.spawn(Echo, name="echo")


async def visit(world: World, client: WorldNode, number: int) -> None:
    """Send lines, or a request of HTTP, and look at the answers."""
    await trio.sleep(world.random.uniform(0.0, 1.0))
    kind = number % (len(CONNECTS) + 1)
    lines = [b"line %d\n" % step for step in range(3)]
    connect, sends = (
        (CONNECTS[kind], lines) if kind < len(CONNECTS) else (over_tcp(8000, "task"), [REQUEST])
    )
    try:
        pid = await client.run(lambda node: node.spawn(Client, connect, sends))
        await trio.sleep(2.0)
        await client.call(pid, "answers")
    except ErgoError as error:
        world.note(f"{client.name}: {type(error).__name__}")


async def busy(world: World) -> None:
    """Clients of a node talk to the servers of another, under all faults of sockets."""
    _, b = await world.start(2, start)
    world.faults(
        seconds=2.0,
        stall_sockets=0.3,
        slow_sockets=0.5,
        tear_sockets=0.5,
        reset_sockets=0.3,
        crash=0.1,
        pause=0.2,
    )
    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(visit, world, b, number)
    await world.heal()
