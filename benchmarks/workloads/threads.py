"""From a thread to a process: a flood of messages, and a single message to a process that
sleeps.
"""

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import pykka
import trio

from ergo_py import PID, Actor, Overflow, open_node

from ..clocks import Latch, Stopwatch, percentiles
from ..floor import Door, FloorActor, step
from ..harness import Case, Figures, Goal, Line, on_loop
from .tell import PykkaSink, Sink

# -- flood -----------------------------------------------------------------------------------------


async def _pour(put: Callable[[object], object], count: int, threads: int, latch: Latch) -> Figures:
    """Have threads put ``count`` messages each, and wait until all have arrived."""

    def pour() -> None:
        for _ in range(count):
            put("drop")

    pouring = [threading.Thread(target=pour) for _ in range(threads)]
    with Stopwatch() as watch:
        for thread in pouring:
            thread.start()
        await latch.wait()
    for thread in pouring:
        thread.join()
    return watch.each(count * threads)


def _countdown(count: int, latch: Latch) -> Callable[[object], None]:
    left = count

    def handle(_message: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            latch.report()

    return handle


async def _ergo(threads: int, bound: int | None, size: int) -> Figures:
    count = max(1, size // threads)
    latch = Latch(1)
    figures: dict[str, float] = {}
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        sink = await node.spawn(
            Sink, count * threads, latch, mailbox_size=bound, overflow=Overflow.WAIT
        )
        figures |= await _pour(partial(node.send, sink), count, threads, latch)
    return figures


async def _floor(size: int) -> Figures:
    latch = Latch(1)
    async with trio.open_nursery() as nursery:
        sink = FloorActor(_countdown(size, latch))
        nursery.start_soon(sink.run)
        figures = await _pour(Door(sink).put, size, 1, latch)
        nursery.cancel_scope.cancel()
    return figures


async def _soon(size: int) -> Figures:
    size = max(1, size // 5)
    latch = Latch(1)
    token, handle = trio.lowlevel.current_trio_token(), _countdown(size, latch)
    return await _pour(lambda message: token.run_sync_soon(handle, message), size, 1, latch)


async def _run_sync(size: int) -> Figures:
    size = max(1, size // 20)
    latch = Latch(1)
    token, handle = trio.lowlevel.current_trio_token(), _countdown(size, latch)
    return await _pour(
        lambda message: trio.from_thread.run_sync(handle, message, trio_token=token), size, 1, latch
    )


def _pykka(size: int) -> Figures:
    size = max(1, size // 5)
    sink = PykkaSink.start(size)
    done = sink.ask("done?")
    try:
        with Stopwatch() as watch:
            for _ in range(size):
                sink.tell("drop")
            done.get()
    finally:
        pykka.ActorRegistry.stop_all()
    return watch.each(size)


# -- a single message to a sleeper -----------------------------------------------------------------


class Dripper:
    """Sends messages from a thread, each to a process that has had time to fall asleep."""

    def __init__(self, count: int) -> None:
        self.times: list[float] = []
        self._count = count
        self._arrived = threading.Semaphore(0)

    def arrive(self, sent: float) -> None:
        """Called by the receiver."""
        self.times.append(perf_counter() - sent)
        self._arrived.release()

    def drip(self, put: Callable[[float], object]) -> None:
        """The work of the thread."""
        for _ in range(self._count):
            time.sleep(0.001)
            put(perf_counter())
            self._arrived.acquire()

    async def drip_from_thread(self, put: Callable[[float], object]) -> None:
        """Have a thread do it, and wait for its end."""
        dry = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def work() -> None:
            self.drip(put)
            token.run_sync_soon(dry.set)

        thread = threading.Thread(target=work)
        thread.start()
        await dry.wait()
        thread.join()


class Bowl(Actor):
    """Passes on the messages that drip into it."""

    def __init__(self, arrive: Callable[[float], None]) -> None:
        self.arrive = arrive

    def handle_message(self, message: float, sender: PID) -> None:
        self.arrive(message)


async def _ergo_drip(size: int) -> Figures:
    dripper = Dripper(size)
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        bowl = await node.spawn(Bowl, dripper.arrive)
        await dripper.drip_from_thread(partial(node.send, bowl))
    return percentiles(dripper.times)


async def _floor_drip(size: int) -> Figures:
    dripper = Dripper(size)
    async with trio.open_nursery() as nursery:
        bowl = FloorActor(dripper.arrive)
        nursery.start_soon(bowl.run)
        await dripper.drip_from_thread(Door(bowl).put)
        nursery.cancel_scope.cancel()
    return percentiles(dripper.times)


async def _by_hand_drip(size: int) -> Figures:
    """A descriptor of its own, which the thread writes to and the receiver's task waits for."""
    dripper = Dripper(size)
    queue: deque[float] = deque()
    bell, ring = _bell()

    def put(sent: float) -> None:
        queue.append(sent)
        ring()

    async def receive() -> None:
        while True:
            await trio.lowlevel.wait_readable(bell)
            os.read(bell, 8)
            while queue:
                dripper.arrive(queue.popleft())

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await dripper.drip_from_thread(put)
            nursery.cancel_scope.cancel()
    finally:
        os.close(bell)
    return percentiles(dripper.times)


def _bell() -> tuple[int, Callable[[], object]]:
    """A descriptor that becomes readable, and the function that makes it so."""
    if hasattr(os, "eventfd"):
        fd = os.eventfd(0)
        return fd, partial(os.eventfd_write, fd, 1)
    reading, writing = socket.socketpair()
    return reading.detach(), partial(writing.send, b"!")


async def _soon_drip(size: int) -> Figures:
    dripper, token = Dripper(size), trio.lowlevel.current_trio_token()
    await dripper.drip_from_thread(lambda sent: token.run_sync_soon(dripper.arrive, sent))
    return percentiles(dripper.times)


async def _run_sync_drip(size: int) -> Figures:
    dripper, token = Dripper(size), trio.lowlevel.current_trio_token()
    await dripper.drip_from_thread(
        lambda sent: trio.from_thread.run_sync(dripper.arrive, sent, trio_token=token)
    )
    return percentiles(dripper.times)


class PykkaBowl(pykka.ThreadingActor):
    def __init__(self, arrive: Callable[[float], None]) -> None:
        super().__init__()
        self.arrive = arrive

    def on_receive(self, message: Any) -> Any:
        self.arrive(message)


def _pykka_drip(size: int) -> Figures:
    dripper = Dripper(size)
    bowl = PykkaBowl.start(dripper.arrive)
    try:
        dripper.drip(bowl.tell)
    finally:
        pykka.ActorRegistry.stop_all()
    return percentiles(dripper.times)


_FLOOD = (Goal("reach", 1 / 0.4, "floor", is_dream=True), Goal("reach", 1 / 5, "pykka"))

CASES = [
    Case(
        name="thread to process, flood",
        about="each message, wall time; trio: run_sync_soon for each",
        unit="µs",
        size=20_000,
        least=20,
        variants={
            "ergo": on_loop(_ergo, 1, None),
            "ergo, 4 threads": on_loop(_ergo, 4, None),
            "ergo, bounded": on_loop(_ergo, 1, 256),
            "floor": on_loop(_floor),
            "trio": on_loop(_soon),
            "from_thread": on_loop(_run_sync),
            "pykka": _pykka,
            "step": step,
        },
        lines=[
            Line(
                "one thread",
                "ergo",
                figure="wall",
                goals=(
                    Goal("G11", 0.15, "trio"),
                    Goal("G11", 4.5, "step"),
                    *_FLOOD,
                    Goal("reach", 1.0, is_dream=True),
                    Goal("reach", 0.5),
                ),
            ),
            Line("four threads", "ergo, 4 threads", figure="wall", goals=_FLOOD),
            Line("one thread, by hand: a deque and a flag", "floor", figure="wall"),
            Line(
                "bounded, waits for room",
                "ergo, bounded",
                figure="wall",
                goals=(Goal("G12", 6.0, "step"),),
            ),
        ],
    ),
    Case(
        name="thread to process, idle",
        about=(
            "from the send to the callback of a sleeping process, wall time; trio: run_sync_soon; "
            "by hand: a task that waits for a descriptor"
        ),
        unit="µs",
        size=150,
        least=3,
        variants={
            "ergo": on_loop(_ergo_drip),
            "floor": on_loop(_floor_drip),
            "by hand": on_loop(_by_hand_drip),
            "trio": on_loop(_soon_drip),
            "from_thread": on_loop(_run_sync_drip),
            "pykka": _pykka_drip,
        },
        lines=[
            Line(
                "p50",
                "ergo",
                figure="p50",
                goals=(
                    Goal("G13", 1.2, "trio"),
                    Goal("reach", 0.5, "trio"),
                    Goal("reach", 1.0, "pykka", is_dream=True),
                    Goal("reach", 19.0),
                ),
            ),
            Line("p99", "ergo", figure="p99"),
            Line("p50, by hand", "by hand", figure="p50"),
        ],
    ),
]
