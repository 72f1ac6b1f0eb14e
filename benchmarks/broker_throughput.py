"""Throughput of pipelines: a sink that does nothing, beside a bare loop over the same source.

    python -m benchmarks brokers
    python -m benchmarks.broker_throughput redis kafka

The bare loop calls ``take`` and ``ack`` of the source, for the same items in the same sizes, in a
plain thread without a node: it has the cost of the bridge, and not that of the pipeline, which adds
its thread, its counters and the hand-over of each batch. Both are measured from their first item
on: a consumer of Kafka joins its group for seconds. Kafka is the mock cluster of its library, whose
work in this program counts on both sides.

With ``FASTSTREAM=/path/to/python``, a Python that has ``faststream[rabbit]``, FastStream takes the
items of the same queue of RabbitMQ, too.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import trio

from ergo_py import ChildSpec, open_node
from ergo_py.pipelines import Item, Pipeline, Sink
from ergo_py.testing.bridges import SourceRig
from tests.pipelines.brokers.rigs import SQLiteRig
from tests.pipelines.brokers.servers import BROKERS, Rig, missing, started

from .progress import progress

ITEMS = 50_000
FEW = {"mosquitto": 5_000, "kafka": 40_000, "rabbitmq": 10_000}
"""Fewer items: mosquitto sends 20 at once, the mock cluster of Kafka keeps 5 MB, and pika publishes
2,000 in a second, each in a packet of its own.
"""
BOUND = 2_000
BATCH = 500
BODY = b"x" * 100


class Counter:
    """Counts items, and measures from the first on."""

    def __init__(self) -> None:
        self.count = self.before = 0
        self.wall = self.cpu = 0.0

    def add(self, count: int) -> None:
        if not self.count:
            self.before = count
            self.wall, self.cpu = time.perf_counter(), time.process_time()
        self.count += count

    def figures(self) -> tuple[float, float]:
        """Items per second, and microseconds of processor time per item, in this program."""
        count = self.count - self.before
        wall, cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        return count / wall, cpu / count * 1e6


class Nothing(Sink):
    """Counts its items, in its thread."""

    def __init__(self, counter: Counter) -> None:
        super().__init__(batch=BATCH)
        self.counter = counter

    def handle_batch(self, items: list[Item]) -> None:
        self.counter.add(len(items))


def bare(rig: SourceRig, count: int, counter: Counter) -> None:
    """Take and acknowledge all items in a loop."""
    source = rig.source()
    source.open()
    while counter.count < count:
        items = source.take(BATCH)
        if items:
            counter.add(len(items))
            source.ack(items)
        else:
            source.wait(0.05)
    source.close()


def piped(rig: SourceRig, count: int, counter: Counter) -> None:
    """The same by a pipeline: the stop of the node acknowledges the last items."""

    async def run() -> None:
        plan = Pipeline.spec(rig.source(), Nothing(counter), most_unacknowledged=BOUND)
        async with open_node("bench@localhost", log_level="error") as node:
            await node.supervise([ChildSpec("jobs", plan)])
            while counter.count < count:  # noqa: ASYNC110 - a thread counts
                await trio.sleep(0.005)

    trio.run(run)


def fill(rig: SourceRig, count: int) -> None:
    for _ in range(count // 5_000):
        rig.put([BODY] * 5_000)


def by_faststream(rig: Rig, python: str) -> tuple[float, float]:
    """The same figures of FastStream, in a program of its own."""
    count = FEW["rabbitmq"]
    fill(rig, count)
    url = rig.server.text(rig.queue).split('"')[1]
    program = Path(__file__).parent / "peers" / "with_faststream.py"
    command = [python, str(program), url, rig.queue, str(count)]
    wall, cpu = map(float, subprocess.check_output(command, text=True).split())
    return count / wall, cpu / count * 1e6


def measured(
    name: str, rig: SourceRig, work: Callable[[SourceRig, int, Counter], None]
) -> tuple[float, float]:
    """Items per second, and microseconds of processor time per item."""
    count, counter = FEW.get(name, ITEMS), Counter()
    progress(f"{name}: fills the queue")
    fill(rig, count)
    progress(f"{name}: {work.__name__}")
    work(rig, count, counter)
    figures = counter.figures()
    if left := rig.left():
        sys.exit(f"{name}: {left} items are left")
    return figures


@contextmanager
def rigs(chosen: list[str]) -> Iterator[dict[str, SourceRig]]:
    """The brokers that are installed, or those of them that are named."""
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        found: dict[str, SourceRig] = {}
        for broker in chosen or ["sqlite", *BROKERS, "kafka"]:
            if broker == "sqlite":
                found[broker] = SQLiteRig(Path(place) / "jobs.db")
            elif broker == "kafka":
                if find_spec("confluent_kafka") is not None:
                    from tests.pipelines.brokers.mock_cluster import Cluster  # noqa: PLC0415

                    found["kafka"] = Cluster().rig("jobs")
            elif not missing(broker):
                found[broker] = Rig(stack.enter_context(started(broker)), "jobs")
        yield found


def main() -> None:
    """Measure each broker, or those that are named: the best of three runs of each, in turn."""
    print(f"{ITEMS} items ({FEW}) of {len(BODY)} bytes, load {os.getloadavg()[0]:.1f}")
    with rigs(sys.argv[1:]) as found:
        for name, rig in found.items():
            runs = [(measured(name, rig, bare), measured(name, rig, piped)) for _ in range(3)]
            (rate, cost), (piped_rate, piped_cost) = (
                (max(run[kind][0] for run in runs), min(run[kind][1] for run in runs))
                for kind in (0, 1)
            )
            progress("")
            print(
                f"{name}: bare {rate:,.0f}/s, {cost:.1f} us; pipeline {piped_rate:,.0f}/s, "
                f"{piped_cost:.1f} us; {piped_rate / rate:.2f} x the rate, "
                f"{piped_cost / cost:.2f} x the processor time",
                flush=True,
            )
            python = os.environ.get("FASTSTREAM", "")
            if python and name == "rabbitmq" and isinstance(rig, Rig):
                fast = by_faststream(rig, python)
                print(f"{name}: FastStream {fast[0]:,.0f}/s, {fast[1]:.1f} us")


if __name__ == "__main__":
    main()
