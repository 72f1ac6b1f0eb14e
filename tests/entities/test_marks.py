"""Marks of messages that have taken effect: no record keeps one for longer than it is needed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import trio

from ergo_py import ChildSpec, Node, ask, exposed
from ergo_py.entities import Entities, Entity, EntityInspector, EntityStoreError, MemoryStore
from ergo_py.entities.activations.activation import Activation
from ergo_py.entities.activations.outbox import Outbox
from ergo_py.entities.stores.store import Write
from ergo_py.supervision.specs import Backoff
from ergo_py.telemetry.figures import read_figures

from .bank import Account, Life, Pay, open_bank, records, run_virtual
from .test_keeper import CHAIN, Chain


@dataclass
class Nothing:
    """The state of an agent."""


class Agent(Entity[Nothing]):
    """Sends to entities of another class."""

    @exposed
    def pass_on(self, to: str, number: int) -> None:
        """Send a number."""
        self.send(self.entity(Chain, to), number)


async def _pay(node: Node, payers: int) -> None:
    for number in range(payers):
        payer = node.entity(Account, f"payer {number}")
        await payer.call(ask(Account.deposit, 1))
        await payer.call(Pay("shop", 1))


def _marks(store: MemoryStore) -> int:
    return sum(len(record.seen) for record in records(store).values())


def test_a_receiver_that_sleeps_keeps_no_marks_of_its_senders() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store, idle=5.0) as node:
            await _pay(node, 20)
            await trio.sleep(60)
            assert _marks(store) == 0
            assert (await node.entity(Account, "shop").call(ask(Account.look)))[0] == 20

    run_virtual(program)


def test_a_mark_that_an_ended_sender_left_goes_when_its_receiver_wakes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def program() -> None:
        store = Life()
        async with open_bank(store, **CHAIN) as node:
            with monkeypatch.context() as patch:
                # The sender ends before it can tell, and its row is gone.
                patch.setattr(Activation, "_forget", lambda *_args: None)
                await node.entity(Chain, "a").call(ask(Chain.leave, "b"))
                await trio.sleep(100)
            assert list(records(store)) == ["b"]
            assert _marks(store) == 1
        async with open_bank(Life(store.rows), **CHAIN) as node:
            assert await node.entity(Chain, "b").call(ask(Chain.look)) == [7]
            await trio.sleep(100)
            assert _marks(store) == 0

    run_virtual(program)


def test_a_receiver_that_wakes_confirms_the_messages_that_took_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def program() -> None:
        store = Life()
        options = {**CHAIN, "attempts": 1000}
        async with open_bank(store, **options) as node:
            with monkeypatch.context() as patch:
                patch.setattr(Outbox, "was_done", lambda *_args: None)
                await node.entity(Chain, "a").call(ask(Chain.send_all, "b", [1, 2]))
                await trio.sleep(10)
            (first, second) = records(store)["a"].owed.values()
            assert (first.is_parked, second.is_parked) == (False, False)
        async with open_bank(Life(store.rows), **options) as node:
            assert await node.entity(Chain, "b").call(ask(Chain.look)) == [1, 2]
            await trio.sleep(100)
            assert "a" not in records(store)
            assert _marks(store) == 0
            assert await node.entity(Chain, "b").call(ask(Chain.look)) == [1, 2]

    run_virtual(program)


def test_a_parked_message_keeps_no_mark_at_its_receiver() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store, **CHAIN, idle=5.0) as node:
            await node.entity(Chain, "b").call(ask(Chain.refuse, [2]))
            await node.entity(Chain, "a").call(ask(Chain.send_all, "b", [1, 2, 3]))
            await trio.sleep(100)
            assert len(await EntityInspector(node).parked()) == 1
            assert _marks(store) == 0

    run_virtual(program)


def test_a_message_reaches_an_entity_of_another_keeper() -> None:
    async def program() -> None:
        store = MemoryStore()
        async with open_bank(store, kinds=[Agent]) as node:
            chains = Entities.spec(MemoryStore(), [Chain], now=trio.current_time)
            await node.supervise([ChildSpec("chains", chains)], name="others")
            await node.entity(Agent, "agent").call(ask(Agent.pass_on, "a", 4))
            await trio.sleep(10)
            assert await node.entity(Chain, "a").call(ask(Chain.look)) == [4]
            assert not records(store)

    run_virtual(program)


def test_a_message_to_a_kind_that_the_program_no_longer_has_is_parked() -> None:
    async def program() -> None:
        store = Life()
        stopped: dict[str, Any] = {"kinds": [Agent], "backoff": Backoff(0.1, 1.0), "attempts": 3}

        async def fail(_commit: int, writes: Sequence[Write]) -> None:
            if any(write.address.kind == "Chain" for write in writes):
                raise EntityStoreError("a planted fault")

        store.before_commit = fail
        async with open_bank(store, kinds=[Agent, Chain]) as node:
            await node.entity(Agent, "agent").call(ask(Agent.pass_on, "a", 4))
        async with open_bank(Life(store.rows), **stopped) as node:
            await trio.sleep(100)
            (parked,) = await EntityInspector(node).parked()
            assert (parked["to"], parked["attempts"]) == ("Chain/a", 3)
            assert not any(each.crashed for each in read_figures(node).behaviours.values())

    run_virtual(program)
