"""Fuzzing target for the messages that the libraries of brokers deliver: their headers, topics,
counters and rows come from other programs.
"""

import json
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import pika
from hypothesis import strategies as st
from nats.aio.msg import Msg
from paho.mqtt.client import MQTTMessage

from benchmarks.targets.control import JSON
from benchmarks.targets.target import Target
from ergo_py.meta import mqtt_address
from ergo_py.pipelines import AMQP, MQTT, Item, JetStream, Kafka, PostgresQueue, RedisStream, Source
from ergo_py.pipelines.brokers import kafka
from ergo_py.pipelines.brokers.broker import Opened
from ergo_py.pipelines.keys import header_of, key_of

__all__ = ["TARGETS"]

Delivered = dict[str, Any]
"""A message: its ``text``, which stands for headers, topics and keys; its ``number``, which counts
deliveries; and a ``value`` of any type.
"""


class _JetStream(JetStream):
    """Takes these messages of a server."""

    def __init__(self, messages: list[Delivered]) -> None:
        super().__init__("nats://localhost", "jobs", "jobs.>")
        self.messages = messages

    def connect(self) -> Opened[Any]:
        """Connect to no server."""
        found = [
            Msg(
                Any,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
                "jobs.1",
                f"$JS.ACK.jobs.ergo.{each['number']}.{count}.1.1.0",
                headers={"key": each["text"]},
            )
            for count, each in enumerate(self.messages, 1)
        ]
        link: Any = SimpleNamespace(
            run=lambda work, _seconds=0.0: work,
            pull=lambda *_, **__: found,
            tell=_nothing,
            ask=_nothing,
        )
        return link, _nothing

    def prepare(self) -> None:
        """Make no stream."""

    def begin_to_take(self) -> None:
        """Make no consumer."""


def _pika_connection(messages: list[Delivered]) -> Any:
    """Stands for a connection of pika."""
    find: list[Callable[..., None]] = []

    def deliver(_seconds: float) -> None:
        for number, each in enumerate(messages, 1):
            sent = SimpleNamespace(delivery_tag=number, redelivered=each["number"] > 1)
            for headers in (
                {"key": each["text"], "x-delivery-count": each["number"]},
                {"key": each["value"], "x-delivery-count": each["value"]},
                {},
                None,
            ):
                find[0](None, sent, SimpleNamespace(headers=headers), b"body")

    channel = SimpleNamespace(
        queue_declare=_nothing,
        basic_qos=_nothing,
        add_on_cancel_callback=_nothing,
        basic_consume=lambda _queue, callback: find.append(callback),
        basic_ack=_nothing,
    )
    return SimpleNamespace(channel=lambda: channel, process_data_events=deliver, close=_nothing)


class _RedisStream(RedisStream):
    """Takes these messages of a server."""

    def __init__(self, messages: list[Delivered]) -> None:
        super().__init__("redis://localhost", "jobs")
        self.messages = messages

    def connect(self) -> Opened[Any]:
        """Connect to no server."""
        entries = [
            (
                b"%d-0" % count,
                None
                if each["value"] is None
                else {b"key": json.dumps(each["value"]).encode(), b"text": b"x"},
            )
            for count, each in enumerate(self.messages, 1)
        ]
        rows = [
            {"message_id": b"%d-0" % count, "times_delivered": each["number"]}
            for count, each in enumerate(self.messages, 1)
            if each["text"]  # another consumer may have taken an entry from this one
        ]
        answers = iter([[(b"jobs", entries)]])
        link: Any = SimpleNamespace(
            xgroup_create=_nothing,
            xreadgroup=lambda *_, **__: next(answers, []),
            xautoclaim=lambda *_, **__: (b"0-0", entries, []),
            pipeline=lambda **_: nullcontext(
                SimpleNamespace(
                    xpending_range=_nothing, execute=lambda: [[row] for row in rows] + [[]]
                )
            ),
            xack=_nothing,
        )
        return link, _nothing


class _PostgresQueue(PostgresQueue):
    """Takes these rows of a table."""

    def __init__(self, messages: list[Delivered]) -> None:
        super().__init__("", "jobs")
        self.messages = messages

    def connect(self) -> Opened[Any]:
        """Connect to no server."""
        rows = [
            (count, each["text"], b"body", each["number"])
            for count, each in enumerate(self.messages)
        ]
        answer = SimpleNamespace(
            fetchone=lambda: (True,), fetchall=lambda: [*reversed(rows)], rowcount=0
        )
        link: Any = SimpleNamespace(execute=lambda *_, **__: answer)
        return link, _nothing


class _PahoClient:
    """Stands for the client of paho, which decodes a topic when it is read."""

    def __init__(self, messages: list[Delivered]) -> None:
        self._messages = messages
        self.on_connect = self.on_subscribe = self.on_message = _nothing

    def connect(self, *_: object, **__: object) -> None:
        """Be accepted."""
        self.on_connect(self, None, None, SimpleNamespace(is_failure=False), None)

    def subscribe(self, *_: object, **__: object) -> None:
        """Be answered."""
        self.on_subscribe(self, None, 1, [SimpleNamespace(is_failure=False)], None)

    unsubscribe = subscribe

    def loop(self, _seconds: float) -> int:
        """Deliver the messages."""
        while self._messages:
            each = self._messages.pop(0)
            topic = each["text"].encode(errors="surrogatepass")
            self.on_message(self, None, MQTTMessage(each["number"] % 65536, topic))
        return 0

    def ack(self, _mid: int, _qos: int) -> int:
        """Acknowledge."""
        return 0

    disconnect = username_pw_set = staticmethod(lambda *_: None)


class _KafkaConsumer:
    """Stands for the consumer of a group whose metadata another tool has written."""

    def __init__(self, messages: list[Delivered]) -> None:
        self._messages = messages
        self._assign: Callable[..., None] = _nothing

    def list_topics(self, **_: object) -> None:
        """Ask no broker."""

    def subscribe(self, _topics: object, on_assign: Any, **_: object) -> None:
        """Join the group."""
        self._assign = on_assign

    def committed(self, partitions: list[Any], **_: object) -> list[Any]:
        """The offsets."""
        return partitions

    def consume(self, *_: object) -> list[Any]:
        """The messages, each in a partition of its own."""
        found, self._messages = self._messages, []
        for number, each in enumerate(found):
            self._assign(self, [SimpleNamespace(partition=number, metadata=each["text"])])
        return [
            SimpleNamespace(
                error=lambda: None,
                partition=lambda number=number: number,
                offset=lambda each=each: each["number"],
                value=lambda: b"body",
                key=lambda each=each: each["text"].encode(errors="surrogatepass"),
            )
            for number, each in enumerate(found)
        ]

    def commit(self, **_: object) -> None:
        """Note the offsets."""

    def close(self) -> None:
        """Leave the group."""


def _nothing(*_: object, **__: object) -> Any:
    """Do what a library does without a server."""


def _amqp(messages: list[Delivered]) -> Source:
    with patch.object(pika, "BlockingConnection", lambda _parameters: _pika_connection(messages)):
        source = AMQP("amqp://localhost", "jobs")
        source.open()
    return source


def _mqtt(messages: list[Delivered]) -> Source:
    with patch.object(mqtt_address, "Client", lambda *_, **__: _PahoClient(messages)):
        source = MQTT("mqtt://localhost", "jobs/#", session="fuzz")
        source.open()
    return source


def _kafka(messages: list[Delivered]) -> Source:
    with patch.object(kafka, "Consumer", lambda _settings: _KafkaConsumer(messages)):
        source = Kafka("localhost", "jobs", group="fuzz")
        source.open()
    return source


def _opened(source: Source) -> Source:
    source.open()
    return source


_SOURCES: Final[dict[str, Callable[[list[Delivered]], Source]]] = {
    "AMQP": _amqp,
    "JetStream": lambda messages: _opened(_JetStream(messages)),
    "Kafka": _kafka,
    "MQTT": _mqtt,
    "PostgreSQL": lambda messages: _opened(_PostgresQueue(messages)),
    "Redis": lambda messages: _opened(_RedisStream(messages)),
}


def broker_message(data: bytes) -> str:
    """A line with the name of the broker, and messages as JSON, a line for each. A message that a
    bridge cannot take would come again and again, and hold up all others.
    """
    name, *lines = data.split(b"\n")
    make = _SOURCES.get(name.decode(errors="replace"))
    if make is None:
        return "no broker"
    messages = [read for line in lines if (read := _message(line)) is not None]
    source = make([*messages])
    items = source.take(len(messages) + 10)
    for item in items:
        _check(item)
    source.ack(items)
    kinds = sorted({type(item.key).__name__ for item in items})
    return f"{name.decode()}: {min(len(items), 2)} items, {' '.join(kinds)}"


def _message(line: bytes) -> Delivered | None:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match said:
        # The offset behind the last item of Kafka must be a number of 63 bits, too.
        case {"text": str(), "number": int(number), "value": _} if 0 < number < (1 << 63) - 1:
            return dict(said)
    return None


def _check(item: Item) -> None:
    hash(item.key)
    if isinstance(item.key, str | bytes):
        header = header_of(item.key)
        assert header.isascii(), "a header that a broker may refuse"
        assert " " not in header, "a header that a broker may refuse"
        assert header_of(key_of(header)) == header, "no round trip"


_TEXTS: Final = st.sampled_from(
    ["k1", "%", "%ff", "%ED%A0%80", "\ud800", "\udcff", "a\r\nb", "9" * 5000, ""]
) | st.text(st.characters(), max_size=8)
_MESSAGES: Final = st.fixed_dictionaries(
    {
        "text": _TEXTS,
        "number": st.integers(1, 3) | st.integers(1, (1 << 63) - 2),
        "value": JSON,
    }
).map(lambda said: json.dumps(said).encode())
_DELIVERIES: Final = st.builds(
    lambda name, lines: b"\n".join((name.encode(), *lines)),
    st.sampled_from([*_SOURCES]),
    st.lists(_MESSAGES, max_size=3),
)

TARGETS: Final[dict[str, Target]] = {"broker message": Target(broker_message, _DELIVERIES)}
