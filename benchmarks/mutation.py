"""Mutants: a module with a small change, such as a comparison turned round, an increased number, a
statement left out.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

__all__ = ["Mutant", "mutants_of"]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A single change of a module."""

    module: str
    line: int
    where: str
    """The function or class that it is in."""
    change: str
    """The old and the new text of the change; with a number, if the same change can be made there
    more than once.
    """
    source: str
    """The whole module with the change in it."""
    is_inside: bool
    """Whether the change is in the body of a function: then nothing else is changed by it when the
    module is imported.
    """

    @property
    def name(self) -> str:
        """The identity of the mutant, independent of the number of the line."""
        return f"{self.where}: {self.change}"

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.name}"


_Scope = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}


def mutants_of(module: str, source: str) -> list[Mutant]:
    """Every mutant of a module."""
    tree, made = ast.parse(source), []
    found = [(one, text) for one in _mutable(tree) for text in _changes(one)]
    scopes = [one for one in ast.walk(tree) if isinstance(one, _Scope)]
    lines = source.splitlines(keepends=True)
    offsets = [0, *accumulate(map(len, lines))]
    seen: Counter[tuple[str, str]] = Counter()
    for node, changed in (*found, *_tests(tree)):
        begin, end = _span(lines, offsets, node)
        # An expression keeps its meaning in brackets; a statement must not have any.
        text = changed if isinstance(node, ast.stmt) else f"({changed})"
        where, is_inside = _place(scopes, node)
        change = f"{' '.join(source[begin:end].split())} -> {changed}"
        seen[where, change] += 1
        if seen[where, change] > 1:
            change += f" ({seen[where, change]})"
        made.append(
            Mutant(
                module, node.lineno, where, change, source[:begin] + text + source[end:], is_inside
            )
        )
    return made


def _place(scopes: list[_Scope], node: Any) -> tuple[str, bool]:
    """The names around a node, and whether it is in the body of a function."""
    around = [
        one
        for one in scopes
        if one is not node and one.body[0].lineno <= node.lineno <= (one.end_lineno or 0)
    ]
    is_inside = any(not isinstance(one, ast.ClassDef) for one in around)
    return ".".join(one.name for one in around) or "module", is_inside


def _mutable(tree: ast.AST) -> Iterator[Any]:
    """The nodes that do something when the program runs: no annotations, documentation, names of
    slots or exports.
    """
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _says_nothing(child):
                continue
            yield child
            yield from _mutable(child)


def _says_nothing(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Constant()) | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Assign(targets=[ast.Name(id="__all__" | "__slots__")]):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Call(func=ast.Name(id="cast" | "TypeVar" | "TypeVarTuple" | "ParamSpec")):
            return True
        case ast.Expr(value=ast.Call(func=ast.Name(id="assert_never"))):
            return True
    return False


def _changes(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if (
            type(operator) in _COMPARED
        ):
            yield ast.unparse(ast.Compare(left, [_COMPARED[type(operator)]()], [right]))
        case ast.BoolOp(op=operator, values=values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield ast.unparse(ast.BoolOp(other, values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield ast.unparse(operand)
        case ast.BinOp(left=left, op=operator, right=right) if type(
            operator
        ) in _COMPUTED and not _is_text(left, right):
            yield ast.unparse(ast.BinOp(left, _COMPUTED[type(operator)](), right))
        case ast.AugAssign(target=target, op=operator, value=value) if type(operator) in _COMPUTED:
            yield ast.unparse(ast.AugAssign(target, _COMPUTED[type(operator)](), value))
            yield "pass"
        case ast.Constant(value=bool() as value):
            yield repr(not value)
        case ast.Constant(value=int() | float() as value):
            yield repr(value + 1)
        case ast.Return(value=value) if value is not None and not _is_none(value):
            yield "return None"
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "pass"
        case ast.AnnAssign(target=ast.Attribute(), value=ast.expr()):
            yield "pass"
        case ast.Delete() | ast.Raise():
            yield "pass"
        case ast.Break():
            yield "continue"
        case ast.Continue():
            yield "break"


def _tests(tree: ast.AST) -> Iterator[tuple[Any, str]]:
    """Expressions that are tested as they are, by being something or nothing: they have no operator
    that could be turned round.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While | ast.IfExp) and not _says_nothing(node):
            for part in node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]:
                if isinstance(part, ast.Name | ast.Attribute | ast.Call):
                    yield part, f"not {ast.unparse(part)}"


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _is_text(*operands: ast.expr) -> bool:
    return any(
        isinstance(one, ast.JoinedStr)
        or (isinstance(one, ast.Constant) and isinstance(one.value, str))
        for one in operands
    )


def _span(lines: list[str], offsets: list[int], node: Any) -> tuple[int, int]:
    def at(line: int, column: int) -> int:
        # Columns are counted in bytes of UTF-8.
        return offsets[line - 1] + len(lines[line - 1].encode()[:column].decode())

    return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)
