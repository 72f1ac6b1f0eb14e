"""`JetStream`: a stream of a NATS server with JetStream, as a source and as a sink."""

import asyncio
import json
import string
from collections.abc import Coroutine
from time import monotonic
from typing import Any, Final, TypeVar, Unpack
from urllib.parse import quote, unquote

from ..._core.vocabulary.options import check_number
from ..._core.vocabulary.public_names import show_public_names
from ..item import Item
from .broker import BatchKeywords, Broker, missing

try:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js.api import ConsumerConfig
    from nats.js.errors import NotFoundError
except ImportError as error:
    raise missing("JetStream", "nats-py", "jetstream") from error

__all__ = ["JetStream"]

_ANSWER: Final = 10.0
"""Seconds for an answer of the server."""
_ENDS: Final = ("404", "408")
"""The server ends a request by these if it has no more items, or if the time is over."""

_AS_IT_IS: Final = string.punctuation.replace("%", "")
"""The signs that a key has in its header, besides letters and digits. All others are quoted."""

T = TypeVar("T")


class _Link:
    """A client of nats-py, and its asyncio loop, which works only while the thread of the pipeline
    is in ``run``.
    """

    def __init__(self) -> None:
        self.client: Client = Client()
        self.context: Final = self.client.jetstream(timeout=_ANSWER)
        self._runner = asyncio.Runner()
        self._came: asyncio.Queue[Msg | None] = asyncio.Queue()

    def run(self, work: Coroutine[Any, Any, T], seconds: float = 0.0) -> T:
        """Run a coroutine, for these seconds and those of an answer at most."""
        return self._runner.run(asyncio.wait_for(work, seconds + _ANSWER))

    async def note(self, message: Msg | None = None) -> None:
        """Note a message; None for the end of the connection."""
        self._came.put_nowait(message)

    async def pull(self, consumer: str, inbox: str, most: int, **terms: object) -> list[Msg]:
        """Return the messages that the server has for a consumer, on these terms."""
        request = json.dumps({"batch": most, **terms}).encode()
        await self.client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{consumer}", request, inbox)
        found: list[Msg] = []
        while len(found) < most:
            message = await self._came.get()
            # Items have a reply, for their acknowledgement. Statuses have none; an item may have a
            # header of that name.
            if message is not None and message.reply:
                found.append(message)
                continue
            told = {"Status": "closed"} if message is None else message.headers or {}
            if told.get("Status") in _ENDS:
                break
            raise ConnectionError(f"JetStream has no items for {consumer}: {told}")
        return found

    def close(self) -> None:
        """Disconnect."""
        with self._runner:
            self._runner.run(self.client.close())


def header_of(key: str | bytes) -> str:
    """A key as a header, which is a line without spaces at its ends. Bytes that are no text stay
    apart, too.
    """
    text = key.decode(errors="surrogateescape") if isinstance(key, bytes) else key
    return quote(text, _AS_IT_IS, errors="surrogateescape")


def key_of(header: str) -> str:
    """The key that a header has."""
    return unquote(header, errors="surrogateescape")


async def _ignore(_: Exception) -> None:
    """The call that meets a problem raises it, too: nats-py need not write it to a log."""


class JetStream(Broker[_Link]):
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
        self._servers, self._credentials, self._ack_wait = servers, credentials, ack_wait
        self._stream, self._subject, self._consumer = stream, subject or stream, consumer
        self._inbox = ""
        self._hold_at = 0.0
        self._highest = 0

    def connect(self) -> _Link:
        """Make the client."""
        return _Link()

    def open(self) -> None:
        """Connect, and make the stream."""
        super().open()
        self._inbox = ""
        self.link.run(self._begin())

    async def _begin(self) -> None:
        link = self.link
        await link.client.connect(
            self._servers,
            # The pipeline has the patience, and opens again.
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            user_credentials=self._credentials,
            error_cb=_ignore,
            closed_cb=link.note,
        )
        try:
            await link.context.stream_info(self._stream)
        except NotFoundError:
            await link.context.add_stream(name=self._stream, subjects=[self._subject])
        if self.held:
            await self._begin_to_take()

    def take(self, most: int) -> list[Item]:
        """Return the items that the server has."""
        if not self.found:
            self.link.run(self._pull(most, no_wait=True))
        return self.take_found(most)

    def wait(self, seconds: float) -> None:
        """Wait for an item."""
        self.link.run(self._pull(1, expires=max(1, int(seconds * 1e9))), seconds)

    async def _pull(self, most: int, **terms: object) -> None:
        if not self._inbox:
            await self._begin_to_take()
        await self._hold()
        consumer = f"{self._stream}.{self._consumer}"
        for message in await self.link.pull(consumer, self._inbox, most, **terms):
            number = message.metadata.sequence.stream
            if number not in self.held:
                subject = message.subject if {*"*>"} & {*self._subject} else None
                header = (message.headers or {}).get("key")
                key = subject if header is None else key_of(header)
                # A killed server may have forgotten that it has delivered the item.
                again = message.metadata.num_delivered > 1 or number <= self._highest
                self.found.append(Item(message.data, key, number, again))
            self.held[number] = message.reply
            self._highest = max(self._highest, number)

    async def _begin_to_take(self) -> None:
        context = self.link.context
        try:
            known = await context.consumer_info(self._stream, self._consumer)
        except NotFoundError:
            wishes = ConsumerConfig(
                durable_name=self._consumer,
                ack_wait=self._ack_wait,
                max_ack_pending=-1,  # the pipeline has the bound
                filter_subject=self._subject,
            )
            known = await context.add_consumer(self._stream, wishes)
        self._ack_wait = known.config.ack_wait or self._ack_wait
        # A killed server may have forgotten the last deliveries. It does not answer to their
        # acknowledgements, and delivers the items again.
        sure = 0 if known.delivered is None else known.delivered.stream_seq
        self.held = {number: place for number, place in self.held.items() if number <= sure}
        self._inbox = self.link.client.new_inbox()
        # nats-py drops messages above its limits; a request has its own.
        await self.link.client.subscribe(
            self._inbox, cb=self.link.note, pending_msgs_limit=0, pending_bytes_limit=0
        )

    async def _hold(self) -> None:
        """Tell the server, thrice in ``ack_wait``, that the open items are under way."""
        if monotonic() >= self._hold_at:
            self._hold_at = monotonic() + self._ack_wait / 3
            for place in self.held.values():
                await self.link.client.publish(place, b"+WPI")

    def keep_alive(self) -> None:
        """Hold the open items, and answer the pings of the server."""
        self.link.run(self._hold())
        self.link.run(self.link.client.flush())

    def ack(self, items: list[Item]) -> None:
        """Acknowledge items, and wait until the server has noted that."""
        places = [self.held[item.receipt] for item in items if item.receipt in self.held]
        if places:
            self.link.run(self._ack(places))
            self.forget(items)

    async def _ack(self, places: list[str]) -> None:
        # The server handles the acknowledgements of a consumer in their order: its answer to the
        # last is an answer to all.
        for place in places[:-1]:
            await self.link.client.publish(place, b"+ACK")
        await self.link.client.request(places[-1], b"+ACK", timeout=_ANSWER)

    def handle_batch(self, items: list[Item]) -> None:
        """Publish items, and wait until the server has stored all of them."""
        self.link.run(self._publish(items))

    async def _publish(self, items: list[Item]) -> None:
        publish, stored = self.link.context.publish_async, []
        for item in items:
            labels = {
                name: header_of(text) if name == "key" else " ".join(str(text).split())
                for name, text in self.labels_of(item).items()
            }
            stored.append(await publish(self._subject, item.body, headers=labels))
        await asyncio.gather(*stored)


show_public_names(__name__)
