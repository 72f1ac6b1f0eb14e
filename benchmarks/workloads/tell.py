"""Messages in a single direction: a burst from process to process, and from a hundred to a
hundred.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pykka
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import PID, Actor, open_node

from ..clocks import Latch, Stopwatch
from ..floor import FloorActor, step
from ..harness import Case, Figures, Goal, Line, Variant, by_build, on_loop


class Sink(Actor):
    """Counts its messages."""

    def __init__(self, count: int, latch: Latch) -> None:
        self.left = count
        self.latch = latch

    def handle_message(self, message: object, sender: PID) -> None:
        self.left -= 1
        if not self.left:
            self.latch.report()


class AsyncSink(Actor):
    """The same, with a callback that could wait."""

    def __init__(self, count: int, latch: Latch) -> None:
        self.left = count
        self.latch = latch

    async def handle_message(self, message: object, sender: PID) -> None:
        self.left -= 1
        if not self.left:
            self.latch.report()


class Source(Actor):
    """Sends a burst when told to."""

    def __init__(self, to: PID, count: int) -> None:
        self.to = to
        self.count = count

    def handle_message(self, message: object, sender: PID) -> None:
        send, to = self.send, self.to
        for _ in range(self.count):
            send(to, message)


async def _ergo(sink: type[Sink | AsyncSink], pairs: int, size: int) -> Figures:
    count = max(1, size // pairs)
    latch = Latch(pairs)
    watch = Stopwatch()
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        sources = [
            await node.spawn(Source, await node.spawn(sink, count, latch), count)
            for _ in range(pairs)
        ]
        await wait_all_tasks_blocked()
        with watch:
            for source in sources:
                node.send(source, "go")
            await latch.wait()
    return watch.each(count * pairs)


async def _floor(pairs: int, size: int) -> Figures:
    count = max(1, size // pairs)
    latch = Latch(pairs)

    def make_sink() -> FloorActor:
        left = count

        def handle(_message: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                latch.report()

        return FloorActor(handle)

    def make_source(sink: FloorActor) -> FloorActor:
        def handle(message: object) -> None:
            put = sink.put
            for _ in range(count):
                put(message)

        return FloorActor(handle)

    async with trio.open_nursery() as nursery:
        sinks = [make_sink() for _ in range(pairs)]
        sources = [make_source(sink) for sink in sinks]
        for actor in (*sinks, *sources):
            nursery.start_soon(actor.run)
        await wait_all_tasks_blocked()
        with Stopwatch() as watch:
            for source in sources:
                source.put("go")
            await latch.wait()
        nursery.cancel_scope.cancel()
    return watch.each(count * pairs)


async def _by_hand(sink: type[Sink | AsyncSink], pairs: int, size: int) -> Figures:
    """The same handlers and a deque for each: no sender, no process, and no turn of a scheduler."""
    count = max(1, size // pairs)
    latch = Latch(pairs)
    sinks = [(deque[object](), sink(count, latch)) for _ in range(pairs)]
    with Stopwatch() as watch:
        for queue, _ in sinks:
            append = queue.append
            for _ in range(count):
                append("go")
        for queue, each in sinks:
            await _drain(queue, each)
    return watch.each(count * pairs)


async def _drain(queue: deque[object], sink: Sink | AsyncSink) -> None:
    take, sender = queue.popleft, PID("bench@localhost", 1, 1)
    if isinstance(sink, AsyncSink):
        wait_for = sink.handle_message
        while queue:
            await wait_for(take(), sender)
    else:
        handle = sink.handle_message
        while queue:
            handle(take(), sender)


async def _channel(pairs: int, size: int) -> Figures:
    count = max(1, size // pairs)
    latch = Latch(pairs)

    async def sink(receiver: trio.MemoryReceiveChannel[object]) -> None:
        left = count
        async for _ in receiver:
            left -= 1
            if not left:
                latch.report()

    async def source(start: trio.Event, sender: trio.MemorySendChannel[object]) -> None:
        await start.wait()
        for _ in range(count):
            sender.send_nowait("go")

    async with trio.open_nursery() as nursery:
        start = trio.Event()
        for _ in range(pairs):
            sender, receiver = trio.open_memory_channel[object](float("inf"))
            nursery.start_soon(sink, receiver)
            nursery.start_soon(source, start, sender)
        await wait_all_tasks_blocked()
        with Stopwatch() as watch:
            start.set()
            await latch.wait()
        nursery.cancel_scope.cancel()
    return watch.each(count * pairs)


async def _queue(pairs: int, size: int) -> Figures:
    count = max(1, size // pairs)

    async def sink(queue: asyncio.Queue[object]) -> None:
        for _ in range(count):
            await queue.get()

    async def source(queue: asyncio.Queue[object]) -> None:
        for _ in range(count):
            queue.put_nowait("go")

    queues: list[asyncio.Queue[object]] = [asyncio.Queue() for _ in range(pairs)]
    sinks = [asyncio.create_task(sink(queue)) for queue in queues]
    await asyncio.sleep(0)
    with Stopwatch() as watch:
        sources = [asyncio.create_task(source(queue)) for queue in queues]
        await asyncio.gather(*sinks, *sources)
    return watch.each(count * pairs)


def _asyncio(pairs: int, size: int) -> Figures:
    return asyncio.run(_queue(pairs, size))


class PykkaSink(pykka.ThreadingActor):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.left = count
        self.done = pykka.ThreadingFuture[None]()

    def on_receive(self, message: Any) -> Any:
        if message == "done?":
            return self.done
        self.left -= 1
        if not self.left:
            self.done.set(None)
        return None


class PykkaSource(pykka.ThreadingActor):
    def __init__(self, to: pykka.ActorRef[PykkaSink], count: int) -> None:
        super().__init__()
        self.to = to
        self.count = count

    def on_receive(self, message: Any) -> Any:
        tell = self.to.tell
        for _ in range(self.count):
            tell(message)


def _pykka(pairs: int, size: int) -> Figures:
    count = max(1, size // pairs // 8)
    sinks = [PykkaSink.start(count) for _ in range(pairs)]
    sources = [PykkaSource.start(sink, count) for sink in sinks]
    futures = [sink.ask("done?") for sink in sinks]
    try:
        with Stopwatch() as watch:
            for source in sources:
                source.tell("go")
            for future in futures:
                future.get()
    finally:
        pykka.ActorRegistry.stop_all()
    return watch.each(count * pairs)


def _variants(pairs: int) -> dict[str, Variant]:
    return {
        "ergo plain": on_loop(_ergo, Sink, pairs),
        "ergo async": on_loop(_ergo, AsyncSink, pairs),
        "by hand": on_loop(_by_hand, Sink, pairs),
        "async by hand": on_loop(_by_hand, AsyncSink, pairs),
        "floor": on_loop(_floor, pairs),
        "trio": on_loop(_channel, pairs),
        "asyncio": partial(_asyncio, pairs),
        "pykka": partial(_pykka, pairs),
        "step": step,
    }


_OF_QUEUE = Goal("speed", by_build(1 / 3, 1 / 1.15), "asyncio")
# Harder than G1 and G2.
_REACH = (
    Goal("reach", 1 / 0.45, "floor", is_dream=True),
    Goal("reach", 1 / 8, "pykka", is_dream=True),
    _OF_QUEUE,
    Goal("reach", 1.0, "asyncio", is_dream=True),
)


def _case(pairs: int, plain: Sequence[Goal] = (), asynchronous: Sequence[Goal] = ()) -> Case:
    return Case(
        name=f"tell, {pairs} to {pairs}",
        about="each message of a burst; trio: a memory channel",
        unit="µs",
        size=20_000,
        least=2 * pairs,
        variants=_variants(pairs),
        lines=[
            Line(
                "plain handler",
                "ergo plain",
                goals=(*plain, Goal("near", by_build(1.9, 6.0), "by hand"), *_REACH),
            ),
            Line(
                "async handler",
                "ergo async",
                goals=(*asynchronous, Goal("near", by_build(1.9, 4.0), "async by hand"), *_REACH),
            ),
            Line("plain handler, by hand", "by hand"),
            Line(
                "async handler, by hand",
                "async by hand",
                goals=(replace(_OF_QUEUE, is_dream=True),),
            ),
        ],
    )


CASES = [
    _case(
        1,
        plain=[Goal("G2", 0.16, "trio")],
        asynchronous=[Goal("G1", 0.18, "trio"), Goal("G1", 4.5, "step")],
    ),
    _case(100),
]
