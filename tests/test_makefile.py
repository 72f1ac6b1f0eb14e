"""`make` says what it is doing before it begins to install, and refuses an old Python."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENV = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
"""The environment without the variables of a make that runs these tests."""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A checkout without an environment, with a Python that does nothing before it is released."""
    for name in ("Makefile", "pyproject.toml", "hatch_build.py"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "benchmarks").mkdir()
    shutil.copy(ROOT / "benchmarks" / "pyproject.toml", tmp_path / "benchmarks")
    os.mkfifo(tmp_path / "released")
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nread line < released\nexit 3\n", encoding="utf-8")
    python.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("target", ["demo", "setup", "check"])
def test_make_says_that_it_creates_an_environment_before_it_begins(
    target: str, place: Path
) -> None:
    # For reading, too: else a write would wait for a reader.
    released = os.open(place / "released", os.O_RDWR)
    with subprocess.Popen(
        ["make", target, "PYTHON=./python"],
        cwd=place,
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as make:
        assert make.stdout is not None
        said = make.stdout.readline()
        os.write(released, b"now\n")
    os.close(released)

    assert said == "creating the environment .venv with ./python ...\n"
    assert make.returncode == 2


def test_make_refuses_an_old_python(place: Path) -> None:
    old = place / "python"
    old.write_text(
        f"#!/bin/sh\nexec {shutil.which('python3')} -c "
        '"import sys; sys.version_info = (3, 9, 1); $2"\n',
        encoding="utf-8",
    )

    done = subprocess.run(
        ["make", "demo", "PYTHON=./python"],
        cwd=place,
        env=ENV,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == (
        "./python is Python 3.9, and ergo_py needs 3.11 or later; write: make demo "
        "PYTHON=python3.13"
    )
    assert not (place / ".venv").exists()


def test_every_step_of_the_installation_says_its_purpose() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rules = makefile.split("\n\n")

    for environment in ("$(RUN):", "$(DEV):"):
        (rule,) = [rule for rule in rules if rule.startswith(environment)]
        lines = [line.strip() for line in rule.splitlines()]
        slow = [number for number, line in enumerate(lines) if " pip install " in line]
        assert slow
        assert any(line.startswith("@echo") for line in lines[: slow[0]])


def test_help_lists_the_targets_that_a_newcomer_needs() -> None:
    done = subprocess.run(
        ["make", "help"],
        cwd=ROOT,
        env=ENV,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )

    targets = done.stdout.splitlines()
    assert max(map(len, targets)) <= 80
    assert [line.split()[1] for line in targets] == [
        "setup",
        "fmt",
        "lint",
        "types",
        "test",
        "check",
        "docs",
        "demo",
        "build",
        "bench",
        "soak",
        "fuzz",
        "chaos",
        "browser",
        "walk",
        "clean",
    ]
    assert "python -m benchmarks list" in done.stdout


def test_targets_without_a_line_in_the_help_are_parts_of_others() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    hidden = re.findall(r"^([a-z-]+):(?!.*## )", makefile, re.MULTILINE)
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")

    for target in set(hidden) - {"help"}:
        assert re.search(
            rf"^(\t\$\(MAKE\)|[a-z-]+:).* {target}\b", makefile + hooks, re.MULTILINE
        ), target


def test_the_tests_know_the_selections_of_the_counted_and_the_uncounted_run() -> None:
    # Files in which such a run selects nothing are not imported.
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rules = (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")

    selections = set(re.findall(r' -m "(.+?)"', makefile))

    assert selections == set(re.findall(r'^_\w+_RUN = "(.+)"$', rules, re.MULTILINE))


def test_the_files_with_tests_of_replaced_functions_exist() -> None:
    # tests/conftest.py marks their tests by these paths: a file that has moved would have none.
    lists = [ROOT / ".ci" / name for name in ("speed-tests", "counted-speed-tests")]
    files = [path for each in lists for path in each.read_text(encoding="utf-8").split()]

    assert files
    assert [path for path in files if not (ROOT / path).is_file()] == []
