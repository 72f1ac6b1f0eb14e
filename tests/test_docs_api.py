"""The API reference has every public name, once, where users import it from; and Python's own help
has it, too.
"""

import importlib
import inspect
import pydoc
import re
from collections import Counter
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from types import ModuleType

import pytest

import ergo_py
import ergo_py.aio
import ergo_py.blocking
import ergo_py.cluster
import ergo_py.devices
import ergo_py.entities
import ergo_py.errors
import ergo_py.groups
import ergo_py.info
import ergo_py.meta
import ergo_py.methods
import ergo_py.network
import ergo_py.observe
import ergo_py.pipelines
import ergo_py.state_machine
import ergo_py.streams
import ergo_py.supervision
import ergo_py.tasks
import ergo_py.telemetry
import ergo_py.testing
import ergo_py.testing.bridges
import ergo_py.web
import ergo_py.workers
from ergo_py._core.node_lifecycle import ReportKeywords

MODULES = (
    ergo_py,
    ergo_py.aio,
    ergo_py.blocking,
    ergo_py.cluster,
    ergo_py.devices,
    ergo_py.errors,
    ergo_py.groups,
    ergo_py.info,
    ergo_py.entities,
    ergo_py.meta,
    ergo_py.methods,
    ergo_py.network,
    ergo_py.observe,
    ergo_py.pipelines,
    ergo_py.state_machine,
    ergo_py.streams,
    ergo_py.supervision,
    ergo_py.tasks,
    ergo_py.telemetry,
    ergo_py.testing,
    ergo_py.testing.bridges,
    ergo_py.web,
    ergo_py.workers,
)
API = Path(__file__).parent.parent / "docs" / "api"


def is_at_root(module: ModuleType, name: str) -> bool:
    """Whether a module has a name of the root, too."""
    return getattr(module, name) is getattr(ergo_py, name)


def listed_names() -> list[str]:
    """The names in the pages of the reference."""
    return [
        name
        for page in API.glob("*.md")
        for name in re.findall(
            r"^\.\. auto\w+:: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE
        )
    ]


PUBLIC = {
    f"{module.__name__}.{name}"
    for module in MODULES
    for name in module.__all__
    if module is ergo_py or name not in ergo_py.__all__ or not is_at_root(module, name)
}


def test_every_public_name_is_in_the_reference_once() -> None:
    counts = Counter(listed_names())

    assert sorted(PUBLIC - counts.keys()) == []
    assert [name for name, count in counts.items() if count > 1] == []


def test_a_type_of_results_in_the_reference_is_in_the_module_that_defines_it() -> None:
    for listed in sorted({*listed_names()} - PUBLIC):
        module, _, name = listed.rpartition(".")

        found = getattr(importlib.import_module(module), name)

        assert getattr(found, "__module__", module) == module, listed


def test_every_public_name_has_a_docstring() -> None:
    silent = [
        name
        for module in MODULES
        for name in module.__all__
        if callable(thing := getattr(module, name)) and not (thing.__doc__ or "").strip()
    ]

    assert silent == []


def test_help_knows_every_public_class() -> None:
    classes = {
        thing
        for module in MODULES
        for name in module.__all__
        if isinstance(thing := getattr(module, name), type)
    }

    assert classes
    for thing in classes:
        assert inspect.classify_class_attrs(thing), thing
        assert thing.__name__ in pydoc.render_doc(thing), thing
        assert inspect.getmembers(thing), thing


@pytest.mark.parametrize(
    "page, function",
    [("node", ergo_py.open_node), ("web", ergo_py.web.WebServer)],
    ids=["open_node", "WebServer"],
)
def test_every_option_is_in_a_single_group(page: str, function: Callable[..., object]) -> None:
    text = (Path(__file__).parents[1] / "docs" / "api" / f"{page}.md").read_text(encoding="utf-8")
    (table,) = re.findall(
        rf"^The options of `{function.__name__}`, in groups:\n\n(.*?)\n\n",
        text,
        re.DOTALL | re.MULTILINE,
    )

    assert sorted(re.findall(r"`(\w+)`", table)) == sorted(signature(function).parameters)


def test_the_report_options_of_a_node_are_three_groups_of_the_page() -> None:
    text = (API / "node.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (the log|looking inside|warnings) \| (.*) \|$", text, re.MULTILINE)

    assert len(rows) == 3
    assert {name for _, cell in rows for name in re.findall(r"`(\w+)`", cell)} == {
        *ReportKeywords.__annotations__
    }
