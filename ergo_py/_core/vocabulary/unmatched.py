"""`Unmatched`: messages for which the ``match`` in ``handle_message`` has no case.

The source of the method is read once for each class, and each type of message is judged once. A
case that may match, as far as its classes tell, is taken to match.
"""

import ast
import builtins
import linecache
import textwrap
from collections.abc import Callable, Mapping, Sequence
from inspect import getattr_static, getclosurevars
from types import FunctionType
from typing import Any, Final

__all__ = ["Unmatched", "unmatched_of"]

_MOST: Final = 1000
"""Types that are remembered; with more of them, the program makes its types at run time."""
_PLAIN: Final = (str, bytes, int, float, complex, list, tuple, dict, set, frozenset, type(None))


class Unmatched:
    """Judges the types of messages that a class gets. ``seen`` has the types that are judged."""

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
        self.seen: set[type] = set()

    def look(self, message: object) -> None:
        """Warn if no case can match messages of this type."""
        kind = type(message)
        if len(self.seen) >= _MOST:
            self.seen.clear()
        self.seen.add(kind)
        # Messages of the framework tell of progress, and many of them may be ignored.
        if kind.__module__.partition(".")[0] == "ergo_py":
            return
        if not any(self._may_match(pattern, kind) for pattern in self._patterns):
            name = kind.__qualname__.rpartition(".")[2]
            case = "None" if message is None else f"{name}()"
            self._warn(
                f"{self._behaviour}.handle_message has no case for {name}, so such a message has "
                f"no effect; write `case {case}:`, or `case _:` to ignore all others"
            )

    def _may_match(self, pattern: ast.pattern, kind: type) -> bool:
        match pattern:
            case ast.MatchClass(cls=cls):
                return _is_a(kind, self._value(cls))
            case ast.MatchOr(patterns=patterns):
                return any(self._may_match(each, kind) for each in patterns)
            case ast.MatchAs(pattern=ast.pattern() as inner):
                return self._may_match(inner, kind)
            case ast.MatchValue(value=ast.Constant(value=value)):
                return _may_equal(kind, value)
            case ast.MatchSingleton(value=value):
                return _is_a(kind, type(value))
            case ast.MatchMapping():
                return _is_a(kind, Mapping)
            case ast.MatchSequence():
                return _is_a(kind, Sequence) and not issubclass(kind, str | bytes | bytearray)
        return True

    def _value(self, expression: ast.expr) -> object:
        """The value of a name, or of a name with attributes, in the method; None if unknown."""
        match expression:
            case ast.Name(id=name):
                free = getclosurevars(self._function).nonlocals
                known = (free, self._function.__globals__, vars(builtins))
                return next((space[name] for space in known if name in space), None)
            case ast.Attribute(value=value, attr=name):
                return getattr(self._value(value), name, None)
        return None


def _is_a(kind: type, cls: Any) -> bool:
    try:
        return issubclass(kind, cls)
    except TypeError:  # no class, or unknown
        return True


def _may_equal(kind: type, value: object) -> bool:
    """Whether an instance may be equal to a literal."""
    if issubclass(kind, type(value)):
        return True
    if isinstance(value, int | float | complex):
        return kind not in _PLAIN or kind in (int, float, complex)
    equal: Any = kind.__eq__
    is_generated = getattr(getattr(equal, "__code__", None), "co_filename", "") == "<string>"
    return not (kind in _PLAIN or equal is object.__eq__ or is_generated)


def unmatched_of(cls: type[Any], behaviour: str, warn: Callable[[str], None]) -> Unmatched | None:
    """The judge of the messages to a class whose ``handle_message`` ends with a ``match`` that has
    no case for all others; None for other classes, and where the source is unknown.
    """
    function = getattr_static(cls, "handle_message", None)
    if not isinstance(function, FunctionType) or function.__module__.startswith("ergo_py."):
        return None
    patterns = _patterns(function)
    return None if not patterns else Unmatched(behaviour, function, patterns, warn)


def _patterns(function: FunctionType) -> list[ast.pattern]:
    """The patterns of the match; none if a case matches everything, or may do."""
    parsed = _parsed(function)
    if parsed is None or len(parsed.args.args) < 2:
        return []
    subject, *before, last = parsed.args.args[1].arg, *parsed.body
    if not isinstance(last, ast.Match) or not _is_named(last.subject, subject):
        return []
    # Code before the match may handle the message.
    if any(_is_named(node, subject) for each in before for node in ast.walk(each)):
        return []
    patterns = [case.pattern for case in last.cases]
    takes_all = any(isinstance(each, ast.MatchAs) and each.pattern is None for each in patterns)
    return [] if takes_all else patterns


def _is_named(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _parsed(function: FunctionType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    code = function.__code__
    last = max((end or 0 for _, end, _, _ in code.co_positions()), default=0)
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 : last]
    # Most methods have no match: they need not be parsed.
    if not any(line.lstrip().startswith("match ") for line in lines):
        return None
    try:
        (parsed,) = ast.parse(textwrap.dedent("".join(lines))).body
    except (SyntaxError, ValueError):  # the file has changed since it was imported
        return None
    return parsed if isinstance(parsed, ast.FunctionDef | ast.AsyncFunctionDef) else None
