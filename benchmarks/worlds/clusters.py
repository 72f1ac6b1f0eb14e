"""Worlds of clusters: a singleton with its lease and its fencing tokens, names, and groups."""

from collections.abc import Iterator

import trio

from ergo_py import PID, Actor, ChildSpec, ErgoError, Name, Node
from ergo_py.cluster import Cluster, LeaseLostError, Singleton, lease_of
from ergo_py.testing import World, at_most_one
from ergo_py.testing.world.history import History

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
        self.table.begin(lease_of(self).token, self.node.name)
        self.send_every(0.5, self.pid, "write")

    async def handle_message(self, message: object, sender: object) -> None:
        """Write, if no other node can have the lease."""
        lease = lease_of(self)
        try:
            lease.check()
        except LeaseLostError:
            return
        self.table.write(lease.token)
        await trio.sleep(0.45)  # a shutdown waits for the callback

    async def terminate(self, reason: object) -> None:
        """Take a while."""
        await trio.sleep(0.45)


async def leases(world: World) -> None:
    """K2, K3, K4: at most one singleton lives, its tokens grow, no write of an older lease follows
    one of a newer, and after the faults it lives.
    """
    table = Table()

    async def start(node: Node) -> None:
        only = ChildSpec("only", Only, table, shutdown=0.5, terminate_timeout=0.5)
        await node.supervise([Singleton(only, lease=4.0)], intensity=1000)

    await world.start(3, start)
    world.faults(seconds=40.0, cut_store=0.15, slow_store=0.2, crash=0.05, pause=0.05, skew=0.05)
    await trio.sleep(50)
    await world.heal()
    world.check(at_most_one("only"))
    await trio.sleep(SETTLED)

    def lives(history: History) -> Iterator[str]:
        if not any(
            each.name == "only" and each.ended > history.now() for each in history.lifetimes
        ):
            yield "no singleton lives, long after the last fault"

    def tokens_grow(_history: History) -> Iterator[str]:
        yield from table.complaints

    world.check(at_most_one("only"), tokens_grow, lives)


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


KEEPER = "ergo.cluster.groups"
"""The process of a node that knows its groups; it starts again when it is killed."""


class Member(Actor):
    """A member of the group."""

    async def init(self) -> None:
        """Join."""
        (await Cluster(self.node).group("desks")).join(self.pid)


async def groups(world: World) -> None:
    """K5: after every cut, all nodes know the same members: those that live."""

    async def start(node: Node) -> None:
        # A program that is stopped while it starts needs longer than the usual time.
        members = [ChildSpec(f"member {number}", Member, init_timeout=60.0) for number in range(2)]
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
    await trio.sleep(40)
    await world.heal()
    await trio.sleep(SETTLED)
    known = {each.name: (await Cluster(each.node).group("desks")).members() for each in nodes}

    def agree(history: History) -> Iterator[str]:
        living = sorted(
            life.pid
            for life in history.lifetimes
            if life.name.startswith("member ") and life.ended > history.now()
        )
        for node, members in known.items():
            if sorted(members) != living:
                yield f"{node} knows {sorted(members)}, and {living} live"

    world.check(agree)
