"""asyncio without a framework: tasks, queues and timers of the loop."""

import asyncio
import gc
import random
import threading
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any

from ..apart import apart
from ..clocks import Stopwatch, percentiles, resident
from ..harness import Figures, Variant
from ..workloads.publish import ROUNDS
from ..workloads.threads import Dripper
from ..workloads.timers import delays

__all__ = ["ADDS", "APART", "in_asyncio"]


def in_asyncio(work: Callable[..., Coroutine[Any, Any, Figures]], *args: object) -> Variant:
    """A variant that runs ``work(*args, size)`` in an asyncio of its own."""
    return lambda size: asyncio.run(work(*args, size))


async def _call(pairs: int, size: int) -> Figures:
    """Two queues for each pair."""
    count = max(1, size // pairs)
    times: list[float] = []

    async def callee(requests: asyncio.Queue[object], replies: asyncio.Queue[object]) -> None:
        while True:
            replies.put_nowait(await requests.get())

    async def asker(requests: asyncio.Queue[object], replies: asyncio.Queue[object]) -> None:
        before = perf_counter()
        for _ in range(count):
            requests.put_nowait("go")
            await replies.get()
            now = perf_counter()
            times.append(now - before)
            before = now

    queues = [(asyncio.Queue[object](), asyncio.Queue[object]()) for _ in range(pairs)]
    callees = [asyncio.create_task(callee(*pair)) for pair in queues]
    await asyncio.sleep(0)
    with Stopwatch() as watch:
        await asyncio.gather(*(asyncio.create_task(asker(*pair)) for pair in queues))
    for task in callees:
        task.cancel()
    return watch.each(count * pairs) | percentiles(times)


async def _sleep() -> None:
    await asyncio.get_running_loop().create_future()


async def _live(size: int) -> Figures:
    """A task that waits, and cancelling it."""
    with Stopwatch() as starting:
        tasks = [asyncio.create_task(_sleep()) for _ in range(size)]
        await asyncio.sleep(0)
    with Stopwatch() as stopping:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return starting.each(size, "spawn ") | stopping.each(size, "stop ")


async def _crowd(size: int) -> Figures:
    async def actor(queue: asyncio.Queue[object]) -> None:
        while True:
            await queue.get()

    gc.collect()
    before = resident()
    tasks = [asyncio.create_task(actor(asyncio.Queue())) for _ in range(size)]
    await asyncio.sleep(0)
    with Stopwatch() as collecting:
        gc.collect()
    used = resident() - before
    with Stopwatch() as stopping:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {"KiB": used / size, "collect": collecting.cpu * 1e3} | stopping.each(size, "stop ")


async def _flood(size: int) -> Figures:
    """call_soon_threadsafe for each message."""
    size = max(1, size // 5)
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    left = size

    def take(_message: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    def pour() -> None:
        for _ in range(size):
            loop.call_soon_threadsafe(take, "drop")

    thread = threading.Thread(target=pour)
    with Stopwatch() as watch:
        thread.start()
        await done.wait()
    thread.join()
    return watch.each(size)


async def _drip(size: int) -> Figures:
    dripper = Dripper(size)
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(
        dripper.drip, lambda sent: loop.call_soon_threadsafe(dripper.arrive, sent)
    )
    return percentiles(dripper.times)


async def _restart(size: int) -> Figures:
    """A task that fails, and a loop around it that starts another task."""

    async def mortal(queue: asyncio.Queue[str]) -> None:
        while True:
            raise ValueError(await queue.get())

    with Stopwatch() as watch:
        for _ in range(size):
            queue: asyncio.Queue[str] = asyncio.Queue()
            queue.put_nowait("fail")
            try:
                await asyncio.create_task(mortal(queue))
            except ValueError:
                pass
    return watch.each(size)


async def _timers(size: int) -> Figures:
    loop = asyncio.get_running_loop()
    wanted = delays(size)
    with Stopwatch() as arming:
        timers = [loop.call_later(delay, print) for delay in wanted]
    random.Random(2).shuffle(timers)
    with Stopwatch() as cancelling:
        for timer in timers:
            timer.cancel()
    return arming.each(size, "arm ") | cancelling.each(size, "cancel ")


async def _publish(size: int) -> Figures:
    """A queue and a task for each."""

    async def subscriber(queue: asyncio.Queue[str]) -> None:
        for _ in range(ROUNDS):
            await queue.get()

    queues = [asyncio.Queue[str]() for _ in range(size)]
    tasks = [asyncio.create_task(subscriber(queue)) for queue in queues]
    await asyncio.sleep(0)
    with Stopwatch() as watch:
        for _ in range(ROUNDS):
            for queue in queues:
                queue.put_nowait("publish")
        await asyncio.gather(*tasks)
    return watch.each(size * ROUNDS)


APART: dict[str, Variant] = {"asyncio": in_asyncio(_crowd)}

ADDS = {
    "call, 1 pair": {"asyncio": in_asyncio(_call, 1)},
    "call, 100 pairs": {"asyncio": in_asyncio(_call, 100)},
    "spawn and stop": {"asyncio": in_asyncio(_live)},
    "crowd of 10,000": {"asyncio": apart(__name__, "asyncio")},
    "crowd of 100,000": {"asyncio": apart(__name__, "asyncio")},
    "thread to process, flood": {"asyncio": in_asyncio(_flood)},
    "thread to process, idle": {"asyncio": in_asyncio(_drip)},
    "restart": {"asyncio": in_asyncio(_restart)},
    "timers": {"asyncio": in_asyncio(_timers)},
    "publish to 10,000 subscribers": {"asyncio": in_asyncio(_publish)},
}
