"""Worlds of entities keep their promises; `python -m benchmarks worlds` explores more seeds."""

from benchmarks.worlds.entities import bank
from ergo_py.testing.world.simulation import Simulation
from tests.support import THOROUGH

SEEDS = 5_000 if THOROUGH else 25


def test_entities_keep_their_promises_through_crashes_and_faults_of_the_disk() -> None:
    simulation = Simulation(bank, SEEDS)

    assert simulation.run() == SEEDS
