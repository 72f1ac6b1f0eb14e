"""Readers of meta-processes: how fast their input gets through, their cost, and their cost for
others.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from time import perf_counter
from typing import Any

import anyio.from_thread
import janus
import trio

from ergo_py import PID, Actor, MetaProcess, open_node

from ..clocks import Latch, Stopwatch, percentiles, resident
from ..floor import step
from ..harness import Case, Figures, Goal, Line, on_loop
from .tell import Sink
from .threads import (
    Bowl,
    Dripper,
    _countdown,
    _floor,
    _floor_drip,
    _pykka,
    _pykka_drip,
    _run_sync,
    _run_sync_drip,
    _soon,
    _soon_drip,
)

# -- a reader and a receiver -----------------------------------------------------------------------


class Reads(MetaProcess):
    """A reader that does a single thing, in its thread, and ends."""

    def __init__(self, work: Callable[["Reads"], object]) -> None:
        self.work = work

    def start(self) -> None:
        self.work(self)


class Owns(Actor):
    """Owns meta-processes for as long as it lives."""

    def __init__(self, *metas: MetaProcess, **options: Any) -> None:
        self.metas, self.options = metas, options

    async def init(self) -> None:
        for meta in self.metas:
            await self.spawn_meta(meta, **self.options)


def _pour(put: Callable[[object], object], count: int) -> None:
    for _ in range(count):
        put("drop")


async def _reader(backlog: int, size: int) -> Figures:
    latch, watch = Latch(1), Stopwatch()
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        sink = await node.spawn(Sink, size, latch)
        with watch:
            await node.spawn(
                partial(
                    Owns, Reads(lambda me: _pour(partial(me.send, sink), size)), backlog=backlog
                )
            )
            await latch.wait()
    return watch.each(size)


async def _reader_drip(size: int) -> Figures:
    dripper = Dripper(size)
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        bowl = await node.spawn(Bowl, dripper.arrive)
        owner = await node.spawn(Owns, Reads(lambda me: dripper.drip(partial(me.send, bowl))))
        while node.process_info(owner).children:  # noqa: ASYNC110 - the thread sets no event
            await trio.sleep(0.01)
    return percentiles(dripper.times)


# -- the alternatives by hand ----------------------------------------------------------------------


def _portal(size: int) -> Figures:
    """anyio's portal, a call for each message."""
    size = max(1, size // 20)

    async def main() -> Figures:
        latch, watch = Latch(1), Stopwatch()
        handle = _countdown(size, latch)
        portal = anyio.from_thread.BlockingPortal()
        thread = threading.Thread(
            target=_pour, args=(lambda message: portal.call(handle, message), size)
        )
        async with portal:
            with watch:
                thread.start()
                await latch.wait()
        thread.join()
        return watch.each(size)

    return trio.run(main)


def _portal_drip(size: int) -> Figures:
    async def main() -> Figures:
        dripper = Dripper(size)
        async with anyio.from_thread.BlockingPortal() as portal:
            await dripper.drip_from_thread(lambda sent: portal.call(dripper.arrive, sent))
        return percentiles(dripper.times)

    return trio.run(main)


def _janus(size: int) -> Figures:
    """A janus queue: a thread puts, an asyncio task gets."""
    size = max(1, size // 5)

    async def main() -> Figures:
        items: janus.Queue[object] = janus.Queue()
        thread = threading.Thread(target=_pour, args=(items.sync_q.put, size))
        with Stopwatch() as watch:
            thread.start()
            for _ in range(size):
                await items.async_q.get()
        thread.join()
        await items.aclose()
        return watch.each(size)

    return _in_asyncio(main())


def _janus_drip(size: int) -> Figures:
    async def main() -> Figures:
        dripper = Dripper(size)
        items: janus.Queue[float] = janus.Queue()
        thread = threading.Thread(target=dripper.drip, args=(items.sync_q.put,))
        thread.start()
        for _ in range(size):
            dripper.arrive(await items.async_q.get())
        thread.join()
        await items.aclose()
        return percentiles(dripper.times)

    return _in_asyncio(main())


def _in_asyncio(work: Coroutine[Any, Any, Figures]) -> Figures:
    return asyncio.run(work)


# -- the cost of a reader for a busy process -------------------------------------------------------


class Busy(Actor):
    """Feeds itself messages, and works for a while on each."""

    def __init__(self, turn: float, count: int, latch: Latch) -> None:
        self.turn, self.left, self.latch = turn, count, latch

    def init(self) -> None:
        self.send(self.pid, "on")

    async def handle_message(self, message: object, sender: PID) -> None:
        end = perf_counter() + self.turn
        while perf_counter() < end:
            pass
        self.left -= 1
        if self.left:
            self.send(self.pid, "on")
        else:
            self.latch.report()


def _sit(me: Reads) -> None:
    me.pause(3600)


def _tick(me: Reads) -> None:
    while me.pause(0.002):
        pass


async def _busy(turn: float, work: Callable[[Reads], object] | None, size: int) -> Figures:
    count = max(10, int(size / 1e6 / turn))
    latch, watch = Latch(1), Stopwatch()
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        if work is not None:
            await node.spawn(Owns, Reads(work))
        with watch:
            await node.spawn(Busy, turn, count, latch)
            await latch.wait()
    return watch.each(count)


def _busy_case(turn: float) -> Case:
    return Case(
        name=f"busy beside readers, turns of {turn * 1e6:.0f} µs",
        about=(
            "each message of a process that feeds itself, wall time; "
            "trio: the same process without any reader"
        ),
        unit="µs",
        size=300_000,
        least=2_000,
        variants={
            "ergo, reader asleep": on_loop(_busy, turn, _sit),
            "ergo, reader wakes": on_loop(_busy, turn, _tick),
            "trio": on_loop(_busy, turn, None),
        },
        lines=[
            Line(
                "a reader that sleeps",
                "ergo, reader asleep",
                figure="wall",
                goals=(Goal("X13", 1.05, "trio"),),
            ),
            Line("one that wakes, 500/s", "ergo, reader wakes", figure="wall"),
        ],
        rounds=3,
    )


# -- many readers ----------------------------------------------------------------------------------


class Receives(MetaProcess):
    """Blocked in recv for all its life."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def start(self) -> None:
        self.opened(self.sock)
        self.sock.recv(1)


async def _many(size: int) -> Figures:
    pairs = [socket.socketpair() for _ in range(size)]
    start, stop, memory = Stopwatch(), Stopwatch(), 0.0
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        before = resident()
        with start:
            owner = await node.spawn(partial(Owns, *(Receives(ours) for ours, _ in pairs)))
        memory = (resident() - before) / size
        with stop:
            node.send_exit(owner)
            await node.wait_ended(owner)
    for _, theirs in pairs:
        theirs.close()
    return {"start": start.wall / size * 1e6, "stop": stop.wall / size * 1e6, "memory": memory}


def _bare_threads(size: int) -> Figures:
    """The same without any framework: threads that are started, and freed and joined."""
    pairs = [socket.socketpair() for _ in range(size)]
    before = resident()
    with Stopwatch() as start:
        threads = [threading.Thread(target=ours.recv, args=(1,)) for ours, _ in pairs]
        for thread in threads:
            thread.start()
    memory = (resident() - before) / size
    with Stopwatch() as stop:
        for ours, _ in pairs:
            ours.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
    for pair in pairs:
        for sock in pair:
            sock.close()
    return {"start": start.wall / size * 1e6, "stop": stop.wall / size * 1e6, "memory": memory}


_FLOOD = (Goal("reach", 1 / 0.4, "floor", is_dream=True), Goal("reach", 1 / 5, "pykka"))

CASES = [
    Case(
        name="reader to process, flood",
        about="each message, wall time; trio: run_sync_soon for each",
        unit="µs",
        size=20_000,
        least=20,
        variants={
            "ergo": on_loop(_reader, 1000),
            "ergo, backlog of 16": on_loop(_reader, 16),
            "floor": on_loop(_floor),
            "trio": on_loop(_soon),
            "from_thread": on_loop(_run_sync),
            "anyio": _portal,
            "janus": _janus,
            "pykka": _pykka,
            "step": step,
        },
        lines=[
            Line(
                "a reader",
                "ergo",
                figure="wall",
                goals=(
                    *_FLOOD,
                    Goal("ahead of", 1.0, "from_thread"),
                    Goal("ahead of", 1.0, "anyio"),
                    Goal("ahead of", 1.0, "janus"),
                ),
            ),
            Line("backlog of 16", "ergo, backlog of 16", figure="wall"),
        ],
    ),
    Case(
        name="reader to process, idle",
        about="from the send to the callback of a sleeping process, wall time; trio: run_sync_soon",
        unit="µs",
        size=150,
        least=3,
        variants={
            "ergo": on_loop(_reader_drip),
            "floor": on_loop(_floor_drip),
            "trio": on_loop(_soon_drip),
            "from_thread": on_loop(_run_sync_drip),
            "anyio": _portal_drip,
            "janus": _janus_drip,
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
                    Goal("ahead of", 1.0, "from_thread"),
                    Goal("ahead of", 1.0, "anyio"),
                    Goal("ahead of", 1.0, "janus"),
                    Goal("reach", 1.0, "pykka", is_dream=True),
                ),
            ),
            Line("p99", "ergo", figure="p99"),
        ],
    ),
    *(_busy_case(turn) for turn in (0.00001, 0.0001, 0.001)),
    Case(
        name="readers blocked in recv",
        about="each of a thousand, wall time; trio: bare threads, started, freed and joined",
        unit="µs",
        size=1_000,
        least=10,
        rounds=3,
        variants={"ergo": on_loop(_many), "trio": _bare_threads},
        lines=[
            Line("start", "ergo", figure="start", goals=(Goal("G16", 130.0),)),
            Line("stop", "ergo", figure="stop", goals=(Goal("G16", 300.0),)),
            Line("memory, KiB", "ergo", figure="memory", goals=(Goal("G16", 30.0),)),
        ],
    ),
]
