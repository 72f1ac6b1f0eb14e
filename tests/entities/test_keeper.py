"""The keeper: sleep and waking, messages between entities, timers, parked messages, restarts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, nan
from typing import Any

import pytest
import trio
import trio.testing

from ergo_py import Actor, BadInputError, InitError, Node, TargetDownError, ask, exposed
from ergo_py._core.vocabulary.errors import ServiceGoneError
from ergo_py.entities import Entities, Entity, EntityInspector, EntityStoreError, MemoryStore
from ergo_py.entities.record import Record
from ergo_py.entities.stores.store import Write
from ergo_py.entity_handles import Address, EntityKindUnknownError
from ergo_py.supervision.specs import Backoff
from tests.entities.support import keeping_of, table_sizes

from .bank import Account, Credit, Life, Pay, open_bank, records, run_virtual


def awake(node: Node) -> int:
    """How many entities are awake."""
    return len(keeping_of(node, Account).active)


@dataclass
class Log:
    """Numbers in the order in which they arrived."""

    numbers: list[int] = field(default_factory=list)
    poison: list[int] = field(default_factory=list)


class Chain(Entity[Log]):
    """Sends numbers to another entity; crashes on poison."""

    @exposed
    def send_all(self, to: str, numbers: list[int]) -> None:
        """Send numbers."""
        for number in numbers:
            self.send(self.entity(Chain, to), number)

    @exposed
    def refuse(self, numbers: list[int]) -> None:
        """Crash on these numbers."""
        self.state.poison = numbers

    @exposed
    def look(self) -> list[int]:
        """The numbers."""
        return self.state.numbers

    @exposed
    def wake_later(self, name: str, delay: float, number: int) -> None:
        """Send a number to itself, later."""
        self.send_after(delay, self.entity(Chain, self.key), number, name=name)

    @exposed
    def tell_later(self, to: str, delay: float, number: int) -> None:
        """Send a number to another entity, later."""
        self.send_after(delay, self.entity(Chain, to), number)

    @exposed
    def give_up(self, name: str) -> None:
        """Cancel a timer."""
        self.cancel_timer(name)

    @exposed
    def leave(self, to: str, delete_first: bool = False) -> None:
        """Send a last number, and delete itself with its timers and jobs."""
        if delete_first:
            self.delete()
        self.send(self.entity(Chain, to), 7)
        self.send(self.entity(Chain, self.key), 8)
        for receiver in (to, self.key):
            self.send_after(5.0, self.entity(Chain, receiver), 8)
        if not delete_first:
            self.delete()

    def handle_message(self, message: Any, sender: Any) -> None:
        """Keep a number, or crash."""
        if message in self.state.poison:
            raise RuntimeError("a planted failure")
        self.state.numbers.append(message)
        if message == 99:
            self.delete()


class Echo(Entity[Log]):
    """Answers a number to its sender."""

    @exposed
    def ping(self, to: str) -> None:
        """Send a number to another entity."""
        self.send(self.entity(Echo, to), 1)

    @exposed
    def look(self) -> list[int]:
        """The numbers."""
        return self.state.numbers

    def handle_message(self, message: Any, sender: Any) -> None:
        """Keep a number, and answer the first."""
        self.state.numbers.append(message)
        if message == 1:
            self.send(sender, 2)


class Fatal(Entity[Log]):
    """Ends the program with the message 2."""

    @exposed
    def tell(self, to: str) -> None:
        """Send two numbers to another entity, or to itself."""
        for number in (2, 3):
            self.send(self.entity(Fatal, to), number)

    @exposed
    def look(self) -> list[int]:
        """The numbers."""
        return self.state.numbers

    def handle_message(self, message: Any, sender: Any) -> None:
        """Keep a number, or end the program."""
        if message == 2:
            life = self.env["life"]
            assert isinstance(life, Life)
            life.stop()
            raise RuntimeError("the program has ended")
        self.state.numbers.append(message)


CHAIN: dict[str, Any] = {"kinds": [Chain], "backoff": Backoff(0.1, 1.0), "attempts": 3}


def test_an_idle_entity_sleeps_and_costs_nothing() -> None:
    async def program() -> None:
        async with open_bank(MemoryStore(), idle=10.0) as node:
            for number in range(20):
                await node.entity(Account, str(number)).call(ask(Account.deposit, 1))
            assert awake(node) == 20
            await trio.sleep(11)
            assert awake(node) == 0
            assert not keeping_of(node, Account).table.slots
            assert await node.entity(Account, "3").call(ask(Account.deposit, 1)) == 2

    run_virtual(program)


def test_nothing_is_left_of_handles_and_of_sleeping_entities() -> None:
    async def program() -> None:
        async with open_bank(MemoryStore(), kinds=[Account], idle=1.0) as node:
            keeping = keeping_of(node, Account)
            before = table_sizes(keeping)
            handles = [node.entity(Account, str(number)) for number in range(1000)]
            assert table_sizes(keeping) == before
            for handle in handles:
                await handle.call(ask(Account.deposit, 1))
            await trio.sleep(60)
            assert table_sizes(keeping) == before

    run_virtual(program)


def test_no_more_entities_are_awake_than_allowed() -> None:
    async def program() -> None:
        async with open_bank(MemoryStore(), max_awake=5) as node, trio.open_nursery() as nursery:
            most = 0

            async def deposit(number: int) -> None:
                nonlocal most
                for _ in range(3):
                    await node.entity(Account, str(number)).call(ask(Account.deposit, 1))
                    most = max(most, awake(node))

            for number in range(50):
                nursery.start_soon(deposit, number)
            with trio.fail_after(60):
                while nursery.child_tasks:  # noqa: ASYNC110 - virtual time
                    await trio.sleep(0.1)
            assert most == 5
            for number in range(50):
                assert (await node.entity(Account, str(number)).call(ask(Account.look)))[0] == 3

    run_virtual(program)


def test_messages_arrive_in_order_around_waking() -> None:
    async def program() -> None:
        async with open_bank(MemoryStore(), **CHAIN, idle=0.5) as node:
            chain = node.entity(Chain, "a")
            for number in range(1, 20):
                chain.send(number)
                if number % 3 == 0:
                    await trio.sleep(0.7)
                elif number % 2 == 0:
                    await trio.lowlevel.checkpoint()
            await trio.sleep(0.01)
            assert await chain.call(ask(Chain.look)) == list(range(1, 20))

    run_virtual(program)


def test_messages_between_entities_arrive_once_and_in_order() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store, **CHAIN) as node:
            await node.entity(Chain, "a").call(ask(Chain.send_all, "b", [1, 2, 3]))
            await node.entity(Chain, "a").call(ask(Chain.send_all, "b", [4, 5]))
            await trio.sleep(5)
            assert await node.entity(Chain, "b").call(ask(Chain.look)) == [1, 2, 3, 4, 5]
            assert not any(record.owed for record in records(store).values())
            await node.entity(Chain, "b").call(ask(Chain.refuse, []))
            await node.entity(Chain, "b").call(ask(Chain.refuse, [0]))
            assert records(store)["b"].seen == {}  # forgotten, with the next write

    run_virtual(program)


def test_an_answer_to_the_sender_of_a_message_is_stored_and_wakes_it() -> None:
    async def program() -> None:
        store = MemoryStore()
        owed: list[tuple[str, Address | None]] = []

        async def note(_commit: int, writes: Sequence[Write]) -> None:
            for write in writes:
                if write.record is not None:
                    record = Record.decode(write.record)
                    owed.extend((write.address.key, each.target) for each in record.owed.values())

        store.before_commit = note
        # A single entity is awake: the sender sleeps when its message is handled.
        async with open_bank(store, kinds=[Echo], max_awake=1) as node:
            await node.entity(Echo, "a").call(ask(Echo.ping, "b"))
            await trio.sleep(20)
            assert ("b", Address("Echo", "a")) in owed
            assert await node.entity(Echo, "a").call(ask(Echo.look)) == [2]
            assert await node.entity(Echo, "b").call(ask(Echo.look)) == [1]
            assert not any(record.owed for record in records(store).values())

    run_virtual(program)


def test_a_message_of_a_callback_that_is_not_stored_does_not_leave() -> None:
    async def program() -> None:
        store = MemoryStore()
        first = trio.Event()

        async def wait(number: int, _writes: object) -> None:
            if number == 2:
                await first.wait()
            if number == 3:
                raise EntityStoreError("a fault before the write")

        store.before_commit = wait
        async with open_bank(store, **CHAIN) as node, trio.open_nursery() as nursery:
            chain, other = node.entity(Chain, "a"), node.entity(Chain, "b")
            await other.call(ask(Chain.refuse, [0]))

            async def send(number: int) -> None:
                try:
                    await chain.call(ask(Chain.send_all, "b", [number]))
                except TargetDownError:
                    assert number == 2

            nursery.start_soon(send, 1)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(send, 2)  # waits for the commit of the first
            await trio.testing.wait_all_tasks_blocked()
            first.set()
            await trio.sleep(20)
            assert await other.call(ask(Chain.look)) == [1]

    run_virtual(program)


def test_sleep_between_attempts_is_no_attempt() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store, **{**CHAIN, "attempts": 5}, max_awake=1) as node:
            for number in range(10):
                await node.entity(Chain, "a").call(ask(Chain.send_all, "b", [number]))
                await node.entity(Chain, "c").call(ask(Chain.refuse, [number]))
            await trio.sleep(20)
            assert await node.entity(Chain, "b").call(ask(Chain.look)) == list(range(10))
            assert not any(record.owed for record in records(store).values())

    run_virtual(program)


def test_sleeping_entities_wake_while_others_write_without_a_pause() -> None:
    async def program() -> None:
        async with open_bank(MemoryStore(), max_awake=2) as node, trio.open_nursery() as nursery:

            async def write(key: str) -> None:
                while True:
                    await node.entity(Account, key).call(ask(Account.deposit, 1))

            for key in ("a", "b", "c", "d"):
                nursery.start_soon(write, key)
            with trio.fail_after(10):
                for key in ("x", "y", "z"):
                    await node.entity(Account, key).call(ask(Account.deposit, 1))
            nursery.cancel_scope.cancel()

    run_virtual(program)


def test_a_message_that_crashes_its_receiver_is_parked_and_the_others_arrive() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store, **CHAIN) as node:
            await node.entity(Chain, "b").call(ask(Chain.refuse, [2]))
            await node.entity(Chain, "a").call(ask(Chain.send_all, "b", [1, 2, 3, 4]))
            await trio.sleep(60)
            assert await node.entity(Chain, "b").call(ask(Chain.look)) == [1, 3, 4]
            (owed,) = records(store)["a"].owed.values()
            assert owed.is_parked
            assert owed.attempts == 3

    run_virtual(program)


def test_a_job_that_crashes_is_parked_also_by_later_programs() -> None:
    async def program() -> None:
        store = Life()
        async with open_bank(store, **CHAIN) as node:
            await node.entity(Chain, "a").call(ask(Chain.refuse, [2]))
            await node.entity(Chain, "a").post(2)
            await node.entity(Chain, "a").post(3)
        for _ in range(4):
            async with open_bank(store, **CHAIN) as node:
                await trio.sleep(10)
        (owed,) = records(store)["a"].owed.values()
        assert owed.is_parked
        async with open_bank(store, **CHAIN) as node:
            assert await node.entity(Chain, "a").call(ask(Chain.look)) == [3]

    run_virtual(program)


@pytest.mark.parametrize("receiver", ["a", "b"])
def test_a_message_that_ends_the_whole_program_is_parked(receiver: str) -> None:
    async def program() -> None:
        store, ends = Life(), 0
        options = {**CHAIN, "kinds": [Fatal]}
        async with open_bank(store, **options, env={"life": store}) as node:
            await node.entity(Fatal, "a").call(ask(Fatal.tell, receiver))
            await trio.sleep(10)
        while store.is_stopped and ends < 10:
            ends += 1
            store = Life(store.rows)
            async with open_bank(store, **options, env={"life": store}) as node:
                await trio.sleep(10)

        assert ends == CHAIN["attempts"]
        (owed,) = records(store)["a"].owed.values()
        assert owed.is_parked
        async with open_bank(store, **options, env={"life": store}) as node:
            assert await node.entity(Fatal, receiver).call(ask(Fatal.look)) == [3]

    run_virtual(program)


def test_a_job_is_tried_again_after_its_commit_has_failed() -> None:
    async def program() -> None:
        store = MemoryStore()

        async def fail(number: int, _writes: object) -> None:
            if number == 2:
                raise EntityStoreError("a fault before the write")

        store.before_commit = fail
        async with open_bank(store, **CHAIN) as node:
            await node.entity(Chain, "a").post(5)
            await trio.sleep(5)
            assert await node.entity(Chain, "a").call(ask(Chain.look)) == [5]

    run_virtual(program)


def test_messages_do_not_wait_for_a_timer_to_the_same_entity() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store, **CHAIN) as node:
            sender, receiver = node.entity(Chain, "a"), node.entity(Chain, "b")
            await sender.call(ask(Chain.tell_later, "b", 100.0, 1))
            await sender.call(ask(Chain.send_all, "b", [2]))
            await trio.sleep(5)
            assert await receiver.call(ask(Chain.look)) == [2]
            await trio.sleep(100)
            assert await receiver.call(ask(Chain.look)) == [2, 1]
            await sender.call(ask(Chain.send_all, "b", [3]))
            await trio.sleep(5)
            assert await receiver.call(ask(Chain.look)) == [2, 1, 3]
            assert not any(record.owed for record in records(store).values())

    run_virtual(program)


def test_a_timer_survives_the_program_and_sleep() -> None:
    async def program() -> None:
        store = Life()
        async with open_bank(store, **CHAIN, idle=1.0) as node:
            await node.entity(Chain, "a").call(ask(Chain.wake_later, "x", 100.0, 1))
            await trio.sleep(10)
        loaded: list[Address] = []
        store = Life(store.rows)

        async def note(addresses: Sequence[Address]) -> None:
            loaded.extend(addresses)

        store.before_load = note
        async with open_bank(store, **CHAIN, idle=1.0) as node:
            await trio.sleep(80)
            assert loaded == []
            await trio.sleep(15)
            assert [address.key for address in loaded] == ["a"]
            assert await node.entity(Chain, "a").call(ask(Chain.look)) == [1]

    run_virtual(program)


def test_an_entity_with_work_is_read_again_soon_after_its_store_could_not_be_read() -> None:
    async def program() -> None:
        store = Life()
        failures = 0

        async def fail(_addresses: Sequence[Address]) -> None:
            nonlocal failures
            failures += 1
            if failures <= 3:
                raise EntityStoreError("the disk does not answer")

        async with open_bank(store, **CHAIN, idle=1.0) as node:
            await node.entity(Chain, "a").call(ask(Chain.wake_later, "x", 3.0, 1))
            await trio.sleep(2)
            store.before_load = fail
            await trio.sleep(6)
            assert failures == 4
            assert not records(store)["a"].owed

    run_virtual(program)


def test_a_timer_is_late_after_an_outage_and_never_early() -> None:
    async def program() -> None:
        store = Life()
        async with open_bank(store, **CHAIN) as node:
            await node.entity(Chain, "a").call(ask(Chain.wake_later, "x", 5.0, 1))
            await trio.sleep(4.9)
            assert await node.entity(Chain, "a").call(ask(Chain.look)) == []
        await trio.sleep(1000)
        async with open_bank(store, **CHAIN) as node:
            await trio.sleep(1)
            assert await node.entity(Chain, "a").call(ask(Chain.look)) == [1]
            await trio.sleep(1000)
            assert await node.entity(Chain, "a").call(ask(Chain.look)) == [1]

    run_virtual(program)


def test_a_timer_of_the_same_name_replaces_another_and_can_be_cancelled() -> None:
    async def program() -> None:
        async with open_bank(MemoryStore(), **CHAIN) as node:
            chain = node.entity(Chain, "a")
            await chain.call(ask(Chain.wake_later, "x", 5.0, 1))
            await chain.call(ask(Chain.wake_later, "x", 10.0, 2))
            await chain.call(ask(Chain.wake_later, "y", 10.0, 3))
            await chain.call(ask(Chain.wake_later, "", 10.0, 4))
            await chain.call(ask(Chain.give_up, "y"))
            await trio.sleep(7)
            assert await chain.call(ask(Chain.look)) == []
            await trio.sleep(7)
            assert sorted(await chain.call(ask(Chain.look))) == [2, 4]

    run_virtual(program)


@pytest.mark.parametrize("name", ["\udc80", "a\0", "x" * 1001, 7, None])
@pytest.mark.parametrize("request_of", [Chain.wake_later, Chain.give_up])
def test_a_timer_name_that_cannot_be_stored_is_refused(request_of: Any, name: Any) -> None:
    async def program() -> None:
        async with open_bank(MemoryStore(), **CHAIN) as node:
            keeper = node.whereis("entities")
            arguments = (name, 5.0, 1) if request_of is Chain.wake_later else (name,)
            with pytest.raises(TargetDownError, match=r"name: got .*without zeros and surrogates"):
                await node.entity(Chain, "a").call(ask(request_of, *arguments))
            assert await node.entity(Chain, "a").call(ask(Chain.look)) == []
            assert node.whereis("entities") == keeper

    run_virtual(program)


def test_a_timer_name_with_a_class_of_its_own_is_kept_as_a_plain_text() -> None:
    class Plain(str):
        pass

    async def program() -> None:
        async with open_bank(MemoryStore(), **CHAIN) as node:
            chain = node.entity(Chain, "a")
            await chain.call(ask(Chain.wake_later, Plain("x"), 5.0, 1))
            await chain.call(ask(Chain.wake_later, "x", 10.0, 2))
            await trio.sleep(11)
            assert await chain.call(ask(Chain.look)) == [2]

    run_virtual(program)


@pytest.mark.parametrize(
    "delay", [inf, nan, -inf, -1.0, 1e300, 10**400, 253_402_300_800.0, "1", None, True]
)
def test_a_timer_without_a_moment_is_refused(delay: Any) -> None:
    async def program() -> None:
        async with open_bank(MemoryStore(), **CHAIN) as node:
            keeper, chain = node.whereis("entities"), node.entity(Chain, "a")
            with pytest.raises(TargetDownError, match=r"delay: got .*; allowed is a number"):
                await chain.call(ask(Chain.wake_later, "x", delay, 1))
            assert await EntityInspector(node).record(Chain, "a") is None
            assert node.whereis("entities") == keeper

    run_virtual(program)


class Seconds(float):
    """A number with a class of its own, as those of numpy: so are its sums."""

    def __radd__(self, other: float) -> "Seconds":
        return Seconds(float(self) + other)


@pytest.mark.parametrize("delay", [0, 0.0, Seconds(5.0), 253_402_200_000])
def test_a_timer_of_any_moment_up_to_the_year_9999_is_shown(delay: Any) -> None:
    async def program() -> None:
        async with open_bank(MemoryStore(), **CHAIN) as node:
            chain = node.entity(Chain, "a")
            await chain.call(ask(Chain.wake_later, "x", delay, 1))
            record = await EntityInspector(node).record(Chain, "a")
            assert record is not None
            assert [each["timer"] for each in record["timers"]] in ([], ["x"])
            await trio.sleep(6)
            assert await chain.call(ask(Chain.look)) == ([1] if delay < 6 else [])

    run_virtual(program)


def test_no_message_to_another_entity_is_cancelled_as_a_timer_without_a_name() -> None:
    async def program() -> None:
        async with open_bank(MemoryStore(), **CHAIN) as node:
            with pytest.raises(TargetDownError, match="name: got ''"):
                await node.entity(Chain, "a").call(ask(Chain.give_up, ""))

    run_virtual(program)


@pytest.mark.parametrize("delete_first", [False, True])
def test_a_deleted_entity_still_delivers_its_messages(delete_first: bool) -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store, **CHAIN) as node:
            await node.entity(Chain, "a").call(ask(Chain.wake_later, "x", 5.0, 1))
            await node.entity(Chain, "a").call(ask(Chain.tell_later, "b", 5.0, 2))
            await node.entity(Chain, "a").call(ask(Chain.leave, "b", delete_first))
            await trio.sleep(20)
            assert await node.entity(Chain, "b").call(ask(Chain.look)) == [7]
            assert [address.key for address in store.rows] == ["b"]
            assert await node.entity(Chain, "a").call(ask(Chain.look)) == []

    run_virtual(program)


def test_an_entity_that_deletes_itself_for_a_message_gets_it_once() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store, **CHAIN) as node:
            await node.entity(Chain, "a").call(ask(Chain.send_all, "b", [1, 99, 3]))
            await trio.sleep(20)
            assert await node.entity(Chain, "b").call(ask(Chain.look)) == [3]
            await node.entity(Chain, "a").call(ask(Chain.send_all, "b", [99]))
            await trio.sleep(20)
            assert store.rows == {}

    run_virtual(program)


def test_a_start_loads_only_entities_with_work_to_do() -> None:
    async def program() -> None:
        store = Life()
        async with open_bank(store) as node:
            for number in range(50):
                await node.entity(Account, str(number)).call(ask(Account.deposit, 1))
            await node.entity(Account, "7").call(ask(Account.earn_later, 5.0))
        loaded: list[str] = []
        store = Life(store.rows)

        async def note(addresses: Sequence[Address]) -> None:
            loaded.extend(address.key for address in addresses)

        store.before_load = note
        async with open_bank(store) as node:
            await trio.sleep(100)
        assert loaded == ["7"]

    run_virtual(program)


def test_a_message_to_an_entity_that_is_awake_does_not_pass_through_its_keeper() -> None:
    async def program() -> None:
        store, held, released = MemoryStore(), trio.Event(), trio.Event()

        async def hold(_number: int, _writes: object) -> None:
            held.set()
            await released.wait()

        async with open_bank(store) as node, trio.open_nursery() as nursery:
            ada, bob = node.entity(Account, "ada"), node.entity(Account, "bob")
            for each in (ada, bob):
                await each.call(ask(Account.look))
            keeper = node.whereis("entities")
            assert keeper is not None
            before = node.process_info(keeper).messages_in
            store.before_commit = hold
            nursery.start_soon(bob.call, ask(Account.deposit, 1))
            await held.wait()

            # The task of the keeper waits for the store, and its process gets no message.
            for _ in range(3):
                assert await ada.call(ask(Account.look)) == (0, ())

            assert node.process_info(keeper).messages_in == before
            released.set()

    run_virtual(program)


def test_handles_stay_valid_when_the_keeper_restarts() -> None:
    async def program() -> None:
        async with open_bank(MemoryStore()) as node:
            ada = node.entity(Account, "ada")
            await ada.call(ask(Account.deposit, 1))
            keeper = node.whereis("entities")
            assert keeper is not None
            node.kill(keeper)
            assert await ada.call(ask(Account.deposit, 1), once="x", retry=True) == 2
            await ada.call(Pay("bob", 1))
            await trio.sleep(1)
            assert (await node.entity(Account, "bob").call(ask(Account.look)))[0] == 1

    run_virtual(program)


class Closed(MemoryStore):
    """Cannot be opened while it is away."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = True
        self.openings = 0

    async def open(self, owner: Actor, *, shared: bool = False) -> None:
        """Open it, unless it is away."""
        self.openings += 1
        if self.is_away:
            raise EntityStoreError("the store is away")
        await super().open(owner, shared=shared)


def test_a_restarted_keeper_waits_for_its_store_and_refuses_calls() -> None:
    async def program() -> None:
        store = Closed()
        with pytest.raises(InitError, match="the store is away"):
            async with open_bank(store):
                pass
        assert store.openings == 1
        store.is_away = False
        async with open_bank(store) as node:
            ada = node.entity(Account, "ada")
            await ada.call(Pay("bob", 0))
            keeper = node.whereis("entities")
            assert keeper is not None
            store.is_away = True
            node.kill(keeper)
            for _ in range(3):
                await trio.sleep(100)
                with pytest.raises(EntityStoreError, match="the store is away"):
                    await ada.call(ask(Account.deposit, 1), timeout=1)
            assert 200 < store.openings < 600  # after a pause each, and not for each call
            store.is_away = False
            await trio.sleep(2)
            assert await ada.call(ask(Account.deposit, 1)) == 1

    run_virtual(program)


def test_a_class_of_entities_has_a_single_keeper_at_a_time() -> None:
    class Other(Account):
        """Another kind."""

    async def program() -> None:
        first, second = MemoryStore(), MemoryStore()
        async with open_bank(first) as node:
            ada = node.entity(Account, "ada")
            await ada.call(ask(Account.deposit, 1))
            with pytest.raises(InitError, match="take it out of one of the lists"):
                await node.spawn(Entities, second, [Other, Account])
            with pytest.raises(EntityKindUnknownError):
                node.entity(Other, "ada")
            await node.spawn(Entities, second, [Other])  # the refused keeper has closed its store
            assert await node.entity(Other, "ada").call(ask(Account.deposit, 5)) == 5
            assert await ada.call(ask(Account.deposit, 1)) == 2
        assert len(first.rows) == len(second.rows) == 1

    run_virtual(program)


def test_callers_of_a_class_that_the_next_keeper_lacks_are_refused() -> None:
    class Other(Account):
        """Another kind."""

    async def program() -> None:
        store = MemoryStore()
        stuck = trio.Event()

        async def hold(addresses: object) -> None:
            stuck.set()
            await trio.sleep_forever()

        store.before_load = hold
        async with open_bank(store, kinds=[Account, Other]) as node:
            async with trio.open_nursery() as nursery:

                async def call() -> None:
                    with pytest.raises(ServiceGoneError):
                        await node.entity(Account, "ada").call(ask(Account.deposit, 1), timeout=60)

                nursery.start_soon(call)
                await stuck.wait()
                await node.supervisor("bank").remove_child("entities")
                await node.spawn(Entities, MemoryStore(), [Other])
            assert await node.entity(Other, "bob").call(ask(Account.deposit, 1)) == 1

    run_virtual(program)


def test_callers_are_refused_when_the_keeper_is_gone_for_good() -> None:
    async def program() -> None:
        async with open_bank(MemoryStore()) as node:
            ada = node.entity(Account, "ada")
            await ada.call(ask(Account.deposit, 1))
            await node.supervisor("bank").remove_child("entities")
            with pytest.raises(ServiceGoneError):
                await ada.call(ask(Account.deposit, 1))
            with pytest.raises(ServiceGoneError):
                await node.entity(Account, "bob").call(ask(Account.deposit, 1))

    run_virtual(program)


def test_commits_under_way_end_before_the_node_does() -> None:
    async def program() -> None:
        store = MemoryStore()
        answers: list[int] = []

        async def slow(_number: int, _writes: object) -> None:
            await trio.sleep(1)

        store.before_commit = slow
        async with trio.open_nursery() as nursery, open_bank(store) as node:

            async def deposit() -> None:
                answers.append(await node.entity(Account, "ada").call(ask(Account.deposit, 1)))

            nursery.start_soon(deposit)
            await trio.sleep(0.5)
        assert answers == [1]

    run_virtual(program)


def test_a_post_is_not_lost_with_the_program() -> None:
    async def program() -> None:
        store = Life()
        async with open_bank(store) as node:
            await node.entity(Account, "ada").post(Credit(5))
            store.stop()
        store = Life(store.rows)
        async with open_bank(store) as node:
            await trio.sleep(1)
            assert (await node.entity(Account, "ada").call(ask(Account.look)))[0] == 5

    run_virtual(program)


def test_inspection_shows_the_work_of_the_keeper() -> None:
    async def program() -> None:
        async with open_bank(MemoryStore()) as node:
            await node.entity(Account, "ada").call(ask(Account.deposit, 1))
            found = await node.inspect("entities")
            assert (found["kinds"], found["awake"], found["commits"]) == ("Account", "1", "1")

    run_virtual(program)


@pytest.mark.parametrize(
    "kinds, options",
    [
        ([], {}),
        ([int], {}),
        ([Account, Account], {}),
        ([Account], {"max_awake": 0}),
        ([Account], {"attempts": 0}),
        ([Account], {"idle": -1}),
        ([Account], {"max_state": 1 << 29}),
    ],
)
def test_wrong_arguments_are_refused(kinds: Any, options: Any) -> None:
    with pytest.raises(BadInputError):
        Entities(MemoryStore(), kinds, **options)
