"""Entities on three nodes keep their promises; `python -m benchmarks worlds --only fleet` and
`--only moves` explore more seeds.
"""

import pytest

from benchmarks.worlds.shards import fleet, moves
from ergo_py.testing.world.plan import Plan
from ergo_py.testing.world.simulation import Simulation
from tests.support import THOROUGH

SEEDS = 2_000 if THOROUGH else 8
WAITED = (
    "seed=2006372; 2.86 cut b@world,a@world 9.69; 7.68 kill a@world 0.1 0.235; "
    "12.36 delay b@world,a@world 0.99 0.38"
)
"""A copy of a message waits on a, whose keeper was killed, until the shard comes back from b."""


@pytest.mark.parametrize("seed", range(SEEDS))
def test_entities_on_several_nodes_keep_their_promises(seed: int) -> None:
    simulation = Simulation(fleet, 1)

    assert simulation.run(range(seed, seed + 1)) == 1


@pytest.mark.parametrize("seed", range(SEEDS // 4))
def test_a_planned_move_loses_and_doubles_no_command(seed: int) -> None:
    simulation = Simulation(moves, 1)

    assert simulation.run(range(seed, seed + 1)) == 1


def test_a_copy_of_a_message_that_has_waited_has_no_effect() -> None:
    world = Simulation(fleet, 1).run_plan(Plan.read(WAITED))

    assert len(world.plan.faults) == 3
