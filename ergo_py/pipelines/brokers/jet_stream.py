"""`JetStream`: a stream of a NATS server with JetStream, as a source and as a sink."""

from typing import Any, ClassVar, Unpack

from nats.aio.msg import Msg

from ..._core.vocabulary.options import check_number
from ..._core.vocabulary.public_names import show_public_names
from ...meta.checks import check_topic, check_urls, host_of
from ..item import Item
from ..keys import key_of
from .broker import BatchKeywords, Broker, Message, Opened
from .nats_client import NatsClient

__all__ = ["JetStream"]


class JetStream(Broker[NatsClient, str]):
    """A stream of JetStream, with a durable consumer: a source, a sink, or ``poison``. Bodies are
    bytes.

    Any number of pipelines share a consumer, each item by one of them. A pipeline holds its open
    items, however long they take. Items of a pipeline that has ended, and items that were given up
    without ``poison``, are delivered again after the consumer's ``ack_wait``. Acknowledged items
    stay in the stream, unless its retention says otherwise. The key of an item is its header
    ``key``, with signs as ``%20`` for those that a header cannot hold; without it the subject, if
    ``subject`` has wildcards.

    Args:
        servers: the server, such as ``nats://user:password@localhost:4222``, or several of them.
        stream: the stream; made, with ``subject``, if it is missing.
        subject: the subject of the items, by default the name of the stream. As a source it may
            have wildcards, such as ``orders.>``.
        consumer: as a source, the durable consumer; made at the first item of the stream if it is
            missing.
        ack_wait: seconds until items are delivered again, for a consumer that is made.
        credentials: the file with the credentials of a user, such as ``"shop.creds"``.
        options: as a sink, ``batch`` and ``within``, as those of `Sink`.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    places_last = True
    names: ClassVar[tuple[bytes, str]] = (
        rb"[^\s.*>/\\\0]{1,255}",
        r"1 to 255 bytes, without spaces and \ / . * >",
    )

    def __init__(
        self,
        servers: str | list[str],
        stream: str,
        subject: str = "",
        *,
        consumer: str = "ergo",
        ack_wait: float = 30.0,
        credentials: str | None = None,
        **options: Unpack[BatchKeywords],
    ) -> None:
        super().__init__(**options)
        check_number("ack_wait", ack_wait, least=1.0)
        self._servers = check_urls("JetStream(servers)", servers, "nats", "tls", "ws", "wss")
        self._credentials, self._ack_wait, self._highest = credentials, ack_wait, 0
        self.where: str = host_of(servers)
        self._stream, self._consumer = self.named(stream=stream, consumer=consumer)
        self._subject = check_topic("JetStream(subject)", subject or stream, ".*>")
        self.sink_option: tuple[str, str, str] | None = ("subject", self._subject, "*>")

    def connect(self) -> Opened[NatsClient]:
        """Connect."""
        client = NatsClient()
        return client, client.close

    def prepare(self) -> None:
        """Connect, and make the stream."""
        self.link.run(self.link.connect(self._servers, self._credentials))
        self.link.run(self.link.make_stream(self._stream, self._subject))

    def begin_to_take(self) -> None:
        """Make the consumer, and let items come."""
        wishes = (self._stream, self._consumer, self._subject, self._ack_wait)
        known = self.link.run(self.link.make_consumer(*wishes))
        self._ack_wait = known.config.ack_wait or self._ack_wait
        # A killed server may have forgotten the last deliveries. It does not answer to their
        # acknowledgements, and delivers the items again.
        sure = 0 if known.delivered is None else known.delivered.stream_seq
        held = {number: self.held[number] for number in self.held if number <= sure}
        self.held: dict[Any, str] = held
        self.link.run(self.link.listen())

    def receive(self, most: int, seconds: float = 0.0) -> None:
        """Find the items that the server has."""
        self._hold()
        terms = {"expires": int(seconds * 1e9)} if seconds else {"no_wait": True}
        pull = self.link.pull(f"{self._stream}.{self._consumer}", most, **terms)
        self.find([self._read(message) for message in self.link.run(pull, seconds)])

    def _read(self, message: Msg) -> Message[str]:
        key = (message.headers or {}).get("key")
        subject = message.subject if {*"*>"} & {*self._subject} else None
        number = message.metadata.sequence.stream
        # A killed server may have forgotten that it has delivered the item.
        again = max(message.metadata.num_delivered - 1, number <= self._highest)
        order = subject if key is None else key_of(key)
        self._highest = max(self._highest, number)
        return message.data, order, message.reply, again, number

    def _hold(self) -> None:
        """Tell the server, thrice in ``ack_wait``, that the open items are under way."""
        if self.is_due(self._ack_wait / 3):
            self.link.run(self.link.tell(self.held.values(), b"+WPI"))

    def keep_alive(self) -> None:
        """Hold the open items, and answer the pings of the server."""
        self._hold()
        self.link.run(self.link.client.flush())

    def confirm(self, places: list[str]) -> None:
        """Acknowledge items, and wait until the server has noted that."""
        # The server handles the acknowledgements of a consumer in their order: its answer to the
        # last is an answer to all.
        self.link.run(self.link.tell(places[:-1], b"+ACK"))
        self.link.run(self.link.ask(places[-1], b"+ACK"))

    def handle_batch(self, items: list[Item]) -> None:
        """Publish items, and wait until the server has stored all of them."""
        messages = [(item.body, self.lines_of(item)) for item in items]
        self.link.run(self.link.store(self._subject, messages))


show_public_names(__name__)
