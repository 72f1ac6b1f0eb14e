"""`Kafka`: a topic of Kafka, as a source and as a sink."""

from typing import ClassVar, Final, TypeAlias, Unpack

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from ..._core.vocabulary.public_names import show_public_names
from ..item import Item
from .broker import BatchKeywords, Broker, Message, Opened, number_of

__all__ = ["Kafka"]

_ANSWER: Final = 10.0
"""Seconds for an answer of the brokers."""
_POLL: Final = 25.0
"""Seconds between two polls while no item may be taken: Kafka expects one in five minutes."""

Settings: TypeAlias = dict[str, str | int | float | bool | None]


class Kafka(Broker[Consumer | Producer, tuple[int, int]]):
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

    names: ClassVar[tuple[bytes, str]] = (rb"[\w.-]{1,249}", "1 to 249 letters, digits, . _ -")

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
        [self._topic], self._group, more = self.named(topic=topic), group, settings or {}
        self.source_option: tuple[str, str] | None = ("group", group)
        # librdkafka would write each failed connection to standard error: the pipeline logs them.
        self._settings: Settings = {"bootstrap.servers": self.at(servers), "log_level": 2, **more}

    def connect(self) -> Opened[Consumer | Producer]:
        """Make the client, which connects by itself."""
        # Behind the last offset of each assigned partition that was taken before, and since.
        self._seen, self._next = dict[int, int](), dict[int, int]()
        if not self._group:
            self._producer = Producer({"enable.idempotence": True, **self._settings})
            return self._producer, self._producer.purge
        own: Settings = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        self._consumer = Consumer({"group.id": self._group, **own, **self._settings})
        return self._consumer, self._consumer.close

    def prepare(self) -> None:
        """As a source, join the group."""
        self.link.list_topics(timeout=_ANSWER)  # raises if no broker answers
        if self._group:
            self._consumer.subscribe([self._topic], on_assign=self._assign, on_revoke=self._revoke)

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for known in consumer.committed(partitions, timeout=_ANSWER):
            self._seen[known.partition] = number_of(known.metadata)

    def _revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """Another consumer takes the items of these partitions again: with some strategies, of a
        part of the partitions only.
        """
        gone = {each.partition for each in partitions}
        self._next = {number: end for number, end in self._next.items() if number not in gone}
        self.drop(lambda place: place[0] in gone)

    def receive(self, most: int, seconds: float = 0.0) -> None:
        """Find the next items, and note in the group that they were taken."""
        messages: list[Message[tuple[int, int]]] = []
        for message in self._consumer.consume(most, seconds):
            if (problem := message.error()) is not None:
                raise KafkaException(problem)
            place = partition, offset = message.partition() or 0, message.offset() or 0
            again, self._next[partition] = offset < self._seen[partition], offset + 1
            messages.append((message.value(), message.key(), place, again, None))
        self.find(messages)
        if self.found:
            self.confirm([])

    def confirm(self, places: list[tuple[int, int]]) -> None:
        """Commit the first open offset of each partition, with the end of those that were taken."""
        done, offsets = {*places}, list[TopicPartition]()
        # The items of a partition come in the order of their offsets: the first is written last.
        first = dict(reversed([place for place in self.held.values() if place not in done]))
        for number, after in self._next.items():
            end = str(max(after, self._seen[number]))
            offsets.append(TopicPartition(self._topic, number, first.get(number, after), end))
        self._consumer.commit(offsets=offsets, asynchronous=False)

    def fail(self, items: list[Item], error: Exception) -> None:
        """Hold the items: the offset stays before them."""

    def keep_alive(self) -> None:
        """Poll now and then, without an item: a consumer that does not poll leaves the group. A
        producer has a thread for that.
        """
        if self._group and self.is_due(_POLL):
            self._consumer.pause(self._consumer.assignment())
            self.receive(1)
            self._consumer.resume(self._consumer.assignment())

    def handle_batch(self, items: list[Item]) -> None:
        """Produce items, and wait until the brokers have confirmed all of them."""
        answers: list[object] = []

        def note(problem: object, _: object) -> None:
            answers.append(problem)

        for item in items:
            given = self.labels_of(item)
            self._producer.produce(
                self._topic, item.body, given.pop("key", None), headers={**given}, on_delivery=note
            )
        self._producer.flush(_ANSWER)
        if len(answers) < len(items) or any(answers):
            raise ConnectionError(f"Kafka has not confirmed all items: {[*filter(None, answers)]}")


show_public_names(__name__)
