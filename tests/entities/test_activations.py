"""Entities that end while their changes are being stored, and callbacks that are undone."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
import trio.testing

from ergo_py import NO_REPLY, Caller, Node, Reject, TargetDownError, ask, exposed
from ergo_py.entities import Entity, EntityStoreError, MemoryStore
from ergo_py.entities.record import Record
from ergo_py.entities.stores.store import Write
from ergo_py.errors import CallTimeoutError
from ergo_py.supervision.specs import Backoff
from tests.entities.support import keeping_of

from .bank import open_bank, records, run_virtual


class Gate:
    """Keeps commits waiting until it is opened, and lets them fail if it is told to."""

    def __init__(self, store: MemoryStore) -> None:
        self.is_open = trio.Event()
        self.fails = False
        store.before_commit = self._wait

    async def _wait(self, _number: int, _writes: Sequence[Write]) -> None:
        if not self.is_open.is_set():
            await self.is_open.wait()
            if self.fails:
                raise EntityStoreError("a fault before the write")


@dataclass
class Names:
    """A list."""

    names: list[str] = field(default_factory=list)


class Thing(Entity[Names]):
    """An entity that a test directs."""

    @exposed
    def add(self, name: str) -> int:
        """Add a name."""
        self.state.names.append(name)
        return len(self.state.names)

    @exposed
    def tell(self, to: str, name: str) -> None:
        """Add a name here, and to another entity."""
        self.state.names.append(name)
        self.send(self.entity(Thing, to), name)

    @exposed
    def leave(self, to: str, name: str) -> None:
        """Send a last name, and delete itself."""
        self.send(self.entity(Thing, to), name)
        self.delete()

    @exposed
    def read(self) -> list[str]:
        """All names."""
        return self.state.names

    @exposed
    def crash(self) -> None:
        """Crash."""
        raise RuntimeError("a planted failure")

    @exposed
    def spoil(self, how: str) -> None:
        """Put a value into the state that has no encoding, and refuse or crash."""
        spoiled: Any = self.state.names
        spoiled.append(object())
        raise Reject(ValueError("no")) if how == "refuse" else RuntimeError("a planted failure")

    def handle_call(self, request: Any, caller: Caller) -> object:
        """Defer the answer."""
        self.caller = caller
        return NO_REPLY

    def handle_message(self, message: Any, sender: Any) -> None:
        """Add a name, or crash."""
        if message == "poison":
            raise RuntimeError("a planted failure")
        self.state.names.append(message)


THINGS: dict[str, Any] = {"kinds": [Thing], "backoff": Backoff(0.1, 1.0)}


def keeper_of(node: Node) -> object:
    """The process of the keeper."""
    return node.whereis("entities")


async def until_blocked() -> None:
    """Let all tasks do all that they can."""
    await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize("request_of", [Thing.tell, Thing.leave])
@pytest.mark.parametrize("is_wanted", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_a_crash_leaves_the_commit_under_way_to_the_next_activation(
    fails: bool, is_wanted: bool, request_of: Any
) -> None:
    async def program() -> None:
        store = MemoryStore()
        outcomes: list[object] = []
        async with open_bank(store, **THINGS) as node, trio.open_nursery() as nursery:
            keeper = keeper_of(node)
            one, other = node.entity(Thing, "a"), node.entity(Thing, "b")
            # A message that cannot be delivered: to try it again means to store the attempt.
            await one.call(ask(Thing.tell, "c", "poison"))
            await until_blocked()
            gate = Gate(store)

            async def call(request: Any) -> None:
                try:
                    outcomes.append(await one.call(request))
                except TargetDownError:
                    outcomes.append("down")

            nursery.start_soon(call, ask(request_of, "b", "y"))
            await until_blocked()
            nursery.start_soon(call, ask(Thing.crash))
            await until_blocked()
            assert outcomes == ["down"]  # of the crash; the answer before it waits for the store
            if is_wanted:
                nursery.start_soon(call, ask(Thing.read))
                await until_blocked()
            await trio.sleep(2)  # the other message is due
            gate.fails = fails
            gate.is_open.set()
            await until_blocked()
            kept = ["poison"] if fails else [] if request_of is Thing.leave else ["poison", "y"]
            assert outcomes[1:] == ["down" if fails else None] + [kept] * is_wanted
            await trio.sleep(20)
            assert await other.call(ask(Thing.read)) == ([] if fails else ["y"])
            assert await one.call(ask(Thing.read)) == kept
            assert [each.key for each in records(store)["a"].owed.values()] == ["c"]
            assert keeper_of(node) == keeper

    run_virtual(program)


def test_a_failed_commit_drops_later_versions_of_the_same_entities_only() -> None:
    async def program() -> None:
        store = MemoryStore()
        answers: list[object] = []
        async with open_bank(store, **THINGS) as node, trio.open_nursery() as nursery:
            # Awake: nothing is loaded during a commit.
            assert await node.entity(Thing, "b").call(ask(Thing.read)) == []
            gate = Gate(store)
            gate.fails = True

            async def add(key: str, name: str) -> None:
                try:
                    answers.append(await node.entity(Thing, key).call(ask(Thing.add, name)))
                except TargetDownError:
                    answers.append(f"{name} failed")

            # The second and the third version wait for the next commit, which both would share.
            for key, name in (("a", "x"), ("a", "y"), ("b", "z")):
                nursery.start_soon(add, key, name)
                await until_blocked()
            gate.is_open.set()
            await until_blocked()
            assert {*answers} == {"x failed", "y failed", 1}
            assert await node.entity(Thing, "a").call(ask(Thing.read)) == []

    run_virtual(program)


@pytest.mark.parametrize("count", [0, 100])
def test_a_record_that_cannot_be_encoded_costs_its_own_entity_only(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = Record.encode

    def encode_or_fail(record: Record) -> bytes | None:
        if b"odd" in (record.state or b""):
            raise TypeError("a planted failure")
        return encode(record)

    monkeypatch.setattr(Record, "encode", encode_or_fail)

    async def program() -> None:
        store = MemoryStore()
        answers: list[object] = []
        async with open_bank(store, **THINGS) as node, trio.open_nursery() as nursery:
            keeper = keeper_of(node)
            names = {"odd": "odd", **{f"a{number}": "good" for number in range(count)}}
            for key in names:
                await node.entity(Thing, key).call(ask(Thing.add, "first"))
            gate = Gate(store)

            async def add(key: str, name: str) -> None:
                try:
                    answers.append(await node.entity(Thing, key).call(ask(Thing.add, name)))
                except TargetDownError as error:
                    answers.append(str(error.reason))

            # A commit is under way: all others wait for the next one.
            nursery.start_soon(add, "before", "good")
            await until_blocked()
            for key, name in names.items():
                nursery.start_soon(add, key, name)
            await until_blocked()
            commits = store.commits
            gate.is_open.set()
            await until_blocked()
            (failed,) = [each for each in answers if not isinstance(each, int)]
            assert "Thing/odd cannot be encoded: TypeError: a planted failure" in str(failed)
            assert sorted(each for each in answers if isinstance(each, int)) == [1] + [2] * count
            assert store.commits == commits + bool(count)
            assert keeper_of(node) == keeper
            assert keeping_of(node, Thing).totals.failures == 1
            assert await node.entity(Thing, "odd").call(ask(Thing.add, "next")) == 2

    run_virtual(program)


def test_a_store_that_raises_an_error_of_another_class_does_not_end_the_keeper() -> None:
    async def program() -> None:
        store = MemoryStore()

        async def fail(number: int, _writes: Sequence[Write]) -> None:
            if number == 2:
                raise UnicodeError("a planted failure")

        async with open_bank(store, **THINGS) as node:
            keeper, thing = keeper_of(node), node.entity(Thing, "a")
            assert await thing.call(ask(Thing.add, "x")) == 1
            store.before_commit = fail
            with pytest.raises(TargetDownError, match="the store raised UnicodeError: a planted"):
                await thing.call(ask(Thing.add, "y"))
            assert await thing.call(ask(Thing.add, "z")) == 2
            assert keeper_of(node) == keeper

    run_virtual(program)


def test_an_entity_is_loaded_behind_its_versions_that_wait_for_the_store() -> None:
    async def program() -> None:
        store = MemoryStore()
        answers: list[object] = []
        async with open_bank(store, **THINGS) as node, trio.open_nursery() as nursery:
            thing = node.entity(Thing, "a")
            gate = Gate(store)

            async def call(request: Any) -> None:
                try:
                    answers.append(await thing.call(request))
                except TargetDownError:
                    answers.append("down")

            # The second version waits while the first is being stored; then the process ends.
            for request in (ask(Thing.add, "x"), ask(Thing.add, "y"), ask(Thing.crash)):
                nursery.start_soon(call, request)
                await until_blocked()
            nursery.start_soon(call, ask(Thing.read))
            await until_blocked()
            gate.is_open.set()
            await until_blocked()
            assert answers == ["down", 1, 2, ["x", "y"]]

    run_virtual(program)


@pytest.mark.parametrize("how", ["refuse", "crash"])
def test_a_state_that_cannot_be_encoded_is_undone(how: str) -> None:
    async def program() -> None:
        async with open_bank(MemoryStore(), **THINGS) as node:
            thing = node.entity(Thing, "a")
            await thing.call(ask(Thing.add, "x"))
            with pytest.raises(ValueError if how == "refuse" else TargetDownError):
                await thing.call(ask(Thing.spoil, how))
            assert await thing.call(ask(Thing.read)) == ["x"]
            assert await thing.call(ask(Thing.add, "y")) == 2

    run_virtual(program)


@pytest.mark.parametrize("once", [None, "id"])
def test_an_entity_sleeps_when_its_callers_have_given_up(once: str | None) -> None:
    async def program() -> None:
        async with open_bank(MemoryStore(), **THINGS, idle=10.0) as node:
            thing = node.entity(Thing, "a")
            for _ in range(2):  # the second is a repetition, if the command has an id
                with pytest.raises(CallTimeoutError):
                    await thing.call("defer", once=once, timeout=1)
            assert keeping_of(node, Thing).active
            await trio.sleep(30)
            assert not keeping_of(node, Thing).active

    run_virtual(program)


class Slow(Entity[Names]):
    """An entity whose start waits."""

    starts = 0
    gate: trio.Event

    async def init(self) -> None:
        """Count the starts, and wait."""
        Slow.starts += 1
        await Slow.gate.wait()

    @exposed
    def add(self, name: str) -> int:
        """Add a name."""
        self.state.names.append(name)
        return len(self.state.names)


@pytest.mark.parametrize("max_awake", [1, 10])
def test_an_entity_that_takes_long_to_start_starts_once(max_awake: int) -> None:
    async def program() -> None:
        answers: list[int] = []
        Slow.starts, Slow.gate = 0, trio.Event()
        async with (
            open_bank(MemoryStore(), kinds=[Slow], idle=0.5, max_awake=max_awake) as node,
            trio.open_nursery() as nursery,
        ):

            async def add(key: str) -> None:
                answers.append(await node.entity(Slow, key).call(ask(Slow.add, "x"), timeout=60))

            nursery.start_soon(add, "a")
            await until_blocked()
            nursery.start_soon(add, "a")
            nursery.start_soon(add, "b")
            await until_blocked()
            await trio.sleep(2)  # longer than idle: it cannot sleep before it has started
            assert Slow.starts == min(2, max_awake)
            Slow.gate.set()
            await trio.sleep(5)
            assert sorted(answers) == [1, 1, 2]
            assert Slow.starts == 2

    run_virtual(program)
