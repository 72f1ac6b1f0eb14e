"""The README shows a program and what it prints; both are true."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "examples" / "counter" / "main.py"


def readme_block(language: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) == 1, f"README.md has {len(found)} blocks of {language}"
    return str(found[0])


def test_the_program_in_the_readme_is_the_example() -> None:
    assert readme_block("python") == PROGRAM.read_text()


def test_the_program_in_the_readme_prints_what_the_readme_says() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(PROGRAM)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == readme_block("text")
