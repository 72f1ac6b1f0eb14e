"""`Kafka`: a topic of Kafka, as a source and as a sink."""

from collections.abc import Callable
from typing import Final, TypeAlias, Unpack

from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.public_names import show_public_names
from ..item import Item
from .broker import BatchKeywords, Broker, missing

try:
    from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
except ImportError as error:
    raise missing("Kafka", "confluent-kafka", "kafka") from error

__all__ = ["Kafka"]

_ANSWER: Final = 10.0
"""Seconds for an answer of the brokers."""
_BEATS: Final = 100
"""Each so many calls of ``keep_alive``, poll: Kafka expects it each five minutes."""

Settings: TypeAlias = dict[str, str | int | float | bool | None]


class _Link:
    """Closes the client: a producer has no ``close`` of its own."""

    def __init__(self, close: Callable[[], object]) -> None:
        self.close = close


class _Progress:
    """The offsets of a partition between ``take`` and ``ack``."""

    def __init__(self, seen: int) -> None:
        self.seen = self.next = seen
        """Behind the last offset that was taken before this assignment, and by now."""
        self.open: set[int] = set()

    def to_commit(self, topic: str, partition: int) -> TopicPartition:
        """The first offset that is not acknowledged, with the end of those that were taken."""
        offset = min(self.open, default=self.next)
        return TopicPartition(topic, partition, offset, str(max(self.seen, self.next)))


class Kafka(Broker[_Link]):
    """A topic of Kafka: a source, a sink, or ``poison``. Bodies are bytes.

    The pipelines of a group share the partitions of the topic. Kafka knows a single offset for each
    partition: the pipeline commits the offset of the first item that is not acknowledged. So after
    a kill also acknowledged items behind that item come again, and an item that was given up
    without ``poison`` holds the offset. The metadata of the offset has the end of the items that
    were taken, by which the next pipeline marks them as redelivered.

    Args:
        servers: the first brokers to ask, such as ``"kafka1:9092,kafka2:9092"``.
        topic: the topic.
        group: as a source, the group of consumers.
        settings: further settings of librdkafka, such as ``{"security.protocol": "ssl"}``.
        options: as a sink, ``batch`` and ``within``, as those of `Sink`.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        group: str = "",
        settings: Settings | None = None,
        **options: Unpack[BatchKeywords],
    ) -> None:
        super().__init__(**options)
        self._topic, self._group = topic, group
        self._settings: Settings = {"bootstrap.servers": servers, **(settings or {})}
        self._partitions: dict[int, _Progress] = {}
        self._beats = 0

    def connect(self) -> _Link:
        """Make the client, which connects by itself."""
        if not self._group:
            self._producer = Producer({"enable.idempotence": True, **self._settings})
            return _Link(self._drop)
        consumer: Settings = {
            "group.id": self._group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        self._consumer = Consumer({**consumer, **self._settings})
        return _Link(self._consumer.close)

    def _drop(self) -> None:
        """Drop the items that were not delivered."""
        self._producer.purge()
        self._producer.flush(_ANSWER)

    def open(self) -> None:
        """Connect; as a source, join the group."""
        self._partitions = {}
        super().open()
        # It raises if no broker answers.
        (self._consumer if self._group else self._producer).list_topics(timeout=_ANSWER)
        if self._group:
            self._consumer.subscribe([self._topic], on_assign=self._begin, on_revoke=self._end)

    def _begin(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for known in consumer.committed(partitions, timeout=_ANSWER):
            self._partitions[known.partition] = _Progress(int(known.metadata or 0))

    def _end(self, *_: object) -> None:
        self._partitions.clear()
        self.found.clear()

    def take(self, most: int) -> list[Item]:
        """Return the next items, and note in the group that they were taken."""
        if not self._group:
            raise BadInputError("Kafka(group=…)", "", "the name of a group, for a source")
        items = self.take_found(most)
        for message in self._consumer.consume(most - len(items), 0.0) if len(items) < most else ():
            items.append(self._item(message))
        touched: dict[int, _Progress] = {}
        for partition, offset in self.of_this_opening(items):
            touched[partition] = progress = self._partitions[partition]
            progress.open.add(offset)
            progress.next = offset + 1
        self._commit(touched)
        return items

    def _item(self, message: Message) -> Item:
        problem = message.error()
        partition, offset = message.partition(), message.offset()
        if problem is not None or partition is None or offset is None:
            raise KafkaException(problem)
        again = offset < self._partitions[partition].seen
        return Item(message.value(), message.key(), self.receipt(partition, offset), again)

    def _commit(self, touched: dict[int, _Progress]) -> None:
        offsets = [progress.to_commit(self._topic, number) for number, progress in touched.items()]
        if offsets:
            self._consumer.commit(offsets=offsets, asynchronous=False)

    def wait(self, seconds: float) -> None:
        """Wait for an item."""
        message = self._consumer.poll(seconds)
        if message is not None:
            self.found.append(self._item(message))

    def keep_alive(self) -> None:
        """Poll now and then, without an item: a consumer that does not poll leaves the group. A
        producer has a thread for that.
        """
        if not self._group:
            return
        self._beats += 1
        if self._beats % _BEATS == 0:
            assigned = self._consumer.assignment()
            self._consumer.pause(assigned)
            self.wait(0.0)
            self._consumer.resume(assigned)

    def ack(self, items: list[Item]) -> None:
        """Commit the offset before the first item that is not acknowledged."""
        touched: dict[int, _Progress] = {}
        for partition, offset in self.of_this_opening(items):
            progress = self._partitions.get(partition)
            if progress is not None and offset in progress.open:
                progress.open.discard(offset)
                touched[partition] = progress
        self._commit(touched)

    def handle_batch(self, items: list[Item]) -> None:
        """Produce items, and wait until the brokers have confirmed all of them."""
        problems: list[object] = []
        producer = self._producer
        for item in items:
            labels = self.labels_of(item)
            producer.produce(
                self._topic,
                item.body,
                labels.pop("key", None),
                headers={**labels},
                on_delivery=lambda problem, _: problems.append(problem),
            )
        producer.flush(_ANSWER)
        if len(problems) < len(items) or any(problems):
            raise ConnectionError(f"Kafka has not confirmed all items: {[*filter(None, problems)]}")


show_public_names(__name__)
