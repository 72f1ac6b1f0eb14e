"""``python -m benchmarks.mutants``: break the code in small ways, one at a time, and say which breaks no test notices.

A mutant is one module with one change: a comparison turned round, a number off by one, a statement left out. Its tests run in a
forked copy of this program, in which everything but ``ergo_py`` is imported already, and stop at the first that fails. A mutant
that no test fails for has survived: either a test is missing, or the change makes no difference, and ``mutants.toml`` says why.
"""

import argparse
import ast
import importlib
import importlib.abc
import importlib.machinery
import os
import random
import signal
import sys
import time
import tomllib
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Mutant", "mutants_of"]

ROOT = Path(__file__).resolve().parent.parent
EXPLAINED = Path(__file__).with_suffix(".toml")

TESTS: dict[str, tuple[str, ...]] = {
    "ergo_py/_core/mailbox.py": (
        "tests/_core/test_mailbox.py",
        "tests/_core/test_metabox.py",
        "tests/_core/test_router.py",
        "tests/_core/test_outbox.py",
        "tests/_core/test_serving.py",
    ),
    "ergo_py/strategies.py": ("tests/test_strategies.py", "tests/test_supervisor.py", "tests/test_pool.py"),
    "ergo_py/_core/bridge.py": (
        "tests/_core/test_bridge.py",
        "tests/_core/test_router.py",
        "tests/_core/test_metareading.py",
        "tests/_core/test_watchdog.py",
    ),
    "ergo_py/_core/meta.py": (
        "tests/_core/test_meta.py",
        "tests/_core/test_metaserving.py",
        "tests/_core/test_metasending.py",
        "tests/_core/test_unblocking.py",
        "tests/_core/test_metalife.py",
    ),
    "ergo_py/_core/metalife.py": (
        "tests/_core/test_metalife.py",
        "tests/_core/test_metaserving.py",
        "tests/_core/test_metaending.py",
        "tests/_core/test_meta.py",
    ),
}
"""The modules that are broken, and the tests that should notice, those that know most about it first."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module."""

    module: str
    line: int
    before: str
    after: str
    source: str
    """The whole module with the change in it."""

    @property
    def change(self) -> str:
        """What is changed, whatever the number of the line."""
        return f"{self.before} -> {self.after}"

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.change}"


# -- making them -----------------------------------------------------------------------------------------------------------

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
    for node, changed in (*found, *_tests(tree)):
        begin, end = _span(source, node)
        # An expression keeps its meaning in brackets; a statement must not have any.
        text = changed if isinstance(node, ast.stmt) else f"({changed})"
        before = " ".join(source[begin:end].split())
        made.append(Mutant(module, node.lineno, before, changed, source[:begin] + text + source[end:]))
    return made


def _mutable(tree: ast.AST) -> Iterator[Any]:
    """The nodes that do something when the program runs: no annotations, documentation, names of slots or exports."""
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
    return False


def _changes(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _COMPARED:
            yield ast.unparse(ast.Compare(left, [_COMPARED[type(operator)]()], [right]))
        case ast.BoolOp(op=operator, values=values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield ast.unparse(ast.BoolOp(other, values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield ast.unparse(operand)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _COMPUTED and not _is_text(
            left, right
        ):
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
        case ast.Delete() | ast.Raise():
            yield "pass"
        case ast.Break():
            yield "continue"
        case ast.Continue():
            yield "break"


def _tests(tree: ast.AST) -> Iterator[tuple[Any, str]]:
    """What is tested as it is, by being something or nothing: it has no operator that could be turned round."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While | ast.IfExp) and not _says_nothing(node):
            for part in node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]:
                if isinstance(part, ast.Name | ast.Attribute | ast.Call):
                    yield part, f"not {ast.unparse(part)}"


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _is_text(*operands: ast.expr) -> bool:
    return any(
        isinstance(one, ast.JoinedStr) or (isinstance(one, ast.Constant) and isinstance(one.value, str))
        for one in operands
    )


def _span(source: str, node: Any) -> tuple[int, int]:
    lines = source.splitlines(keepends=True)

    def at(line: int, column: int) -> int:
        # Columns are counted in bytes of UTF-8.
        return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())

    return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)


# -- trying them -----------------------------------------------------------------------------------------------------------


class _Broken(importlib.abc.SourceLoader):
    """Loads the mutant in the place of the module."""

    def __init__(self, mutant: Mutant) -> None:
        self._path = str(ROOT / mutant.module)
        self._source = mutant.source.encode()

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_data(self, path: str) -> bytes:
        if path != self._path:
            raise OSError("no byte code is kept")
        return self._source


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._name = mutant.module.removesuffix(".py").replace("/", ".")
        self._mutant = mutant

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.machinery.ModuleSpec(fullname, _Broken(self._mutant), origin=str(ROOT / self._mutant.module))


def is_killed(mutant: Mutant, limits: Mapping[str, float]) -> bool:
    """Whether a test fails with a mutant, or a file of tests takes longer than it may."""
    return any(fails(mutant, tests, limit) for tests, limit in limits.items())


def fails(mutant: Mutant, tests: str, limit: float) -> bool:
    """Run a file of tests with a mutant, in a copy of this program that cannot outlive its time."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        status = 2
        try:
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
            status = _run(mutant, tests)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(min(status, 2))
    deadline = time.monotonic() + limit
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    try:
        # Whatever its tests have started is in the group that it leads.
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    if not ended:
        os.waitpid(pid, 0)
        return True
    return status != 0


def _run(mutant: Mutant, tests: str) -> int:
    import pytest

    os.chdir(ROOT)
    os.environ["HYPOTHESIS_PROFILE"] = "fast"
    sys.path.insert(0, str(ROOT))
    sys.meta_path.insert(0, _Finder(mutant))
    # Hypothesis is imported already, and has no assertions that should be rewritten.
    options = [
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
        "-q",
        "-x",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "no:cov",
    ]
    return int(pytest.main([*options, tests]))


def _import_the_rest() -> None:
    """Import what all tests need, except what is to be broken."""
    for name in ("_pytest.assertion.rewrite", "hypothesis.stateful", "outcome", "structlog", "trio.testing"):
        importlib.import_module(name)
    if any(name.partition(".")[0] == "ergo_py" for name in sys.modules):
        raise RuntimeError("ergo_py is imported already: a mutant would not be seen")


# -- the program -----------------------------------------------------------------------------------------------------------


def explained() -> dict[tuple[str, str], str]:
    """The mutants that may survive, each with its reason."""
    known = tomllib.loads(EXPLAINED.read_text()) if EXPLAINED.exists() else {}
    return {(module, change): why for module, these in known.items() for change, why in these.items()}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", help="files to break (default: all that are listed here)")
    parser.add_argument("--minutes", type=float, default=60.0, help="when to stop (default: 60)")
    parser.add_argument("--sample", type=int, help="how many mutants of each module to try (default: all)")
    parser.add_argument("--lines", help="only those that begin in these lines, such as 100-120")
    parser.add_argument("--seed", type=int, default=0, help="which ones a sample holds, and in which order they come")
    chosen = parser.parse_args(arguments)
    unknown = [module for module in chosen.modules if module not in TESTS]
    if unknown:
        parser.error(f"{', '.join(unknown)}: not among {', '.join(TESTS)}")
    _import_the_rest()
    known, deadline, survivors = explained(), time.monotonic() + 60 * chosen.minutes, 0
    for module in chosen.modules or TESTS:
        survivors += _try_all(module, chosen, known, deadline)
    return 1 if survivors else 0


def _try_all(module: str, chosen: argparse.Namespace, known: dict[tuple[str, str], str], deadline: float) -> int:
    source = (ROOT / module).read_text()
    began, limits = time.monotonic(), {}
    for tests in TESTS[module]:
        start = time.monotonic()
        if fails(Mutant(module, 0, "", "", source), tests, 600.0):
            raise SystemExit(f"{tests}: fails with {module} as it is")
        limits[tests] = 10.0 + 4 * (time.monotonic() - start)
    made = mutants_of(module, source)
    if chosen.lines:
        first, _, last = chosen.lines.partition("-")
        made = [mutant for mutant in made if int(first) <= mutant.line <= int(last or first)]
    random.Random(chosen.seed).shuffle(made)
    made = made[: chosen.sample]
    tried = killed = excused = 0
    survivors = []
    for mutant in made:
        if time.monotonic() > deadline:
            break
        tried += 1
        if (module, mutant.change) in known:
            excused += 1
        elif is_killed(mutant, limits):
            killed += 1
        else:
            survivors.append(mutant)
            print(f"survived: {mutant}", flush=True)
    print(
        f"{module}: {tried} of {len(made)} mutants tried, {killed} killed, {excused} explained,"
        f" {len(survivors)} survived ({time.monotonic() - began:.0f} s)",
        flush=True,
    )
    return len(survivors)


if __name__ == "__main__":
    sys.exit(main())
