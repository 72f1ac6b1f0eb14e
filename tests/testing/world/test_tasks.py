"""The nodes that tasks of a world belong to."""

import trio
from trio.lowlevel import current_task

from ergo_py.testing import World
from ergo_py.testing.world.plan import Plan
from ergo_py.testing.world.world import run_world


def test_a_world_remembers_no_tasks_that_have_ended() -> None:
    known = list[int]()

    async def sleep() -> None:
        await trio.sleep(0.001)

    async def test(world: World) -> None:
        (a,) = await world.start(1)

        async def client(_node: object) -> None:
            for _ in range(50):
                async with trio.open_nursery() as nursery:
                    for _ in range(100):
                        nursery.start_soon(sleep)
                known.append(len(world.owners))
            # What trio does not know: that this task acts as a client of the node.
            assert world.owners.of(current_task()) == "a@world"

        await a.run(client)

    failure = run_world(World(Plan(0)), test)

    assert failure is None
    assert max(known) < 3_000
