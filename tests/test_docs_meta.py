"""The page about meta-processes agrees with the code."""

import re
from pathlib import Path

from ergo_py._core.vocabulary.states import META_ALLOWED, META_TRANSITIONS, MetaOperation, MetaState

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "meta-processes.md").read_text(encoding="utf-8")


def test_the_page_shows_the_table_that_the_code_checks() -> None:
    states = list(MetaState)
    rows = [
        "| operation | " + " | ".join(state.name for state in states) + " |",
        "|---|---|---|---|",
    ]
    rows += [
        f"| {operation.value} | "
        + " | ".join("yes" if state in allowed else "no" for state in states)
        + " |"
        for operation, allowed in (
            (operation, META_ALLOWED[operation]) for operation in MetaOperation
        )
    ]

    shown = re.search(r"<!-- allowed -->\n(.*?)\n<!-- /allowed -->", PAGE, re.DOTALL)

    assert shown is not None
    assert shown[1].splitlines() == rows


def test_the_picture_names_every_state_and_has_an_arrow_for_every_change() -> None:
    picture = (DOCS / "meta-states.svg").read_text(encoding="utf-8")

    assert "meta-states.svg" in PAGE
    assert all(f">{state.name}<" in picture for state in MetaState)
    assert picture.count('marker-end="url(#tip)"') == sum(map(len, META_TRANSITIONS.values()))


def test_the_examples_that_the_page_points_to_exist() -> None:
    root = DOCS.parent

    assert all((root / path).is_file() for path in re.findall(r"`(examples/[\w/]+\.py)`", PAGE))
