"""A server at `max_connections`: which connections give way, and how many there are meanwhile."""

import socket
from contextlib import ExitStack

import pytest
import trio
from trio.lowlevel import checkpoint

from ergo_py import NO_REPLY, PID, Actor, Alias
from ergo_py.web import WS, HTTPRequest, Response, Route
from tests.web.rig import Peer, Served, get, serving

UPGRADE = get(
    "/talk",
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
CLOSE = b"\x88\x04\x03\xe8ok"
CLOSE_OF_PEER = b"\x88\x80" + bytes(4)


class Curt(Actor):
    """Closes its WebSocket at once."""

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        if isinstance(message, WS.Connected):
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
async def test_each_connection_gives_way_to_a_single_peer(
    kind: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ergo_py.web.server._GRACE", 0.05)
    routes = [Route("/talk", websocket=Curt), Route("/")]
    with trio.fail_after(30), ExitStack() as stack:
        async with serving(handle, routes=routes, max_connections=3) as served:
            server, waiting = served.server, served.owner.callers
            for _ in range(count):
                if kind == "idle":
                    await idle(served)
                else:
                    await closing(served, answers=kind == "closed")
            await trio.sleep(0.1)
            waiting.clear()
            for _ in range(30):
                other = stack.enter_context(
                    socket.create_connection((server.local.host, server.local.port))
                )
                other.sendall(get("/later"))
            most = 0
            # The patience with a peer that does not close its side is longer than this.
            with trio.move_on_after(2.0):
                while len(waiting) < 3 or server.connections > 3:
                    await checkpoint()
                    most = max(most, server.connections)
            # Those that give way are counted until their sockets are closed.
            assert (server.connections, len(waiting)) == (3, 3)
            assert most <= 3 + count
