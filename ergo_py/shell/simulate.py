"""``ergo simulate``: runs a test of a world, for a seed, for several, or with a plan."""

import argparse
from pathlib import Path
from typing import Any

from ..testing.world.plan import Plan
from ..testing.world.simulation import Simulation, SimulationError
from .exit_codes import Leave, Status
from .output import show
from .program_loader import load_file

__all__ = ["simulate"]


def simulate(options: argparse.Namespace) -> None:
    """Run the test that the command line names.

    Raises:
        Leave: there is no such test, or it fails.
    """
    simulation = _find(options.test)
    try:
        if options.plan is not None:
            world = simulation.run_plan(Plan.read(options.plan))
            show(f"it goes well: {world.clock.current_time():g} s, digest {world.history.digest}")
            return
        seeds = None if options.seed is None else [options.seed]
        if options.seeds is not None:
            seeds = list(range(options.seeds))
        show(f"{simulation.run(seeds)} seeds go well")
    except SimulationError as failure:
        raise Leave(Status.FAILED, str(failure)) from None


def _find(target: str) -> Simulation:
    file, _, name = target.partition("::")
    if not name:
        raise Leave(
            Status.USAGE, f"{target!r} names no test; write tests/test_shop.py::test_orders"
        )
    found: Any = load_file(Path(file), [])
    for part in name.split("::"):
        found = getattr(found, part, None)
    simulation = getattr(found, "simulation", None)
    if not isinstance(simulation, Simulation):
        raise Leave(Status.USAGE, f"{file} has no test {name} with @simulated")
    return simulation
