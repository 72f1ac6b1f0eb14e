"""Text of values and for terminals: nothing here raises because of what a value says about itself."""

from array import array
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any, Final

__all__ = ["brief", "printable", "printable_lines", "shown", "text_of"]

_DEEP: Final = 50
"""Containers inside containers of which the contents are shown."""


def text_of(value: object) -> str:
    """``str(value)``, or a remark if its ``__str__`` raises."""
    try:
        return str(value)
    except KeyboardInterrupt:
        raise
    except BaseException:  # nothing is awaited here: it can only be a fault of the value's own code
        return "<its __str__ raised>"


def shown(value: object) -> str:
    """``repr(value)``, or a remark if its ``__repr__`` raises."""
    try:
        return repr(value)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return f"<{type(value).__name__}: its __repr__ raised>"


def brief(value: object, most: int) -> str:
    """The first ``most`` characters of ``repr(value)``, and how much there is if that is not all.

    Of a container no more is looked at than is shown: the text of one with millions of items would
    take the loop for long. An object with a ``__repr__`` of its own is asked for all of it.

    Raises:
        Exception: whatever the ``__repr__`` of something in it raises.
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
    """The text of a value, piece by piece, so that whoever has enough can stop. ``above``: the
    containers it is in.
    """
    kind = type(value)
    if kind in _STRINGS:
        # One more than is shown, so that it is seen to be cut.
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
    """A key of a dict, which is a value itself."""

    __slots__ = ("key",)

    def __init__(self, key: object) -> None:
        self.key = key


_Items = Iterable[tuple[_Key | str, Any]]


def _parts_of(value: Any, kind: type) -> tuple[str, _Items | None, str]:
    """What a container begins with, its items with their labels, what it ends with; no items if it
    is none that is known here.
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
    return (("", one) for one in values)


def _keyed(mapping: Mapping[Any, Any]) -> _Items:
    return ((_Key(key), one) for key, one in mapping.items())


def _fields_of(value: Any, kind: type) -> _Items | None:
    """The fields of a dataclass or a named tuple that has no ``__repr__`` of its own."""
    made = kind.__repr__
    if is_dataclass(kind) and hasattr(made, "__wrapped__"):
        return ((one.name, getattr(value, one.name)) for one in fields(kind) if one.repr)
    names = getattr(kind, "_fields", None)
    if isinstance(value, tuple) and names is not None and made.__module__ == "collections":
        return zip(names, value, strict=True)
    return None


def printable(text: str) -> str:
    """One line that may go to a terminal or a log: what would move the cursor or end the line is
    escaped.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def printable_lines(text: str) -> str:
    """The same for a text of several lines, which stay lines."""
    return "\n".join(map(printable, text.split("\n")))
