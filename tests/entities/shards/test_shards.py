"""Entities on three nodes that share a store."""

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import trio

from ergo_py import (
    PID,
    Actor,
    Caller,
    ChildSpec,
    ErgoError,
    InitError,
    LogRecord,
    Name,
    Node,
    Normal,
    Reject,
    Request,
    Shutdown,
    TargetDownError,
    Threads,
    ask,
    exposed,
    open_node,
)
from ergo_py._core.vocabulary.errors import ServiceBusyError
from ergo_py.cluster import Cluster
from ergo_py.cluster.lease import LeaseKeeper, LeaseTerms
from ergo_py.cluster.node_network import network_of
from ergo_py.entities import Entities, Entity, EntityStoreError, FencedError, MemoryStore
from ergo_py.entities.activations.deliveries import Done
from ergo_py.entities.errors import StateTypeError
from ergo_py.entities.record import Origin
from ergo_py.entities.shards.host import Host, PassedCaller
from ergo_py.entities.shards.map_keeper import MapKeeper, host_lease, map_address
from ergo_py.entities.shards.shard_map import Place, ShardMap
from ergo_py.entities.shards.wire import ENTITY
from ergo_py.entities.stores.store import Row, Write
from ergo_py.entity_handles import Address, entities_of, inspections
from ergo_py.methods import cast
from ergo_py.network import RemoteError
from ergo_py.network.messages.message_types import MessageTypes
from ergo_py.supervision.handle import SupervisorHandle
from ergo_py.testing import World, simulated
from ergo_py.testing.world.node import WorldNode
from tests.dispatched import Doer
from tests.entities.support import Sharing, host_of, keeping_of
from tests.support import Passes, kernel_of, process_of

SHARDS = 6
LEASE = 4.0
KEYS = [f"key {number}" for number in range(12)]


@dataclass
class Count:
    """The state of a counter."""

    value: int = 0


@dataclass(frozen=True)
class Add(Request[int]):
    """Count, perhaps after a while."""

    amount: int
    seconds: float = 0.0


@dataclass(frozen=True)
class Give(Request[int]):
    """Pass a part on to another counter."""

    to: str


@dataclass(frozen=True)
class More:
    """A message that counts."""

    amount: int


class Counting(Entity[Count]):
    """A counter."""

    async def handle_call(self, request: Any, caller: Caller) -> object:
        """Count."""
        match request:
            case Add(amount, seconds):
                if seconds:
                    await trio.sleep(seconds)
                self.state.value += amount
            case Give(to):
                self.state.value -= 1
                self.send(self.entity(Counting, to), More(1))
        return self.state.value

    @exposed
    def add(self, by: int) -> int:
        """Count."""
        self.state.value += by
        return self.state.value

    def handle_message(self, message: Any, sender: Any) -> None:
        """Count."""
        self.state.value += message.amount


class Broken(Entity[Count]):
    """An entity that cannot start, and takes a while to tell."""

    async def init(self) -> None:
        await trio.sleep(1)
        raise ValueError("broken")


class FirstCaller(Caller):
    """A call without a waiting task."""

    def awaken(self) -> None:
        """Keep the answer."""


TYPES = [Add, Give, More]


async def start_nodes(
    world: World, store: MemoryStore, number: int = 3, **options: Any
) -> list[WorldNode]:
    """Start nodes that share a store."""

    async def start(node: Node) -> None:
        given: dict[str, Any] = {"shards": SHARDS, "lease": LEASE, **options}
        spec = Entities.spec(store, [Counting, Broken], types=TYPES, **given)
        await node.supervise([ChildSpec("entities", spec)], intensity=1000)

    return await world.start(number, start, types=TYPES)


async def add(node: WorldNode, key: str, amount: int = 1, **options: Any) -> int:
    """Count, from a node."""
    seconds = options.pop("seconds", 0.0)
    given = {"timeout": 10.0, **options}
    answer: int = await node.run(
        lambda each: each.entity(Counting, key).call(Add(amount, seconds), **given)
    )
    return answer


async def add_again(node: WorldNode, key: str, amount: int, **options: Any) -> int:
    """Count, and repeat the command until an answer comes."""
    with trio.fail_after(1000):
        while True:
            try:
                return await add(node, key, amount, **options)
            except ErgoError:
                await trio.sleep(0.1)


async def call(node: Node, key: str, request: Any) -> Any:
    """Call a counter."""
    return await node.entity(Counting, key).call(request)


async def wait_balanced(nodes: list[WorldNode]) -> None:
    """Wait until the nodes have all shards, and nearly the same number each."""
    with trio.fail_after(60):
        fair = [SHARDS // len(nodes)] * len(nodes)
        while [len(host_of(each.node, Counting).held()) for each in nodes] != fair:  # noqa: ASYNC110
            await trio.sleep(0.1)


@simulated(seeds=1)
async def test_each_node_reaches_the_entities_of_all_nodes(world: World) -> None:
    nodes = await start_nodes(world, MemoryStore())
    await wait_balanced(nodes)

    for number, node in enumerate(nodes):
        for key in KEYS:
            assert await add(node, key, once=f"{key} {number}") == number + 1
            assert await add(node, key, once=f"{key} {number}") == number + 1
    for key, other in zip(KEYS, KEYS[1:] + KEYS[:1], strict=True):
        await nodes[0].run(partial(call, key=key, request=Give(other)))
        nodes[1].node.entity(Counting, key).send(More(10))
    await trio.sleep(3)

    assert [await add(nodes[2], key, 0, fresh=True) for key in KEYS] == [13] * len(KEYS)
    assert sum(len(keeping_of(each.node, Counting).active) for each in nodes) == len(KEYS)
    for node in nodes:
        assert await node.run(partial(call, key="key 0", request=ask(Counting.add, 1))) >= 14
        node.node.entity(Counting, "key 0").send(cast(Counting.add, by=100))
    await trio.sleep(1)
    assert await add(nodes[0], "key 0", 0) == 13 + 3 + 300


@simulated(seeds=1)
async def test_errors_of_entities_arrive_in_their_class_on_all_nodes(world: World) -> None:
    nodes = await start_nodes(world, MemoryStore())
    await wait_balanced(nodes)
    half: Any = 0.5

    for node in nodes:
        with pytest.raises(StateTypeError, match=r"value: got 0\.5"):
            await node.run(partial(call, key="key 0", request=ask(Counting.add, half)))


@simulated(seeds=1)
async def test_a_callback_in_a_thread_calls_the_entities_of_all_nodes(world: World) -> None:
    nodes = await start_nodes(world, MemoryStore())
    await wait_balanced(nodes)
    doer = await nodes[0].run(lambda node: node.spawn(Doer, dispatcher=Threads()))

    def add_to_all(me: Doer) -> list[int]:
        return [me.entity(Counting, key).call_from_thread(Add(1)) for key in KEYS]

    assert await nodes[0].run(lambda node: node.call(doer, add_to_all)) == [1] * len(KEYS)


@simulated(seeds=3)
async def test_a_drain_of_the_node_with_the_map_does_not_wait_for_the_next_keeper(
    world: World,
) -> None:
    nodes = await start_nodes(world, MemoryStore())
    await wait_balanced(nodes)
    await trio.sleep(3)  # a new keeper would wait for hosts that it has not heard
    keeper = await nodes[1].run(lambda each: Cluster(each).whereis("entities.map"))
    (draining,) = [each for each in nodes if keeper is not None and each.name == keeper.node]
    moments: list[float] = []
    is_over = trio.Event()

    async def work(key: str) -> None:
        while not is_over.is_set():
            await add(draining, key, seconds=0.05)  # a move waits for it
            moments.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        for key in KEYS:
            nursery.start_soon(work, key)
        await trio.sleep(0.1)
        begin = trio.current_time()
        assert await draining.run(lambda each: each.drain(timeout=20)) == []
        is_over.set()

    # Simulated seconds: a callback before the move, and a callback behind it.
    assert max(moments) - begin < 0.2


@simulated(seeds=1)
async def test_a_callback_that_takes_too_long_does_not_hold_a_move_up(world: World) -> None:
    nodes = await start_nodes(world, MemoryStore())
    await wait_balanced(nodes)
    key = next(each for each in KEYS if host_of(nodes[0].node, Counting).has(Counting, each))
    errors: list[Exception] = []

    async def wait_long() -> None:
        try:
            await add(nodes[1], key, seconds=1000.0, timeout=None)
        except TargetDownError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_long)
        await trio.sleep(0.1)
        assert await nodes[0].run(lambda each: each.drain(timeout=20)) == []

    assert "takes too long" in str(errors[0])
    assert await add(nodes[1], key) == 1


@simulated(seeds=1)
async def test_an_entity_that_cannot_start_does_not_hold_a_move_up(world: World) -> None:
    nodes = await start_nodes(world, MemoryStore())
    await wait_balanced(nodes)
    key = next(each for each in KEYS if host_of(nodes[0].node, Broken).has(Broken, each))
    errors: list[Exception] = []

    async def start() -> None:
        try:
            await nodes[0].run(lambda node: node.entity(Broken, key).call("start"))
        except Exception as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start)
        await trio.sleep(0.1)
        assert await nodes[0].run(lambda each: each.drain(timeout=20)) == []

    assert "broken" in str(errors[0])


@simulated(seeds=1)
async def test_a_node_that_drains_gives_its_shards_to_a_node_that_has_just_joined(
    world: World,
) -> None:
    store = MemoryStore()
    [first] = await start_nodes(world, store, 1)
    await wait_balanced([first])
    await trio.sleep(5)  # the keeper of the map, on the first node, has said that it is alone
    [second] = await start_nodes(world, store, 1)

    assert await first.run(lambda each: each.drain(timeout=20)) == []
    assert len(host_of(second.node, Counting).held()) == SHARDS


NEVER = 2**62
"""No map has this version, and no shard this token."""


def messages_of_no_host(key: str) -> list[object]:
    """Messages to a host that are hostile, or of a program with other entities."""
    here = (Counting.kind, key)
    nobody, message = [Counting.kind, "nobody", 1], MessageTypes(TYPES).encode(More(100))
    deliveries: list[list[object]] = [[nobody, 1, 0, token, message] for token in range(9)]
    contents = [("Deliver", delivery[2:]) for delivery in deliveries]
    contents.append(("Inquire", [["Counting", "x"], ""]))
    return [
        *(5, None, (), (ENTITY,), (ENTITY, "map"), (ENTITY, "map", 5), (ENTITY, "release", [[0]])),
        (ENTITY, "map", [NEVER, NEVER, [5]]),
        (ENTITY, "map", [NEVER, NEVER, [None] * SHARDS]),
        (ENTITY, "map", [NEVER, NEVER, [["nowhere@world", 1, 1, NEVER]] * SHARDS]),
        *((ENTITY, "release", [[shard, token] for token in range(9)]) for shard in range(SHARDS)),
        (ENTITY, "leave"),
        (ENTITY, "send", 1, "Later", "key", None, ["", More(1)]),
        (ENTITY, "send", 1, *here, None, ["else", 1]),
        (ENTITY, "send", 1, *here, None, ["cast", "add", [], {1: 2}]),
        (ENTITY, "send", 1, Counting.kind, "\0", None, ["", More(1)]),
        (ENTITY, "send", NEVER, *here, None, ["", More(10)]),
        *(
            (ENTITY, "tell", shard, 1, *here, "Deliver", delivery)
            for shard in (-1, SHARDS)
            for delivery in deliveries
        ),
        *((ENTITY, "tell", shard, NEVER, *here, "Else", []) for shard in range(-1, SHARDS + 1)),
        (ENTITY, "tell", 0, 1, "Later", "key", "Done", [nobody, 1]),
        *(
            (ENTITY, "tell", shard, NEVER, *here, name, [origin, number, *parts])
            for shard in range(SHARDS)
            for origin, number in ORIGINS
            for name, parts in contents
            if name == "Deliver" or number == 1
        ),
        *(
            (ENTITY, "tell", shard, NEVER, *here, "Inquire", [nobody, 1, receiver, ""])
            for shard in range(SHARDS)
            for receiver in (["Counting", "a\0"], ["", "a"], ["Counting", "x" * 1001])
        ),
    ]


ORIGINS: list[tuple[list[object], object]] = [
    *(([Counting.kind, key, 1], 1) for key in ("", "\0", "x" * 1001)),
    *(([kind, "nobody", 1], 1) for kind in ("", "\0", "x" * 1001)),
    ([Counting.kind, "nobody", True], 1),
    ([Counting.kind, "nobody", 1], True),
]
"""Senders and numbers that no record may have."""


async def drain_all(nodes: list[WorldNode]) -> None:
    """Drain nodes at once."""
    unfinished: dict[str, list[str]] = {}

    async def drain(node: WorldNode) -> None:
        unfinished[node.name] = await node.run(lambda each: each.drain(timeout=60.0))

    async with trio.open_nursery() as nursery:
        for each in nodes:
            nursery.start_soon(drain, each)
    assert unfinished == {each.name: [] for each in nodes}


@simulated(seeds=1)
async def test_two_nodes_that_drain_at_once_give_all_shards_to_the_third(world: World) -> None:
    nodes = await start_nodes(world, MemoryStore(), 3)
    await wait_balanced(nodes)
    assert [await add(nodes[0], key) for key in KEYS] == [1] * len(KEYS)

    await drain_all(nodes[:2])

    assert [len(host_of(each.node, Counting).held()) for each in nodes] == [0, 0, SHARDS]
    assert [await add(nodes[0], key) for key in KEYS] == [2] * len(KEYS)


@simulated(seeds=1)
async def test_the_last_nodes_that_drain_keep_their_shards(world: World) -> None:
    """No other host can take them."""
    nodes = await start_nodes(world, MemoryStore(), 3)
    await wait_balanced(nodes)
    assert [await add(nodes[0], key) for key in KEYS] == [1] * len(KEYS)

    await drain_all(nodes)

    held = [shard for each in nodes for shard in host_of(each.node, Counting).held()]
    assert sorted(held) == list(range(SHARDS))
    assert [await add(nodes[0], key) for key in KEYS] == [2] * len(KEYS)


@simulated(seeds=1)
async def test_a_drain_waits_for_a_store_that_is_away(world: World) -> None:
    store = MemoryStore()
    nodes = await start_nodes(world, store, 2)
    await wait_balanced(nodes)
    assert [await add(nodes[0], key) for key in KEYS] == [1] * len(KEYS)

    async def fail(*_given: object) -> None:
        raise EntityStoreError("away")

    store.before_commit = store.before_load = fail
    async with trio.open_nursery() as nursery:
        nursery.start_soon(drain_all, nodes[:1])
        await trio.sleep(20)
        moved = host_of(nodes[1].node, Counting).held()
        store.before_commit = store.before_load = None

    assert len(moved) < SHARDS
    assert len(host_of(nodes[1].node, Counting).held()) == SHARDS
    assert [await add(nodes[0], key, timeout=30) for key in KEYS] == [2] * len(KEYS)


@simulated(seeds=1)
async def test_a_message_that_no_host_sends_costs_itself_only(world: World) -> None:
    nodes = await start_nodes(world, MemoryStore(), 2)
    await wait_balanced(nodes)
    one, other = sorted(nodes, key=lambda each: not host_of(each.node, Counting).has_map)
    shards = [host_of(each.node, Counting).held() for each in nodes]
    keeper = one.node.whereis("entities")

    for key in KEYS:
        for message in messages_of_no_host(key):
            other.node.send(Name("entities", one.name), message)
    await trio.sleep(5)

    assert one.node.whereis("entities") == keeper
    assert [host_of(each.node, Counting).held() for each in nodes] == shards
    for key, neighbour in zip(KEYS, KEYS[1:] + KEYS[:1], strict=True):
        await other.run(partial(call, key=key, request=Give(neighbour)))
    await trio.sleep(5)
    # A message of a newer map, which there is not, waits for an answer about that map only.
    assert [await add(other, key) for key in KEYS] == [11] * len(KEYS)
    assert [await add(one, key) for key in KEYS] == [12] * len(KEYS)


@simulated(seeds=1)
async def test_a_late_copy_of_a_message_has_no_effect_when_its_shard_has_been_elsewhere(
    world: World,
) -> None:
    """A cut link holds a copy up. Meanwhile the shard of its receiver moves, another copy takes
    effect there, both entities forget it, and the shard comes back, under another token.
    """
    nodes = await start_nodes(world, MemoryStore(), 2)
    await wait_balanced(nodes)
    key, message = KEYS[0], MessageTypes(TYPES).encode(More(100))
    shard = host_of(nodes[0].node, Counting).shard(Counting, key)
    nodes.sort(key=lambda each: shard not in host_of(each.node, Counting).held())
    held, theirs = (host_of(each.node, Counting).held() for each in nodes)

    def send(token: int) -> None:
        delivery = [[Counting.kind, "nobody", 1], 1, 0, token, message]
        first = next(iter(theirs.items()))
        told = (ENTITY, "tell", *first, Counting.kind, key, "Deliver", delivery)
        nodes[1].node.send(Name("entities", nodes[0].name), told)

    for token in (0, held[shard] - 1, held[shard] + 1):
        send(token)
    await trio.sleep(1)
    assert await add(nodes[0], key, 0) == 0
    for _ in range(2):
        send(held[shard])
    await trio.sleep(1)
    assert await add(nodes[0], key, 0) == 100


@simulated(seeds=1)
async def test_a_late_answer_to_a_deleted_entity_takes_no_message_of_the_next(world: World) -> None:
    """The next entity of the key counts its messages from the beginning."""
    [one] = await start_nodes(world, MemoryStore(), 1)
    await wait_balanced([one])
    giver, receiver = KEYS[:2]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(add, one, receiver, 0, seconds=3.0))
        await trio.sleep(1)
        await one.run(partial(call, key=giver, request=Give(receiver)))
        record = keeping_of(one.node, Counting).active[str(Address(Counting.kind, giver))].record
        assert [*record.owed] == [1]
        for birth in (record.birth - 1, record.birth):
            assert [*record.owed] == [1]
            answer = Done(Origin(Counting.kind, giver, birth), 1)
            one.node.entity(Counting, giver).send(answer)
            await trio.sleep(0.5)
    assert not record.owed


@simulated(seeds=1)
async def test_waiting_messages_are_looked_at_once_for_all_shards_in_doubt(
    world: World,
) -> None:
    nodes = await start_nodes(world, MemoryStore(), 1)
    await wait_balanced(nodes)
    node, waiting = nodes[0].node, 20 * SHARDS
    passes, looks, shard_of = Passes(), Counter[int](), Host.shard_of

    def counted(host: Host, address: Address) -> int:
        looks[passes.number] += 1
        return shard_of(host, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Host, "shard_of", counted)
        trio.lowlevel.add_instrument(passes)
        for number in range(waiting):
            address = (Counting.kind, str(number))
            node.send("entities", (ENTITY, "send", NEVER, *address, None, ["", More(1)]))
        await trio.sleep(5)
        trio.lowlevel.remove_instrument(passes)

    assert await add(nodes[0], "7") == 2
    assert waiting <= max(looks.values()) <= 4 * waiting


@simulated(seeds=1)
async def test_waiting_messages_are_looked_at_once_for_all_shards_that_a_message_takes(
    world: World,
) -> None:
    [one] = await start_nodes(world, MemoryStore(), 1)
    await wait_balanced([one])
    host = host_of(one.node, Counting)
    awake = [key for key in map(str, range(300)) if host.shard(Counting, key) == 0]
    for key in awake:
        await add(one, key)
    held, (passes, looks), shard_of = host.held(), (Passes(), Counter[int]()), Host.shard_of

    def counted(host: Host, address: Address) -> int:
        looks[passes.number] += 1
        return shard_of(host, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Host, "shard_of", counted)
        trio.lowlevel.add_instrument(passes)
        taken = [each for each in held.items() if each[0] != 0]
        one.node.send("entities", (ENTITY, "release", taken))
        while len(host.held()) > 1:
            await trio.lowlevel.checkpoint()
        trio.lowlevel.remove_instrument(passes)

    assert host.held() == {0: held[0]}
    assert len(awake) == max(looks.values())
    await wait_balanced([one])


CALLS_OF_NO_HOST: list[tuple[str, list[object], str]] = [
    ("Later", [None, "call", ["", Add(1)]], "keeps no Later entities"),
    ("Counting", [None, "else", ["", Add(1)]], "no request to an entity"),
    ("Counting", [None, "call", ["else"]], "no message to an entity"),
    ("Counting", [None, "call", ["ask", "add", [], {1: 2}]], "no message to an entity"),
    ("Counting", ["", "call", ["", Add(1)]], "the id of the command"),
    ("Counting", ["a\0", "call", ["", Add(1)]], "the id of the command"),
    ("Counting", ["x" * 201, "call", ["", Add(1)]], "the id of the command"),
]


@simulated(seeds=1)
async def test_a_call_that_no_host_makes_is_refused(world: World) -> None:
    nodes = one, other = await start_nodes(world, MemoryStore(), 2)
    await wait_balanced(nodes)
    keeper = one.node.whereis("entities")

    for kind, parts, why in CALLS_OF_NO_HOST:
        with pytest.raises((RemoteError, ValueError), match=why):
            await other.call(Name("entities", one.name), (ENTITY, "call", 1, kind, "key", parts))

    assert one.node.whereis("entities") == keeper


class Speaker(Actor):
    """Speaks to the keeper of the map as a host does, and keeps its orders."""

    def __init__(self) -> None:
        self.orders: list[object] = []

    async def handle_call(self, request: Any, caller: Caller) -> object:
        """Say hello."""
        keeper, version, is_leaving, *more = request
        return await self.call(keeper, (ENTITY, "hello", version, [], is_leaving, SHARDS, *more))

    def handle_message(self, message: Any, sender: object) -> None:
        """Keep an order."""
        self.orders.append(message[1])


@simulated(seeds=1)
async def test_a_new_keeper_of_the_map_lets_no_host_leave_before_it_has_heard_the_others(
    world: World,
) -> None:
    async def start(_: Node) -> None:
        pass

    here, there = await world.start(2, start)
    leaving = await here.node.spawn(Speaker)
    late = await there.node.spawn(Speaker)
    await Cluster(there.node).register(host_lease("entities", there.name), late)
    store = MemoryStore()
    present = ShardMap(7, SHARDS, tuple(Place(late, 1 + each) for each in range(SHARDS)))
    row = Write(map_address("entities"), 0, 1, 0, None, present.encode(), -1)
    await here.node.spawn(Sharing, store)
    await store.commit([row])
    terms = LeaseTerms(LEASE, LEASE / 4)
    keeper = await here.node.spawn(MapKeeper, store, "entities", SHARDS, terms)
    speaker: Any = process_of(here.node, leaving).behaviour

    for version in (6, 6, 7):  # the late host still sends to the host that leaves, by its map
        assert speaker.orders == []
        await here.node.call(leaving, (keeper, 7, True, "a part of a newer program"))
        await trio.sleep(2)
        await there.node.call(late, (keeper, version, False))
    await here.node.call(leaving, (keeper, 7, True))
    await trio.sleep(2)

    assert {*speaker.orders} == {"leave"}


STRANGE: list[object] = [
    *(5, None, (), (None,), (None, "yes"), (5, True), ([9, 9, [5]], True)),
    *(ValueError("another hello"), LookupError(), TargetDownError("it", "hello", Normal())),
]
"""What no keeper of the map answers, or by what it refuses."""


class StrangeKeeper(Actor):
    """Has the name of the keeper of the map, and is another program."""

    def __init__(self) -> None:
        self.answers = [*STRANGE]

    def handle_call(self, request: Any, caller: Caller) -> object:
        """Answer a hello: at last with a map of no hosts, and a part that older hosts lack."""
        if not self.answers:
            return ShardMap(7, 0, (None,) * SHARDS).to_wire(), True, "more"
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise Reject(answer)
        return answer


@simulated(seeds=1)
async def test_a_keeper_of_the_map_of_another_program_does_not_end_a_host(world: World) -> None:
    async def start(_: Node) -> None:
        pass

    [there] = await world.start(1, start)
    strange = await there.node.spawn(StrangeKeeper)
    await Cluster(there.node).register("entities.map", strange)
    [here] = await start_nodes(world, MemoryStore(), 1)
    keeper = here.node.whereis("entities")

    await trio.sleep(2 * len(STRANGE))

    (facts,) = [await each.facts() for each in inspections(entities_of(here.node))]
    assert facts["map"]["version"] == 7
    assert here.node.whereis("entities") == keeper
    there.node.kill(strange)
    assert await add(here, "it", timeout=60) == 1


@simulated(seeds=1)
async def test_the_map_is_among_the_facts_about_entities(world: World) -> None:
    nodes = await start_nodes(world, MemoryStore())
    await wait_balanced(nodes)

    (facts,) = [await each.facts() for each in inspections(entities_of(nodes[0].node))]

    assert facts["map"]["shards"] == SHARDS
    assert facts["map"]["held"] == facts["map"]["nodes"]["a@world"]["shards"]
    shards = [each for node in facts["map"]["nodes"].values() for each in node["shards"]]
    assert sorted(shards) == list(range(SHARDS))
    assert (facts["map"]["moving"], facts["map"]["unassigned"]) == ([], [])


@simulated(seeds=3)
async def test_the_entities_of_a_lost_node_are_awake_elsewhere_within_the_lease(
    world: World,
) -> None:
    nodes = await start_nodes(world, MemoryStore())
    await wait_balanced(nodes)
    for key in KEYS:
        await add(nodes[0], key)
    lost, *others = sorted(nodes, key=lambda each: host_of(each.node, Counting).has_map)
    keys = [key for key in KEYS if host_of(lost.node, Counting).has(Counting, key)]

    for each in others:
        world.network.cut(lost.name, each.name)
    world.network.cut_store(lost.name)
    began = trio.current_time()
    for key in keys:
        assert await add_again(others[0], key, 1, once="late", timeout=0.5) == 2

    # The lease, and the pauses between two looks.
    assert keys
    assert trio.current_time() - began < LEASE + 3.0


@simulated(seeds=1)
async def test_messages_wait_for_a_shard_without_a_host_until_there_are_too_many(
    world: World,
) -> None:
    store = MemoryStore()
    nodes = await start_nodes(world, store, 1, max_waiting=2)
    entity = nodes[0].node.entity(Counting, "it")

    entity.send(More(1))
    entity.send(More(1))
    with pytest.raises(ServiceBusyError):
        entity.send(More(1))

    assert await add(nodes[0], "other", timeout=30) == 1
    assert await add(nodes[0], "it", 0) == 2


@simulated(seeds=1)
async def test_a_host_that_is_fenced_ends_its_entities(world: World) -> None:
    store = MemoryStore()
    nodes = await start_nodes(world, store, 1)
    assert await add(nodes[0], "it", timeout=30) == 1
    host = host_of(nodes[0].node, Counting)
    shard = host.shard(Counting, "it")
    token = host.held()[shard]

    await store.claim(shard, token + 100)

    # Its reads do not ask the store, unless they are told to.
    assert await add(nodes[0], "it", 0) == 1
    with pytest.raises(TargetDownError, match="FencedError"):
        await add(nodes[0], "it", 0, fresh=True)
    with pytest.raises(FencedError):
        await store.claim(shard, token)
    # The keeper of the map gives the shard higher tokens, until one is high enough.
    assert await add_again(nodes[0], "it", 1, once="last", timeout=5.0) == 2
    assert host.held()[shard] >= token + 100


@simulated(seeds=1)
async def test_a_shard_that_another_node_has_costs_the_commands_of_other_shards_nothing(
    world: World,
) -> None:
    store = MemoryStore()
    [node] = await start_nodes(world, store, 1)
    await wait_balanced([node])
    host = host_of(node.node, Counting)
    lost = KEYS[0]
    others = [key for key in KEYS if host.shard(Counting, key) != host.shard(Counting, lost)]
    first, kept, *_ = others
    for key in (first, lost, kept):
        await add(node, key)
    gate, answers = trio.Event(), dict[str, object]()

    async def wait(*_given: object) -> None:
        await gate.wait()

    async def count(key: str) -> None:
        try:
            answers[key] = await add(node, key, timeout=30)
        except TargetDownError as error:
            answers[key] = type(error)

    async with trio.open_nursery() as nursery:
        store.before_commit = wait
        nursery.start_soon(count, first)  # its commit waits, and those of the others behind it
        await trio.sleep(0.1)
        for key in (lost, kept):
            nursery.start_soon(count, key)
        await trio.sleep(0.1)
        shard = host.shard(Counting, lost)
        await store.claim(shard, host.lose(shard))
        await trio.sleep(0.1)
        store.before_commit = None
        gate.set()

    assert answers == {first: 2, lost: TargetDownError, kept: 2}


@simulated(seeds=1)
async def test_a_job_that_is_posted_again_on_another_node_is_done_once(world: World) -> None:
    nodes = await start_nodes(world, MemoryStore(), 2)
    await wait_balanced(nodes)

    async def post(node: Node) -> None:
        await node.entity(Counting, "it").post(More(1), once="job", timeout=30)

    await nodes[0].run(post)
    shard = host_of(nodes[0].node, Counting).shard(Counting, "it")
    nodes.sort(key=lambda each: shard not in host_of(each.node, Counting).held())
    await drain_all(nodes[:1])
    for each in nodes:
        await each.run(post)
    await trio.sleep(5)

    assert shard in host_of(nodes[1].node, Counting).held()
    assert await add(nodes[0], "it", 0) == 1


@pytest.mark.parametrize("begun", [False, True])
async def test_a_call_passed_to_another_node_tells_whether_its_work_has_begun(begun: bool) -> None:
    here, there = PID("here", 1, 1), PID("there", 1, 1)
    name = Name("counters", node="there")
    first = FirstCaller(here, 1, name, Add(1))
    passed = PassedCaller(here, 2, name, Add(1), there, first)

    passed.settle(None, TargetDownError(name, Add(1), Normal(), begun=begun))

    assert isinstance(first.error, TargetDownError)
    assert (first.error.target, first.error.begun) == (there, begun)


async def test_shards_need_a_network_and_a_name() -> None:
    async with open_node("alone@test", log_level="critical") as node:
        spec = Entities.spec(MemoryStore(), [Counting], shards=4)
        with pytest.raises(InitError, match="has no network"):
            await node.spawn(spec, name="entities")


@simulated(seeds=1)
async def test_a_damaged_row_of_the_map_stops_moves_and_not_the_nodes(world: World) -> None:
    store = MemoryStore()
    nodes = await start_nodes(world, store, 2)
    assert await add(nodes[0], "it", timeout=30) == 1
    await trio.sleep(10)  # no shard moves any longer
    row = map_address("entities")
    whole, due = store.rows[row]

    store.rows[row] = Row(whole.version, b"[1, 2"), due
    (host,) = [each for each in nodes if each.node.whereis("entities.map") is not None]
    keeper = host.node.whereis("entities.map")
    assert keeper is not None
    host.node.kill(keeper)
    await trio.sleep(60)
    # The keeper that reads the damaged row stays, also if JSON in the row is nested too deeply, or
    # a number is too large to travel to the hosts.
    (host,) = [each for each in nodes if each.node.whereis("entities.map") is not None]
    keeper = host.node.whereis("entities.map")
    large = ShardMap.decode(whole.record)._replace(version=10**40).encode()
    for damaged in (b"[" * 100_000, large):
        store.rows[row] = Row(whole.version, damaged), due
        await trio.sleep(60)
        assert host.node.whereis("entities.map") == keeper

    assert await add(nodes[0], "it") == 2
    assert store.rows[row][0].record == large
    store.rows[row] = whole, due
    await trio.sleep(5)
    assert not await nodes[0].run(lambda node: node.drain(timeout=30.0))
    assert await add(nodes[1], "it", timeout=30) == 3


@simulated(seeds=1)
async def test_rows_that_go_back_to_a_backup_are_loaded_again_by_running_nodes(
    world: World,
) -> None:
    store = MemoryStore()
    nodes = await start_nodes(world, store, 2)
    assert await add(nodes[0], "it", timeout=30) == 1
    backup = dict(store.rows)
    assert await add(nodes[0], "it") == 2

    store.rows.clear()
    store.rows.update(backup)

    with pytest.raises(TargetDownError):
        await add(nodes[0], "it")
    assert await add_again(nodes[0], "it", 1, once="later", timeout=5.0) == 2
    assert not await nodes[0].run(lambda node: node.drain(timeout=30.0))
    assert await add(nodes[1], "it", timeout=30) == 3


@simulated(seeds=1)
async def test_a_map_from_a_backup_takes_a_shard_from_its_host_and_gives_it_back(
    world: World,
) -> None:
    store = MemoryStore()
    [first] = await start_nodes(world, store, 1)
    await wait_balanced([first])
    host, row = host_of(first.node, Counting), map_address("entities")
    before, backup = host.held(), store.rows[row]
    [second] = await start_nodes(world, store, 1)
    await wait_balanced([first, second])
    assert await second.run(lambda node: node.drain(timeout=30.0)) == []
    later = {shard for shard, token in host.held().items() if token > before[shard]}
    keys = [key for key in KEYS if host.shard(Counting, key) in later]
    assert {host.shard(Counting, key) for key in keys} == later  # all of them have to end
    assert [await add(first, key) for key in keys] == [1] * len(keys)

    host.limit_looks(1000)
    entities = first.node.whereis("entities")
    store.rows[row] = backup
    (with_map,) = [each for each in (first, second) if host_of(each.node, Counting).has_map]
    keeper = with_map.node.whereis("entities.map")
    assert keeper is not None
    with_map.node.kill(keeper)
    await trio.sleep(10)  # less than the keeper waits until it looks into the store again

    assert first.node.whereis("entities") == entities
    assert host.held().keys() == before.keys()
    assert [await add(first, key) for key in keys] == [2] * len(keys)


@simulated(seeds=1)
async def test_a_keeper_that_restarts_on_a_draining_node_takes_no_shards(world: World) -> None:
    one, other = nodes = await start_nodes(world, MemoryStore(), 2)
    await wait_balanced(nodes)
    keeper = one.node.whereis("entities")
    assert keeper is not None

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.run, lambda node: node.drain(timeout=30.0))
        await trio.sleep(0.001)
        one.node.kill(keeper)
    await trio.sleep(20)

    assert one.node.whereis("entities") not in (None, keeper)
    assert host_of(one.node, Counting).held() == {}
    assert len(host_of(other.node, Counting).held()) == SHARDS
    assert [await add(one, key) for key in KEYS] == [1] * len(KEYS)


@simulated(seeds=1)
async def test_a_node_that_gets_its_lease_while_it_drains_passes_calls_on(world: World) -> None:
    """Its lease is not free at once if the last keeper could not give it up."""
    store = MemoryStore()
    [one] = await start_nodes(world, store, 1)
    await wait_balanced([one])
    assert [await add(one, key) for key in KEYS] == [1] * len(KEYS)
    kernel = kernel_of(one.node)
    lease = LeaseKeeper(
        network_of(kernel).carrier.store(),
        host_lease("entities", "b@world"),
        LeaseTerms(LEASE, LEASE / 4),
        kernel.pid,
        kernel.clock.now,
        lambda *_args: None,
    )
    assert await lease.try_once()  # and it is not given up
    [other] = await start_nodes(world, store, 1)

    assert await other.run(lambda node: node.drain(timeout=30.0)) == []

    assert [await add(other, key, timeout=30) for key in KEYS] == [2] * len(KEYS)
    assert host_of(other.node, Counting).held() == {}


class LogKeeper(Actor):
    """Keeps what is logged."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def handle_log(self, record: LogRecord) -> None:
        """Keep a line."""
        self.lines.append(str(record.fields.get("error")))


@simulated(seeds=1)
async def test_a_node_with_another_number_of_shards_gets_none_and_leaves_the_map_whole(
    world: World,
) -> None:
    store, counts, lines = MemoryStore(), {"c@world": SHARDS + 2}, list[str]()
    supervisors: dict[str, SupervisorHandle] = {}

    async def start(node: Node) -> None:
        node.add_logger(await node.spawn(LogKeeper, lines), "warning")
        shards = counts.get(node.name, SHARDS)
        spec = Entities.spec(store, [Counting, Broken], types=TYPES, shards=shards, lease=LEASE)
        child = ChildSpec("entities", spec)
        supervisors[node.name] = await node.supervise([child], intensity=1000)

    async def stop(node: Node) -> None:
        node.send_exit(supervisors[node.name].pid, Shutdown("another number"))
        await node.wait_ended(supervisors[node.name].pid)

    one, other = nodes = await world.start(2, start, types=TYPES)
    await wait_balanced(nodes)
    [strange] = await world.start(1, start)
    await trio.sleep(20)
    await wait_balanced(nodes)
    assert host_of(strange.node, Counting).held() == {}
    (line,) = [each for each in lines if "shards=8" in each]
    assert line == (
        "the program of c@world says shards=8, and the map of the entities 'entities' has 6 "
        "shards: this node gets none. The number cannot change: write shards=6"
    )

    # A node of the map that comes back with the other number has ended for the map.
    counts[one.name] = SHARDS + 2
    await one.run(stop)
    await one.run(start)
    await wait_balanced([other])
    assert host_of(one.node, Counting).held() == {}

    # The map is kept by a node with the other number.
    await other.run(stop)
    await trio.sleep(20)
    assert any(host_of(each.node, Counting).has_map for each in (one, strange))
    await other.run(start)
    await wait_balanced([other])
    assert await add(other, "it", timeout=30) == 1
    assert not await strange.run(lambda node: node.drain(timeout=30.0))


@simulated(seeds=1)
async def test_a_version_that_no_host_has_does_not_damage_the_map(world: World) -> None:
    store = MemoryStore()
    nodes = await start_nodes(world, store, 2)
    await wait_balanced(nodes)
    (keeper,) = [found for each in nodes if (found := each.node.whereis("entities.map"))]
    before, answers = store.rows[map_address("entities")], list[str]()

    for version in (2**31, 2**60, NEVER - 2, NEVER):
        speaker = await nodes[1].node.spawn(Speaker)
        try:
            await nodes[1].node.call(speaker, (keeper, version, False))
        except TargetDownError as error:
            answers.append(str(error))
        await trio.sleep(1)
    await trio.sleep(5)

    assert store.rows[map_address("entities")] == before
    assert len([each for each in answers if "is not the version of a map of shards" in each]) == 4
    assert not await nodes[0].run(lambda node: node.drain(timeout=30.0))
    assert await add(nodes[1], "it", timeout=30) == 1


@simulated(seeds=1)
async def test_a_token_of_another_shard_does_not_stop_the_messages_of_a_shard(
    world: World,
) -> None:
    nodes = await start_nodes(world, MemoryStore(), 2)
    await wait_balanced(nodes)
    last = max(each for node in nodes for each in host_of(node.node, Counting).held().values())
    here = (Counting.kind, "it")

    for node in nodes:
        for shard in range(SHARDS):
            told = (ENTITY, "tell", shard, last, *here, "Done", [[*here, 1], 1])
            nodes[0].node.send(Name("entities", node.name), told)
    await trio.sleep(5)
    for key, neighbour in zip(KEYS, KEYS[1:] + KEYS[:1], strict=True):
        await nodes[0].run(partial(call, key=key, request=Give(neighbour)))
    await trio.sleep(5)

    assert [await add(nodes[0], key, 0) for key in KEYS] == [0] * len(KEYS)


@simulated(seeds=1)
async def test_a_map_from_a_backup_leaves_each_shard_with_a_single_host(world: World) -> None:
    store = MemoryStore()
    nodes = await start_nodes(world, store, 2)
    await wait_balanced(nodes)
    for key in KEYS:
        await add(nodes[0], key)
    hosts = [host_of(each.node, Counting) for each in nodes]
    row = map_address("entities")
    (stored, due), claims = store.rows[row], store.tokens
    present = ShardMap.decode(stored.record)

    # An older map, in which each shard belonged to the other host, with the claims of its time.
    one, other = sorted(present.hosts())
    places = [
        Place(other if each.host == one else one, 1) for each in present.places if each is not None
    ]
    backup = ShardMap(1, 1, tuple(places))
    store.rows[row] = Row(1, backup.encode()), due
    claims.update(dict.fromkeys(range(SHARDS), 1))
    (with_map,) = [each for each in nodes if host_of(each.node, Counting).has_map]
    keeper = with_map.node.whereis("entities.map")
    assert keeper is not None
    with_map.node.kill(keeper)
    await trio.sleep(20)

    held = [shard for host in hosts for shard in host.held()]
    assert sorted(held) == list(range(SHARDS))
    # No host can write under a claim from before the backup, also if it has not heard of the map.
    assert min(claims[shard] for shard in range(SHARDS)) > present.last
    (facts,) = [await each.facts() for each in inspections(entities_of(nodes[0].node))]
    assert facts["map"]["moving"] == []
    assert [await add(nodes[1], key) for key in KEYS] == [2] * len(KEYS)
