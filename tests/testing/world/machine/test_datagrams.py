"""UDP sockets of a world carry datagrams in memory, with the faults of the plan."""

import os
from functools import partial
from typing import Any

import pytest
import trio

from ergo_py import Actor, InitError, Node
from ergo_py.meta import UDP, UDPClient, UDPServer
from ergo_py.testing import World
from ergo_py.testing.world.plan import Plan
from ergo_py.testing.world.world import run_world

PORT = 9000
COUNT = 40


class Echo(Actor):
    """Answers each datagram with its bytes."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader

    async def init(self) -> None:
        await self.spawn_meta(UDPServer(port=PORT, reader=self.reader))

    def handle_message(self, message: Any, sender: Any) -> None:
        match message:
            case UDP.Data(socket, peer, data):
                self.send(socket, UDP.Send(data, peer))


class Asker(Actor):
    """Sends numbers from a UDP socket, and notes the answers."""

    def __init__(self, socket: Any, peer: Any, count: int) -> None:
        self.make, self.peer, self.count = socket, peer, count
        self.got: list[tuple[int, float]] = []
        self.failed: list[UDP.Failed] = []

    async def init(self) -> None:
        self.socket = await self.spawn_meta(self.make())
        for number in range(self.count):
            self.send(self.socket, UDP.Send(b"%d" % number, self.peer))

    def handle_message(self, message: Any, sender: Any) -> None:
        match message:
            case UDP.Data(_, _, data):
                self.got.append((int(data), trio.current_time()))
            case UDP.Failed():
                self.failed.append(message)

    def handle_call(self, request: Any, caller: Any) -> Any:
        return self.got, [each.fault.name for each in self.failed]


def client(reader: Any = "task") -> Any:
    return partial(UDPClient, "localhost", PORT, reader=reader)


def run(test: Any, plan: str = "seed=1") -> World:
    world = World(Plan.read(plan), is_drawn=False)
    failure = run_world(world, test)
    if failure is not None:
        raise failure
    return world


def arrivals(
    plan: str, make: Any, peer: Any = None, reader: Any = "task"
) -> list[tuple[int, float]]:
    """The numbers that come back to a socket on the second node from a server on the first, each
    with its time.
    """
    found: list[tuple[int, float]] = []

    async def start(node: Node) -> None:
        if node.name == "a@world":
            await node.spawn(Echo, reader)

    async def test(world: World) -> None:
        _, b = await world.start(2, start)
        world.faults()
        await trio.sleep(0.1)
        asker = await b.run(lambda node: node.spawn(Asker, make, peer, COUNT))
        await trio.sleep(20)
        found.extend((await b.call(asker, "got"))[0])

    run(test, plan)
    return found


def answers(*args: Any) -> list[int]:
    return [number for number, _ in arrivals(*args)]


@pytest.mark.parametrize("reader", ["task", "thread"])
@pytest.mark.parametrize("is_client", [True, False])
def test_datagrams_arrive_in_memory(reader: Any, is_client: bool) -> None:
    make = client(reader) if is_client else partial(UDPServer, reader=reader)
    peer = None if is_client else ("127.0.0.1", PORT)

    assert sorted(answers("seed=1", make, peer, reader)) == list(range(COUNT))


def test_lost_datagrams_do_not_arrive() -> None:
    got = answers("seed=1; 0 lose_datagrams b@world 30 0.5", client())

    assert len(got) == len(set(got)) < COUNT


def test_doubled_datagrams_arrive_twice() -> None:
    got = answers("seed=1; 0 double_datagrams a@world 30 0.5", client())

    assert set(got) == set(range(COUNT))
    assert len(got) > COUNT


def test_slow_datagrams_are_late_and_overtake_each_other() -> None:
    fast, slow = (
        arrivals(f"seed=1; {fault}", client()) for fault in ("", "0 slow_sockets a@world 30 1")
    )

    assert {time for _, time in fast} == {0.1}
    assert len({time for _, time in slow}) == COUNT
    assert sorted(number for number, _ in slow) == list(range(COUNT))
    assert [number for number, _ in slow] != list(range(COUNT))


def test_seeds_repeat_with_datagrams() -> None:
    plan = "seed=4; 0 lose_datagrams b@world 30 0.3; 0 slow_sockets a@world 30 1"

    assert answers(plan, client("thread")) == answers(plan, client("thread"))


def test_a_client_hears_that_no_socket_listens() -> None:
    async def test(world: World) -> None:
        (a,) = await world.start(1)
        asker = await a.node.spawn(Asker, client(), None, 1)
        await trio.sleep(1)
        assert await a.call(asker, "got") == ([], ["UNREACHABLE"])

    run(test)


def test_a_port_is_taken_until_its_socket_is_closed_or_its_node_crashes() -> None:
    async def start(node: Node) -> None:
        if node.name == "a@world":
            await node.spawn(Echo, "task")

    async def test(world: World) -> None:
        _, b = await world.start(2, start)
        with pytest.raises(InitError, match="in use"):
            await b.node.spawn(Echo, "task")
        world.faults()
        await trio.sleep(2)
        echo = await b.node.spawn(Echo, "thread")
        b.node.kill(echo)
        await trio.sleep(2)

    before = len(os.listdir("/dev/fd"))
    world = run(test, "seed=1; 1 crash a@world 2")

    assert world.sockets.names == []
    assert len(os.listdir("/dev/fd")) <= before


def test_multicast_groups_come_from_outside() -> None:
    class Member(Actor):
        async def init(self) -> None:
            await self.spawn_meta(UDPServer(port=PORT, groups=["239.1.2.3"]))

    async def test(world: World) -> None:
        (a,) = await world.start(1)
        with pytest.raises(InitError, match="no multicast"):
            await a.node.spawn(Member)

    run(test)
