"""Messages to be sent later: arming and taking back, and the memory of many of them."""

import random
from heapq import heappush
from itertools import count
from typing import Any

import trio

from ergo_py import PID, Actor, open_node

from ..apart import apart
from ..clocks import Latch, Stopwatch, resident
from ..floor import step
from ..harness import Case, Figures, Goal, Line, Variant, on_loop


def delays(size: int) -> list[float]:
    choose = random.Random(1)
    return [1000.0 + choose.random() * 1000.0 for _ in range(size)]


class Waiting(Actor):
    """Arms as many timers as it is told to, then cancels them in another order."""

    def __init__(self, latch: Latch) -> None:
        self.latch = latch
        self.figures: dict[str, float] = {}

    def handle_message(self, message: list[float], sender: PID) -> None:
        before = resident()
        with Stopwatch() as arming:
            timers = [self.send_after(delay, sender, "late") for delay in message]
        self.figures["KiB"] = (resident() - before) / len(message)
        random.Random(2).shuffle(timers)
        with Stopwatch() as cancelling:
            for timer in timers:
                timer.cancel()
        self.figures |= arming.each(len(message), "arm ") | cancelling.each(len(message), "cancel ")
        self.latch.report()


async def _ergo(size: int) -> Figures:
    latch = Latch(1)
    figures: dict[str, float] = {}

    class Reporting(Waiting):
        def __init__(self) -> None:
            super().__init__(latch)
            self.figures = figures

    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        waiting = await node.spawn(Reporting)
        node.send(waiting, delays(size))
        await latch.wait()
    return figures


async def _heap(size: int) -> Figures:
    """A heap of lists by hand, cancelled by emptying the entry."""
    heap: list[list[Any]] = []
    numbers = count()
    wanted = delays(size)
    before = resident()
    entries: list[list[Any]] = []
    with Stopwatch() as arming:
        for delay in wanted:
            entry = [trio.current_time() + delay, next(numbers), print, None]
            heappush(heap, entry)
            entries.append(entry)
    used = (resident() - before) / size
    random.Random(2).shuffle(entries)
    with Stopwatch() as cancelling:
        for entry in entries:
            entry[2] = None
    return {"KiB": used} | arming.each(size, "arm ") | cancelling.each(size, "cancel ")


async def _tasks(size: int) -> Figures:
    """A task that sleeps, each in a scope of its own to cancel it by."""
    size = max(1, size // 20)

    async def late(scope: trio.CancelScope, delay: float) -> None:
        with scope:
            await trio.sleep(delay)

    wanted = delays(size)
    before = resident()
    async with trio.open_nursery() as nursery:
        with Stopwatch() as arming:
            scopes: list[trio.CancelScope] = []
            for delay in wanted:
                scope = trio.CancelScope()
                scopes.append(scope)
                nursery.start_soon(late, scope, delay)
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
        used = (resident() - before) / size
        random.Random(2).shuffle(scopes)
        cancelling = Stopwatch()
        cancelling.start()
        for scope in scopes:
            scope.cancel()
    cancelling.stop()
    return {"KiB": used} | arming.each(size, "arm ") | cancelling.each(size, "cancel ")


def _step(size: int) -> Figures:
    cost = step(size)["cpu"]
    return {"arm cpu": cost, "cancel cpu": cost}


APART: dict[str, Variant] = {
    "ergo": on_loop(_ergo),
    "floor": on_loop(_heap),
    "trio": on_loop(_tasks),
}


CASES = [
    Case(
        name="timers",
        about="each of 100,000 pending; trio: a task that sleeps in a scope; floor: a heap by hand",
        unit="µs",
        size=100_000,
        least=100,
        variants={**APART, "step": _step},
        lines=[
            Line(
                "arm",
                "ergo",
                figure="arm cpu",
                goals=(Goal("reach", 3.0), Goal("G14", 6.0, "step", is_dream=True)),
            ),
            Line(
                "cancel",
                "ergo",
                figure="cancel cpu",
                goals=(Goal("reach", 3.0), Goal("G14", 4.0, "step", is_dream=True)),
            ),
        ],
    ),
    Case(
        name="timers, memory",
        about=(
            "KiB for each of 100,000 pending; "
            "trio: a task that sleeps in a scope; floor: a heap by hand"
        ),
        unit="KiB",
        size=100_000,
        least=100,
        variants={variant: apart(__name__, variant) for variant in APART},
        lines=[Line("pending", "ergo", figure="KiB", goals=(Goal("G14", 0.25),))],
        rounds=1,
    ),
]
