"""`simulated`: a test that runs in a world for each seed. A failing seed is shrunk and told."""

import inspect
import os
import shlex
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from ..._core.vocabulary.errors import BadInputError, ErgoError
from ..._core.vocabulary.options import check_number
from .plan import Plan
from .shrinker import RUNS, shrink
from .world import CheckError, World, run_world

__all__ = ["Simulation", "SimulationError", "simulated"]

Test = Callable[[World], Awaitable[object]]


class SimulationError(ErgoError, AssertionError):
    """A test failed in a world. The failure is the cause; the text tells the history of the
    smallest plan that fails, and the command that repeats it.
    """

    def __init__(
        self, seed: int, passed: int, plan: Plan, runs: int, story: str, command: str
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
        tried = f"The smallest plan that fails the same way, of {runs} tried, has"
        super().__init__(
            f"seed {seed} fails, after {passed} that went well. "
            f"{tried if runs else 'Its plan has'} {_count(len(plan.faults), 'fault')}:"
            f"\n\n{story}\n\nThis command repeats it:\n  {command}"
        )


class Simulation:
    """A test of worlds: the attribute ``simulation`` of a test with ``@simulated``."""

    def __init__(self, test: Test, seeds: int) -> None:
        self._test = test
        self.seeds = seeds
        """The number of seeds that the test runs."""

    def choose_seeds(self, seeds: int) -> None:
        """Run another number of seeds."""
        check_number("seeds", seeds, least=1, whole=True)
        self.seeds = seeds

    @property
    def command(self) -> str:
        """The command that runs the test for a seed or a plan."""
        file = inspect.getsourcefile(self._test) or "?"
        path = Path(file)
        if path.is_relative_to(Path.cwd()):
            file = os.path.relpath(file)
        return f"ergo simulate {shlex.quote(f'{file}::{self._test.__qualname__}')}"

    def run(self, seeds: Iterable[int] | None = None) -> int:
        """Run the test for each seed. Returns the number of seeds.

        Raises:
            SimulationError: a seed fails.
        """
        __tracebackhide__ = True
        passed = 0
        for seed in range(self.seeds) if seeds is None else seeds:
            world = World(Plan(seed))
            failure = run_world(world, self._test)
            if failure is not None:
                raise self._shrunk(world, failure, passed) from failure
            passed += 1
        return passed

    def run_plan(self, plan: Plan) -> World:
        """Run the test with a plan, and do not shrink it. Returns the world.

        Raises:
            SimulationError: it fails.
        """
        __tracebackhide__ = True
        world = World(plan, is_drawn=False)
        failure = run_world(world, self._test)
        if failure is not None:
            raise self._error(world, failure, 0, 0) from failure
        return world

    def _shrunk(self, world: World, failure: Exception, passed: int) -> SimulationError:
        runs = 0

        def fails(plan: Plan) -> bool:
            nonlocal runs
            runs += 1
            return _kind(run_world(World(plan, is_drawn=False), self._test)) == _kind(failure)

        plan = shrink(world.plan, fails, runs=RUNS)
        last = World(plan, is_drawn=False)
        again = run_world(last, self._test)
        if again is None:
            # Something outside of the world decides: tell the history that has failed.
            return self._error(world, failure, passed, runs)
        return self._error(last, again, passed, runs)

    def _error(self, world: World, failure: Exception, passed: int, runs: int) -> SimulationError:
        plan = world.plan
        command = f"{self.command} --plan {shlex.quote(str(plan))}"
        return SimulationError(plan.seed, passed, plan, runs, world.history.tell(failure), command)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _kind(failure: Exception | None) -> object:
    """Equal for failures of the same kind."""
    return failure.checker if isinstance(failure, CheckError) else type(failure)


def simulated(*, seeds: int = 100) -> Callable[[Test], Callable[[], None]]:
    """Run an async test in a world for each seed. The test takes the world, and nothing else.

    For example::

        @simulated(seeds=1000)
        async def test_there_is_a_single_counter(world: World) -> None:
            nodes = await world.start(3, start)
            world.faults(cut=0.2, pause=0.1)
            ...
            world.check(at_most_one("counter"))

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
            simulation.run()

        names = "__module__", "__name__", "__qualname__", "__doc__"
        vars(run).update(simulation=simulation)
        for name in names:
            setattr(run, name, getattr(test, name))
        return run

    return decorate
