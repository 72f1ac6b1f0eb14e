"""`StateType`: the class of an entity's state, and its encoding.

A state is stored only if it can be loaded again as it was, so its class is *closed*: its
annotations say how each part is decoded.
"""

import types
from collections import Counter
from collections.abc import Callable, Hashable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Final, Literal, TypeAlias, Union, get_args, get_origin
from uuid import UUID

from ..._core.vocabulary.text import shown
from ...network.messages.codec import msgspec
from ..errors import StateTypeError
from .state_parts import TOO_DEEP, StateParts, hints_of, is_class

__all__ = ["LARGE", "StateType"]

_PLAIN: Final = frozenset(
    {str, int, float, bool, bytes, type(None), datetime, date, time, timedelta, Decimal, UUID}
)
_SEQUENCES: Final = frozenset({list, set, frozenset, tuple})
_encode = msgspec.msgpack.Encoder().encode
_encode_sorted = msgspec.msgpack.Encoder(order="deterministic").encode
_decode_any = msgspec.msgpack.Decoder().decode


LARGE: Final = 16 * 1024
"""Bytes of a large state. Beside a journal of changes, whole states of 4 kB were written as fast,
of 16 kB a quarter slower, and of 64 kB ten times slower.
"""


class StateType:
    """A closed class of states.

    Raises:
        StateError: of kind ``"type"``; the class is not closed, or has a field without a default.
    """

    __slots__ = ("_decode", "_is_large", "_parts", "cls", "name")

    def __init__(self, cls: Any) -> None:
        self.cls: Final = cls
        self._is_large = False
        """A large state of this class was seen before."""
        self.name: str = getattr(cls, "__name__", str(cls))
        if not isinstance(cls, type) or not (is_class(cls) or cls in _PLAIN):
            raise StateTypeError(
                f"Entity[{self.name}]: got {shown(cls)}; allowed is a dataclass or a "
                "msgspec.Struct whose fields all have defaults, as in `class Account("
                "Entity[Balance])`"
            )
        _check(cls, self.name, self.name, set())
        self._parts: Final = StateParts(cls)
        first = self.new()
        try:
            self._decode: Callable[[bytes], Any] = msgspec.msgpack.Decoder(cls).decode
        except TypeError as error:
            raise StateTypeError(
                f"{self.name}: {error}; write plain fields, and msgspec.Struct classes with "
                "`tag=True` where a part may have one of several classes"
            ) from error
        try:
            self.encode(first)
        except StateTypeError as error:
            reason = self._reason(first, error.__cause__)
            raise StateTypeError(f"{self.name}() has a wrong default: {reason}") from error
        wrong = self._parts.wrong_default()
        if wrong:
            raise StateTypeError(f"{self.name}: {wrong}")

    def is_first_large(self, encoded: bytes) -> bool:
        """Whether this is the first state of the class that is large."""
        is_first = len(encoded) > LARGE and not self._is_large
        self._is_large = self._is_large or is_first
        return is_first

    def new(self) -> Any:
        """The state of a new entity.

        Raises:
            StateError: of kind ``"type"``; the class needs arguments.
        """
        try:
            state = self.cls()
        except Exception as error:
            raise StateTypeError(
                f"{self.name}() raises {type(error).__name__}: {error}; a new entity starts with "
                f"{self.name}(), so give every field a default"
            ) from error
        if self._parts.completes:
            self._parts.complete(state)
        return state

    def encode(self, state: object, before: bytes | None = None) -> bytes:
        """The bytes of a state: the very bytes of ``before`` if they are equal. Others are loaded
        as an equal state of the same types: encoding alone accepts a text in a field for numbers,
        and decoding makes a number of it.

        Raises:
            StateError: of kind ``"type"``; a value has no encoding, or does not have the type of
                its field.
        """
        parts = self._parts
        try:
            if parts.completes:
                parts.complete(state)
            encoded = _encode(state)
            is_same = before is not None and encoded == before
            # Equal bytes of types that are round are equal values: a look at each part would take
            # most of the time of a command that only reads.
            is_enough = parts.is_flat or (is_same and parts.is_round)
            if not (is_enough and parts.classes(state) in parts.known):
                wrong = parts.wrong(state)
                if wrong:
                    raise TypeError(wrong)
            if before is not None and is_same:
                return before
            if not parts.is_round:
                again = self._decode(encoded)
                if parts.reloads:
                    _compare(state, again)
        except Exception as error:
            raise StateTypeError(
                f"the state cannot be stored as a {self.name}: {self._reason(state, error)}; the "
                "change was undone, and the entity has the state of before"
            ) from error
        return encoded

    def _reason(self, state: object, error: BaseException | None) -> str:
        if isinstance(error, RecursionError):
            return TOO_DEEP
        try:
            return self._parts.wrong(state) or str(error)
        except Exception:  # of an object that has changed in the hands of another thread
            return str(error)

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
            return self._converted(encoded)
        except ValueError:
            upgrade = getattr(self.cls, "upgrade", None)
            if upgrade is None:
                raise
            try:
                data = _decode_any(encoded)
            except Exception as error:
                raise ValueError(str(error)) from None
        try:
            upgraded = upgrade(data)
        except Exception as error:
            raise ValueError(f"upgrade raised {type(error).__name__}: {error}") from error
        try:
            return self._converted(_encode(upgraded))
        except Exception as error:  # also of numbers without an encoding, and of cycles
            raise ValueError(f"the result of upgrade does not fit: {error}") from None

    def _converted(self, encoded: bytes) -> Any:
        try:
            state = self._decode(encoded)
            self._parts.complete(state)
            again = _encode(state)
            if again == encoded:
                return state  # no field is missing or unknown
            # msgspec drops fields that a class does not have.
            unknown = _unknown(_decode_any(encoded), _decode_any(again))
        except msgspec.MsgspecError as error:
            raise ValueError(str(error)) from None
        except Exception as error:  # of `__post_init__`
            raise ValueError(f"{type(error).__name__}: {error}") from error
        if unknown:
            raise ValueError(f"it has the unknown field {shown(unknown)}")
        return state


def _compare(state: object, again: object) -> None:
    if _encode_sorted(state) != _encode_sorted(again):  # the order of a set may differ
        raise TypeError(
            "`__post_init__` changes values when they are loaded: let it leave alone what it has "
            "made, and call it after changes"
        )


_Path: TypeAlias = "tuple[_Path, str] | None"


def _unknown(data: object, kept: object) -> str:
    """The path of a part of ``data`` that is not in ``kept``; empty if there is none. Equal data
    is compared by Python itself: most of a state is.
    """
    todo: list[tuple[_Path, object, object]] = [(None, data, kept)]
    while todo:
        path, data, kept = todo.pop()
        if data == kept:
            continue
        if isinstance(data, dict):
            if not isinstance(kept, dict):
                return _written(path)
            if data.items() <= kept.items():
                continue  # only defaults are missing
            others = kept
            if not data.keys() <= kept.keys():  # a key may be a set
                others = {_unordered(key): value for key, value in kept.items()} | kept
            for key, value in data.items():
                name = key if key in kept else _unordered(key)
                where = (path, f".{key}")
                if name not in others:
                    return _written(where)
                todo.append((where, value, others[name]))
        elif isinstance(data, list):
            if not isinstance(kept, list) or len(kept) < len(data):
                return _written(path)
            has_dict = any(isinstance(each, dict) for each in data)  # no set has one
            if has_dict or not _is_reordered(data, kept):
                pairs = zip(data, kept, strict=False)
                todo.extend(
                    ((path, f"[{number}]"), value, other)
                    for number, (value, other) in enumerate(pairs)
                    if isinstance(value, dict | list) and value != other
                )
    return ""


def _written(path: _Path) -> str:
    steps: list[str] = []
    while path is not None:
        path, step = path
        steps.append(step)
    return "".join(reversed(steps)).removeprefix(".") or "."


def _is_reordered(data: object, kept: object) -> bool:
    try:
        return _unordered(data) == _unordered(kept)
    except RecursionError:  # no set is so deep
        return False


def _unordered(data: object) -> Hashable:
    """Equal for lists with the same elements, in any order: a set has another order in each
    program, and is stored as a list.
    """
    if isinstance(data, list | tuple):
        return frozenset(Counter(map(_unordered, data)).items())
    return data if isinstance(data, Hashable) else _encode(data)


# -- closed types ----------------------------------------------------------------------------------


def _check(annotation: object, where: str, state: str, seen: set[object]) -> None:
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
    elif is_class(annotation) or is_class(origin):
        cls = annotation if origin is None else origin
        if cls in seen:
            return
        seen.add(cls)
        if getattr(getattr(cls, "__struct_config__", None), "omit_defaults", False):
            raise StateTypeError(
                f"{where}: omit_defaults=True leaves a value out that is the default, and a later "
                "version of the class may have another default; leave the option out"
            )
        for name, hint in hints_of(cls, where).items():
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
        if _has_map(args[0], set()):
            key = "numbers, texts, tuples, or a NamedTuple of them, as keys"
            raise _open(where, annotation, key)
        for each in args:
            _check(each, f"{where}[]", state, seen)
    else:
        raise _open(where, annotation, _instead(annotation))


def _has_class(annotation: object) -> bool:
    parts = get_args(annotation)
    return is_class(annotation) or is_class(get_origin(annotation)) or any(map(_has_class, parts))


def _has_map(annotation: object, seen: set[object]) -> bool:
    """Whether values are stored as dicts, or contain dicts: data with such keys has no plain form
    that ``upgrade`` could get.
    """
    origin, args = get_origin(annotation), get_args(annotation)
    cls = annotation if origin is None else origin
    if not is_class(cls):
        return any(_has_map(each, seen) for each in args)
    if cls in seen:
        return False
    seen.add(cls)
    config = getattr(cls, "__struct_config__", None)
    if not (issubclass(cls, tuple) or getattr(config, "array_like", False)):
        return True
    return any(_has_map(each, seen) for each in hints_of(cls, cls.__name__).values())


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
