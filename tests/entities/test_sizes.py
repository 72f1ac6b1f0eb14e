"""The size of a record: its bound, and rows that a store cannot take."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import CallError, TargetDownError, ask, exposed
from ergo_py.entities import (
    Entity,
    EntityStoreError,
    MemoryStore,
    SQLite,
    StateTooLargeError,
    WriteRefusedError,
)
from ergo_py.entities.record import Origin, Owed, Record
from ergo_py.entities.stores.store import Write
from ergo_py.entity_handles import Address
from tests.entities.support import limit_rows

from .bank import Account, Balance, open_bank, records, run_virtual

MOST = 10_000


class Box(Entity[Balance]):
    """Keeps answers and timers."""

    @exposed
    def echo(self, size: int) -> bytes:
        """Answer with so many bytes."""
        self.state.amount += 1
        return bytes(size)

    @exposed
    def later(self, size: int, name: str = "") -> None:
        """Send itself so many bytes in an hour."""
        self.send_after(3600.0, self.entity(Box, self.key), bytes(size), name=name)

    @exposed
    def fill(self, size: int) -> None:
        """Have a state of about so many bytes."""
        self.state.entries = ["x" * size]

    @exposed
    def clear(self) -> None:
        """Delete itself."""
        self.delete()

    def handle_message(self, message: Any, sender: Any) -> None:
        """Count it."""
        self.state.amount += 1


@pytest.mark.parametrize(
    "part, request_of",
    [
        ("messages and timers", ask(Box.later, 900)),
        ("answers to commands with ids", ask(Box.echo, 900)),
        ("the state", ask(Box.fill, 9_990)),
    ],
    ids=["timers", "answers", "state"],
)
def test_a_record_is_bounded_with_all_that_it_keeps(part: str, request_of: Any) -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store, kinds=[Box], max_state=MOST) as node:
            box = node.entity(Box, "b")
            text, number, before = "", 0, {}
            for number in range(100):
                before = {key: row for key, (row, _) in store.rows.items()}
                try:
                    await box.call(request_of, once=f"{number}\u00e9" if "ids" in part else None)
                except StateTooLargeError as error:
                    text = str(error)
                    break
            assert f"most of it {part}, and max_state allows 10,000" in text
            assert {key: row for key, (row, _) in store.rows.items()} == before
            assert number == (0 if part == "the state" else 10)
            assert all(len(row.record) <= MOST for row, _ in store.rows.values())

            await box.call(ask(Box.clear))  # a change that makes it smaller
            await box.call(ask(Box.echo, 10))

    run_virtual(program)


def test_a_record_that_is_too_large_already_may_shrink_and_deliver() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store, kinds=[Box], max_state=MOST) as node:
            box = node.entity(Box, "b")
            await box.call(ask(Box.fill, 5_000))
            await box.call(ask(Box.later, 1_000, "t"))
            await box.call(ask(Box.later, 2_000, "u"))
        async with open_bank(store, kinds=[Box], max_state=100) as node:
            box = node.entity(Box, "b")
            with pytest.raises(StateTooLargeError):
                await box.call(ask(Box.fill, 6_000))
            await box.call(ask(Box.later, 500, "t"))
            await trio.sleep(4000)
            assert records(store)["b"].owed == {}
            await box.call(ask(Box.fill, 4_000))

    run_virtual(program)


def test_the_size_of_a_record_follows_its_changes() -> None:
    record, origin = Record(), Origin("Account", "é", 1)
    record.keep(b"state")
    record.owe([Owed(1, "Account", "ada", bytes(500), "t", 1.0), Owed(2, "", "", bytes(300))])
    record.owe([Owed(3, "Account", "ada", bytes(700), "t", 1.0)])
    record.see(origin, 1)
    record.see(origin, 2)
    record.remember("id", 1.0, bytes(100))

    def check() -> None:
        encoded = record.encode()
        assert encoded is not None
        assert abs(record.rest + len(b"state") - len(encoded)) < 100
        assert Record.decode(encoded).rest == len(encoded) - len(b"state")
        copy = record.copy()
        copy.keep(b"")
        assert (copy.rest, copy.encode() == encoded, record.state) == (record.rest, False, b"state")

    check()
    record.drop(2)
    record.drop(2)
    check()
    record.forget_seen(origin)
    record.forget_seen(origin)
    record.forget_done(2.0, 10)
    check()
    record.cancel("t")
    assert record.rest == 0


async def test_a_row_that_the_store_refuses_fails_its_entity_only(tmp_path: Path) -> None:
    store = SQLite(tmp_path / "state.db")
    async with open_bank(store, kinds=[Box, Account]) as node:
        await limit_rows(store, 50_000)
        box, ada = node.entity(Box, "b"), node.entity(Account, "ada")
        await box.call(ask(Box.fill, 10))
        await ada.call(ask(Account.deposit, 1))
        for amount in range(2, 5):
            async with trio.open_nursery() as nursery:

                async def fail() -> None:
                    with pytest.raises(TargetDownError, match="Box/b would have a record above"):
                        await box.call(ask(Box.fill, 60_000))

                nursery.start_soon(fail)
                assert await ada.call(ask(Account.deposit, 1)) == amount
        await box.call(ask(Box.fill, 20))


class Refusing(MemoryStore):
    """Refuses the rows of some entities, or says so of others."""

    def __init__(self, *refused: Address) -> None:
        super().__init__()
        self.refused = refused

    async def commit(self, writes: Sequence[Write]) -> None:
        """Write, or refuse."""
        if not self.refused or any(each.address in self.refused for each in writes):
            raise WriteRefusedError("it cannot be stored", self.refused)
        await super().commit(writes)


@pytest.mark.parametrize("refused", [(), (Address("Box", "b"),)], ids=["none", "all"])
def test_a_batch_without_other_rows_fails_as_a_whole(refused: tuple[Address, ...]) -> None:
    async def program() -> None:
        async with open_bank(Refusing(*refused), kinds=[Box]) as node:
            for _ in range(2):
                with pytest.raises((CallError, EntityStoreError), match="cannot be stored"):
                    await node.entity(Box, "b").call(ask(Box.fill, 10))

    run_virtual(program)
