"""Worlds of networks keep their promises, for 40 seeds of each; `python -m
benchmarks worlds` explores more.
"""

from typing import Any

import pytest

from benchmarks.worlds.networks import messages, watches
from ergo_py.testing.world.simulation import Simulation
from tests.support import THOROUGH

PART = 10
"""Seeds of a test: several workers share them."""
SEEDS = 1_000 if THOROUGH else 40


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
@pytest.mark.parametrize("world", [messages, watches], ids=lambda each: each.__name__)
def test_networks_keep_their_promises_through_faults(world: Any, first: int) -> None:
    simulation = Simulation(world, PART)

    assert simulation.run(range(first, first + PART)) == PART
