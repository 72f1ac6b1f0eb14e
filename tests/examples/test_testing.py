"""The tests of the thermostat run with all others; here, that they do, and that README and page
name all of them.
"""

import re

import pytest

from tests.examples.programs import EXAMPLES, ROOT, promised

TESTS = [
    name
    for path in sorted((EXAMPLES / "testing").glob("test_*.py"))
    for name in re.findall(
        r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE
    )
]


def test_the_tests_of_the_example_are_run_with_all_others(pytestconfig: pytest.Config) -> None:
    assert "examples/testing" in pytestconfig.getini("testpaths")


def test_the_readme_shows_the_number_of_tests() -> None:
    assert promised("testing") == f"{len(TESTS)} passed\n"


def test_the_page_about_testing_shows_each_test() -> None:
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")

    assert [name for name in TESTS if f"def {name}(" not in page] == []
