"""Worlds of clusters: a singleton with its lease and its fencing tokens, names, and groups."""

from collections import Counter
from collections.abc import Iterator
from math import inf
from random import Random
from typing import Any

import trio

from ergo_py import PID, Actor, Caller, ChildSpec, ErgoError, Name, Node, NodeStoppedError, Routing
from ergo_py.cluster import Cluster, Singleton, Spread
from ergo_py.testing import World
from ergo_py.testing.world.history import History
from ergo_py.testing.world.node import WorldNode

__all__ = ["groups", "leases", "names"]

SETTLED = 15.0
"""Seconds after the last fault in which a cluster must be whole again."""


# -- leases ----------------------------------------------------------------------------------------


class Table:
    """A table that singletons write to, each with the number of its lease."""

    def __init__(self) -> None:
        self.begun: dict[int, str] = {}
        """The nodes of leases, by their numbers."""
        self.newest = 0
        self.complaints: list[str] = []

    def begin(self, token: int, node: str) -> None:
        """Note that a singleton starts under a lease."""
        if self.begun and token < max(self.begun):
            self.complaints.append(f"the lease {token} begins after {max(self.begun)}")
        if self.begun.setdefault(token, node) != node:
            self.complaints.append(f"{node} and {self.begun[token]} have the lease {token}")

    def write(self, token: int) -> None:
        """Take a write of a holder that has checked its lease."""
        if token < self.newest:
            self.complaints.append(f"a write of the lease {token} after one of {self.newest}")
        self.newest = max(self.newest, token)


class Only(Actor):
    """A singleton that writes now and then, and takes nearly all of its time to end: a lease that
    is counted too long shows at once.
    """

    def __init__(self, table: Table) -> None:
        self.table = table

    def init(self) -> None:
        """Begin to write."""
        self.table.begin(Singleton.lease_of(self).token, self.node.name)
        self.send_every(0.5, self.pid, "write")

    async def handle_message(self, message: object, sender: object) -> None:
        """Write, if no other node can have the lease."""
        lease = Singleton.lease_of(self)
        try:
            lease.check()
        except Singleton.LeaseLostError:
            return
        self.table.write(lease.token)
        await trio.sleep(0.45)  # a shutdown waits for the callback

    async def terminate(self, reason: object) -> None:
        """Take a while."""
        await trio.sleep(0.45)


Drained = dict[tuple[str, int], float]
"""When nodes have drained, by their names and starts."""


def _start_of(world: World, node: str) -> tuple[str, int]:
    """The present start of a node."""
    return node, world.history.living(node, None)[0].creation


async def _drain(world: World, drained: Drained) -> None:
    """Let a node drain, in some worlds."""
    await trio.sleep(world.random.uniform(0.0, 30.0))
    node = world.nodes[world.random.choice(list(world.nodes))]

    async def drain(here: Node) -> None:
        if not await here.drain(timeout=5.0):  # else it has told what it has not given up
            drained[_start_of(world, here.name)] = world.clock.world_time()

    if world.random.random() < 0.4:
        try:
            await node.run(drain)
        except NodeStoppedError:
            pass  # it has crashed meanwhile


async def leases(world: World) -> None:
    """K2, K3, K4: at most one singleton lives, its tokens grow, no write of an older lease follows
    one of a newer, and after the faults it lives. K7: on no node that has drained.
    """
    table = Table()
    drained: Drained = {}

    async def start(node: Node) -> None:
        only = ChildSpec("only", Only, table, shutdown=0.5, terminate_timeout=0.5)
        await node.supervise([Singleton(only, lease=4.0)], intensity=1000)

    await world.start(3, start)
    world.faults(
        seconds=40.0,
        cut_store=0.15,
        slow_store=0.2,
        crash=0.05,
        pause=0.05,
        skew=0.05,
        kill=0.03,
        victims=["SingletonKeeper"],
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_drain, world, drained)
        await trio.sleep(50)
    await world.heal()
    world.check(World.at_most_one("only"))
    await trio.sleep(SETTLED)

    def lives(history: History) -> Iterator[str]:
        if not any(
            each.name == "only" and each.ended > history.now() for each in history.lifetimes
        ):
            yield "no singleton lives, long after the last fault"

    def tokens_grow(_history: History) -> Iterator[str]:
        yield from table.complaints

    def drained_nodes_are_idle(history: History) -> Iterator[str]:
        for life in history.lifetimes:
            moment = drained.get((life.node, life.pid.creation), inf)
            if life.name == "only" and life.ended > moment:
                yield f"the singleton runs on {life.node}, which has drained at {moment:.2f} s"

    world.check(World.at_most_one("only"), tokens_grow, lives, drained_nodes_are_idle)


# -- names -----------------------------------------------------------------------------------------


class Holder(Actor):
    """Has the name, until it ends; or until it is killed, since it does not end by itself."""

    def init(self) -> None:
        """Take requests to end as messages."""
        self.trap_exit = True

    def handle_message(self, message: object, sender: object) -> None:
        """Go on, also after a request to end."""


Held = list[tuple[float, PID]]
"""When each process has got the name."""


async def _compete(world: World, node: Node, held: Held) -> None:
    """Register a process as soon as the name is free."""
    while True:
        pid = await node.spawn(Holder)
        try:
            await Cluster(node).register("desk", pid, lease=4.0, ending=1.0, wait=5.0)
            held.append((world.clock.world_time(), pid))
            await node.wait_ended(pid)
        except ErgoError:
            node.kill(pid)
        await trio.sleep(0.5)


class Competitor(Actor):
    """Lets its node compete for the name."""

    def __init__(self, world: World, held: Held) -> None:
        self.world, self.held = world, held

    def init(self) -> None:
        """Begin."""
        self.start_task(_compete, self.world, self.node, self.held)


async def names(world: World) -> None:
    """K1: a name has one process; after the faults all nodes find the same process, which lives."""
    held: Held = []

    async def start(node: Node) -> None:
        await node.supervise([ChildSpec("competitor", Competitor, world, held)], intensity=1000)

    nodes = await world.start(3, start)
    world.faults(
        seconds=30.0,
        cut_store=0.15,
        slow_store=0.15,
        crash=0.05,
        pause=0.05,
        kill=0.1,
        victims=["Holder"],
    )
    await trio.sleep(40)
    await world.heal()
    await trio.sleep(SETTLED)
    found = [await Cluster(each.node).whereis("desk") for each in nodes]

    def one_holder(history: History) -> Iterator[str]:
        ended = {life.pid: life.ended for life in history.lifetimes}
        for at, later in held:
            for before, pid in held:
                # A stopped program cannot end its process, which does nothing meanwhile.
                is_stopped = any(
                    node == pid.node and began <= at <= end + 1.0
                    for node, began, end in history.pauses
                )
                if before < at < ended[pid] and not is_stopped:
                    yield f"{pid} lives when {later} gets its name, at {at:.2f} s"
        if len(set(found)) > 1 or found[0] is None or ended[_pid(found[0])] <= history.now():
            yield f"the nodes find {found}"

    world.check(one_holder)


def _pid(address: PID | Name) -> PID:
    assert isinstance(address, PID)
    return address


# -- groups ----------------------------------------------------------------------------------------


KEYS = 4
"""The keys of messages."""
Handled = list[tuple[tuple[int, int, int], PID]]
"""The messages that members have got: the key (-1 without a key), the client, and its step."""
KEEPER = "ergo.cluster.groups"
"""The process of a node that knows its groups; it starts again when it is killed."""


class Member(Actor):
    """A member of the group, which notes the messages and calls that it gets."""

    def __init__(self, handled: Handled) -> None:
        self.handled = handled

    async def init(self) -> None:
        """Join."""
        (await Cluster(self.node).group("desks")).join(self.pid)

    def handle_message(self, message: Any, sender: Any) -> None:
        """Note a message."""
        self.handled.append((message, self.pid))

    def handle_call(self, request: Any, caller: Caller) -> PID:
        """Note a call, and answer it."""
        self.handled.append((request, self.pid))
        return self.pid


async def groups(world: World) -> None:
    """K5: after every cut, all nodes know the same members: those that live. K6: a message or call
    through a spread has at most one effect, and all nodes choose the same member for a key. K7: no
    other node knows a member on a node that has drained.
    """
    handled: Handled = []
    drained: Drained = {}

    async def start(node: Node) -> None:
        # A program that is stopped while it starts needs longer than the usual time.
        members = [
            ChildSpec(f"member {number}", Member, handled, init_timeout=60.0) for number in range(2)
        ]
        spreads = {
            "in turn": Spread.spec("desks"),
            "by key": Spread.spec("desks", Routing.BY_KEY, key=lambda message: message[0]),
        }
        members += [ChildSpec(name, spread, init_timeout=60.0) for name, spread in spreads.items()]
        await node.supervise(members, intensity=1000)

    nodes = await world.start(3, start)
    world.faults(
        seconds=30.0,
        cut=0.15,
        one_way=0.1,
        lose=0.05,
        double=0.1,
        delay=0.15,
        pause=0.05,
        crash=0.05,
        kill=0.3,
        victims=[*(f"member {number}" for number in range(2)), KEEPER],
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_drain, world, drained)
        for number, each in enumerate(nodes):
            nursery.start_soon(_use_spreads, world, each, number)
        await trio.sleep(40)
    await world.heal()
    await trio.sleep(SETTLED)
    known = {each.name: (await Cluster(each.node).group("desks")).members() for each in nodes}
    chosen = [
        [await each.call("by key", (key, -1, -1)) for key in range(KEYS)]
        for each in nodes
        if _start_of(world, each.name) not in drained
    ]

    def agree(history: History) -> Iterator[str]:
        living = [
            life.pid
            for life in history.lifetimes
            if life.name.startswith("member ") and life.ended > history.now()
        ]
        serving = [pid for pid in living if (pid.node, pid.creation) not in drained]
        for node, members in known.items():
            others = sorted(pid for pid in members if pid in serving or pid.node != node)
            if others != sorted(serving):
                yield f"{node} knows {sorted(members)}, and {living} live, {serving} serve"

    def effects_are_single(_history: History) -> Iterator[str]:
        for message, times in Counter(message for message, _ in handled).items():
            if times > 1 and message[1] >= 0:
                yield f"{times} members have got {message}"
        orders: dict[object, list[int]] = {}
        for (key, client, step), pid in handled:
            if client >= 0 and key >= 0:
                orders.setdefault((key, client, pid), []).append(step)
        for sender, steps in orders.items():
            if steps != sorted(steps):
                yield f"the messages of {sender} arrive as {steps}"

    def choices_agree(_history: History) -> Iterator[str]:
        if len(set(map(tuple, chosen))) > 1:
            yield f"nodes choose different members for the keys: {chosen}"

    world.check(agree, effects_are_single, choices_agree)


async def _use_spreads(world: World, node: WorldNode, client: int) -> None:
    """Send messages and calls to members, by key or in turn."""
    random = Random(repr((world.plan.seed, "client", client)))
    for step in range(15):
        await trio.sleep(random.uniform(0.0, 2.0))
        key = random.randrange(-1, KEYS)
        to, message = "by key" if key >= 0 else "in turn", (key, client, step)
        try:
            if random.random() < 0.5:
                (await node.wait_up()).send(to, message)
            else:
                await node.call(to, message, timeout=2.0)
        except ErgoError:
            pass
