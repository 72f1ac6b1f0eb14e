"""Private attributes in tests: `tests/support.py` reaches them, and few tests do so themselves.

A test that names a private attribute has to change when the attribute moves. `tests/support.py` has
a function for each private part that tests look at, so that such a change is an edit of a single
file.
"""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent
DOORS: Final = TESTS / "support.py"

MOST_TESTS: Final = 25
"""Test functions that name a private attribute. Lower it when there are fewer."""
MOST_HELPERS: Final = 7
"""Private attributes named outside of test functions, in helpers and test classes."""

_FOREIGN: Final = {
    "_asdict",
    "_fields",
    "_make",
    "_replace",
    "_ALLOW_DETERMINISTIC_SCHEDULING",
    "_activate_cancel_status",
    "_cancel_status",
    "_next_send_fn",
    "_r",
}
"""Attributes of named tuples, which are public, and of trio: the tests that name these tell when
trio has changed.
"""
_OWN: Final = {"self", "cls"}
_MAYBE_PRIVATE: Final = re.compile(r"(?<!\bself)(?<!\bcls)\._[a-zA-Z]")
"""Saves parsing the modules without any."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def test_few_tests_name_a_private_attribute() -> None:
    found = [
        f"{path.relative_to(TESTS.parent)}:{test.lineno} {test.name}: {', '.join(names)}"
        for path, tree in _modules()
        for test in _tests_in(tree)
        if (names := sorted({ast.unparse(access) for access in _private_in(test)}))
    ]

    assert len(found) <= MOST_TESTS, "\n".join(found)


def test_few_helpers_of_tests_name_a_private_attribute() -> None:
    found = [
        f"{path.relative_to(TESTS.parent)}:{access.lineno} {ast.unparse(access)}"
        for path, tree in _modules()
        for inside in [{id(access) for test in _tests_in(tree) for access in _private_in(test)}]
        for access in _private_in(tree)
        if id(access) not in inside
    ]

    assert len(found) <= MOST_HELPERS, "\n".join(found)


def test_an_access_to_a_private_attribute_is_recognised() -> None:
    tree = ast.parse(
        "self._own; cls._own; thing.__class__; trio._core; task._cancel_status\n"
        "node._kernel.router; super()._drain(); self.node._timers"
    )

    names = [ast.unparse(access) for access in _private_in(tree)]
    assert sorted(names) == ["node._kernel", "self.node._timers", "super()._drain"]


@cache
def _modules() -> list[tuple[Path, ast.Module]]:
    return [
        (path, ast.parse(text))
        for path in sorted(TESTS.rglob("*.py"))
        if path != DOORS and _MAYBE_PRIVATE.search(text := path.read_text("utf-8"))
    ]


def _tests_in(tree: ast.AST) -> list[Function]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, Function) and node.name.startswith("test_")
    ]


def _private_in(tree: ast.AST) -> list[ast.Attribute]:
    """The accesses to private attributes of other objects, as the syntax tree shows them."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in _FOREIGN
        and not (isinstance(node.value, ast.Name) and node.value.id in _OWN)
        and not ast.unparse(node).startswith("trio.")
    ]
