"""The cost of an observer: a message from process to process, with a function that sees everything
and without. And the cost of the observer page: a look at all processes, once a second.
"""

import gc
from collections.abc import Sequence
from time import perf_counter, sleep, thread_time
from typing import Any
from unittest.mock import patch

import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import PID, Node, open_node
from ergo_py._core.inspection import thread_slices
from ergo_py._core.verbs.node_access import kernel_of
from ergo_py.control.protocol import Plain, answer
from ergo_py.control.rows import RowFormat
from ergo_py.control.views.survey import Survey, Window

from ..clocks import Latch, Stopwatch, percentiles
from ..floor import step
from ..harness import Case, Figures, Goal, Line, on_loop
from .tell import Sink, Source


def _see(_sight: object) -> None:
    """The cheapest observer there is."""


async def _ergo(observer: Any, size: int) -> Figures:
    latch = Latch(1)
    watch = Stopwatch()
    async with open_node(
        "bench@localhost", watchdog=None, log_output="none", observer=observer
    ) as node:
        source = await node.spawn(Source, await node.spawn(Sink, size, latch), size)
        await wait_all_tasks_blocked()
        with watch:
            node.send(source, "go")
            await latch.wait()
    return watch.each(size)


_LOOKS = 5
_PAUSE = 0.2
"""Seconds between two looks; a page takes a second."""


class _Slices:
    """The processor time between the pauses of a look."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._began = thread_time()

    def restart(self) -> float:
        """A look begins."""
        self._began = thread_time()
        return self._began

    def pause(self, seconds: float) -> None:
        """Pause, as `in_slices` does."""
        self.longest = max(self.longest, thread_time() - self._began)
        sleep(seconds)
        self._began = thread_time()


def _look(node: Node, looks: bool, busy: Sequence[PID]) -> Figures:
    """Look at all processes as a control socket does: milliseconds of CPU time of a look, and of
    its longest slice.
    """
    survey, slices, row_format = Survey(kernel_of(node)), _Slices(), RowFormat()
    survey.look()
    spent = 0.0
    gc.collect()
    gc.disable()  # a pass of the garbage collector belongs to the whole program
    with patch.object(thread_slices, "sleep", slices.pause):
        for number in range(_LOOKS):
            for pid in busy:
                node.send(pid, number)
            sleep(_PAUSE)
            begun = slices.restart()
            if looks:
                totals, (chosen,) = survey.look([Window("load", True)])
                answer(
                    number, Plain(sample=totals, windows=[survey.window_json(chosen, row_format)])
                )
            spent += thread_time() - begun
    gc.enable()
    return {"cpu": spent / _LOOKS * 1e3, "slice": slices.longest * 1e3}


async def _page(looks: bool, busy: int, size: int) -> Figures:
    delays: list[float] = []
    spent: list[Figures] = []
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        pids = [await node.spawn(Sink, _LOOKS * size, Latch(1)) for _ in range(size)]

        async def look() -> None:
            spent.append(await trio.to_thread.run_sync(_look, node, looks, pids[:busy]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            while not spent:
                begun = perf_counter()
                await trio.sleep(0.001)
                delays.append(perf_counter() - begun - 0.001)
    return {**spent[0], **percentiles(delays, scale=1e3)}


CASES = [
    Case(
        name="observer page, 10,000 processes",
        about="a look of the page at all processes, which it takes once a second",
        unit="ms",
        size=10_000,
        least=10,
        variants={
            "nobody": on_loop(_page, False, 0),
            "page": on_loop(_page, True, 0),
            "busy": on_loop(_page, True, 3_000),
        },
        lines=[
            Line("CPU time of a look", "page", goals=(Goal("page", 20.0),)),
            Line("CPU time of a look, 3,000 of them busy", "busy"),
            Line("longest slice of it", "busy", "slice", goals=(Goal("slice", 1.0),)),
            Line("delay of the loop, p99", "page", "p99", goals=(Goal("ratio", 2.0, "nobody"),)),
        ],
        reference="nobody",
    ),
    Case(
        name="observer",
        about="each message of a burst, sent and delivered",
        unit="µs",
        size=20_000,
        least=10,
        variants={"without": on_loop(_ergo, None), "with": on_loop(_ergo, _see), "step": step},
        lines=[
            Line("without an observer", "without", goals=(Goal("step", 8.0, "step"),)),
            Line("with one", "with", goals=(Goal("ratio", 6.0, "without"),)),
        ],
        reference="without",
    ),
]
