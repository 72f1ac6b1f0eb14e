"""Entities that are to wake up: very many at once, in turns with new calls."""

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from ergo_py import ask, exposed
from ergo_py.entities import Entity, MemoryStore
from ergo_py.entities.activations.wanted import Wanted
from ergo_py.entities.record import Owed, Record
from ergo_py.entities.schedule import Schedule
from ergo_py.entities.stores.store import Due, Row
from ergo_py.entity_handles import Address
from ergo_py.network.messages.message_types import MessageTypes
from tests.entities.support import counted_looks

from .bank import Account, Balance, Interest, open_bank, records, run_virtual

MANY = 4000
BATCH = 256


class Payer(Entity[Balance]):
    """Counts its timers."""

    @exposed
    def pay_later(self, delay: float) -> None:
        """Set a timer."""
        self.send_after(delay, self.entity(type(self), self.key), Interest(), name="pay")

    def handle_message(self, message: Any, sender: Any) -> None:
        """Count one."""
        self.state.amount += 1


class Recorded(MemoryStore):
    """Notes what is read."""

    def __init__(self, kind: str = "Payer") -> None:
        super().__init__()
        self.loads: list[list[Address]] = []
        self.polls: list[int] = []
        record = Record()
        record.owe([Owed(1, "", "", MessageTypes([]).encode("pay"), "timer", 1.0)])
        encoded = record.encode()
        assert encoded is not None
        for number in range(MANY):
            self.rows[Address(kind, f"{number:04}")] = Row(1, encoded), 1.0

    async def load(self, addresses: Sequence[Address]) -> list[Row | None]:
        """Read rows."""
        self.loads.append(list(addresses))
        return await super().load(addresses)

    async def due(self, before: float, limit: int) -> list[Due]:
        """Read moments."""
        found = await super().due(before, limit)
        self.polls.append(len(found))
        return found

    def done(self) -> int:
        """How many timers have taken effect."""
        return sum(row.version > 1 for row, _ in self.rows.values())


@pytest.mark.parametrize("max_awake", [10_000, 300])
def test_very_many_due_entities_wake_in_batches_and_a_new_call_comes_between(
    max_awake: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = counted_looks(monkeypatch)

    async def program() -> None:
        store = Recorded()
        async with open_bank(
            store, kinds=[Payer, Account], max_awake=max_awake, now=lambda: trio.current_time() + 10
        ) as node:
            while len(store.loads) < 3:  # noqa: ASYNC110 - virtual time
                await trio.sleep(0.001)
            before = len(store.loads)
            assert await node.entity(Account, "ada").call(ask(Account.deposit, 1), timeout=600) == 1
            ada = Address("Account", "ada")
            (found,) = (number for number, each in enumerate(store.loads) if ada in each)
            assert found <= before + 2
            while store.done() < MANY:  # noqa: ASYNC110 - virtual time
                await trio.sleep(0.1)
        assert max(map(len, store.loads)) <= BATCH
        assert len(looks) < 3 * MANY
        assert sum(store.polls) < 3 * MANY

    run_virtual(program)


def test_due_rows_of_other_kinds_stop_nothing_and_are_not_read_without_a_pause() -> None:
    async def program() -> None:
        store = Recorded("Gone")
        payer = store.rows[Address("Gone", "0000")][0], 2.0
        store.rows[Address("Payer", "a")] = payer
        async with open_bank(store, kinds=[Payer], now=lambda: trio.current_time() + 10) as node:
            await trio.sleep(100)
            assert store.done() == 1
            assert len(store.polls) < 50
            assert node is not None

    run_virtual(program)


def test_moments_are_handled_in_batches() -> None:
    async def program() -> None:
        schedule = Schedule(trio.current_time)
        for number in range(BATCH + 10):
            schedule.add(1.0, Address("Payer", str(number)))
        await trio.sleep(2)
        assert [len(schedule.take_due()) for _ in range(3)] == [BATCH, 10, 0]
        assert not schedule.has_due()
        assert schedule.is_poll_due(is_room=False) is False
        assert schedule.next() == trio.current_time() + 1
        assert schedule.is_poll_due(is_room=True) is True

    run_virtual(program)


def test_those_that_are_called_and_those_that_are_due_come_in_turns() -> None:
    called, due = ([Address(kind, str(each)) for each in range(9)] for kind in ("Call", "Due"))
    wanted = Wanted()
    for each in due:
        wanted.add(each, is_called=False)
    for each in called:
        wanted.add(each, is_called=True)
        wanted.add(each, is_called=False)
    assert (len(wanted), wanted.due) == (18, 9)

    assert wanted.first(8) == [*called[:3], due[0], *called[3:6], due[1]]
    wanted.add(due[8], is_called=True)  # a call to an entity that is due
    for each in called:
        wanted.discard(each)
    assert wanted.first(4) == [due[8], *due[:3]]
    for _ in range(2):
        wanted.take(called[0])
    assert wanted.first(3) == [due[8], due[0], due[1]]
    wanted.take(called[0])
    assert wanted.first(3) == [due[0], due[8], due[1]]

    wanted.put_aside(due[8])
    wanted.put_aside(due[0])
    assert wanted.first(2) == due[1:3]
    assert due[0] in wanted
    assert not wanted.look_again(1)
    wanted.stir()
    assert wanted.look_again(1)
    assert not wanted.look_again(1)
    assert wanted.first(2) == [due[1], due[8]]


def test_a_single_place_that_is_free_at_a_time_goes_in_turns() -> None:
    called, due = ([Address(kind, str(each)) for each in range(6)] for kind in ("Call", "Due"))
    wanted = Wanted()
    for one, other in zip(called, due, strict=True):
        wanted.add(one, is_called=True)
        wanted.add(other, is_called=False)
    taken: list[Address] = []
    for _ in range(8):
        wanted.first(3)  # a look that takes none
        taken += wanted.first(1)
        wanted.take(taken[-1])
    assert taken == [*called[:3], due[0], *called[3:6], due[1]]


class Busy(Payer):
    """Takes a while for each call."""

    @exposed
    async def work(self) -> None:
        """Be busy."""
        await trio.sleep(0.05)


def test_timers_fire_while_callers_fill_all_places() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store, kinds=[Busy], max_awake=4) as node:
            await node.entity(Busy, "timer").call(ask(Busy.pay_later, 10.0))

            async def client(number: int) -> None:
                for key in range(400):
                    entity = node.entity(Busy, f"{number} {key % 5}")
                    await entity.call(ask(Busy.work), timeout=60)

            async with trio.open_nursery() as nursery:
                for number in range(12):
                    nursery.start_soon(client, number)
                while records(store)["timer"].owed:  # noqa: ASYNC110 - virtual time
                    await trio.sleep(0.1)
                assert trio.current_time() < 15
                nursery.cancel_scope.cancel()

    run_virtual(program)


def test_awaited_entities_are_sought_in_parts() -> None:
    called = [Address("Call", str(each)) for each in range(5)]
    wanted, looks = Wanted(), list[Address]()

    def is_awaited(address: Address) -> bool:
        looks.append(address)
        return address == called[3]

    for each in called[:4]:
        wanted.add(each, is_called=True)
    assert wanted.awaited(2, is_awaited) == []
    wanted.add(called[4], is_called=True)
    assert wanted.awaited(2, is_awaited) == [called[3]]
    assert wanted.awaited(2, is_awaited) is None
    assert looks == called
    assert wanted.awaited(2, lambda _address: False) == []


def test_entities_that_have_woken_are_not_sought() -> None:
    wanted, last = Wanted(), Address("Call", "last")
    called = [Address("Call", str(each)) for each in range(9)]
    for each in called[:2]:
        wanted.add(each, is_called=True)
    assert wanted.awaited(1, lambda _address: True) == called[:1]
    for each in called:
        wanted.add(each, is_called=True)
        wanted.take(each)
    wanted.add(last, is_called=True)
    assert wanted.awaited(1, lambda address: address == last) == [last]
