"""The bell that wakes the keeper of entities."""

from math import inf

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py._core.runtime.parking import park
from ergo_py.entities.schedule import Bell
from tests.support import router_of, running_node


async def test_a_ring_of_the_bell_before_a_wait_ends_that_wait_and_no_other(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        bell = Bell(router_of(node).clock)
        began = trio.current_time()
        bell.ring()
        await bell.wait_until(inf)
        assert trio.current_time() == began

        await bell.wait_until(began + 5.0)
        assert trio.current_time() == began + 5.0


async def test_a_bell_forgets_a_cancelled_wait() -> None:
    woken: list[str] = []
    async with running_node() as node:
        bell = Bell(router_of(node).clock)

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
