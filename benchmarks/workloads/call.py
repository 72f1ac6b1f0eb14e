"""Calls: ask, wait for the answer, ask again."""

import asyncio
from functools import partial
from time import perf_counter
from typing import Any

import pykka
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import PID, Actor, Caller, open_node

from ..clocks import Latch, Stopwatch, percentiles
from ..floor import FloorActor, Question, ask, step
from ..harness import Case, Figures, Goal, Line, Variant, by_build, on_loop


class Callee(Actor):
    """Answers at once, in a plain function: a caller that finds it asleep runs it on the spot."""

    def handle_call(self, request: object, caller: Caller) -> object:
        return request


class AsyncCallee(Actor):
    """Answers in a callback that could wait."""

    async def handle_call(self, request: object, caller: Caller) -> object:
        return request


class Asker(Actor):
    """Calls in a loop, and notes when each answer came."""

    def __init__(
        self, to: PID, count: int, timeout: float | None, latch: Latch, times: list[float]
    ) -> None:
        self.to = to
        self.count = count
        self.timeout = timeout
        self.latch = latch
        self.times = times

    async def handle_message(self, message: object, sender: PID) -> None:
        call, to, timeout, times = self.call, self.to, self.timeout, self.times
        before = perf_counter()
        for _ in range(self.count):
            await call(to, message, timeout=timeout)
            now = perf_counter()
            times.append(now - before)
            before = now
        self.latch.report()


async def _ergo(
    callee: type[Callee | AsyncCallee], timeout: float | None, pairs: int, size: int
) -> Figures:
    count = max(1, size // pairs)
    latch = Latch(pairs)
    times: list[float] = []
    watch = Stopwatch()
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        askers = [
            await node.spawn(Asker, await node.spawn(callee), count, timeout, latch, times)
            for _ in range(pairs)
        ]
        await wait_all_tasks_blocked()
        with watch:
            for asker in askers:
                node.send(asker, "go")
            await latch.wait()
    return watch.each(count * pairs) | percentiles(times)


async def _floor(pairs: int, size: int) -> Figures:
    count = max(1, size // pairs)
    latch = Latch(pairs)
    times: list[float] = []

    def handle(question: Question) -> None:
        question.answer(question.request)

    async def asker(start: trio.Event, actor: FloorActor) -> None:
        await start.wait()
        before = perf_counter()
        for _ in range(count):
            await ask(actor, "go")
            now = perf_counter()
            times.append(now - before)
            before = now
        latch.report()

    async with trio.open_nursery() as nursery:
        start = trio.Event()
        for _ in range(pairs):
            actor = FloorActor(handle)
            nursery.start_soon(actor.run)
            nursery.start_soon(asker, start, actor)
        await wait_all_tasks_blocked()
        with Stopwatch() as watch:
            start.set()
            await latch.wait()
        nursery.cancel_scope.cancel()
    return watch.each(count * pairs) | percentiles(times)


async def _channel(pairs: int, size: int) -> Figures:
    count = max(1, size // pairs)
    latch = Latch(pairs)
    times: list[float] = []

    async def callee(
        requests: trio.MemoryReceiveChannel[object], replies: trio.MemorySendChannel[object]
    ) -> None:
        async for request in requests:
            replies.send_nowait(request)

    async def asker(
        start: trio.Event,
        requests: trio.MemorySendChannel[object],
        replies: trio.MemoryReceiveChannel[object],
    ) -> None:
        await start.wait()
        before = perf_counter()
        for _ in range(count):
            requests.send_nowait("go")
            await replies.receive()
            now = perf_counter()
            times.append(now - before)
            before = now
        latch.report()

    async with trio.open_nursery() as nursery:
        start = trio.Event()
        for _ in range(pairs):
            to_callee, requests = trio.open_memory_channel[object](float("inf"))
            to_asker, replies = trio.open_memory_channel[object](float("inf"))
            nursery.start_soon(callee, requests, to_asker)
            nursery.start_soon(asker, start, to_callee, replies)
        await wait_all_tasks_blocked()
        with Stopwatch() as watch:
            start.set()
            await latch.wait()
        nursery.cancel_scope.cancel()
    return watch.each(count * pairs) | percentiles(times)


async def _queue_and_future(pairs: int, size: int) -> Figures:
    count = max(1, size // pairs)
    times: list[float] = []
    loop = asyncio.get_running_loop()

    async def callee(requests: asyncio.Queue[tuple[object, asyncio.Future[object]]]) -> None:
        while True:
            request, future = await requests.get()
            future.set_result(request)

    async def asker(requests: asyncio.Queue[tuple[object, asyncio.Future[object]]]) -> None:
        before = perf_counter()
        for _ in range(count):
            future: asyncio.Future[object] = loop.create_future()
            requests.put_nowait(("go", future))
            await future
            now = perf_counter()
            times.append(now - before)
            before = now

    queues = [asyncio.Queue[tuple[object, asyncio.Future[object]]]() for _ in range(pairs)]
    callees = [asyncio.create_task(callee(queue)) for queue in queues]
    await asyncio.sleep(0)
    with Stopwatch() as watch:
        await asyncio.gather(*(asyncio.create_task(asker(queue)) for queue in queues))
    for task in callees:
        task.cancel()
    return watch.each(count * pairs) | percentiles(times)


def _asyncio(pairs: int, size: int) -> Figures:
    return asyncio.run(_queue_and_future(pairs, size))


class PykkaCallee(pykka.ThreadingActor):
    def on_receive(self, message: Any) -> Any:
        return message


class PykkaAsker(pykka.ThreadingActor):
    def __init__(self, to: pykka.ActorRef[PykkaCallee], count: int) -> None:
        super().__init__()
        self.to = to
        self.count = count

    def on_receive(self, message: Any) -> Any:
        times: list[float] = []
        before = perf_counter()
        for _ in range(self.count):
            self.to.ask(message)
            now = perf_counter()
            times.append(now - before)
            before = now
        return times


def _pykka(pairs: int, size: int) -> Figures:
    count = max(1, size // pairs // 5)
    askers = [PykkaAsker.start(PykkaCallee.start(), count) for _ in range(pairs)]
    try:
        with Stopwatch() as watch:
            futures = [asker.ask("go", block=False) for asker in askers]
            times = [time for future in futures for time in future.get()]
    finally:
        pykka.ActorRegistry.stop_all()
    return watch.each(count * pairs) | percentiles(times)


def _variants(pairs: int) -> dict[str, Variant]:
    return {
        "ergo async": on_loop(_ergo, AsyncCallee, None, pairs),
        "ergo async, 5 s": on_loop(_ergo, AsyncCallee, 5.0, pairs),
        "ergo plain": on_loop(_ergo, Callee, None, pairs),
        "ergo plain, 5 s": on_loop(_ergo, Callee, 5.0, pairs),
        "floor": on_loop(_floor, pairs),
        "trio": on_loop(_channel, pairs),
        "asyncio": partial(_asyncio, pairs),
        "pykka": partial(_pykka, pairs),
        "step": step,
    }


def _case(pairs: int, without: float, within: float) -> Case:
    return Case(
        name=f"call, {pairs} {'pair' if pairs == 1 else 'pairs'}",
        about="each round trip; trio: two memory channels; asyncio: a queue and a future",
        unit="µs",
        size=5_000,
        least=2 * pairs,
        variants=_variants(pairs),
        lines=[
            Line(
                "async callee, no timeout",
                "ergo async",
                goals=(Goal("G5", without, "trio", is_dream=True), Goal("reach", 1.35, "floor")),
            ),
            Line(
                "async callee, 5 s",
                "ergo async, 5 s",
                goals=(Goal("G6", within, "trio", is_dream=True),),
            ),
            Line(
                "what the timeout adds",
                "ergo async, 5 s",
                minus="ergo async",
                goals=(Goal("G7", 5.0, "step"),),
            ),
            Line("plain callee, no timeout", "ergo plain", goals=(Goal("reach", 3 / 43, "pykka"),)),
            Line("plain callee, 5 s", "ergo plain, 5 s", goals=(Goal("reach", 3 / 43, "pykka"),)),
            Line(
                "async callee, p50",
                "ergo async",
                figure="p50",
                goals=(
                    *([Goal("speed", by_build(0.4, 0.6), "asyncio")] if pairs == 1 else []),
                    Goal("reach", 1.0, "trio", is_dream=True),
                ),
            ),
            Line("async callee, p99", "ergo async", figure="p99"),
            Line(
                "plain callee, p50",
                "ergo plain",
                figure="p50",
                goals=(
                    *([Goal("speed", by_build(0.1, 0.25), "asyncio")] if pairs == 1 else []),
                    Goal("reach", 3 / 43, "pykka"),
                ),
            ),
            Line("plain callee, p99", "ergo plain", figure="p99"),
        ],
    )


CASES = [_case(1, 0.70, 0.75), _case(100, 0.48, 0.55)]
