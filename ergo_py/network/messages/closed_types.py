"""`ClosedType`: a listed class with fields that are scalars, or lists of scalars. The codec encodes
and decodes its instances as a whole, without a step of Python for each field.

The annotations decide whether a class is closed, and the types of the values whether an instance
is. An instance with another value in a field takes the general way, so that the value that arrives
equals the value that was sent, in its type, too.
"""

import dataclasses
import types
from collections.abc import Callable
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from .codec import msgspec

__all__ = ["MARK", "ClosedType", "closed_type"]

MARK: Final = 0xC1
"""The first byte of a closed message. No value of MessagePack begins with it."""

_SCALARS: Final = frozenset({str, int, float, bool, bytes, type(None)})
_LONGEST: Final = 255
"""The most bytes of a name on the wire: its length is a byte."""


_encode: Final = msgspec.msgpack.Encoder().encode


class ClosedType:
    """The codec of a closed class."""

    def __init__(self, cls: type, name: bytes, fields: tuple[str, ...], checks: list[Any]) -> None:
        self._head = bytes((MARK, len(name))) + name
        """The bytes in front of an encoded instance."""
        test, self._names = _test(fields, checks)
        # A single function: each message to another node pays for every further call.
        self._encoder = compile(
            f"lambda v: head + encode(v) if {test} else otherwise(v)", "<encoder>", "eval"
        )
        self.decode: Callable[[bytes | memoryview], Any] = msgspec.msgpack.Decoder(cls).decode

    def encoder(self, otherwise: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
        """A function that encodes an instance: ``otherwise`` if the types of its values are not
        those of the annotations.
        """
        names = {"head": self._head, "encode": _encode, "otherwise": otherwise, **self._names}
        encoder: Callable[[Any], bytes] = eval(self._encoder, names)
        return encoder


def closed_type(cls: type[Any], wire_name: str, fields: tuple[str, ...]) -> ClosedType | None:
    """The codec of a class; None if the class is not closed."""
    name = wire_name.encode()
    if len(name) > _LONGEST or not _is_plain(cls):
        return None
    try:
        hints = get_type_hints(cls)
        checks = [_check(hints[field]) for field in fields]
        if None in checks:
            return None
        return ClosedType(cls, name, fields, checks)
    except Exception:
        # An annotation that is known to type checkers only, or that the codec does not know.
        return None


def _is_plain(cls: Any) -> bool:
    """Whether the codec builds the same instance as the constructor, from a map of all fields."""
    if cls.__new__ is not object.__new__ and not issubclass(cls, msgspec.Struct):
        return False
    if hasattr(cls, "__post_init__"):
        # If it raises, the general way builds the instance again: it would run twice.
        return False
    if dataclasses.is_dataclass(cls):
        # The codec fills the fields and never calls `__init__`: a constructor of the class itself,
        # or of a subclass without the decorator, may refuse values. `dataclass` compiles its
        # constructors inside a function of this name.
        constructor: object = getattr(cls, "__init__")  # noqa: B009 - of the class
        code = getattr(constructor, "__code__", None)
        return code is not None and code.co_qualname.startswith("__create_fn__.")
    if not issubclass(cls, msgspec.Struct):
        return False
    config = cls.__struct_config__
    return (
        # A tag or an array is no map of all fields, by which a node with other fields reads the
        # instance; and a field that only a later version has must be dropped, not refused.
        config.tag is None
        and not config.array_like
        and not config.forbid_unknown_fields
        and cls.__struct_encode_fields__ == cls.__struct_fields__
    )


Check = tuple[frozenset[type], frozenset[type] | None]
"""The types that a field may have, and for a list the types of its items."""


def _check(annotation: object) -> Check | None:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is list and len(args) == 1:
        items = _scalars(args[0])
        return None if items is None else (frozenset({list}), items)
    scalars = _scalars(annotation)
    return None if scalars is None else (scalars, None)


def _scalars(annotation: object) -> frozenset[type] | None:
    if annotation is None:
        return frozenset({type(None)})
    if isinstance(annotation, type):
        return frozenset({annotation}) if annotation in _SCALARS else None
    if get_origin(annotation) in (Union, types.UnionType):
        found = [_scalars(part) for part in get_args(annotation)]
        if None not in found:
            return frozenset(one for part in found for one in part or ())
    return None


def _test(fields: tuple[str, ...], checks: list[Any]) -> tuple[str, dict[str, Any]]:
    """An expression that says whether all fields of an instance ``v`` have the types of their
    annotations, and the names in it. Written out as code: a loop over the fields would cost more
    than the encoding.
    """
    # The tests compare types exactly: the codec turns an int in a field for a float into a float,
    # and an instance of a subclass of str into a str.
    names: dict[str, Any] = {}
    tests = []
    for number, (field, (allowed, items)) in enumerate(zip(fields, checks, strict=True)):
        if len(allowed) == 1:
            (names[f"t{number}"],) = allowed
            tests.append(f"type(v.{field}) is t{number}")
        else:
            names[f"t{number}"] = allowed
            tests.append(f"type(v.{field}) in t{number}")
        if items is not None:
            names[f"i{number}"] = items
            tests.append(f"i{number}.issuperset(map(type, v.{field}))")
    # The names of fields are identifiers: they come from a class statement or were checked.
    assert all(field.isidentifier() for field in fields)
    return " and ".join(tests) or "True", names
