"""Fairness: how long a neighbour waits for its turn beside a process that always has messages.

Measured in CPU time of the loop's thread, so that other programs on the machine do not count as
unfairness.
"""

from collections.abc import Callable
from functools import partial
from time import perf_counter, thread_time

import trio

from ergo_py import PID, Actor, open_node

from ..clocks import percentiles
from ..harness import Case, Figures, Goal, Line, on_loop

_BACKLOG = 1000


def _spin(seconds: float) -> None:
    end = perf_counter() + seconds
    while perf_counter() < end:
        pass


class Flooded(Actor):
    """Has a backlog that never ends: each message is sent again when it has been handled."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work

    def handle_message(self, message: object, sender: PID) -> None:
        self.work()
        self.send(self.pid, message)


async def _turns(size: int) -> Figures:
    """The delays of a task that only wants its turn, in milliseconds."""
    delays: list[float] = []
    for _ in range(size):
        before = thread_time()
        await trio.lowlevel.checkpoint()
        delays.append(thread_time() - before)
    return percentiles(delays, scale=1e3)


async def _ergo(seconds: float, size: int) -> Figures:
    work = partial(_spin, seconds) if seconds else int
    figures: Figures = {}
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        flooded = await node.spawn(Flooded, work)
        for _ in range(_BACKLOG):
            node.send(flooded, "again")
        figures = await _turns(size)
        node.kill(flooded)
    return figures


async def _channel(seconds: float, size: int) -> Figures:
    work = partial(_spin, seconds) if seconds else int
    sender, receiver = trio.open_memory_channel[object](float("inf"))

    async def flooded() -> None:
        async for message in receiver:
            work()
            sender.send_nowait(message)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(flooded)
        for _ in range(_BACKLOG):
            sender.send_nowait("again")
        figures = await _turns(size)
        nursery.cancel_scope.cancel()
    return figures


def _case(handler: str, seconds: float, size: int, most: float) -> Case:
    return Case(
        name=f"fairness, {handler} handler",
        about=(
            "a neighbour's turn to turn; "
            "trio: beside a memory channel, which yields after each message"
        ),
        unit="ms",
        size=size,
        least=3,
        variants={"ergo": on_loop(_ergo, seconds), "trio": on_loop(_channel, seconds)},
        lines=[
            Line("p50", "ergo", figure="p50"),
            Line("p99", "ergo", figure="p99", goals=(Goal("G15", most),)),
        ],
        rounds=3,
    )


CASES = [
    _case("empty", 0.0, 400, most=2.5),
    _case("10 µs", 10e-6, 300, most=2.5),
    _case("200 µs", 200e-6, 200, most=2.5),
    _case("5 ms", 5e-3, 150, most=15.0),
]
