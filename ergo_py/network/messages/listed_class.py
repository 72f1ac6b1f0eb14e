"""`ListedClass`: a class of messages that may travel, its fields, and the types of their values."""

import dataclasses
import types
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from ..._core.vocabulary.errors import BadInputError
from .closed_types import closed_type
from .codec import msgspec

__all__ = [
    "ListedClass",
    "RefusedValueError",
    "UnreadableValueError",
    "can_be_listed",
    "listed_class",
    "wire_name_of",
]


class RefusedValueError(TypeError):
    """A value cannot travel. The text says which part of it, and the remedy."""


class UnreadableValueError(ValueError):
    """Bytes of another node are not a value that this node knows."""


class ListedClass:
    """A listed class: a dataclass, a `msgspec.Struct` or a named tuple."""

    def __init__(self, cls: type, wire_name: str) -> None:
        self.cls = cls
        self.wire_name = wire_name
        fields = _fields_of(cls)
        self.fields: tuple[str, ...] = fields
        self.allowed: dict[str, tuple[type, ...]] = _allowed_types(cls, fields)
        """The types that each field may have, as far as its annotation says so."""
        self.closed: Final = closed_type(cls, wire_name, fields)
        """The fast codec, if the class is closed."""

    def make(self, values: Mapping[str, Any]) -> Any:
        """Build an instance. A field that this node does not know is dropped."""
        known = {name: values[name] for name in self.fields if name in values}
        # No text shows the value of a field: it may be a secret, and the text is logged.
        for name, allowed in self.allowed.items():
            if name in known and not isinstance(known[name], allowed):
                raise UnreadableValueError(
                    f"{self.wire_name}.{name}: got a {type(known[name]).__name__}, "
                    f"allowed is {' or '.join(sorted(t.__name__ for t in allowed))}"
                )
        try:
            return self.cls(**known)
        except Exception as error:
            missing = [name for name in self.fields if name not in known]
            raise UnreadableValueError(
                f"{self.wire_name} cannot be made: {type(error).__name__}"
                + (f"; the message has no field {', '.join(missing)}" if missing else "")
            ) from None


def listed_class(cls: type, wire_name: str) -> ListedClass:
    """A class, listed under a name. A class of the framework is read once in a program: each node
    lists all of them.
    """
    is_own = cls.__module__.partition(".")[0] == "ergo_py"
    return _own_class(cls, wire_name) if is_own else ListedClass(cls, wire_name)


# Not for classes of programs: the cache would keep a class that was made at run time for good.
_own_class = cache(ListedClass)


def _allowed_types(cls: type, fields: tuple[str, ...]) -> dict[str, tuple[type, ...]]:
    """The types that each field may have, as far as its annotation says so."""
    try:
        hints = get_type_hints(cls)
    except Exception:
        # A name in an annotation is known to type checkers only.
        return {}
    found = {name: _types_of(hints[name]) for name in fields if name in hints}
    return {name: allowed for name, allowed in found.items() if allowed is not None}


def _types_of(annotation: object) -> tuple[type, ...] | None:
    """The classes that an annotation allows; None if any value may fit."""
    origin = get_origin(annotation)
    if annotation is None:
        return (type(None),)
    if origin is Annotated:
        return _types_of(get_args(annotation)[0])
    if origin is Union or origin is types.UnionType:
        parts = [_types_of(part) for part in get_args(annotation)]
        if any(part is None for part in parts):
            return None
        return tuple(cls for part in parts for cls in part or ())
    if origin is Literal:
        return tuple(dict.fromkeys(type(value) for value in get_args(annotation)))
    found = annotation if origin is None else origin
    supertype = getattr(found, "__supertype__", None)
    if supertype is not None:
        return _types_of(supertype)
    if not isinstance(found, type) or found is object:
        return None
    try:
        isinstance(None, found)
    except TypeError:  # a protocol that is not made for isinstance
        return None
    # As type checkers do: an int fits where a float is declared.
    return (float, int) if found is float else (found,)


def wire_name_of(cls: type[Any]) -> str:
    """The name of a class on the wire."""
    return str(getattr(cls, "__dict__", {}).get("__wire__") or getattr(cls, "__qualname__", cls))


def can_be_listed(cls: type) -> bool:
    """Whether a class is of a kind that can be listed."""
    return (
        dataclasses.is_dataclass(cls)
        or issubclass(cls, msgspec.Struct | Enum | Exception)
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
    )


def _fields_of(cls: type[Any]) -> tuple[str, ...]:
    if issubclass(cls, msgspec.Struct):
        return tuple(cls.__struct_fields__)
    if issubclass(cls, tuple):
        return tuple(getattr(cls, "_fields"))  # noqa: B009 - the class of a named tuple has it
    for field in dataclasses.fields(cls):
        if not field.init:
            raise BadInputError(
                "types",
                cls,
                f"a dataclass whose fields are all arguments of its constructor; the field "
                f"{field.name!r} has init=False",
            )
    return tuple(field.name for field in dataclasses.fields(cls))
