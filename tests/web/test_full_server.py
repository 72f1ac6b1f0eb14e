"""A server at `max_connections`: which connections give way, and how many there are meanwhile."""

import socket
from contextlib import ExitStack

import pytest
import trio
from trio.lowlevel import checkpoint

from ergo_py import NO_REPLY, PID, Actor, Alias
from ergo_py.web import WS, HTTPRequest, Response, Route
from tests.web.rig import UPGRADE, Peer, Served, get, serving, until

CLOSE = b"\x88\x04\x03\xe8ok"
CLOSE_OF_PEER = b"\x88\x80" + bytes(4)


class Curt(Actor):
    """Closes its WebSocket at once."""

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        if isinstance(message, WS.Connected):
            self.send(message.connection, WS.Close(1000, "ok"))


class Long(Actor):
    """Sends much, and closes."""

    def __init__(self, size: int) -> None:
        self.size = size

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        if isinstance(message, WS.Connected):
            self.send(message.connection, WS.Send(bytes(self.size)))
            self.send(message.connection, WS.Close(1000, "ok"))


def handle(request: HTTPRequest) -> object:
    """Answer some requests, and let the others wait."""
    return Response(200) if request.path == ("at-once",) else NO_REPLY


async def closing(served: Served, *, answers: bool) -> Peer:
    """A WebSocket that its actor has closed. Its peer never closes its side."""
    peer = await served.dial()
    await peer.send(UPGRADE)
    assert (await peer.head()).status == 101
    await peer.exactly(6)  # the close of the actor
    if answers:
        await peer.send(CLOSE_OF_PEER)
        assert await peer.rest() == b""
    return peer


async def idle(served: Served) -> Peer:
    """A connection without a request."""
    peer = await served.dial()
    assert (await peer.ask(get("/at-once"))).status == 200
    return peer


@pytest.mark.parametrize("kind", ["closing", "closed", "idle"])
@pytest.mark.parametrize("count", [1, 3])
async def test_each_connection_gives_way_to_a_single_peer(kind: str, count: int) -> None:
    routes = [Route("/talk", websocket=Curt), Route("/")]
    with trio.fail_after(30), ExitStack() as stack:
        # No connection ends by the patience with a peer that does not close its side.
        async with serving(handle, routes=routes, max_connections=3, linger=1000.0) as served:
            server, waiting = served.server, served.owner.callers
            for _ in range(count):
                if kind == "idle":
                    await idle(served)
                else:
                    await closing(served, answers=kind == "closed")
            await trio.sleep(1.1)  # idle connections keep their places for a second
            waiting.clear()
            for _ in range(30):
                other = stack.enter_context(
                    socket.create_connection((server.local.host, server.local.port))
                )
                other.sendall(get("/later"))
            most = 0
            while len(waiting) < 3 or server.connections > 3:
                await checkpoint()
                most = max(most, server.connections)
            # Those that give way are counted until their sockets are closed.
            assert most <= 3 + count


async def dial_with_small_window(served: Served) -> Peer:
    """A peer whose system takes few bytes before the peer reads."""
    sock = trio.socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await sock.connect(tuple(served.server.local))
    served.peers.append(Peer(trio.SocketStream(sock)))
    return served.peers[-1]


@pytest.mark.parametrize(
    "size", [30_000_000, 100_000], ids=["in the connection", "in the operating system"]
)
async def test_a_closing_websocket_keeps_its_place_until_its_peer_has_all_messages(
    size: int,
) -> None:
    routes = [Route("/talk", websocket=Long.spec(size)), Route("/")]
    with trio.fail_after(30):
        async with serving(handle, routes=routes, max_connections=2) as served:
            waits_here = size > 1_000_000
            peer = await (served.dial() if waits_here else dial_with_small_window(served))
            await peer.send(UPGRADE)
            assert (await peer.head()).status == 101
            await peer.exactly(1_000)
            (connection,) = served.server.open_connections()
            await until(lambda: connection.messages_out == 3)
            other = await idle(served)
            other = await idle(served)  # in the place of the last
            assert bool(connection.pending) is waits_here
            assert connection in served.server.open_connections()
            # The frame has a head of 10 bytes.
            found = await peer.exactly(10 + size - 1_000 + len(CLOSE))
            assert found.endswith(CLOSE)
            # The other connection has had a request in the last second.
            assert (await other.ask(get("/at-once"))).status == 200
            await idle(served)
            assert await peer.rest() == b""
            await until(lambda: served.server.connections == 2)
