"""actorio: asyncio tasks, several of them for each message."""
# pyright: reportMissingImports=false, reportUntypedBaseClass=false

import asyncio
import gc
from time import perf_counter
from typing import Any

from actorio import Actor, DataMessage, Reference

from ..apart import apart
from ..clocks import Stopwatch, percentiles, resident
from ..harness import Figures, Variant
from ..workloads.publish import ROUNDS
from .on_asyncio import in_asyncio

__all__ = ["ADDS", "APART"]


class Sink(Actor):
    """Counts its messages, and answers if asked to."""

    def __init__(self, count: int = 0, done: asyncio.Event | None = None) -> None:
        super().__init__()
        self.left = count
        self.done = done

    async def handle_message(self, message: Any) -> None:
        if message.data == "ask":
            await message.reply(DataMessage(data="answer", sender=self))
            return
        self.left -= 1
        if not self.left and self.done is not None:
            self.done.set()


async def _start(count: int, *args: Any) -> list[Any]:
    actors = [Sink(*args) for _ in range(count)]
    for actor in actors:
        await actor.start()
    return actors


async def _stop(actors: list[Any]) -> None:
    for actor in actors:
        await actor.stop()


async def _tell(pairs: int, size: int) -> Figures:
    count = max(1, size // pairs // 10)

    async def source(sink: Any) -> None:
        me: Any = Reference()
        for _ in range(count):
            await sink.reference.tell(DataMessage(data="go", sender=me))

    events = [asyncio.Event() for _ in range(pairs)]
    sinks = [sink for event in events for sink in await _start(1, count, event)]
    with Stopwatch() as watch:
        await asyncio.gather(*map(source, sinks))
        for event in events:
            await event.wait()
    await _stop(sinks)
    return watch.each(count * pairs)


async def _publish(size: int) -> Figures:
    size = max(1, size // 20)
    events = [asyncio.Event() for _ in range(size)]
    sinks = [sink for event in events for sink in await _start(1, ROUNDS, event)]
    me: Any = Reference()
    with Stopwatch() as watch:
        for _ in range(ROUNDS):
            for sink in sinks:
                await sink.reference.tell(DataMessage(data="go", sender=me))
        for event in events:
            await event.wait()
    await _stop(sinks)
    return watch.each(size * ROUNDS)


async def _call(pairs: int, size: int) -> Figures:
    count = max(1, size // pairs // 5)
    times: list[float] = []

    async def asker(sink: Any) -> None:
        before = perf_counter()
        for _ in range(count):
            await sink.reference.ask(DataMessage(data="ask"))
            now = perf_counter()
            times.append(now - before)
            before = now

    sinks = await _start(pairs)
    with Stopwatch() as watch:
        await asyncio.gather(*map(asker, sinks))
    await _stop(sinks)
    return watch.each(count * pairs) | percentiles(times)


async def _live(size: int) -> Figures:
    size = max(1, size // 10)
    with Stopwatch() as starting:
        actors = await _start(size)
    with Stopwatch() as stopping:
        await _stop(actors)
    return starting.each(size, "spawn ") | stopping.each(size, "stop ")


async def _crowd(size: int) -> Figures:
    size = max(1, size // 10)
    gc.collect()
    before = resident()
    actors = await _start(size)
    with Stopwatch() as collecting:
        gc.collect()
    used = resident() - before
    with Stopwatch() as stopping:
        await _stop(actors)
    return {"KiB": used / size, "collect": collecting.cpu * 1e3} | stopping.each(size, "stop ")


APART: dict[str, Variant] = {"actorio": in_asyncio(_crowd)}

ADDS: dict[str, dict[str, Variant]] = {
    "tell, 1 to 1": {"actorio": in_asyncio(_tell, 1)},
    "tell, 100 to 100": {"actorio": in_asyncio(_tell, 100)},
    "call, 1 pair": {"actorio": in_asyncio(_call, 1)},
    "call, 100 pairs": {"actorio": in_asyncio(_call, 100)},
    "spawn and stop": {"actorio": in_asyncio(_live)},
    "crowd of 10,000": {"actorio": apart(__name__, "actorio")},
    "crowd of 100,000": {"actorio": apart(__name__, "actorio")},
    "publish to 10,000 subscribers": {"actorio": in_asyncio(_publish)},
}
