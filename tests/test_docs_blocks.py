"""No code block of README and docs is loose: each is a file that tests run, a transcript that they
repeat, or a known command.

There is a single way to show code: a copy of a file that tests run, or of a part of the file, below
a comment that names it (see tests/pages.py). Pages are read where nothing includes files, too.
"""

import json
import re
import shlex
import tomllib
from functools import cache
from pathlib import Path

import pytest

from benchmarks.commands import COMMANDS
from ergo_py.shell.arguments import parse
from tests.examples.programs import EXAMPLES, promises
from tests.examples.test_readmes import ELSEWHERE
from tests.pages import COMMAND, PAGES, ROOT, Block, blocks, path_of, region, stale, updated

DOCS = ROOT / "docs"
TUTORIAL = DOCS / "tutorial.md"

DIRECTIVE = "{eval-rst}"
"""The only permitted directive, since other directives hide their content where nothing is built.
It holds the names of the API reference.
"""
RAISED = re.compile(r'^ *File "(?!ergo_py/)([^"]+)", line (\d+), in .*\n *(.+)$', re.MULTILINE)
"""A file of an example in a traceback, a line of it, and its code."""


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
    kind = block.info.partition(" ")[0]
    if kind.startswith("{"):
        return None if kind == DIRECTIVE else f"{kind} shows nothing where nothing is built"
    if block.mark == "drawing":
        return None
    if block.mark.startswith("file: "):
        return unknown_file(path_of(block.mark))
    if page == TUTORIAL and (kind != "sh" or block.mark):
        # Tests/examples/test_tutorial.py follows the whole page, and stops at unknown instructions.
        return None
    if block.mark.startswith("transcript: "):
        quoted = f'"{block.mark.removeprefix("transcript: ")}"'
        return None if quoted in said_by_tests() else f"no test repeats the transcript {quoted}"
    if block.mark.startswith("run: ") and page.name == "first-steps.md":
        # tests/test_readme.py and tests/examples/test_walk.py run these commands.
        quoted = f'commands("{block.mark.removeprefix("run: ")}")'
        return None if quoted in said_by_tests() else f"no test has {quoted}"
    match kind:
        case "json":
            return None if [json.loads(line) for line in block.text.splitlines()] else "it is empty"
        case "toml":
            return None if tomllib.loads(block.text) else "it is empty"
        case "sh":
            return next(filter(None, map(unknown_command, block.text.splitlines())), None)
    return "it is loose: name a file that tests run in a comment above it"


def unknown_file(file: Path) -> str | None:
    if not file.is_file():
        return f"there is no {file}"
    return None if is_run(file) else f"no test runs {file}"


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
        case ["python", "-m", "benchmarks", name, *_]:
            return None if name in COMMANDS else f"no {line!r}"
        case ["ergo", *arguments]:
            try:
                parse(arguments)
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


def test_a_comment_that_names_a_file_stands_above_a_block() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")

        named = re.findall(r"^ *<!-- (file: .*) -->$", text, re.MULTILINE)

        marks = [block.mark for block in blocks(text) if block.mark.startswith("file: ")]
        assert named == marks, page


def test_every_block_of_a_page_is_a_file_that_tests_run_or_is_repeated_by_them() -> None:
    wrong = [
        (page, block.info, block.text[:60], fault)
        for page in PAGES
        for block in blocks(page.read_text(encoding="utf-8"))
        if (fault := complaint(page, block)) is not None
    ]

    assert wrong == []


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
        "```{literalinclude} ../examples/counter/main.py\n```\n",
        "```{include} chaos.md\n```\n",
        "```{toctree}\nindex\n```\n",
        "<!-- file: examples/nowhere.py -->\n```python\n```\n",
        "<!-- file: ergo_py/node.py -->\n```python\n```\n",
        "```sh\nergo frobnicate\n```\n",
        "<!-- run: nothing -->\n```sh\nmake coffee\n```\n",
        "```sh\nmake coffee\n```\n",
        "```sh\nrm -rf build\n```\n",
    ],
)
def test_a_block_without_a_test_is_noticed(text: str) -> None:
    (block,) = blocks(text)

    assert complaint(DOCS / "index.md", block) is not None


def test_the_code_of_a_page_is_that_of_the_files() -> None:
    differences = "\n".join(filter(None, map(stale, PAGES)))

    assert not differences, f"run `{COMMAND}`:\n{differences}"


def test_a_changed_block_is_noticed_and_repaired() -> None:
    page = (DOCS / "index.md").read_text(encoding="utf-8")
    changed = page.replace("self.total += amount", "self.total -= amount")

    assert changed != page
    assert updated(changed) == page
    assert COMMAND.removeprefix("make ") + ":" in (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "rules, expected",
    [
        ("object: Resizer", "class Resizer(Actor):\n    def handle_call("),
        ("object: Resize, Resizer", "@dataclass(frozen=True)\nclass Resize(Request[str]):\n"),
        ("from: await node.spawn(; before: if __name__", "await node.spawn(\n    Pool,\n"),
        ("line: print(", 'print(await node.call("resizers", Resize("a.png")))\n'),
    ],
)
def test_a_comment_names_a_part_of_a_file(rules: str, expected: str) -> None:
    assert region(f"file: examples/guide/pool.py; {rules}").startswith(expected)


def test_constants_stay_together_and_definitions_are_two_lines_apart() -> None:
    shown = region("file: examples/application/main.py; object: Web, storage, web")

    assert ")\n\n\nstorage = Application(" in shown
    assert ")\nweb = Web(" in shown


@pytest.mark.parametrize(
    "rules, complaint",
    [
        ("object: Nothing", "does not define Nothing"),
        ("line: async", "2 lines have the text"),
        ("line: await node.spawn(", "is longer than its line"),
        ("from: no such text", "0 lines have the text"),
        ("lines: 1-7", "unknown words"),
    ],
)
def test_a_comment_that_names_no_part_of_a_file_is_refused(rules: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        region(f"file: examples/guide/pool.py; {rules}")


def test_no_page_includes_code_in_a_way_that_only_the_built_site_shows() -> None:
    assert [page for page in PAGES if "literalinclude" in page.read_text(encoding="utf-8")] == []


def test_no_code_block_is_made_by_indentation() -> None:
    for page in PAGES:
        text = re.sub(
            r"^( *)(`{3,}).*?^\1\2$",
            "",
            page.read_text(encoding="utf-8"),
            flags=re.MULTILINE | re.DOTALL,
        )

        assert re.findall(r"(?:\A|\n\n)    \S.*", text) == [], page


def test_a_traceback_on_a_page_names_the_line_of_its_code() -> None:
    shown, wrong = 0, []
    for page in PAGES:
        # The log in JSON has a traceback in a string.
        text = page.read_text(encoding="utf-8").replace(r"\n", "\n").replace(r"\"", '"')
        for name, number, code in RAISED.findall(text):
            shown += 1
            files = EXAMPLES.rglob(Path(name).name)
            lines = [file.read_text(encoding="utf-8").splitlines() for file in files]
            if all(
                [line.strip() for line in each][int(number) - 1 :][:1] != [code] for each in lines
            ):
                wrong.append(f"{page.name}: {name}:{number}: {code}")

    assert shown >= 6
    assert wrong == []
