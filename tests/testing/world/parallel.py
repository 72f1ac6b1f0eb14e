"""A program whose copies share seeds: ``python -m tests.testing.world.parallel NAME``."""

import os
import sys
from typing import Any

from ergo_py.testing import World, simulated
from ergo_py.testing.world.simulation import SimulationError


def failing_seed(simulation: Any, processes: int) -> tuple[int, int]:
    """The seed that fails, and how many have passed before."""
    try:
        simulation.run(processes=processes)
    except SimulationError as error:
        return error.seed, error.passed
    raise AssertionError("no seed fails")


def find_first_failing_seed() -> None:
    """The first seed that fails is found, and this program runs no other."""
    tried: list[int] = []

    @simulated(seeds=90)
    async def fails(world: World) -> None:
        tried.append(world.plan.seed)
        if world.plan.seed in (61, 77, 80):
            raise LookupError("found")

    simulation: Any = vars(fails)["simulation"]
    assert failing_seed(simulation, 3) == (61, 61)
    assert set(tried) == {61}, tried
    assert simulation.run(range(60), processes=3) == 60
    assert set(tried) == {61}, tried


def repeat_seeds_of_killed_copy() -> None:
    """The seeds of a copy that was killed are run by this program."""
    this = os.getpid()

    @simulated(seeds=60)
    async def dies(world: World) -> None:
        if world.plan.seed == 7 and os.getpid() != this:
            os._exit(9)
        if world.plan.seed == 9:
            raise LookupError("found")

    assert failing_seed(vars(dies)["simulation"], 2)[0] == 9


if __name__ == "__main__":
    {"find_first_failing_seed": find_first_failing_seed}.get(
        sys.argv[1], repeat_seeds_of_killed_copy
    )()
