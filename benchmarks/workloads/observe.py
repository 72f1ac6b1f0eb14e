"""The cost of an observer: a message from process to process, with a function that sees everything
and without. And the cost of the observer page: a look at all processes, once a second.
"""

from time import perf_counter, sleep, thread_time
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import Node, open_node
from ergo_py.control.protocol import Plain, answer
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


def _look(node: Node, looks: bool) -> float:
    """Look at all processes as a control socket does, and return the milliseconds of CPU time of a
    look.
    """
    survey = Survey(node)
    survey.look()
    spent = 0.0
    for number in range(_LOOKS):
        sleep(_PAUSE)
        begun = thread_time()
        if looks:
            totals, (chosen,) = survey.look([Window("load", True)])
            answer(number, Plain(sample=totals, windows=[survey.rows(chosen)]))
        spent += thread_time() - begun
    return spent / _LOOKS * 1e3


async def _page(looks: bool, size: int) -> Figures:
    delays: list[float] = []
    spent: list[float] = []
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        for _ in range(size):
            await node.spawn(Sink, 1, Latch(1))

        async def look() -> None:
            spent.append(await trio.to_thread.run_sync(_look, node, looks))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            while not spent:
                begun = perf_counter()
                await trio.sleep(0.001)
                delays.append(perf_counter() - begun - 0.001)
    return {"cpu": spent[0], **percentiles(delays, scale=1e3)}


CASES = [
    Case(
        name="observer page, 10,000 processes",
        about="a look of the page at all processes, which it takes once a second",
        unit="ms",
        size=10_000,
        least=10,
        variants={"nobody": on_loop(_page, False), "page": on_loop(_page, True)},
        lines=[
            Line("CPU time of a look", "page", goals=(Goal("page", 20.0),)),
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
