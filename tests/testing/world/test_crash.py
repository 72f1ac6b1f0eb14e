"""A node that crashes runs no cleanup, and starts again with its disk."""

import gc
import os
import signal
from typing import Any

import pytest
import trio

from ergo_py import Actor, Caller, Node, NodeStoppedError, TargetDownError
from ergo_py.testing import World
from ergo_py.testing.world.plan import Plan
from ergo_py.testing.world.world import run_world

CRASH = "seed=1; 1 crash b@world 2"


def run(test: Any, plan: str = CRASH) -> World:
    world = World(Plan.read(plan), is_drawn=False)
    failure = run_world(world, test)
    if failure is not None:
        raise failure
    return world


class Careful(Actor):
    """Notes its cleanup, also that of its task."""

    def __init__(self, ends: list[str]) -> None:
        self.ends = ends

    def init(self) -> None:
        self.start_task(self.work)

    async def work(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self.ends.append("finally")

    def handle_call(self, request: Any, caller: Caller) -> Any:
        return request

    def terminate(self, reason: object) -> None:
        self.ends.append("terminate")


def starting(ends: list[str]) -> Any:
    async def start(node: Node) -> None:
        await node.spawn(Careful, ends, name="careful")

    return start


def test_a_crash_runs_no_cleanup_and_a_restart_begins_again() -> None:
    ends: list[str] = []

    async def test(world: World) -> None:
        a, b = await world.start(2, starting(ends))
        first = b.node
        world.faults()
        await trio.sleep(2)
        assert not b.is_up
        assert ends == []
        with pytest.raises(NodeStoppedError, match="down in this world"):
            _ = b.node
        with pytest.raises(NodeStoppedError):
            await first.spawn(Careful, ends)
        await trio.sleep(2)
        assert b.is_up
        assert b.node is not first
        assert await a.call(b.node.whereis("careful"), 5) == 5
        assert ends == []

    world = run(test)

    texts = [event.text for event in world.history.events if event.node in ("", "b@world")]
    assert texts.index("crashes") < texts.index("b@world starts again")
    assert next(life.ended for life in world.history.lifetimes if life.node == "b@world") == 1.0


def test_other_nodes_see_the_loss_and_calls_fail() -> None:
    async def test(world: World) -> None:
        a, b = await world.start(2, starting([]))
        target = b.node.whereis("careful")
        assert await a.call(target, 1) == 1
        world.faults()
        await trio.sleep(1.5)
        with pytest.raises(TargetDownError):
            await a.call(target, 2)

    run(test)


def test_a_client_on_the_crashed_node_gets_an_error() -> None:
    async def test(world: World) -> None:
        a, b = await world.start(2, starting([]))
        target = a.node.whereis("careful")
        world.network.cut("a@world", "b@world")
        world.faults()
        with pytest.raises(NodeStoppedError, match="crashed"):
            await b.call(target, 2, timeout=30)
        assert trio.current_time() == 1.0

    run(test)


def test_a_node_may_crash_many_times_and_leaves_nothing() -> None:
    async def test(world: World) -> None:
        await world.start(3, starting([]))
        world.faults()
        await trio.sleep(100)
        await world.heal()

    before = len(os.listdir("/dev/fd")), signal.getsignal(signal.SIGINT)
    crashes = "; ".join(f"{number} crash b@world 0.5" for number in range(1, 61))
    world = run(test, f"seed=1; {crashes}")
    gc.collect()

    assert sum(event.kind == "crash" for event in world.history.events) == 60
    assert (len(os.listdir("/dev/fd")), signal.getsignal(signal.SIGINT)) == before


def test_a_stopped_program_may_crash_and_a_crashed_node_stays_down_after_the_test() -> None:
    async def test(world: World) -> None:
        await world.start(2, starting([]))
        world.faults()
        await trio.sleep(3)
        assert not world.nodes["b@world"].is_up

    run(test, "seed=1; 1 pause b@world 50; 2 crash b@world 50; 2.5 crash b@world 1")


def test_a_node_may_crash_while_it_starts() -> None:
    starts: list[float] = []

    async def start(node: Node) -> None:
        starts.append(trio.current_time())
        await trio.sleep(2)

    async def test(world: World) -> None:
        await world.start(["a@world"])
        world.faults()
        await world.start(["b@world"], start)
        assert trio.current_time() == 5.0

    run(test)

    assert starts == [0.0, 3.0]


class Journal(Actor):
    """Counts on disk; syncs only on request."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def handle_call(self, request: Any, caller: Caller) -> Any:
        if request == "read":
            return len(self.file)
        self.file.write(b"x")
        if request == "sync":
            self.file.sync()
        return None


def test_synced_writes_survive_a_crash() -> None:
    async def test(world: World) -> None:
        async def start(node: Node) -> None:
            await node.spawn(Journal, world.nodes[node.name].disk.file("journal"), name="journal")

        a, b = await world.start(2, start)
        target = b.node.whereis("journal")
        for request in ("write", "sync", "write", "write", "write"):
            await a.call(target, request)
        world.faults()
        await trio.sleep(5)
        assert b.disk.crashes == 1
        assert 2 <= await a.call(b.node.whereis("journal"), "read") <= 5

    run(test)


def test_a_world_ends_while_a_crashed_node_starts_again() -> None:
    """The start may wait without an end: other nodes send heartbeats, so that time goes on."""
    starts: list[str] = []

    async def start(node: Node) -> None:
        starts.append(node.name)
        if len(starts) > 2:
            await trio.sleep(1000.0)
            raise LookupError(node.name)

    async def test(world: World) -> None:
        await world.start(2, start)
        world.faults()
        await trio.sleep(5)

    world = World(Plan.read("seed=1; 1 crash a@world 1"), is_drawn=False)

    assert run_world(world, test) is None
    assert starts == ["a@world", "b@world", "a@world"]
    assert world.clock.current_time() < 10
