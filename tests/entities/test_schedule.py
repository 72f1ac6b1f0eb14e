"""The bell that wakes the keeper of entities."""

from collections.abc import Callable
from math import inf

import trio
from trio.lowlevel import checkpoint, current_task
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py._core.messaging.clock import Clock
from ergo_py._core.runtime.handoff import turns_of_loop
from ergo_py._core.runtime.parking import park
from ergo_py.entities.schedule import Bell
from tests.support import router_of, running_node


async def test_a_ring_of_the_bell_before_a_wait_ends_that_wait_and_no_other(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        bell = Bell(router_of(node).clock, router_of(node).turns)
        began = trio.current_time()
        bell.ring()
        await bell.wait_until(inf)
        assert trio.current_time() == began

        await bell.wait_until(began + 5.0)
        assert trio.current_time() == began + 5.0


async def test_a_bell_forgets_a_cancelled_wait() -> None:
    woken: list[str] = []
    async with running_node() as node:
        bell = Bell(router_of(node).clock, router_of(node).turns)

        async def wait_twice(scope: trio.CancelScope) -> None:
            with scope:
                await bell.wait_until(inf)
            await park(trio.lowlevel.current_task())
            woken.append("out of another wait")

        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(wait_twice, scope)
            await wait_all_tasks_blocked()
            scope.cancel()
            await wait_all_tasks_blocked()
            bell.ring()
            await wait_all_tasks_blocked()
            assert woken == []
            nursery.cancel_scope.cancel()


async def _steps_after_a_ring(other: Callable[[trio.Nursery], None]) -> list[str]:
    """A root rings the bell, and notes when the task that waits goes on."""
    turns, steps = turns_of_loop(True), list[str]()
    bell = Bell(Clock(lambda _timer: None, lambda function: function()), turns)

    async def wait() -> None:
        await bell.wait_until(inf)
        steps.append("the task goes on")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        await checkpoint()
        other(nursery)
        assert turns.begin(current_task())
        bell.ring()
        turns.serve(current_task())
        steps.append("the root has ended")
    return steps


async def test_a_bell_wakes_its_task_in_the_turn_of_a_root() -> None:
    steps = await _steps_after_a_ring(lambda _nursery: None)

    assert steps == ["the task goes on", "the root has ended"]


async def test_a_bell_lets_other_tasks_that_are_ready_run_before_its_task() -> None:
    steps = await _steps_after_a_ring(lambda nursery: nursery.start_soon(checkpoint))

    assert steps == ["the root has ended", "the task goes on"]
