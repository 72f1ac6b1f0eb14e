"""What a test may say about a message: its type, a value it equals, or a function that knows it."""

from types import UnionType
from typing import Any

__all__ = ["assign", "describe", "matches"]


def matches(what: Any, message: object) -> bool:
    """Say whether a message is what was meant: of that type, accepted by that function, or equal to
    that value.
    """
    if isinstance(what, type | UnionType):
        return isinstance(message, what)
    if callable(what):
        return bool(what(message))
    return bool(what == message)


def describe(what: Any) -> str:
    """What was meant, for the text of an error."""
    if isinstance(what, type):
        return f"{'an' if what.__name__[0] in 'AEIOUaeiou' else 'a'} {what.__qualname__}"
    if callable(what) and not isinstance(what, UnionType):
        return f"what {getattr(what, '__name__', repr(what))} accepts"
    return repr(what)


def assign(whats: list[Any], messages: list[Any]) -> list[int] | None:
    """Find for each of ``whats`` a message of its own, as an index; None if that cannot be done.

    The first that fits is not always the right one: a type may take the message that an equal value
    needs. So one that finds all its messages taken asks the taker to look for another.
    """
    taken: dict[int, int] = {}

    def place(wanted: int, seen: set[int]) -> bool:
        for index, message in enumerate(messages):
            if index in seen or not matches(whats[wanted], message):
                continue
            seen.add(index)
            if index not in taken or place(taken[index], seen):
                taken[index] = wanted
                return True
        return False

    if not all(place(wanted, set()) for wanted in range(len(whats))):
        return None
    by_wanted = {wanted: index for index, wanted in taken.items()}
    return [by_wanted[wanted] for wanted in range(len(whats))]
