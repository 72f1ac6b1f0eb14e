"""The page "Common mistakes" has the text that answers each mistake."""

import gc

import pytest

from tests.mistakes import MISTAKES, PAGE, answer, rows, updated
from tests.pages import COMMAND

TEXT = PAGE.read_text(encoding="utf-8")


@pytest.fixture(autouse=True, scope="module")
def earlier_objects_are_left_alone() -> None:
    # Each answer collects garbage twice, and would look at all objects of earlier tests.
    gc.collect()
    gc.freeze()


@pytest.mark.counted
@pytest.mark.parametrize("title", MISTAKES)
def test_the_page_has_the_text_that_answers_a_mistake(title: str) -> None:
    assert rows(TEXT).get(title) == answer(title), f"run `{COMMAND}`"


def test_the_page_lists_the_mistakes_that_the_tests_make() -> None:
    assert list(rows(TEXT)) == list(MISTAKES)


def test_a_changed_text_of_the_page_is_repaired() -> None:
    mistaken = "needs trio, and this code runs on asyncio"
    (row,) = [line for line in TEXT.splitlines() if mistaken in line]

    assert updated(row.replace(mistaken, "needs something else")) == row
