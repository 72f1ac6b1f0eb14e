"""The page with the times of the first steps."""

import re
from pathlib import Path

import pytest

from tests.examples.walk_record import PAGE, STEPS, Walk


def test_the_page_has_the_seconds_of_each_step_and_no_path_of_a_machine(tmp_path: Path) -> None:
    walk = Walk()
    for name in STEPS:
        with walk.step(name):
            pass

    walk.write(tmp_path / "walk.md")

    written = (tmp_path / "walk.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (.+) \| 0\.0 \|$", written, re.MULTILINE) == [*STEPS]
    assert "/tmp" not in written
    assert str(Path.home()) not in written
    # The page of the documentation is of the present steps.
    numbers = re.compile(r"[\d.]+ \||Measured on .*")
    kept = PAGE.read_text(encoding="utf-8")
    assert numbers.sub("", kept) == numbers.sub("", written), "run `make walk`"


def test_the_steps_are_taken_in_their_order() -> None:
    with pytest.raises(AssertionError), Walk().step(STEPS[1]):
        pass
