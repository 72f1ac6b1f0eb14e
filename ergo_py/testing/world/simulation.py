"""`simulated`: a test that runs in a world for each seed. A failing seed is shrunk and told."""

import inspect
import multiprocessing
import os
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from ..._core.vocabulary.errors import BadInputError, ErgoError
from ..._core.vocabulary.options import check_number
from ...node import Node
from .outside import EPOCH
from .plan import Plan, PlanError
from .shrinker import RUNS, shrink
from .world import CheckError, World, run_world

__all__ = ["Simulation", "SimulationError", "simulated"]

Test = Callable[[World], Awaitable[object]]
_MANY: Final = 50
"""So many seeds are shared among several programs; fewer are done before these have started."""


class SimulationError(ErgoError, AssertionError):
    """A test failed in a world. The failure is the cause; the text tells the history of the
    smallest plan that fails, and the command that repeats it.
    """

    def __init__(
        self,
        seed: int,
        passed: int,
        plan: Plan,
        runs: int,
        story: str,
        command: str,
        *,
        repeats: bool = True,
    ) -> None:
        self.seed = seed
        self.passed = passed
        """The number of seeds that succeeded before."""
        self.plan = plan
        """The shrunk plan."""
        self.runs = runs
        """The number of worlds that the shrinker ran."""
        self.story = story
        self.command = command
        """Repeats the history."""
        self.repeats = repeats
        """Whether the failure came again with the same plan."""
        tried = f"The smallest plan that fails the same way, of {runs} tried, has"
        command_text = "This command repeats it"
        if not repeats:
            tried = (
                "The same plan does not fail this way again: something from outside of the world "
                "decides, such as a value that an earlier run has left, the time of the system, or "
                "the order of a set. The plan has"
            )
            command_text = "This command runs the plan again"
        super().__init__(
            f"seed {seed} fails, after {passed} that went well. "
            f"{tried if runs else 'Its plan has'} {_count(len(plan.faults), 'fault')}:"
            f"\n\n{story}\n\n{command_text}:\n  {command}"
        )


class Simulation:
    """A test of worlds: the attribute ``simulation`` of a test with ``@simulated``."""

    def __init__(self, test: Test, seeds: int) -> None:
        self._test = test
        self.seeds: int = seeds
        """The number of seeds that the test runs."""
        self.processes: int = 1
        """How many copies of the program share the seeds."""

    def choose_seeds(self, seeds: int) -> None:
        """Run another number of seeds, on all cores."""
        check_number("seeds", seeds, least=1, whole=True)
        self.seeds, self.processes = seeds, os.cpu_count() or 1

    @property
    def command(self) -> str:
        """The command that runs the test for a seed or a plan."""
        file = inspect.getsourcefile(self._test) or "?"
        path = Path(file)
        if path.is_relative_to(Path.cwd()):
            file = os.path.relpath(file)
        return f"ergo simulate {shlex.quote(f'{file}::{self._test.__qualname__}')}"

    def run(self, seeds: Iterable[int] | None = None, *, processes: int = 1) -> int:
        """Run the test for each seed. Returns the number of seeds.

        Args:
            seeds: the seeds; None for those of the test.
            processes: how many copies of this program share many seeds. A single one if the
                program has other threads, or the system cannot copy programs.

        Raises:
            SimulationError: a seed fails: the first of those that fail.
            PlanError: ``world.faults`` names nodes or victims that the world does not have.
        """
        __tracebackhide__ = True
        chosen = range(self.seeds) if seeds is None else list(seeds)
        first = 0
        if processes > 1 and len(chosen) >= _MANY and _can_fork():
            first = self._first_failure(chosen, processes)
        for passed in range(first, len(chosen)):
            world = World(Plan(chosen[passed]))
            failure = run_world(world, self._test)
            if isinstance(failure, PlanError):
                raise failure
            if failure is not None:
                raise self._shrunk(world, failure, passed) from failure
        return len(chosen)

    def _first_failure(self, seeds: Sequence[int], processes: int) -> int:
        """Search in several programs. Returns the position of the first seed that fails; the number
        of seeds if none does.
        """
        context: Any = multiprocessing.get_context("fork")
        first = context.Array("q", [len(seeds)])
        children = [
            context.Process(target=self._search, args=(seeds, each, processes, first))
            for each in range(processes)
        ]
        try:
            for child in children:
                child.start()
            for child in children:
                child.join()
        finally:
            for child in children:
                if child.is_alive():
                    child.kill()
        found: int = first[0]
        # A program that was killed has not looked at all of its seeds.
        return 0 if any(child.exitcode for child in children) else found

    def _search(self, seeds: Sequence[int], start: int, step: int, first: Any) -> None:
        """Search each seed of so many, until another program has found an earlier one."""
        for position in range(start, len(seeds), step):
            if position >= first[0]:
                return
            if run_world(World(Plan(seeds[position])), self._test) is not None:
                with first:
                    first[0] = min(first[0], position)
                return

    def run_plan(self, plan: Plan) -> World:
        """Run the test with a plan, and do not shrink it. Returns the world.

        Raises:
            SimulationError: it fails.
            PlanError: the plan does not fit the test.
        """
        __tracebackhide__ = True
        world = World(plan, is_drawn=False)
        failure = run_world(world, self._test)
        if isinstance(failure, PlanError):
            raise failure
        if failure is not None:
            raise self._error(world, failure, 0, 0) from failure
        return world

    def watch(
        self,
        plan: Plan,
        look: Callable[[float, list[Node] | None, list[tuple[float, str, str]]], None],
        *,
        is_drawn: bool,
    ) -> World:
        """Run the test with a plan, or with the seed of a plan, and let a function look at the
        nodes each second: at the time of day, the nodes that are up, and the story so far. At the
        end it sees the whole story, with None for the nodes.
        """
        world = World(plan, is_drawn=is_drawn)

        def story() -> list[tuple[float, str, str]]:
            history = world.history
            return [
                (EPOCH + event.at, event.kind, f"{event.node and event.node + ': '}{event.text}")
                for event in history.events
            ]

        def look_at(second: float) -> None:
            nodes = [node.node for node in world.nodes.values() if node.is_up]
            look(EPOCH + second, nodes, story())

        world.clock.watch(look_at)
        failure = run_world(world, self._test)
        if world.history.told is not None:
            # Without the ends of the nodes, which follow the test.
            del world.history.events[world.history.told :]
        if failure is not None:
            world.history.note("failure", "", f"{type(failure).__name__}: {failure}")
        look(EPOCH + world.clock.world_time(), None, story())
        return world

    def _shrunk(self, world: World, failure: Exception, passed: int) -> SimulationError:
        runs, kind = 0, self._kind(failure)

        def fails(plan: Plan) -> bool:
            nonlocal runs
            runs += 1
            return self._kind(run_world(World(plan, is_drawn=False), self._test)) == kind

        plan = shrink(world.plan, fails, runs=RUNS)
        last = World(plan, is_drawn=False)
        again = run_world(last, self._test)
        if again is None or self._kind(again) != kind:
            # Something outside of the world decides: tell the history that has failed.
            return self._error(world, failure, passed, runs, repeats=False)
        return self._error(last, again, passed, runs)

    def _kind(self, failure: Exception | None) -> object:
        """Equal for failures of the same kind: of a checker, or of a line of the test's file."""
        if isinstance(failure, CheckError):
            return failure.checker
        trace, line = None if failure is None else failure.__traceback__, 0
        file = inspect.getsourcefile(self._test)
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == file:
                line = trace.tb_lineno
            trace = trace.tb_next
        return type(failure), line

    def _error(
        self, world: World, failure: Exception, passed: int, runs: int, *, repeats: bool = True
    ) -> SimulationError:
        plan = world.plan
        command = f"{self.command} --plan {shlex.quote(str(plan))}"
        story = world.history.tell(failure)
        return SimulationError(plan.seed, passed, plan, runs, story, command, repeats=repeats)


def _can_fork() -> bool:
    """Whether a copy of this program can run a world: locks of other threads would stay locked."""
    return (
        "fork" in multiprocessing.get_all_start_methods()
        and len(sys._current_frames()) == 1
        and not multiprocessing.current_process().daemon
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def simulated(*, seeds: int = 100) -> Callable[[Test], Callable[[], None]]:
    """Run an async test in a world for each seed. The test takes the world, and nothing else.

    For example::

        @simulated(seeds=1000)
        async def test_there_is_a_single_counter(world: World) -> None:
            nodes = await world.start(3, start)
            world.faults(cut=0.2, pause=0.1)
            ...
            world.check(World.at_most_one("counter"))

    ``pytest --seeds 100000`` runs more seeds.

    Raises:
        BadInputError: the test is no async function of a world.
    """
    check_number("seeds", seeds, least=1, whole=True)

    def decorate(test: Test) -> Callable[[], None]:
        if not inspect.iscoroutinefunction(test) or len(inspect.signature(test).parameters) != 1:
            raise BadInputError("@simulated", test, "an `async def test(world)`")
        simulation = Simulation(test, seeds)

        def run() -> None:
            __tracebackhide__ = True
            simulation.run(processes=simulation.processes)

        names = "__module__", "__name__", "__qualname__", "__doc__"
        vars(run).update(simulation=simulation)
        for name in names:
            setattr(run, name, getattr(test, name))
        return run

    return decorate
