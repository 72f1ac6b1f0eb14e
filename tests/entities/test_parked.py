"""Parked messages that are tried again: each takes effect once, also if it had arrived before."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from ergo_py import Node, ask, exposed
from ergo_py.entities import Entity, EntityInspector, EntityStoreError, MemoryStore
from ergo_py.entities.stores.store import Write
from ergo_py.supervision.specs import Backoff

from .bank import Life, open_bank, records, run_virtual


@dataclass
class Numbers:
    """Numbers in the order in which they took effect."""

    numbers: list[int] = field(default_factory=list)


class Slow(Entity[Numbers]):
    """Sends numbers, and takes a number when the gate of its node is open."""

    @exposed
    def tell(self, to: str, number: int) -> None:
        """Send a number."""
        self.send(self.entity(Slow, to), number)

    @exposed
    def look(self) -> list[int]:
        """The numbers."""
        return self.state.numbers

    async def handle_message(self, message: Any, sender: Any) -> None:
        """Wait for the gate, and keep a number."""
        gate = self.env["gate"]
        assert isinstance(gate, trio.Event)
        await gate.wait()
        self.state.numbers.append(message)


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
