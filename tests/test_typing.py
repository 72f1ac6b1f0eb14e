"""The typing test is tests/typing/spawn_and_call.py, and `make types` runs it. Here: that it cannot
be passed by silently.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
CASES = ROOT / "tests" / "typing" / "spawn_and_call.py"

MYPY = re.compile(r"# type: ignore\[[\w, -]+\]")
PYRIGHT = re.compile(r"# pyright: ignore\[[\w, ]+\]")


def settings(tool: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "tool"
    ][tool]
    return found


def lines_below(heading: str) -> list[str]:
    """The lines of a top-level function or class of the cases."""
    body = re.search(
        rf"^{heading}\b.*\n((?:(?: .*)?\n)+)", CASES.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert body, f"no {heading!r}"
    return [line for line in body[1].splitlines() if line.strip()]


def test_make_types_hands_the_tests_to_both_checkers() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    code = re.search(r"^CODE\s*=\s*\$\(wildcard (.*)\)$", makefile, re.MULTILINE)
    recipes = dict(re.findall(r"^(mypy|pyright):.*\n((?:\t.*\n)+)", makefile, re.MULTILINE))

    assert code
    assert "tests" in code[1].split()
    assert re.search(r"^types: mypy pyright\b", makefile, re.MULTILINE)
    assert "\t$(BIN)/mypy $(CODE)\n" in recipes["mypy"]
    assert "\t$(BIN)/basedpyright $(CODE)\n" in recipes["pyright"]


def test_no_setting_omits_the_cases_or_allows_needless_ignores() -> None:
    mypy, basedpyright = settings("mypy"), settings("basedpyright")

    assert mypy["strict"] is True
    assert "ignore-without-code" in mypy["enable_error_code"]
    assert not {"warn_unused_ignores", "disable_error_code"} & mypy.keys()
    # The newcomer's directory is checked on its own, and the peers of the benchmarks are not
    # installed here.
    assert mypy["exclude"] == ["^examples/tutorial/"]
    for override in mypy["overrides"]:
        assert "benchmarks.peers.*" in override["module"] or override.keys() == {
            "module",
            "ignore_missing_imports",
        }

    assert basedpyright["reportUnnecessaryTypeIgnoreComment"] == "error"
    assert basedpyright["enableTypeIgnoreComments"] is False
    assert "tests" in basedpyright["include"]
    assert not {"exclude", "ignore"} & basedpyright.keys()


@pytest.mark.parametrize("heading", ["async def wrong_for_a_node", "class Wrong"])
def test_every_mistake_among_the_cases_is_expected_of_both_checkers(heading: str) -> None:
    lines = [
        line
        for line in lines_below(heading)
        if not line.lstrip().startswith(("def ", "async def "))
    ]

    assert len(lines) >= 5
    for line in lines:
        assert MYPY.search(line), f"mypy is not expected to refuse: {line}"
        assert PYRIGHT.search(line), f"basedpyright is not expected to refuse: {line}"


@pytest.mark.parametrize("heading", ["async def right_for_a_node", "class Right"])
def test_no_case_that_must_be_accepted_is_ignored(heading: str) -> None:
    text = "\n".join(lines_below(heading))

    assert text.count("assert_type(") >= 5
    assert "ignore" not in text
