"""Tasks and streams of results, beside the same by hand in trio: nurseries, channels, a limiter."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio

from ergo_py import open_node

from ..clocks import Stopwatch
from ..harness import Case, Figures, Goal, Line, on_loop

_AT_ONCE = 8


async def work(number: int) -> int:
    """Wait once, as real work does."""
    await trio.lowlevel.checkpoint()
    return number


async def _stream(size: int) -> Figures:
    watch = Stopwatch()
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        with watch:
            total = 0
            async for number in node.map_stream(work, range(size), at_once=_AT_ONCE):
                total += number
        assert total == size * (size - 1) // 2
    return watch.each(size)


@asynccontextmanager
async def _by_hand(items: Iterable[int]) -> AsyncIterator[trio.MemoryReceiveChannel[int]]:
    """Ordered results of at most eight calls at once, with a bounded number of waiting results."""
    sender, receiver = trio.open_memory_channel[int](0)
    ready: dict[int, trio.Event] = {}
    values: dict[int, int] = {}
    limiter = trio.Semaphore(_AT_ONCE)

    async def run(number: int, item: int, done: trio.Event) -> None:
        try:
            values[number] = await work(item)
        finally:
            limiter.release()
            done.set()

    async def feed(nursery: trio.Nursery, order: trio.MemorySendChannel[int]) -> None:
        async with order:
            for number, item in enumerate(items):
                await limiter.acquire()
                done = ready[number] = trio.Event()
                nursery.start_soon(run, number, item, done)
                await order.send(number)

    async def collect(order: trio.MemoryReceiveChannel[int]) -> None:
        async with sender:
            async for number in order:
                await ready.pop(number).wait()
                await sender.send(values.pop(number))

    async with trio.open_nursery() as nursery:
        in_order, in_turn = trio.open_memory_channel[int](_AT_ONCE)
        nursery.start_soon(feed, nursery, in_order)
        nursery.start_soon(collect, in_turn)
        yield receiver
        nursery.cancel_scope.cancel()


async def _stream_by_hand(size: int) -> Figures:
    with Stopwatch() as watch:
        total = 0
        async with _by_hand(range(size)) as results:
            async for number in results:
                total += number
    assert total == size * (size - 1) // 2
    return watch.each(size)


async def _task(size: int) -> Figures:
    watch = Stopwatch()
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        with watch:
            for number in range(size):
                assert await node.run_task(work, number) == number
    return watch.each(size)


async def _task_by_hand(size: int) -> Figures:
    """A nursery for each, which collects the result."""
    with Stopwatch() as watch:
        for number in range(size):
            results: list[int] = []

            async def run(item: int, results: list[int] = results) -> None:
                results.append(await work(item))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(run, number)
            assert results == [number]
    return watch.each(size)


CASES = [
    Case(
        name="map_stream",
        about="an ordered result of an async function, eight at once; trio: written by hand",
        unit="µs",
        size=5_000,
        least=50,
        variants={"ergo": on_loop(_stream), "trio": on_loop(_stream_by_hand)},
        lines=[Line("map_stream", "ergo", goals=(Goal("by hand", 1.5, "trio"),))],
        rounds=3,
    ),
    Case(
        name="run_task",
        about="a task from its start to its result; trio: a nursery with a child",
        unit="µs",
        size=2_000,
        least=20,
        variants={"ergo": on_loop(_task), "trio": on_loop(_task_by_hand)},
        lines=[Line("run_task", "ergo", goals=(Goal("by hand", 4.0, "trio"),))],
        rounds=3,
    ),
]
