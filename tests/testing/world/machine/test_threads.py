"""In a world only a single thread runs at a time, and the seed decides their order."""

import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import trio

from ergo_py import Actor, Caller, MetaProcess, Node, NodeStoppedError, Threads
from ergo_py.meta import Apply, BlockingCalls
from ergo_py.testing import World, simulated
from ergo_py.testing.world.node import WorldNode
from ergo_py.testing.world.outside import OutsideError
from ergo_py.testing.world.plan import Plan
from ergo_py.testing.world.simulation import SimulationError
from ergo_py.testing.world.world import run_world
from tests.support import replace_private
from tests.testing.world.machine import threaded


def run(test: Any, plan: str = "seed=1") -> World:
    world = World(Plan.read(plan), is_drawn=False)
    failure = run_world(world, test)
    if failure is not None:
        raise failure
    return world


class Calls(Actor):
    """Has three threads that run functions."""

    async def init(self) -> None:
        self.threads = await self.spawn_meta(BlockingCalls(object(), threads=3))

    def handle_call(self, request: Any, caller: Caller) -> Any:
        return self.threads


async def start_calls(node: Node) -> None:
    await node.spawn(Calls, name="calls")


async def run_in_thread(client: WorldNode, work: Any, timeout: float = 5.0) -> Any:
    """Run a function in a thread of the node."""
    threads = await client.call("calls", "threads")
    return await client.call(threads, Apply(lambda _: work()), timeout=timeout)


async def try_in_thread(client: WorldNode, work: Any) -> None:
    with suppress(NodeStoppedError):
        await run_in_thread(client, work, timeout=50.0)


def failure_of(work: Any) -> Exception | None:
    """The failure of a world in which a thread works."""

    async def test(world: World) -> None:
        (a,) = await world.start(1, start_calls)
        await run_in_thread(a, work, timeout=1.0)

    return run_world(World(Plan(1)), test)


def test_only_a_single_thread_runs_at_a_time_and_sleeps_take_no_real_time() -> None:
    running: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(20):
            running.append(1)
            most.append(len(running))
            sum(range(1000))
            running.pop()
            time.sleep(10.0)

    async def test(world: World) -> None:
        (a,) = await world.start(1, start_calls)
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(run_in_thread, a, work, 1000.0)
        assert 400.0 < trio.current_time() < 401.0

    began = time.monotonic()
    run(test)

    assert most == [1] * 120
    assert time.monotonic() - began < 60.0


def test_seeds_choose_different_orders_of_threads() -> None:
    def order_of(seed: int) -> str:
        found: list[str] = []

        def work(name: str) -> None:
            for _ in range(3):
                found.append(name)
                time.sleep(0.0)

        async def test(world: World) -> None:
            (a,) = await world.start(1, start_calls)
            async with trio.open_nursery() as nursery:
                for name in "abc":
                    nursery.start_soon(run_in_thread, a, partial(work, name))

        run(test, f"seed={seed}")
        return "".join(found)

    orders = [order_of(seed) for seed in range(6)]

    assert len(set(orders)) > 3
    assert order_of(0) == orders[0]


def test_a_crash_with_threads_in_flight_leaves_no_thread_behind() -> None:
    ends: list[str] = []

    def work() -> None:
        try:
            time.sleep(100.0)
        finally:
            ends.append("finally")

    async def test(world: World) -> None:
        _, b = await world.start(2, threaded.start)
        await b.run(start_calls)
        world.faults()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(try_in_thread, b, work)
        await trio.sleep(5)
        assert ends == []

    before = set(threading.enumerate())
    world = run(test, "seed=1; 1 crash b@world 2; 4 crash b@world 2")

    assert sum(event.kind == "crash" for event in world.history.events) == 2
    assert set(threading.enumerate()) <= before
    # A thread cannot be ended without its cleanup: it runs after the world.
    assert ends == ["finally"] * 3


def test_threads_of_a_stopped_program_do_not_run() -> None:
    class Ticker(MetaProcess):
        def start(self) -> None:
            while self.pause(0.1):
                self.send(self.parent, self._now())

    class Owner(Actor):
        async def init(self) -> None:
            self.ticks: list[float] = []
            await self.spawn_meta(Ticker())

        def handle_message(self, message: Any, sender: Any) -> None:
            self.ticks.append(message)

        def handle_call(self, request: Any, caller: Caller) -> Any:
            return self.ticks

    async def start(node: Node) -> None:
        await node.spawn(Owner, name="owner")

    async def test(world: World) -> None:
        (a,) = await world.start(1, start)
        world.faults()
        await trio.sleep(10)
        ticks = await a.call("owner", "ticks")
        assert not [tick for tick in ticks if 2.01 < tick < 6.0]
        assert len([tick for tick in ticks if tick < 2.0]) > 10
        assert len([tick for tick in ticks if tick > 6.0]) > 10

    run(test, "seed=1; 2 pause a@world 4")


def test_a_thread_has_the_clock_of_its_node() -> None:
    class Clock(MetaProcess):
        def start(self) -> None:
            while self.pause(1.0):
                self.send(self.parent, self._now())

    class Owner(Actor):
        async def init(self) -> None:
            self.seen: list[float] = []
            await self.spawn_meta(Clock())

        def handle_message(self, message: Any, sender: Any) -> None:
            self.seen.append(message)

        def handle_call(self, request: Any, caller: Caller) -> Any:
            return self.seen

    async def start(node: Node) -> None:
        await node.spawn(Owner, name="owner")

    async def test(world: World) -> None:
        (a,) = await world.start(1, start)
        world.faults()
        await trio.sleep(20)
        seen = await a.call("owner", "seen")
        assert len(seen) in (21, 22)
        assert seen[-1] == pytest.approx(22.0, abs=1.1)

    run(test, "seed=1; 0 skew a@world 30 0.1")


def test_plain_callbacks_in_threads_run_in_a_world() -> None:
    class Slow(Actor):
        def handle_call(self, request: Any, caller: Caller) -> Any:
            time.sleep(2.0)
            return threading.current_thread().name

    async def test(world: World) -> None:
        (a,) = await world.start(1)
        pid = await a.node.spawn(Slow, dispatcher=Threads())
        assert (await a.call(pid, "x")).startswith("process-")
        assert 2.0 <= trio.current_time() < 2.1

    run(test)


def test_worker_threads_of_trio_run_in_a_world() -> None:
    def work() -> float:
        time.sleep(1.0)
        trio.from_thread.run(trio.sleep, 2.0)
        trio.from_thread.check_cancelled()
        return trio.from_thread.run_sync(trio.current_time)

    async def test(world: World) -> None:
        assert 3.0 <= await trio.to_thread.run_sync(work) < 3.1
        with pytest.raises(ZeroDivisionError):
            await trio.to_thread.run_sync(lambda: 1 / 0)

    run(test)


def test_a_lost_update_of_threads_is_found_and_shrunk() -> None:
    @simulated(seeds=20)
    async def updates(world: World) -> None:
        counter = {"value": 0}

        def add() -> None:
            before = counter["value"]
            time.sleep(0.0)
            counter["value"] = before + 1

        (a, _) = await world.start(2, start_calls)
        world.faults(seconds=2.0, delay=0.5, cut=0.5)
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(run_in_thread, a, add)
        assert counter["value"] == 2

    with pytest.raises(SimulationError) as raised:
        updates()

    assert isinstance(raised.value.__cause__, AssertionError)
    assert raised.value.plan.faults == ()


def test_a_thread_that_blocks_elsewhere_raises_with_its_stack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replace_private(monkeypatch, "patience of worlds with threads", 0.2)
    queue: SimpleQueue[int] = SimpleQueue()

    def block_here() -> None:
        queue.get()

    failure = failure_of(block_here)
    queue.put(1)

    assert isinstance(failure, OutsideError)
    assert failure.place.startswith(f"{__file__}:")
    assert "block_here" in str(failure)


def test_a_file_and_a_thread_of_a_thread_raise(tmp_path: Path) -> None:
    path = tmp_path / "notes"

    failure = failure_of(lambda: path.write_text("x"))

    assert isinstance(failure, OutsideError)
    assert failure.place.startswith(f"{__file__}:")
    assert not path.exists()
    assert isinstance(failure_of(lambda: threading.Thread(target=print).start()), OutsideError)
