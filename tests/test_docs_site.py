"""The built site needs no network, and links to names that exist."""

import ast
import re
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

DOCS = Path(__file__).parent.parent / "docs"
INVENTORIES = sorted((DOCS / "inventories").glob("*.txt"))


@pytest.mark.parametrize("inventory", INVENTORIES, ids=lambda path: path.stem)
def test_an_inventory_lists_names_that_exist(inventory: Path) -> None:
    first, project, version, *lines = inventory.read_text(encoding="utf-8").splitlines()

    assert first == "# Sphinx inventory version 1"
    assert (project[:11], version[:11]) == ("# Project: ", "# Version: ")
    for line in lines:
        name, kind, page = line.split()
        module, _, attribute = name.rpartition(".")
        assert import_module(name) if kind == "mod" else resolve_name(f"{module}:{attribute}")
        assert page.endswith(".html")


def test_the_build_reads_its_inventories_from_files() -> None:
    conf = (DOCS / "conf.py").read_text(encoding="utf-8")
    mapping = conf.partition("intersphinx_mapping = {")[2].partition("}")[0]

    places = re.findall(r'\("https://[^"]+", "([^"]+)"\)', mapping)

    assert [DOCS / place for place in places] == INVENTORIES
    assert mapping.count("https://") == len(places)


def setting(name: str) -> Any:
    """The value of a variable of the build."""
    tree = ast.parse((DOCS / "conf.py").read_text(encoding="utf-8"))
    (found,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    )
    return found


def navigation() -> dict[str, dict[str, list[str]]]:
    """The sidebar: the captions of each page, with the pages below them."""
    return {page: dict(captions) for page, captions in setting("NAVIGATION").items()}


@pytest.mark.parametrize(
    "word, page",
    [
        ("serial", "cookbook/serial"),
        ("mqtt", "cookbook/mqtt"),
        ("kafka", "cookbook/kafka"),
        ("rabbitmq", "cookbook/rabbitmq"),
        ("postgres", "cookbook/postgresql"),
        ("multiprocessing", "network"),
        ("reconnect", "devices"),
        ("persist", "entities"),
        ("deploy", "deploying"),
    ],
)
def test_the_search_finds_a_guide_by_the_word_of_a_newcomer(word: str, page: str) -> None:
    # The build fails if the index of the search does not have these words.
    assert word in setting("KEYWORDS")[page]


def test_sidebar_and_first_page_have_the_same_parts_in_order() -> None:
    parts = ["Learn", "Cookbook", "Guide", "Reference", "Evidence"]
    first = (DOCS / "index.md").read_text(encoding="utf-8")

    assert list(navigation()["index"]) == parts
    assert re.findall(rf"^\*\*({'|'.join(parts)})\.\*\*", first, re.MULTILINE) == parts


@pytest.mark.parametrize("page", ["index", "api/index"])
def test_every_page_of_the_sidebar_is_linked_by_its_index(page: str) -> None:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    listed = [
        re.sub(r".*<(.*)>", r"\1", each) for pages in navigation()[page].values() for each in pages
    ]

    assert [each for each in listed if f"({each}.md" not in text] == []
