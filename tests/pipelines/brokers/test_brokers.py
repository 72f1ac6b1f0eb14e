"""Sources on real brokers keep the rules, also while consumer, program and broker are killed."""

import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import trio

from ergo_py import Backoff, ChildSpec
from ergo_py.pipelines import Item, JetStream, Pipeline, PostgresQueue, RedisStream, Sink, Source
from ergo_py.pipelines.brokers.broker import Broker
from ergo_py.supervision import Budget
from ergo_py.testing.bridges import SourceRig
from ergo_py.testing.bridges.sources import SourceRule
from tests.meta.owner import eventually
from tests.pipelines.brokers.accounts import account_of
from tests.pipelines.brokers.consumer import BOUND, Consumer
from tests.pipelines.brokers.rigs import KEYS_IN_ROWS, ODD_KEYS
from tests.pipelines.brokers.servers import BROKERS, BrokerServer, Rig, missing, started
from tests.support import running_node

ITEMS = int(os.environ.get("ERGO_BROKERS", "2000"))
KILLS = 51 if ITEMS >= 50_000 else 6

pytestmark = pytest.mark.skipif(
    "ERGO_BROKERS" not in os.environ, reason="`python -m benchmarks brokers` starts the servers"
)


@pytest.fixture(scope="module", params=[*BROKERS])
def broker(request: pytest.FixtureRequest) -> Iterator[tuple[str, BrokerServer]]:
    name: str = request.param
    if reason := missing(name):
        pytest.skip(reason)
    with started(name) as running:
        yield name, running


@pytest.mark.parametrize("rule", SourceRig.RULES, ids=[rule.__name__ for rule in SourceRig.RULES])
def test_a_broker_keeps_the_rule(rule: SourceRule, broker: tuple[str, BrokerServer]) -> None:
    rule(Rig(broker[1], rule.__name__))


def test_the_broker_has_an_acknowledgement_when_ack_returns(
    broker: tuple[str, BrokerServer],
) -> None:
    """Otherwise a kill would deliver more items again than the bound."""
    rig = Rig(broker[1], "at_once")
    rig.put([b"%d" % number for number in range(20)])
    source = rig.source()
    source.open()
    left = 20
    while left:
        items = source.take(7)
        if items:
            source.ack(items)
            left -= len(items)
            assert rig.left() == left
        else:
            source.wait(0.05)
    source.close()


def test_an_item_tells_how_often_it_was_delivered(broker: tuple[str, BrokerServer]) -> None:
    """Also a quorum queue of RabbitMQ; MQTT and other queues know only whether it was."""
    name, server = broker
    if name == "mosquitto":
        pytest.skip("has a mark, and no count")
    if name == "rabbitmq":
        make_quorum_queue(server, "counted")
    rig, counts = Rig(server, "counted"), []
    rig.put([b"a"])
    for _ in range(4):
        source = rig.source()
        source.open()
        counts += [item.redelivered for item in taken(source, 1)]
        source.close()

    assert counts == [0, 1, 2, 3]


def make_quorum_queue(server: BrokerServer, queue: str) -> None:
    import pika

    url = server.text("").split('"')[1]
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        kind = {"x-queue-type": "quorum"}
        connection.channel().queue_declare(queue, durable=True, arguments=kind)


def test_a_mosquitto_that_is_killed_between_two_saves_forgets_the_last_items() -> None:
    """It loses the items since the last save, and takes their acknowledgements back: the
    documented reason to set ``autosave_interval``.
    """
    if reason := missing("mosquitto"):
        pytest.skip(reason)
    with started("mosquitto") as server:
        rig = Rig(server, "saves")
        rig.put([b"a", b"b"])
        assert rig.left() == 2  # it saves whenever it is counted
        source = rig.source()
        source.open()
        items = taken(source, 2)
        source.ack(items[:1])
        rig.put([b"c"])
        server.stop(signal.SIGKILL)
        source.close()
        server.start()
        source.open()

        assert [item.body for item in taken(source, 2)] == [b"a", b"b"]
        assert rig.left() == 2
        source.close()


def test_items_that_are_given_up_leave_room_for_others_on_mosquitto() -> None:
    """Also when they are given up each time."""
    if reason := missing("mosquitto"):
        pytest.skip(reason)
    with started("mosquitto") as server:
        rig = Rig(server, "given_up")
        source = rig.source()
        source.work_with(lambda _: True, 2)
        rig.put([b"a", b"b", b"c"])
        source.open()
        source.fail(taken(source, 2), ValueError())
        with pytest.raises(ConnectionError, match="2 items were given up"):
            taken(source, 1)
        source.close()
        source.open()
        again = taken(source, 2)
        source.fail(again, ValueError())

        assert [item.body for item in again] == [b"a", b"b"]
        assert [item.body for item in taken(source, 1)] == [b"c"]
        assert rig.left() == 3
        source.close()


def test_items_of_a_lost_answer_come_again(
    broker: tuple[str, BrokerServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has delivered them, and the source does not know."""
    if broker[0] not in ("redis", "postgres", "jetstream"):
        pytest.skip("sends items without being asked: they have no answer")
    rig = Rig(broker[1], "lost")
    rig.put([b"held"])
    source = rig.source()
    source.open()
    [held] = taken(source, 1)

    def lose(*_: object, **__: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(source, "find", lose)
    rig.put([b"lost"])
    with pytest.raises(ConnectionError):
        taken(source, 1)
    monkeypatch.undo()
    source.close()
    end = time.monotonic() + 30
    while rig.left():
        assert time.monotonic() < end
        try:
            source.open()
            source.ack([held, *taken(source, 1)])
        except ConnectionError:  # the broker has not noticed the end of the session before
            source.close()
    source.close()


def test_an_item_of_jetstream_may_have_a_header_status() -> None:
    if reason := missing("jetstream"):
        pytest.skip(reason)
    with started("jetstream") as server:
        rig = Rig(server, "statuses")
        source = rig.source()
        assert isinstance(source, JetStream)
        source.open()
        publish = source.link.context.publish
        for status in ("paid", "404", "409"):
            source.link.run(publish("statuses", status.encode(), headers={"Status": status}))
        items = taken(source, 3)
        source.ack(items)

        assert [item.body for item in items] == [b"paid", b"404", b"409"]
        assert rig.left() == 0
        source.close()


def test_keys_come_back_from_jetstream_as_text() -> None:
    if reason := missing("jetstream"):
        pytest.skip(reason)
    with started("jetstream") as server:
        source = Rig(server, "keys").source()
        assert isinstance(source, JetStream)
        source.open()
        source.handle_batch([Item(b"", key) for key in (*ODD_KEYS, b"k1", b"\xff", 7, None)])

        found = [item.key for item in taken(source, len(ODD_KEYS) + 4)]
        assert found == [*ODD_KEYS, "k1", "\udcff", "7", None]
        source.close()


def test_items_of_an_ended_consumer_behind_many_of_a_living_consumer_are_taken() -> None:
    if reason := missing("redis"):
        pytest.skip(reason)
    with started("redis") as server:
        rig = Rig(server, "left")
        rig.put([b"%d" % number for number in range(101)])
        source = rig.source()
        assert isinstance(source, RedisStream)
        source.open()
        connection, names = source.link, ("left", "ergo")
        rows: Any = connection.xreadgroup("ergo", "living", {"left": ">"}, count=100)
        assert len(rows[0][1]) == 100
        rows = connection.xreadgroup("ergo", "ended", {"left": ">"}, count=1)
        [(last, _)] = rows[0][1]
        connection.xclaim(*names, "ended", 0, [last], idle=10_000_000)

        found = [source.take(1) for _ in range(12)]

        assert [item.body for items in found for item in items] == [b"100"]
        source.close()


def test_a_key_of_any_kind_is_a_text_in_postgresql() -> None:
    if reason := missing("postgres"):
        pytest.skip(reason)
    with started("postgres") as server:
        source = Rig(server, "keys").source()
        assert isinstance(source, PostgresQueue)
        source.open()
        source.handle_batch([Item(b"", key) for key in KEYS_IN_ROWS])

        found = [item.key for item in taken(source, len(KEYS_IN_ROWS))]
        assert found == [*KEYS_IN_ROWS.values()]
        source.close()


def test_texts_arrive_in_postgresql_as_their_bytes() -> None:
    if reason := missing("postgres"):
        pytest.skip(reason)
    texts = [r"C:\share\x", r"\x6869", '"\\u00e9"', r"\101", "ü"]
    with started("postgres") as server:
        rig = Rig(server, "jobs")
        queue: Any = rig.source()
        queue.put(*texts, b"\x00\xff")
        queue.open()
        assert [item.body for item in queue.take(9)] == [
            *(text.encode() for text in texts),
            b"\x00\xff",
        ]
        queue.close()


def put(rig: Rig, number: int) -> None:
    queue: Any = rig.source()
    queue.put(bytes([number]))


def test_a_put_into_postgresql_waits_for_no_open_transaction_of_others() -> None:
    if reason := missing("postgres"):
        pytest.skip(reason)

    with started("postgres") as server:
        rig = Rig(server, "jobs")
        queue: Any = rig.source()
        with ThreadPoolExecutor(6) as threads:  # all make the table
            [*threads.map(lambda number: put(rig, number), range(6))]
        other: Any = rig.source()
        other.open()
        other.link.execute("begin; insert into ergo_items (queue, body) values ('jobs', 'x')")
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(queue.put, b"y").result(timeout=60) is None
        other.link.execute("rollback")
        other.close()
        queue.open()
        assert len(queue.take(99)) == 7
        queue.close()


def test_a_take_from_a_long_queue_of_postgresql_reads_only_its_own_rows() -> None:
    if reason := missing("postgres"):
        pytest.skip(reason)
    with started("postgres") as server:
        rig = Rig(server, "long")
        rig.put([b"%d" % number for number in range(20_000)])
        source = rig.source()
        assert isinstance(source, PostgresQueue)
        source.open()
        source.link.execute("vacuum analyze ergo_items")
        items = source.take(1)  # the first looks for those of sources that have ended
        query = (
            "select seq_tup_read, idx_tup_fetch, n_tup_upd - n_tup_hot_upd "
            "from pg_stat_xact_user_tables"
        )

        with source.link.transaction():
            before = source.link.execute(query).fetchall()[0]
            items += source.take(99)
            after = source.link.execute(query).fetchall()[0]

        assert [item.body for item in items] == [b"%d" % number for number in range(100)]
        scanned, fetched, indexed = (new - old for old, new in zip(before, after, strict=True))
        assert scanned == 0
        assert fetched <= 200
        assert indexed < 50  # the number of the source makes a small row longer
        source.close()


def taken(source: Source, count: int) -> list[Item]:
    items: list[Item] = []
    while len(items) < count:
        items += source.take(count - len(items))
        if len(items) < count:
            source.wait(0.05)
    return items


class Note(Sink):
    """Notes the ``redelivered`` of each item, as often as it gets the item. It returns for none
    before the event.
    """

    def __init__(self, handled: defaultdict[bytes, list[int]], begins: trio.Event) -> None:
        super().__init__(batch=3)
        self.handled, self.begins = handled, begins

    async def handle_batch(self, items: list[Item]) -> None:
        for item in items:
            self.handled[item.body].append(item.redelivered)
        await self.begins.wait()
        await trio.sleep(0.001)


async def test_a_broker_counts_the_deliveries_of_killed_pipelines(
    broker: tuple[str, BrokerServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each delivery that the library gets has its number, and each double of the sink has a
    redelivery of its own.
    """
    _, server = broker
    rig, count, kills = Rig(server, "numbers"), 300, 6
    bodies = [b"%d" % number for number in range(count)]
    rig.put(bodies)
    kind = type(rig.source())
    assert issubclass(kind, Broker)
    delivered, handled = defaultdict[bytes, list[int]](list), defaultdict[bytes, list[int]](list)
    working = kind.find

    def find(self: Any, messages: Iterable[Any]) -> None:
        messages = [*messages]
        for body, _, _, again, _ in messages:
            delivered[body].append(again)
        working(self, messages)

    monkeypatch.setattr(kind, "find", find)

    def has_come(*, items: int = 0, times: int = 0) -> bool:
        return len(handled) >= items and sum(map(len, handled.values())) >= times

    begins = trio.Event()
    plan = Pipeline.spec(
        rig.source(), Note(handled, begins), most_unacknowledged=20, reopen=Backoff(0.01, 0.1)
    )
    async with running_node(limit=100) as node:
        await node.supervise([ChildSpec("jobs", plan, budget=Budget(1000, 1.0))])
        for starts in range(1, 4):
            # Nothing is acknowledged, so the same items come again.
            await eventually(partial(has_come, times=3 * starts))
            node.kill("jobs")
        begins.set()
        for kill in range(1, kills + 1):
            await eventually(partial(has_come, items=kill * count // (kills + 1)))
            node.kill("jobs")
        while await trio.to_thread.run_sync(rig.left):  # noqa: ASYNC110 - the broker has no event
            await trio.sleep(0.05)

    account = account_of(handled, counts=server.counts)
    assert {*handled} == {*bodies}
    assert account.unexplained == 0
    if server.counts:
        assert account.doubles <= account.redeliveries
        # The last delivery of an item is the one that was acknowledged.
        last = sum(times[-1] for times in delivered.values())
        assert last == account.redeliveries
        if (own := server.deliveries("numbers")) is not None:
            assert own == count + last
        else:
            # The library asks for each item, so no answer is on its way at a kill.
            assert all(times == [*range(len(times))] for times in delivered.values())


def test_nothing_is_lost_while_consumer_program_and_broker_are_killed_in_turn(
    broker: tuple[str, BrokerServer],
) -> None:
    """The count of the broker is 0 at the end. A kill delivers no more items again than the bound.
    Each double has a redelivery of its item by the count of the broker, or a mark if the broker
    does not count; but for items whose acknowledgement a killed broker has taken back.
    """
    name, server = broker
    rig = Rig(server, "killed")
    bodies = [b"%d" % number for number in range(ITEMS)]
    rig.put(bodies)
    taken_back, began = 0, time.monotonic()
    consumer = Consumer(server.text("killed"))
    consumer.start()
    try:
        end = began + 3000  # a busy machine needs a quarter of an hour
        for kill in range(1, KILLS + 1):
            while len(consumer.handled) < kill * ITEMS // (KILLS + 1):
                assert time.monotonic() < end
                time.sleep(0.01)
                consumer.note()
            match kill % 3:
                case 1:
                    consumer.kill_pipeline()
                case 2:
                    consumer.kill()
                    consumer.start()
                case _:
                    # The consumer sleeps, so that no acknowledgement comes between the counts.
                    consumer.signal(signal.SIGSTOP)
                    left = rig.left()
                    server.stop(signal.SIGKILL)
                    server.start()
                    # An acknowledgement that was on its way at the first count is none of these.
                    taken_back += max(0, rig.left() - left)
                    consumer.signal(signal.SIGCONT)
        while rig.left():
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        consumer.kill()

    handled = consumer.handled
    account = account_of(handled, counts=server.counts)
    sys.stdout.write(
        f"{name}: {ITEMS} items, {KILLS} kills, {ITEMS - len(handled)} lost, {account.doubles} "
        f"doubles, {account.redeliveries} "
        f"{'redeliveries' if server.counts else 'items marked as redelivered'} by the count of the "
        f"broker, {account.unexplained} doubles without one, {taken_back} acknowledgements taken "
        f"back by killed brokers, {time.monotonic() - began:.0f} s\n"
    )
    assert {*handled} == {*bodies}
    again = max(account.doubles, account.redeliveries if server.counts else 0)
    assert again <= KILLS * BOUND + taken_back
    assert account.unexplained <= taken_back
