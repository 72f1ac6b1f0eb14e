"""`Unmatched`: messages for which the ``match`` in ``handle_message`` has no case.

The source of the method is read once for each class, and each type of message is judged once, by
its first message. A case that may match, as far as its classes tell, is taken to match. A class is
not judged if the code before its ``match`` may handle a message.
"""

import ast
import builtins
import linecache
import textwrap
import tokenize
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from inspect import getattr_static, getblock
from types import CodeType, FunctionType
from typing import Any, Final

__all__ = ["Unmatched", "unmatched_of"]

_MOST: Final = 1000
"""Types that are remembered; with more of them, the program makes its types at run time."""
_PLAIN: Final = (str, bytes, int, float, complex, list, tuple, dict, set, frozenset, type(None))


class Unmatched:
    """Judges the types of messages that a class gets. ``seen`` has the numbers (`id`) of the types
    that are judged: not every type can be hashed.
    """

    __slots__ = ("_behaviour", "_function", "_patterns", "_warn", "seen")

    def __init__(
        self,
        behaviour: str,
        function: FunctionType,
        patterns: list[ast.pattern],
        warn: Callable[[str], None],
    ) -> None:
        self._behaviour = behaviour
        self._function = function
        self._patterns = patterns
        self._warn = warn
        self.seen: set[int] = set()

    def judges(self, handle_message: object) -> bool:
        """Whether this is the method that was read, and not a function that an instance has in its
        place.
        """
        return getattr(handle_message, "__func__", None) is self._function

    def look(self, message: object) -> None:
        """Warn if no case can match this message."""
        if len(self.seen) >= _MOST:
            self.seen.clear()
        self.seen.add(id(type(message)))
        try:
            is_known = any(self._may_match(pattern, message) for pattern in self._patterns)
            # Messages of the framework tell of progress, and many of them may be ignored.
            if is_known or type(message).__module__.partition(".")[0] == "ergo_py":
                return
        except Exception:  # of a class that asks its instances, or of a name that has no value yet
            return
        name = type(message).__qualname__.rpartition(".")[2]
        case = "None" if message is None else f"{name}()"
        self._warn(
            f"{self._behaviour}.handle_message has no case for {name}, so such a message has "
            f"no effect; write `case {case}:`, or `case _:` to ignore all others"
        )

    def _may_match(self, pattern: ast.pattern, message: object) -> bool:
        kind = type(message)
        match pattern:
            case ast.MatchClass(cls=cls):
                found = self._value(cls)
                # As the match does: a lazy proxy, or a metaclass, may decide.
                return not isinstance(found, type) or isinstance(message, found)
            case ast.MatchOr(patterns=patterns):
                return any(self._may_match(each, message) for each in patterns)
            case ast.MatchAs(pattern=ast.pattern() as inner):
                return self._may_match(inner, message)
            case ast.MatchValue(value=ast.Constant(value=value)):
                return _may_equal(kind, value)
            case ast.MatchSingleton(value=value):
                return kind is type(value)
            case ast.MatchMapping():
                return issubclass(kind, Mapping)
            case ast.MatchSequence():
                return issubclass(kind, Sequence) and not issubclass(kind, str | bytes | bytearray)
        return True

    def _value(self, expression: ast.expr) -> object:
        """The value of a name, or of a name with attributes, in the method; None if unknown."""
        match expression:
            case ast.Name(id=name):
                code = self._function.__code__
                free = dict(zip(code.co_freevars, self._function.__closure__ or (), strict=True))
                if name in free:
                    return free[name].cell_contents
                if name in code.co_varnames or name in code.co_cellvars:
                    return None
                known = (self._function.__globals__, vars(builtins))
                return next((space[name] for space in known if name in space), None)
            case ast.Attribute(value=value, attr=name):
                return getattr(self._value(value), name, None)
        return None


def _may_equal(kind: type, value: object) -> bool:
    """Whether an instance may be equal to a literal."""
    if issubclass(kind, type(value)):
        return True
    if isinstance(value, int | float | complex):
        return kind not in _PLAIN or kind in (int, float, complex)
    equal = kind.__eq__
    is_generated = getattr(getattr(equal, "__code__", None), "co_filename", "") == "<string>"
    return not (kind in _PLAIN or equal is object.__eq__ or is_generated)


def unmatched_of(cls: type[Any], behaviour: str, warn: Callable[[str], None]) -> Unmatched | None:
    """The judge of the messages to a class whose ``handle_message`` ends with a ``match`` that has
    no case for all others; None for other classes, and where the source is unknown.
    """
    function = getattr_static(cls, "handle_message", None)
    if not isinstance(function, FunctionType):
        return None
    if (function.__module__ or "").startswith("ergo_py."):  # None for a function made by exec()
        return None
    patterns = _patterns(function.__code__, function.__code__.co_filename)
    return None if not patterns else Unmatched(behaviour, function, patterns, warn)


@lru_cache(maxsize=1000)  # each node looks at the classes that it spawns
def _patterns(code: CodeType, _file: str) -> list[ast.pattern]:
    """The patterns of the match; none if a case matches everything, or may do. The file is named
    since equal functions of two files have equal code.
    """
    parsed = _parsed(code)
    if parsed is None:
        return []
    parameters = parsed.args.posonlyargs + parsed.args.args
    if len(parameters) < 2:
        return []
    subject, *before, last = parameters[1].arg, *parsed.body
    if not isinstance(last, ast.Match) or not _is_named(last.subject, subject):
        return []
    if any(_may_handle(each, subject) for each in before):
        return []
    patterns = [case.pattern for case in last.cases]
    takes_all = any(isinstance(each, ast.MatchAs) and each.pattern is None for each in patterns)
    return [] if takes_all else patterns


def _may_handle(statement: ast.stmt, subject: str) -> bool:
    """Whether a statement before the match may handle a message, or may return."""
    if any(_is_named(node, subject) for node in ast.walk(statement)):
        return True
    match statement:
        case ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom():
            return False
        case ast.Expr(value=ast.Call(func=function)):
            return not ast.unparse(function).startswith("self.log.")
        case ast.Assign(targets=targets):
            return not all(isinstance(each, ast.Name) for each in targets)
        case ast.AnnAssign(target=ast.Name()):
            return False
    return True


def _is_named(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _parsed(code: CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    last = max((end or 0 for _, end, _, _ in code.co_positions()), default=0)
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 : last]
    # Most methods have no match: they need not be parsed.
    if not any(line.lstrip().startswith("match ") for line in lines):
        return None
    try:
        # The code does not tell its last line: the compiler drops statements without an effect.
        block = getblock(linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :])
        (parsed,) = ast.parse(textwrap.dedent("".join(block))).body
    except (SyntaxError, ValueError, tokenize.TokenError):
        return None  # the file has changed since it was imported
    if not isinstance(parsed, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    return parsed if parsed.name == code.co_name else None
