"""Sockets of a world carry bytes in memory, with the faults of the plan."""

import os
import socket
import ssl
from functools import partial
from typing import Any

import pytest
import trio
from trio.lowlevel import checkpoint

from ergo_py import Actor, InitError, Node
from ergo_py.meta import Endpoint, TCPConnection, TCPServer
from ergo_py.testing import World
from ergo_py.testing.world.node import WorldNode
from ergo_py.testing.world.outside import OutsideError
from ergo_py.testing.world.plan import Plan
from ergo_py.testing.world.world import run_world
from tests.testing.world.machine.connected import CONNECTS, REQUEST, Client, over_tcp, start

LINES = [b"line %d\n" % step for step in range(20)]


def run(test: Any, plan: str = "seed=1") -> World:
    world = World(Plan.read(plan), is_drawn=False)
    failure = run_world(world, test)
    if failure is not None:
        raise failure
    return world


async def no_socket() -> socket.socket:
    """A world opens no sockets of the system."""
    raise AssertionError


async def spawn_client(client: WorldNode, connect: Any, lines: list[bytes]) -> Any:
    return await client.run(lambda node: node.spawn(Client, connect, lines))


@pytest.mark.parametrize(
    "fault", ["", "0 tear_sockets b@world 30", "0 slow_sockets a@world 30 0.5"]
)
@pytest.mark.parametrize("number", range(len(CONNECTS)))
def test_bytes_arrive_complete_and_in_order(number: int, fault: str) -> None:
    async def test(world: World) -> None:
        _, b = await world.start(2, start)
        world.faults()
        pid = await spawn_client(b, CONNECTS[number], LINES)
        await trio.sleep(30)
        assert await b.call(pid, "answers") == [b"".join(LINES), ""]

    run(test, f"seed=1; {fault}")


def test_a_web_server_answers_a_torn_request() -> None:
    async def test(world: World) -> None:
        _, b = await world.start(2, start)
        world.faults()
        pid = await spawn_client(b, over_tcp(8000, "task"), [REQUEST])
        await trio.sleep(5)
        answer, _ = await b.call(pid, "answers")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"date: Thu, 01 Jan 2026 00:00:" in answer
        assert answer.endswith(b"here are your orders")

    run(test, "seed=1; 0 tear_sockets a@world 30")


def test_a_stall_holds_bytes_until_its_end() -> None:
    async def test(world: World) -> None:
        _, b = await world.start(2, start)
        pid = await spawn_client(b, CONNECTS[0], [])
        world.faults()
        await trio.sleep(1)
        b.node.send(pid, ("send", b"late\n"))
        await trio.sleep(3)
        assert await b.call(pid, "answers") == [b"", ""]
        await trio.sleep(2)
        assert await b.call(pid, "answers") == [b"late\n", ""]

    run(test, "seed=1; 0.5 stall_sockets a@world 4")


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_reset_ends_the_connection_at_both_ends(number: int) -> None:
    async def test(world: World) -> None:
        _, b = await world.start(2, start)
        pid = await spawn_client(b, CONNECTS[number], LINES)
        world.faults()
        await trio.sleep(2)
        answers, ended = await b.call(pid, "answers")
        assert answers == b"".join(LINES)
        assert "reset" in ended
        assert await b.call(await spawn_client(b, CONNECTS[number], []), "answers") == [b"", ""]
        assert [name for name in world.sockets.names if "listens" not in name] != []

    run(test, "seed=1; 1 reset_sockets b@world 0.1")


def test_a_connection_may_be_reset_in_the_moment_in_which_its_bytes_arrive() -> None:
    async def test(world: World) -> None:
        [a] = await world.start(1, start)
        address = Endpoint("127.0.0.1", 7001)

        async def reset(_node: Node) -> None:
            for passes in range(20):
                end = await world.sockets.connect(address, socket.SOCK_STREAM, no_socket)
                end.send(b"a")
                for _ in range(passes % 4):
                    await checkpoint()
                world.sockets.reset(a.name)
                with pytest.raises(ConnectionResetError):
                    end.send(b"b")
                end.close()
                await trio.sleep(0.1)

        await a.run(reset)

    run(test)


def test_a_crash_resets_connections_and_a_restart_listens_again() -> None:
    async def test(world: World) -> None:
        _, b = await world.start(2, start)
        pids = [await spawn_client(b, connect, LINES) for connect in CONNECTS]
        world.faults()
        await trio.sleep(2)
        for pid in pids:
            assert (await b.call(pid, "answers"))[1]
        with pytest.raises(InitError) as raised:
            await spawn_client(b, CONNECTS[0], [])
        assert "refused" in str(raised.value.__cause__ or raised.value)
        await trio.sleep(2)
        pid = await spawn_client(b, CONNECTS[0], LINES)
        await trio.sleep(1)
        assert await b.call(pid, "answers") == [b"".join(LINES), ""]

    run(test, "seed=1; 1 crash a@world 2")
    before = len(os.listdir("/dev/fd"))
    run(test, "seed=1; 1 crash a@world 2")

    assert len(os.listdir("/dev/fd")) <= before


def test_a_port_is_free_or_taken() -> None:
    class Server(Actor):
        def __init__(self, port: int) -> None:
            self.server = TCPServer(port=port)

        async def init(self) -> None:
            await self.spawn_meta(self.server)

        def handle_call(self, request: Any, caller: Any) -> Any:
            return self.server.local.port

    async def test(world: World) -> None:
        a, b = await world.start(2)
        free = await a.node.spawn(Server, 0)
        port = await a.call(free, "port")
        assert port > 0
        with pytest.raises(InitError, match="in use"):
            await b.node.spawn(Server, port)
        a.node.kill(free)
        await trio.sleep(1)
        await b.node.spawn(Server, port)

    run(test)


def test_tls_comes_from_outside() -> None:
    """Its keys are random: no seed repeats its bytes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    async def begin(node: Node) -> None:
        connect = partial(TCPConnection.connect, "127.0.0.1", 7001, tls=context, server_name="a")
        await node.spawn(Client, connect, [])

    async def test(world: World) -> None:
        await world.start(1, start)
        await world.start(["b@world"], begin)

    with pytest.raises(OutsideError, match="TLS"):
        run(test)


def test_no_socket_is_left_after_a_world() -> None:
    async def test(world: World) -> None:
        _, b = await world.start(2, start)
        for connect in (*CONNECTS, partial(TCPConnection.connect, "127.0.0.1", 8000)):
            await spawn_client(b, connect, LINES)

    run(test)
    before = sorted(os.listdir("/dev/fd"))
    world = run(test)

    assert sorted(os.listdir("/dev/fd")) == before
    assert world.sockets.names == []
