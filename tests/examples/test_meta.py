"""The four patterns print what their README says, and leave nothing running."""

import re
import subprocess
import sys

import pytest

from tests.examples.programs import EXAMPLES

FOLDER = EXAMPLES / "meta"
PATTERNS = ["events", "commands", "duplex", "server"]


def said_to_print() -> dict[str, str]:
    """What the README says that each program prints."""
    found = re.findall(
        r"```\npython examples/meta/(\w+)\.py\n```\n\n```text\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL
    )
    return dict(found)


def test_the_readme_shows_every_program() -> None:
    assert sorted(said_to_print()) == sorted(PATTERNS) == sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_does_what_the_readme_says(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", str(FOLDER / f"{name}.py")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stderr == ""
    assert done.stdout == said_to_print()[name]
    assert done.returncode == 0
