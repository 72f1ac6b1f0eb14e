"""xoscar, with all actors in a single pool in this program: an asyncio lock for each actor, and
calls instead of messages.
"""
# pyright: reportMissingImports=false, reportUntypedBaseClass=false

import asyncio
import gc
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from time import perf_counter
from typing import Any

import xoscar

from ..apart import apart
from ..clocks import Stopwatch, percentiles, resident
from ..harness import Figures, Variant
from ..workloads.nodes import asked, serving
from ..workloads.publish import ROUNDS
from .on_asyncio import in_asyncio

__all__ = ["ADDS", "APART"]


@asynccontextmanager
async def _pool() -> AsyncIterator[Any]:
    """Gives a function that starts an actor."""
    pool = await xoscar.create_actor_pool("127.0.0.1", n_process=0)
    async with pool:
        yield partial(xoscar.create_actor, address=pool.external_address)


class Sink(xoscar.Actor):
    """Counts its messages, and answers."""

    def __init__(self, count: int = 0, done: asyncio.Event | None = None) -> None:
        self.left = count
        self.done = done

    def take(self, _message: object) -> None:
        self.left -= 1
        if not self.left and self.done is not None:
            self.done.set()

    def echo(self, message: object) -> object:
        return message


class Source(xoscar.Actor):
    """Tells so many to each when asked to."""

    async def pour(self, targets: list[Any], count: int) -> None:
        for _ in range(count):
            for target in targets:
                await target.take.tell("go")


class Asker(xoscar.Actor):
    """Calls in a loop."""

    async def ask(self, target: Any, count: int) -> list[float]:
        times: list[float] = []
        before = perf_counter()
        for _ in range(count):
            await target.echo("go")
            now = perf_counter()
            times.append(now - before)
            before = now
        return times


async def _tell(pairs: int, size: int) -> Figures:
    count = max(1, size // pairs // 4)
    async with _pool() as create:
        events = [asyncio.Event() for _ in range(pairs)]
        couples = [(await create(Source), await create(Sink, count, event)) for event in events]
        with Stopwatch() as watch:
            await asyncio.gather(*(source.pour([sink], count) for source, sink in couples))
            for event in events:
                await event.wait()
    return watch.each(count * pairs)


async def _publish(size: int) -> Figures:
    size = max(1, size // 10)
    async with _pool() as create:
        events = [asyncio.Event() for _ in range(size)]
        source, sinks = (
            await create(Source),
            [await create(Sink, ROUNDS, event) for event in events],
        )
        with Stopwatch() as watch:
            await source.pour(sinks, ROUNDS)
            for event in events:
                await event.wait()
    return watch.each(size * ROUNDS)


async def _call(pairs: int, size: int) -> Figures:
    count = max(1, size // pairs)
    async with _pool() as create:
        couples = [(await create(Asker), await create(Sink)) for _ in range(pairs)]
        with Stopwatch() as watch:
            taken = await asyncio.gather(*(asker.ask(callee, count) for asker, callee in couples))
    return watch.each(count * pairs) | percentiles([time for times in taken for time in times])


async def _live(size: int) -> Figures:
    size = max(1, size // 10)
    async with _pool() as create:
        with Stopwatch() as starting:
            actors = [await create(Sink) for _ in range(size)]
        with Stopwatch() as stopping:
            for actor in actors:
                await xoscar.destroy_actor(actor)
    return starting.each(size, "spawn ") | stopping.each(size, "stop ")


async def _crowd(size: int) -> Figures:
    size = max(1, size // 5)
    async with _pool() as create:
        await create(Sink)
        gc.collect()
        before = resident()
        actors = [await create(Sink) for _ in range(size)]
        with Stopwatch() as collecting:
            gc.collect()
        used = resident() - before
        with Stopwatch() as stopping:
            for actor in actors:
                await xoscar.destroy_actor(actor)
    return {"KiB": used / size, "collect": collecting.cpu * 1e3} | stopping.each(size, "stop ")


def _two_programs(size: int) -> Figures:
    program = [sys.executable, "-m", "benchmarks.nodes.with_xoscar"]
    with serving([*program, "serve"]) as address:
        return asked([*program, "ask", address, str(size)])


APART: dict[str, Variant] = {"xoscar": in_asyncio(_crowd)}

ADDS: dict[str, dict[str, Variant]] = {
    "tell, 1 to 1": {"xoscar": in_asyncio(_tell, 1)},
    "tell, 100 to 100": {"xoscar": in_asyncio(_tell, 100)},
    "call, 1 pair": {"xoscar": in_asyncio(_call, 1)},
    "call, 100 pairs": {"xoscar": in_asyncio(_call, 100)},
    "spawn and stop": {"xoscar": in_asyncio(_live)},
    "crowd of 10,000": {"xoscar": apart(__name__, "xoscar")},
    "crowd of 100,000": {"xoscar": apart(__name__, "xoscar")},
    "publish to 10,000 subscribers": {"xoscar": in_asyncio(_publish)},
    "two programs": {"xoscar": _two_programs},
}
