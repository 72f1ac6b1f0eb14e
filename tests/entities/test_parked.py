"""Parked messages that are tried again: each takes effect once, also if it had arrived before."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from ergo_py import Node, ask, exposed
from ergo_py.entities import Entity, EntityInspector, EntityStoreError, MemoryStore
from ergo_py.entities.record import Record
from ergo_py.entities.stores.store import Write
from ergo_py.supervision.specs import Backoff

from .bank import Life, open_bank, records, run_virtual


@dataclass
class Numbers:
    """Numbers in the order in which they took effect."""

    numbers: list[int] = field(default_factory=list)


class Slow(Entity[Numbers]):
    """Sends numbers, and takes the number 1 when the gate of its node is open."""

    @exposed
    def tell(self, to: str, number: int) -> None:
        """Send a number."""
        self.send(self.entity(Slow, to), number)

    @exposed
    def look(self) -> list[int]:
        """The numbers."""
        return self.state.numbers

    async def handle_message(self, message: Any, sender: Any) -> None:
        """Crash, or wait for the gate, and keep a number."""
        gate = self.env["gate"]
        assert isinstance(gate, trio.Event)
        if message == POISON and not gate.is_set():
            raise RuntimeError("a planted failure")
        if message in (1, WAIT):
            await gate.wait()
        if message != WAIT:
            self.state.numbers.append(message)


POISON, WAIT = -1, 0
OPTIONS: dict[str, Any] = {"kinds": [Slow], "backoff": Backoff(0.1, 1.0), "attempts": 2}


async def _send(node: Node) -> None:
    """Send a number, and wait for longer than all attempts take."""
    await node.entity(Slow, "a").call(ask(Slow.tell, "b", 1))
    await trio.sleep(20)


async def _look(node: Node) -> list[int]:
    return await node.entity(Slow, "b").call(ask(Slow.look), timeout=None)


def test_a_message_that_is_retried_while_its_receiver_handles_it_takes_effect_once() -> None:
    async def program() -> None:
        store, gate = MemoryStore(), trio.Event()
        async with open_bank(store, **OPTIONS, env={"gate": gate}) as node:
            await _send(node)
            assert [each.is_parked for each in records(store)["a"].owed.values()] == [True]
            assert await EntityInspector(node).retry(Slow, "a") == 1
            gate.set()
            await trio.sleep(20)
            assert await _look(node) == [1]
            assert "a" not in records(store)

    run_virtual(program)


def test_a_message_that_had_arrived_in_an_earlier_program_takes_effect_once() -> None:
    async def program() -> None:
        store, gate = Life(), trio.Event()
        gate.set()

        async def stop(_commit: int, writes: Sequence[Write]) -> None:
            """Stop the program when the sender stores that its message has arrived."""
            if any(write.address.key == "a" for write in writes) and "b" in records(store):
                store.stop()
                raise EntityStoreError("the program has stopped")

        store.before_commit = stop
        options = {**OPTIONS, "attempts": 1, "env": {"gate": gate}}
        async with open_bank(store, **options) as node:
            await _send(node)
        later = Life(store.rows)
        async with open_bank(later, **options) as node:
            await trio.sleep(20)
            assert [each.is_parked for each in records(later)["a"].owed.values()] == [True]
            assert await EntityInspector(node).retry(Slow, "a") == 1
            await trio.sleep(20)
            assert await _look(node) == [1]
            assert "a" not in records(later)

    run_virtual(program)


def test_a_message_passes_a_parked_message_when_the_answer_about_it_is_stored() -> None:
    async def program() -> None:
        store, gate, parked = MemoryStore(), trio.Event(), trio.Event()
        failures = 0

        async def drive(_commit: int, writes: Sequence[Write]) -> None:
            """Let the receiver answer the question while a later message is being stored, and fail
            to store its answer.
            """
            nonlocal failures
            record = Record() if writes[0].record is None else Record.decode(writes[0].record)
            first = record.owed.get(1)
            if first is None or not first.is_parked or failures:
                return
            if first.may_have_arrived and 3 in record.owed:
                gate.set()
                await trio.sleep(1)
            elif first.may_have_arrived:
                node.entity(Slow, "b").send(WAIT)  # before the question
                parked.set()
            else:
                failures += 1
                await trio.sleep(1)
                raise EntityStoreError("a fault before the write")

        async with open_bank(store, **{**OPTIONS, "attempts": 6}, env={"gate": gate}) as node:
            sender = node.entity(Slow, "a")
            store.before_commit = drive
            for number in (POISON, 2):
                await sender.call(ask(Slow.tell, "b", number))
            await parked.wait()
            await trio.sleep(0.3)  # the question is asked
            await sender.call(ask(Slow.tell, "b", 3))
            await trio.sleep(100)
            assert failures == 1
            assert await _look(node) == [2, 3]
            await trio.sleep(100)
            assert len(await EntityInspector(node).parked()) == 1

    run_virtual(program)


def test_an_answer_from_before_a_retry_does_not_tell_of_the_later_attempts() -> None:
    async def program() -> None:
        store, gate, parked = MemoryStore(), trio.Event(), trio.Event()

        async def drive(_commit: int, writes: Sequence[Write]) -> None:
            """Let the receiver wait before the question, and retry while its effect is stored."""
            record = Record() if writes[0].record is None else Record.decode(writes[0].record)
            first = record.owed.get(1)
            if first is not None and first.is_parked and not parked.is_set():
                node.entity(Slow, "b").send(WAIT)
                parked.set()
            elif gate.is_set() and writes[0].address.key == "b" and len(record.seen) == 1:
                nursery.start_soon(EntityInspector(node).retry, Slow, "a")
                await trio.sleep(1)

        async with (
            open_bank(store, **OPTIONS, env={"gate": gate}) as node,
            trio.open_nursery() as nursery,
        ):
            store.before_commit = drive
            for number in (POISON, 2):
                await node.entity(Slow, "a").call(ask(Slow.tell, "b", number))
            await parked.wait()
            await trio.sleep(10)  # the question is asked
            await EntityInspector(node).retry(Slow, "a")
            await trio.sleep(10)  # the message is sent again, and parked
            gate.set()
            await trio.sleep(100)
            await EntityInspector(node).retry(Slow, "a")
            await trio.sleep(100)
            assert await _look(node) == [POISON, 2]
            assert "a" not in records(store)

    run_virtual(program)
