"""Private attributes in tests: the files `support.py` reach them, and few tests do so themselves.

A test that names a private attribute has to change when the attribute moves. The file `support.py`
of a room has a function for each private part that tests look at, so that such a change is an edit
of a single file.
"""

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final, TypeGuard

TESTS: Final = Path(__file__).parent
DOORS: Final = "support.py"

MOST_TESTS: Final = 25
"""Test functions that name a private attribute. Lower it when there are fewer."""
MOST_HELPERS: Final = 7
"""Private attributes named outside of test functions, in helpers and test classes."""

_FOREIGN: Final = {
    "_asdict",
    "_fields",
    "_make",
    "_replace",
    "_exit",
    "_ALLOW_DETERMINISTIC_SCHEDULING",
    "_activate_cancel_status",
    "_cancel_status",
    "_next_send_fn",
    "_r",
}
"""Attributes of named tuples and of os, which are public, and of trio: the tests that name these
tell when trio has changed.
"""
_OWN: Final = {"self", "cls"}
_MAYBE_PRIVATE: Final = re.compile(
    r"(?<!\bself)(?<!\bcls)(?<!\bfrom ergo_py)(?<!\btests)\.(_[a-zA-Z]\w*)"
)
"""Saves parsing the modules without any."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def test_few_tests_name_a_private_attribute() -> None:
    found: dict[str, set[str]] = {}
    for place, access, test in _accesses():
        if test is not None:
            found.setdefault(f"{place}:{test.lineno} {test.name}", set()).add(ast.unparse(access))

    assert len(found) <= MOST_TESTS, "\n".join(f"{test}: {found[test]}" for test in found)


def test_few_helpers_of_tests_name_a_private_attribute() -> None:
    found = [
        f"{place}:{access.lineno} {ast.unparse(access)}"
        for place, access, test in _accesses()
        if test is None
    ]

    assert len(found) <= MOST_HELPERS, "\n".join(found)


def test_an_access_to_a_private_attribute_is_recognised() -> None:
    tree = ast.parse(
        "self._own; cls._own; thing.__class__; trio._core; task._cancel_status\n"
        "node._kernel.router; super()._drain(); self.node._timers"
    )

    names = [ast.unparse(access) for access in _private_in(ast.walk(tree))]
    assert sorted(names) == ["node._kernel", "self.node._timers", "super()._drain"]


@cache
def _accesses() -> list[tuple[Path, ast.Attribute, Function | None]]:
    """Each access, with the test function around it."""
    found: list[tuple[Path, ast.Attribute, Function | None]] = []
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text("utf-8")
        if path.name == DOORS or _FOREIGN.issuperset(_MAYBE_PRIVATE.findall(text)):
            continue
        nodes = list(ast.walk(ast.parse(text)))
        tests = [node for node in nodes if _is_test(node)]
        found += [
            (path.relative_to(TESTS.parent), access, _around(access, tests))
            for access in _private_in(nodes)
        ]
    return found


def _is_test(node: ast.AST) -> TypeGuard[Function]:
    return isinstance(node, Function) and node.name.startswith("test_")


def _around(access: ast.Attribute, tests: list[Function]) -> Function | None:
    return next(
        (test for test in tests if test.lineno <= access.lineno <= (test.end_lineno or 0)), None
    )


def _private_in(nodes: Iterable[ast.AST]) -> list[ast.Attribute]:
    """The accesses to private attributes of other objects, as the syntax tree shows them."""
    return [
        node
        for node in nodes
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in _FOREIGN
        and not (isinstance(node.value, ast.Name) and node.value.id in _OWN)
        and not ast.unparse(node).startswith("trio.")
    ]
