"""`problem_of`: why the bytes of a value must not be decoded: they would block the node.

Decoding is a single step on the loop, and its time depends on the values more than on the bytes: an
empty list is a byte, and an empty set three. So the lists, dicts and other values of a message are
counted before any of them is made. Maps with more than a few keys are refused here, too: the codec
makes a dict of a map by itself, without a look at the hashes of its keys.

Most messages are short, or have few bytes that could begin such a value. The bytes of all others
are read token by token; extensions with values in them are read as their content.
"""

import re
from typing import Final

from .extensions import Code
from .hashed_elements import FEW

__all__ = ["MOST_LISTS", "MOST_OTHERS", "problem_of"]

MOST_LISTS: Final = 250_000
"""Most lists and dicts of a message. So many take about 50 ms, most of it in the garbage collector;
and dicts, which are larger than lists, 58 MB.
"""
MOST_OTHERS: Final = 100_000
"""Most values of other types that the codec does not know: tuples, sets, dates, dataclasses. A step
of Python makes each of them, in about a microsecond.
"""
_SHORT: Final = 512
"""Bytes of a value that need no check: its maps have too few keys to be slow."""
_UNCOUNTED: Final = min(MOST_LISTS, 3 * MOST_OTHERS)
"""Bytes that are too few for so many values: the shortest list has a byte, and the shortest
extension three.
"""
_LARGE: Final = re.compile(rb"\xde(?:\x00[\x%02x-\xff]|[\x01-\xff])|\xdf" % (FEW + 1))
"""Bytes that begin a large map, unless they are a part of something else."""


# -- tokens ----------------------------------------------------------------------------------------

_LEAVES: Final = frozenset(
    {
        *(Code.DATETIME, Code.DATE, Code.TIME, Code.UUID, Code.DECIMAL, Code.BYTEARRAY),
        0xFF,  # the timestamp of MessagePack
    }
)
"""Extensions whose content is no value of MessagePack."""
_LEAF: Final = b"[" + b"".join(b"\\x%02x" % code for code in sorted(_LEAVES)) + b"]"
_NESTED: Final = _LEAF.replace(b"[", b"[^")


# Alternatives are tried in turn, so each group of them begins with its possible first bytes.
_SCALARS: Final = (
    rb"[\x00-\x7f\xa0\xc0\xc2\xc3\xe0-\xff]++"  # numbers, None, bools, the empty text
    rb"|(?=[\xa1-\xbf])(?:"
    + b"|".join(b"%c.{%d}" % (0xA0 + size, size) for size in range(1, 32))
    + rb")|(?=[\xca-\xd3])(?:[\xcc\xd0].|[\xcd\xd1]..|[\xca\xce\xd2].{4}|[\xcb\xcf\xd3].{8})"
    rb"|\xc4(?=[\x00-\x1f])(?:"
    + b"|".join(rb"\x%02x.{%d}" % (size, size) for size in range(32))
    + b")"
)
_LIST: Final = rb"[\x80-\x9f]|(?=[\xdc-\xde])(?:\xdc..|\xdd.{4}|\xde\x00[\x00-\x%02x])" % FEW
"""The heads of lists, and of maps that are not large."""
_OTHER: Final = (
    rb"(?=[\xd4-\xd8\xc7])(?:[\xd4-\xd8]%s|\xc7.%s|(?=[\xd4-\xd8]%s)(?:" % (_NESTED, _NESTED, _LEAF)
    + b"|".join(b"%c.{%d}" % (0xD4 + power, 1 + (1 << power)) for power in range(5))
    + rb")|\xc7(?=.%s)(?:" % _LEAF
    + b"|".join(rb"\x%02x.{%d}" % (size, size + 1) for size in range(32))
    + b"))"
)
"""The heads of extensions with values in them, and others as a whole."""
_LONG: Final = {
    0xC4: (1, 32),
    0xC5: (2, 256),
    0xC6: (4, 1 << 16),
    0xC7: (1, 32),
    0xC8: (2, 256),
    0xC9: (4, 1 << 16),
    0xD9: (1, 32),
    0xDA: (2, 256),
    0xDB: (4, 1 << 16),
}
"""Other tokens with a length: the bytes of the length, and the shortest content. An encoder that
writes shorter ones wants many steps.
"""
_EXTENSIONS: Final = frozenset({0xC7, 0xC8, 0xC9})


class _Counter:
    """Counts the tokens of a kind."""

    def __init__(self, counted: bytes, others: bytes, are_extensions: bool) -> None:
        uncounted = b"(?:%s|%s)*+" % (_SCALARS, others)
        self._are_extensions = are_extensions
        # A run that is not long enough is read again by the next pattern.
        self._runs = [
            (size, re.compile(b"(?:%s(?:%s)){%d}+" % (uncounted, counted, size), re.DOTALL))
            for size in (256, 16, 1)
        ]
        self._uncounted = re.compile(uncounted, re.DOTALL)

    def count(self, data: bytes | memoryview, most: int) -> int:
        """How many tokens of the kind are in an encoded value, or so many that they are more than
        ``most``; -1 if it has a large map, or is written as no encoder writes.
        """
        found, at, end = 0, 0, len(data)
        while found <= most:
            for size, run in self._runs:
                while (match := run.match(data, at)) is not None and found <= most:
                    found += size
                    at = match.end()
            match = self._uncounted.match(data, at)
            assert match is not None  # it matches nothing, too
            at = match.end()
            if at >= end or data[at] not in _LONG:
                # A token that is cut off is refused by the decoder.
                return -1 if at < end and data[at] in (0xDE, 0xDF) else found
            bytes_of_length, least = _LONG[data[at]]
            is_extension = data[at] in _EXTENSIONS
            begin = at + 1 + bytes_of_length
            length = int.from_bytes(data[at + 1 : begin], "big")
            if length < least:
                return -1
            at = begin + is_extension
            found += is_extension and self._are_extensions
            if not is_extension or (begin < end and data[begin] in _LEAVES):
                at += length
        return found


_LISTS: Final = _Counter(_LIST, _OTHER, are_extensions=False)
_OTHERS: Final = _Counter(_OTHER, _LIST, are_extensions=True)
_KINDS: Final = (
    (_LISTS, bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0))), MOST_LISTS, "lists and dicts"),
    (
        _OTHERS,
        bytes((*range(0xC7, 0xCA), *range(0xD4, 0xD9))),
        MOST_OTHERS,
        "values of other types than list, dict, str, bytes, int, float, bool and None",
    ),
)
"""What is counted: with the bytes that begin such values, unless they are a part of something else;
the most of them; and their name.
"""
_TOO_LARGE: Final = f"a dict with more than {FEW} keys travels as pairs, or with texts as keys"


def problem_of(data: bytes | memoryview, is_counted: bool) -> str:
    """Why an encoded value must not be decoded; empty if it may be. ``is_counted`` if the number of
    its values is limited.
    """
    if len(data) <= _SHORT:
        return ""
    whole = bytes(data)
    if is_counted and len(data) > _UNCOUNTED:
        for counter, leads, most, what in _KINDS:
            if len(whole) - len(whole.translate(None, leads)) <= most:
                continue
            found = counter.count(whole, most)
            if found < 0:
                return _TOO_LARGE
            if found > most:
                return (
                    f"more than {most} {what}; so many would block the node that reads them: send "
                    "several messages, or bytes"
                )
    # Most messages have none of these bytes, and `in` is a hundred times as fast as the pattern.
    if (
        (b"\xde" in whole or b"\xdf" in whole)
        and _LARGE.search(whole) is not None
        and _LISTS.count(whole, len(whole)) < 0
    ):
        return _TOO_LARGE
    return ""
