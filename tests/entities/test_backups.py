"""Rows that go back to a backup under a running program: an entity that is awake tells nothing
about messages and commands that its row does not know.
"""

from collections.abc import Sequence

import pytest
import trio

from ergo_py import Node, TargetDownError, ask
from ergo_py.entities import EntityInspector, EntityStoreError, MemoryStore
from ergo_py.entities.stores.store import Row, Write
from ergo_py.entity_handles import Address

from .bank import Account, Pay, open_bank, records, run_virtual
from .test_parked import OPTIONS, Slow


class BackedUp(MemoryStore):
    """A store whose rows go back to a backup."""

    def __init__(self) -> None:
        super().__init__()
        self._backup: dict[Address, tuple[Row, float | None]] | None = None
        self.is_restored = False

    def back_up(self) -> None:
        """Keep a backup, the first time."""
        if self._backup is None:
            self._backup = dict(self.rows)

    def restore(self) -> None:
        """Put the backup back, once."""
        assert self._backup is not None
        if not self.is_restored:
            self.is_restored = True
            self.rows.clear()
            self.rows.update(self._backup)


async def _pay(node: Node) -> None:
    ada = node.entity(Account, "ada")
    await ada.call(ask(Account.deposit, 10))
    await ada.call(Pay("bob", 3))


async def _amounts(node: Node) -> list[int]:
    """The amounts as they are stored."""
    await trio.sleep(300)  # all are asleep
    keys = ("ada", "bob")
    return [(await node.entity(Account, key).call(ask(Account.look)))[0] for key in keys]


def test_a_message_is_not_taken_for_done_if_its_effect_went_back() -> None:
    async def program() -> None:
        store = BackedUp()

        async def keep(_commit: int, _writes: Sequence[Write]) -> None:
            if any(each.owed for each in records(store).values()):
                store.back_up()

        async def restore(_commit: int, writes: Sequence[Write]) -> None:
            """The server ends when the sender stores that its message has arrived, and begins with
            the backup.
            """
            if "bob" in records(store) and not store.is_restored:
                assert writes[0].address.key == "ada"
                store.restore()
                raise EntityStoreError("the server ends")

        store.after_commit, store.before_commit = keep, restore
        async with open_bank(store) as node:
            await _pay(node)
            await trio.sleep(20)  # the sender is loaded again, and repeats the message
            assert store.is_restored
            assert await _amounts(node) == [7, 3]

    run_virtual(program)


def test_a_mark_stays_if_the_row_of_the_sender_owes_the_message_again() -> None:
    async def program() -> None:
        store = BackedUp()

        async def keep(_commit: int, _writes: Sequence[Write]) -> None:
            if "bob" in records(store):
                store.back_up()

        store.after_commit = keep
        async with open_bank(store, idle=5.0) as node:
            await _pay(node)
            await trio.sleep(1)
            assert not records(store)["ada"].owed
            bob = node.entity(Account, "bob")
            await bob.call(ask(Account.deposit, 100))
            store.restore()
            assert records(store)["ada"].owed
            with pytest.raises(TargetDownError):
                await bob.call(ask(Account.deposit, 100))
            await bob.call(ask(Account.look))  # it is loaded again, and asks about its mark
            assert await _amounts(node) == [7, 3]

    run_virtual(program)


def test_a_parked_message_is_not_taken_for_lost_by_the_memory_of_its_receiver() -> None:
    async def program() -> None:
        store, gate = BackedUp(), trio.Event()

        async def keep(_commit: int, _writes: Sequence[Write]) -> None:
            if "b" in records(store):
                store.back_up()

        store.after_commit = keep
        async with open_bank(store, **OPTIONS, env={"gate": gate}) as node:
            sender, receiver = node.entity(Slow, "a"), node.entity(Slow, "b")
            await sender.call(ask(Slow.tell, "b", 1))
            await trio.sleep(20)
            gate.set()
            await trio.sleep(20)  # it arrives, although it is parked
            await sender.call(ask(Slow.tell, "b", 2))
            await trio.sleep(20)
            assert "a" not in records(store)
            store.restore()
            assert [each.may_have_arrived for each in records(store)["a"].owed.values()] == [True]
            with pytest.raises(TargetDownError):
                await sender.call(ask(Slow.tell, "b", 2))
            await sender.call(ask(Slow.tell, "b", 2))  # it asks whether the first has arrived
            await trio.sleep(20)
            await EntityInspector(node).retry(Slow, "a")
            await trio.sleep(300)
            assert await receiver.call(ask(Slow.look)) == [1, 2]

    run_virtual(program)


def test_a_command_is_not_answered_from_memory_if_its_effect_went_back() -> None:
    async def program() -> None:
        store = BackedUp()
        async with open_bank(store) as node:
            ada = node.entity(Account, "ada")
            await ada.call(ask(Account.deposit, 1))
            store.back_up()
            assert await ada.call(ask(Account.deposit, 10), once="x") == 11
            store.restore()
            with pytest.raises(TargetDownError):
                await ada.call(ask(Account.deposit, 10), once="x")
            for _ in range(2):
                assert await ada.call(ask(Account.deposit, 10), once="x") == 11
            assert (await _amounts(node))[0] == 11

    run_virtual(program)
