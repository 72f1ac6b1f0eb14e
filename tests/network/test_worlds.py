"""Worlds of networks keep their promises; `python -m benchmarks worlds` explores more seeds."""

from typing import Any

import pytest

from benchmarks.worlds.networks import messages, watches
from ergo_py.testing.world.simulation import Simulation
from tests.support import THOROUGH

SEEDS = 1_000 if THOROUGH else 8


@pytest.mark.parametrize("world", [messages, watches], ids=lambda each: each.__name__)
def test_networks_keep_their_promises_through_faults(world: Any) -> None:
    simulation = Simulation(world, SEEDS)

    assert simulation.run() == SEEDS
