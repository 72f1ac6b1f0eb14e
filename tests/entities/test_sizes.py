"""The size of a record, and of a batch."""

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from ergo_py import ask, exposed
from ergo_py.entities import Entity, MemoryStore
from ergo_py.entities.errors import StateTooLargeError
from ergo_py.entities.record import Origin, Owed, Record
from ergo_py.entities.stores.store import Write

from .bank import Balance, open_bank, records, run_virtual

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


def test_a_batch_takes_records_up_to_a_size_and_leaves_others_to_the_next() -> None:
    async def program() -> None:
        store = MemoryStore()
        sizes: list[list[int]] = []

        async def note(_number: int, writes: Sequence[Write]) -> None:
            sizes.append([len(each.record or b"") >> 20 for each in writes])
            await trio.sleep(0.01)

        store.before_commit = note
        async with open_bank(store, kinds=[Box], max_state=4 << 20) as node:
            async with trio.open_nursery() as nursery:
                for number in range(6):
                    box = node.entity(Box, str(number))
                    nursery.start_soon(box.call, ask(Box.fill, 3 << 20))
            assert len(store.rows) == 6
        assert [each for size in sizes for each in size] == [3] * 6
        assert max(map(len, sizes)) == 3

    run_virtual(program)
