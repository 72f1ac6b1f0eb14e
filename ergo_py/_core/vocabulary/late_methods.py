"""`dataclass`: that of the standard library, but the methods of a class are written on first use.

Writing them takes Python almost a millisecond for each class, most of the time of an import, and a
program uses few of the classes that it imports.
"""

import dataclasses
from collections.abc import Callable, Mapping
from inspect import get_annotations
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar, cast, get_origin

__all__ = ["dataclass", "of_defaults"]

T = TypeVar("T")

_Decorator = Callable[[type], type]
_Method = Callable[..., object]

_OF_EACH_CLASS: Final = ("__dict__", "__weakref__")
"""What Python adds to each class."""

_FACTS: Final = ("__dataclass_fields__", "__dataclass_params__", "__match_args__", "__signature__")
"""What ``dataclasses`` and ``match`` read of a class, and what ``inspect`` reads of it before the
signature of ``__init__``.
"""
_METHODS: Final = ("__init__", "__repr__", "__eq__")
_FROZEN_METHODS: Final = ("__hash__", "__setattr__", "__delattr__")


class _LateMethods:
    """The methods of one class, ``made``, which the standard library writes for a class with the
    ``namespace`` that the module gave it: with the defaults of the fields, which ``made`` cannot
    have beside its slots.
    """

    made: type

    def __init__(self, namespace: Mapping[str, object], write: _Decorator) -> None:
        self.namespace = namespace
        self._write = write
        self._written: Mapping[str, object] | None = None

    def written(self) -> Mapping[str, object]:
        """The methods and facts by name. They are written at the first call.

        Threads that meet here write the same methods twice, into classes of their own.
        """
        if self._written is None:
            made = self.made
            namespace = {**self.namespace, "__qualname__": made.__qualname__}
            plain = self._write(type(made)(made.__name__, made.__bases__, namespace))
            written = {
                name: value for name, value in vars(plain).items() if name not in self.namespace
            }
            for name, value in written.items():
                if name not in _OF_EACH_CLASS:
                    setattr(made, name, value)
            self._written = written
        return self._written

    def method(self, name: str) -> _Method:
        """A method that has all methods written, and calls the one with its name."""

        def write_and_call(*args: object, **keywords: object) -> object:
            return cast("_Method", self.written()[name])(*args, **keywords)

        return write_and_call


class _LateFact:
    """An attribute of the class that the standard library writes with the methods."""

    def __init__(self, methods: _LateMethods, name: str) -> None:
        self.methods = methods
        self._name = name

    def __get__(self, instance: object, owner: type) -> object:
        return self.methods.written().get(self._name)


def of_defaults(kind: type[T], **values: object) -> T:
    """An instance of a dataclass with these values, and with the defaults of all other fields.
    Neither ``__init__`` nor ``__post_init__`` is called, so the methods need not be written for the
    constants that modules make while they are imported.
    """
    late = vars(kind)["__dataclass_fields__"]
    if not isinstance(late, _LateFact):
        return kind(**values)
    made = object.__new__(kind)
    for name in vars(kind)["__slots__"]:
        value = values[name] if name in values else late.methods.namespace[name]
        default = value.default if isinstance(value, dataclasses.Field) else value
        object.__setattr__(made, name, default)
    return made


def _state(self: "DataclassInstance") -> list[object]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: "DataclassInstance", state: list[object]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


def _late(*, slots: bool, frozen: bool = False, init: bool = True) -> _Decorator:
    """Make the class at once, with its slots, and its methods later."""
    assert slots, "the methods of a class without slots are not late"

    def decorate(plain: type) -> type:
        namespace = {
            name: value for name, value in vars(plain).items() if name not in _OF_EACH_CLASS
        }
        kinds: Mapping[str, object] = get_annotations(plain)
        names = tuple(name for name, kind in kinds.items() if get_origin(kind) is not ClassVar)
        own = {name: value for name, value in namespace.items() if name not in names}
        if frozen:
            own = {"__getstate__": _state, "__setstate__": _set_state} | own
        own |= {"__slots__": names, "__qualname__": plain.__qualname__}
        # A class without fields needs no `__init__`: modules make its only value at once.
        has_init = init and bool(names or plain.__bases__ != (object,))
        methods = _LateMethods(namespace, dataclasses.dataclass(frozen=frozen, init=has_init))
        # Before the class is made: a method that is set later costs a search for its slots.
        for name in (*_METHODS[not has_init :], *(_FROZEN_METHODS if frozen else ())):
            if name not in namespace:
                own[name] = methods.method(name)
        own |= {name: _LateFact(methods, name) for name in _FACTS}
        methods.made = made = type(plain)(plain.__name__, plain.__bases__, own)
        return made

    return decorate


if TYPE_CHECKING:
    from dataclasses import dataclass

    from _typeshed import DataclassInstance
else:
    dataclass = _late
