"""Steps elsewhere: an actor on another node as a stage, and entities as the end of a pipeline."""

from dataclasses import dataclass

from ergo_py import Actor, ChildSpec, Name
from ergo_py.entities import Entities, Entity, MemoryStore
from ergo_py.network import Memory
from ergo_py.pipelines import Pipeline, ToActor
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
