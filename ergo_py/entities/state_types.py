"""`StateType`: the class of an entity's state, and its encoding.

A state is stored only if it can be loaded again as it was, so its class is *closed*: its
annotations say how each part is decoded.
"""

import dataclasses
import inspect
import types
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from operator import attrgetter, itemgetter, methodcaller
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    TypeGuard,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)
from uuid import UUID

from .._core.vocabulary.text import shown
from ..network.messages.codec import msgspec
from .errors import StateTypeError

__all__ = ["LARGE", "StateType"]

_PLAIN: Final = frozenset(
    {str, int, float, bool, bytes, type(None), datetime, date, time, timedelta, Decimal, UUID}
)
_SEQUENCES: Final = frozenset({list, set, frozenset, tuple})
_encode = msgspec.msgpack.Encoder().encode
_decode_any = msgspec.msgpack.Decoder().decode


LARGE: Final = 16 * 1024
"""Bytes of a large state. Beside a journal of changes, whole states of 4 kB were written as fast,
of 16 kB a quarter slower, and of 64 kB ten times slower.
"""


class StateType:
    """A closed class of states.

    Raises:
        StateTypeError: the class is not closed, or has a field without a default.
    """

    __slots__ = ("_decode", "_is_large", "_walk", "cls", "name")

    def __init__(self, cls: Any) -> None:
        self.cls: Final = cls
        self._is_large = False
        """A large state of this class was seen before."""
        self.name: str = getattr(cls, "__name__", str(cls))
        if not isinstance(cls, type) or not (_is_class(cls) or cls in _PLAIN):
            raise StateTypeError(
                f"Entity[{self.name}]: got {shown(cls)}; allowed is a dataclass or a "
                "msgspec.Struct whose fields all have defaults, as in `class Account("
                "Entity[Balance])`"
            )
        _check(cls, self.name, self.name, set())
        self.new()
        self._walk = _walk(cls, {})
        """The way to the dataclasses that may miss defaults."""
        try:
            self._decode: Callable[[bytes], Any] = msgspec.msgpack.Decoder(cls).decode
        except TypeError as error:
            raise StateTypeError(
                f"{self.name}: {error}; write plain fields, and msgspec.Struct classes with "
                "`tag=True` where a part may have one of several classes"
            ) from error

    def is_first_large(self, encoded: bytes) -> bool:
        """Whether this is the first state of the class that is large."""
        is_first = len(encoded) > LARGE and not self._is_large
        self._is_large = self._is_large or is_first
        return is_first

    def new(self) -> Any:
        """The state of a new entity.

        Raises:
            StateTypeError: the class needs arguments.
        """
        try:
            return self.cls()
        except Exception as error:
            raise StateTypeError(
                f"{self.name}() raises {type(error).__name__}: {error}; a new entity starts with "
                f"{self.name}(), so give every field a default"
            ) from error

    def encode(self, state: object, before: bytes | None = None) -> bytes:
        """The bytes of a state: the very bytes of ``before`` if they are equal. Others can be
        loaded again: encoding alone accepts a text in a field for numbers.

        Raises:
            StateTypeError: a value has no encoding, or does not have the type of its field.
        """
        try:
            encoded = _encode(state)
            if before is not None and encoded == before:
                return before
            self._decode(encoded)
        except Exception as error:
            raise self._wrong(error) from error
        return encoded

    def _wrong(self, error: Exception) -> StateTypeError:
        return StateTypeError(
            f"the state cannot be stored as a {self.name}: {error}; the change was undone, and "
            "the entity has the state of before"
        )

    def again(self, encoded: bytes) -> Any:
        """The state with these bytes, which this program has made."""
        return self._decode(encoded)

    def load(self, encoded: bytes) -> Any:
        """The state with stored bytes, also of another version of the class. A field that is
        missing takes its default; ``upgrade`` of the class gets data that does not fit.

        Raises:
            ValueError: the data does not fit, and there is no ``upgrade`` that makes it fit.
        """
        try:
            state = self._decode(encoded)
            _complete(state, self._walk)
            if _encode(state) == encoded:
                return state  # no field is missing or unknown
        except msgspec.MsgspecError:
            pass
        data = _decode_any(encoded)
        try:
            return self._converted(data)
        except ValueError:
            upgrade = getattr(self.cls, "upgrade", None)
            if upgrade is None:
                raise
        try:
            upgraded = upgrade(data)
        except Exception as error:
            raise ValueError(f"upgrade raised {type(error).__name__}: {error}") from error
        try:
            return self._converted(upgraded)
        except Exception as error:  # also of numbers without an encoding, and of cycles
            raise ValueError(f"the result of upgrade does not fit: {error}") from None

    def _converted(self, data: object) -> Any:
        try:
            state = self._decode(_encode(data))
            _complete(state, self._walk)
        except (msgspec.ValidationError, TypeError) as error:
            raise ValueError(str(error)) from None
        # msgspec drops fields that a class does not have.
        unknown = _unknown(data, _decode_any(_encode(state)), "")
        if unknown:
            raise ValueError(f"it has the unknown field {unknown}")
        return state


def _unknown(data: object, kept: object, path: str) -> str:
    """The path of the first part of ``data`` that is not in ``kept``; empty if there is none."""
    if isinstance(data, dict):
        if not isinstance(kept, dict):
            return path or "."
        others = kept
        if not data.keys() <= kept.keys():  # a key may be a set
            others = {_unordered(key): value for key, value in kept.items()} | kept
        for key, value in data.items():
            where = f"{path}.{key}" if path else str(key)
            name = key if key in kept else _unordered(key)
            if name not in others:
                return where
            if found := _unknown(value, others[name], where):
                return found
    elif isinstance(data, list):
        if not isinstance(kept, list) or len(kept) < len(data):
            return path or "."
        if _unordered(data) == _unordered(kept):
            return ""
        for number, (value, other) in enumerate(zip(data, kept, strict=False)):
            if isinstance(value, dict | list) and (
                found := _unknown(value, other, f"{path}[{number}]")
            ):
                return found
    return ""


def _unordered(data: object) -> Hashable:
    """Equal for lists with the same elements, in any order: a set has another order in each
    program, and is stored as a list.
    """
    if isinstance(data, list | tuple):
        return frozenset(Counter(map(_unordered, data)).items())
    return data if isinstance(data, Hashable) else _encode(data)


# -- missing defaults ------------------------------------------------------------------------------

# msgspec leaves a field out of a decoded dataclass if the class has its default as an attribute,
# and later does not encode it: a version of the class with another default would load that one.

_Walk: TypeAlias = "dict[type, Callable[[Any], _Inside]]"
"""By the type of a value: what completes the value, and returns what is inside."""
_Inside: TypeAlias = "Iterable[tuple[_Walk, Iterable[object]]]"
_Parts: TypeAlias = list[tuple[Callable[[Any], object], _Walk]]


def _complete(state: object, walk: _Walk) -> None:
    """Put missing defaults into a decoded state and its parts. A part may contain others as deep as
    msgspec decodes them, so this does not recurse.
    """
    todo: list[tuple[_Walk, Iterable[object]]] = [(walk, (state,))]
    while todo:
        walk, values = todo.pop()
        for each in values:
            complete = walk.get(type(each))
            if complete is not None:
                todo.extend(complete(each))


def _walk(annotation: object, walks: dict[object, _Walk]) -> _Walk:
    """The way through values of an annotation; empty if no default can be missing in them, so that
    a long list of numbers is not walked. ``walks`` are those of classes.
    """
    origin, args = get_origin(annotation), get_args(annotation)
    cls = annotation if origin is None else origin
    if _is_class(cls):
        return _walk_of_class(cls, walks)
    if origin is Annotated:
        return _walk(args[0], walks)
    if origin in (Union, types.UnionType):  # msgspec allows a single list, and a single dict
        return {key: value for each in args for key, value in _walk(each, walks).items()}
    if origin is tuple and Ellipsis not in args:
        places = [(itemgetter(place), _walk(each, walks)) for place, each in enumerate(args)]
        parts: _Parts = [(get, walk) for get, walk in places if walk]
        return {tuple: lambda value: _parts(value, parts)} if parts else {}
    if origin in (list, tuple):
        elements = _walk(args[0], walks)
        return {origin: lambda value: ((elements, value),)} if elements else {}
    if origin is dict:
        values = _walk(args[1], walks)
        return {dict: lambda value: ((values, value.values()),)} if values else {}
    return {}


def _walk_of_class(cls: type, walks: dict[object, _Walk]) -> _Walk:
    if cls in walks:
        return walks[cls]
    missing = _left_out(cls)
    parts: _Parts = []

    def complete(value: object) -> _Inside:
        if missing:
            attributes = vars(value)
            for field in missing:
                if field.name not in attributes:
                    attributes[field.name] = _default(value, field)
        return _parts(value, parts)

    is_dict = is_typeddict(cls)
    walks[cls] = {dict if is_dict else cls: complete}  # a part may be of this class
    for name, hint in _hints(cls, "").items():
        if walk := _walk(hint, walks):
            parts.append((methodcaller("get", name) if is_dict else attrgetter(name), walk))
    if not missing and not parts:
        walks[cls] = {}
    return walks[cls]


def _parts(value: object, parts: _Parts) -> _Inside:
    return [(walk, (get(value),)) for get, walk in parts]


def _left_out(cls: object) -> list[dataclasses.Field[Any]]:
    """The fields of a dataclass that a decoded object may not have: the class has an attribute of
    the name. A slot is one too, but msgspec fills it, and a value in ``__dict__`` would hide it.
    """
    found = []
    for field in dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ():
        attribute = inspect.getattr_static(cls, field.name, dataclasses.MISSING)
        if attribute is not dataclasses.MISSING and not inspect.isdatadescriptor(attribute):
            found.append(field)
    return found


def _default(value: object, field: dataclasses.Field[Any]) -> object:
    # The attribute may be the default of a base class, whose field was defined again.
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return getattr(value, field.name)


# -- closed types ----------------------------------------------------------------------------------


def _is_class(cls: object) -> TypeGuard[type]:
    return isinstance(cls, type) and (
        dataclasses.is_dataclass(cls)
        or issubclass(cls, msgspec.Struct)
        or is_typeddict(cls)
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
    )


def _check(annotation: object, where: str, state: str, seen: set[Any]) -> None:
    """Check that values of an annotation can be loaded as they were stored."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        _check(args[0], where, state, seen)
    elif (
        origin is Literal
        or annotation in _PLAIN
        or annotation is None
        or (isinstance(annotation, type) and issubclass(annotation, Enum))
    ):
        return
    elif _is_class(annotation) or _is_class(origin):
        cls = annotation if origin is None else origin
        if cls in seen:
            return
        seen.add(cls)
        if getattr(getattr(cls, "__struct_config__", None), "omit_defaults", False):
            raise StateTypeError(
                f"{where}: omit_defaults=True leaves a value out that is the default, and a later "
                "version of the class may have another default; leave the option out"
            )
        for name, hint in _hints(cls, where).items():
            _check(hint, f"{where}.{name}", state, seen)
    elif origin in (Union, types.UnionType):
        for each in args:
            _check(each, where, state, seen)
    elif origin in _SEQUENCES and args:
        for each in args:
            if each is Ellipsis:
                continue
            if origin in (set, frozenset) and _has_class(each):
                raise _open(where, annotation, "a list or a dict: the order of a set is not kept")
            _check(each, f"{where}[]", state, seen)
    elif origin is dict:
        for each in args:
            _check(each, f"{where}[]", state, seen)
    else:
        raise _open(where, annotation, _instead(annotation))


def _has_class(annotation: object) -> bool:
    parts = get_args(annotation)
    return _is_class(annotation) or _is_class(get_origin(annotation)) or any(map(_has_class, parts))


def _hints(cls: object, where: str) -> dict[str, Any]:
    try:
        hints = get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise StateTypeError(
            f"{where}: {error}; the annotations of a state are read when the program starts, so "
            "import these names at run time, and not under TYPE_CHECKING"
        ) from None
    names = (
        [field.name for field in dataclasses.fields(cls)]
        if dataclasses.is_dataclass(cls)
        else getattr(cls, "__struct_fields__", None) or getattr(cls, "_fields", None) or hints
    )
    return {name: hints.get(name, Any) for name in names}


def _instead(annotation: object) -> str:
    if annotation in _SEQUENCES:
        return f"the type of the elements, too: `{annotation.__name__}[str]`"
    if annotation is dict:
        return "the types of keys and values, too: `dict[str, int]`"
    return (
        "numbers, texts, bytes, times, Decimal, UUID, enums, dataclasses, and lists, tuples, sets "
        "and dicts of these"
    )


def _open(where: str, annotation: object, instead: str) -> StateTypeError:
    name = getattr(annotation, "__name__", None)
    written = name if isinstance(annotation, type) and name else str(annotation)
    return StateTypeError(
        f"{where}: {written} cannot be loaded as it was stored; allowed is {instead}"
    )
