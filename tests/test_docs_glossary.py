"""The glossary names things that exist, and leads to the guides."""

import re
from pathlib import Path

from tests.test_docs_coming_from import NOT_OURS, known

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "glossary.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in row[1:-1].split("|")]
    for row in re.findall(r"^\|(?!---).*\|$", PAGE, re.MULTILINE)
]


def test_each_row_has_a_word_its_meaning_and_three_counterparts() -> None:
    words = [row[0] for row in ROWS if row[0] != "here"]

    assert {len(row) for row in ROWS} == {5}
    assert all(row[1] for row in ROWS)
    assert len(words) == len(set(words)) > 40


def test_the_names_in_the_first_column_exist() -> None:
    names = {name for row in ROWS for name in re.findall(r"`(\w+)`", row[0])}

    assert names - known() - NOT_OURS == set()


def test_the_glossary_is_linked_from_the_index_and_leads_to_the_guides() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    guides = {"processes", "messages-and-calls", "supervision", "applications", "events"}
    guides |= {"state-machines", "meta-processes", "writing-your-own-bridge", "dispatchers"}
    guides |= {"tasks", "methods", "groups", "streams", "schedules", "network"}
    guides |= {"looking-inside", "testing", "shutting-down", "tcp-udp", "programs-and-files"}

    assert "(glossary.md)" in index
    assert guides <= set(re.findall(r"\(([\w-]+)\.md", PAGE))
