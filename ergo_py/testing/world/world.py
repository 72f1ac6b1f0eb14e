"""`World`: whole nodes in a single program, in virtual time, with seeded faults."""

import gc
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import trio

from ..._core.sources import SeededSources, replace_sources
from ..._core.vocabulary.errors import BadInputError, ErgoError, NotAllowedError
from ..._core.vocabulary.hints import did_you_mean
from ..._core.vocabulary.options import check_number
from ..._core.vocabulary.public_names import name_for_annotations
from ...meta.sockets.socket_source import replace_sockets
from ..leaks import LeakError
from ..task_order import ordered_by
from .checkers import Checker, all_answered, at_most_one, kept
from .clock import EndlessWaitError, LivelockError, StandstillError, WorldClock
from .crash import close_remains
from .disk import WorldDisk
from .faults import FaultRun
from .history import History
from .linearizability import linearizable
from .machine.sockets import WorldSockets
from .machine.threads import WorldThreads
from .node import Start, WorldNode
from .outside import Entrances, OutsideError
from .plan import FaultRates, Plan, PlanError
from .tasks import TaskOwners, TasksOfTest, WorldOrder, describe_tasks, lift_shields, tasks_of_run

if TYPE_CHECKING:
    from ...network.carriers.memory import Memory
else:
    name_for_annotations(__name__, {"ergo_py.network.carriers.memory": "Memory"})

__all__ = ["CheckError", "World", "run_world"]

_NAMES: Final = "abcdefghijklmnopqrstuvwxyz"
_GRACE: Final = 1.0
"""Seconds that threads have to end after their nodes."""
_OPTIONS: Final[dict[str, Any]] = {"watchdog": None, "log_output": "none", "stop_timeout": 5.0}


class CheckError(ErgoError, AssertionError):
    """A checker has found a fault in the history of a world."""

    def __init__(self, checker: str, lines: Sequence[str]) -> None:
        self.checker = checker
        self.lines: tuple[str, ...] = tuple(lines)
        super().__init__(f"{checker}: {'; '.join(lines)}")


class World:
    """Nodes in virtual time. The same plan gives the same history.

    ``@simulated`` makes a world for each seed, and gives it to the test.
    """

    all_answered: Final = staticmethod(all_answered)
    at_most_one: Final = staticmethod(at_most_one)
    kept: Final = staticmethod(kept)
    linearizable: Final = staticmethod(linearizable)

    def __init__(self, plan: Plan, *, is_drawn: bool = True) -> None:
        self.plan: Plan = plan
        """All choices of this world; with its faults once :meth:`faults` was called."""
        self.random: random.Random = random.Random(repr((plan.seed, "test")))
        """Random numbers for the test itself."""
        self._is_drawn = is_drawn
        """Whether `faults` draws the faults from the seed; otherwise those of the plan count."""
        self.owners: TaskOwners = TaskOwners()
        self.clock: WorldClock = WorldClock(
            self._stand_still, self.owners, self._poll, self._has_sockets, self._check_test
        )
        self.history: History = History(self.clock.world_time)
        self.threads: WorldThreads = WorldThreads(plan.seed, self.owners, self.history, self._fail)
        self.sockets: WorldSockets = WorldSockets(
            plan.seed, self.owners, self.history, self.threads
        )
        self.entrances: Entrances = Entrances(plan.seed, self.threads, self.clock.current_time)
        self.order: WorldOrder = WorldOrder(
            plan.seed, plan.is_shuffled, self.owners, self._begin_pass
        )
        self.nodes: dict[str, WorldNode] = {}
        self._network: Memory | None = None
        self.is_over: bool = False
        """The test is over: crashed nodes stay down."""
        self._scope = trio.CancelScope()
        self._standing: StandstillError | None = None
        """Why the world cannot go on."""
        self._test: TasksOfTest = TasksOfTest()
        self._remains: list[trio.lowlevel.Task] = []
        """The tasks of crashed nodes."""
        self._faults: FaultRun | None = None
        """The faults, once they have begun."""
        self._faulty: tuple[str, ...] = ()
        """The nodes that the test lets have faults."""

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
            from .machine.network import WorldNetwork  # noqa: PLC0415 - needs the extra ergo_py[network]

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
        victims: Sequence[str] | None = None,
        **rates: float,
    ) -> None:
        """Begin the faults of the plan; :meth:`heal` ends them. At most once in a world.

        Args:
            seconds: no fault begins later than this.
            nodes: the nodes that may have faults; None for all.
            limits: the smallest and the largest amount of a kind: ``{"delay": (0.0, 2.0)}``.
            victims: the names of the processes that ``kill`` may choose, or the behaviours of
                those without a name; None for all.
            rates: faults of a kind per simulated second, on average: ``cut``, ``one_way``,
                ``lose``, ``double`` and ``delay`` of frames; ``cut_store`` and ``slow_store``;
                ``fail_disk`` and ``slow_disk``; ``stall_sockets``, ``slow_sockets``,
                ``tear_sockets`` and ``reset_sockets``; ``lose_datagrams`` and
                ``double_datagrams``; ``pause``, ``crash`` and ``skew`` of nodes; ``kill`` of a
                process.

        Raises:
            BadInputError: a kind is unknown, a value is invalid, or the plan that runs has faults
                of other kinds. A world that has gone well raises it for nodes that it has not
                started, and for victims that never lived.
            NotAllowedError: the faults have begun before, or there is no node yet.
        """
        names = tuple(self.nodes if nodes is None else nodes)
        chosen = FaultRates(rates, seconds, limits or {}, names)
        chosen.check()
        if self._faults is not None:
            raise NotAllowedError("world.faults(…) was called before: a world has a single plan")
        if rates and not names:
            raise NotAllowedError(
                "world.faults(…) has no node that may have faults: call it after "
                "`await world.start(…)`, or give it nodes=[…]"
            )
        if self._is_drawn:
            self.plan = self.plan.with_faults(chosen.draw(self.plan.seed))
        elif rates:  # a test without rates is there for plans that are written by hand
            self._refuse_kinds(rates)
        self._faulty = names
        self._faults = FaultRun(self, victims)
        self._soon(self._faults.run, self.plan.faults)

    def _refuse_kinds(self, rates: dict[str, float]) -> None:
        """Refuse a plan with faults that this test never draws."""
        for fault in self.plan.faults:
            if fault.kind not in rates:
                raise PlanError(
                    "plan",
                    str(fault),
                    f"a fault that this test has: {', '.join(rates)}. Run the plan with the test "
                    f"that has printed it, or give world.faults(…) a rate: {fault.kind}=0.1",
                )

    def _refuse_unknown(self) -> None:
        """Refuse faults that could not happen in a world that has gone well: a typing error in a
        name would go well for each seed.
        """
        if self._faults is None:
            if self.plan.faults:
                raise PlanError(
                    "plan",
                    str(self.plan),
                    "a plan without faults, since this test does not call world.faults(…): run the "
                    "plan with the test that has printed it",
                )
            return
        for name in [*self._faulty, *(each for fault in self.plan.faults for each in fault.nodes)]:
            if name not in self.nodes:
                raise PlanError(
                    "nodes of faults",
                    name,
                    f"a node of this world: {', '.join(self.nodes) or 'it has started none'}"
                    f"{did_you_mean(name, self.nodes)}",
                )
        missed = self._faults.missed_victims
        if missed is not None:
            lived = list(dict.fromkeys(life.name for life in self.history.lifetimes))
            hint = "".join(did_you_mean(each, lived) for each in missed)
            raise PlanError(
                "victims",
                list(missed),
                f"names of processes that lived in this world: {lived}{hint}",
            )

    async def heal(self) -> None:
        """End all faults, start crashed nodes again, and wait until all nodes are up."""
        if self._faults is not None:
            self._faults.cancel()
            await self._faults.wait()
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

    # -- the run -----------------------------------------------------------------------------------

    def keep(self, remains: list[trio.lowlevel.Task]) -> None:
        """Keep the tasks of a crashed node until the world is over."""
        self._remains += remains

    def launch(self, node: WorldNode) -> None:
        """Start a node, or start it again."""
        self._soon(node.live)

    def _soon(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        if self._test.nursery is None:
            raise NotAllowedError("this world does not run")
        self._test.nursery.start_soon(function, *args)

    async def main(self, function: Callable[["World"], Awaitable[object]]) -> None:
        """Run a test in the world."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                self._test.begin(nursery)
                try:
                    await function(self)
                    self._refuse_unknown()
                finally:
                    self.history.end_story()
                    self.is_over = True
                    # Also after a failure: a node cannot close while its program is stopped.
                    if self._faults is not None:
                        self._faults.cancel()
                    for name in self.nodes:
                        self.order.resume(name)
                if self._faults is not None:
                    await self._faults.wait()
                for node in self.nodes.values():
                    await node.close()
        if self._standing is not None:
            raise self._standing
        if self._left():
            await trio.sleep(_GRACE)
        left = self._left()
        if left:
            raise LeakError(left)

    def _left(self) -> list[str]:
        """The resources of nodes that are left when all nodes have ended, a line each."""
        tasks = [task for task in tasks_of_run() if self.owners.of(task)]
        lines = [f"the task {task} is left" for task in describe_tasks(tasks)]
        lines += [f"the thread {name} is left" for name in self.threads.names]
        lines += [f"{name} is left" for name in self.sockets.names]
        lines += [
            f"the process {pid} is left"
            for node in self.nodes
            for pid in self.history.living(node, None)
        ]
        lines += [f"a deadline of {node} is left" for node in self.clock.deadlines_of_nodes()]
        return lines

    def bury(self) -> None:
        """Release the tasks of crashed nodes, when the run is over."""
        close_remains(self._remains)
        self._remains.clear()

    def _begin_pass(self, tasks: list[trio.lowlevel.Task]) -> None:
        self.history.mix_pass(len(tasks))
        self.threads.poll()
        if tasks and self.clock.begin_pass():
            self._stop(LivelockError(describe_tasks(tasks)))

    def _poll(self) -> bool:
        return self.threads.poll()

    def _has_sockets(self) -> bool:
        return bool(self.sockets)

    def _fail(self, error: OutsideError) -> None:
        self.entrances.errors.append(error)
        self._scope.cancel()

    def _stand_still(self) -> None:
        self._stop(StandstillError(describe_tasks(tasks_of_run())))

    def _check_test(self) -> None:
        if self._test.stands_still():
            self._stop(EndlessWaitError(describe_tasks(self._test.tasks())))

    def _stop(self, why: StandstillError) -> None:
        if self._standing is None:
            self._standing = why
            self._scope.cancel()
        elif not lift_shields():
            # This ends the loop in the hard way, and trio says so.
            raise self._standing


def run_world(world: World, function: Callable[[World], Awaitable[object]]) -> Exception | None:
    """Run a test in a world. Returns its failure."""
    state = random.getstate()
    collects = gc.isenabled()
    gc.disable()
    random.seed(world.plan.seed)
    try:
        sources = SeededSources(world.plan.seed, world.threads)
        with (
            ordered_by(world.order),
            replace_sources(sources),
            replace_sockets(world.sockets),
            world.entrances.guarded(),
        ):
            try:
                trio.run(world.main, function, clock=world.clock)
            finally:
                world.threads.bury()
                world.sockets.bury()
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
