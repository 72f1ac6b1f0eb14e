"""Seeded simulations of nodes that compete for a lease, in virtual time.

`simulate_keepers` has clocks that run at different speeds, programs that are stopped, and a store
whose requests and answers are late or lost. `simulate_nodes` has whole nodes with singletons, whose
network and store are cut. In both the store is replaced by older copies of itself, which
`benchmarks.worlds.clusters.leases` does not do. Then two may run at once, but no longer than a
lease after such a loss; no two ever have the same number; and a `FencedTable` takes the writes of a
single holder again when the lease has passed. Otherwise they raise `Violation`.
"""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from math import inf
from random import Random
from typing import TypeVar

import trio
import trio.testing

from ergo_py import PID, Actor, ChildSpec
from ergo_py.cluster import Singleton
from ergo_py.cluster.lease import Lease, LeaseKeeper, LeaseTerms
from ergo_py.network import Memory, StoreError
from ergo_py.network.stores.memory_store import MemoryStore, StoreTable
from ergo_py.network.stores.store import TIMEOUT, ConflictError
from ergo_py.testing import seeded
from tests.support import running_node

__all__ = ["FencedTable", "Violation", "silent", "simulate_keepers", "simulate_nodes"]

SECONDS = 120.0
"""How long a simulation has faults."""
DRIFT = 0.08
"""By how much a clock is too fast or too slow at most."""
T = TypeVar("T")


class Violation(AssertionError):
    """Two processes with the same lease ran at once."""


class FencedTable:
    """A table that refuses writes with smaller numbers, as docs/clusters.md recommends, and checks
    the numbers of all leases.
    """

    def __init__(self) -> None:
        self.newest = 0
        self.owners: dict[int, object] = {}
        self.refused = 0
        self.lost_at = -inf
        """When the store last lost writes."""
        self.lease = 0.0

    @property
    def is_uncertain(self) -> bool:
        """Whether leases that the store has forgotten may last, on the slowest clock."""
        return trio.current_time() < self.lost_at + 1.3 * self.lease

    def begin(self, token: int, owner: object) -> None:
        """Note the beginning of a lease."""
        if self.owners.setdefault(token, owner) is not owner:
            raise Violation(f"two leases with the number {token} at {trio.current_time():.2f}")
        if token < self.newest and not self.is_uncertain:
            raise Violation(f"a smaller number at {trio.current_time():.2f}")

    def write(self, token: int) -> None:
        """Take or refuse a write."""
        if token >= self.newest:
            self.newest = token
        elif self.is_uncertain:
            self.refused += 1
        else:
            raise Violation(f"an act of an older lease at {trio.current_time():.2f}")


def silent(event: str, /, **values: object) -> None:
    """Drop a warning."""


# -- keepers with bad clocks -----------------------------------------------------------------------


class World:
    """A store, and the nodes that use it."""

    def __init__(self, seed: int, nursery: trio.Nursery) -> None:
        self.random = Random(seed)
        self.nursery = nursery
        self.table = StoreTable()
        self.loss = self.random.choice((0.0, 0.05, 0.3))
        self.delay = self.random.choice((0.0, 0.05, 1.0, 6.0))
        lease = self.random.choice((4.0, 10.0))
        self.terms = LeaseTerms(lease, lease * self.random.choice((0.05, 0.2, 0.45)))
        self.nodes = [Place(self, number) for number in range(3)]
        self.weights = 5, 4, 2, 0.3, 2, 1
        self.backup = self.table.copy()
        self.fence = FencedTable()
        self.fence.lease = lease
        self.starts = 0

    def running(self) -> list["Place"]:
        return [node for node in self.nodes if node.is_running and not node.is_frozen]

    def check(self) -> None:
        if len(self.running()) > 1 and not self.fence.is_uncertain:
            raise Violation(f"two run at {trio.current_time():.2f}")

    async def misbehave(self, seconds: float) -> None:
        """Cut, freeze and heal, until ``seconds`` have passed."""
        end = trio.current_time() + seconds
        while trio.current_time() < end:
            await trio.sleep(self.random.expovariate(0.25))
            node = self.random.choice(self.nodes)
            actions = "cut", "freeze", "kill", "wipe", "back up", "roll back"
            match self.random.choices(actions, self.weights)[0]:
                case "cut":
                    node.cut_until = trio.current_time() + self.random.choice((1.0, 5.0, 30.0))
                case "freeze":
                    self.nursery.start_soon(node.freeze, self.random.choice((0.5, 5.0, 25.0)))
                case "kill":
                    node.scope.cancel()
                case "wipe":
                    self.table.lose_all()
                case "back up":
                    self.backup = self.table.copy()
                case "roll back":
                    self.table.restore(self.backup)
                    self.fence.lost_at = trio.current_time()

    async def settle(self) -> None:
        """Without further faults of the store, one node runs, and the table takes its writes."""
        self.loss = self.delay = 0.0
        await trio.sleep(100.0)
        if len(self.running()) != 1:
            raise Violation(f"without faults {len(self.running())} run")


class Place:
    """A node: its clock, and its keeper."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.rate = 1.0 + world.random.uniform(-DRIFT, DRIFT)
        self.offset = world.random.uniform(0, 1000)
        self.cut_until = 0.0
        self.is_running = False
        self.is_frozen = False
        self.lease: Lease | None = None
        self.scope = trio.CancelScope()
        self._thawed = trio.Event()

    def now(self) -> float:
        return self.offset + self.rate * trio.current_time()

    async def freeze(self, seconds: float) -> None:
        """Stop the program, as SIGSTOP does. Its clock goes on."""
        if not self.is_frozen:
            self.is_frozen = True
            await trio.sleep(seconds)
            # What is due is carried out first when a program continues: here, the end of the lease.
            if self.lease is not None and not self.lease.is_held:
                self.is_running = False
            self.is_frozen = False
            self._thawed.set()
            self._thawed = trio.Event()
            self.world.check()

    async def thawed(self) -> None:
        while self.is_frozen:
            await self._thawed.wait()

    def loses(self, _node: str) -> bool:
        return False

    def store_delay(self, _node: str) -> float:
        return 0.0

    async def wait_thawed(self, _node: str) -> None:
        await self.thawed()

    def has(self, _node: str, _creation: int) -> bool:
        return True

    async def live(self) -> None:
        """Start again whenever the node is killed."""
        creation = 0
        while True:
            creation += 1
            self.scope = trio.CancelScope()
            with self.scope:
                await self.compete(creation)
            self.is_running = False
            await trio.sleep(self.world.random.uniform(0.0, 3.0))

    async def compete(self, creation: int) -> None:
        world = self.world
        pid = PID(f"n{self.number}@test", creation, 1)
        keeper = LeaseKeeper(FaultyStore(self), "only", world.terms, pid, self.now, silent)
        while True:
            lease = await keeper.acquire()
            await self.thawed()
            if not lease.is_held:
                continue
            self.lease = lease
            self.is_running = True
            world.starts += 1
            world.fence.begin(lease.token, lease)
            world.check()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.act, lease)
                await keeper.hold()
                await self.thawed()
                # The work goes on until it has ended, within its limit on this node's clock.
                left = max(0.0, keeper.expires_at - self.now())
                own = world.random.uniform(0.0, min(left, world.terms.ending))
                await trio.sleep(own / self.rate)
                await self.thawed()
                nursery.cancel_scope.cancel()
            self.is_running = False
            await keeper.release()

    async def act(self, lease: Lease) -> None:
        """Do the work that only one node may do."""
        while True:
            await trio.sleep(self.world.random.expovariate(5.0))
            await self.thawed()
            if not lease.is_held:
                return
            self.world.fence.write(lease.token)


class FaultyStore(MemoryStore):
    """The store behind a network with faults: a request may also be carried out long after its
    sender has given up.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place.world.table, place, str(place.number))
        self.place = place
        self.world = place.world

    async def _request(self, function: Callable[[], T]) -> T:
        place, random = self.place, self.world.random
        answers: list[T | ConflictError] = []
        arrived = trio.Event()

        async def carry() -> None:
            await trio.sleep(random.random() * self.world.delay)
            while trio.current_time() < place.cut_until:
                if random.random() < 0.5:
                    return
                await trio.sleep(1.0)  # a router keeps it, and delivers it late
            if random.random() < self.world.loss:
                return
            try:
                answer: T | ConflictError = function()
            except ConflictError as error:
                answer = error
            await trio.sleep(random.random() * self.world.delay)
            if trio.current_time() >= place.cut_until and random.random() >= self.world.loss:
                answers.append(answer)
                arrived.set()

        await place.thawed()
        self.world.nursery.start_soon(carry)
        with trio.move_on_after(TIMEOUT):
            await arrived.wait()
        await place.thawed()
        if not answers:
            raise StoreError("no answer")
        answer = answers[0]
        if isinstance(answer, ConflictError):
            raise answer
        return answer


def simulate_keepers(seed: int) -> int:
    """Run a seed. Returns how often the lease began."""

    async def run() -> int:
        async with trio.open_nursery() as nursery:
            world = World(seed, nursery)
            for node in world.nodes:
                nursery.start_soon(node.live)
            await world.misbehave(SECONDS)
            await world.settle()
            nursery.cancel_scope.cancel()
        return world.starts

    try:
        return _run(run, seed)
    except BaseExceptionGroup as group:
        raise _leaf(group) from None


def _run(function: Callable[[], Awaitable[T]], seed: int) -> T:
    """Run in virtual time, with the same order of tasks for the same seed."""
    with seeded(seed):
        return trio.run(function, clock=trio.testing.MockClock(autojump_threshold=0))


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


# -- whole nodes -----------------------------------------------------------------------------------


class Only(Actor):
    """The singleton. All of them share a list."""

    def __init__(
        self,
        running: list[str],
        starts: list[str],
        failures: list[Violation],
        fence: FencedTable,
    ) -> None:
        self.running = running
        self.starts = starts
        self.failures = failures
        self.fence = fence

    def init(self) -> None:
        self.running.append(self.node.name)
        self.starts.append(self.node.name)
        lease = Singleton.lease_of(self)
        try:
            self.fence.begin(lease.token, lease)
            self.fence.write(lease.token)
        except Violation as error:
            self.failures.append(error)
        if len(self.running) > 1 and not self.fence.is_uncertain:
            self.failures.append(Violation(f"{self.running} at {trio.current_time():.2f}"))

    def terminate(self, reason: object) -> None:
        self.running.remove(self.node.name)


def simulate_nodes(seed: int) -> int:
    """Run three nodes with a singleton through partitions. Returns how often it was started."""
    chance = Random(seed)
    names = ["a@test", "b@test", "c@test"]
    running: list[str] = []
    starts: list[str] = []
    failures: list[Violation] = []
    fence = FencedTable()
    fence.lease = 4.0
    weights = 4, 3, 3, 6, 0.5, 2, 1

    async def run() -> None:
        network = Memory()
        backup = network.back_up_store()
        async with AsyncExitStack() as stack:
            for name in names:
                node = await stack.enter_async_context(
                    running_node(name, network=network, limit=100_000)
                )
                lists = running, starts, failures, fence
                spec = ChildSpec("only", Only, *lists, shutdown=0.5, terminate_timeout=0.5)
                await node.supervise([Singleton(spec, lease=4.0)], intensity=1000, period=1.0)
            network.lose(chance.choice((0.0, 0.0, 0.1)), seed=seed)
            end = trio.current_time() + SECONDS
            while trio.current_time() < end:
                await trio.sleep(chance.expovariate(0.3))
                node_name = chance.choice(names)
                actions = "store", "alone", "freeze", "heal", "wipe", "back up", "roll back"
                match chance.choices(actions, weights)[0]:
                    case "store":
                        network.cut_store(node_name)
                    case "alone":
                        network.cut_store(node_name)
                        for other in names:
                            if other != node_name:
                                network.cut(node_name, other)
                    case "freeze":
                        network.freeze(node_name)
                    case "heal":
                        network.heal()
                        for name in names:
                            network.thaw(name)
                    case "wipe":
                        network.lose_store()
                    case "back up":
                        backup = network.back_up_store()
                    case "roll back":
                        network.restore_store(backup)
                        fence.lost_at = trio.current_time()
                if len(running) > 1 and not fence.is_uncertain:
                    failures.append(Violation(f"{running} at {trio.current_time():.2f}"))
            network.heal()
            for name in names:
                network.thaw(name)
            network.lose(0.0)
            await trio.sleep(20)
            if len(running) != 1:
                failures.append(Violation(f"without faults it runs on {running}"))

    _run(run, seed)
    if failures:
        raise failures[0]
    return len(starts)
