"""No code of the kernel, the network and the cluster depends on the order of a set.

The order of a set follows from hashes, which Python salts in each program, and from addresses
in memory. A loop over a set does its steps in another order in each run, so that a seed of
``ergo_py.testing.seeded`` would not repeat a history. Keep a dict, whose order is that of its
insertions, or write ``sorted``.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import pytest

PACKAGE: Final = Path(__file__).parent.parent / "ergo_py"
ROOMS: Final = ("_core", "network", "cluster")
ORDERLESS: Final = frozenset(
    {"sorted", "set", "frozenset", "len", "any", "all", "sum", "min", "max", "Counter", "bool"}
)
"""Functions whose result does not depend on the order of their argument."""
ITERATING: Final = frozenset(
    [
        "list",
        "tuple",
        "iter",
        "enumerate",
        "map",
        "filter",
        "zip",
        "deque",
        "chain",
        "extend",
        "join",
        "fromkeys",
        "dict",
    ]
)
"""Functions whose result depends on the order of their arguments."""
OF_INTEREST: Final = (
    *(ast.AnnAssign, ast.Assign, ast.arg, ast.ClassDef, ast.For, ast.AsyncFor, ast.Call),
    *(ast.ListComp, ast.DictComp, ast.GeneratorExp, ast.YieldFrom, ast.Starred),
)
METHODS: Final = frozenset({"union", "intersection", "difference", "symmetric_difference", "copy"})
"""Methods of a set that return a set."""
ALLOWED: Final = {
    "network/messages/message_types.py: _LEAVES": "a table by class, which is only looked up in",
}
"""Uses of the order of a set that cannot be seen, with their reasons."""


def is_set_type(annotation: ast.expr | None) -> bool:
    """Whether an annotation names a set, or a set or None."""
    match annotation:
        case ast.Constant(value=str(text)):
            return is_set_type(ast.parse(text, mode="eval").body)
        case ast.Name(id="set" | "frozenset" | "AbstractSet" | "MutableSet"):
            return True
        case ast.Subscript(value=ast.Name(id="Final" | "ClassVar"), slice=inner):
            return is_set_type(inner)
        case ast.Subscript(value=outer):
            return is_set_type(outer)
        case ast.BinOp(left=left, right=right):
            return is_set_type(left) or is_set_type(right)
    return False


def name_of(node: ast.expr) -> str:
    """The last name of a variable or an attribute."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


class Sets:
    """The names that hold sets."""

    def __init__(self, attributes: frozenset[str], variables: frozenset[str]) -> None:
        self.attributes = set(attributes)
        self.variables = set(variables)

    def learn(self, nodes: Iterable[ast.AST]) -> None:
        """Note the names that are declared as sets, or get a set."""
        for node in nodes:
            match node:
                case ast.AnnAssign(target=target, annotation=annotation, value=value):
                    if is_set_type(annotation) or (value is not None and self.is_set(value)):
                        self._add(target)
                case ast.Assign(targets=targets, value=given):
                    for assigned in targets:
                        for left, right in _pairs(assigned, given):
                            if self.is_set(right):
                                self._add(left)
                case ast.arg(arg=name, annotation=annotation) if is_set_type(annotation):
                    self.variables.add(name)
                case ast.ClassDef(body=body):  # its fields are attributes
                    self.attributes.update(
                        name_of(field.target)
                        for field in body
                        if isinstance(field, ast.AnnAssign) and is_set_type(field.annotation)
                    )

    def _add(self, target: ast.expr) -> None:
        names = self.attributes if isinstance(target, ast.Attribute) else self.variables
        names.add(name_of(target))

    def is_set(self, node: ast.expr) -> bool:
        """Whether an expression is a set, as far as its text tells."""
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Call(func=ast.Name(id="set" | "frozenset")):
                return True
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in METHODS:
                return self.is_set(value)
            case ast.BinOp(
                left=left, right=right, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor()
            ):
                return self.is_set(left) or self.is_set(right)
            case ast.BoolOp(values=values):
                return any(map(self.is_set, values))
            case ast.IfExp(body=body, orelse=orelse):
                return self.is_set(body) or self.is_set(orelse)
            case ast.Attribute(attr=name):
                return name in self.attributes
            case ast.Name(id=name):
                return name in self.variables
        return False


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    match target, value:
        case ast.Tuple(elts=left), ast.Tuple(elts=right):
            yield from zip(left, right, strict=False)
        case _:
            yield target, value


def ordered_uses(nodes: Sequence[ast.AST], sets: Sets) -> Iterator[ast.expr]:
    """The sets whose order a statement or an expression uses."""
    orderless = {
        id(argument)
        for node in nodes
        if isinstance(node, ast.Call) and name_of(node.func) in ORDERLESS
        for argument in node.args
    }
    for node in nodes:
        found: list[ast.expr] = []
        match node:
            case ast.For(iter=source) | ast.AsyncFor(iter=source):
                found = [source]
            case ast.ListComp(generators=parts) | ast.DictComp(generators=parts):
                found = [part.iter for part in parts]
            case ast.GeneratorExp(generators=parts) if id(node) not in orderless:
                found = [part.iter for part in parts]
            case ast.YieldFrom(value=source) | ast.Starred(value=source):
                found = [source]
            case ast.Call(func=ast.Attribute(value=source, attr="pop"), args=[]):
                found = [source]
            case ast.Call(func=function, args=arguments) if name_of(function) in ITERATING:
                found = [] if id(node) in orderless else arguments
        yield from filter(sets.is_set, found)


def scopes(tree: ast.Module) -> Iterator[list[ast.AST]]:
    """The parts of a module with variables of their own: each function and method, and the rest."""
    rest: list[ast.AST] = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield [each for each in ast.walk(node) if isinstance(each, OF_INTEREST)]
        else:
            if isinstance(node, OF_INTEREST):
                rest.append(node)
            waiting += ast.iter_child_nodes(node)
    yield rest


def uses(modules: Mapping[str, str]) -> list[str]:
    """The uses of the order of sets in modules, given as their texts."""
    parts = {name: list(scopes(ast.parse(text))) for name, text in modules.items()}
    known = Sets(frozenset(), frozenset())
    for scope in chain.from_iterable(parts.values()):
        known.learn(scope)  # attributes: other modules use them, too
    attributes, found = frozenset(known.attributes), []
    for name, of_module in parts.items():
        globals_ = Sets(attributes, frozenset())
        globals_.learn(of_module[-1])
        for scope in of_module:
            sets = Sets(attributes, frozenset(globals_.variables))
            sets.learn(scope)
            found += [f"{name}: {ast.unparse(use)}" for use in ordered_uses(scope, sets)]
    return sorted(found)


def test_kernel_network_and_cluster_do_not_use_the_order_of_a_set() -> None:
    paths = [path for room in ROOMS for path in (PACKAGE / room).rglob("*.py")]
    texts = {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in paths}

    assert uses(texts) == sorted(ALLOWED)


@pytest.mark.parametrize(
    "text",
    [
        "names: set[str] = set()\nfor name in names: print(name)",
        "for name in {1, 2}: print(name)",
        "def f(names: frozenset[str] | None): return list(names or ())",
        "def f(names: 'set[str]'): yield from names",
        "class A:\n    names: set[str]\ndef f(a): return [name for name in a.names]",
        "class A:\n    def __init__(self): self.a, self.b = 1, set()\n"
        "    def f(self): return tuple(self.b - {1})",
        "names = {n for n in range(3)}\nprint(*names)",
        "names = set()\nnames.pop()",
        "def f(names: set[str]): return ', '.join(name for name in names)",
        "def f(names: set[str]): return dict.fromkeys(names.copy())",
        "def f(a):\n    old, a.b = a.b, set()\n    for each in old: print(each)",
    ],
)
def test_a_use_of_the_order_of_a_set_is_found(text: str) -> None:
    assert len(uses({"a.py": text})) == 1


@pytest.mark.parametrize(
    "text",
    [
        "names: set[str] = set()\nfor name in sorted(names): print(name)",
        "def f(names: set[str]): return any(name for name in names), len(names), 'a' in names",
        "def f(names: set[str]): return {name for name in names}",
        "def f(names: set[str]): return names\ndef g(names): return list(names)",
        "names = dict.fromkeys('abc')\nfor name in names: print(name)",
        "names: list[set[str]] = []\nfor name in names: print(name)",
        "names = []\nnames.pop()",
    ],
)
def test_other_code_is_not_reported(text: str) -> None:
    assert uses({"a.py": text}) == []
