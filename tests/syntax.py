"""Syntax trees of the modules that the tests of the style read."""

import ast
from collections.abc import Iterable, Iterator

__all__ = ["statements"]


def statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The statements of a body and of all bodies in it, without the expressions, which are many
    times as many.
    """
    for statement in body:
        yield statement
        for field in ("body", "handlers", "orelse", "finalbody", "cases"):
            yield from statements(getattr(statement, field, ()))
