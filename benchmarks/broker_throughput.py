"""Throughput of pipelines: a sink that does nothing, beside the loop of the library of each broker.

    python -m benchmarks brokers
    python -m benchmarks.broker_throughput redis kafka

The loops are those of `broker_loops`, for the same items in batches of the same size. *By hand*
is the least that a framework in Python adds to them: an `Item` for each message, and a thread that
gets each batch by a queue. A library in C needs less time for a message than Python for any object.
All are measured from their first batch on, until they have disconnected: a consumer of Kafka joins
its group for seconds.

No broker of Kafka is packaged with the system: Kafka is the mock cluster of its library, in a
program of its own. The figures are the cost of a client that fetches, reads and commits while it is
measured. They say nothing about a cluster.

With ``FASTSTREAM=/path/to/python``, a Python that has ``faststream[rabbit]``, FastStream takes the
items of the same queue of RabbitMQ, too.
"""

import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

import psycopg
import trio
from confluent_kafka import Producer

from ergo_py import ChildSpec, open_node
from ergo_py.pipelines import Item, Kafka, Pipeline, Sink
from ergo_py.testing.bridges import SourceRig
from tests.pipelines.brokers.mock_cluster import KafkaRig
from tests.pipelines.brokers.rigs import SQLiteRig
from tests.pipelines.brokers.servers import Rig, missing, started

from .broker_loops import BATCH, KAFKA, LOOPS, Handle
from .progress import progress

ITEMS = {"sqlite": 100_000, "mosquitto": 5_000, "rabbitmq": 10_000, "kafka": 120_000}
"""Mosquitto sends 20 at once, and pika publishes 2,000 in a second, each in a packet of its own.
librdkafka has 17,000 when the measurement begins. All others have 50,000.
"""
BOUND = 4 * BATCH
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


class Broker(NamedTuple):
    """A broker: its rig, and the loop of its library."""

    rig: SourceRig
    loop: Callable[[int, Handle], None]


def bare(broker: Broker, count: int, counter: Counter) -> None:
    """Take and acknowledge all items by the loop of the library."""
    broker.loop(count, lambda batch: counter.add(len(batch)))


def by_hand(broker: Broker, count: int, counter: Counter) -> None:
    """The same, with an `Item` for each message and a thread that handles the batches."""
    batches, answers = SimpleQueue[list[Item]](), SimpleQueue[None]()

    def work() -> None:
        while items := batches.get():
            counter.add(len(items))
            answers.put(None)

    def handle(batch: list[tuple[Any, Any]]) -> None:
        batches.put([Item(body, key) for body, key in batch])
        answers.get()

    thread = Thread(target=work)
    thread.start()
    broker.loop(count, handle)
    batches.put([])
    thread.join()


def piped(broker: Broker, count: int, counter: Counter) -> None:
    """The same by a pipeline: the stop of the node acknowledges the last items."""

    async def run() -> None:
        plan = Pipeline.spec(broker.rig.source(), Nothing(counter), most_unacknowledged=BOUND)
        async with open_node("bench@localhost", log_level="error") as node:
            await node.supervise([ChildSpec("jobs", plan)])
            while counter.count < count:  # noqa: ASYNC110 - a thread counts
                await trio.sleep(0.005)

    trio.run(run)


def clean(conninfo: str) -> None:
    """Let PostgreSQL remove the rows that the loop before has deleted, and remove none while a loop
    is measured: the next loop would read them, and take three times as long. The server does not
    wait for the disk, which may take 0.2 ms or 20 ms.
    """
    with psycopg.connect(conninfo, autocommit=True) as database:
        database.execute("alter system set fsync = off")
        database.execute("select pg_reload_conf()")
        database.execute("alter table ergo_items set (autovacuum_enabled = off)")
        database.execute("vacuum analyze ergo_items")
        database.execute("checkpoint")


def fill(rig: SourceRig, count: int) -> None:
    for _ in range(count // 5_000):
        rig.put([BODY] * 5_000)


def by_faststream(rig: Rig, python: str) -> tuple[float, float]:
    """The same figures of FastStream, in a program of its own."""
    count = ITEMS["rabbitmq"]
    fill(rig, count)
    program = Path(__file__).parent / "peers" / "with_faststream.py"
    command = [python, str(program), *place_of(rig), str(count)]
    wall, cpu = map(float, subprocess.check_output(command, text=True).split())
    return count / wall, cpu / count * 1e6


def place_of(rig: Rig) -> tuple[str, str]:
    """The address of the server, and the queue."""
    return rig.server.text(rig.queue).split('"')[1], rig.queue


def measured(
    name: str, broker: Broker, work: Callable[[Broker, int, Counter], None]
) -> tuple[float, float]:
    """Items per second, and microseconds of processor time per item."""
    count, counter = ITEMS.get(name, 50_000), Counter()
    progress(f"{name}: fills the queue")
    if name == "postgres" and isinstance(broker.rig, Rig):
        clean(place_of(broker.rig)[0])
    fill(broker.rig, count)
    progress(f"{name}: {work.__name__}")
    # This program has the libraries of all brokers: no collection of garbage looks at them.
    gc.collect()
    gc.freeze()
    work(broker, count, counter)
    figures = counter.figures()
    end = time.monotonic() + 10
    while left := broker.rig.left():  # not all libraries wait until the broker has read all
        if time.monotonic() > end:
            sys.exit(f"{name}: {left} items are left")
        time.sleep(0.1)
    return figures


CLUSTER = """
import sys
from tests.pipelines.brokers.mock_cluster import Cluster

cluster = Cluster()
print(cluster.servers, flush=True)
sys.stdin.read()
"""


class FarKafkaRig(KafkaRig):
    """A topic with four partitions, each of which has a part of the items."""

    def source(self) -> Kafka:
        return Kafka(self.servers, self.topic, group="test", settings={**KAFKA})

    def put(self, bodies: Sequence[bytes]) -> None:
        # By its own key of an item, the cluster has the most items in a single partition. It drops
        # all but the last 5 MB of a partition.
        producer = Producer({"bootstrap.servers": self.servers})
        for number, body in enumerate(bodies):
            producer.produce(self.topic, body, partition=number % 4)
        producer.flush()


@contextmanager
def cluster_of_kafka() -> Iterator[FarKafkaRig]:
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        yield FarKafkaRig(program.stdout.readline().strip(), "jobs")
        program.stdin.close()


@contextmanager
def brokers(chosen: list[str]) -> Iterator[dict[str, Broker]]:
    """The brokers that are installed, or those of them that are named."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        found: dict[str, Broker] = {}

        def add(name: str, rig: SourceRig, address: str, queue: str) -> None:
            found[name] = Broker(rig, partial(LOOPS[name], address, queue))

        for name in chosen or LOOPS:
            if name == "sqlite":
                path = Path(folder) / "jobs.db"
                add(name, SQLiteRig(path), str(path), "jobs")
            elif name == "kafka":
                cluster = stack.enter_context(cluster_of_kafka())
                add(name, cluster, cluster.servers, cluster.topic)
            elif not missing(name):
                rig = Rig(stack.enter_context(started(name)), "jobs")
                add(name, rig, *place_of(rig))
        yield found


def main() -> None:
    """Measure each broker, or those that are named: the best of three runs of each, in turn."""
    print(f"items of {len(BODY)} bytes, load {os.getloadavg()[0]:.1f}")
    with brokers(sys.argv[1:]) as found:
        for name, broker in found.items():
            ways = (bare, by_hand, piped)
            runs = [[measured(name, broker, way) for way in ways] for _ in range(3)]
            progress("")
            rates, costs = (
                [best(run[way][kind] for run in runs) for way in range(len(ways))]
                for kind, best in enumerate((max, min))
            )
            print(f"{name}: {rates[0]:,.0f}/s, {costs[0]:.1f} us")
            for title, rate, cost in zip(
                ("by hand", "pipeline"), rates[1:], costs[1:], strict=True
            ):
                print(
                    f"    {title}: {rate:,.0f}/s, {cost:.1f} us; {rate / rates[0]:.2f} x the rate, "
                    f"{cost / costs[0]:.2f} x the processor time",
                    flush=True,
                )
            python = os.environ.get("FASTSTREAM", "")
            if python and name == "rabbitmq" and isinstance(broker.rig, Rig):
                fast = by_faststream(broker.rig, python)
                print(f"{name}: FastStream {fast[0]:,.0f}/s, {fast[1]:.1f} us")


if __name__ == "__main__":
    main()
