"""Checks of the data in messages to bridges, and fast setters for the fields of frozen messages."""

from collections.abc import Callable
from dataclasses import fields

from .._core.vocabulary.errors import BadInputError

__all__ = ["check_bytes", "check_text", "setters"]


def setters(message: type) -> tuple[Callable[[object, object], None], ...]:
    """The functions that fill the fields of a frozen message; they cost two thirds of
    ``object.__setattr__``.
    """
    return tuple(getattr(message, field.name).__set__ for field in fields(message))


def check_bytes(what: str, data: object) -> None:
    """Refuse data that is not bytes."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise BadInputError(what, data, "bytes; encode text first, such as 'hello\\n'.encode()")


def check_text(what: str, data: object) -> None:
    """Refuse data that is neither bytes nor text. ``bytes`` would turn a number into that many
    zeros.
    """
    if not isinstance(data, bytes | bytearray | memoryview | str):
        raise BadInputError(what, data, "bytes or a str")
