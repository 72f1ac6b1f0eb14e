"""Many idle processes: the memory of each, and their cost for the garbage collector and an orderly
stop.

Each measurement has a Python of its own, since memory that was used once is not given back.
"""

import gc

import pykka
import trio

from ergo_py import open_node

from ..apart import apart
from ..clocks import Stopwatch, resident
from ..floor import FloorActor
from ..harness import Case, Figures, Goal, Line, Variant, by_build, on_loop
from .life import AsyncIdle, Idle, PykkaIdle, settle


async def _ergo(behaviour: type[Idle | AsyncIdle], size: int) -> Figures:
    used, collecting, stopping = 0.0, Stopwatch(), Stopwatch()
    async with open_node(
        "bench@localhost", watchdog=None, log_output="none", stop_timeout=600
    ) as node:
        await node.spawn(behaviour)
        gc.collect()
        before = resident()
        for _ in range(size):
            await node.spawn(behaviour)
        await settle()
        with collecting:
            gc.collect()
        used = resident() - before
        stopping.start()
    stopping.stop()
    return {"KiB": used / size, "collect": collecting.cpu * 1e3} | stopping.each(size, "stop ")


async def _floor(size: int) -> Figures:
    collecting, stopping = Stopwatch(), Stopwatch()
    async with trio.open_nursery() as nursery:
        gc.collect()
        before = resident()
        actors = [FloorActor(bool) for _ in range(size)]
        for actor in actors:
            nursery.start_soon(actor.run)
        await settle()
        with collecting:
            gc.collect()
        used = resident() - before
        stopping.start()
        for actor in reversed(actors):
            actor.put(True)
            await trio.lowlevel.checkpoint()
    stopping.stop()
    return {"KiB": used / size, "collect": collecting.cpu * 1e3} | stopping.each(size, "stop ")


async def _task(size: int) -> Figures:
    collecting, stopping = Stopwatch(), Stopwatch()
    async with trio.open_nursery() as nursery:
        gc.collect()
        before = resident()
        for _ in range(size):
            nursery.start_soon(trio.sleep_forever)
        await settle()
        with collecting:
            gc.collect()
        used = resident() - before
        stopping.start()
        nursery.cancel_scope.cancel()
    stopping.stop()
    return {"KiB": used / size, "collect": collecting.cpu * 1e3} | stopping.each(size, "stop ")


def _pykka(size: int) -> Figures:
    size = max(1, size // 100)
    PykkaIdle.start()
    before = resident()
    for _ in range(size):
        PykkaIdle.start()
    used = resident() - before
    with Stopwatch() as collecting:
        gc.collect()
    with Stopwatch() as stopping:
        pykka.ActorRegistry.stop_all()
    return {"KiB": used / size, "collect": collecting.cpu * 1e3} | stopping.each(size, "stop ")


APART: dict[str, Variant] = {
    "ergo plain": on_loop(_ergo, Idle),
    "ergo async": on_loop(_ergo, AsyncIdle),
    "floor": on_loop(_floor),
    "trio": on_loop(_task),
    "pykka": _pykka,
}


def _case(size: int, rounds: int) -> Case:
    memory = Goal("reach", 5.0)
    return Case(
        name=f"crowd of {size:,}",
        about=(
            "each process, KiB, and µs to stop; trio: start_soon(sleep_forever), and cancelling it"
        ),
        unit="",
        size=size,
        least=100,
        variants={variant: apart(__name__, variant) for variant in APART},
        lines=[
            Line(
                "memory, plain (KiB)",
                "ergo plain",
                figure="KiB",
                goals=(
                    memory,
                    Goal("speed", by_build(2.7, 3.2)),
                    Goal("G9", 3.2, is_dream=True),
                ),
            ),
            Line(
                "memory, async (KiB)",
                "ergo async",
                figure="KiB",
                goals=(memory, Goal("G9", 4.2, is_dream=True)),
            ),
            Line("stop, plain (µs)", "ergo plain", figure="stop cpu", goals=(Goal("G10", 20.0),)),
            Line("stop, async (µs)", "ergo async", figure="stop cpu", goals=(Goal("G10", 20.0),)),
            Line("one collection, plain (ms)", "ergo plain", figure="collect"),
            Line("one collection, async (ms)", "ergo async", figure="collect"),
        ],
        rounds=rounds,
    )


CASES = [_case(10_000, rounds=1), _case(100_000, rounds=1)]
