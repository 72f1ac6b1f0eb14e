"""Examples that print what their READMEs say; the ledger that is killed loses nothing."""

import re
import subprocess
import sys

import pytest

from tests.examples.programs import EXAMPLES, ROOT


@pytest.mark.parametrize(
    "program",
    [
        "application/main.py",
        "dispatchers/main.py",
        "service/main.py",
        "state_machine/door.py",
        "supervision/smallest.py",
    ],
)
def test_an_example_prints_what_its_readme_says(program: str) -> None:
    readme = (EXAMPLES / program).with_name("README.md").read_text()
    [promised] = re.findall(r"^```text\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)

    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == promised


def test_the_ledger_that_is_killed_is_said_to_lose_nothing() -> None:
    readme = (EXAMPLES / "service" / "README.md").read_text()

    assert "500 deposits made, 500 in the store, 500 in all" in readme
