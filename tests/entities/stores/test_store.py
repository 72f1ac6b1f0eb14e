"""The contract of stores."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ergo_py import Actor, InitError, open_node
from ergo_py.entities import FencedError
from ergo_py.entities.stores.store import Due, Row, Store, Write
from ergo_py.entity_handles import Address

ADA, BOB = Address("Account", "ada"), Address("Account", "bob")


class Owner(Actor):
    """A process that has a store open."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def init(self) -> None:
        """Open the store."""
        await self.store.open(self)

    async def terminate(self, reason: object) -> None:
        """Close it."""
        await self.store.close()


@asynccontextmanager
async def opened(make: Callable[[], Any]) -> AsyncIterator[Store]:
    """An open store."""
    store: Store = make()
    async with open_node("store@test", log_level="critical") as node:
        await node.spawn(Owner, store)
        yield store


def write(address: Address, base: int, record: bytes | None, due: float | None = None) -> Write:
    """A write of the version after ``base``."""
    return Write(address, base, base + 1, 0, due, record)


async def test_a_row_is_found_as_it_was_written(make_store: Callable[[], Any]) -> None:
    record = bytes(range(256))
    async with opened(make_store) as store:
        assert await store.load([ADA, BOB]) == [None, None]
        await store.commit([write(ADA, 0, record)])
        assert await store.load([BOB, ADA]) == [None, Row(1, record)]
        await store.commit([write(ADA, 1, b"next"), write(BOB, 0, b"")])
        assert await store.load([ADA, BOB]) == [Row(2, b"next"), Row(1, b"")]
    async with opened(make_store) as store:
        assert await store.load([ADA, BOB]) == [Row(2, b"next"), Row(1, b"")]


async def test_a_deleted_row_is_gone(make_store: Callable[[], Any]) -> None:
    async with opened(make_store) as store:
        await store.commit([write(ADA, 0, b"a", 1.0)])
        await store.commit([write(ADA, 1, None)])
        assert await store.load([ADA]) == [None]
        assert await store.due(9.0, 10) == []
        await store.commit([write(ADA, 0, b"again")])
        assert await store.load([ADA]) == [Row(1, b"again")]


@pytest.mark.parametrize("base", [0, 1, 3])
@pytest.mark.parametrize("record", [b"new", None])
async def test_a_write_over_another_version_is_refused_with_its_batch(
    make_store: Callable[[], Any], base: int, record: bytes | None
) -> None:
    async with opened(make_store) as store:
        await store.commit([write(ADA, 0, b"1")])
        await store.commit([write(ADA, 1, b"2")])
        if base == 0 and record is None:
            return  # nothing to delete
        with pytest.raises(FencedError):
            await store.commit([write(BOB, 0, b"b"), write(ADA, base, record)])
        assert await store.load([ADA, BOB]) == [Row(2, b"2"), None]
        await store.commit([write(ADA, 2, b"3")])


async def test_an_older_token_is_refused(make_store: Callable[[], Any]) -> None:
    async with opened(make_store) as store:
        await store.claim(5)
        await store.claim(5)
        with pytest.raises(FencedError):
            await store.claim(4)
        with pytest.raises(FencedError):
            await store.commit([Write(ADA, 0, 1, 4, None, b"old")])
        await store.commit([Write(ADA, 0, 1, 5, None, b"new")])
        assert await store.load([ADA]) == [Row(1, b"new")]


async def test_due_rows_are_found_the_earliest_first(make_store: Callable[[], Any]) -> None:
    async with opened(make_store) as store:
        moments = {"a": 5.0, "b": 0.0, "c": None, "d": 7.5, "e": 2.25}
        addresses = {key: Address("Account", key) for key in moments}
        await store.commit([write(addresses[key], 0, b"x", due) for key, due in moments.items()])
        assert await store.due(7.5, 10) == [
            Due(0.0, addresses["b"]),
            Due(2.25, addresses["e"]),
            Due(5.0, addresses["a"]),
        ]
        assert await store.due(100.0, 1) == [Due(0.0, addresses["b"])]
        await store.commit([write(addresses["b"], 1, b"x", None)])
        assert await store.due(1.0, 10) == []


async def test_keys_are_found_in_order(make_store: Callable[[], Any]) -> None:
    keys = ["", "A", "a", "aa", "b", "é", "中", "😀"][1:]
    async with opened(make_store) as store:
        for kind in ("Account", "Accounts"):
            await store.commit([write(Address(kind, key), 0, b"x") for key in reversed(keys)])
        assert await store.keys("Account", "", 100) == keys
        assert await store.keys("Account", "aa", 2) == ["aa", "b"]
        assert await store.keys("Account", "aa\0", 2) == ["b", "é"]
        assert await store.keys("None", "", 2) == []


async def test_many_rows_are_loaded_in_the_order_asked_for(make_store: Callable[[], Any]) -> None:
    addresses = [Address("Account", str(number)) for number in range(1000)]
    async with opened(make_store) as store:
        await store.commit([write(each, 0, each.key.encode()) for each in addresses])
        found = await store.load(list(reversed(addresses)))
        assert found == [Row(1, each.key.encode()) for each in reversed(addresses)]


async def test_a_store_has_a_single_owner(make_store: Callable[[], Any]) -> None:
    store = make_store()
    async with opened(lambda: store), open_node("other@test", log_level="critical") as node:
        other = store if type(store).__name__ == "MemoryStore" else make_store()
        with pytest.raises(InitError, match="EntityStoreError"):
            await node.spawn(Owner, other)
