"""The cost of metrics and of traces: a scrape of many processes, and a message with tracing off,
on, and sampled.
"""

from time import thread_time
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import Node, open_node
from ergo_py.telemetry import OpenTelemetry, read_figures
from ergo_py.telemetry.metrics import families_of
from ergo_py.telemetry.text import write_prometheus

from ..clocks import Latch, Stopwatch
from ..harness import Case, Figures, Goal, Line, on_loop
from .tell import Sink, Source


async def _tell(sample: float | None, size: int) -> Figures:
    tracing: Any = None
    if sample is not None:
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider  # noqa: PLC0415

        provider = TracerProvider()
        provider.add_span_processor(SpanProcessor())
        tracing = OpenTelemetry(sample, provider=provider)
    latch = Latch(1)
    watch = Stopwatch()
    async with open_node(
        "bench@localhost", watchdog=None, log_output="none", tracing=tracing
    ) as node:
        source = await node.spawn(Source, await node.spawn(Sink, size, latch), size)
        await wait_all_tasks_blocked()
        with watch:
            node.send(source, "go")
            await latch.wait()
    return watch.each(size)


def _scrape(node: Node) -> float:
    begun = thread_time()
    write_prometheus(families_of(read_figures(node)))
    return (thread_time() - begun) * 1e3


async def _metrics(size: int) -> Figures:
    spent: list[float] = []
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        for _ in range(size):
            await node.spawn(Sink, 1, Latch(1))
        spent += [await trio.to_thread.run_sync(_scrape, node) for _ in range(5)]
    return {"cpu": min(spent)}


CASES = [
    Case(
        name="metrics, 10,000 processes",
        about="a scrape of all processes, in a thread",
        unit="ms",
        size=10_000,
        least=10,
        variants={"scrape": on_loop(_metrics)},
        lines=[Line("CPU time of a scrape", "scrape", goals=(Goal("scrape", 20.0),))],
        reference="scrape",
    ),
    Case(
        name="tracing",
        about="each message of a burst, sent and delivered",
        unit="µs",
        size=20_000,
        least=10,
        variants={
            "off": on_loop(_tell, None),
            "on": on_loop(_tell, 0.0),
            "sampled": on_loop(_tell, 1.0),
        },
        lines=[
            Line("nothing sampled", "on", goals=(Goal("ratio", 1.15, "off"),)),
            Line("a span", "sampled", minus="off", goals=(Goal("span", 60.0),)),
        ],
        reference="off",
    ),
]
