"""The clock of a world jumps when no task is ready, and a world that stands still says so."""

import time
from time import perf_counter
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing

from ergo_py import NO_REPLY, Actor, Caller, CallTimeoutError
from ergo_py.testing import World
from ergo_py.testing.world.clock import StandstillError
from ergo_py.testing.world.node import WorldNode
from ergo_py.testing.world.plan import Plan
from ergo_py.testing.world.world import run_world


def run(test: Any, seed: int = 0) -> tuple[World, Exception | None]:
    world = World(Plan(seed))
    return world, run_world(world, test)


def test_a_year_of_sleep_takes_no_real_second() -> None:
    began = perf_counter()

    async def sleep(world: World) -> None:
        await trio.sleep(365 * 86400)

    world, failure = run(sleep)

    assert failure is None
    assert world.clock.current_time() == 365 * 86400
    assert perf_counter() - began < 30


def test_time_stands_still_while_a_task_is_ready() -> None:
    async def work(world: World) -> None:
        with trio.move_on_after(0.001) as scope:
            for _ in range(1000):
                await trio.lowlevel.checkpoint()
        assert not scope.cancelled_caught

    assert run(work)[1] is None


def test_work_that_is_queued_for_the_loop_comes_before_a_jump() -> None:
    async def queue(world: World) -> None:
        seen: list[float] = []
        token = trio.lowlevel.current_trio_token()
        token.run_sync_soon(lambda: seen.append(trio.current_time()))
        await trio.sleep(5)
        assert seen == [0.0]

    assert run(queue)[1] is None


def test_tasks_that_wait_for_idleness_wake_before_a_jump() -> None:
    async def wait(world: World) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 5)
            await trio.testing.wait_all_tasks_blocked()
            assert trio.current_time() == 0.0

    assert run(wait)[1] is None


def test_a_world_without_a_deadline_stands_still_and_lists_its_tasks() -> None:
    async def wait_for_nothing(world: World) -> None:
        await trio.Event().wait()

    _, failure = run(wait_for_nothing)

    assert isinstance(failure, StandstillError)
    assert any("in wait_for_nothing" in line for line in failure.tasks)
    assert "the world stands still" in str(failure)


def test_a_world_of_shielded_tasks_stands_still_as_well() -> None:
    async def wait_shielded(world: World) -> None:
        with trio.CancelScope(shield=True):
            await trio.Event().wait()

    _, failure = run(wait_shielded)

    assert isinstance(failure, StandstillError)


def skewed(rate: float, plan: str = "") -> World:
    world = World(Plan.read(f"seed=1; 0 skew a@world 10 {rate}{plan}"), is_drawn=False)
    failure = run_world(world, measure)
    assert failure is None, failure
    return world


async def measure(world: World) -> None:
    """Sleep for four seconds on the clock of a node, with and without its kernel."""
    (a, b) = await world.start(2)
    world.faults()
    await trio.lowlevel.checkpoint()

    async def sleep(node: WorldNode) -> None:
        with world.owners.acting_as(node.name):
            before = trio.current_time()
            await trio.sleep(4)
            assert trio.current_time() - before == pytest.approx(4, abs=1e-6)
        world.note(f"{node.name} has slept")

    async def wait(node: WorldNode) -> None:
        pid = await node.node.spawn(Silent)
        with pytest.raises(CallTimeoutError):
            await node.call(pid, 1, timeout=4)
        world.note(f"{node.name} has waited")

    async with trio.open_nursery() as nursery:
        for node in (a, b):
            nursery.start_soon(sleep, node)
            nursery.start_soon(wait, node)


class Silent(Actor):
    """Never answers."""

    def handle_call(self, request: Any, caller: Caller) -> Any:
        return NO_REPLY


class Watch(Actor):
    """Tells the time of day."""

    def handle_call(self, request: Any, caller: Caller) -> float:
        return time.time()


@pytest.mark.parametrize("rate", [0.1, -0.1, 0.5])
def test_the_clock_of_a_node_runs_at_its_own_rate(rate: float) -> None:
    world = skewed(rate)

    ends = {event.text: event.at for event in world.history.events if event.kind == "note"}
    assert ends["a@world has slept"] == pytest.approx(4 / (1 + rate), abs=1e-6)
    assert ends["a@world has waited"] == pytest.approx(4 / (1 + rate), abs=1e-6)
    assert ends["b@world has slept"] == 4
    assert ends["b@world has waited"] == 4


def test_the_time_of_day_of_a_node_goes_wrong_with_its_clock() -> None:
    times: dict[str, float] = {}

    async def test(world: World) -> None:
        (a, b) = await world.start(2)
        began = time.time()
        world.faults()
        await trio.sleep(20)
        for node in (a, b):
            pid = await node.node.spawn(Watch)
            times[node.name] = (await node.call(pid, None)) - began
        times["test"] = time.time() - began

    world = World(Plan.read("seed=1; 0 skew a@world 10 0.1"), is_drawn=False)
    assert run_world(world, test) is None

    assert times["a@world"] == pytest.approx(21, abs=1e-3)
    assert times["b@world"] == times["test"] == 20


def test_a_deadline_moves_when_the_rate_changes() -> None:
    world = World(Plan.read("seed=1; 0 skew a@world 2 0.5"), is_drawn=False)
    assert run_world(world, measure) is None

    ends = {event.text: event.at for event in world.history.events if event.kind == "note"}
    # Three of the four seconds pass in two.
    assert ends["a@world has slept"] == pytest.approx(3, abs=1e-6)
    assert ends["a@world has waited"] == pytest.approx(3, abs=1e-6)
