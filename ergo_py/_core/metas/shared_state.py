"""State that both halves of a meta-process touch: two small helpers, and a way to find what should
have used them.
"""

from collections.abc import Callable
from typing import Any

from ..runtime.bridge import Lock

__all__ = ["Counter", "Flag", "watch_writes"]


class Counter:
    """A number that reader and handler may both add to. No lock is needed around it."""

    __slots__ = ("_lock", "_value")

    def __init__(self, value: int = 0) -> None:
        self._lock = Lock()
        self._value = value

    def add(self, amount: int = 1) -> int:
        """Add, and return the new value."""
        # Two threads may both read the old value of a plain +=; here they cannot.
        with self._lock:
            self._value += amount
            return self._value

    @property
    def value(self) -> int:
        """The number now."""
        return self._value

    def __int__(self) -> int:
        return self._value

    def __str__(self) -> str:
        return str(self._value)

    def __repr__(self) -> str:
        return f"Counter({self._value})"


class Flag:
    """A yes or no that reader and handler may both set and look at."""

    __slots__ = ("_value",)

    def __init__(self, value: bool = False) -> None:
        self._value = value

    def set(self) -> None:
        """Say yes."""
        self._value = True

    def clear(self) -> None:
        """Say no."""
        self._value = False

    def __bool__(self) -> bool:
        return self._value

    def __repr__(self) -> str:
        return f"Flag({self._value})"


def watch_writes(
    behaviour: Any, side: Callable[[], str | None], report: Callable[[str], None]
) -> None:
    """Have ``report(attribute)`` called, once, when an attribute of ``behaviour`` is written by
    both sides.

    ``side`` says which one runs; None means that there is no other one at that moment.
    """
    cls = type(behaviour)
    write: Any = cls.__setattr__
    writers: dict[str, str] = {}
    reported: set[str] = set()

    def setattr_watched(self: Any, name: str, value: object) -> None:
        writer = side()
        if (
            writer is not None
            and writers.setdefault(name, writer) != writer
            and name not in reported
        ):
            reported.add(name)
            report(name)
        write(self, name, value)

    watched = type(
        cls.__name__, (cls,), {"__setattr__": setattr_watched, "__qualname__": cls.__qualname__}
    )
    behaviour.__class__ = watched
