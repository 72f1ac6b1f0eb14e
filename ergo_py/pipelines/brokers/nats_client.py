"""`NatsClient`: nats-py for a thread, with a pull that loses no message."""

import asyncio
import json
from collections.abc import Awaitable, Iterable, Sequence
from typing import Final, TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig, ConsumerInfo
from nats.js.errors import NotFoundError

__all__ = ["NatsClient"]

_ANSWER: Final = 10.0
"""Seconds for an answer of the server."""
_ENDS: Final = ("404", "408")
"""The server ends a request by these if it has no more items, or if the time is over."""
_FAREWELL: Final = 1.0
"""Seconds for a server to read what is on the way to it, when the client disconnects."""
_NO_LIMIT: Final = -1
"""The pipeline has the bound."""
_MOST_BYTES: Final = 1 << 40
"""Of a batch, before nats-py waits in each publication until the server has read. That wait takes
no cancellation: a batch for a server that hangs would not end.
"""

T = TypeVar("T")


async def _ignore(_: Exception) -> None:
    """The call that meets a problem raises it, too: nats-py need not write it to a log."""


class NatsClient:
    """A client of nats-py, and its asyncio loop, which works only while a thread is in ``run``.

    The pull of nats-py takes an item with a header ``Status`` for an answer of the server, and
    drops the item. This one does not.
    """

    def __init__(self) -> None:
        self.client: Client = Client()
        self.context: Final = self.client.jetstream(timeout=_ANSWER)
        self._runner = asyncio.Runner()
        self._came: asyncio.Queue[Msg | None] = asyncio.Queue()
        self._inbox = ""

    def run(self, work: Awaitable[T], seconds: float = 0.0) -> T:
        """Run a coroutine, for these seconds and those of an answer at most."""
        return self._runner.run(asyncio.wait_for(work, seconds + _ANSWER))

    async def connect(self, servers: list[str], credentials: str | None) -> None:
        """Connect, in a single try: the pipeline has the patience."""
        await self.client.connect(
            servers,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            pending_size=_MOST_BYTES,
            user_credentials=credentials,
            error_cb=_ignore,
            closed_cb=self.note,
        )

    async def make_stream(self, stream: str, subject: str) -> None:
        """Make a stream, if it is missing."""
        try:
            await self.context.stream_info(stream)
        except NotFoundError:
            await self.context.add_stream(name=stream, subjects=[subject])

    async def make_consumer(
        self, stream: str, consumer: str, subject: str, ack_wait: float
    ) -> ConsumerInfo:
        """Make a durable consumer, if it is missing. Returns what the server says of it."""
        try:
            known: ConsumerInfo = await self.context.consumer_info(stream, consumer)
        except NotFoundError:
            wishes = ConsumerConfig(ack_wait=ack_wait, filter_subject=subject)
            wishes = wishes.evolve(durable_name=consumer, max_ack_pending=_NO_LIMIT)
            known = await self.context.add_consumer(stream, wishes)
        return known

    async def listen(self) -> None:
        """Subscribe to the answers to ``pull``."""
        self._inbox = self.client.new_inbox()
        # nats-py drops messages above its limits; a request has its own.
        await self.client.subscribe(
            self._inbox, cb=self.note, pending_msgs_limit=0, pending_bytes_limit=0
        )

    async def note(self, message: Msg | None = None) -> None:
        """Note a message; None for the end of the connection."""
        self._came.put_nowait(message)

    async def pull(self, consumer: str, most: int, **terms: object) -> list[Msg]:
        """Return the messages that the server has for a consumer, on these terms.

        Raises:
            ConnectionError: the connection has ended, or the server refuses.
        """
        request = json.dumps({"batch": most, **terms}).encode()
        await self.client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{consumer}", request, self._inbox)
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

    async def tell(self, places: Iterable[str], word: bytes) -> None:
        """Send a word to each place."""
        for place in places:
            await self.client.publish(place, word)

    async def ask(self, place: str, word: bytes) -> None:
        """Send a word, and wait for its answer."""
        await self.client.request(place, word, timeout=_ANSWER)

    async def store(self, subject: str, messages: Sequence[tuple[bytes, dict[str, str]]]) -> None:
        """Publish bodies with their headers, and wait until the server has stored all of them."""
        publish = self.context.publish_async
        stored = [await publish(subject, body, headers=headers) for body, headers in messages]
        await asyncio.gather(*stored)

    def close(self) -> None:
        """Disconnect. A server that hangs reads nothing: then the connection is cut."""
        with self._runner:
            self._runner.run(self._close())

    async def _close(self) -> None:
        writer = getattr(self.client._transport, "_io_writer", None)  # a WebSocket has none
        try:
            await asyncio.wait_for(self.client.close(), _FAREWELL)
        except TimeoutError:
            if writer is not None:
                writer.transport.abort()
                await asyncio.sleep(0)  # the loop closes the socket
