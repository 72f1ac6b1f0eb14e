"""Which part of a file a request gets: preconditions, ranges and encodings (RFC 9110)."""

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Final

__all__ = ["NO_SUCH_PART", "asks_for_all", "choose_part", "refusal", "takes_gzip"]

_RANGE: Final = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})", re.ASCII | re.IGNORECASE)
_CONDITIONS: Final = frozenset(
    ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "range")
)
_STRONG: Final = 1.0
"""Seconds after which a time of modification stands for a single version of a file."""
NO_SUCH_PART: Final = (-1, -1)
"""A part that a file does not have."""


def asks_for_all(headers: Mapping[str, str]) -> bool:
    """Whether a request asks for a whole file, in any version."""
    return _CONDITIONS.isdisjoint(headers)


@lru_cache(maxsize=64)
def takes_gzip(accepted: str) -> bool:
    """Whether a client that sends this ``Accept-Encoding`` can read gzip."""
    takes = {"gzip": False, "*": False}
    named = False
    for element in accepted.lower().split(","):
        name, _, weight = element.partition(";")
        name = name.strip(" \t").removeprefix("x-")
        if name in takes:
            takes[name] = _is_wanted(weight)
            named = named or name == "gzip"
    return takes["gzip"] if named else takes["*"]


def _is_wanted(weight: str) -> bool:
    name, equals, value = weight.partition("=")
    if not equals:
        return not weight.strip(" \t")
    try:
        return name.strip(" \t") == "q" and float(value) > 0.0
    except ValueError:
        return False


def refusal(headers: Mapping[str, str], tag: str, modified: str, seconds: int) -> int:
    """The status without a file that the preconditions of a request ask for: 412, 304, or 0 if the
    file is to be sent. ``modified`` is the time ``seconds`` as HTTP writes it.
    """
    wanted, known = headers.get("if-match"), headers.get("if-none-match")
    if wanted is not None:
        if not _names(wanted, tag):
            return 412
    elif (limit := _date(headers.get("if-unmodified-since"))) is not None and seconds > limit:
        return 412
    if known is not None:
        return 304 if _names(known, tag, f"W/{tag}") else 0
    since = headers.get("if-modified-since")
    if since == modified:
        return 304
    limit = _date(since)
    return 304 if limit is not None and seconds <= limit else 0


def _names(field: str, *tags: str) -> bool:
    """Whether a list of tags names any of these versions, or all versions."""
    named = [each.strip(" \t") for each in field.split(",")]
    return named == ["*"] or any(tag in named for tag in tags)


def _date(field: str | None) -> int | None:
    """The seconds of a date; None if it is missing or wrong."""
    if field is None or not field.endswith("GMT"):
        return None
    try:
        return int(parsedate_to_datetime(field).timestamp())
    except (ValueError, OverflowError):
        return None


def choose_part(
    headers: Mapping[str, str], tag: str, seconds: int, size: int
) -> tuple[int, int] | None:
    """The part of a file that a request asks for, as begin and end. None to send all of it,
    ``NO_SUCH_PART`` if there is no such part.
    """
    asked = headers.get("range")
    if asked is None or not size:
        return None
    version = headers.get("if-range")
    if version is not None and version != tag:
        is_old = seconds + _STRONG < time.time()
        if not is_old or _date(version) != seconds:
            return None
    match = _RANGE.fullmatch(asked.strip(" \t"))
    if match is None or match[1] == match[2] == "":
        return None  # several parts, or another unit: the whole file is a right answer
    if not match[1]:
        length = min(int(match[2]), size)
        return (size - length, size) if length else NO_SUCH_PART
    begin = int(match[1])
    end = min(int(match[2]) + 1, size) if match[2] else size
    if match[2] and int(match[2]) < begin:
        return None
    return (begin, end) if begin < end else NO_SUCH_PART
