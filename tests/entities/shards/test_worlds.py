"""Entities on three nodes keep their promises; `python -m benchmarks worlds --only fleet` and
`--only moves` explore more seeds.
"""

import pytest

from benchmarks.worlds.shards import fleet, moves
from ergo_py.testing.world.simulation import Simulation
from tests.support import THOROUGH

SEEDS = 2_000 if THOROUGH else 12


@pytest.mark.parametrize("seed", range(SEEDS))
def test_entities_on_several_nodes_keep_their_promises(seed: int) -> None:
    simulation = Simulation(fleet, 1)

    assert simulation.run(range(seed, seed + 1)) == 1


@pytest.mark.parametrize("seed", range(SEEDS // 4))
def test_a_planned_move_loses_and_doubles_no_command(seed: int) -> None:
    simulation = Simulation(moves, 1)

    assert simulation.run(range(seed, seed + 1)) == 1
