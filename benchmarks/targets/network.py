"""Fuzzing targets for the bytes that another node sends: frames, operations, routes and values.

Inputs are seeds: their first bytes say how they grow, so that small files of the corpus stand for
messages of many kilobytes, which cost more than their size if a decoder has a weakness.
"""

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

import msgspec
from hypothesis import strategies as st

from benchmarks.budgets import Budget
from benchmarks.targets.target import Target, spliced
from ergo_py.network.messages.listed_class import UnreadableValueError
from ergo_py.network.messages.message_types import MessageTypes
from ergo_py.network.protocol.compression import INFLATED, inflated
from ergo_py.network.protocol.frames import NOT_A_FRAME, Deflated, Frame, read_frame
from ergo_py.network.protocol.operations import decode_operation, decode_route

__all__ = ["TARGETS", "grown"]

EQUAL: Final = 2**61 - 1
"""All multiples of this number have the same hash."""

encode: Final = msgspec.msgpack.encode
Ext: Final = msgspec.msgpack.Ext


class Colour(Enum):
    """A listed Enum."""

    RED = 1


@dataclass(frozen=True)
class Flat:
    """A listed class that the codec decodes as a whole."""

    number: int
    text: str = ""


@dataclass(frozen=True)
class Deep:
    """A listed class with any value."""

    value: Any
    colour: Colour = Colour.RED


class OddError(Exception):
    """A listed exception."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} {second}")
        self.first = first


TYPES: Final = MessageTypes([Colour, Flat, Deep, OddError])


def _chosen(size: int) -> bytes:
    """A map whose keys lead to the same places of a table."""
    keys = [0]
    while len(keys) < size:
        keys.append((5 * keys[-1] + 1) % 2048)
    return encode(dict.fromkeys(keys))


def _odd(size: int) -> bytes:
    """A map of MessagePack whose keys have the same hash."""
    pairs = b"".join(encode(_uuid(key)) + b"\xc0" for key in range(size))
    return b"\xde" + size.to_bytes(2, "big") + pairs


def _set(size: int) -> bytes:
    """A set of numbers for the same places of a table."""
    return encode(Ext(2, encode([5**key % 2048 for key in range(min(size, 256))])))


def _large_keys(size: int) -> bytes:
    """A map of MessagePack with large keys of the same hash."""
    size = min(size, 32)
    keys = [
        encode(
            Ext(
                1,
                encode(
                    [*[257] * (_LARGEST // 3 // size), *(-1 - (key >> bit & 1) for bit in range(5))]
                ),
            )
        )
        for key in range(size)
    ]
    head = b"\xde" + size.to_bytes(2, "big") if size > 15 else bytes((0x80 + size,))
    return head + b"".join(key + b"\xc0" for key in keys)


def _nested(size: int) -> bytes:
    """Sets of sets of tuples, all with the same hash."""
    found = [
        encode(Ext(1, encode([1] * (size % 99) + [-1 - (key >> bit & 1) for bit in range(4)])))
        for key in range(16)
    ]
    for _ in range(size.bit_length() // 3):
        found = [
            encode(Ext(3, b"\x9f" + b"".join(found[:number] + found[number + 1 :])))
            for number in range(16)
        ]
    return encode(Ext(2, b"\x9f" + b"".join(found[1:])))


def _number(key: int) -> int:
    return key * EQUAL % 2**64


def _uuid(key: int) -> Any:
    return Ext(24, UUID(int=key * EQUAL).bytes)


def _decimal(key: int) -> Any:
    return Ext(25, str(Decimal(key * EQUAL)).encode())


def _tuple(key: int) -> Any:
    return Ext(1, encode([_number(key), -1 - key % 2]))


_ELEMENTS: Final[tuple[Callable[[int], Any], ...]] = (_number, _uuid, _decimal, _tuple, str)


_LONGEST: Final = 1 << 20
"""Bytes of the longest messages."""
_LARGEST: Final = 1 << 22
"""Bytes of messages that repeat maps and sets with chosen keys."""
_BUDGET: Final = Budget(1.5, 0.1e-6, 48 << 20, 16)
"""A message is decoded in a single step on the loop."""


def _repeated(unit: bytes, count: int) -> bytes:
    """A list that has the same value so many times."""
    return b"\xdd" + count.to_bytes(4, "big") + unit * count


def grown(seed: bytes) -> bytes:
    """The message that a seed stands for: its first byte chooses the way to grow, and its second
    byte how much.
    """
    if len(seed) < 2:
        return seed
    if seed[0] >= 248:
        size = (15, 32, 128, 1_023)[seed[0] % 4]
        one = (_odd, _chosen, _set, _large_keys, _nested)[seed[1] // 52](size)
        return _repeated(one, min(1 << seed[1] % 16, _LARGEST // len(one) + 1))
    way, count, rest = seed[0], 1 << seed[1] % 14, seed[2:]
    element = _ELEMENTS[way // 8 % len(_ELEMENTS)]
    match way % 8:
        case 1:
            count = min(1 << seed[1] % 21, _LONGEST // max(len(rest), 1))
            return _repeated(rest, count)
        case 2:
            return encode([Ext(2 + count % 2, encode([element(key) for key in range(count)])), 1])
        case 3:
            keys = [element(key) for key in range(count)]
            return encode(Ext(6, encode([*keys, *range(count)])))
        case 4:
            return encode([{key << 32: rest for key in range(count)}])
        case 5:
            for _ in range(count % 300):
                rest = encode(Ext(1, rest) if way < 128 else Ext(6, b"\x92\xa1a" + rest))
            return rest
        case 6:
            return b"\x91" * count + rest
        case 7:
            return encode(Ext(30, encode(("Deep", {"value": [Ext(1, rest)] * count}))))
    return rest


def _decode_value(data: bytes) -> str:
    kind = TYPES.type_of(data)
    try:
        value = TYPES.decode(data)
    except UnreadableValueError as error:
        return _refusal(error)
    assert kind is type(value), "the type of a message depends on its decoding"
    return f"a {type(value).__name__}"


def _refusal(error: Exception) -> str:
    text = str(error)
    assert len(text) < 2000, "the text of an error is not bounded"
    return "refused: " + re.sub(r"['\"`\[(<].*|\d+", "n", text)[:50]


def _decode(
    function: Callable[[bytes], object], refusals: tuple[type[Exception], ...] = ()
) -> Callable[[bytes], str]:
    """An error of a subclass of ValueError is not a refusal: no caller expects it."""

    def attempt(data: bytes) -> str:
        try:
            return f"a {type(function(data)).__name__}"
        except Exception as error:
            if type(error) is not ValueError and not isinstance(error, refusals):
                raise
            return _refusal(error)

    return attempt


def _read_whole_frame(data: bytes) -> Frame:
    frame = read_frame(data)
    return inflated(frame, INFLATED) if isinstance(frame, Deflated) else frame


def _decode_reason(data: bytes) -> str:
    return f"a {type(TYPES.decode_reason(data)).__name__}"


_VALUES: Final = (
    None,
    -1,
    1.5,
    "text",
    b"\xdf\xde",
    [1, [2]],
    {"a": 1},
    {1: 2},
    {(1, 2): 3},
    {1, 2},
    frozenset({"x"}),
    UUID(int=7),
    Decimal("1.5"),
    Flat(1),
    Deep((1,)),
    Colour.RED,
    OddError(1, 2),
    FileNotFoundError(2, "no", "file"),
)
_OPERATIONS: Final = (
    [0, b"route", b"body"],
    [2, 7, b"route", b"body", {"a": "b"}],
    [5, 7, [2, 0, 0, "name", b""], 0],
    [8, [0, 1, 2, ""], [False, "a@x", 1, 2], False, b"x"],
    [12, [False, "a@x", 1, 2], 3, [[False, "b@x", 1, 2]], 4],
    [13, {"full": 3}, [[1, 2, 3]]],
    [15, 0, True, b"", b"data"],
)
_FRAMES: Final = (
    [0, 1, 2, 3, 0, 1024],
    [1, 1, 2, 0, 0, [b"op"]],
    [2, 1, 2, 3, 4, True],
    [3, 1, 2, "why"],
    [4, 1, 2, 0, 0, 25, zlib.compress(encode([b"op" * 5, b"op" * 5]))],
    [4, 1, 2, 0, 0, 4096, zlib.compress(bytes(4096))],
)
_ROUTES: Final = ([[0, 1, 2, "", b""], [False, "a@x", 1, 2], 0],)


def _seeds(examples: list[bytes]) -> st.SearchStrategy[bytes]:
    return st.builds(
        lambda way, count, whole, at, new: bytes((way, count)) + spliced(whole, at, len(new), new),
        st.integers(0, 255),
        st.integers(0, 255),
        st.sampled_from(examples),
        st.integers(0, 30),
        st.binary(max_size=3),
    )


def _target(read: Callable[[bytes], str], examples: list[bytes]) -> Target:
    return Target(read, _seeds(examples), grown, _BUDGET)


TARGETS: Final[dict[str, Target]] = {
    "network value": _target(_decode_value, [TYPES.encode(value) for value in _VALUES]),
    "network reason": _target(_decode_reason, [TYPES.encode(value) for value in _VALUES]),
    "network frame": _target(
        _decode(_read_whole_frame, NOT_A_FRAME), [encode(frame) for frame in _FRAMES]
    ),
    "network operation": _target(_decode(decode_operation), [encode(op) for op in _OPERATIONS]),
    "network route": _target(_decode(decode_route), [encode(route) for route in _ROUTES]),
}
