"""Exceptions that travel: the parts of an exception, and the exception that is made of them."""

import builtins
from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["BUILTIN", "UNRAISABLE", "arguments_of", "attributes_of", "remade"]

UNRAISABLE: Final = (StopIteration, StopAsyncIteration)
"""Python turns these into a RuntimeError where a coroutine raises them, so that no call could."""

BUILTIN: Final = {
    name: value
    for name, value in vars(builtins).items()
    if isinstance(value, type)
    and issubclass(value, Exception)
    and not issubclass(value, (BaseExceptionGroup, UnicodeError, *UNRAISABLE))
}
"""Exceptions that every node knows, by their names."""


def arguments_of(error: Exception) -> Sequence[object]:
    """The arguments of an exception. Those of an `OSError` include its file names."""
    if isinstance(error, OSError):
        found = OSError.__reduce__(error)[1]
        assert isinstance(found, tuple)
        return found
    return error.args


def attributes_of(error: Exception) -> dict[str, object]:
    """The attributes that the class of an exception has given it, and its notes."""
    return {name: value for name, value in vars(error).items() if _travels(name)}


def remade(cls: type[Exception], args: Sequence[Any], attributes: Mapping[Any, Any]) -> Exception:
    """The exception with these parts. A constructor of its class does not run: it has run on the
    other node, and its parameters need not be ``args``.
    """
    error = cls.__new__(cls, *args)
    base = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    base.__init__(error, *args)  # type: ignore[misc]
    for name, value in attributes.items():
        if isinstance(name, str) and _travels(name):
            # Not setattr(): the other node chooses name and value, and a property or a
            # `__setattr__` of the class would run with them.
            vars(error)[name] = value
    return error


def _travels(name: str) -> bool:
    return name == "__notes__" or not name.startswith("__")
