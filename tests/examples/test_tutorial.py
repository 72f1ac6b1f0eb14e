"""The tutorial can be followed: every file, command and answer on the page is the newcomer's file,
input and output.
"""

import ast
from pathlib import Path

import pytest

from tests.examples.newcomer import Newcomer
from tests.examples.programs import EXAMPLES, ROOT
from tests.pages import blocks, path_of

PAGE = ROOT / "docs" / "tutorial.md"
STEPS = [
    (block.mark.partition("; since: ")[2], str(path_of(block.mark).relative_to(ROOT)), block.above)
    for block in blocks(PAGE.read_text(encoding="utf-8"))
    if block.mark.startswith("file: ") and block.info == "python"
]


def definitions(path: str) -> dict[str, str]:
    """The classes and functions of a module, with their source."""
    return {
        node.name: ast.unparse(node)
        for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_the_tutorial_can_be_followed(short_path: Path, installed: Path) -> None:
    newcomer = Newcomer(short_path, installed)

    newcomer.follow(PAGE)

    assert {"transcript: nc", "transcript: pytest", "transcript: in another terminal"} < set(
        newcomer.done
    )
    assert newcomer.done[-1] == "observes"
    assert {path.name for path in short_path.glob("*.py")} == {
        path.name for path in (EXAMPLES / "tutorial").glob("*.py")
    }


def test_each_step_names_the_step_before_it() -> None:
    steps = [after for before, after, _ in STEPS if before or after.endswith("step1_actor.py")]

    assert [before for before, _, _ in STEPS if before] == steps[:-1]


@pytest.mark.parametrize(
    "before, after, said", [step for step in STEPS if step[0]], ids=lambda text: text[-20:]
)
def test_the_page_says_which_definitions_of_a_step_are_new(
    before: str, after: str, said: str
) -> None:
    old, new = definitions(before), definitions(after)
    changed = [name for name in new if old.get(name) != new[name]]

    assert changed
    assert [name for name in changed if f"`{name}`" not in said] == []
