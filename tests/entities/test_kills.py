"""Programs that are killed: the file has every acknowledged command, once."""

from pathlib import Path

import pytest

from ergo_py.entities.record import Record
from tests.support import THOROUGH

from .kills import kill_programs
from .program import RULES
from .traders import Purse, Told, Trader, faults_of


def test_no_acknowledged_command_is_lost_when_the_program_is_killed(tmp_path: Path) -> None:
    found = list(kill_programs(tmp_path, 2))

    assert [faults for _, faults in found] == [[], [], []]
    # Each was killed after so many lines that clients had answers.
    assert [acknowledged > 0 for acknowledged, _ in found] == [True, True, False]


@pytest.mark.skipif(
    not THOROUGH, reason="kills until the fault shows: python -m benchmarks test-deep"
)
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule])
def test_the_check_of_killed_programs_finds_a_broken_rule(rule: str, tmp_path: Path) -> None:
    kills = 0 if "wake" in rule else 20
    assert any(faults for _, faults in kill_programs(tmp_path, kills, broken=rule, limit=3.0))


@pytest.mark.parametrize(
    "stored, fault",
    [
        (Purse(10, 1, 1), "0: acknowledged 2, stored 1"),
        (Purse(18, 4, 3), "0: tried 3, stored 4"),
        (Purse(9, 3, 2), "0: the refused command 3 took effect"),
        (Purse(19, 2, 3), "0: 3 of 2 commands took effect"),
        (Purse(10, 2, 2), "0: has 10 coins"),
        (Purse(9, 2, 2), "1 coins paid, 0 received, 0 under way"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_check_finds_a_purse_that_does_not_follow_from_the_commands(
    stored: Purse, fault: str
) -> None:
    told = Told().take(["try 0 2", "done 0 2", "try 0 3", "refused 0 3"])
    record = Record()
    record.state = Trader.__state_type__.encode(stored)

    assert fault in faults_of({"0": record}, told)
