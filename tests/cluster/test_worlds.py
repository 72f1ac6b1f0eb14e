"""Worlds of clusters keep their promises; `python -m benchmarks worlds` explores more seeds."""

from typing import Any

import pytest

from benchmarks.worlds.clusters import groups, leases, names
from ergo_py.testing.world.simulation import Simulation
from tests.support import THOROUGH

SEEDS = 1_000 if THOROUGH else 5


@pytest.mark.parametrize("world", [groups, leases, names], ids=lambda each: each.__name__)
def test_clusters_keep_their_promises_through_faults(world: Any) -> None:
    simulation = Simulation(world, SEEDS)

    assert simulation.run() == SEEDS
