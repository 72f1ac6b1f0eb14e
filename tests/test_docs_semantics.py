"""Every promise of docs/semantics.md is there once and names tests that exist.

A promise is a heading `### M5 ...` followed by its text and a paragraph `Tests:
tests/file.py::test, ...`.
"""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "semantics.md"
THIS = "tests/test_docs_semantics.py"

PROMISES_IN_SECTION = {
    "I": 4,
    "M": 9,
    "P": 13,
    "C": 8,
    "L": 5,
    "V": 11,
    "E": 8,
    "X": 23,
    "W": 19,
    "N": 7,
    "S": 6,
    "O": 11,
    "T": 8,
    "D": 28,
    "K": 7,
    "U": 7,
    "Z": 5,
    "Y": 12,
    "B": 8,
}
EXPECTED = [
    f"{section}{number}"
    for section, last in PROMISES_IN_SECTION.items()
    for number in range(1, last + 1)
]


@cache
def promises() -> list[tuple[str, str]]:
    """Each promise's number and the text below its heading."""
    parts = re.split(r"^#{1,3} (.*)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    headings, bodies = parts[1::2], parts[2::2]
    numbered = [
        (re.match(r"([A-Z]\d+)\b", heading), body)
        for heading, body in zip(headings, bodies, strict=True)
    ]
    return [(match[1], body) for match, body in numbered if match]


def entries(body: str) -> list[str]:
    """The entries of the promise's `Tests:` paragraph; it may be wrapped, and each entry be quoted
    with backticks.
    """
    paragraphs = re.findall(r"^Tests:(.*?)(?:\n\s*\n|\Z)", body, re.MULTILINE | re.DOTALL)
    assert len(paragraphs) == 1, f"{len(paragraphs)} `Tests:` paragraphs"
    return [entry.strip().strip("`") for entry in paragraphs[0].split(",")]


HEADINGS = re.compile(
    r"""
    ^ (?:async[ ])? def[ ] (?P<function> test\w*)
    | ^ class[ ] (?P<around> \w+)
    | ^ [ ]{4} (?:async[ ])? def[ ] (?P<method> test\w*)
    | ^ (?P<machine> \w+) [ ]=[ ] [\w.]+ \.TestCase $
    """,
    re.VERBOSE | re.MULTILINE,
)
"""Functions, classes and methods with tests, and `TestMailbox = MailboxMachine.TestCase`, which is
how Hypothesis hands a state machine to pytest. Syntax trees would take ten times as long.
"""


@cache
def defined_in(path: Path) -> frozenset[str]:
    """The tests a file defines, as pytest names them: functions, methods, and state machines' test
    cases.
    """
    found = set[str]()
    around = ""
    for heading in HEADINGS.finditer(path.read_text(encoding="utf-8")):
        if name := heading["method"]:
            if around.startswith("Test"):
                found.add(f"{around}::{name}")
        elif name := heading["machine"]:
            found.update((name, f"{name}::runTest"))
        elif name := heading["function"]:
            found.add(name)
            around = ""
        else:
            around = heading["around"]
    return frozenset(found)


def complaint_about(entry: str) -> str | None:
    """The fault of an entry; None if there is none."""
    file, _, test = entry.partition("::")
    if not test:
        return f"{entry!r} does not name a test"
    if not (ROOT / file).is_file():
        return f"there is no file {file!r}"
    return None if test in defined_in(ROOT / file) else f"there is no {test!r} in {file}"


def test_the_page_holds_every_promise_once_and_in_order() -> None:
    assert [number for number, _ in promises()] == EXPECTED


def test_a_promise_names_tests_that_exist() -> None:
    wrong = [
        f"{number}: {complaint}"
        for number, body in promises()
        for entry in entries(body)
        if (complaint := complaint_about(entry))
    ]

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("entry", ["", THIS, "tests/no_file.py::test", f"{THIS}::test_nothing"])
def test_an_entry_that_names_no_test_is_noticed(entry: str) -> None:
    assert complaint_about(entry) is not None
