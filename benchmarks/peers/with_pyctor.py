"""pyctor: an asyncio task and queue for each actor; messages only, no calls."""
# pyright: reportMissingImports=false, reportUntypedBaseClass=false

import asyncio
import gc
import random
from typing import Any

from pyctor import Actor, ActorSystem

from ..apart import apart
from ..clocks import Stopwatch, resident
from ..harness import Figures, Variant
from ..workloads.publish import ROUNDS
from ..workloads.timers import delays
from .on_asyncio import in_asyncio

__all__ = ["ADDS", "APART"]


class Sink(Actor):
    """Counts its messages."""

    def __init__(self, count: int = 0, done: asyncio.Event | None = None) -> None:
        super().__init__()
        self.left = count
        self.done = done

    async def receive(self, sender: Any, message: Any) -> None:
        self.left -= 1
        if not self.left and self.done is not None:
            self.done.set()


class Source(Actor):
    """Tells so many to each when told to."""

    async def receive(self, sender: Any, message: Any) -> None:
        targets, count = message
        for _ in range(count):
            for target in targets:
                self.tell(target, "go")


async def _end(system: Any) -> None:
    system.shutdown()
    await system.stopped()


async def _tell(pairs: int, size: int) -> Figures:
    count = max(1, size // pairs)
    system: Any = ActorSystem()
    events = [asyncio.Event() for _ in range(pairs)]
    couples = [(system.create(Source()), system.create(Sink(count, event))) for event in events]
    await asyncio.sleep(0)
    with Stopwatch() as watch:
        for source, sink in couples:
            system.tell(source, ([sink], count))
        for event in events:
            await event.wait()
    await _end(system)
    return watch.each(count * pairs)


async def _publish(size: int) -> Figures:
    system: Any = ActorSystem()
    events = [asyncio.Event() for _ in range(size)]
    sinks = [system.create(Sink(ROUNDS, event)) for event in events]
    source = system.create(Source())
    await asyncio.sleep(0)
    with Stopwatch() as watch:
        system.tell(source, (sinks, ROUNDS))
        for event in events:
            await event.wait()
    await _end(system)
    return watch.each(size * ROUNDS)


async def _live(size: int) -> Figures:
    system: Any = ActorSystem()
    with Stopwatch() as starting:
        for _ in range(size):
            system.create(Sink())
        await asyncio.sleep(0)
    with Stopwatch() as stopping:
        await _end(system)
    return starting.each(size, "spawn ") | stopping.each(size, "stop ")


async def _crowd(size: int) -> Figures:
    system: Any = ActorSystem()
    gc.collect()
    before = resident()
    for _ in range(size):
        system.create(Sink())
    await asyncio.sleep(0)
    with Stopwatch() as collecting:
        gc.collect()
    used = resident() - before
    with Stopwatch() as stopping:
        await _end(system)
    return {"KiB": used / size, "collect": collecting.cpu * 1e3} | stopping.each(size, "stop ")


async def _timers(size: int) -> Figures:
    """Each is a task that sleeps."""
    size = max(1, size // 20)
    system: Any = ActorSystem()
    sink = system.create(Sink())
    wanted = delays(size)
    with Stopwatch() as arming:
        tasks = [system.schedule_tell(sink, "late", delay=delay) for delay in wanted]
        await asyncio.sleep(0)
    random.Random(2).shuffle(tasks)
    with Stopwatch() as cancelling:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await _end(system)
    return arming.each(size, "arm ") | cancelling.each(size, "cancel ")


APART: dict[str, Variant] = {"pyctor": in_asyncio(_crowd)}

ADDS: dict[str, dict[str, Variant]] = {
    "tell, 1 to 1": {"pyctor": in_asyncio(_tell, 1)},
    "tell, 100 to 100": {"pyctor": in_asyncio(_tell, 100)},
    "spawn and stop": {"pyctor": in_asyncio(_live)},
    "crowd of 10,000": {"pyctor": apart(__name__, "pyctor")},
    "crowd of 100,000": {"pyctor": apart(__name__, "pyctor")},
    "timers": {"pyctor": in_asyncio(_timers)},
    "publish to 10,000 subscribers": {"pyctor": in_asyncio(_publish)},
}
