"""The loops that programs without a framework write: take a batch, handle it, acknowledge it.

Each has the guarantee of a pipeline, at least once, and the broker, the queue and the batches of
the benchmark. It reads of a message what a pipeline reads: its content, its key, if there may be
one, and the place by which it is acknowledged. It knows one broker that never fails: it has no
reconnection, no retry, no orderly stop, no marks of redelivery and no bound but its batch.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Final
from urllib.parse import urlsplit

import nats
import pika
import psycopg
import redis
from confluent_kafka import Consumer, KafkaException, TopicPartition
from nats.errors import TimeoutError as NoMessageError
from nats.js.api import ConsumerConfig
from paho.mqtt.client import Client, MQTTMessage, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

__all__ = ["BATCH", "KAFKA", "LOOPS"]

BATCH: Final = 500
KAFKA: Final[Mapping[str, str | int]] = {
    "session.timeout.ms": 6000,
    "fetch.wait.max.ms": 10,
    "queued.max.messages.kbytes": 500,
    "fetch.queue.backoff.ms": 1,
}
"""Settings of librdkafka for both sides. It would fetch 64 MB, which is everything, before the
first message is handled; so it fetches some thousands, and the measured time has the others.
"""

Handle = Callable[[list[tuple[Any, Any]]], object]
"""Handles the contents and keys of a batch."""
Loop = Callable[[str, str, int, Handle], None]
"""Handles so many messages of a queue at an address, and acknowledges them."""


def by_sqlite(path: str, queue: str, count: int, handle: Handle) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("pragma synchronous = normal")
        query = "select id, key, body from items where queue = ? order by id limit ?"
        while count > 0:
            rows = database.execute(query, (queue, BATCH)).fetchall()
            handle([(body, key) for _, key, body in rows])
            done = [(number,) for number, _, _ in rows]
            with database:
                database.execute("begin immediate")
                database.executemany("delete from items where id = ?", done)
            count -= len(rows)


def by_redis(url: str, stream: str, count: int, handle: Handle) -> None:
    with redis.Redis.from_url(url) as client:
        while count > 0:
            found: Any = client.xreadgroup("ergo", "ergo", {stream: ">"}, count=BATCH, block=1000)
            entries = found[0][1] if found else []
            handle([(fields[b"body"], fields.get(b"key")) for _, fields in entries])
            if entries:
                client.xack(stream, "ergo", *[number for number, _ in entries])
            count -= len(entries)


def by_psycopg(conninfo: str, queue: str, count: int, handle: Handle) -> None:
    query = (
        "select id, key, body from ergo_items where queue = %s and taken_by is null "
        "order by id limit %s for update skip locked"
    )
    with psycopg.connect(conninfo) as database:
        while count > 0:
            with database.transaction():
                rows = database.execute(query, (queue, BATCH)).fetchall()
                handle([(body, key) for _, key, body in rows])
                done = [number for number, _, _ in rows]
                database.execute("delete from ergo_items where id = any(%s)", (done,))
            count -= len(rows)


def by_pika(url: str, queue: str, count: int, handle: Handle) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=4 * BATCH)
        batch: list[tuple[bytes, object]] = []
        for sent, properties, body in channel.consume(queue):
            batch.append((body, (properties.headers or {}).get("key")))
            count -= 1
            if len(batch) == BATCH or not count:
                handle(batch)
                channel.basic_ack(sent.delivery_tag or 0, multiple=True)
                batch = []
            if not count:
                break


def by_paho(url: str, topic: str, count: int, handle: Handle) -> None:
    """Handles each message when it comes: mosquitto sends no more than 20 at once."""
    address, left = urlsplit(url), count

    def take(client: Client, _: object, message: MQTTMessage) -> None:
        nonlocal left
        handle([(message.payload, message.topic)])
        client.ack(message.mid, message.qos)
        left -= 1

    client = Client(CallbackAPIVersion.VERSION2, topic, protocol=MQTTv5, manual_ack=True)
    client.on_message = take
    wishes = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    wishes.SessionExpiryInterval = 0xFFFFFFFF
    client.connect(
        address.hostname or "", address.port or 1883, clean_start=False, properties=wishes
    )
    while left:
        client.loop(1.0)
    client.disconnect()


def by_nats(url: str, stream: str, count: int, handle: Handle) -> None:
    asyncio.run(_by_nats(url, stream, count, handle))


async def _by_nats(url: str, stream: str, count: int, handle: Handle) -> None:
    client = await nats.connect(url)
    wishes = ConsumerConfig(max_ack_pending=-1)
    context = client.jetstream()
    messages = await context.pull_subscribe(stream, "ergo", stream=stream, config=wishes)
    while count > 0:
        try:
            found = await messages.fetch(BATCH, timeout=1.0)
        except NoMessageError:
            continue
        handle([(each.data, (each.headers or {}).get("key")) for each in found])
        for message in found:
            await message.ack()
        count -= len(found)
    await client.drain()


def by_confluent(servers: str, topic: str, count: int, handle: Handle) -> None:
    settings = {"group.id": "test", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": servers, **KAFKA, **settings})
    consumer.subscribe([topic])
    while count > 0:
        batch: list[tuple[object, object]] = []
        after: dict[int, int] = {}
        for message in consumer.consume(BATCH, 1.0):
            if (problem := message.error()) is not None:
                raise KafkaException(problem)
            batch.append((message.value(), message.key()))
            after[message.partition() or 0] = (message.offset() or 0) + 1
        if batch:
            handle(batch)
            offsets = [TopicPartition(topic, number, offset) for number, offset in after.items()]
            consumer.commit(offsets=offsets, asynchronous=False)
        count -= len(batch)
    consumer.close()


LOOPS: Final[Mapping[str, Loop]] = {
    "sqlite": by_sqlite,
    "redis": by_redis,
    "postgres": by_psycopg,
    "rabbitmq": by_pika,
    "mosquitto": by_paho,
    "jetstream": by_nats,
    "kafka": by_confluent,
}
