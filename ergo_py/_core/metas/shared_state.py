"""``Counter`` and ``Flag``: state that the reader and the handler of a meta-process share."""

from collections.abc import Callable
from typing import Any

from ..runtime.bridge import Lock
from ..vocabulary.public_names import show_public_names

__all__ = ["Counter", "Flag", "watched_class"]


class Counter:
    """A number that the reader and the handler may both add to, without a lock of their own."""

    __slots__ = ("_lock", "_value")

    def __init__(self, value: int = 0) -> None:
        self._lock = Lock()
        self._value = value

    def add(self, amount: int = 1) -> int:
        """Add, and return the new value."""
        # With a plain +=, two threads may both read the old value, and lose an addition.
        with self._lock:
            self._value += amount
            return self._value

    @property
    def value(self) -> int:
        """The present number."""
        return self._value

    def __int__(self) -> int:
        return self._value

    def __str__(self) -> str:
        return str(self._value)

    def __repr__(self) -> str:
        return f"Counter({self._value})"


class Flag:
    """A boolean that the reader and the handler may both set and read."""

    __slots__ = ("_value",)

    def __init__(self, value: bool = False) -> None:
        self._value = value

    def set(self) -> None:
        """Make it true."""
        self._value = True

    def clear(self) -> None:
        """Make it false."""
        self._value = False

    def __bool__(self) -> bool:
        return self._value

    def __repr__(self) -> str:
        return f"Flag({self._value})"


def watched_class(
    cls: type[Any], side: Callable[[], str | None], report: Callable[[str], None]
) -> type[Any]:
    """Make a subclass for a single object. It calls ``report(attribute)`` once if both the reader
    and the handler write an attribute of the object.

    ``side()`` names the half that is running; None if the other half cannot be running.
    """
    write: Any = cls.__setattr__
    writers: dict[str, str] = {}
    reported: set[str] = set()

    def setattr_watched(self: Any, name: str, value: object) -> None:
        writer = side()
        if (
            writer is not None
            # setdefault() is a single step for threads: of two halves that write at once, a single
            # half is noted as the first.
            and writers.setdefault(name, writer) != writer
            and name not in reported
        ):
            reported.add(name)
            report(name)
        write(self, name, value)

    return type(
        cls.__name__, (cls,), {"__setattr__": setattr_watched, "__qualname__": cls.__qualname__}
    )


show_public_names(__name__, {"ergo_py.meta": "Counter Flag"})
