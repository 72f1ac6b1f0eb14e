"""`MemoryStore`: the store of a `Memory` network, and the faults between it and the nodes.

Its entries, markers and losses are those of the store of a NATS network, so that a simulation finds
the faults of both.
"""

from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import NoReturn, Protocol, TypeVar

import outcome
import trio

from ..errors import StoreError
from .seen_revisions import SeenRevisions
from .store import TIMEOUT, Age, ConflictError, Entry

__all__ = ["MemoryStore", "StoreFaults", "StoreTable"]

T = TypeVar("T")


class StoreFaults(Protocol):
    """The faults between the nodes and the store."""

    def loses(self, node: str, /) -> bool:
        """Whether the next request of a node, or the answer to it, is lost."""
        ...

    def store_delay(self, node: str, /) -> float:
        """The delay of the next request of a node, or of the answer to it, in seconds."""
        ...

    async def wait_thawed(self, node: str, /) -> None:
        """Wait until a node is not frozen."""

    def has(self, node: str, creation: int, /) -> bool:
        """Whether this start of a node is in the network."""
        ...


class StoreTable:
    """The entries, which all nodes share."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self.last: int = 0
        """The last revision."""
        self.made_at: float = -inf
        self._lost_at = -inf

    def get(self, key: str) -> Entry | None:
        """The entry of a key, or its marker."""
        return self._entries.get(key)

    def set(self, key: str, value: bytes, revision: int, number: int) -> Entry:
        """Replace an entry that has this revision; with an empty value, by a marker."""
        found = self._entries.get(key)
        if revision != (0 if found is None else found.revision):
            raise ConflictError(key)
        self.last += 1
        entry = self._entries[key] = Entry(value, self.last, number)
        return entry

    def lose_all(self) -> None:
        """Forget all entries, as a server does that has lost its disk."""
        self._entries.clear()
        self.made_at = trio.current_time()
        # A new table uses no revision of an earlier table: a program that was stopped may still
        # write with such a revision.
        self.last = int(self.made_at * 1e9)

    def mark_lost(self) -> None:
        """Tell all nodes that writes were lost."""
        self._lost_at = trio.current_time()

    def age(self) -> Age:
        """Seconds since the store was made, and since a node has noticed a loss."""
        now = trio.current_time()
        return Age(now - self.made_at, now - self._lost_at)

    def copy(self) -> "StoreTable":
        """A backup."""
        backup = StoreTable()
        backup.restore(self)
        return backup

    def restore(self, backup: "StoreTable") -> None:
        """Replace everything by a backup."""
        self._entries = dict(backup._entries)
        self.last, self.made_at, self._lost_at = backup.last, backup.made_at, backup._lost_at


class MemoryStore:
    """The table, as a single node sees it."""

    def __init__(self, table: StoreTable, faults: StoreFaults, node: str) -> None:
        self._table = table
        self._faults = faults
        self._node = node
        self._seen = SeenRevisions(lambda: int(trio.current_time() * 1e9))
        self._made_at = table.made_at

    async def get(self, key: str) -> Entry | None:
        """As :meth:`Store.get`."""
        # Before the request: an answer is compared with the state of knowledge at the question,
        # since another task may learn more meanwhile.
        expected = self._seen.expect(key)
        found = await self._request(lambda: self._table.get(key))
        if self._seen.shows_loss(key, found, expected):
            await self._note_loss()
        return found

    async def put(self, key: str, value: bytes, revision: int) -> Entry:
        """As :meth:`Store.put`."""
        expected, number = self._seen.expect(), self._seen.next_number()
        written = await self._request(lambda: self._table.set(key, value, revision, number))
        if self._seen.shows_lost_writes(key, written, expected):
            await self._note_loss()
        return written

    async def delete(self, key: str, revision: int) -> None:
        """As :meth:`Store.delete`."""
        await self.put(key, b"", revision)

    async def age(self) -> Age:
        """As :meth:`Store.age`."""
        expected = self._seen.expect()
        age, last = await self._request(lambda: (self._table.age(), self._table.last))
        if self._seen.shows_less(last, expected):
            await self._note_loss()
        return Age(age.made, min(age.whole, trio.current_time() - self._seen.lost_at))

    async def _note_loss(self) -> None:
        made_at = self._made_at
        with suppress(StoreError):
            made_at = await self._request(lambda: self._table.made_at)
        if made_at != self._made_at:  # a new store, whose age is known
            self._made_at = made_at
            self._seen.forget()
            return
        self._seen.note_loss(trio.current_time())
        with suppress(StoreError):
            await self._request(self._table.mark_lost)

    def is_gone(self, node: str, creation: int) -> bool:
        """As :meth:`Store.is_gone`."""
        return not self._faults.has(node, creation)

    async def _request(self, function: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        await self._faults.wait_thawed(self._node)
        if self._faults.loses(self._node):
            await self._fail()
        delay = self._faults.store_delay(self._node)
        result = await self._request_late(function, delay) if delay else function()
        # A request may be carried out and its answer lost.
        if self._faults.loses(self._node):
            await self._fail()
        return result

    async def _request_late(self, function: Callable[[], T], delay: float) -> T:
        """Carry out a request after its delay, also if the node does not wait for it any more."""
        answer: list[outcome.Outcome[T]] = []
        arrived = trio.Event()

        async def carry() -> None:
            await trio.sleep(delay)
            answer.append(outcome.capture(function))
            await trio.sleep(self._faults.store_delay(self._node))
            arrived.set()

        trio.lowlevel.spawn_system_task(carry, name="late request to the store")
        with trio.move_on_after(TIMEOUT):
            await arrived.wait()
        return answer[0].unwrap() if arrived.is_set() else await self._fail()

    async def _fail(self) -> NoReturn:
        await trio.sleep(TIMEOUT)
        raise StoreError(f"the store of this network does not answer within {TIMEOUT:g} s")
