"""The page that chooses: each name on it exists, and each table begins with a recommendation."""

import ast
import re
from collections.abc import Iterator

import pytest

from ergo_py import Actor, DeadLetter, Node, Priority, Strategy, Threads
from ergo_py.entities import Entity, EntityHandle
from ergo_py.supervision import AutoShutdown, Fate
from tests.pages import ROOT
from tests.test_docs_api import MODULES

PAGE = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
CODE = sorted(set(re.findall(r"`([^`]+)`", PAGE)))
OWNERS: dict[str, tuple[type, ...]] = {
    "AutoShutdown": (AutoShutdown,),
    "self": (Actor, Entity),
    "node": (Node,),
    "entity": (EntityHandle,),
    "DeadLetter": (DeadLetter,),
    "Fate": (Fate,),
    "Priority": (Priority,),
    "Strategy": (Strategy,),
    "Threads": (Threads,),
}
"""The classes of the variables on the page, and the classes whose members it names."""
OF_THE_READER = {"Account", "Driver", "Window", "Worker"}
"""Classes that a reader writes."""
PUBLIC = {name for module in MODULES for name in module.__all__}


def unknown_names(code: str) -> Iterator[str]:
    """The names in an expression that no public module and no class of the page has."""
    tree = ast.parse(code.removeprefix("await "), mode="eval")
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name(variable), name):
                if not any(hasattr(owner, name) for owner in OWNERS[variable]):
                    yield f"{variable}.{name}"
            case ast.Name(name) if name[0].isupper() and name not in PUBLIC | OF_THE_READER:
                yield name


@pytest.mark.parametrize("code", CODE)
def test_each_name_on_the_page_is_public(code: str) -> None:
    assert list(unknown_names(code)) == []


def test_unknown_names_are_noticed() -> None:
    assert list(unknown_names("self.run_taks(Threds())")) == ["self.run_taks", "Threds"]


def test_each_table_begins_with_the_recommended_way() -> None:
    tables = re.findall(r"^\|---\|---\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)

    for table in tables:
        first, *others = table.splitlines()
        assert "**recommended**" in first
        assert "**recommended**" not in "".join(others)
    assert len(tables) == PAGE.count("\n## ")
