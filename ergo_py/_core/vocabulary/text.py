"""Safe text of values, for logs and terminals: a faulty ``__str__`` or ``__repr__`` raises only
where a docstring says so.
"""

from array import array
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any, Final

__all__ = [
    "brief",
    "printable",
    "printable_lines",
    "shortened",
    "shown",
    "text_of",
    "type_of",
    "utf8",
]

_DEEP: Final = 50
"""Maximal depth of nested containers that are shown."""
_CARRIERS: Final = 10
"""Requests inside of each other that are looked into: a request may carry itself."""
_LONG_LINE: Final = 1000
_LONG_TEXT: Final = 20_000
"""Characters of a line, and of a text with many lines, that a line of the log shows."""


def text_of(value: object) -> str:
    """``str(value)``, or a remark if its ``__str__`` raises."""
    try:
        return str(value)
    except KeyboardInterrupt:
        raise
    except BaseException:  # no await here, so no cancellation: the value's own code is faulty
        return "<its __str__ raised>"


def type_of(value: object) -> str:
    """The name of a value's type, as a program writes it: ``Port.Write``. A request that the
    framework has put another into, as one with the id of a command, has the name of that one.
    """
    for _ in range(_CARRIERS):
        if not getattr(type(value), "__carries_request__", False):
            break
        value = getattr(value, "request", None)
    return type(value).__qualname__.rpartition("<locals>.")[2]


def shown(value: object) -> str:
    """``repr(value)``, or a remark if its ``__repr__`` raises."""
    try:
        return repr(value)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return f"<{type(value).__name__}: its __repr__ raised>"


def shortened(text: str) -> str:
    """A text for a line of the log: long lines, and the middle of a very long text, are cut."""
    if len(text) <= _LONG_LINE:
        return text
    lines = [_cut(line, _LONG_LINE) for line in text.splitlines(keepends=True)]
    return _cut("".join(lines), _LONG_TEXT)


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} [… {len(text) - 2 * half} characters …] {text[-half:]}"


def utf8(text: str) -> str:
    """The text with its surrogates escaped. `os.fsdecode` makes surrogates out of bytes that are
    not UTF-8, and no UTF-8 encoder takes them.
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def brief(value: object, most: int) -> str:
    """The first ``most`` characters of ``repr(value)``, followed by the size of a value that was
    cut.

    Only the shown part of a container is formatted: the text of a container with millions of items
    would block the loop for long. The ``__repr__`` of other objects is called in full.

    Raises:
        Exception: the ``__repr__`` of a value inside raised it.
    """
    text = ""
    for piece in _pieces(value, most, ()):
        text += piece
        if len(text) > most:
            return f"{text[:most]}…{_size(value)}"
    return text


def _size(value: object) -> str:
    if isinstance(value, str | bytes | bytearray):
        return f" ({len(value)} characters)"
    if isinstance(value, list | tuple | dict | set | frozenset | deque | array):
        return f" ({len(value)} items)"
    return ""


def _pieces(value: Any, most: int, above: tuple[int, ...]) -> Iterator[str]:
    """The text of a value, piece by piece, so that the caller can stop early. ``above``: the ids of
    the containers around it.
    """
    kind = type(value)
    if kind in _STRINGS:
        # A character more than is shown, so that the caller notices the cut.
        yield repr(value[: most + 1])
        return
    opening, items, closing = _parts_of(value, kind)
    if items is None:
        yield repr(value)
        return
    yield opening
    if id(value) in above or len(above) >= _DEEP:
        yield "..."
    else:
        inside = (*above, id(value))
        for number, (label, item) in enumerate(items):
            if number:
                yield ", "
            if isinstance(label, _Key):
                yield from _pieces(label.key, most, inside)
                yield ": "
            elif label:
                yield f"{label}="
            yield from _pieces(item, most, inside)
    yield closing


_STRINGS: Final = frozenset({str, bytes, bytearray})
_BRACKETS: Final[Mapping[type, tuple[str, str]]] = {
    list: ("[", "]"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
}


class _Key:
    """Marks a label as the key of a dict, which is formatted as a value."""

    __slots__ = ("key",)

    def __init__(self, key: object) -> None:
        self.key = key


_Items = Iterable[tuple[_Key | str, Any]]


def _parts_of(value: Any, kind: type) -> tuple[str, _Items | None, str]:
    """The opening text of a container, its items with their labels, and the closing text. Items are
    None if ``kind`` is not a known container.
    """
    if kind in _BRACKETS and value:
        return _BRACKETS[kind][0], _plain(value), _BRACKETS[kind][1]
    if kind is list or kind is tuple:
        return (
            "(" if kind is tuple else "[",
            _plain(value),
            "]" if kind is list else ",)" if len(value) == 1 else ")",
        )
    if kind is dict:
        return "{", _keyed(value), "}"
    if kind is OrderedDict:
        return "OrderedDict({", _keyed(value), "})"
    if kind is defaultdict:
        return f"defaultdict({value.default_factory!r}, {{", _keyed(value), "})"
    if kind is deque:
        return (
            "deque([",
            _plain(value),
            "])" if value.maxlen is None else f"], maxlen={value.maxlen})",
        )
    if kind is array and value and value.typecode not in "uw":
        return f"array({value.typecode!r}, [", _plain(value), "])"
    if kind is SimpleNamespace:
        return "namespace(", iter(vars(value).items()), ")"
    return f"{kind.__qualname__}(", _fields_of(value, kind), ")"


def _plain(values: Iterable[Any]) -> _Items:
    return (("", value) for value in values)


def _keyed(mapping: Mapping[Any, Any]) -> _Items:
    return ((_Key(key), value) for key, value in mapping.items())


def _fields_of(value: Any, kind: type) -> _Items | None:
    """The fields of a dataclass or named tuple with a generated ``__repr__``; None for any other
    object.
    """
    is_data = is_dataclass(kind)  # asked first: it writes late methods
    generated = kind.__repr__
    if is_data and hasattr(generated, "__wrapped__"):
        return ((field.name, getattr(value, field.name)) for field in fields(kind) if field.repr)
    names = getattr(kind, "_fields", None)
    if issubclass(kind, tuple) and names is not None and generated.__module__ == "collections":
        return zip(names, value, strict=True)
    return None


def printable(text: str) -> str:
    """A single line that is safe for a terminal or a log: control characters and line breaks are
    escaped.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def printable_lines(text: str) -> str:
    """Like `printable`, for a text of several lines: its line breaks stay."""
    return "\n".join(map(printable, text.split("\n")))
