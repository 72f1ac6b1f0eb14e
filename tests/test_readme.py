"""The README shows the output of its program; tests/test_docs_blocks.py compares the program."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def shown(mark: str) -> list[tuple[str, str]]:
    """Each file that is named in a comment ``<!-- mark: file -->``, and the block below it."""
    return re.findall(
        rf"<!-- {mark}: (\S+) -->\n```\w+\n(.*?)^```$", README, re.MULTILINE | re.DOTALL
    )


def test_the_readme_shows_the_counter_and_its_output() -> None:
    assert [path for path, _ in shown("file")] == ["examples/counter/main.py"]
    assert [path for path, _ in shown("output")] == ["examples/counter/main.py"]


@pytest.mark.parametrize("path, output", shown("output"))
def test_a_program_in_the_readme_prints_the_output_in_the_readme(path: str, output: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == output
