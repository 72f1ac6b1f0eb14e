"""`MemoryStore`: the store of a `Memory` network, and the faults between it and the nodes."""

from collections.abc import Callable
from itertools import count
from typing import Protocol, TypeVar

import trio

from ..errors import StoreError
from .store import TIMEOUT, ConflictError, Entry

__all__ = ["MemoryStore", "StoreFaults", "StoreTable"]

T = TypeVar("T")


class StoreFaults(Protocol):
    """The faults between the nodes and the store."""

    def loses(self, node: str, /) -> bool:
        """Whether the next request of a node, or the answer to it, is lost."""
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
        self._revisions = count(1)
        self._made_at: float | None = None

    def get(self, key: str) -> Entry | None:
        """The entry of a key."""
        return self._entries.get(key)

    def set(self, key: str, value: bytes | None, revision: int) -> int:
        """Replace or remove an entry that has this revision."""
        found = self._entries.get(key)
        if revision != (0 if found is None else found.revision):
            raise ConflictError(key)
        fresh = next(self._revisions)
        if value is None:
            del self._entries[key]
        else:
            self._entries[key] = Entry(value, fresh)
        return fresh

    def lose_all(self) -> None:
        """Forget all entries, as a server does that has lost its disk."""
        self._entries.clear()
        self._made_at = trio.current_time()

    def age(self) -> float:
        """Seconds since the entries were lost."""
        return float("inf") if self._made_at is None else trio.current_time() - self._made_at


class MemoryStore:
    """The table, as a single node sees it."""

    def __init__(self, table: StoreTable, faults: StoreFaults, node: str) -> None:
        self._table = table
        self._faults = faults
        self._node = node

    async def get(self, key: str) -> Entry | None:
        """As :meth:`Store.get`."""
        return await self._request(lambda: self._table.get(key))

    async def put(self, key: str, value: bytes, revision: int) -> int:
        """As :meth:`Store.put`."""
        return await self._request(lambda: self._table.set(key, value, revision))

    async def delete(self, key: str, revision: int) -> None:
        """As :meth:`Store.delete`."""
        await self._request(lambda: self._table.set(key, None, revision))

    async def age(self) -> float:
        """As :meth:`Store.age`."""
        return await self._request(self._table.age)

    def is_gone(self, node: str, creation: int) -> bool:
        """As :meth:`Store.is_gone`."""
        return not self._faults.has(node, creation)

    async def _request(self, function: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        await self._faults.wait_thawed(self._node)
        if self._faults.loses(self._node):
            await self._fail()
        result = function()
        # A request may be carried out and its answer lost.
        if self._faults.loses(self._node):
            await self._fail()
        return result

    async def _fail(self) -> None:
        await trio.sleep(TIMEOUT)
        raise StoreError(f"the store of this network does not answer within {TIMEOUT:g} s")
