"""`problem_of`: why the bytes of a value must not be decoded: they would block the node.

Decoding is a single step on the loop, and its time depends on the values more than on the bytes: an
empty list is a byte, and an empty set three. So the lists, dicts and other values of a message are
counted before any of them is made. Maps with more than a few keys are refused here, too: the codec
makes a dict of a map by itself, without a look at the hashes of its keys.

Most messages are short, or have few bytes that could begin such a value. The bytes of all others
are read token by token. A token is a value without parts, as a whole; or the head of a list, of a
map or of an extension with values in it, whose parts are the tokens that follow. So nothing nests
here. A regular expression reads tokens as long as their first byte tells their length, in about
20 ns each; `_after` reads the others, which have a length of their own.
"""

import re
from typing import Final

from .extensions import Code
from .hashed_elements import FEW

__all__ = ["MOST_LISTS", "MOST_OTHERS", "SHORT", "counts", "head", "heads", "problem_of"]

MOST_LISTS: Final = 250_000
"""Most lists and dicts of a message. So many take about 50 ms, most of it in the garbage collector;
and dicts, which are larger than lists, 58 MB.
"""
MOST_OTHERS: Final = 100_000
"""Most values of other types that the codec does not know: tuples, sets, dates, dataclasses. A step
of Python makes each of them, in about a microsecond.
"""
SHORT: Final = 512
"""Bytes of a value that need no check: its maps have too few keys to be slow."""
_UNCOUNTED: Final = min(MOST_LISTS, 3 * MOST_OTHERS)
"""Bytes that are too few for so many values: the shortest list has a byte, and the shortest
extension three.
"""

# -- tokens ----------------------------------------------------------------------------------------

_LEAVES: Final = bytes(
    (
        *(Code.DATETIME, Code.DATE, Code.TIME, Code.UUID, Code.DECIMAL, Code.BYTEARRAY),
        0xFF,  # the timestamp of MessagePack
    )
)
"""Extensions whose content is no value of MessagePack."""


def _any_of(leads: bytes) -> bytes:
    return b"[" + b"".join(b"\\x%02x" % lead for lead in leads) + b"]"


_NUMBERS: Final = {1: b"\xcc\xd0", 2: b"\xcd\xd1", 4: b"\xca\xce\xd2", 8: b"\xcb\xcf\xd3"}
"""The first bytes of numbers with so many further bytes."""
_SCALARS: Final = b"|".join(
    (
        rb"[\x00-\x7f\xa0\xc0\xc2\xc3\xe0-\xff]++",  # small numbers, None, bools, the empty text
        # Numbers, and texts of at most 31 bytes.
        *(
            _any_of(_NUMBERS.get(size, b"") + bytes((0xA0 + size,))) + b".{%d}" % size
            for size in range(1, 32)
        ),
        # As many bytes.
        rb"\xc4(?:%s)" % b"|".join(rb"\x%02x.{%d}" % (size, size) for size in range(32)),
    )
)
_LIST: Final = rb"[\x80-\x9f]|\xdc..|\xdd.{4}"
"""The heads of lists, and of maps with at most `FEW` keys."""
_OTHER: Final = rb"(?:[\xd4-\xd8]|\xc7.|\xc8..|\xc9.{4})" + _any_of(_LEAVES).replace(b"[", b"[^")
"""The heads of extensions with values in them."""
_WHOLE: Final = b"|".join(
    (
        *(b"%c%s.{%d}" % (0xD4 + power, _any_of(_LEAVES), 1 << power) for power in range(5)),
        rb"\xc7(?:%s)"
        % b"|".join(rb"\x%02x%s.{%d}" % (size, _any_of(_LEAVES), size) for size in range(32)),
    )
)
"""Short extensions that are tokens as a whole."""

head: Final = re.compile(b"(?:%s)*+(?:(%s)|(%s))?+" % (_SCALARS, _LIST, _OTHER), re.DOTALL).match
"""Reads up to a head, and tells its kind."""
heads: Final = re.compile(b"(?:%s|%s|%s|%s)*+" % (_SCALARS, _LIST, _OTHER, _WHOLE), re.DOTALL).match
"""Reads over all heads and extensions, which need not be counted."""

_LONG: Final = {
    0xC4: (1, 32),
    0xC5: (2, 256),
    0xC6: (4, 1 << 16),
    0xC7: (1, 0),
    0xC8: (2, 256),
    0xC9: (4, 1 << 16),
    0xD9: (1, 32),
    0xDA: (2, 256),
    0xDB: (4, 1 << 16),
}
"""Bytes, extensions and texts with a length: the bytes of the length, and the shortest content. An
encoder that writes shorter ones wants many steps.
"""
_EXTENSIONS: Final = {**{0xD4 + power: 1 << power for power in range(5)}, 0xC7: 0, 0xC8: 0, 0xC9: 0}
"""The first bytes of extensions, with the length of their content if that is fixed."""


def _after(data: bytes, at: int) -> int:
    """Where a token with a length ends; -1 if no encoder of a node writes such a token."""
    lead = data[at]
    if lead in _LONG:
        size, least = _LONG[lead]
        length = int.from_bytes(data[at + 1 : at + 1 + size], "big")
        return at + 1 + size + length + (lead in _EXTENSIONS) if length >= least else -1
    return at + 2 + _EXTENSIONS[lead] if lead in _EXTENSIONS else -1


def counts(data: bytes, begin: int, is_counted: bool) -> tuple[int, int]:
    """How many lists and dicts, and how many extensions begin in encoded values. -1 of each if they
    have a large map, or a token as no encoder of a node writes it. None are counted after one too
    many, and none at all if they need not be.
    """
    lists, others, at, end = 0, 0, begin, len(data)
    read = head if is_counted else heads
    while lists <= MOST_LISTS and others <= MOST_OTHERS:
        match = read(data, at)
        assert match is not None  # it matches nothing, too
        at = match.end()
        if match.lastindex == 1:
            lists += 1
        elif match.lastindex == 2:
            others += 1
        elif at >= end:
            break
        else:
            others += data[at] in _EXTENSIONS
            at = _after(data, at)
            if at < 0:
                return -1, -1
    return lists, others


_LIST_LEADS: Final = bytes((*range(0x80, 0xA0), *range(0xDC, 0xDE)))
_OTHER_LEADS: Final = bytes(_EXTENSIONS)
"""The bytes that begin lists and others, unless they are a part of something else."""
_ODD: Final = (
    f"a map with more than {FEW} keys, or a length that is too long: a dict with more than {FEW} "
    "keys travels as pairs"
)


def _has_more(data: bytes, leads: bytes, most: int) -> bool:
    """Whether so many bytes could begin a value."""
    return len(data) - len(data.translate(None, leads)) > most


def problem_of(data: bytes | memoryview, is_counted: bool, begin: int = 0) -> str:
    """Why the encoded values from ``begin`` on must not be decoded; empty if they may be.
    ``is_counted`` if their number is limited.
    """
    # No copy of bytes, but of a view: neither translate() nor find() works on a view.
    whole = bytes(data)
    are_many = (
        is_counted
        and len(data) > _UNCOUNTED
        and (
            _has_more(whole, _LIST_LEADS, MOST_LISTS) or _has_more(whole, _OTHER_LEADS, MOST_OTHERS)
        )
    )
    # No node writes a large map. Most messages have none of the bytes that begin one, and `in` is
    # a hundred times as fast as to read the tokens.
    if not are_many and whole.find(b"\xde", begin) < 0 and whole.find(b"\xdf", begin) < 0:
        return ""
    lists, others = counts(whole, begin, are_many)
    if lists < 0:
        return _ODD
    for found, most, what in (
        (lists, MOST_LISTS, "lists and dicts"),
        (
            others,
            MOST_OTHERS,
            "values of other types than list, dict, str, bytes, int, float, bool and None, with "
            f"dicts of more than {FEW} keys or of other keys than str and int",
        ),
    ):
        if found > most:
            return (
                f"more than {most} {what}; so many would block the node that reads them: send "
                "several messages, or bytes"
            )
    return ""
