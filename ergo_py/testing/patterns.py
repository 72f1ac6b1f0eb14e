"""Patterns for messages: a type, a value, or a predicate."""

from types import UnionType
from typing import Any

__all__ = ["assign", "describe", "matches"]


def matches(what: object, message: object) -> bool:
    """Return whether a message matches: of that type, accepted by that function, or equal to that
    value.
    """
    if isinstance(what, type | UnionType):
        return isinstance(message, what)
    if callable(what):
        return bool(what(message))
    return bool(what == message)


def describe(what: object) -> str:
    """Describe a pattern, for the text of an error."""
    if isinstance(what, type):
        return f"{'an' if what.__name__[0] in 'AEIOUaeiou' else 'a'} {what.__qualname__}"
    if callable(what) and not isinstance(what, UnionType):
        return f"a message that {getattr(what, '__name__', repr(what))} accepts"
    return repr(what)


def assign(whats: list[Any], messages: list[Any]) -> list[int] | None:
    """Assign a different message to each of ``whats``, as an index; None if that is impossible.

    The first match is not always right: a type may take the message that an equal value needs. So a
    pattern whose matches are all taken makes the taker look for another message (augmenting paths).
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
