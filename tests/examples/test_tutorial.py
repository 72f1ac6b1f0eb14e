"""The tutorial can be followed: every file, command and answer on the page is the newcomer's file,
input and output.
"""

import difflib
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.examples.newcomer import Newcomer
from tests.examples.programs import EXAMPLES, ROOT

PAGE = ROOT / "docs" / "tutorial.md"
STEPS = re.findall(r"\.\./examples/tutorial/((?!test_)\w+\.py)\n", PAGE.read_text(encoding="utf-8"))


def test_the_tutorial_can_be_followed(short_path: Path) -> None:
    newcomer = Newcomer(short_path, Path(sys.executable).parent)

    newcomer.follow(PAGE)

    assert {"transcript: nc", "transcript: pytest", "transcript: in another terminal"} < set(
        newcomer.done
    )
    assert {path.name for path in short_path.glob("*.py")} == {
        path.name for path in (EXAMPLES / "tutorial").glob("*.py")
    }


@pytest.mark.parametrize("before, after", list(pairwise(STEPS)))
def test_the_lines_that_are_new_in_a_step_are_marked(before: str, after: str) -> None:
    old, new = (
        (EXAMPLES / "tutorial" / name).read_text(encoding="utf-8").splitlines()
        for name in (before, after)
    )
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    changed = [
        (first + 1, last)
        for tag, _, _, first, last in matcher.get_opcodes()
        if tag in ("insert", "replace")
    ]

    [marked] = re.findall(
        rf"tutorial/{after}\n(?::.*\n)*:emphasize-lines: (.*)\n", PAGE.read_text(encoding="utf-8")
    )

    assert marked == ",".join(
        str(first) if first == last else f"{first}-{last}" for first, last in changed
    )
