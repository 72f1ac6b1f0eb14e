"""The cost of an observer: a message from process to process, with a function that sees everything
and without.
"""

from typing import Any

from trio.testing import wait_all_tasks_blocked

from ergo_py import open_node

from ..clocks import Latch, Stopwatch
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


CASES = [
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
