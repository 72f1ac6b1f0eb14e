"""`RedisStream`: a stream of Redis with a group of consumers, as a source and as a sink."""

from typing import Any, Final, TypeAlias, Unpack, cast

import redis
from redis.typing import EncodableT, FieldT

from ..._core.vocabulary.options import check_number
from ..._core.vocabulary.public_names import show_public_names
from ..item import Item
from .broker import BatchKeywords, Broker, Opened

__all__ = ["RedisStream"]

_SLACK: Final = 5.0
"""Seconds that an answer may take beyond the time that the server waits for items."""

Entries: TypeAlias = list[tuple[bytes, dict[bytes, bytes] | None]]
"""The id and the fields; None for an entry that was deleted."""


class RedisStream(Broker[redis.Redis, bytes]):
    """A stream of Redis, in which an item has the fields ``body`` and ``key``: a source, a sink, or
    ``poison``.

    Several pipelines share the items of a group if each has a ``consumer`` of its own. A consumer
    that starts takes the items again that it has not acknowledged. Acknowledged items stay in the
    stream: other groups may need them. ``keep`` or ``XTRIM`` removes old items.

    Args:
        url: the server, such as ``redis://localhost``.
        stream: the name of the stream.
        group: the group of consumers; made at the first item of the stream if it is missing.
        consumer: the name of this consumer in the group. Each pipeline of the group needs its own,
            the same after a restart: two with one name take each other's open items.
        claim_after: seconds after which this consumer takes an item of another that has not
            acknowledged it. Must be longer than an item is open.
        keep: as a sink, about how many items the stream keeps; None for all.
        options: as a sink, ``batch`` and ``within``, as those of `Sink`.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    places_last = True

    def __init__(
        self,
        url: str,
        stream: str,
        group: str = "ergo",
        consumer: str = "ergo",
        *,
        claim_after: float = 300.0,
        keep: int | None = None,
        **options: Unpack[BatchKeywords],
    ) -> None:
        super().__init__(**options)
        check_number("claim_after", claim_after, least=0.0)
        self._url = self.at(url, "redis", "rediss", "unix")
        names = self.named(stream=stream, group=group, consumer=consumer)
        self._stream, self._group, self._consumer = names
        self._idle, self._keep = int(claim_after * 1000), keep

    def connect(self) -> Opened[redis.Redis]:
        """Make a client, which connects at its first command."""
        client = redis.Redis.from_url(self._url, socket_timeout=_SLACK)
        return client, client.close

    def prepare(self) -> None:
        """Make the group."""
        self._next, self._claims = b"0", b"0-0"
        """Where to read: behind this id in the list of the unacknowledged, and ``>`` for new; and
        where to look for items that were left: the server looks at ten for each that is wanted.
        """
        try:
            self.link.xgroup_create(self._stream, self._group, id="0", mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    def receive(self, most: int, seconds: float = 0.0) -> None:
        """Find the unacknowledged items of this consumer first, then new items, then items that
        other consumers have left.
        """
        while self._next != b">" and not self.found:
            entries = self._entries(most, None)
            self._next = entries[-1][0] if entries else b">"
            self._find(entries, again=True)
        if not self.found:
            block = max(1, int(seconds * 1000)) if seconds else None
            self._find(self._entries(most, block), again=False)
        if not self.found and not seconds:
            names = self._stream, self._group, self._consumer
            claim = self.link.xautoclaim(*names, self._idle, self._claims, most)
            self._claims, entries, *_ = cast(tuple[bytes, Entries], claim)
            self._find(entries, again=True)

    def _entries(self, most: int, block: int | None) -> Entries:
        found = self.link.xreadgroup(
            self._group, self._consumer, {self._stream: self._next}, count=most, block=block
        )
        return cast(list[tuple[bytes, Entries]], found)[0][1] if found else []

    def _deliveries(self, entries: Entries) -> dict[bytes, int]:
        """How often the group has delivered these entries, as far as the server knows them."""
        # Each is asked for alone: a range of ids holds others, too, which this consumer has open.
        with self.link.pipeline(transaction=False) as batch:
            for number, _ in entries:
                batch.xpending_range(self._stream, self._group, number, number, 1)
            rows: list[Any] = [row for answer in batch.execute() for row in answer]
        return {row["message_id"]: row["times_delivered"] for row in rows}

    def _find(self, entries: Entries, *, again: bool) -> None:
        times = self._deliveries(entries) if again else {}
        self.find(
            # An entry of another program may have no body; it must not hold up the others.
            (got.get(b"body", b""), got.get(b"key"), place, times.get(place, 1 + again) - 1, place)
            for place, got in entries
            if got is not None
        )

    def confirm(self, places: list[bytes]) -> None:
        """Acknowledge items."""
        self.link.xack(self._stream, self._group, *places)

    def handle_batch(self, items: list[Item]) -> None:
        """Add items, in a transaction."""
        with self.link.pipeline(transaction=True) as batch:
            for item in items:
                given: dict[FieldT, EncodableT] = {"body": item.body}
                given.update(self.labels_of(item))
                batch.xadd(self._stream, given, maxlen=self._keep)
            batch.execute()


show_public_names(__name__)
