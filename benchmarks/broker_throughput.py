"""Throughput of pipelines: a sink that does nothing, beside the bare loop of the same library.

    python -m benchmarks brokers
    python -m benchmarks.broker_throughput redis kafka

The bare loop takes and acknowledges the same items in the same sizes, in a plain thread without a
node. The pipeline adds its thread, its counters and the hand-over of each batch. Kafka is the mock
cluster of its library, whose work in this program counts on both sides.

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

ITEMS = 50_000
FEW = {"mosquitto": 5_000, "kafka": 20_000}
"""Fewer items: mosquitto sends 20 at once, and the mock cluster of Kafka keeps 5 MB."""
BOUND = 2_000
BATCH = 500
BODY = b"x" * 100


class Nothing(Sink):
    """Counts its items, in its thread."""

    def __init__(self, count: list[int]) -> None:
        super().__init__(batch=BATCH)
        self.count = count

    def handle_batch(self, items: list[Item]) -> None:
        self.count[0] += len(items)


def bare(rig: SourceRig, count: int) -> None:
    """Take and acknowledge all items in a loop."""
    source = rig.source()
    source.open()
    left = count
    while left:
        items = source.take(BATCH)
        if items:
            source.ack(items)
        else:
            source.wait(0.05)
        left -= len(items)
    source.close()


def piped(rig: SourceRig, count: int) -> None:
    """The same by a pipeline: the stop of the node acknowledges the last items."""
    handled = [0]

    async def run() -> None:
        plan = Pipeline.spec(rig.source(), Nothing(handled), most_unacknowledged=BOUND)
        async with open_node("bench@localhost", log_level="error") as node:
            await node.supervise([ChildSpec("jobs", plan)])
            while handled[0] < count:  # noqa: ASYNC110 - a thread counts
                await trio.sleep(0.02)

    trio.run(run)


def fill(rig: SourceRig, count: int) -> None:
    for _ in range(count // 5_000):
        rig.put([BODY] * 5_000)


def by_faststream(rig: Rig, python: str) -> tuple[float, float]:
    """The same figures of FastStream, in a program of its own."""
    fill(rig, ITEMS)
    url = rig.server.text(rig.queue).split('"')[1]
    program = Path(__file__).parent / "peers" / "with_faststream.py"
    command = [python, str(program), url, rig.queue, str(ITEMS)]
    wall, cpu = map(float, subprocess.check_output(command, text=True).split())
    return ITEMS / wall, cpu / ITEMS * 1e6


def measured(
    rig: SourceRig, count: int, work: Callable[[SourceRig, int], None]
) -> tuple[float, float]:
    """Items per second, and microseconds of processor time per item, in this program."""
    fill(rig, count)
    wall, cpu = time.perf_counter(), time.process_time()
    work(rig, count)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if rig.left():
        sys.exit(f"{rig.left()} items are left")
    return count / wall, cpu / count * 1e6


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
            count = FEW.get(name, ITEMS)
            runs = [(measured(rig, count, bare), measured(rig, count, piped)) for _ in range(3)]
            (rate, cost), (piped_rate, piped_cost) = (
                (max(run[kind][0] for run in runs), min(run[kind][1] for run in runs))
                for kind in (0, 1)
            )
            print(
                f"{name}: bare {rate:,.0f}/s, {cost:.1f} us; pipeline {piped_rate:,.0f}/s, "
                f"{piped_cost:.1f} us; {piped_rate / rate:.2f} x the rate, "
                f"{piped_cost / cost:.2f} x the processor time"
            )
            python = os.environ.get("FASTSTREAM", "")
            if python and name == "rabbitmq" and isinstance(rig, Rig):
                fast = by_faststream(rig, python)
                print(f"{name}: FastStream {fast[0]:,.0f}/s, {fast[1]:.1f} us")


if __name__ == "__main__":
    main()
