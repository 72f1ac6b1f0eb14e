"""`AMQP`: a queue of RabbitMQ, or of another broker of AMQP 0-9-1, as a source and as a sink."""

from typing import Unpack

from ..._core.vocabulary.options import check_number
from ..._core.vocabulary.public_names import show_public_names
from ..item import Item
from .broker import BatchKeywords, Broker, missing

try:
    import pika
    from pika.adapters.blocking_connection import BlockingChannel
    from pika.exceptions import AMQPError, ChannelClosedByBroker
    from pika.spec import Basic, BasicProperties
except ImportError as error:
    raise missing("AMQP", "pika", "amqp") from error

__all__ = ["AMQP"]


class AMQP(Broker[pika.BlockingConnection]):
    """A durable queue of RabbitMQ: a source, a sink, or ``poison``. Bodies are bytes.

    Any number of pipelines take items, each item by one of them. When the connection of a pipeline
    ends, the broker delivers its unacknowledged items to the others. An item that was given up
    without ``poison`` goes back to the queue. As a sink it returns when the broker has confirmed
    that it has written the batch.

    Args:
        url: the broker, such as ``amqp://user:password@localhost/vhost``.
        queue: the queue; made, durable, if it is missing.
        prefetch: the most items that the broker sends before their acknowledgement. Those that the
            pipeline has not taken wait in this program.
        options: as a sink, ``batch`` and ``within``, as those of `Sink`.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    def __init__(
        self, url: str, queue: str, *, prefetch: int = 1000, **options: Unpack[BatchKeywords]
    ) -> None:
        super().__init__(**options)
        check_number("prefetch", prefetch, least=1, most=65_535, whole=True)
        self._url, self._queue, self._prefetch = url, queue, prefetch
        self._consumer: BlockingChannel | None = None
        self._publisher: BlockingChannel | None = None

    def connect(self) -> pika.BlockingConnection:
        """Connect."""
        return pika.BlockingConnection(pika.URLParameters(self._url))

    def open(self) -> None:
        """Connect, and make the queue."""
        super().open()
        self._consumer = self._publisher = None
        self._is_gone = False
        try:
            self.link.channel().queue_declare(self._queue, passive=True)
        except ChannelClosedByBroker:
            # Only a missing queue is made: the broker refuses to make a queue that it has with
            # other arguments, such as a quorum queue.
            self.link.channel().queue_declare(self._queue, durable=True)

    def close(self) -> None:
        """Disconnect: the broker delivers the unacknowledged items again."""
        try:
            super().close()
        except AMQPError:  # it has lost the connection
            pass

    def take(self, most: int) -> list[Item]:
        """Return items that the broker has sent."""
        if self._consumer is None:
            self._consumer = self.link.channel()
            self._consumer.basic_qos(prefetch_count=self._prefetch)
            self._consumer.add_on_cancel_callback(self._note_gone)
            self._consumer.basic_consume(self._queue, self._find)
        if not self.found:
            self.wait(0.0)
        return self.take_found(most)

    def _find(
        self, by: BlockingChannel, sent: Basic.Deliver, properties: BasicProperties, body: bytes
    ) -> None:
        key = (properties.headers or {}).get("key")
        order = key if isinstance(key, str | bytes | int) else None
        receipt = self.receipt(by, sent.delivery_tag)
        self.found.append(Item(body, order, receipt, sent.redelivered))

    def _note_gone(self, *_: object) -> None:
        self._is_gone = True

    def wait(self, seconds: float) -> None:
        """Wait until the broker sends items."""
        self.link.process_data_events(seconds)
        if self._is_gone:
            raise ConnectionError(f"the queue {self._queue} is gone")

    def keep_alive(self) -> None:
        """Answer the heartbeats of the broker."""
        self.wait(0.0)

    def ack(self, items: list[Item]) -> None:
        """Acknowledge items, and wait until the broker has read that."""
        for channel, tag in self.of_this_opening(items):
            channel.basic_ack(tag)
        if self._consumer is not None:
            # An acknowledgement has no answer. This has one, which comes after it.
            self._consumer.basic_qos(prefetch_count=self._prefetch)

    def fail(self, items: list[Item], error: Exception) -> None:
        """Give items back to the queue."""
        for channel, tag in self.of_this_opening(items):
            channel.basic_nack(tag, requeue=True)

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
        self.wait(0.0)


show_public_names(__name__)
