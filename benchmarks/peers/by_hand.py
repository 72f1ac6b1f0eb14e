"""Code by hand on trio, without any framework, where the workloads have no floor of their own."""

import trio

from ..clocks import Stopwatch
from ..floor import FloorActor
from ..harness import Figures, Variant, on_loop
from ..workloads.publish import ROUNDS

__all__ = ["ADDS"]


async def _publish(size: int) -> Figures:
    """A mailbox for each."""
    left = size * ROUNDS
    done = trio.Event()

    def take(_message: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    actors = [FloorActor(take) for _ in range(size)]
    async with trio.open_nursery() as nursery:
        for actor in actors:
            nursery.start_soon(actor.run)
        await trio.testing.wait_all_tasks_blocked()
        with Stopwatch() as watch:
            for _ in range(ROUNDS):
                for actor in actors:
                    actor.put("publish")
            await done.wait()
        nursery.cancel_scope.cancel()
    return watch.each(size * ROUNDS)


ADDS: dict[str, dict[str, Variant]] = {
    "publish to 10,000 subscribers": {"floor": on_loop(_publish)},
}
