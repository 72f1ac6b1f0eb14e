"""`FaultRun`: the faults of a plan, while the world runs."""

import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import trio

from .clock import WorldClock
from .history import History
from .machine.sockets import WorldSockets
from .machine.threads import WorldThreads
from .node import WorldNode
from .plan import Plan, PlannedFault
from .tasks import WorldOrder

if TYPE_CHECKING:
    from ...network.carriers.memory import Memory

__all__ = ["FaultRun"]


class FaultyWorld(Protocol):
    """The world that has faults."""

    plan: Plan
    clock: WorldClock
    history: History
    order: WorldOrder
    nodes: dict[str, WorldNode]
    sockets: WorldSockets
    threads: WorldThreads
    is_over: bool

    @property
    def network(self) -> "Memory":
        """The network of the nodes."""
        ...

    def note(self, text: str, /) -> None:
        """Add a line to the story of the world."""
        ...

    def keep(self, remains: list[trio.lowlevel.Task], /) -> None:
        """Keep the tasks of a crashed node until the world is over."""
        ...

    def launch(self, node: WorldNode, /) -> None:
        """Start a node again."""
        ...


class FaultRun:
    """Begins and ends the faults of a plan."""

    def __init__(self, world: FaultyWorld, victims: Sequence[str] | None) -> None:
        self._world = world
        self._victims = victims
        """The names of the processes that the faults may kill."""
        self._scope = trio.CancelScope()
        self._over = trio.Event()
        self._has_killed = False
        """A `kill` has looked for a process."""
        self._active: dict[tuple[str, tuple[str, ...]], None] = {}

    def cancel(self) -> None:
        """End all faults."""
        self._scope.cancel()

    async def wait(self) -> None:
        """Wait until all faults have ended."""
        await self._over.wait()

    @property
    def missed_victims(self) -> Sequence[str] | None:
        """The victims, if a process was to be killed, and none of their names ever lived."""
        lives = self._world.history.lifetimes
        if self._victims is None or any(life.name in self._victims for life in lives):
            return None
        return self._victims if self._has_killed else None

    async def run(self, faults: Sequence[PlannedFault]) -> None:
        """Begin each fault at its time."""
        began = trio.current_time()
        with self._scope:
            async with trio.open_nursery() as nursery:
                for fault in faults:
                    await trio.sleep_until(began + fault.at)
                    nursery.start_soon(self._run_fault, fault)
        self._over.set()

    async def _run_fault(self, fault: PlannedFault) -> None:
        key = fault.kind, fault.nodes
        if key in self._active or any(name not in self._world.nodes for name in fault.nodes):
            return
        self._active[key] = None
        self._world.history.note("fault", "", fault.story)
        try:
            with getattr(self, f"_fault_{fault.kind}")(fault):
                await trio.sleep(fault.seconds)
        finally:
            del self._active[key]

    @contextmanager
    def _fault_cut(self, fault: PlannedFault) -> Iterator[None]:
        self._world.network.cut(*fault.nodes, one_way=fault.kind == "one_way")
        yield
        self._world.network.heal(*fault.nodes)

    _fault_one_way = _fault_cut

    @contextmanager
    def _disturbed(self, fault: PlannedFault, **options: Any) -> Iterator[None]:
        disturbance = self._world.network.disturb(
            *fault.nodes, seed=self._seed_of(fault), **options
        )
        try:
            yield
        finally:
            disturbance.end()

    def _fault_lose(self, fault: PlannedFault) -> Any:
        return self._disturbed(fault, lose=fault.amount)

    def _fault_double(self, fault: PlannedFault) -> Any:
        return self._disturbed(fault, double=fault.amount)

    def _fault_delay(self, fault: PlannedFault) -> Any:
        return self._disturbed(fault, delay=(0.0, fault.amount))

    @contextmanager
    def _fault_cut_store(self, fault: PlannedFault) -> Iterator[None]:
        self._world.network.cut_store(*fault.nodes)
        try:
            yield
        finally:
            self._world.network.heal_store(*fault.nodes)

    @contextmanager
    def _fault_slow_store(self, fault: PlannedFault) -> Iterator[None]:
        (name,) = fault.nodes
        self._world.network.slow_store(name, fault.amount, seed=self._seed_of(fault))
        try:
            yield
        finally:
            self._world.network.slow_store(name, 0.0)

    def _fault_stall_sockets(self, fault: PlannedFault) -> Any:
        return self._world.sockets.stalled(fault.nodes[0])

    def _fault_slow_sockets(self, fault: PlannedFault) -> Any:
        return self._world.sockets.slowed(fault.nodes[0], fault.amount)

    def _fault_tear_sockets(self, fault: PlannedFault) -> Any:
        return self._world.sockets.torn(fault.nodes[0])

    @contextmanager
    def _fault_reset_sockets(self, fault: PlannedFault) -> Iterator[None]:
        self._world.sockets.reset(fault.nodes[0])
        yield

    def _fault_lose_datagrams(self, fault: PlannedFault) -> AbstractContextManager[None]:
        return self._world.sockets.datagrams.losing(fault.nodes[0], fault.amount)

    def _fault_double_datagrams(self, fault: PlannedFault) -> AbstractContextManager[None]:
        return self._world.sockets.datagrams.doubling(fault.nodes[0], fault.amount)

    @contextmanager
    def _fault_pause(self, fault: PlannedFault) -> Iterator[None]:
        (name,) = fault.nodes
        began = trio.current_time()
        self._world.order.pause(name)
        try:
            yield
        finally:
            self._world.history.pauses.append((name, began, trio.current_time()))
            self._world.order.resume(name)
            self._world.nodes[name].note_change()

    @contextmanager
    def _fault_crash(self, fault: PlannedFault) -> Iterator[None]:
        node = self._world.nodes[fault.nodes[0]]
        remains = node.crash(self._world.order)
        if not remains:  # it was down, or just opening
            yield
            return
        self._world.keep(remains)
        self._world.network.remove(node.name)
        self._world.threads.crash(node.name)
        self._world.sockets.crash(node.name)
        try:
            yield
        finally:
            if not self._world.is_over:
                self._world.note(f"{node.name} starts again")
                self._world.launch(node)

    @contextmanager
    def _fault_kill(self, fault: PlannedFault) -> Iterator[None]:
        node = self._world.nodes[fault.nodes[0]]
        self._has_killed = True
        living = self._world.history.living(node.name, self._victims)
        if living and node.is_up:
            node.node.kill(living[int(fault.amount * len(living)) % len(living)])
        yield

    @contextmanager
    def _fault_fail_disk(self, fault: PlannedFault) -> Iterator[None]:
        disk = self._world.nodes[fault.nodes[0]].disk
        disk.fail(fault.amount)
        try:
            yield
        finally:
            disk.fail(0.0)

    @contextmanager
    def _fault_slow_disk(self, fault: PlannedFault) -> Iterator[None]:
        disk = self._world.nodes[fault.nodes[0]].disk
        disk.slow(fault.amount)
        try:
            yield
        finally:
            disk.slow(0.0)

    @contextmanager
    def _fault_skew(self, fault: PlannedFault) -> Iterator[None]:
        (name,) = fault.nodes
        self._world.clock.set_rate(name, 1.0 + fault.amount)
        try:
            yield
        finally:
            self._world.clock.set_rate(name, 1.0)

    def _seed_of(self, fault: PlannedFault) -> int:
        return random.Random(repr((self._world.plan.seed, str(fault)))).getrandbits(63)
