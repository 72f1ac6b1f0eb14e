"""The clock of a world jumps when no task is ready, and a world that stands still says so."""

from time import perf_counter

import trio
import trio.testing

from ergo_py.testing import Plan, StandstillError, World
from ergo_py.testing.world.world import run_world


def run(test: object, seed: int = 0) -> tuple[World, Exception | None]:
    world = World(Plan(seed))
    return world, run_world(world, test)  # type: ignore[arg-type]


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
