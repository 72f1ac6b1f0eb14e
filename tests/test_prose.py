"""The language of docstrings, comments, pages and test names: it names its subjects, so that
searches find them.

Pronouns such as "what", "who" and "one" hide the subject of a sentence. trio has 4 of them in 1,000
words of docstring and comment.
"""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
LIMIT = 8.0
"""Riddle words in 1,000 words."""
LONGEST_NAME = 80
"""Characters of a test's name."""

RIDDLES = re.compile(
    r"\b(?:what|whatever|who|whom|whose|whoever|one|ones|nobody|somebody|everybody|anybody)\b",
    re.IGNORECASE,
)
WORDS = re.compile(r"[A-Za-z][A-Za-z'-]*")
ARCHAIC = re.compile(r"\b(?:for ever|anew|in vain|by way of|is no more|be had)\b", re.IGNORECASE)
CODE = re.compile(r"``.+?``|`[^`\n]+`")


LITERALS_AND_COMMENTS = re.compile(
    r"""
    (?P<alone> ^[ ]* r? )? "{3} (?P<text> [^"\\]*+ (?: (?: \\. | "(?!"") ) [^"\\]*+ )*+ ) "{3}
    | " (?: [^"\\\n]++ | \\. )*+ "
    | ' (?: [^'\\\n]++ | \\. )*+ '
    | \# [ ]* (?P<comment> [^\n]* )
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
"""Long literals at the beginning of a line are docstrings, but for a few arguments. To make syntax
trees of all modules would take five times as long.
"""
TESTS = re.compile(r"^ *(?:async )?def (test_\w+)|^ *class (Test\w*)", re.MULTILINE)


class Module(NamedTuple):
    prose: str
    """The docstrings, attribute docstrings and comments, without the code in them."""
    tests: list[str]
    """The names of the test functions and test classes."""


@cache
def read(path: Path) -> Module:
    source = path.read_text(encoding="utf-8")
    parts = [
        match["comment"] or match["text"]
        for match in LITERALS_AND_COMMENTS.finditer(source)
        if match["comment"] or match["alone"] is not None
    ]
    tests = [
        function or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
        for function, name in TESTS.findall(source)
    ]
    return Module(CODE.sub(" ", "\n".join(parts)), tests)


def prose_of_page(path: Path) -> str:
    """The text of a page, without its code blocks and inline code."""
    text = re.sub(
        r"^(`{3,}|:{3,}).*?^\1",
        " ",
        path.read_text(encoding="utf-8"),
        flags=re.DOTALL | re.MULTILINE,
    )
    return CODE.sub(" ", text)


def share(texts: Iterable[str]) -> float:
    """Riddle words in 1,000 words; a short text may have a single one."""
    words = riddles = 0
    for text in texts:
        words += len(WORDS.findall(text))
        riddles += len(RIDDLES.findall(text))
    return 1000 * riddles / max(words, 1) if riddles > 1 else 0.0


def hides_its_subject(name: str) -> bool:
    """Whether a test's name has a riddle word or an archaic turn."""
    words = name.replace("_", " ")
    return bool(RIDDLES.search(words) or ARCHAIC.search(words))


def folders(*tops: str) -> list[Path]:
    """The folders with modules below the given folders."""
    return sorted(
        {path.parent.relative_to(ROOT) for top in tops for path in (ROOT / top).rglob("*.py")}
    )


CODE_FOLDERS = ["ergo_py", "tests", "benchmarks", "examples"]
PAGES = sorted(
    path.relative_to(ROOT)
    for path in [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / ".github").glob("*.md"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
    ]
    if "_build" not in path.parts
)


# A single test reads each module once; workers that share such tests would each read it again.
@pytest.mark.parametrize("top", CODE_FOLDERS)
def test_docstrings_comments_and_names_of_tests_name_their_subjects(top: str) -> None:
    vague: dict[Path, float] = {}
    archaic: list[str] = []
    long_or_vague: list[str] = []
    for room in folders(top):
        modules = {path: read(path) for path in sorted((ROOT / room).glob("*.py"))}
        if (found := share(module.prose for module in modules.values())) > LIMIT:
            vague[room] = found
        for path, module in modules.items():
            archaic += [f"{path}: {turn}" for turn in ARCHAIC.findall(module.prose)]
            long_or_vague += [
                f"{path}: {name}"
                for name in module.tests
                if hides_its_subject(name) or len(name) > LONGEST_NAME
            ]

    assert vague == {}
    assert not archaic, "\n".join(archaic)
    assert not long_or_vague, "\n".join(long_or_vague)


def test_each_page_names_its_subjects() -> None:
    shares = {page: share([prose_of_page(ROOT / page)]) for page in PAGES}

    assert {page: found for page, found in shares.items() if found > LIMIT} == {}


@pytest.mark.parametrize(
    "name, hides",
    [
        ("test_what_a_thread_sends_arrives", True),
        ("test_one_that_ended_is_skipped", True),
        ("test_a_call_to_nobody_raises", True),
        ("Test_Whoever_Waits", True),
        ("test_a_relation_made_anew_is_found", True),
        ("test_a_thread_asks_in_vain", True),
        ("test_a_process_that_ended_is_skipped", False),
        ("test_a_phone_has_a_tone_and_nonewlines", False),
    ],
)
def test_a_pronoun_hides_the_subject_of_a_test(name: str, hides: bool) -> None:
    assert hides_its_subject(name) is hides


def main() -> None:
    """Print the figures of each file, worst first."""
    modules = [path for top in CODE_FOLDERS for path in (ROOT / top).rglob("*.py")]
    figures = [
        *((share([read(path).prose]), path) for path in modules),
        *((share([prose_of_page(ROOT / page)]), ROOT / page) for page in PAGES),
    ]
    for figure, path in sorted(figures, reverse=True):
        print(f"{figure:6.1f}  {path.relative_to(ROOT)}")
    for top in CODE_FOLDERS:
        print(f"{share(read(path).prose for path in (ROOT / top).rglob('*.py')):6.1f}  {top}")
    print(f"{share(prose_of_page(ROOT / page) for page in PAGES):6.1f}  the pages")


if __name__ == "__main__":
    main()
