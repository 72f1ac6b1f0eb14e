"""Steps elsewhere: an actor on another node as a stage, and entities as the end of a pipeline."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import trio

from ergo_py import NO_REPLY, Actor, Backoff, ChildSpec, Name
from ergo_py.entities import Entities, Entity, MemoryStore
from ergo_py.entities.stores.store import Write
from ergo_py.errors import BadInputError
from ergo_py.network import Memory
from ergo_py.pipelines import Pipeline, Retry, ToActor
from tests.pipelines.broker import (
    QUICK,
    Broker,
    BrokerSource,
    Collect,
    in_virtual_time,
    running,
    until,
)
from tests.support import running_node


class Squares(Actor):
    def handle_call(self, request: int, caller: object) -> int:
        return request * request


class Orders(Actor):
    def __init__(self, seen: list[int]) -> None:
        self.seen = seen

    def handle_call(self, request: int, caller: object) -> None:
        self.seen.append(request)


class Parse(Actor):
    def handle_call(self, request: int, caller: object) -> tuple[int, str]:
        return request, self.pid.node


@in_virtual_time
async def test_a_stage_may_be_an_actor_on_another_node() -> None:
    broker, sink, network = Broker(1, 2, 3, key=lambda _: 1), Collect(), Memory()
    plan = Pipeline.spec(
        BrokerSource(broker), ToActor(Name("squares", "b@test")), sink, retry=QUICK
    )

    async with (
        running_node("a@test", network=network) as here,
        running_node("b@test", network=network) as there,
    ):
        await there.spawn(Squares, name="squares")
        await here.supervise([ChildSpec("jobs", plan)])
        await until(lambda: broker.is_done)

    assert sink.bodies == [1, 4, 9]
    assert broker.acknowledged == [1, 2, 3]


@in_virtual_time
async def test_items_of_a_source_on_another_node_wait_for_the_node_of_the_end() -> None:
    broker, network = Broker(1, 2, 3, key=lambda _: 1), Memory()
    plan = Pipeline.spec(
        BrokerSource(broker),
        ToActor(Name("orders", "shop@test")),
        retry=Retry(100, Backoff(1.0, 1.0)),
    )
    seen: list[int] = []

    async with running_node("broker@test", network=network, limit=1000.0) as there:
        await there.supervise([ChildSpec("jobs", plan)])
        await trio.sleep(10.0)
        before = list(broker.acknowledged)
        for more in ([4, 5], []):
            async with running_node("shop@test", network=network, limit=1000.0) as here:
                await here.spawn(Orders, seen, name="orders")
                await until(lambda: broker.is_done)
            broker.ready.extend((number, 0) for number in more)
            await trio.sleep(10.0)

    assert before == []
    assert seen == broker.acknowledged == [1, 2, 3, 4, 5]


@in_virtual_time
async def test_the_actors_of_several_nodes_share_the_items_and_keys_keep_their_actor() -> None:
    broker, sink, network = Broker(*range(40), key=lambda number: number % 8), Collect(), Memory()
    cores = ["core-1@test", "core-2@test"]
    plan = Pipeline.spec(
        BrokerSource(broker), ToActor([Name("parse", core) for core in cores]), sink, retry=QUICK
    )

    async with AsyncExitStack() as stack:
        for core in cores:
            node = await stack.enter_async_context(running_node(core, network=network))
            await node.spawn(Parse, name="parse")
        here = await stack.enter_async_context(running_node("a@test", network=network))
        await here.supervise([ChildSpec("jobs", plan)])
        await until(lambda: broker.is_done)

    used = {key: {core for number, core in sink.bodies if number % 8 == key} for key in range(8)}
    assert sorted(number for number, _ in sink.bodies) == list(range(40))
    assert {len(nodes) for nodes in used.values()} == {1}
    assert set().union(*used.values()) == set(cores)
    for key in range(8):
        numbers = [number for number, _ in sink.bodies if number % 8 == key]
        assert numbers == sorted(numbers)


class Loses(Actor):
    """Notes each number, and does not answer to the first 2."""

    def __init__(self, seen: list[int]) -> None:
        self.seen = seen

    def handle_call(self, request: int, caller: object) -> object:
        self.seen.append(request)
        return NO_REPLY if self.seen == [1, 2] else request


@pytest.mark.parametrize("lost", ["actor", "connection", "pipeline"])
@in_virtual_time
async def test_a_loss_in_the_middle_of_an_item_repeats_this_item_and_loses_none(lost: str) -> None:
    """The source is on a node, the actor that handles its items on another."""
    broker, network, seen = Broker(1, 2, 3, key=lambda _: 1), Memory(), list[int]()
    end = ToActor(Name("orders", "b@test"), timeout=500.0)
    plan = Pipeline.spec(BrokerSource(broker), end, retry=Retry(100, Backoff(1.0, 1.0)))

    async with (
        running_node("a@test", network=network, limit=1000.0) as here,
        running_node("b@test", network=network, limit=1000.0) as there,
    ):
        await there.supervise([ChildSpec("orders", Loses, seen)])
        await here.supervise([ChildSpec("jobs", plan)])
        await until(lambda: seen == [1, 2])
        before = list(broker.acknowledged)
        match lost:
            case "actor":
                there.kill("orders")
            case "pipeline":
                here.kill("jobs")
            case _:
                network.cut("a@test", "b@test")
                await trio.sleep(30.0)
                network.heal()
        await until(lambda: broker.is_done)

    assert before == [1]
    assert seen == [1, 2, 2, 3]
    assert broker.acknowledged == [1, 2, 3]


@pytest.mark.parametrize("address", [[], [Squares], 5, ["a", 5]], ids=str)
def test_an_address_is_that_of_an_actor_or_a_list_of_them(address: Any) -> None:
    with pytest.raises(BadInputError, match=r"^address"):
        ToActor(address)


@dataclass
class Balance:
    amount: int = 0


class Account(Entity[Balance]):
    def handle_call(self, request: int, caller: object) -> int:
        self.state.amount += request
        return self.state.amount


@in_virtual_time
async def test_the_end_may_be_the_entity_with_the_key_of_the_item() -> None:
    broker = Broker(1, 2, 3, 4, key=lambda number: "odd" if number % 2 else "even")

    async with running(broker, ToActor(Account).times(2)) as node:
        await node.supervise([ChildSpec("entities", Entities, MemoryStore(), [Account])])
        await until(lambda: broker.is_done)
        totals = [await node.entity(Account, key).call(0) for key in ("odd", "even")]

    assert totals == [4, 6]
    assert sorted(broker.acknowledged) == [1, 2, 3, 4]


@in_virtual_time
async def test_the_key_of_an_entity_is_a_text_and_an_item_without_a_key_fails() -> None:
    """Redis and Kafka give keys as bytes."""
    keys = {1: b"cash", 2: "cash", 4: 7, 8: None}
    broker = Broker(*keys, key=lambda number: keys[number])

    async with running(broker, ToActor(Account), retry=Retry(0, Backoff(1.0, 1.0))) as node:
        await node.supervise([ChildSpec("entities", Entities, MemoryStore(), [Account])])
        await until(lambda: len(broker.failed) + len(broker.acknowledged) == 4)
        totals = [await node.entity(Account, key).call(0) for key in ("cash", "7")]

    assert totals == [3, 4]
    assert sorted(broker.acknowledged) == [1, 2, 4]
    [(failed, error)] = broker.failed
    assert failed == 8
    assert "a key, which names the entity of Account that is called" in str(error)


class HeldStore(MemoryStore):
    """Its first commit does not end."""

    def __init__(self) -> None:
        super().__init__()
        self.is_held = trio.Event()

    async def commit(self, writes: Sequence[Write]) -> None:
        if not self.is_held.is_set():
            self.is_held.set()
            await trio.sleep_forever()
        await super().commit(writes)


@in_virtual_time
async def test_a_kill_of_the_entities_in_the_middle_of_a_commit_loses_no_item() -> None:
    """The item whose state was not stored is not acknowledged, and comes again."""
    broker, store = Broker(1, 2, key=lambda _: "cash"), HeldStore()

    async with running(broker, ToActor(Account), retry=Retry(100, Backoff(1.0, 1.0))) as node:
        await node.supervise([ChildSpec("entities", Entities, store, [Account])])
        await store.is_held.wait()
        before = list(broker.acknowledged)
        node.kill("entities")
        await until(lambda: broker.is_done)
        total = await node.entity(Account, "cash").call(0)

    assert before == []
    assert total == 3
    assert broker.acknowledged == [1, 2]
