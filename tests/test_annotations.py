"""Libraries that read annotations, such as validators and dependency injection, can read those of
the package.
"""

import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_type_hints

import pytest

from ergo_py import PID, Actor, Alias, Application, Caller, Node, Request, StateMachine
from ergo_py.meta import TLSFiles
from ergo_py.pipelines import Pipeline
from tests.test_docs_api import MODULES
from tests.test_startup import modules_after

CLASSES = {
    value: f"{module.__name__}.{name}"
    for module in MODULES
    for name in module.__all__
    if inspect.isclass(value := getattr(module, name))
}
FUNCTIONS = {
    value: f"{module.__name__}.{name}"
    for module in MODULES
    for name in module.__all__
    if inspect.isfunction(value := getattr(module, name))
}


def is_readable(thing: Any) -> bool:
    try:
        get_type_hints(thing)
    except NameError:
        return False
    return True


def functions() -> Iterator[tuple[str, Any]]:
    """The public functions, and the public methods and properties of all public classes."""
    yield from ((name, function) for function, name in FUNCTIONS.items())
    for cls, name in CLASSES.items():
        for base in cls.__mro__:
            for attribute, value in vars(base).items():
                function = value.fget if isinstance(value, property) else value
                function = getattr(function, "__func__", function)
                is_public = not attribute.startswith("_") or attribute == "__init__"
                if is_public and inspect.isfunction(function):
                    yield f"{name}.{attribute}", function


def test_the_annotations_of_all_public_classes_are_readable() -> None:
    assert {Actor, Node, TLSFiles} <= CLASSES.keys()
    assert [name for cls, name in CLASSES.items() if not is_readable(cls)] == []


def test_the_annotations_of_all_public_functions_and_methods_are_readable() -> None:
    found = {function: name for name, function in functions()}

    assert len(found) > 500
    assert [name for function, name in found.items() if not is_readable(function)] == []


READS = """
from typing import get_type_hints
from ergo_py import Actor, Node
assert get_type_hints(Node.tree)["return"].__name__ == "TreeNode"
assert get_type_hints(Actor.run_task)["return"].__origin__.__name__ == "Task"
assert get_type_hints(Node.network)["return"].__name__ == "NetworkInfo"
"""
"""A program that imports none of the modules of these classes, and opens no node."""


def test_a_class_is_imported_when_an_annotation_is_read_that_names_it() -> None:
    assert "ergo_py.supervision.tree" not in modules_after("from ergo_py import Actor, Node")

    assert "ergo_py.supervision.tree" in modules_after(READS)


def test_each_name_that_annotations_import_exists() -> None:
    late = {
        value
        for name, module in [*sys.modules.items()]
        if name.startswith("ergo_py.")
        for value in vars(module).values()
        if isinstance(value, str) and value.startswith("__import__(")
    }

    assert len(late) > 20
    assert None not in {eval(each) for each in late}  # it raises if there is no such name


@dataclass(frozen=True)
class Total(Request[int]):
    since: PID[Any]


class Counter(Actor):
    total: int = 0
    observer: PID[Any] | Alias | None = None

    def handle_call(self, request: Total, caller: Caller) -> int:
        return self.total


class Shop(Application):
    size: int = 3

    async def before_start(self, node: Node) -> None: ...


class Door(StateMachine):
    opened: int = 0


class Readings(Pipeline):
    rate: float = 1.0


@pytest.mark.parametrize(
    "cls, attribute",
    [(Total, "since"), (Counter, "observer"), (Shop, "size"), (Door, "opened"), (Readings, "rate")],
)
def test_the_annotations_of_a_class_of_a_user_are_readable(cls: type, attribute: str) -> None:
    assert attribute in get_type_hints(cls)


def test_the_annotations_of_a_callback_of_a_user_are_readable() -> None:
    assert get_type_hints(Counter.handle_call) == {
        "request": Total,
        "caller": Caller,
        "return": int,
    }
    assert get_type_hints(Shop.before_start)["node"] is Node
