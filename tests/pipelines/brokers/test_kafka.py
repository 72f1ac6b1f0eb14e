"""`Kafka` on the mock cluster of its library: no broker of Kafka is packaged with the system."""

import os
import runpy
import time

import pytest

pytest.importorskip("confluent_kafka", reason="needs confluent-kafka")

from confluent_kafka import Producer

from ergo_py.pipelines import Item, Kafka, Source
from ergo_py.pipelines.brokers.kafka import Settings
from ergo_py.testing.bridges import SourceRig
from ergo_py.testing.bridges.sources import SourceRule
from tests.examples.programs import EXAMPLES
from tests.meta.owner import eventually
from tests.pipelines.brokers.accounts import account_of
from tests.pipelines.brokers.consumer import BOUND, Consumer
from tests.pipelines.brokers.mock_cluster import Cluster
from tests.support import running_node

pytestmark = pytest.mark.skipif(
    "ERGO_BROKERS" not in os.environ, reason="`python -m benchmarks brokers` starts the servers"
)
IN_ANY_ORDER = ("acknowledged_items_do_not_return", "unacknowledged_items_return")
RULES = [rule for rule in SourceRig.RULES if rule.__name__ not in IN_ANY_ORDER]
"""Kafka has an offset for each partition: the last test has its rule for acknowledgements."""


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster()


@pytest.mark.parametrize("rule", RULES, ids=[rule.__name__ for rule in RULES])
def test_kafka_keeps_the_rule(rule: SourceRule, cluster: Cluster) -> None:
    rule(cluster.rig(rule.__name__))


def taken(source: Source, count: int) -> list[Item]:
    items: list[Item] = []
    while len(items) < count:
        items += source.take(count - len(items))
        if len(items) < count:
            source.wait(0.05)
    return items


async def test_the_payments_of_the_cookbook_are_checked(cluster: Cluster) -> None:
    program = runpy.run_path(str(EXAMPLES / "cookbook" / "kafka_payments.py"))
    payments, checked, dead = (
        cluster.rig(topic) for topic in ("payments", "checked-payments", "dead-payments")
    )
    payments.put([b'{"account": 1, "amount": 5}', b'{"account": 2, "amount": 0}'])
    async with running_node() as node:
        await node.supervise([program["payments"](cluster.servers)])
        await eventually(lambda: (checked.left(), dead.left()) == (1, 1))


def test_items_from_the_first_that_is_not_acknowledged_return_and_are_marked(
    cluster: Cluster,
) -> None:
    rig = cluster.rig("prefix")
    rig.put([b"a", b"b", b"c"])
    source = rig.source()
    source.open()
    items = taken(source, 3)

    source.ack([items[2]])
    assert rig.left() == 3
    source.ack([items[0]])
    assert rig.left() == 2
    source.close()
    source.open()
    again = taken(source, 2)

    assert [(item.body, item.redelivered) for item in again] == [(b"b", True), (b"c", True)]
    rig.put([b"d"])
    [new] = taken(source, 1)
    assert (new.body, new.redelivered) == (b"d", False)
    source.ack([*again, new])
    assert rig.left() == 0
    source.close()


def test_a_consumer_that_joins_takes_the_items_of_its_partitions_only(cluster: Cluster) -> None:
    rig = cluster.rig("shared")
    producer = Producer({"bootstrap.servers": rig.servers})
    for number in range(40):
        producer.produce("shared", b"%d" % number, partition=number % 4)
    producer.flush()
    settings: Settings = {"session.timeout.ms": 6000, "fetch.wait.max.ms": 10}
    settings["partition.assignment.strategy"] = "cooperative-sticky"
    first, second = (
        Kafka(rig.servers, "shared", group="test", settings=settings) for _ in range(2)
    )
    first.open()
    items = taken(first, 40)
    second.open()
    moved: list[Item] = []
    end = time.monotonic() + 300
    while len(moved) < 20:
        assert time.monotonic() < end
        assert first.take(100) == []  # no item that it keeps comes again
        moved += second.take(100)
        first.wait(0.05)
        second.wait(0.05)

    assert len(first.held) == 20
    assert len({item.body for item in moved}) == 20
    assert all(item.redelivered for item in moved)
    first.ack(items)
    second.ack(moved)
    assert rig.left() == 0
    first.close()
    second.close()


def test_nothing_is_lost_while_consumer_and_program_are_killed_in_turn(cluster: Cluster) -> None:
    """Each double is marked. The cluster ends with this program: it cannot be killed."""
    rig, count, kills = cluster.rig("killed"), 20_000, 6
    bodies = [b"%d" % number for number in range(count)]
    rig.put(bodies)
    settings = {"session.timeout.ms": 6000, "fetch.wait.max.ms": 10}
    consumer = Consumer(f'Kafka("{rig.servers}", "killed", group="test", settings={settings})')
    consumer.start()
    end = time.monotonic() + 300
    try:
        for kill in range(1, kills + 1):
            while len(consumer.handled) < kill * count // (kills + 1):
                assert time.monotonic() < end
                time.sleep(0.01)
                consumer.note()
            if kill % 2:
                consumer.kill_pipeline()
            else:
                consumer.kill()
                consumer.start()
        while rig.left():
            assert time.monotonic() < end
            time.sleep(0.1)
    finally:
        consumer.kill()

    account = account_of(consumer.handled, counts=False)
    assert {*consumer.handled} == {*bodies}
    assert account.doubles <= kills * BOUND
    assert account.unexplained == 0
