"""The page of decisions says how large the code is, and never says less than the tests allow."""

import re
from pathlib import Path

import pytest

from tests import test_architecture, test_moved_names, test_walks
from tests.facades import test_definitions

PAGE = Path(__file__).parent.parent / "docs" / "design" / "decisions.md"
LIMITS = {
    "public names at the root": test_moved_names.MOST_AT_THE_ROOT,
    "public names of all modules": test_moved_names.MOST,
    "classes with 20 attributes or more": test_architecture.MOST_LARGE_CLASSES,
    "annotations `: Any` and `-> Any`": test_architecture.MOST_ANY,
    "definitions of verbs, those of all facades together": test_definitions.MOST,
    "functions from an accepted socket to its first HTTP response": test_walks.FIRST_REQUEST[0],
    "files on that way": test_walks.FIRST_REQUEST[1],
    "functions from the end of a child to its restart": test_walks.RESTART,
}
"""Rows of the table, each with the limit of its test."""


@pytest.mark.parametrize("counted", LIMITS)
def test_a_limit_of_a_test_is_no_higher_than_the_page_says(counted: str) -> None:
    rows = re.findall(
        r"^\| (.+?) \| [\d,]+ \| [\d,]+ \| ([\d,]+) \|", PAGE.read_text("utf-8"), re.MULTILINE
    )

    assert LIMITS[counted] <= int(dict(rows)[counted].replace(",", ""))
