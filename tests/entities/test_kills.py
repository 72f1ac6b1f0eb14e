"""Programs that are killed: the file has every acknowledged command, once."""

from pathlib import Path

import pytest

from .kills import kill_programs
from .program import RULES


def test_no_acknowledged_command_is_lost_when_the_program_is_killed(tmp_path: Path) -> None:
    found = list(kill_programs(tmp_path, 2))

    assert [faults for _, faults in found] == [[], [], []]
    assert sum(acknowledged for acknowledged, _ in found) > 20


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule])
def test_the_check_of_killed_programs_finds_a_broken_rule(rule: str, tmp_path: Path) -> None:
    kills = 0 if "wake" in rule else 20
    assert any(faults for _, faults in kill_programs(tmp_path, kills, broken=rule, limit=3.0))
