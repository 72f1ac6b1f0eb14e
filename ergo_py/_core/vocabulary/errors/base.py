"""The base of all errors, and the errors of wrong use."""

from collections.abc import Coroutine
from typing import Final

from ..public_names import show_as
from ..reasons import Crashed
from ..text import shown

__all__ = [
    "BadInputError",
    "BehaviourError",
    "CallbackError",
    "ErgoError",
    "Kinds",
    "NotAllowedError",
    "TargetTypeError",
    "add_traceback",
]


class ErgoError(Exception):
    """Base class of all errors the framework raises, except :class:`Reject`."""


class Kinds:
    """Before the base of an error with a ``kind``: programs see a single class, and its kind. The
    subclass of each kind is also a builtin exception where that is natural, and keeps the name of
    earlier versions working.
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        show_as(cls, next(base for base in cls.__mro__ if Kinds in base.__bases__))


class BadInputError(ErgoError, ValueError):
    """An invalid value. The text says what was given and what is allowed."""

    def __init__(self, what: str, given: object, allowed: str) -> None:
        super().__init__(f"{what}: got {_short(given)}; allowed is {allowed}")
        self.what = what
        """The name of the argument."""
        self.given = given
        """The invalid value."""
        self.allowed = allowed
        """A description of the values that are allowed."""


class BehaviourError(BadInputError, TypeError):
    """The argument of ``spawn`` is no behaviour class, or has a callback with a wrong signature."""


_ACTING: Final = ("Behaviour", "MetaProcess")
"""The classes whose verbs a program writes with ``self``."""


class TargetTypeError(BadInputError, TypeError):
    """The target is not an address: a PID, an alias, or a name."""

    def __init__(self, given: object) -> None:
        allowed = "a PID, an Alias, a Name, a Key, or a str that is a name on this node"
        if isinstance(given, Coroutine):
            # Python would warn about it as well, without the line.
            given.close()
            owner, _, verb = str(getattr(given, "__qualname__", "")).rpartition(".")
            before = "node." if owner.endswith("Node") else "self." if owner in _ACTING else ""
            allowed += f"; `await` is missing: write `await {before}{verb}(…)`"
        elif hasattr(type(given), "pid"):  # a handle, a task, a child
            allowed += "; write its `.pid`"
        super().__init__("target", given, allowed)


class NotAllowedError(ErgoError, RuntimeError):
    """The operation is not allowed here or now. The text says how to do it instead."""


class CallbackError(ErgoError, TypeError):
    """A callback did something it must not: it returned a wrong value, or left a nursery open."""


def add_traceback(error: BaseException, head: str, reason: Crashed) -> None:
    """Show the frames of the cause as a note. The reason has removed them from the cause, since
    they would keep the variables of the failed process alive. The cause names itself.
    """
    where = reason.where()
    if where:
        error.add_note(head + where.rstrip("\n"))


def _short(value: object) -> str:
    text = shown(value)
    return text if len(text) <= 120 else text[:117] + "..."
