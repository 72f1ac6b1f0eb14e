"""`World`: whole nodes in a single program, in virtual time, with seeded faults."""

import gc
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import trio

from ..._core.sources import SeededSources, replace_sources
from ..._core.vocabulary.errors import BadInputError, ErgoError, NotAllowedError
from ..._core.vocabulary.options import check_number
from ..task_order import ordered_by
from .checkers import Checker
from .clock import StandstillError, WorldClock
from .crash import close_remains
from .disk import WorldDisk
from .history import History
from .node import Start, WorldNode
from .outside import Entrances
from .plan import KINDS, FaultRates, Plan, PlannedFault
from .tasks import TaskOwners, WorldOrder, describe_tasks, lift_shields

if TYPE_CHECKING:
    from ...network.carriers.memory import Memory

__all__ = ["CheckError", "World", "run_world"]

_NAMES: Final = "abcdefghijklmnopqrstuvwxyz"
_OPTIONS: Final[dict[str, Any]] = {"watchdog": None, "log_output": "none", "stop_timeout": 5.0}


class CheckError(ErgoError, AssertionError):
    """A checker has found a fault in the history of a world."""

    def __init__(self, checker: str, lines: Sequence[str]) -> None:
        self.checker = checker
        self.lines = tuple(lines)
        super().__init__(f"{checker}: {'; '.join(lines)}")


class World:
    """Nodes in virtual time. The same plan gives the same history.

    ``@simulated`` makes a world for each seed, and gives it to the test.
    """

    def __init__(self, plan: Plan, *, is_drawn: bool = True) -> None:
        self.plan = plan
        """All choices of this world; with its faults once :meth:`faults` was called."""
        self.random = random.Random(repr((plan.seed, "test")))
        """Random numbers for the test itself."""
        self._is_drawn = is_drawn
        """Whether `faults` draws the faults from the seed; otherwise those of the plan count."""
        self._has_faults = False
        self.owners = TaskOwners()
        self.clock = WorldClock(self._stand_still, self.owners)
        self.history = History(self.clock.world_time)
        self.entrances = Entrances()
        self.order = WorldOrder(plan.seed, plan.is_shuffled, self.owners, self.history.mix)
        self.nodes: dict[str, WorldNode] = {}
        self._network: Memory | None = None
        self._is_over = False
        """The test is over: crashed nodes stay down."""
        self._scope = trio.CancelScope()
        self._standing: list[str] | None = None
        self._nursery: trio.Nursery | None = None
        self._faults_scope = trio.CancelScope()
        self._faults_over: trio.Event | None = None
        self._remains: list[trio.lowlevel.Task] = []
        """The tasks of crashed nodes."""
        self._active: dict[tuple[str, tuple[str, ...]], None] = {}

    def __repr__(self) -> str:
        return f"<World {self.clock.current_time():g} s, {self.plan}>"

    @property
    def network(self) -> "Memory":
        """The network of the nodes, for faults that the test itself decides on."""
        if self._network is None:
            raise NotAllowedError("a world has a network from its first `await world.start(…)` on")
        return self._network

    # -- the verbs of a test -----------------------------------------------------------------------

    async def start(
        self,
        nodes: int | Sequence[str],
        start: Start | None = None,
        *,
        types: Iterable[type | ModuleType] = (),
        network: dict[str, Any] | None = None,
        **options: Any,
    ) -> list[WorldNode]:
        """Start nodes, and wait until all of them are up.

        Args:
            nodes: their number, or their names.
            start: called with each node when it starts, also when it starts again after a crash.
            types: the classes of messages that travel between the nodes; at the first start.
            network: further options of ``Memory``; at the first start.
            options: those of ``open_node``.

        Raises:
            BadInputError: a name is taken, or a value is invalid.
        """
        if isinstance(nodes, int):
            check_number("nodes", nodes, least=1, most=len(_NAMES), whole=True)
            nodes = [f"{letter}@world" for letter in _NAMES[len(self.nodes) :][:nodes]]
        if self._network is None:
            from .network import WorldNetwork  # noqa: PLC0415 - needs the extra ergo_py[network]

            self._network = WorldNetwork(self.history, types=types, **(network or {}))
        started = []
        for name in nodes:
            if name in self.nodes:
                raise BadInputError("nodes", name, "a name that no other node of the world has")
            self.owners.add_node(name)
            given = {**_OPTIONS, **options, "network": self._network}
            disk = WorldDisk(random.Random(repr((self.plan.seed, "disk", name))))
            started.append(WorldNode(self, name, start, given, disk))
            self.nodes[name] = started[-1]
            self.launch(started[-1])
        for node in started:
            await node.wait_up()
        return started

    def faults(
        self,
        *,
        seconds: float = 30.0,
        nodes: Sequence[str] | None = None,
        limits: dict[str, tuple[float, float]] | None = None,
        **rates: float,
    ) -> None:
        """Begin the faults of the plan; :meth:`heal` ends them. At most once in a world.

        Args:
            seconds: no fault begins later than this.
            nodes: the nodes that may have faults; None for all.
            limits: the smallest and the largest amount of a kind: ``{"delay": (0.0, 2.0)}``.
            rates: faults of a kind per simulated second, on average: ``cut``, ``one_way``,
                ``lose``, ``double`` and ``delay`` of frames; ``cut_store`` and ``slow_store``;
                ``pause``, ``crash`` and ``skew`` of nodes.

        Raises:
            BadInputError: a kind is unknown, or a value is invalid.
            NotAllowedError: the faults have begun before.
        """
        for kind, rate in rates.items():
            if kind not in KINDS:
                raise BadInputError("faults", kind, f"a kind of {sorted(KINDS)}")
            check_number(kind, rate, least=0.0)
        check_number("seconds", seconds, least=0.0)
        if self._has_faults:
            raise NotAllowedError("world.faults(…) was called before: a world has a single plan")
        self._has_faults = True
        if self._is_drawn:
            names = tuple(self.nodes if nodes is None else nodes)
            drawn = FaultRates(rates, seconds, limits or {}, names).draw(self.plan.seed)
            self.plan = self.plan.with_faults(drawn)
        self._faults_over = trio.Event()
        self._soon(self._run_faults, self.plan.faults, self._faults_over)

    async def heal(self) -> None:
        """End all faults, start crashed nodes again, and wait until all nodes are up."""
        self._faults_scope.cancel()
        if self._faults_over is not None:
            await self._faults_over.wait()
        if self._network is not None:
            self._network.heal()
        self.history.note("note", "", "all faults end")
        for node in self.nodes.values():
            await node.wait_up()

    def check(self, *checkers: Checker) -> None:
        """Let checkers look at the history.

        Raises:
            CheckError: a checker has found a fault.
        """
        for checker in checkers:
            lines = list(checker(self.history))
            if lines:
                raise CheckError(getattr(checker, "__name__", str(checker)), lines)

    def note(self, text: str) -> None:
        """Add a line to the story of the world."""
        self.history.note("note", "", text)

    def is_paused(self, node: str) -> bool:
        """Whether the program of a node is stopped."""
        return self.order.is_paused(node)

    # -- faults ------------------------------------------------------------------------------------

    async def _run_faults(self, faults: Sequence[PlannedFault], over: trio.Event) -> None:
        began = trio.current_time()
        with self._faults_scope:
            async with trio.open_nursery() as nursery:
                for fault in faults:
                    await trio.sleep_until(began + fault.at)
                    nursery.start_soon(self._run_fault, fault)
        over.set()

    async def _run_fault(self, fault: PlannedFault) -> None:
        key = fault.kind, fault.nodes
        if key in self._active or any(name not in self.nodes for name in fault.nodes):
            return
        self._active[key] = None
        self.history.note("fault", "", fault.story)
        try:
            with getattr(self, f"_fault_{fault.kind}")(fault):
                await trio.sleep(fault.seconds)
        finally:
            del self._active[key]

    @contextmanager
    def _fault_cut(self, fault: PlannedFault) -> Iterator[None]:
        self.network.cut(*fault.nodes, one_way=fault.kind == "one_way")
        yield
        self.network.heal(*fault.nodes)

    _fault_one_way = _fault_cut

    @contextmanager
    def _disturbed(self, fault: PlannedFault, **options: Any) -> Iterator[None]:
        disturbance = self.network.disturb(*fault.nodes, seed=self._seed_of(fault), **options)
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
        self.network.cut_store(*fault.nodes)
        try:
            yield
        finally:
            self.network.heal_store(*fault.nodes)

    @contextmanager
    def _fault_slow_store(self, fault: PlannedFault) -> Iterator[None]:
        (name,) = fault.nodes
        self.network.slow_store(name, fault.amount, seed=self._seed_of(fault))
        try:
            yield
        finally:
            self.network.slow_store(name, 0.0)

    @contextmanager
    def _fault_pause(self, fault: PlannedFault) -> Iterator[None]:
        (name,) = fault.nodes
        began = trio.current_time()
        self.order.pause(name)
        try:
            yield
        finally:
            self.history.pauses.append((name, began, trio.current_time()))
            self.order.resume(name)
            self.nodes[name].note_change()

    @contextmanager
    def _fault_crash(self, fault: PlannedFault) -> Iterator[None]:
        node = self.nodes[fault.nodes[0]]
        remains = node.crash(self.order)
        if not remains:  # it was down, or just opening
            yield
            return
        self._remains += remains
        self.network.remove(node.name)
        try:
            yield
        finally:
            if not self._is_over:
                self.note(f"{node.name} starts again")
                self.launch(node)

    @contextmanager
    def _fault_skew(self, fault: PlannedFault) -> Iterator[None]:
        (name,) = fault.nodes
        self.clock.set_rate(name, 1.0 + fault.amount)
        try:
            yield
        finally:
            self.clock.set_rate(name, 1.0)

    def _seed_of(self, fault: PlannedFault) -> int:
        return random.Random(repr((self.plan.seed, str(fault)))).getrandbits(63)

    # -- the run -----------------------------------------------------------------------------------

    def launch(self, node: WorldNode) -> None:
        """Start a node, or start it again."""
        self._soon(node.live)

    def _soon(self, function: Callable[..., Awaitable[object]], *args: Any) -> None:
        if self._nursery is None:
            raise NotAllowedError("this world does not run")
        self._nursery.start_soon(function, *args)

    async def main(self, function: Callable[["World"], Awaitable[object]]) -> None:
        """Run a test in the world."""
        with self._scope:
            async with trio.open_nursery() as self._nursery:
                try:
                    await function(self)
                finally:
                    self.history.end_story()
                    self._is_over = True
                    # Also after a failure: a node cannot close while its program is stopped.
                    self._faults_scope.cancel()
                    for name in self.nodes:
                        self.order.resume(name)
                if self._faults_over is not None:
                    await self._faults_over.wait()
                for node in self.nodes.values():
                    await node.close()
        if self._standing is not None:
            raise StandstillError(self._standing)

    def bury(self) -> None:
        """Release the tasks of crashed nodes, when the run is over."""
        close_remains(self._remains)
        self._remains.clear()

    def _stand_still(self) -> None:
        if self._standing is None:
            self._standing = describe_tasks()
            self._scope.cancel()
        elif not lift_shields():
            # This ends the loop in the hard way, and trio says so.
            raise StandstillError(self._standing)


def run_world(world: World, function: Callable[[World], Awaitable[object]]) -> Exception | None:
    """Run a test in a world. Returns its failure."""
    state = random.getstate()
    collects = gc.isenabled()
    gc.disable()
    random.seed(world.plan.seed)
    try:
        sources = SeededSources(world.plan.seed)
        with ordered_by(world.order), replace_sources(sources), world.entrances.guarded():
            trio.run(world.main, function, clock=world.clock)
    except Exception as failure:
        return next(iter(world.entrances.errors), _leaf(failure))
    finally:
        world.bury()
        random.setstate(state)
        if collects:
            gc.enable()
    return next(iter(world.entrances.errors), None)


def _leaf(failure: Exception) -> Exception:
    """The first failure of a group: the others are mostly its consequences."""
    while isinstance(failure, ExceptionGroup):
        failure = failure.exceptions[0]
    return failure
