"""Limits on sets and dicts that arrive: a node must not choose elements that make them slow.

The hash of a text or of bytes is salted, and differs in every program. All other hashes are known:
another node can choose thousands of elements with the same hash, or with hashes that lead to the
same places of a table, so that each new element is compared with all others. So a set or a dict
has a limited number of such elements, and few of them have the same hash. All sets and dicts of a
message share a limit, too: a message has room for hundreds of them.

A dict with many keys travels as pairs, which are checked before the dict is made. The codec makes
dicts by itself, so a value with a large map in it is refused before it is decoded.
"""

import re
from collections.abc import Collection
from operator import eq
from threading import local  # noqa: TID251 - a thread encodes the messages that it sends
from typing import Final

__all__ = ["FEW", "MOST", "SMALL", "Work", "has_large_map", "may_have_large_map"]

MOST: Final = 5_000
"""Most elements of a set, or keys of a dict, that are neither text nor bytes. The worst choice of
5,000 numbers needs 12 million probes of a table, about 20 ms; 50,000 need a hundred times as many.
"""
SMALL: Final = 256
"""Elements that need no count: a message full of such sets is about as slow as one of lists."""
_WORK: Final = 10 * MOST**2
"""The most work for the sets and dicts of a message. A set with chosen elements compares each with
all others, so the work for a set is the square of its size: some 0.3 s for all of them.
"""
FEW: Final = 1_024
"""A dict with fewer keys travels as a map of MessagePack."""
_EQUAL: Final = 16
"""Most elements with the same hash. -1 and -2 have the same, so have tuples of them: 16 tuples of
four numbers.
"""
_SHORT: Final = 16 << 10
"""Bytes of a value whose maps need no check: they have too few keys to be slow."""
_SALTED: Final = frozenset({str, bytes})


class Work(local):
    """Counts the work for the sets and dicts of the message that a thread encodes or decodes."""

    def __init__(self, is_limited: bool) -> None:
        self._is_limited = is_limited
        self._done = 0
        """The work so far."""

    def begin(self) -> None:
        """Begin to count for another message."""
        self._done = 0

    def problem_of(self, what: str, elements: Collection[object]) -> str:
        """Why these elements of a set or keys of a dict cannot travel; empty if they can."""
        size = len(elements)
        if size <= _EQUAL or not self._is_limited or _SALTED.issuperset(map(type, elements)):
            return ""
        if size > MOST:
            return (
                f"{what} with {size} entries; allowed are {MOST} if they are not all text or "
                "bytes, since other hashes can be chosen to make it slow: send a list instead"
            )
        hashes = sorted(map(hash, elements))
        if any(map(eq, hashes, hashes[_EQUAL:])):
            return (
                f"{what} with more than {_EQUAL} entries that have the same hash, which make it "
                "slow: send a list instead"
            )
        if size > SMALL:
            self._done += size**2
        if self._done > _WORK:
            return (
                f"{what} with {size} entries, after other large sets and dicts in the message that "
                f"are not all text or bytes: the squares of their sizes add up to {self._done}; "
                f"allowed are {_WORK}, which is {_WORK // MOST**2} sets of {MOST} entries: send a "
                "list instead, or several messages"
            )
        return ""


# -- large maps ------------------------------------------------------------------------------------

_LARGE: Final = re.compile(rb"\xde[\x04-\xff]|\xdf")
"""Bytes that begin a large map, unless they are a part of something else."""


def _run() -> "re.Pattern[bytes]":
    """Any number of tokens that are neither long nor large maps. Those that a value has by the
    million are read by this pattern, and others by a step of Python each.
    """
    tokens = [
        rb"[\x00-\xa0\xc0\xc2\xc3\xe0-\xff]++",  # numbers, None, bools, heads of containers
        rb"[\xcc\xd0].",
        rb"[\xcd\xd1\xdc].{2}",
        rb"[\xca\xce\xd2\xdd].{4}",
        rb"[\xcb\xcf\xd3].{8}",
        rb"\xde[\x00-\x03].",
        *(b"%c.{%d}" % (0xA0 + size, size) for size in range(1, 32)),
        *(b"%c.{%d}" % (0xD4 + power, 1 + (1 << power)) for power in range(5)),
        *(rb"\xc4\x%02x.{%d}" % (size, size) for size in range(32)),
        *(rb"\xc7\x%02x.{%d}" % (size, size + 1) for size in range(32)),
    ]
    return re.compile(b"(?:" + b"|".join(tokens) + b")*+", re.DOTALL)


_RUN: Final = _run()
_LONG: Final = {
    0xC4: (1, 0),
    0xC5: (2, 0),
    0xC6: (4, 0),
    0xC7: (1, 1),
    0xC8: (2, 1),
    0xC9: (4, 1),
    0xD9: (1, 0),
    0xDA: (2, 0),
    0xDB: (4, 0),
}
"""Tokens with a length: the bytes of the length, and the bytes between it and the content."""
_LEAST: Final = {0xD9: 32, 0xDA: 256, 0xDB: 1 << 16, 0xC5: 256, 0xC6: 1 << 16}
"""The shortest content of such tokens. An encoder that writes shorter ones wants many steps."""


def may_have_large_map(data: bytes | memoryview) -> bool:
    """Whether an encoded value has to be checked: most have no byte of a large map."""
    return len(data) > _SHORT and _LARGE.search(data) is not None


def has_large_map(data: bytes | memoryview) -> bool:
    """Whether an encoded value has a map of `FEW` keys or more outside of its extensions, or is
    written in a way that no encoder of a node writes.
    """
    if len(data) <= _SHORT:
        return False
    at, end = 0, len(data)
    while True:
        found = _RUN.match(data, at)
        assert found is not None  # it matches nothing, too
        at = found.end()
        if at >= end:
            return False
        lead = data[at]
        if lead not in _LONG:
            # A large map; or a token that is cut off, which the decoder refuses.
            return lead in (0xDE, 0xDF)
        size, between = _LONG[lead]
        length = int.from_bytes(data[at + 1 : at + 1 + size], "big")
        if length < _LEAST.get(lead, 0):
            return True
        at += 1 + size + between + length
