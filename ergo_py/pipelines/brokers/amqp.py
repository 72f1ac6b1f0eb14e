"""`AMQP`: a queue of RabbitMQ, or of another broker of AMQP 0-9-1, as a source and as a sink."""

from functools import partial
from typing import ClassVar, Unpack

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker
from pika.spec import Basic, BasicProperties

from ..._core.vocabulary.public_names import show_public_names
from ..item import Item
from .broker import BatchKeywords, Broker, Opened

__all__ = ["AMQP"]


def _close(connection: pika.BlockingConnection) -> None:
    """Disconnect: the broker delivers the unacknowledged items again."""
    try:
        connection.close()
    except AMQPError:  # it has lost the connection
        pass


class AMQP(Broker[pika.BlockingConnection, int]):
    """A durable queue of RabbitMQ: a source, a sink, or ``poison``. Bodies are bytes.

    Any number of pipelines take items, each item by one of them. The broker sends a pipeline no
    more items than its ``most_unacknowledged``. When the connection of a pipeline ends, the broker
    delivers its unacknowledged items to the others. An item that was given up without ``poison``
    goes back to the queue. As a sink it returns when the broker has confirmed that it has written
    the batch.

    Args:
        url: the broker, such as ``amqp://user:password@localhost/vhost``.
        queue: the queue; made, durable, if it is missing.
        options: as a sink, ``batch`` and ``within``, as those of `Sink`.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    names: ClassVar[tuple[bytes, str]] = (rb".{1,255}", "a name of 1 to 255 bytes")

    def __init__(self, url: str, queue: str, **options: Unpack[BatchKeywords]) -> None:
        super().__init__(**options)
        self._url, [self._queue] = self.at(url, "amqp", "amqps"), self.named(queue=queue)
        self._consumer: BlockingChannel | None = None
        self._publisher: BlockingChannel | None = None

    def connect(self) -> Opened[pika.BlockingConnection]:
        """Connect."""
        self._consumer = self._publisher = None
        self._is_gone = False
        connection = pika.BlockingConnection(pika.URLParameters(self._url))
        return connection, partial(_close, connection)

    def prepare(self) -> None:
        """Make the queue."""
        try:
            self.link.channel().queue_declare(self._queue, passive=True)
        except ChannelClosedByBroker:
            # Only a missing queue is made: the broker refuses to make a queue that it has with
            # other arguments, such as a quorum queue.
            self.link.channel().queue_declare(self._queue, durable=True)

    def begin_to_take(self) -> None:
        """Let the broker send items."""
        self._consumer = self.link.channel()
        self._limit(self._consumer)
        self._consumer.add_on_cancel_callback(self._note_gone)
        self._consumer.basic_consume(self._queue, self._find)

    def _limit(self, consumer: BlockingChannel) -> None:
        consumer.basic_qos(prefetch_count=self.prefetch)

    def _find(
        self, _: BlockingChannel, sent: Basic.Deliver, properties: BasicProperties, body: bytes
    ) -> None:
        headers = properties.headers or {}
        key, again = headers.get("key"), headers.get("x-delivery-count")  # of a quorum queue
        order = key if isinstance(key, str | bytes | int) else None
        # A program that publishes a message again may have copied the count of its old queue.
        times = again if sent.redelivered and isinstance(again, int) else int(sent.redelivered)
        self.find([(body, order, sent.delivery_tag or 0, times, None)])

    def _note_gone(self, *_: object) -> None:
        self._is_gone = True

    def receive(self, most: int, seconds: float = 0.0) -> None:
        """Wait until the broker sends items."""
        self.link.process_data_events(seconds)
        if self._is_gone:
            raise ConnectionError(f"the queue {self._queue} is gone")

    def keep_alive(self) -> None:
        """Answer the heartbeats of the broker."""
        self.receive(0)

    def confirm(self, places: list[int]) -> None:
        """Acknowledge items, and wait until the broker has read that."""
        assert self._consumer is not None
        done = {*places}
        first_open = next((tag for tag in self.held.values() if tag not in done), max(places) + 1)
        # pika sends a packet for each acknowledgement, so there is a single one for all items
        # before the first that is open.
        together = max((tag for tag in places if tag < first_open), default=0)
        if together:
            self._consumer.basic_ack(together, multiple=True)
        for tag in sorted(tag for tag in places if tag > together):
            self._consumer.basic_ack(tag)
        # An acknowledgement has no answer. This has one, which comes after it.
        self._limit(self._consumer)

    def give_back(self, places: list[int]) -> None:
        """Give items back to the queue."""
        assert self._consumer is not None
        for tag in places:
            self._consumer.basic_nack(tag, requeue=True)

    def handle_batch(self, items: list[Item]) -> None:
        """Publish items, in a transaction: the broker answers when it has written all of them."""
        # pika waits for the confirmation of each message that is published outside of a
        # transaction: 300 instead of 5,000 in a second.
        if self._publisher is None:
            self._publisher = self.link.channel()
            self._publisher.tx_select()
            self._publisher.add_on_return_callback(self._note_gone)
        for item in items:
            properties = BasicProperties(delivery_mode=2, headers={**self.labels_of(item)})
            self._publisher.basic_publish("", self._queue, item.body, properties, mandatory=True)
        self._publisher.tx_commit()
        # The broker has returned the messages for a queue that is gone, before it answered.
        self.receive(0)


show_public_names(__name__)
