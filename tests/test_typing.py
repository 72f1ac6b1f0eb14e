"""The typing tests are in tests/typing, and `make check` runs them. Here: that none of them passes
by silence.
"""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "tests" / "typing").glob("*.py"))

MYPY = re.compile(r"# type: ignore\[[\w, -]+\]")
PREPARATION = re.compile(
    r" +(?:def |async def |@|class |# |pass$|\w+: [\w, :\[\]]+(?:$| = ))(?!.*ignore)"
)
"""Lines among the mistakes that are right: heads, parameters, and addresses with annotations."""
PYRIGHT = re.compile(r"# pyright: ignore\[[\w, ]+\]")


def settings(tool: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "tool"
    ][tool]
    return found


def cases(beginning: str) -> list[Any]:
    """The lines of all top-level functions and classes that begin so, in all files."""
    found: list[Any] = []
    for file in FILES:
        for name, body in re.findall(
            rf"^(?:async def|def|class) ({beginning}\w*)\b.*\n((?:(?:[ )].*)?\n)+)",
            file.read_text(encoding="utf-8"),
            re.MULTILINE,
        ):
            lines = [line for line in body.splitlines() if line.strip() and line[0] != ")"]
            found.append(pytest.param(lines, id=f"{file.stem}-{name}"))
    return found


def handed_over(target: str) -> dict[str, set[str]]:
    """The files and folders that a target of the Makefile hands to each type checker."""
    plan = subprocess.run(
        ["make", "--dry-run", "--always-make", target],
        cwd=ROOT,
        env={
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("MAKE", "MFLAGS"))
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    found = re.findall(r"^\.venv/bin/(mypy|basedpyright) ([^-].*)$", plan.stdout, re.MULTILINE)
    return {checker: set(places.split()) for checker, places in found}


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_hands_the_package_the_examples_and_the_cases_to_both_checkers() -> None:
    code = {"ergo_py", "pytest_ergo_py.py", "tests", "examples", "benchmarks"}
    shown = {"ergo_py", "pytest_ergo_py.py", "examples", "tests/typing"}

    assert handed_over("check") == {"mypy": code, "basedpyright": shown}
    assert handed_over("types") == {"mypy": code, "basedpyright": code}


def test_no_setting_omits_the_cases_or_allows_needless_ignores() -> None:
    mypy, basedpyright = settings("mypy"), settings("basedpyright")

    assert mypy["strict"] is True
    assert "ignore-without-code" in mypy["enable_error_code"]
    assert not {"warn_unused_ignores", "disable_error_code"} & mypy.keys()
    # The newcomer's directory is checked on its own. The peers of the benchmarks are not installed
    # here, and FastAPI may be missing.
    assert mypy["exclude"] == ["^examples/tutorial/"]
    lenient = {"benchmarks.peers.*", "examples.web.fastapi_shop", "examples.loops.fastapi_app"}
    for override in mypy["overrides"]:
        named = override["module"]
        modules = {named} if isinstance(named, str) else set(named)
        assert modules <= lenient or override.keys() == {"module", "ignore_missing_imports"}

    assert basedpyright["reportUnnecessaryTypeIgnoreComment"] == "error"
    assert basedpyright["enableTypeIgnoreComments"] is False
    assert "tests" in basedpyright["include"]
    assert not {"exclude", "ignore"} & basedpyright.keys()


def test_every_part_of_the_interface_has_cases() -> None:
    assert [file.stem for file in FILES] == [
        "addresses",
        "facades",
        "groups",
        "methods",
        "mistakes",
        "spawn_and_call",
        "streams",
        "tasks",
        "testing_kit",
    ]
    assert len(cases("(?i:wrong)")) >= 7
    assert len(cases("(?i:right)")) >= 8


@pytest.mark.parametrize("lines", cases("(?i:wrong)"))
def test_every_mistake_among_the_cases_is_expected_of_both_checkers(lines: list[str]) -> None:
    mistakes = [line for line in lines if not PREPARATION.match(line)]

    assert mistakes
    for line in mistakes:
        assert MYPY.search(line), f"mypy is not expected to refuse: {line}"
        assert PYRIGHT.search(line), f"basedpyright is not expected to refuse: {line}"


@pytest.mark.parametrize("lines", cases("(?i:right)"))
def test_no_case_that_must_be_accepted_is_ignored(lines: list[str]) -> None:
    text = "\n".join(lines)

    assert text.count("assert_type(") >= 2
    assert "ignore" not in text
