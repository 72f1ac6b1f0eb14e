"""Worlds of clusters keep their promises; `python -m benchmarks worlds` explores more seeds."""

from typing import Any

import pytest

from benchmarks.worlds.clusters import groups, leases, names
from ergo_py.testing.world.plan import Plan
from ergo_py.testing.world.simulation import Simulation
from tests.support import THOROUGH

STOPPED = "seed=2000052 order=plain; 15 pause c@world 6; 19 kill b@world 0.5 0.095"
"""The keeper of b is killed while c is stopped: c takes the greeting of its successor too late."""
ANSWERED = (
    "seed=100245 order=plain; 14 kill c@world 0.5 0.102; 21 pause b@world 6; "
    "24 kill c@world 0.5 0.891"
)
"""b is stopped while the keeper of c is killed. It meets that one first, and then its successor."""
UNMET = (
    "seed=400152 order=plain; 4 kill b@world 0.5 0.134; 8 kill a@world 0.5 0.154; "
    "19 kill a@world 0.5 0.154; 21 one_way a@world,b@world 3; 22 kill a@world 0.5 0.631; "
    "22.22 pause a@world 7.5; 28.72 kill b@world 0.5 0.679"
)
"""The new keeper of b loses a, which gets the greeting all the same, and drains."""
MISSED = (
    "seed=410235 order=plain; 16.68 delay c@world,b@world 9.61 1.868; 18 kill b@world 0.5 0.162; "
    "19 pause b@world 10; 21 one_way c@world,b@world 0.5"
)
"""c loses b, which is stopped, and drains. b does not lose c, and misses that a member has left."""
KILLED = "seed=256 order=plain; 4 pause a@world 11; 12 kill a@world 0.5 0.325"
"""A node drains in the moment in which the keeper of its singleton was killed."""
PART = 10
"""Seeds of a test: several workers share them."""
SEEDS = 1_000 if THOROUGH else 10


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
@pytest.mark.parametrize("world", [groups, leases, names], ids=lambda each: each.__name__)
def test_clusters_keep_their_promises_through_faults(world: Any, first: int) -> None:
    simulation = Simulation(world, PART)

    assert simulation.run(range(first, first + PART)) == PART


def test_a_new_keeper_of_groups_knows_a_node_that_was_stopped() -> None:
    world = Simulation(groups, 1).run_plan(Plan.read(STOPPED))

    assert len(world.plan.faults) == 2


def test_a_keeper_of_groups_is_known_that_follows_a_killed_keeper() -> None:
    world = Simulation(groups, 1).run_plan(Plan.read(ANSWERED))

    assert len(world.plan.faults) == 3


def test_a_drained_node_knows_the_groups_of_a_node_that_had_lost_it() -> None:
    world = Simulation(groups, 1).run_plan(Plan.read(UNMET))

    assert len(world.plan.faults) == 7


def test_a_node_that_is_met_again_knows_the_members_that_have_left_meanwhile() -> None:
    world = Simulation(groups, 1).run_plan(Plan.read(MISSED))

    assert len(world.plan.faults) == 4


def test_a_drain_waits_for_the_singleton_of_a_keeper_that_was_killed() -> None:
    world = Simulation(leases, 1).run_plan(Plan.read(KILLED))

    assert len(world.plan.faults) == 2
