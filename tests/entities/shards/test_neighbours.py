"""Entities of several nodes when too much waits for another node, when a program was stopped, when
they move, and when they have several keepers.
"""

from dataclasses import dataclass
from typing import Any

import pytest
import trio

from ergo_py import Actor, Backoff, Caller, ChildSpec, ErgoError, Name, Node, Reject, Request
from ergo_py.entities import Entities, Entity, MemoryStore
from ergo_py.entities.record import Origin, Record
from ergo_py.entities.stores.store import Row
from ergo_py.entity_handles import Address, Retry
from ergo_py.errors import NotAllowedError, TargetDownError
from ergo_py.network.errors import NodeBusyError
from ergo_py.testing import World, simulated
from ergo_py.testing.world.node import WorldNode
from ergo_py.testing.world.plan import Plan
from ergo_py.testing.world.simulation import Simulation
from tests.entities.support import host_of, keeping_of


@dataclass
class Count:
    """An amount."""

    value: int = 0


@dataclass(frozen=True)
class More:
    """A message that adds one."""


@dataclass(frozen=True)
class Give(Request[int]):
    """Send three messages to another."""

    to: str


@dataclass(frozen=True)
class Take(Request[int]):
    """Take an amount, if there is so much."""

    amount: int
    seconds: float = 0.0
    """How long the callback takes."""


class One(Entity[Count]):
    """An account."""

    async def handle_call(self, request: Any, caller: Caller) -> object:
        if isinstance(request, Give):
            for _ in range(3):
                self.send(self.entity(One, request.to), More())
            return 0
        await trio.sleep(request.seconds)
        if self.state.value < request.amount:
            raise Reject(ValueError("not enough"))
        self.state.value -= request.amount
        return self.state.value

    def handle_message(self, message: Any, sender: Any) -> None:
        self.state.value += 1


class Sink(Actor):
    """Forgets messages."""

    def handle_message(self, message: Any, sender: Any) -> None:
        pass


class Flood(Actor):
    """Sends to another node until too much waits."""

    def handle_call(self, request: Any, caller: Caller) -> int:
        for count in range(1_000_000):
            try:
                self.send(Name("sink", request), bytes(10_000))
            except NodeBusyError:
                return count
        raise AssertionError("nothing is too much")


TYPES = [More, Give, Take]
KEYS = [f"key {number}" for number in range(40)]


async def start_ones(
    world: World, store: MemoryStore, lease: float = 20.0, count: int = 2
) -> list[WorldNode]:
    """Nodes, when all have shards."""

    async def start(node: Node) -> None:
        ones = Entities.spec(
            store,
            [One],
            types=TYPES,
            shards=6,
            lease=lease,
            idle=1.0,
            attempts=3,
            backoff=Backoff(0.1, 1.0),
        )
        await node.supervise([ChildSpec("ones", ones)], intensity=1000)
        await node.spawn(Sink, name="sink")
        await node.spawn(Flood, name="flood")

    nodes = await world.start(count, start, types=TYPES, network={"backlog": 200_000})
    await trio.sleep(20.0)
    return nodes


def keys_of(node: WorldNode) -> list[str]:
    return [key for key in KEYS if host_of(node.node, One).has(One, key)]


async def call(node: WorldNode, key: str, request: Request[int], **options: Any) -> int:
    return await node.run(lambda each: each.entity(One, key).call(request, timeout=30, **options))


async def flood(world: World, a: WorldNode, b: WorldNode) -> None:
    """Cut the link, and let as much wait for b as may wait."""
    world.network.cut(a.name, b.name)
    assert await a.run(lambda node: node.call("flood", b.name)) > 0


@simulated(seeds=1)
async def test_a_keeper_goes_on_if_no_more_may_wait_for_another_node(world: World) -> None:
    store = MemoryStore()
    a, b = await start_ones(world, store)
    record = Record()
    record.state = b"\x81\xa5value\x05"
    record.see(Origin(One.kind, keys_of(b)[0], 7), 3)
    receiver = keys_of(a)[0]
    await call(a, receiver, Take(0))
    await trio.sleep(3.0)
    store.rows[Address(One.kind, receiver)] = Row(1, record.encode() or b""), None
    keeper = a.node.whereis("ones")
    await flood(world, a, b)

    assert await call(a, receiver, Take(0)) == 5  # it asks the sender of its mark
    assert a.node.whereis("ones") == keeper


@simulated(seeds=1)
async def test_the_keeper_of_the_map_goes_on_if_no_more_may_wait_for_another_node(
    world: World,
) -> None:
    store = MemoryStore()
    nodes = await start_ones(world, store, lease=60.0)
    [at] = [node for node in nodes if node.node.whereis("ones.map") is not None]
    [other] = [node for node in nodes if node is not at]
    keeper = at.node.whereis("ones.map")
    await flood(world, at, other)
    [third] = await start_ones(world, store, lease=60.0, count=1)

    # The keeper has told all of its new map, as far as it can.
    assert at.node.whereis("ones.map") == keeper
    assert keys_of(third)


@simulated(seeds=1)
async def test_an_entity_that_owes_messages_goes_on_if_no_more_may_wait(world: World) -> None:
    a, b = await start_ones(world, MemoryStore())
    giver, receiver = keys_of(a)[0], keys_of(b)[0]
    await flood(world, a, b)
    await call(a, giver, Give(receiver))
    for _ in range(20):
        await trio.sleep(0.1)
        assert await call(a, giver, Take(0, 0.3)) == 0
    world.network.heal()
    await trio.sleep(30.0)
    await call(a, giver, Retry())  # those that were parked meanwhile
    await trio.sleep(30.0)

    assert await call(b, receiver, Take(0)) == 3


async def refuse_late(world: World) -> None:
    a, b = await start_ones(world, MemoryStore(), lease=4.0)
    key, answers = keys_of(b)[0], dict[str, object]()
    world.faults()

    async def call_b(name: str, request: Take, **options: Any) -> None:
        try:
            answers[name] = await call(b, key, request, **options)
        except Exception as error:
            answers[name] = type(error)

    async with trio.open_nursery() as nursery:
        await trio.sleep(1.5)
        nursery.start_soon(call_b, "slow", Take(0, 1.0))
        await trio.sleep(0.1)
        nursery.start_soon(lambda: call_b("again", Take(5), once="x"))
        await trio.sleep(1.0)
        assert world.is_paused(b.name)
        for request, id in ((Take(-10), "d"), (Take(5), "x")):
            while True:
                try:
                    answers[id] = await call(a, key, request, once=id)
                    break
                except ErgoError:
                    await trio.sleep(0.3)

    assert (answers["d"], answers["x"]) == (10, 5)
    assert answers["again"] in (5, TargetDownError)  # and not refused: it was done


def test_a_stopped_program_refuses_no_command_that_was_done_elsewhere() -> None:
    Simulation(refuse_late, 1).run_plan(Plan.read("seed=1; 2 pause b@world 12"))


@simulated(seeds=1)
async def test_a_node_forgets_the_entities_that_have_moved_away(world: World) -> None:
    a, b = await start_ones(world, MemoryStore())
    giver, receiver = keys_of(a)[0], keys_of(b)[0]
    world.network.cut(a.name, b.name)
    await call(a, giver, Give(receiver))
    await trio.sleep(10.0)
    assert keeping_of(a.node, One).asleep.parked
    world.network.heal()
    await trio.sleep(10.0)

    assert not await a.run(lambda node: node.drain(timeout=60.0))
    assert len(keeping_of(a.node, One).asleep) == 0


class Other(Entity[Count]):
    """An entity of another keeper."""

    def handle_call(self, request: Any, caller: Caller) -> int:
        try:
            self.send(self.entity(One, "x"), More())
        except NotAllowedError as error:
            raise Reject(error) from None
        return 0


@simulated(seeds=1)
async def test_a_message_between_keepers_with_shards_is_refused(world: World) -> None:
    """It would arrive for some keys only, and perhaps twice."""

    async def start(node: Node) -> None:
        others = Entities.spec(MemoryStore(), [Other], types=TYPES)
        ones = Entities.spec(MemoryStore(), [One], types=TYPES, shards=4, lease=4.0)
        await node.supervise([ChildSpec("others", others), ChildSpec("ones", ones)])

    [node] = await world.start(1, start, types=TYPES)
    with pytest.raises(NotAllowedError, match=r"give all classes to one `Entities\.spec"):
        await node.run(lambda each: each.entity(Other, "x").call("go"))
