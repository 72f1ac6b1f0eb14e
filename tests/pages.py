"""Reading the pages of the documentation, and writing their code from the files that tests run.

A comment above a block names its file, and the part of the file if the page shows a part only::

    <!-- file: examples/counter/main.py -->
    <!-- file: examples/guide/events.py; object: Prices, Chart -->
    <!-- file: examples/guide/pool.py; from: await node.spawn(; before: if __name__ -->
    <!-- file: examples/guide/observer.py; line: async with open_node -->
    <!-- file: examples/tutorial/step2_call.py; since: examples/tutorial/step1_actor.py -->

``object`` names classes, functions and constants of a module; ``from``, ``before`` and ``line``
are texts of lines; ``since`` names the file whose lines are not new to the reader, which the built
page needs. A whole page between ``<!-- part: PATH -->`` and ``<!-- end of part -->`` is a copy as
well. `make docs` runs this module, which writes all blocks and parts from their files.
"""

import ast
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

__all__ = ["COMMAND", "PAGES", "ROOT", "Block", "blocks", "path_of", "region", "stale", "updated"]

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts),
]
COMMAND = "make docs"

FENCED = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*) -->\n)?(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>[^\n]*)\n"
    r"(?P<text>.*?)^(?P=indent)(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)

PART = re.compile(
    r"(?<=^<!-- part: )(\S+)( -->\n).*?(?=^<!-- end of part -->$)", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """A fenced block: the text behind its opening fence, its content, the comment just above it, if
    any, and the paragraph above that.
    """

    info: str
    text: str
    mark: str
    above: str = ""


def blocks(page: str) -> Iterator[Block]:
    """All fenced blocks of a page, indented blocks too."""
    for found in FENCED.finditer(page):
        above = page[: found.start()].rstrip("\n").rpartition("\n\n")[2]
        yield Block(found["info"].strip(), found["text"], found["mark"] or "", above)


def path_of(mark: str) -> Path:
    """The file that a comment ``file: PATH; …`` names."""
    return ROOT / mark.removeprefix("file: ").partition("; ")[0]


def region(mark: str) -> str:
    """The part of a file that a comment ``file: PATH; …`` names."""
    source = path_of(mark).read_text(encoding="utf-8")
    rules = dict(rule.split(": ", 1) for rule in mark.split("; ")[1:])
    if unknown := rules.keys() - {"object", "from", "before", "line", "since"}:
        raise ValueError(f"unknown words in the comment {mark!r}: {', '.join(sorted(unknown))}")
    lines = source.splitlines(keepends=True)
    if "object" in rules:
        return objects(source, rules["object"].split(", "))
    if "line" in rules:
        line = lines[only(lines, rules["line"])].lstrip()
        if line.count("(") != line.count(")"):
            raise ValueError(f"the statement of {mark!r} is longer than its line")
        return line
    first = only(lines, rules["from"]) if "from" in rules else 0
    last = first + only(lines[first:], rules["before"]) if "before" in rules else len(lines)
    return dedent("".join(lines[first:last])).strip("\n") + "\n"


def only(lines: list[str], text: str) -> int:
    """The number of the only line with a text."""
    found = [number for number, line in enumerate(lines) if text in line]
    if len(found) != 1:
        raise ValueError(f"{len(found)} lines have the text {text!r}")
    return found[0]


def objects(source: str, names: list[str]) -> str:
    """Classes, functions and constants of a module, each with its decorators."""
    known = {name: node for node in ast.parse(source).body for name in defined(node)}
    if missing := [name for name in names if name not in known]:
        raise ValueError(f"the module does not define {', '.join(missing)}")
    lines = source.splitlines(keepends=True)
    shown, after_constant = "", True
    for node in (known[name] for name in names):
        constant = isinstance(node, ast.Assign | ast.AnnAssign)
        first = min(each.lineno for each in (node, *getattr(node, "decorator_list", ())))
        shown += "" if (constant and after_constant) or not shown else "\n\n"
        shown += "".join(lines[first - 1 : node.end_lineno])
        after_constant = constant
    return shown


def defined(node: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module defines."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            for target in targets:
                yield from (each.id for each in ast.walk(target) if isinstance(each, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


def updated(page: str) -> str:
    """A page with the code of all blocks that name a file, and with its parts."""

    def block(found: re.Match[str]) -> str:
        mark = found["mark"] or ""
        if not mark.startswith("file: "):
            return found[0]
        begin, end = found.start("text") - found.start(), found.end("text") - found.start()
        return found[0][:begin] + region(mark) + found[0][end:]

    def part(found: re.Match[str]) -> str:
        return found[1] + found[2] + (ROOT / found[1]).read_text(encoding="utf-8")

    return PART.sub(part, FENCED.sub(block, page))


def stale(path: Path) -> str:
    """The differences between the code of a page and the files, or nothing."""
    page = path.read_text(encoding="utf-8")
    name = str(path.relative_to(ROOT))
    return "\n".join(
        difflib.unified_diff(
            page.splitlines(), updated(page).splitlines(), f"{name} is", "should be", lineterm=""
        )
    )


def main() -> None:
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        if (new := updated(page)) != page:
            path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
