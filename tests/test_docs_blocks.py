"""No code block of README and docs is loose: each is a file that tests run, a transcript that they
repeat, or a known command.

There is a single way to show code in docs: `{literalinclude}` of a file that tests run. README.md,
which is read where nothing includes, has a copy that is compared with the file.
"""

import json
import re
import shlex
import tomllib
from functools import cache
from pathlib import Path

import pytest

from ergo_py.shell.arguments import make_parser
from tests.examples.programs import EXAMPLES, promises
from tests.examples.test_readmes import ELSEWHERE
from tests.pages import Block, blocks

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
TUTORIAL = DOCS / "tutorial.md"
PAGES = [
    ROOT / "README.md",
    *sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts),
]

DIRECTIVES = {"toctree", "figure", "eval-rst", "include"}
"""The permitted blocks in docs besides `{literalinclude}`; none of these holds code, and an
included page is a page in docs, too.
"""


@cache
def said_by_tests() -> str:
    """All that tests say, but for this file."""
    return "".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "tests").rglob("test_*.py")
        if path != Path(__file__)
    )


def complaint(page: Path, block: Block) -> str | None:
    """The fault of a block; None if there is none."""
    kind, _, argument = block.info.partition(" ")
    if kind == "{literalinclude}":
        return included(page, argument.strip())
    if kind.startswith("{"):
        return None if kind.strip("{}") in DIRECTIVES else f"what is {kind}?"
    if block.mark == "drawing":
        return None
    if page == TUTORIAL and (kind != "sh" or block.mark):
        # Tests/examples/test_tutorial.py follows the whole page, and stops at unknown instructions.
        return None
    if block.mark.startswith("transcript: "):
        quoted = f'"{block.mark.removeprefix("transcript: ")}"'
        return None if quoted in said_by_tests() else f"no test repeats the transcript {quoted}"
    if block.mark.startswith("file: ") and page.name == "README.md":
        path = block.mark.removeprefix("file: ")
        return included(page, path) or (
            None if (ROOT / path).read_text(encoding="utf-8") == block.text else f"it is not {path}"
        )
    if block.mark.startswith("output: ") and page.name == "README.md":
        # tests/test_readme.py runs the programs with output that is shown like this.
        return included(page, block.mark.removeprefix("output: "))
    match kind:
        case "json":
            return None if [json.loads(line) for line in block.text.splitlines()] else "it is empty"
        case "toml":
            return None if tomllib.loads(block.text) else "it is empty"
        case "sh":
            return next(filter(None, map(unknown_command, block.text.splitlines())), None)
    return "it is loose: include a file that tests run"


def included(page: Path, path: str) -> str | None:
    file = (page.parent / path).resolve()
    if not file.is_file():
        return f"there is no {path}"
    return None if is_run(file) else f"no test runs {path}"


def is_run(file: Path) -> bool:
    """Whether tests run a file: as its README says, with all others of its folder, or by name."""
    if file.is_relative_to(ROOT / "tests" / "testing" / "samples"):
        return True  # by tests/testing/test_plugin.py, all of them
    if not file.is_relative_to(EXAMPLES):
        return False
    folder = file.parent.name
    commands = " ".join(command for command, _ in promises(folder))
    return (
        folder in ELSEWHERE
        or f"{folder}/{file.name}" in commands
        or f'"{file.name}"' in said_by_tests()
    )


def unknown_command(line: str) -> str | None:
    """The fault of a command line; comments after it are for the reader."""
    words = shlex.split(line, comments=True)
    match words:
        case []:
            return None
        case ["make", target, *_]:
            return (
                None
                if re.search(
                    rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
                )
                else f"no {line!r}"
            )
        case ["ergo", *arguments]:
            try:
                make_parser().parse_args(arguments)
            except SystemExit:
                return f"ergo does not take {arguments}"
            return None
        case (
            ["python" | "python3", "-m", "venv" | "pytest", *_]
            | ["pip", "install", *_]
            | ["nc" | ".", *_]
        ):
            return None
        case ["python", script, *_]:
            # In the tutorial, where the reader has made the file.
            places = (ROOT, ROOT / "examples" / "tutorial")
            return (
                None
                if any((place / script).is_file() for place in places)
                else f"there is no {script}"
            )
    return f"nobody knows how to check {line!r}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_a_page_is_a_file_that_tests_run_or_is_repeated_by_them(page: Path) -> None:
    wrong = [
        (block.info, block.text[:60], complaint(page, block))
        for block in blocks(page.read_text(encoding="utf-8"))
    ]

    assert [each for each in wrong if each[2] is not None] == []


@pytest.mark.parametrize(
    "text",
    [
        "```python\nprint(1)\n```\n",
        "~~~python\nprint(1)\n~~~\n",
        "- a list\n\n  ```python\n  print(1)\n  ```\n",
        "```\nprint(1)\n```\n",
        "```{code-block} python\nprint(1)\n```\n",
        "```pycon\n>>> 1\n1\n```\n",
        "<!-- transcript: that nobody repeats -->\n```pycon\n>>> 1\n1\n```\n",
        "```{literalinclude} ../examples/nowhere.py\n```\n",
        "```{literalinclude} ../ergo_py/run.py\n```\n",
        "```sh\nergo frobnicate\n```\n",
        "```sh\nmake coffee\n```\n",
        "```sh\nrm -rf build\n```\n",
    ],
)
def test_a_block_without_a_test_is_noticed(text: str) -> None:
    (block,) = blocks(text)

    assert complaint(DOCS / "index.md", block) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_code_block_is_made_by_indentation(page: Path) -> None:
    text = re.sub(
        r"^( *)(`{3,}).*?^\1\2$",
        "",
        page.read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )

    assert re.findall(r"(?:\A|\n\n)    \S.*", text) == []
