"""The built site needs no network, and links to names that exist."""

import re
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

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
