"""Limits on sets and dicts that arrive: a node must not choose elements that make them slow.

The hash of a text or of bytes is salted, and differs in every program. All other hashes are known:
another node can choose thousands of elements with the same hash, or with hashes that lead to the
same places of a table, so that each new element is compared with all others. So a set or a dict
has a limited number of such elements, and few of them have the same hash. All sets and dicts of a
message share a limit, too: a message has room for hundreds of them. Elements with the same hash
that have parts count with their bytes: sets of sets of them are compared as often as their depth
has it, at the power of eight.

A dict with more than a few keys travels as pairs, which are checked before the dict is made.
"""

from collections import Counter
from collections.abc import Callable, Collection
from threading import local  # noqa: TID251 - a thread encodes the messages that it sends
from typing import Final
from uuid import UUID

__all__ = ["FEW", "MOST", "Work"]

FEW: Final = 15
"""Most keys of a dict that travels as a map of MessagePack, without a look at their hashes: those
whose number is a part of the first byte of the map. Keys with the same hash are compared with each
other, so large keys, which a node may choose, cost eight times as much as the elements of a list.
"""
MOST: Final = 5_000
"""Most elements of a set, or keys of a dict, that are neither text nor bytes. The worst choice of
5,000 numbers needs 12 million probes of a table, about 20 ms; 50,000 need a hundred times as many.
"""
_SMALL: Final = 16
"""Elements that need no count: a message full of such sets is about as slow as one of lists."""
_LEAST: Final = 250
"""The work for each element of a smaller set, or of one of texts, whose hashes cannot be chosen."""
_WORK: Final = 10 * MOST**2
"""The most work for the sets and dicts of a message. A set with chosen elements compares each with
all others, so the work for a set is the square of its size: some 0.3 s for all of them. A million
texts are as much work; they take some 0.5 s, most of it to find memory.
"""
_EQUAL: Final = _SMALL
"""Most elements with the same hash. -1 and -2 have the same, so have tuples of them: 16 tuples of
four numbers.
"""
_COMPARED: Final = 100
"""The work for each byte of an element that has the same hash as others, and for each of these."""
_SALTED: Final = frozenset({str, bytes})
_FLAT: Final = frozenset({str, bytes, int, float, bool, type(None), UUID})
"""Types whose values are compared in a few nanoseconds, or have hashes that cannot be chosen."""


class Work(local):
    """Counts the work for the sets and dicts of the message that a thread encodes or decodes."""

    def __init__(self, is_limited: bool, size_of: Callable[[object], int]) -> None:
        """``size_of`` tells how many bytes an element has, and perhaps asks for the problem of sets
        in it.
        """
        self.is_limited = is_limited
        self._size_of = size_of
        self._is_measured = False
        self._done = 0
        """The work so far."""

    def begin(self) -> None:
        """Begin to count for another message."""
        self._done = 0

    def is_full(self) -> bool:
        """Whether the work is more than a message may be."""
        return self._done > _WORK

    def problem_of(self, what: str, elements: Collection[object]) -> str:
        """Why these elements of a set or keys of a dict cannot travel; empty if they can."""
        size = len(elements)
        if size <= 1 or not self.is_limited or self._is_measured:
            return ""
        if size <= _SMALL and _FLAT.issuperset(map(type, elements)):
            return ""
        is_salted = _SALTED.issuperset(map(type, elements))
        if size > MOST and not is_salted:
            return (
                f"{what} with {size} entries; allowed are {MOST} if they are not all text or "
                "bytes, since other hashes can be chosen to make it slow: send a list instead"
            )
        if size > _SMALL:
            self._done += size * (_LEAST if is_salted else max(size, _LEAST))
        if self.is_full():
            return (
                f"{what} with {size} entries makes the sets and dicts of the message too large: "
                f"all together may have {_WORK // _LEAST} entries, or {_WORK // MOST**2} of them "
                f"{MOST} entries that are not all text or bytes: send a list instead, or several "
                "messages"
            )
        return "" if is_salted else self._problem_of_equal(what, elements)

    def _problem_of_equal(self, what: str, elements: Collection[object]) -> str:
        """Why elements with the same hash cannot travel."""
        if len(set(map(hash, elements))) == len(elements):
            return ""
        found = Counter(map(hash, elements))
        most = max(found.values())
        if most > _EQUAL:
            return (
                f"{what} with more than {_EQUAL} entries that have the same hash, which make it "
                "slow: send a list instead"
            )
        if not _FLAT.issuperset(map(type, elements)):
            # The size of an element is that of its encoding, which asks for the problem of the sets
            # in it: each of these is asked about when it is encoded or decoded itself.
            self._is_measured = True
            try:
                sizes = [self._size_of(one) for one in elements if found[hash(one)] > 1]
            finally:
                self._is_measured = False
            self._done += _COMPARED * most * sum(sizes)
        if self.is_full():
            return (
                f"{what} with large entries that have the same hash, which make it slow: send a "
                "list instead"
            )
        return ""
