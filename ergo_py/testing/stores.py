"""`STORE_RULES`: the contract of stores of entities, as tests for a store of your own."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import trio

from .._core.vocabulary.public_names import show_under
from ..actor import Actor
from ..entities.errors import EntityStoreError, FencedError
from ..entities.stores.store import Due, Row, Store, Write
from ..entity_handles import Address
from ..node import open_node

__all__ = ["STORE_RULES", "StoreRule", "opened_store"]


class StoreRule(Protocol):
    """A rule of the contract of stores."""

    @property
    def __name__(self) -> str:
        """The rule in words."""
        ...

    async def __call__(self, make: Callable[[], Store], /) -> None:
        """Check the rule.

        Args:
            make: makes a store: an empty store for the first call, and a store with the same rows
                for a later call. The store before has closed then.

        Raises:
            AssertionError: the store breaks the rule.
        """


_ADA: Final = Address("Account", "ada")
_BOB: Final = Address("Account", "bob")


def _long(characters: int) -> str:
    """A text of four bytes for each character, which no store can compress."""
    choose = random.Random(characters)
    return "".join(chr(choose.randrange(0x20000, 0x2A000)) for _ in range(characters))


_LONGEST: Final = Address(_long(200), _long(450))
"""The address with the most bytes."""


class _Owner(Actor):
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
async def opened_store(store: Store) -> AsyncIterator[Store]:
    """Open a store, on a node with a process that owns it, and close it at the end."""
    async with open_node("store@test", log_level="critical") as node:
        await node.spawn(_Owner, store)
        yield store


def _write(address: Address, base: int, record: bytes | None, due: float | None = None) -> Write:
    return Write(address, base, base + 1, 0, due, record)


def _expect(found: object, expected: object, question: str) -> None:
    if isinstance(expected, list) and isinstance(found, Sequence):
        found = list(found)
    if found != expected:
        raise AssertionError(f"{question}: expected {expected!r}, found {found!r}")


async def _expect_refused(attempt: Awaitable[None], question: str) -> None:
    try:
        await attempt
    except FencedError:
        return
    raise AssertionError(f"{question}: expected FencedError, and nothing was raised")


async def _expect_rows(store: Store, *rows: Row | None) -> None:
    """Check the rows of ada and of bob."""
    addresses = [_ADA, _BOB][: len(rows)]
    _expect(await store.load(addresses), list(rows), "load() of ada and bob")


async def commits_are_found(make: Callable[[], Store]) -> None:
    """A commit that has returned is found by every later load, also of a later program."""
    record = bytes(range(256))
    async with opened_store(make()) as store:
        await _expect_rows(store, None, None)
        await store.commit([_write(_ADA, 0, record)])
        await _expect_rows(store, Row(1, record), None)
        await store.commit([_write(_ADA, 1, b"next"), _write(_BOB, 0, b"")])
        await _expect_rows(store, Row(2, b"next"), Row(1, b""))
    async with opened_store(make()) as store:
        await _expect_rows(store, Row(2, b"next"), Row(1, b""))


async def loads_keep_their_order(make: Callable[[], Store]) -> None:
    """Rows come in the order of the addresses, also many, with None for those without a row."""
    addresses = [Address("Account", str(number)) for number in range(1000)]
    async with opened_store(make()) as store:
        _expect(await store.load([]), [], "load() of no address")
        await store.commit([_write(each, 0, each.key.encode()) for each in addresses[::2]])
        expected = [
            None if int(each.key) % 2 else Row(1, each.key.encode()) for each in reversed(addresses)
        ]
        _expect(await store.load(addresses[::-1]), expected, "load() of 1,000 addresses")
        _expect(await store.load([_ADA, _ADA]), [None, None], "load() of an address twice")


async def rows_are_whole(make: Callable[[], Store]) -> None:
    """A row is found as it was written: every key, a large record, a large version."""
    keys = ["'; drop table", "a/b", "%", "\n", "é", "e\u0301", "中", "😀", "k" * 1000, _LONGEST.key]
    writes = [
        Write(Address(kind, key), 0, 2**40 + number, 0, 0.1 + number, bytes([number]) * 300_000)
        for number, key in enumerate(keys)
        for kind in ("Account", "Accounts", _LONGEST.kind)
    ]
    async with opened_store(make()) as store:
        await store.commit(writes)
    async with opened_store(make()) as store:
        found = await store.load([each.address for each in writes])
        for write, row in zip(writes, found, strict=True):
            is_whole = row == Row(write.version, write.record or b"")
            _expect(is_whole, True, f"the row of {write.address} is as it was written")
        due = sorted(Due(each.due or 0.0, each.address) for each in writes)
        _expect(sorted(await store.due(100.0, 100)), due, "due() with exact moments")


async def deleted_rows_are_gone(make: Callable[[], Store]) -> None:
    """A write without a record deletes the row, its moment and its version."""
    async with opened_store(make()) as store:
        await store.commit([_write(_ADA, 0, b"a", 1.0), _write(_BOB, 0, b"b", 2.0)])
        await store.commit([_write(_ADA, 1, None)])
        await _expect_rows(store, None, Row(1, b"b"))
        _expect(await store.due(9.0, 10), [Due(2.0, _BOB)], "due() after the deletion")
        _expect(await store.keys("Account", "", 10), ["bob"], "keys() after the deletion")
        await store.commit([_write(_ADA, 0, None)])
        await store.commit([_write(_ADA, 0, b"again")])
        await _expect_rows(store, Row(1, b"again"), Row(1, b"b"))


async def other_versions_are_refused(make: Callable[[], Store]) -> None:
    """A write over another version than ``base`` is refused, and nothing of its batch is written:
    neither the writes before it nor those behind.
    """
    async with opened_store(make()) as store:
        await store.commit([_write(_ADA, 0, b"1")])
        await store.commit([_write(_ADA, 1, b"2")])
        for base in (0, 1, 3):
            for record in (b"new", None):
                wrong, other = _write(_ADA, base, record), _write(_BOB, 0, b"b")
                for batch in ([wrong], [other, wrong], [wrong, other]):
                    await _expect_refused(store.commit(batch), f"base {base}, the row has 2")
                    await _expect_rows(store, Row(2, b"2"), None)
        await _expect_refused(store.commit([_write(_BOB, 1, b"b")]), "base 1, there is no row")
        await _expect_refused(store.commit([_write(_BOB, 1, None)]), "base 1, there is no row")
        await store.commit([_write(_ADA, 2, b"3")])
        await _expect_rows(store, Row(3, b"3"), None)


async def older_tokens_are_refused(make: Callable[[], Store]) -> None:
    """Writes with a lower token than the highest claimed are refused with their batch, also by a
    later program; so is the claim of a lower token.
    """
    old, new = Write(_ADA, 0, 1, 4, None, b"old"), Write(_ADA, 0, 1, 5, None, b"new")
    other = Write(_BOB, 0, 1, 5, None, b"b")
    async with opened_store(make()) as store:
        await store.commit([Write(_BOB, 0, 1, 1, None, b"before")])
        await store.claim(0, 5)
        await store.claim(0, 5)
        await _expect_refused(store.claim(0, 4), "claim of 4 after 5")
        for batch in ([old], [other._replace(base=1, version=2), old]):
            await _expect_refused(
                store.commit(batch), "a write with the token 4 after the claim of 5"
            )
            await _expect_rows(store, None, Row(1, b"before"))
    async with opened_store(make()) as store:
        await _expect_refused(store.claim(0, 4), "claim of 4 in a later program")
        await _expect_refused(store.commit([old]), "the token 4 in a later program")
        await store.commit([new])
        await _expect_rows(store, Row(1, b"new"), Row(1, b"before"))
        await store.claim(0, 2**62)
        await _expect_refused(store.commit([Write(_ADA, 1, 2, 5, None, b"")]), "token 5 of 2**62")
        await store.commit([Write(_ADA, 1, 2, 2**62, None, b"newest")])
        await _expect_rows(store, Row(2, b"newest"), Row(1, b"before"))


async def each_shard_has_its_token(make: Callable[[], Store]) -> None:
    """A claim refuses older writes to its own shard. A batch with a single refused write is refused
    whole, and each of its writes is accepted with the right token.
    """
    ada, bob = Write(_ADA, 0, 1, 5, None, b"a", shard=5), Write(_BOB, 0, 1, 6, None, b"b", shard=6)
    async with opened_store(make()) as store:
        await store.claim(5, 5)
        await store.claim(6, 7)
        await store.claim(63, 2**62)
        await _expect_refused(store.claim(6, 6), "claim of 6 after 7 for the shard")
        for batch in ([ada, bob], [bob, ada], [bob]):
            await _expect_refused(store.commit(batch), "the token 6 of a shard with 7")
            await _expect_rows(store, None, None)
        await store.commit([ada])
        await store.claim(5, 6)
    async with opened_store(make()) as store:
        late = ada._replace(base=1, version=2)
        for batch in ([late], [bob._replace(token=7), late]):
            await _expect_refused(store.commit(batch), "the token 5 of a shard with 6")
            await _expect_rows(store, Row(1, b"a"), None)
        await store.commit([late._replace(token=6), bob._replace(token=7)])
        await _expect_rows(store, Row(2, b"a"), Row(1, b"b"))


async def due_rows_come_earliest_first(make: Callable[[], Store]) -> None:
    """``due`` finds the entities with a moment before the given moment, the earliest first."""
    moments = {"a": 5.0, "b": 0.0, "c": None, "d": 7.5, "e": 2.25, "f": 1e10}
    addresses = {key: Address("Account", key) for key in moments}
    async with opened_store(make()) as store:
        _expect(await store.due(1e12, 10), [], "due() of an empty store")
        await store.commit([_write(addresses[key], 0, b"x", due) for key, due in moments.items()])
        ordered = [Due(moments[key] or 0.0, addresses[key]) for key in "beadf"]
        _expect(await store.due(7.5, 10), ordered[:3], "due(7.5)")
        _expect(await store.due(100.0, 1), ordered[:1], "due(100.0) with the limit 1")
        _expect(await store.due(1e12, 5), ordered, "due(1e12)")
        await store.commit([_write(addresses["b"], 1, b"x", None)])
        await store.commit([_write(addresses["c"], 1, b"x", 3.0)])
        ordered = [Due(2.25, addresses["e"]), Due(3.0, addresses["c"]), ordered[2]]
        _expect(await store.due(7.5, 10), ordered, "due(7.5) after changes")


async def keys_come_in_pages(make: Callable[[], Store]) -> None:
    """``keys`` finds the keys of a kind from a key on, in the order of their UTF-8."""
    keys = ["A", "a", "a b", "aa", "b", "é", "\uffff", "😀"]
    async with opened_store(make()) as store:
        for kind in ("Account", "Accounts", "account"):
            await store.commit([_write(Address(kind, key), 0, b"x") for key in reversed(keys)])
        _expect(await store.keys("Account", "", 100), keys, "keys() from the beginning")
        _expect(await store.keys("Account", "aa", 2), ["aa", "b"], "keys() from 'aa'")
        _expect(await store.keys("Account", "aa\0", 2), ["b", "é"], "keys() behind 'aa'")
        _expect(await store.keys("Acc", "", 2), [], "keys() of an unknown kind")
        pages: list[str] = []
        while page := await store.keys("Account", pages[-1] + "\0" if pages else "", 3):
            pages += page
        _expect(pages, keys, "all pages of three keys")


async def a_cancelled_commit_is_whole_or_absent(make: Callable[[], Store]) -> None:
    """A commit that was cancelled, as a commit with an error, may have happened: later loads agree,
    each row is whole, and the next writer goes on from there.
    """
    async with opened_store(make()) as store:
        await store.commit([_write(_ADA, 0, b"old")])
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.commit([_write(_ADA, 1, b"new"), _write(_BOB, 0, b"b")])
        ada, bob = await store.load([_ADA, _BOB])
        _expect(ada in (Row(1, b"old"), Row(2, b"new")), True, f"{ada} is the old or the new row")
        _expect(bob in (None, Row(1, b"b")), True, f"{bob} is the old or the new row")
        await _expect_rows(store, ada, bob)
        assert ada is not None
        await store.commit([_write(_ADA, ada.version, b"next")])
    async with opened_store(make()) as store:
        await _expect_rows(store, Row(ada.version + 1, b"next"), bob)


async def operations_may_run_at_once(make: Callable[[], Store]) -> None:
    """While a commit is under way, others list keys and read rows, and the keeper of the map of
    shards writes its row. All of them get their answers.
    """
    answers: list[object] = []

    async def take(attempt: Awaitable[object]) -> None:
        try:
            answers.append(await attempt)
        except EntityStoreError as error:
            answers.append(str(error))

    async with opened_store(make()) as store:
        with trio.move_on_after(60) as scope:
            async with trio.open_nursery() as nursery:
                for address in (_ADA, _BOB):
                    nursery.start_soon(take, store.commit([_write(address, 0, b"1")]))
                    for _ in range(20):
                        nursery.start_soon(take, store.keys("Other", "", 1))
                        nursery.start_soon(take, store.load([Address("Other", "key")]))
        _expect(scope.cancelled_caught, False, "an operation has no end")
        _expect([each for each in answers if each not in (None, [], [None])], [], "other answers")
        await _expect_rows(store, Row(1, b"1"), Row(1, b"1"))


async def a_closed_store_fails(make: Callable[[], Store]) -> None:
    """Before ``open`` and after ``close`` each operation raises `EntityStoreError`, and nothing is
    written.
    """
    store = make()
    for is_closed in (False, True):
        if is_closed:
            async with opened_store(store):
                await store.commit([_write(_ADA, 0, b"1")])
        for attempt in (
            lambda: store.commit([_write(_BOB, 0, b"b")]),
            lambda: store.load([_ADA]),
            lambda: store.claim(0, 1),
            lambda: store.due(1.0, 1),
            lambda: store.keys("Account", "", 1),
        ):
            await _expect_failure(attempt)
    async with opened_store(make()) as store:
        await _expect_rows(store, Row(1, b"1"), None)


async def _expect_failure(attempt: Callable[[], Awaitable[Any]]) -> None:
    try:
        await attempt()
    except EntityStoreError:
        return
    raise AssertionError("a store that is not open: expected EntityStoreError")


async def random_operations_agree_with_a_dict(make: Callable[[], Store]) -> None:
    """200 seeded commits, some of them over wrong versions, and all reads after each."""
    choose = random.Random(7)
    addresses = [Address("Account", key) for key in "abcde"]
    rows: dict[Address, tuple[Row, float | None]] = {}
    async with opened_store(make()) as store:
        for _ in range(200):
            batch = [
                _random_write(choose, address, rows)
                for address in choose.sample(addresses, choose.randint(1, 4))
            ]
            is_right = all(each.base == _version(rows, each.address) for each in batch)
            if is_right:
                await store.commit(batch)
                _apply(rows, batch)
            else:
                await _expect_refused(store.commit(batch), f"a batch with a wrong base: {batch}")
            expected = [rows[each][0] if each in rows else None for each in addresses]
            _expect(await store.load(addresses), expected, "load() after random commits")
            due = [Due(moment, each) for each, (_, moment) in rows.items() if moment is not None]
            found = sorted(await store.due(1e6, 10))
            _expect(found, sorted(due), "due() after random commits")


def _version(rows: dict[Address, tuple[Row, float | None]], address: Address) -> int:
    return rows[address][0].version if address in rows else 0


def _random_write(
    choose: random.Random, address: Address, rows: dict[Address, tuple[Row, float | None]]
) -> Write:
    base = _version(rows, address) + (choose.random() < 0.1)
    record = None if choose.random() < 0.2 else choose.randbytes(choose.randint(0, 20))
    due = choose.choice((None, 0.0, float(choose.randint(1, 99))))
    return Write(address, base, base + choose.randint(1, 3), 0, due, record)


def _apply(rows: dict[Address, tuple[Row, float | None]], batch: Sequence[Write]) -> None:
    for each in batch:
        rows.pop(each.address, None)
        if each.record is not None:
            rows[each.address] = Row(each.version, each.record), each.due


STORE_RULES: Final[tuple[StoreRule, ...]] = (
    commits_are_found,
    loads_keep_their_order,
    rows_are_whole,
    deleted_rows_are_gone,
    other_versions_are_refused,
    older_tokens_are_refused,
    each_shard_has_its_token,
    due_rows_come_earliest_first,
    keys_come_in_pages,
    a_cancelled_commit_is_whole_or_absent,
    operations_may_run_at_once,
    a_closed_store_fails,
    random_operations_agree_with_a_dict,
)
"""The rules of `Store`. Each gets rows of its own."""

show_under("ergo_py.testing", ("opened_store",), globals())
