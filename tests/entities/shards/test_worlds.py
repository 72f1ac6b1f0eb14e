"""Entities on three nodes keep their promises; `python -m benchmarks worlds --only fleet` explores
more seeds.
"""

import pytest

from benchmarks.worlds.shards import fleet
from ergo_py.testing.world.simulation import Simulation
from tests.support import THOROUGH

SEEDS = 2_000 if THOROUGH else 12


@pytest.mark.parametrize("seed", range(SEEDS))
def test_entities_on_several_nodes_keep_their_promises(seed: int) -> None:
    simulation = Simulation(fleet, 1)

    assert simulation.run(range(seed, seed + 1)) == 1
