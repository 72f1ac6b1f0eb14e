"""Worlds of entities keep their promises, for 80 seeds of `bank` and a few of `parking` and
`versions`, which are alike; `python -m benchmarks worlds` explores more.
"""

import pytest

from benchmarks.worlds.entities import bank, parking
from benchmarks.worlds.versions import versions
from ergo_py.testing.world.simulation import Simulation
from tests.support import THOROUGH

PART = 10
"""Seeds of a test: several workers share them."""
SEEDS = 4_000 if THOROUGH else 80


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_entities_keep_their_promises_through_crashes_and_faults_of_the_disk(first: int) -> None:
    simulation = Simulation(bank, PART)

    assert simulation.run(range(first, first + PART)) == PART


@pytest.mark.parametrize("first", range(0, SEEDS // 4 if THOROUGH else PART, PART))
def test_parked_messages_that_are_retried_take_effect_once(first: int) -> None:
    simulation = Simulation(parking, PART)

    assert simulation.run(range(first, first + PART)) == PART


@pytest.mark.parametrize("first", range(0, SEEDS // 16 if THOROUGH else PART, PART))
def test_each_version_of_a_program_keeps_the_rows_of_the_others(
    first: int,
) -> None:
    simulation = Simulation(versions, PART)

    assert simulation.run(range(first, first + PART)) == PART
