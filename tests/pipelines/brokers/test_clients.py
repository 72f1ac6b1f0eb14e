"""The brokers of client libraries, without a server."""

import re
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from copy import copy
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from ergo_py import BadInputError, devices, entities, pipelines
from ergo_py.meta.checks import check_conninfo, check_topic, check_url, host_of
from ergo_py.pipelines import Item, Pipeline, Stage
from ergo_py.pipelines.brokers.broker import Broker, Opened
from ergo_py.pipelines.keys import header_of, key_of
from ergo_py.pipelines.source import name_of, why
from tests.pipelines.brokers.rigs import ODD_KEYS

CLIENTS: dict[str, tuple[str, Callable[[int], Any]]] = {
    "AMQP": ("pika", lambda port: pipelines.AMQP(f"amqp://127.0.0.1:{port}", "jobs")),
    "JetStream": ("nats", lambda port: pipelines.JetStream(f"nats://127.0.0.1:{port}", "jobs")),
    "MQTT": ("paho", lambda port: pipelines.MQTT(f"mqtt://127.0.0.1:{port}", "jobs")),
    "RedisStream": (
        "redis",
        lambda port: pipelines.RedisStream(f"redis://127.0.0.1:{port}", "jobs"),
    ),
}


@pytest.mark.parametrize("name", CLIENTS)
def test_an_absent_broker_raises_at_its_opening_and_the_client_closes(name: str) -> None:
    package, make = CLIENTS[name]
    pytest.importorskip(package, reason=f"needs the package {package}")
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))  # without listen(): connections are refused
        holder_port = holder.getsockname()[1]
        client = make(holder_port)

        with pytest.raises(Exception) as found:  # noqa: PT011 - each library has its own
            client.open()
        client.close()

    assert type(found.value).__name__.startswith(("AMQPConnection", "Connection", "NoServers"))
    assert name_of(client) == f"{name} at 127.0.0.1:{holder_port}"
    assert re.search(r": .*([Rr]efused|no servers)", why(found.value))


@pytest.mark.parametrize(
    "address, where",
    [
        ("amqp://user:secret@host/shop", "host"),
        ("nats://secret@host:4222", "host:4222"),
        (["host:1", "nats://user:secret@other"], "host:1, other"),
        *((f"nats://user:{rest}", "") for rest in ("1/secret@host", "1?secret@host", "se/cret@h")),
    ],
)
def test_a_log_has_the_host_of_a_broker_and_no_user(address: Any, where: str) -> None:
    assert host_of(address) == where


@pytest.mark.parametrize("topic", ["", "a\0b", "a#", "a/#/b", "a+/b", "#/a", 5])
@pytest.mark.parametrize("bridge", ["MQTT", "MQTTTopics"])
def test_a_topic_that_no_broker_takes_is_refused(bridge: str, topic: Any) -> None:
    pytest.importorskip("paho", reason="needs the package paho")
    make = getattr(pipelines if bridge == "MQTT" else devices, bridge)

    with pytest.raises(BadInputError, match=r'a topic such as "hall/lamp"'):
        make("mqtt://localhost", topic)


@pytest.mark.parametrize("topic", ["a", "/", "/a", "a/+/b", "+", "#", "a b/#", "$SYS/#"])
def test_a_topic_may_have_wildcards(topic: str) -> None:
    assert check_topic("topic", topic) == topic


RIGHT: dict[str, tuple[str, dict[str, Any]]] = {
    "AMQP": ("pika", {"url": "amqp://localhost", "queue": "new jobs"}),
    "JetStream": ("nats", {"servers": "nats://h", "stream": "jobs", "consumer": "one"}),
    "Kafka": ("confluent_kafka", {"servers": "localhost:9092", "topic": "new.jobs_1-2"}),
    "MQTT": ("paho", {"url": "mqtt://localhost", "topic": "jobs", "session": "all jobs"}),
    "PostgresQueue": ("psycopg", {"conninfo": "", "queue": "new.jobs", "table": "all jobs"}),
    "RedisStream": ("redis", {"url": "redis://h", "stream": "a b", "group": "*", "consumer": "."}),
    "SQLiteQueue": ("sqlite3", {"path": "jobs.db", "queue": "new.jobs *"}),
}
"""The package of each broker, and arguments that it takes."""
SIGNS = ["a b", "a.b", "a*", ">", "a/b", "a\\b", "a\nb", "a\tb"]
BAD_NAMES: dict[tuple[str, str], list[str]] = {
    ("AMQP", "queue"): ["x" * 256, "\u00e9" * 128],
    ("JetStream", "stream"): [*SIGNS, "x" * 256],
    ("JetStream", "consumer"): [*SIGNS, "x" * 256],
    ("Kafka", "topic"): ["a b", "a/b", "#", "\u00e9", "x" * 250],
    ("PostgresQueue", "queue"): ["a\0b"],
    ("PostgresQueue", "table"): ["a\0b", "shop.items", "100%", "x" * 58],
    **{("RedisStream", option): ["a\0b"] for option in ("stream", "group", "consumer")},
    ("SQLiteQueue", "queue"): ["a/b", "../b", "a\0b", "x" * 101],
}
LONGEST = {
    ("AMQP", "queue"): 255,
    ("JetStream", "stream"): 255,
    ("JetStream", "consumer"): 255,
    ("Kafka", "topic"): 249,
    ("PostgresQueue", "table"): 57,
    ("SQLiteQueue", "queue"): 100,
}
NO_NAMES = ["", None, 5, b"jobs", "\ud800"]


def made(broker: str, **changes: Any) -> Any:
    package, right = RIGHT[broker]
    pytest.importorskip(package, reason=f"needs the package {package}")
    return getattr(pipelines, broker)(**{**right, **changes})


@pytest.mark.parametrize("broker", RIGHT)
def test_a_name_that_its_broker_takes_may_have_odd_signs(broker: str) -> None:
    assert made(broker)


@pytest.mark.parametrize("broker, option", BAD_NAMES)
def test_a_name_that_its_broker_refuses_is_refused_at_once(broker: str, option: str) -> None:
    for name in (*NO_NAMES, *BAD_NAMES[broker, option]):
        with pytest.raises(BadInputError) as found:
            made(broker, **{option: name})
        assert (found.value.what, found.value.given) == (f"{broker}({option})", name)
    if (longest := LONGEST.get((broker, option))) is not None:
        assert made(broker, **{option: "x" * longest})


@pytest.mark.parametrize(
    "subject", ["a b", "a..b", ".a", "a.", "a*.b", "a.>b", ">.a", "a.>.b", "a\tb", "a\0b", 5]
)
def test_a_subject_that_no_server_of_nats_takes_is_refused(subject: Any) -> None:
    with pytest.raises(BadInputError, match=r'JetStream\(subject\).*a subject such as "hall.lamp"'):
        made("JetStream", subject=subject)


@pytest.mark.parametrize("subject", ["a", "a.b", "*", ">", "a.*.b", "a.>", "*.*", "$a.b/c"])
def test_a_subject_may_have_wildcards(subject: str) -> None:
    assert made("JetStream", subject=subject)


@pytest.mark.parametrize(
    "servers",
    [
        *("http://h", "", "nats://", "nats:h", "h:port", None, [], ["nats://h", "http://h"]),
        *(["nats://h", 5], ["nats://user:cret"], "nats://user:se/cret@host"),
        *("nats://user:cret@/x", "nats://user:cret@:4222/x", ("nats://user:cret@h",)),
    ],
)
def test_servers_of_nats_that_cannot_be_read_are_refused(servers: Any) -> None:
    with pytest.raises(BadInputError, match=r"JetStream\(servers\).*nats://host") as found:
        made("JetStream", servers=servers)
    assert "cret" not in str(found.value)


@pytest.mark.parametrize(
    "servers, where",
    [
        *(("h", "h"), ("h:4222", "h:4222"), ("tls://u:p@h", "h"), ("wss://h/path", "h")),
        (["a:1", "nats://b"], "a:1, b"),
    ],
)
def test_servers_of_nats_may_be_several_and_without_a_scheme(servers: Any, where: str) -> None:
    assert made("JetStream", servers=servers).where == where


@pytest.mark.parametrize(
    "servers",
    [
        *("http://h:9092", "kafka://h", "", "h h", "h:port", "h:1,", ",", "h:1;i:1", None, 5),
        "user:cret@h:9092",
    ],
)
def test_servers_of_kafka_that_cannot_be_read_are_refused(servers: Any) -> None:
    with pytest.raises(BadInputError, match=r"Kafka\(servers\).*kafka1:9092") as found:
        made("Kafka", servers=servers)
    assert "cret" not in str(found.value)


@pytest.mark.parametrize(
    "servers", ["h", "h:1", "h:1,i:2", "h:1, i:2", "SASL_SSL://h:1", "[::1]:9092", "10.0.0.7:1"]
)
def test_servers_of_kafka_are_hosts_with_ports(servers: str) -> None:
    assert made("Kafka", servers=servers).where == servers


class Pass(Stage):
    def handle(self, item: Item) -> object:
        return item.body


@pytest.mark.parametrize(
    "broker, changes, text",
    [
        ("MQTT", {"session": ""}, r"MQTT\(session=…\).*the name of a session, for a source"),
        ("Kafka", {}, r"Kafka\(group=…\).*the name of a group, for a source"),
    ],
)
def test_a_pipeline_refuses_a_source_without_its_name_at_the_broker(
    broker: str, changes: dict[str, str], text: str
) -> None:
    with pytest.raises(BadInputError, match=text):
        Pipeline(made(broker, **changes), Pass())


@pytest.mark.parametrize(
    "broker, changes, text",
    [
        ("MQTT", {}, r"MQTT\(session=…\): got 'all jobs'; allowed is none, for a sink"),
        ("MQTT", {"session": "", "topic": "a/#"}, r"MQTT\(topic\).*without wildcards, for a sink"),
        ("Kafka", {"group": "all"}, r"Kafka\(group=…\).*none, for a sink"),
        ("JetStream", {"subject": "a.*"}, r"JetStream\(subject\).*without wildcards, for a sink"),
    ],
)
def test_a_pipeline_refuses_a_sink_with_the_options_of_a_source(
    broker: str, changes: dict[str, str], text: str
) -> None:
    sink = made(broker, **changes)
    with pytest.raises(BadInputError, match=text):
        Pipeline(Pass(), sink)
    with pytest.raises(BadInputError, match=text):
        Pipeline(Pass(), poison=sink)


def test_a_pipeline_takes_brokers_in_their_places() -> None:
    kafka = partial(made, "Kafka")
    Pipeline(made("MQTT", topic="a/#"), Pass(), made("MQTT", session=""))
    Pipeline(made("JetStream", subject="a.>"), Pass(), made("JetStream", subject="a.b"))
    Pipeline(kafka(group="all"), Pass(), kafka(), poison=kafka())


BAD_ADDRESSES = (
    *(
        "://user:se/cret@host",
        "://user:1/cret@host",
        "://user:se?cret@host",
        "://user:se#cret@host",
    ),
    *("://user:se[cret@host", "://user:cret@host:se", "://user:cret", ".example:2883", ""),
    *("://user:1/2?cret@host", "://user:1?a=cret@host", "://user:1/cret?a=b@host", "://:1234", ":"),
)
"""What follows the scheme. A password with such signs ends the host too early."""


@pytest.mark.parametrize("rest", BAD_ADDRESSES)
@pytest.mark.parametrize(
    "name, scheme", [("AMQP", "amqp"), ("MQTT", "mqtt"), ("RedisStream", "redis")]
)
def test_an_address_that_cannot_be_read_is_refused_without_its_password(
    name: str, scheme: str, rest: str
) -> None:
    pytest.importorskip(CLIENTS[name][0], reason=f"needs the package {CLIENTS[name][0]}")

    with pytest.raises(BadInputError, match=f"{scheme}://host") as found:
        getattr(pipelines, name)(f"{scheme}{rest}", "jobs")
    assert "cret" not in str(found.value)


@pytest.mark.parametrize(
    "name, url",
    [
        ("RedisStream", "unix:///run/redis"),
        ("AMQP", "amqps://a:%2F@b"),
        *(("RedisStream", "redis://"), ("AMQP", "amqp://"), ("MQTT", "mqtt://")),
        ("RedisStream", "redis://h/0?client_name=a@b"),
        ("RedisStream", "redis://:pw@h:6379/0?client_name=a@b&protocol=3"),
    ],
)
def test_an_address_of_another_kind_is_taken(name: str, url: str) -> None:
    pytest.importorskip(CLIENTS[name][0], reason=f"needs the package {CLIENTS[name][0]}")

    assert getattr(pipelines, name)(url, "jobs")


@pytest.mark.parametrize("url", [None, b"redis://h", 5])
def test_an_address_that_is_no_text_is_refused(url: Any) -> None:
    with pytest.raises(BadInputError, match=rf"a {type(url).__name__}.*redis://host"):
        check_url("RedisStream(url)", url, "redis")


@pytest.mark.parametrize(
    "conninfo",
    [
        *("host=@abstract dbname=x", "host=@a,@b", "dbname=a@b", "host=h password=se@cret"),
        *("postgresql://u:p@h/a%40b", "postgresql://%40abstract/d", "postgresql:///d?host=@a"),
    ],
)
def test_an_address_of_a_database_may_hold_the_sign_of_a_user(conninfo: str) -> None:
    psycopg = pytest.importorskip("psycopg", reason="needs the package psycopg")
    read = psycopg.conninfo.conninfo_to_dict

    assert read(check_conninfo("Queue(conninfo)", conninfo)) == read(conninfo)


@pytest.mark.parametrize(
    "conninfo",
    [
        *(
            "host=db password=se cret",
            "postgresql://user:se/cret@host/db",
            "postgresql://user:cret",
        ),
        *("postgresql://user:1/cret@host/db", "postgresql://user:se@cret@host/db", 5),
        *("host=user:cret@db", "dbname=user:cret@db", "dbname=postgresql://user:cret@db"),
    ],
)
@pytest.mark.parametrize(
    "room, name",
    [(pipelines, "PostgresQueue"), (devices, "PostgresListen"), (entities, "Postgres")],
    ids=["queue", "listen", "store"],
)
def test_an_unreadable_address_of_a_database_is_refused_without_its_password(
    room: Any, name: str, conninfo: Any
) -> None:
    pytest.importorskip("psycopg", reason="needs the package psycopg")

    with pytest.raises(BadInputError, match="the address of a database") as found:
        getattr(room, name)(conninfo)
    assert "cret" not in str(found.value)


class OddEntries:
    """A server of Redis with an entry of another program, which has no body."""

    def __init__(self) -> None:
        self.entries = [(b"1-0", {b"text": b"hello"}), (b"2-0", {b"body": b"item"})]
        self.deliveries: dict[bytes, int] = {}
        self.answers: list[list[Any]] = []

    def xgroup_create(self, *_: object, **__: object) -> None:
        """Make the group."""

    def xreadgroup(self, *_: object, **__: object) -> list[Any]:
        """The entries, once."""
        found, self.entries = self.entries, []
        return [(b"jobs", found)] if found else []

    def pipeline(self, **_: object) -> Any:
        """Collect commands."""
        return nullcontext(self)

    def xpending_range(
        self, _stream: str, _group: str, least: bytes, most: bytes, count: int, *_: object
    ) -> list[Any]:
        """The first entries of a range, as far as the server has not forgotten them."""
        known = [number for number in sorted(self.deliveries) if least <= number <= most]
        self.answers.append(
            [
                {"message_id": number, "times_delivered": self.deliveries[number]}
                for number in known[:count]
            ]
        )
        return self.answers[-1]

    def execute(self) -> list[list[Any]]:
        """Answer the commands."""
        return self.answers

    def close(self) -> None:
        """Disconnect."""


def test_an_entry_of_redis_without_a_body_is_an_item_and_holds_up_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    redis = pytest.importorskip("redis", reason="needs the package redis")
    server = OddEntries()
    monkeypatch.setattr(redis.Redis, "from_url", lambda *_, **__: server)
    source = pipelines.RedisStream("redis://localhost", "jobs")
    source.open()

    assert [(item.body, item.redelivered) for item in source.take(10)] == [(b"", 1), (b"item", 1)]


def test_the_count_of_an_entry_is_its_own_beside_open_entries_of_its_consumer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    redis = pytest.importorskip("redis", reason="needs the package redis")
    server = OddEntries()
    server.entries = [(b"%d-0" % number, {b"body": b"%d" % number}) for number in (1, 3, 5)]
    server.deliveries = {b"1-0": 5, b"2-0": 1, b"3-0": 6, b"4-0": 1, b"5-0": 7}
    monkeypatch.setattr(redis.Redis, "from_url", lambda *_, **__: server)
    source = pipelines.RedisStream("redis://localhost", "jobs")
    source.open()

    assert [item.redelivered for item in source.take(10)] == [4, 5, 6]


def test_amqp_counts_deliveries_of_items_that_the_broker_has_delivered_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pika = pytest.importorskip("pika", reason="needs the package pika")
    connection = MagicMock()
    monkeypatch.setattr(pika, "BlockingConnection", lambda _: connection)
    source = pipelines.AMQP("amqp://localhost", "jobs")
    source.open()
    assert source.take(1) == []
    find = connection.channel().basic_consume.call_args.args[1]
    copied = {"x-delivery-count": 12}
    for is_again, headers in [(False, {}), (False, copied), (True, {}), (True, copied)]:
        sent = SimpleNamespace(delivery_tag=1, redelivered=is_again)
        find(None, sent, SimpleNamespace(headers=headers), b"body")

    assert [item.redelivered for item in source.take(10)] == [0, 0, 1, 12]


@pytest.mark.parametrize(
    "steps",
    [
        [([1, 2, 3], [(3, True)])],
        [([2, 1], [(2, True)]), ([3], [(3, True)])],
        [([2], [(2, False)]), ([1, 3], [(3, True)])],
        [([1, 3], [(1, True), (3, False)]), ([2], [(2, True)])],
        [([3], [(3, False)]), ([2], [(2, False)]), ([1], [(1, True)])],
    ],
)
def test_amqp_acknowledges_together_all_items_before_the_first_open_item(
    steps: list[tuple[list[int], list[tuple[int, bool]]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each acknowledgement is a packet, and pika sends it alone."""
    pika = pytest.importorskip("pika", reason="needs the package pika")
    connection = MagicMock()
    monkeypatch.setattr(pika, "BlockingConnection", lambda _: connection)
    source = pipelines.AMQP("amqp://localhost", "jobs")
    source.open()
    assert source.take(1) == []
    channel = connection.channel()
    for tag in (1, 2, 3):
        sent = SimpleNamespace(delivery_tag=tag, redelivered=False)
        channel.basic_consume.call_args.args[1](None, sent, SimpleNamespace(headers={}), b"")
    items = dict(enumerate(source.take(10), 1))
    for tags, packets in steps:
        channel.basic_ack.reset_mock()
        source.ack([items[tag] for tag in tags])

        calls = channel.basic_ack.call_args_list
        assert [(call.args[0], call.kwargs.get("multiple", False)) for call in calls] == packets


class OddOffsets:
    """A consumer of Kafka in a group whose offset another tool has committed."""

    def __init__(self, _settings: object) -> None:
        self.assign: Callable[[Any, list[Any]], None] | None = None

    def list_topics(self, **_: object) -> None:
        """Ask the brokers."""

    def subscribe(self, _topics: object, on_assign: Any, **_: object) -> None:
        """Join the group."""
        self.assign = on_assign

    def committed(self, partitions: list[Any], **_: object) -> list[Any]:
        """The offset."""
        return partitions

    def consume(self, *_: object) -> list[Any]:
        """Get the partition, which has no messages."""
        from confluent_kafka import TopicPartition

        assert self.assign is not None
        self.assign(self, [TopicPartition("jobs", 0, 5, metadata="reset by hand")])
        return []

    def close(self) -> None:
        """Leave the group."""


def test_an_offset_that_another_tool_has_committed_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("confluent_kafka", reason="needs the package confluent_kafka")
    source = pipelines.Kafka("localhost", "jobs", group="all")
    monkeypatch.setattr("ergo_py.pipelines.brokers.kafka.Consumer", OddOffsets)
    source.open()

    assert source.take(1) == []


class Record:
    """A message of Kafka."""

    def __init__(self, partition: int, offset: int) -> None:
        self._place = partition, offset

    def error(self) -> None:
        """It is none."""

    def key(self) -> None:
        """It has none."""

    def value(self) -> bytes:
        return b"%d:%d" % self._place

    def partition(self) -> int:
        return self._place[0]

    def offset(self) -> int:
        return self._place[1]


class TwoPartitions(OddOffsets):
    """A consumer with two partitions, of which the group knows the first."""

    def __init__(self, settings: object) -> None:
        super().__init__(settings)
        self.records = [Record(*place) for place in ((0, 7), (1, 0), (0, 8), (1, 1), (0, 9))]
        self.committed_last: dict[int, tuple[int, str]] = {}

    def consume(self, *terms: Any) -> list[Any]:
        """Get the next messages, and at first the partitions."""
        from confluent_kafka import TopicPartition

        assert self.assign is not None
        if not self.committed_last:
            known = [TopicPartition("jobs", 0, 7, metadata="9"), TopicPartition("jobs", 1)]
            self.assign(self, known)
        most = terms[0]
        found, self.records = self.records[:most], self.records[most:]
        return found

    def commit(self, offsets: list[Any], **_: object) -> None:
        """Commit offsets."""
        self.committed_last = {each.partition: (each.offset, each.metadata) for each in offsets}


def test_the_offset_of_each_partition_is_that_of_its_first_open_item(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("confluent_kafka", reason="needs the package confluent_kafka")
    source = pipelines.Kafka("localhost", "jobs", group="all")
    monkeypatch.setattr("ergo_py.pipelines.brokers.kafka.Consumer", TwoPartitions)
    source.open()
    consumer: Any = source.link

    items = source.take(4)
    marks = [(item.body, item.redelivered) for item in items]
    assert marks == [(b"0:7", True), (b"1:0", False), (b"0:8", True), (b"1:1", False)]
    assert consumer.committed_last == {0: (7, "9"), 1: (0, "2")}
    source.ack([items[2], items[1]])
    assert consumer.committed_last == {0: (7, "9"), 1: (1, "2")}
    source.ack([items[0]])
    assert consumer.committed_last == {0: (9, "9"), 1: (1, "2")}
    [last] = source.take(4)
    assert (last.body, last.redelivered) == (b"0:9", False)
    assert consumer.committed_last == {0: (9, "10"), 1: (1, "2")}
    source.ack([items[3], last])
    assert consumer.committed_last == {0: (10, "10"), 1: (2, "2")}


@pytest.mark.parametrize("name, option", [("MQTT", "session"), ("Kafka", "group")])
def test_a_source_without_its_name_at_the_broker_says_so(name: str, option: str) -> None:
    with pytest.raises(BadInputError, match=rf"{name}\({option}=…\)"):
        made(name, **{option: ""}).take(1)


async def do_nothing(*_: object) -> None:
    """Stand in for a verb of a client that has no server."""


def test_an_item_of_jetstream_with_a_header_status_is_an_item(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("nats", reason="needs the package nats")
    from nats.aio.msg import Msg

    from ergo_py.pipelines.brokers.nats_client import NatsClient

    link = NatsClient()
    for verb in ("publish", "close"):
        monkeypatch.setattr(link.client, verb, do_nothing)
    paid, lost, end = (
        Msg(link.client, "jobs", reply, headers={"Status": status})
        for reply, status in [("$JS.ACK.1", "paid"), ("$JS.ACK.2", "404"), ("", "404")]
    )
    for message in (paid, lost, end):
        link.run(link.note(message))

    assert link.run(link.pull("jobs.ergo", 3, no_wait=True)) == [paid, lost]
    link.run(link.note(Msg(link.client, "jobs", headers={"Status": "409"})))
    with pytest.raises(ConnectionError, match="409"):
        link.run(link.pull("jobs.ergo", 3, no_wait=True))
    link.close()


def hang_after_the_greeting(server: socket.socket, is_over: threading.Event) -> None:
    """A server of NATS that reads no more when its client is connected."""
    peer, _ = server.accept()
    with peer:
        peer.sendall(b'INFO {"max_payload": 8388608, "headers": true}\r\n')
        read = b""
        while b"PING" not in read:
            read += peer.recv(4096)
        peer.sendall(b"PONG\r\n")
        is_over.wait()


def test_a_server_of_jetstream_that_hangs_holds_up_no_batch_and_no_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("nats", reason="needs the package nats")
    from ergo_py.pipelines.brokers import nats_client

    monkeypatch.setattr(nats_client, "_ANSWER", 0.5)
    is_over, told = threading.Event(), list[str]()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def put() -> None:
            link = nats_client.NatsClient()
            host, port = server.getsockname()
            link.run(link.connect([f"nats://{host}:{port}"], None))
            with pytest.raises(TimeoutError):
                link.run(link.store("jobs", [(b"x" * 900_000, {})] * 20))
            told.append("the batch has failed")
            link.close()
            told.append("closed")

        # A thread that cannot hold up the tests if it hangs.
        threads = [
            threading.Thread(target=hang_after_the_greeting, args=(server, is_over), daemon=True),
            threading.Thread(target=put, daemon=True),
        ]
        for thread in threads:
            thread.start()
        threads[1].join(60)
        told_meanwhile = [*told]
        is_over.set()
        for thread in threads:
            thread.join(60)

    assert told_meanwhile == ["the batch has failed", "closed"]


def test_a_header_holds_any_key() -> None:
    headers = [header_of(key) for key in ODD_KEYS]

    assert [key_of(header) for header in headers] == ODD_KEYS
    assert all(sign.isascii() and sign.isprintable() for sign in "".join(headers))
    assert " " not in "".join(headers)
    assert header_of(b"orders/k1:2") == "orders/k1:2"
    assert key_of(header_of(b"\xff")) != key_of(header_of(b"\xfe"))


class Fake:
    """A connection, which notes its confirmations."""

    def __init__(self) -> None:
        self.confirmed: list[str] = []
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class FakeBroker(Broker[Fake, str]):
    """Has a message with each of these ids, at each opening."""

    def __init__(self, *messages: int) -> None:
        super().__init__()
        self.messages = messages
        self.given_back: list[str] = []
        self.began = 0

    def connect(self) -> Opened[Fake]:
        self.left = deque(self.messages)
        link = Fake()
        return link, link.close

    def begin_to_take(self) -> None:
        self.began += 1

    def receive(self, most: int, seconds: float = 0.0) -> None:
        for _ in range(min(most, len(self.left))):
            number = self.left.popleft()
            receipt = number if self.places_last else None
            self.find([(b"%d" % number, None, f"place {number}", 0, receipt)])

    def confirm(self, places: list[str]) -> None:
        self.link.confirmed += places

    def give_back(self, places: list[str]) -> None:
        self.given_back += places


class LastingBroker(FakeBroker):
    places_last = True


def test_a_place_that_does_not_last_ends_with_its_opening() -> None:
    broker = FakeBroker(1)
    broker.open()
    [old] = broker.take(5)
    broker.close()
    with pytest.raises(ConnectionError, match="FakeBroker is not open"):
        broker.link.close()
    broker.open()
    [new] = broker.take(5)

    broker.ack([old])
    assert broker.link.confirmed == []
    for _ in range(2):
        broker.ack([new])
    assert broker.link.confirmed == ["place 1"]


def test_a_reconnection_takes_no_open_item_again_if_places_last() -> None:
    broker = LastingBroker(1, 2, 3)
    broker.open()
    [first, second] = broker.take(2)
    broker.wait(0.1)  # finds the third, which is not taken
    broker.close()
    broker.open()

    assert [item.body for item in broker.take(5)] == [b"3"]
    broker.ack([first])
    assert broker.link.confirmed == ["place 1"]
    broker.fail([second], ValueError())
    assert broker.given_back == ["place 2"]
    broker.close()
    broker.open()
    assert [item.body for item in broker.take(5)] == [b"1", b"2"]


def test_a_broker_begins_to_take_once_for_each_opening_and_at_once_if_it_holds_items() -> None:
    broker = LastingBroker(1)
    broker.open()
    assert broker.began == 0  # it may be a sink
    items = broker.take(1) + broker.take(1)
    assert broker.began == 1
    broker.open()
    assert broker.began == 2
    broker.ack(items)
    broker.open()
    assert broker.began == 2


class GenerousBroker(FakeBroker):
    """Delivers all of its messages at once, as MQTT does with a quality of service of 0."""

    def receive(self, most: int, seconds: float = 0.0) -> None:
        super().receive(len(self.left))


def test_items_that_are_not_taken_yet_are_not_copied() -> None:
    broker = GenerousBroker(1, 2, 3, 4, 5)
    broker.open()
    [first] = broker.take(1)
    rest = broker.found
    second = broker.take(3)

    assert [item.body for item in (first, *second)] == [b"1", b"2", b"3", b"4"]
    assert broker.found is rest
    assert [item.body for item in broker.take(3)] == [b"5"]
    assert broker.take(3) == []


class CountingBroker(FakeBroker):
    """Sends no more unacknowledged messages than it was asked for at the opening, also if the
    pipeline has given them up.
    """

    sends_again_when_opened = True

    def connect(self) -> Opened[Fake]:
        opened = super().connect()
        self.left = deque(self.messages[: self.prefetch])
        return opened


def test_a_new_connection_takes_given_up_items_again_and_leaves_room_for_others() -> None:
    broker = CountingBroker(1, 2, 3, 4, 5)
    broker.work_with(lambda _: True, 2)
    broker.open()
    [first, second] = broker.take(5)
    broker.fail([first], ValueError())
    broker.wait(0.0)  # another item is open: it would come twice
    broker.fail([second], ValueError())
    with pytest.raises(ConnectionError, match="2 items were given up"):
        broker.wait(0.0)
    broker.close()
    for _ in range(2):  # the first may have failed
        broker.open()

    items = broker.take(5)
    assert [item.body for item in items] == [b"1", b"2", b"3", b"4"]
    broker.fail(items, ValueError())
    broker.wait(0.0)  # the next connection is not due


def test_given_up_items_cost_no_connection_where_the_broker_forgets_them() -> None:
    broker = FakeBroker(1)
    broker.open()
    broker.fail(broker.take(1), ValueError())
    broker.wait(0.0)

    assert broker.prefetch == 1000


class LostAnswers:
    """A session of PostgreSQL that notes which items it releases, and loses its first answer."""

    def __init__(self) -> None:
        self.released: list[tuple[bool, list[int]]] = []
        self.rows: list[tuple[int, None, bytes, int]] = []
        self.is_lost = False
        self.rowcount = 0

    def execute(self, statement: Any, given: Any = None, **_: object) -> "LostAnswers":
        """Run a statement."""
        if isinstance(given, dict) and "held" in given:
            self.released.append((given["old"] == given["me"], given["held"]))
        elif isinstance(given, dict) and "most" in given and self.is_lost:
            raise ConnectionError("lost behind the commit")
        return self

    def fetchone(self) -> tuple[bool]:
        """Whether the lock is taken."""
        return (True,)

    def fetchall(self) -> list[tuple[int, None, bytes, int]]:
        """The items."""
        found, self.rows = self.rows, []
        return found

    def close(self) -> None:
        """End the session."""


def test_a_new_session_of_postgres_releases_the_items_of_a_lost_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    psycopg = pytest.importorskip("psycopg", reason="needs the package psycopg")
    session = LostAnswers()
    monkeypatch.setattr(psycopg, "connect", lambda *_, **__: session)
    source = pipelines.PostgresQueue("", "jobs")
    source.open()
    session.rows = [(7, None, b"held", 1)]
    assert [item.body for item in source.take(5)] == [b"held"]
    session.is_lost = True
    with pytest.raises(ConnectionError):
        source.take(5)
    source.close()
    session.is_lost = False
    session.released.clear()
    source.open()

    assert session.released == [(True, [7])]
    assert source.take(5) == []
    assert session.released[1:] == [(False, [])]  # what was given up stays


def test_a_copy_of_a_broker_has_items_of_its_own() -> None:
    broker = LastingBroker(1)
    first, second = copy(broker), copy(broker)
    for each in (first, second):
        each.open()

    assert len(first.take(1)) == len(second.take(1)) == 1


def test_labels_have_the_key_and_the_error_as_text_or_bytes() -> None:
    broker = FakeBroker()

    assert broker.labels_of(Item(b"")) == {}
    failed = Item(b"", b"k 1", error=ValueError("no"))
    assert broker.labels_of(failed) == {"key": b"k 1", "error": "ValueError('no')"}
    assert broker.labels_of(Item(b"", 7)) == {"key": "7"}
    assert broker.lines_of(failed) == {"key": "k%201", "error": "ValueError('no')"}


def test_a_broker_may_send_as_many_items_as_the_pipeline_may_have_open() -> None:
    broker = FakeBroker()
    assert broker.prefetch == 1000
    for most, prefetch in ((50, 50), (100_000, 65_535)):
        broker.work_with(lambda _: True, most)
        assert broker.prefetch == prefetch
