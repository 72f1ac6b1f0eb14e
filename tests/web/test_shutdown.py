"""The end of a web server with its owner: graceful shutdown through the supervision tree."""

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
from ergo_py.web import Response, Route, WebServer
from tests.web.rig import Peer, get, until


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
