"""The types of messages that travel: what arrives equals what was sent, or is refused."""

import errno
import itertools
import re
import sys
import tracemalloc
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import cache
from types import ModuleType
from typing import Any, Literal, NamedTuple, NewType
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergo_py import (
    PID,
    Actor,
    Alias,
    BadInputError,
    Crashed,
    Custom,
    Down,
    EventName,
    Killed,
    Name,
    NodeName,
    NoNode,
    NoProcess,
    Normal,
    Ref,
    RestartLimit,
    Shutdown,
)
from ergo_py.network import RemoteError
from ergo_py.network.messages import encoded_values
from ergo_py.network.messages.encoded_values import MOST_LISTS, MOST_OTHERS
from ergo_py.network.messages.listed_class import RefusedValueError, UnreadableValueError
from ergo_py.network.messages.message_types import MessageTypes
from tests.network.pairs import TYPES, Add, Colour, Echo, Order


class Point(NamedTuple):
    """A listed named tuple."""

    x: int
    y: float = 0.0


class Sized(msgspec.Struct):
    """A listed Struct."""

    width: int
    tags: list[str] = []


class ShopError(Exception):
    """A listed exception."""


Number = NewType("Number", int)


@dataclass
class Described:
    """A class with annotations of many kinds."""

    number: Number
    either: int | str
    choice: Literal["a", "b"]
    pid: PID[Actor] | Alias | None
    rate: float
    anything: Any = None
    lines: list[int] = field(default_factory=list)


def make(*more: Any) -> MessageTypes:
    return MessageTypes([*TYPES, Point, Sized, ShopError, Described, *more])


def noted() -> Exception:
    """An exception that travels with an attribute."""
    error = LookupError("x")
    error.add_note("a note")
    return error


def repr_of_type(value: object) -> str:
    return type(value).__name__


def travel(value: object, there: MessageTypes | None = None) -> Any:
    here = make()
    return (there or here).decode(here.encode(value))


encode = msgspec.msgpack.encode
Ext = msgspec.msgpack.Ext

VALUES = [
    None,
    True,
    0,
    -(2**63),
    2**64 - 1,
    1.5,
    float("inf"),
    "text ü",
    b"\x00\xff",
    bytearray(b"abc"),
    [1, [2, "three"], None],
    (1, (2, ("three",))),
    {"a": 1, "b": [2]},
    {1: "one"},
    {("a", 1): (2,), None: 3},
    {1, 2, 3},
    frozenset({(1, 2), "x"}),
    datetime(2026, 5, 4, 3, 2, 1, 99),  # noqa: DTZ001
    datetime(2026, 5, 4, tzinfo=UTC),
    datetime(2026, 5, 4, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    date(2026, 5, 4),
    time(1, 2, 3, 4),
    timedelta(days=-3, microseconds=5),
    UUID(int=77),
    Decimal("1.10"),
    PID("a@x", 5, 6),
    Alias("a@x", 5, 6),
    Ref("a@x", 5, 6),
    Name("n", "a@x"),
    NodeName("a@x"),
    EventName("e", "a@x"),
    Add(3),
    Order([Add(1), Add(2)], Colour.BLUE, "note"),
    Echo({"deep": [(Add(1), {Colour.RED})]}),
    Point(1, 2.5),
    Sized(3, ["a"]),
    Colour.RED,
    Normal(),
    Shutdown("why"),
    Killed(),
    NoProcess(),
    NoNode("b@x"),
    Custom((1, "two")),
    RestartLimit("w", 3, 5.0, Killed()),
    Down(PID("a@x", 1, 2), Normal()),
    Described(Number(1), "x", "a", PID("a@x", 1, 2), 1.0, (1,), [1]),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_arrives_equal_in_content_and_type(value: object) -> None:
    arrived = travel(value)

    assert arrived == value
    assert type(arrived) is type(value)


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
    | st.builds(PID, st.just("a@x"), st.integers(0, 99), st.integers(0, 99))
    | st.builds(Add, st.integers(0, 9))
    | st.sampled_from(Colour)
)
KEYS = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text("ab") | st.sampled_from(Colour),
    lambda inner: st.tuples(inner, inner),
    max_leaves=4,
)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.sets(KEYS, max_size=4)
        | st.builds(Echo, inner)
    ),
    max_leaves=20,
)


def shape(value: Any) -> Any:
    """The types of a value and of its parts, which equality does not compare."""
    match value:
        case dict():
            return dict, [(shape(key), shape(part)) for key, part in value.items()]
        case list() | tuple():
            return type(value), [shape(part) for part in value]
        case set():
            return set, sorted(map(repr, map(shape, value)))
        case Echo():
            return Echo, shape(value.value)
    return type(value)


@given(TREES)
def test_any_tree_of_values_arrives_equal(value: object) -> None:
    arrived = travel(value)

    assert arrived == value
    assert shape(arrived) == shape(value)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_unreadable(data: bytes) -> None:
    try:
        make().decode(data)
    except UnreadableValueError:
        pass


class Hidden:
    """A class that cannot travel."""


@dataclass
class Unlisted:
    """A class that is not listed."""

    part: int = 0


@pytest.mark.parametrize(
    "value, text",
    [
        (Hidden(), "cannot travel; send plain values"),
        (Unlisted(), r"list it in `types=\[Unlisted\]` of the network, on both nodes"),
        ([{"a": (Unlisted(),)}], "Unlisted is not among the types that travel"),
        (2**64, "64"),
        (lambda: 1, "builtins.function cannot travel"),
        (OrderedDict(a=1), "collections.OrderedDict cannot travel"),
        (type("Text", (str,), {})("x"), "Text cannot travel"),
        ("\ud800", "surrogates not allowed"),
    ],
)
def test_a_value_that_cannot_travel_is_refused_by_name(value: object, text: str) -> None:
    with pytest.raises(RefusedValueError, match=text):
        make().encode(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)

    with pytest.raises(RefusedValueError, match="nested too deeply, or contains itself"):
        make().encode(endless)


def test_bytes_that_are_nested_too_deeply_are_unreadable() -> None:
    with pytest.raises(UnreadableValueError):
        make().decode(b"\x91" * 100_000 + b"\xc0")


@pytest.mark.parametrize(
    "error, arrived",
    [
        (LookupError("no"), LookupError("no")),
        (KeyError("k", 3), KeyError("k", 3)),
        (ShopError("closed", Add(1)), ShopError("closed", Add(1))),
    ],
)
def test_a_known_exception_arrives_with_its_arguments(error: Any, arrived: Any) -> None:
    got = travel(error)

    assert type(got) is type(arrived)
    assert got.args == arrived.args


class PriceError(Exception):
    """A listed exception whose constructor has other parameters than ``args``."""

    def __init__(self, item: str, price: int) -> None:
        super().__init__(f"{item} costs {price}")
        self.item = item
        self._price = price
        self.till = object()

    @property
    def price(self) -> int:
        return self._price


class FileError(OSError):
    """The same, with fields of the operating system."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EACCES, "denied", path)
        self.hint = "ask"


def test_a_listed_exception_with_a_constructor_of_its_own_arrives_as_itself() -> None:
    types = MessageTypes([PriceError, FileError])
    sent = PriceError("tea", 3)
    sent.add_note("in the shop")
    got = types.decode(types.encode(sent))

    assert type(got) is PriceError
    assert (str(got), got.args, got.item, got.price) == ("tea costs 3", sent.args, "tea", 3)
    assert got.__notes__ == ["in the shop"]
    assert got.till == repr(sent.till)  # a value that cannot travel is text

    file = types.decode(types.encode(FileError("x")))
    assert type(file) is FileError
    assert (file.errno, file.strerror, file.filename, file.hint) == (13, "denied", "x", "ask")
    assert str(file) == str(FileError("x"))


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "No such file", "a"),
        FileNotFoundError(2, "No such file"),
        OSError(18, "Invalid link", "a", None, "b"),
        OSError("alone"),
        ConnectionResetError(),
    ],
)
def test_an_error_of_the_operating_system_arrives_with_its_file_names(error: OSError) -> None:
    got = travel(error)

    assert type(got) is type(error)
    assert (got.args, str(got)) == (error.args, str(error))
    assert (got.filename, got.filename2) == (error.filename, error.filename2)


def test_attributes_of_an_exception_change_nothing_of_its_class() -> None:
    types, cls = MessageTypes([PriceError]), PriceError.__qualname__
    parts = (cls, ["x"], {"__class__": 1, "__cause__": 2, "price": 5, 7: 8, "item": "tea"})
    got = types.decode(hand_made(32, parts))

    assert type(got) is PriceError
    assert got.__cause__ is None
    assert vars(got) == {"price": 5, "item": "tea"}


@pytest.mark.parametrize("error", [StopIteration(3), StopAsyncIteration()])
def test_an_exception_that_no_coroutine_can_raise_arrives_as_a_remote_error(error: Any) -> None:
    got = travel(error)

    assert isinstance(got, RemoteError)
    assert got.type_name == type(error).__name__
    with pytest.raises(BadInputError, match="an exception that a coroutine can raise"):
        MessageTypes([type("Stop", (type(error),), {})])


@pytest.mark.parametrize("error", [ValueError(Hidden()), type("OddError", (Exception,), {})("odd")])
def test_another_exception_arrives_as_a_remote_error_with_name_and_text(error: Any) -> None:
    got = travel(error)

    assert isinstance(got, RemoteError)
    assert got.type_name == type(error).__qualname__
    assert got.text == str(error)
    again = travel(got)
    assert (again.type_name, again.text) == (got.type_name, got.text)


def test_a_crash_arrives_with_the_traceback_of_the_other_node() -> None:
    try:
        raise LookupError("here")
    except LookupError as error:
        reason = Crashed(error)
    got = travel(reason)

    assert got == reason
    assert got.traceback == reason.traceback
    assert "raise LookupError" in got.traceback


def test_a_crash_by_an_exit_of_the_program_arrives_as_text() -> None:
    got = travel(Crashed(SystemExit(3)))

    assert str(got) == "crashed: RemoteError: SystemExit: 3"


@pytest.mark.parametrize(
    "value",
    [
        *VALUES,
        RemoteError("A", "b"),
        LookupError("x"),
        noted(),
        ShopError(),
        Crashed(LookupError()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_type_of_a_value_is_known_without_decoding_it(value: object) -> None:
    types = make()

    assert types.type_of(types.encode(value)) is type(value)
    assert types.type_of(memoryview(types.encode(value))) is type(value)


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\xc1\x05ab", b"\xc1\x01\xff", b"\xc7", b"\xd4\x63a"]
)
def test_bytes_of_no_known_type_have_none(data: bytes) -> None:
    assert make().type_of(data) is None
    assert MessageTypes().type_of(make().encode(Add(1))) is None
    assert MessageTypes().type_of(make().encode(Order([], Colour.RED))) is None


# -- sets and dicts ------------------------------------------------------------------------------

EQUAL = 2**61 - 1
"""All multiples of this number have the same hash."""


def hand_made(code: int, content: Any) -> bytes:
    """The bytes of an extension, as a hostile node writes them."""
    return encode(Ext(code, encode(content)))


def uuids(count: int) -> list[Any]:
    return [Ext(24, UUID(int=number * EQUAL).bytes) for number in range(count)]


@pytest.mark.parametrize(
    "data",
    [
        hand_made(2, uuids(17)),
        hand_made(3, uuids(17)),
        hand_made(6, uuids(17) + [1] * 17),
        hand_made(2, [Ext(1, encode([number * EQUAL])) for number in range(9)] * 2),
        hand_made(2, list(range(5_001))),
        hand_made(6, [*range(5_001)] * 2),
        encode([1, hand_made(2, uuids(17)), Ext(2, encode(uuids(17)))]),
    ],
)
def test_sets_and_dicts_with_chosen_hashes_are_unreadable(data: bytes) -> None:
    with pytest.raises(UnreadableValueError, match=r"entries.*: send a list instead"):
        make().decode(data)


@pytest.mark.parametrize(
    "value",
    [
        {UUID(int=number * EQUAL) for number in range(17)},
        frozenset(UUID(int=number * EQUAL) for number in range(17)),
        {UUID(int=number * EQUAL): 1 for number in range(17)},
        set(range(5_001)),
        dict.fromkeys(range(5001), 1),
        {number or "text": 1 for number in range(5_001)},
        Echo([{1.5 * number for number in range(5_001)}]),
    ],
)
def test_a_sender_is_told_of_sets_and_dicts_that_would_be_unreadable(value: object) -> None:
    with pytest.raises(RefusedValueError, match=r"entries.*: send a list instead"):
        make().encode(value)


@pytest.mark.parametrize(
    "sizes, fits",
    [
        ([5_000] * 10, True),
        ([5_000] * 10 + [16] * 10, True),
        ([5_000] * 10 + [17], False),
        ([5_000] * 11, False),
        ([2_000] * 62, True),
        ([2_000] * 63, False),
        ([250] * 4_000, True),
    ],
)
def test_all_sets_and_dicts_of_a_message_share_a_limit(sizes: list[int], fits: bool) -> None:
    types = make()
    sets = [set(range(size)) for size in sizes[::2]]
    dicts = [dict.fromkeys(range(size), 1) for size in sizes[1::2]]
    bare = [Ext(2, encode(list(range(size)))) for size in sizes]
    for _ in range(2):  # each message counts for itself
        if fits:
            data = types.encode([sets, dicts])
            assert types.decode(data) == [sets, dicts]
            assert types.decode(encode(bare))
        else:
            with pytest.raises(
                RefusedValueError, match=r"too large: .* 1000000 entries, .*send a list"
            ):
                types.encode([sets, dicts])
            with pytest.raises(
                UnreadableValueError, match=r"too large: .* 1000000 entries, .*send a list"
            ):
                types.decode(encode(bare))


def test_all_texts_in_sets_and_dicts_of_a_message_are_a_million_at_most() -> None:
    """A dict of more texts would block the node while it is made."""
    types = make()
    texts = list(map(str, range(250_000)))
    table = dict.fromkeys(texts, 1)

    assert len(types.decode(encode([Ext(6, encode(texts * 2))] * 4))) == 4
    with pytest.raises(RefusedValueError, match=r"may have 1000000 entries.*several messages"):
        types.encode([table, table, set(texts), table, dict.fromkeys(range(17))])
    with pytest.raises(UnreadableValueError, match=r"may have 1000000 entries"):
        types.decode(encode([Ext(6, encode(texts * 2))] * 5))


def same_hash(depth: int, length: int = 4) -> list[Any]:
    """Sixteen values with the same hash: tuples, or sets of sets of them."""
    if depth == 0:
        ends = itertools.product((-1, -2), repeat=4)
        return [(*[1] * length, *end) for end in ends]
    below = same_hash(depth - 1, length)
    return [frozenset(below[:number] + below[number + 1 :]) for number in range(16)]


@cache
def encoded_with_the_same_hash(depth: int, length: int) -> list[bytes]:
    """Twelve of them for the wire. To make sets of sets takes as long as to compare them."""
    free = MessageTypes(is_limited=False)
    return [free.encode(value) for value in same_hash(depth, length)[:12]]


@pytest.mark.parametrize("depth, length", [(0, 100_000), (1, 1_000), (2, 30), (3, 1)])
@pytest.mark.parametrize("kind", [2, 3, 6])
def test_large_values_with_the_same_hash_are_unreadable(depth: int, length: int, kind: int) -> None:
    """To compare sets of sets, each with all others, takes eight times as long at each depth."""
    elements = encoded_with_the_same_hash(depth, length)
    content = b"".join((bytes((0x90 + len(elements),)), *elements))
    if kind == 6:
        content = b"".join((b"\xdc\x00\x18", *elements, b"\xc0" * 12))

    with pytest.raises(UnreadableValueError, match="large entries that have the same hash"):
        make().decode(encode(Ext(kind, content)))


@pytest.mark.parametrize("depth, length", [(0, 100_000), (1, 1_000)])
def test_a_sender_is_told_of_large_values_with_the_same_hash(depth: int, length: int) -> None:
    first, *_, last = same_hash(depth, length)

    with pytest.raises(RefusedValueError, match=r"large entries that have the same hash.*a list"):
        make().encode([{first, last, number} for number in range(200)])
    assert travel({first, 3}) == {first, 3}


@pytest.mark.parametrize("depth, length", [(0, 4), (0, 1_000), (1, 0)])
def test_small_values_with_the_same_hash_arrive(depth: int, length: int) -> None:
    value = dict.fromkeys(same_hash(depth, length), "x" * 100_000)

    assert travel([value, set(value)]) == [value, set(value)]


def test_sets_in_short_messages_are_counted_for_each_message() -> None:
    types = make()
    data = types.encode(set(range(17)))

    for _ in range(60_000):
        types.decode(data)


def test_sets_and_dicts_of_this_program_itself_have_any_size() -> None:
    types = MessageTypes(is_limited=False)
    value = [
        *(set(range(50_000)) for _ in range(3)),
        dict.fromkeys(range(50_000), 1),
        {UUID(int=number * EQUAL) for number in range(17)},
    ]

    assert types.decode(types.encode(value)) == value


@pytest.mark.parametrize(
    "value",
    [
        {UUID(int=number * EQUAL) for number in range(16)},
        set(range(5_000)),
        {number: str(number) for number in range(5_000)},
        {str(number): number for number in range(20_000)},
        {b"%d" % number for number in range(20_000)},
        {f"{number}" for number in range(20_000)},
        *(dict.fromkeys(range(count), 1) for count in (15, 16, 17, 256, 1_024)),
        *(
            {str(number): {"a": [b"\xdf\xde\xff" * 9]} for number in range(count)}
            for count in (15, 16, 17, 1_024, 70_000)
        ),
        {str(number) or number: {str(number): number} for number in range(40)},
        {(a, b, c, d) for a in (-1, -2) for b in (-1, -2) for c in (-1, -2) for d in (-1, -2)},
        {(a, b) for a in range(-30, 30) for b in range(-30, 30)},
        [b"\xdf" * 20_000, "\xdf" * 20_000, [[0xDF] * 9_000], {"a": b"\xde\xff" * 300}, (1.5, -7)],
        [(number, str(number) * 20, b"\xdf" * (number % 50)) for number in range(2_000)],
        [2**33 + 0xDF * number for number in range(20_000)],
    ],
    ids=repr_of_type,
)
def test_large_values_arrive_equal(value: object) -> None:
    got = travel(value)

    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize("count", [16, 33, 1_024])
@pytest.mark.parametrize("key", [int, str, lambda number: (number, -1)])
@pytest.mark.parametrize("wrap", ["alone", "list", "tuple", "object", "closed", "pairs"])
def test_a_large_map_is_unreadable_before_it_is_decoded(key: Any, wrap: str, count: int) -> None:
    """The codec would make the dict without a check of its keys."""
    large = dict.fromkeys(map(key, range(count)), "x" * 30)
    data = {
        "alone": encode(large),
        "list": encode(["x", [1.5, b"y" * 300, large]]),
        "tuple": hand_made(1, [large]),
        "object": hand_made(30, ("Echo", {"value": large})),
        "closed": b"\xc1\x03Add" + encode({"number": large}),
        "pairs": hand_made(6, ["a", large]),
    }[wrap]

    with pytest.raises(UnreadableValueError, match="more than 15 keys travels as pairs"):
        make().decode(data)


@pytest.mark.parametrize("content", [None, 7, ["a"], ["a", 1, 2], [[], 1], {"a": 1}])
def test_a_dict_has_as_many_values_as_keys(content: Any) -> None:
    with pytest.raises(UnreadableValueError):
        make().decode(hand_made(6, content))


@pytest.mark.parametrize(
    "value",
    [
        {number: dict.fromkeys(range(300), 1.5) for number in range(1_000)},
        [dict.fromkeys(range(1_000), 0.5)] * 250,
        [dict.fromkeys(range(260), 0.5)] * 3_000,
        [{(number,): number} for number in range(MOST_OTHERS // 2)],
    ],
    ids=["sensors", "large", "many", "small"],
)
def test_a_dict_with_any_keys_counts_once(value: object) -> None:
    assert travel(value) == value


def test_a_sender_is_told_that_dicts_with_other_keys_are_counted() -> None:
    with pytest.raises(RefusedValueError, match=r"100000 values of other types .* of other keys"):
        make().encode([{None: 1}] * (MOST_OTHERS + 1))


def test_nested_dicts_are_read_without_a_copy() -> None:
    """A copy of the content in each would take a hundred times the memory of the message."""
    types = make()
    value: Any = bytes(1 << 20)
    for _ in range(100):
        value = {**dict.fromkeys(map(str, range(40))), "value": value}
    data = types.encode(value)

    tracemalloc.start()
    try:
        got = types.decode(data)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert got == value
    assert most < 3 * len(data)


@pytest.mark.parametrize("count", [40, 1_024])
def test_values_of_this_program_itself_are_read_in_any_form(count: int) -> None:
    """As an earlier version has stored them, too."""
    types = MessageTypes([Echo, MANY], is_limited=False)
    large = {number: [str(number)] for number in range(count)}

    assert types.decode(encode(["x", large])) == ["x", large]
    assert types.decode(hand_made(30, ("Echo", {"value": large}))) == Echo(large)
    assert types.decode(encode([[]] * (MOST_LISTS + 1))) == [[]] * (MOST_LISTS + 1)
    assert types.decode(types.encode([large, MANY(*range(40))])) == [large, MANY(*range(40))]


@pytest.mark.parametrize("code, size", [(2, 250), (6, 17)])
def test_many_sets_and_dicts_of_middle_size_are_unreadable(code: int, size: int) -> None:
    """Their tables take thirty times the memory of their bytes."""
    unit = hand_made(code, [*range(size)] * (1 if code == 2 else 2))
    most = 1_000_000 // size

    assert len(make().decode(repeated(unit, most))) == most
    with pytest.raises(UnreadableValueError, match="may have 1000000 entries"):
        make().decode(repeated(unit, most + 1))


@pytest.mark.parametrize(
    "unit",
    [
        encode([b"\xd4\xdf" * 200, "x" * 40, 1, 1_000, 1.5]),
        hand_made(2, [*range(100), *range(1_000, 1_100)]),
        hand_made(1, [1, b"\xd4\x90\xdf" * 9, "abc", Ext(26, b"\xd4" * 9)]),
    ],
)
def test_each_byte_of_a_large_message_is_read_once(
    unit: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    matches: list[re.Match[bytes]] = []

    def counted(match: Any) -> Any:
        def read(data: bytes, at: int) -> Any:
            matches.append(match(data, at))
            return matches[-1]

        return read

    monkeypatch.setattr(encoded_values, "head", counted(encoded_values.head))
    monkeypatch.setattr(encoded_values, "heads", counted(encoded_values.heads))
    data = repeated(unit, 300_000 // len(unit))
    for is_counted in (False, True):
        matches.clear()
        found = encoded_values.counts(data, 0, is_counted)

        assert found >= (0, 0)
        assert sum(match.end() - match.start() for match in matches) <= len(data)
        assert len(matches) <= 9 * (300_000 // len(unit)) + 2


def test_many_small_maps_with_chosen_keys_are_unreadable_or_few_steps() -> None:
    """The keys of all maps of a message are counted, or there are too few in each to be slow."""
    chosen = encode(dict.fromkeys(range(0, 1_023 << 20, 1 << 20), None))

    with pytest.raises(UnreadableValueError, match="more than 15 keys"):
        make().decode(repeated(chosen, 1_000))


MANY: type = make_dataclass("Many", [(f"field_{number}", int) for number in range(40)])
FEWER: type = make_dataclass("Many", [(f"field_{number}", int) for number in range(39)])


def test_a_class_with_many_fields_arrives_and_also_in_a_version_that_differs() -> None:
    types, other = MessageTypes([MANY]), MessageTypes([FEWER])
    value = MANY(*range(40))

    assert types.decode(types.encode(value)) == value
    assert types.decode(types.encode([value] * 50)) == [value] * 50
    assert other.decode(types.encode(value)) == FEWER(*range(39))


class Talkative(Exception):
    """An exception with many attributes."""

    def __init__(self) -> None:
        super().__init__("a", 1)
        vars(self).update({f"attribute_{number}": [number] for number in range(40)})


def test_an_exception_with_many_attributes_arrives() -> None:
    types = MessageTypes([Talkative])

    got = types.decode(types.encode(Talkative()))

    assert type(got) is Talkative
    assert vars(got) == vars(Talkative())


def test_bytes_that_no_encoder_of_a_node_writes_take_few_steps() -> None:
    """A long form of a short text would take a step of Python for two bytes."""
    data = b"\xdc\xff\xff" + b"\xd9\x00" * 0xFFFF + b"\xdf"

    with pytest.raises(UnreadableValueError):
        make().decode(data)


def repeated(unit: bytes, count: int) -> bytes:
    """The bytes of a list that has the same value so many times."""
    return b"\xdd" + count.to_bytes(4, "big") + unit * count


ID = Ext(24, bytes(range(16)))


FEW_LISTS, FEW_OTHERS = 1_000, 400


@pytest.fixture
def few_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower limits: a test with as many values as a node reads takes a second."""
    monkeypatch.setattr(encoded_values, "MOST_LISTS", FEW_LISTS)
    monkeypatch.setattr(encoded_values, "MOST_OTHERS", FEW_OTHERS)
    monkeypatch.setattr(encoded_values, "_UNCOUNTED", FEW_LISTS)


def assert_most(unit: bytes, most: int, what: str) -> None:
    assert len(make().decode(repeated(unit, most))) == most
    with pytest.raises(UnreadableValueError, match=f"more than .* {what}"):
        make().decode(repeated(unit, most + 1))


@pytest.mark.usefixtures("few_values")
@pytest.mark.parametrize(
    "unit, most, what",
    [
        (b"\x90", FEW_LISTS - 1, "lists and dicts"),
        (b"\x80", FEW_LISTS - 1, "lists and dicts"),
        (encode([b"\x90\xd4", "\u0628" * 20]), FEW_LISTS - 1, "lists and dicts"),
        (hand_made(1, []), FEW_OTHERS, "values of other types"),
        (hand_made(6, []), FEW_OTHERS, "values of other types"),
        (encode(ID), FEW_OTHERS, "values of other types"),
        (hand_made(1, [ID]), FEW_OTHERS // 2, "values of other types"),
        (encode(Ext(26, b"\xd4\x90" * 20)), FEW_OTHERS, "values of other types"),
        (hand_made(1, ["x" * 300]), FEW_OTHERS, "values of other types"),
    ],
)
def test_more_values_than_a_node_reads_at_once_are_unreadable(
    unit: bytes, most: int, what: str
) -> None:
    assert_most(unit, most, what)


def test_a_node_reads_many_values_at_once() -> None:
    assert_most(b"\x80", 250_000 - 1, "lists and dicts")
    assert_most(hand_made(1, []), 100_000, "values of other types")


@pytest.mark.usefixtures("few_values")
@pytest.mark.parametrize("value", [[()] * (FEW_OTHERS + 1), [[]] * FEW_LISTS])
def test_more_values_than_a_node_reads_at_once_are_refused_at_their_sender(value: Any) -> None:
    with pytest.raises(RefusedValueError, match="send several messages, or bytes"):
        make().encode(value)

    data = make().encode(value[1:])
    assert make().decode(data) == value[1:]


@given(st.binary(max_size=40), st.integers(0, 3))
def test_any_long_bytes_are_a_value_or_unreadable(data: bytes, kind: int) -> None:
    padding = [b"\xdf" * 20_000, "x" * 20_000, [1] * 20_000, {"a": b"\xdf" * 20_000}][kind]

    with suppress(UnreadableValueError):
        make().decode(b"\x92" + encode(padding) + data)


# -- two versions of a program -------------------------------------------------------------------


def _class(**fields: Any) -> Any:
    return dataclass(type("Add", (), {"__annotations__": {"number": int, **fields}}))


def test_a_field_that_the_receiver_does_not_know_is_dropped() -> None:
    newer = _class(colour=str)
    sent = MessageTypes([newer]).encode(newer(1, "red"))

    assert MessageTypes([Add]).decode(sent) == Add(1)


def test_a_field_with_a_default_may_be_missing() -> None:
    newer: Any = dataclass(
        type("Add", (), {"__annotations__": {"number": int, "colour": str}, "colour": "red"})
    )

    assert MessageTypes([newer]).decode(MessageTypes([Add]).encode(Add(1))) == newer(1, "red")


def test_a_field_without_a_default_that_is_missing_is_unreadable() -> None:
    newer = _class(colour=str)

    with pytest.raises(UnreadableValueError, match="TypeError; the message has no field colour"):
        MessageTypes([newer]).decode(MessageTypes([Add]).encode(Add(1)))


@pytest.mark.parametrize(
    "change, text",
    [
        ({"number": "one"}, "Described.number: got a str, allowed is int"),
        ({"either": None}, "Described.either: got a NoneType, allowed is int or str"),
        ({"choice": 5}, "Described.choice: got a int, allowed is str"),
        ({"pid": "me"}, "Described.pid: got a str, allowed is Alias or NoneType or PID"),
        ({"rate": "fast"}, "Described.rate: got a str, allowed is float or int"),
        ({"lines": "text"}, "Described.lines: got a str, allowed is list"),
    ],
)
def test_a_field_of_another_type_is_unreadable(change: dict[str, Any], text: str) -> None:
    values: dict[str, Any] = {"number": 1, "either": 1, "choice": "a", "pid": None, "rate": 1.0}
    wrong = make().encode(Described(**{**values, **change}))

    with pytest.raises(UnreadableValueError) as caught:
        make().decode(wrong)
    assert str(caught.value) == text


def test_a_type_that_the_receiver_does_not_list_is_unreadable_by_name() -> None:
    with pytest.raises(UnreadableValueError, match=r"the type 'Add' is not in this node's `types="):
        travel(Add(1), MessageTypes([]))


def test_an_enum_member_that_the_receiver_lacks_is_unreadable() -> None:
    class Other(Enum):
        GREEN = 1

    Other.__qualname__ = "Colour"
    sent = MessageTypes([Other]).encode(Other.GREEN)

    with pytest.raises(UnreadableValueError, match=r"Colour.GREEN is not an Enum member"):
        make().decode(sent)


def test_a_constructor_that_raises_makes_the_message_unreadable() -> None:
    def refuse(self: Any) -> None:
        raise ValueError("never")

    strict: Any = dataclass(
        type("Add", (), {"__annotations__": {"number": int}, "__post_init__": refuse})
    )

    with pytest.raises(UnreadableValueError, match="Add cannot be made: ValueError"):
        MessageTypes([strict]).decode(MessageTypes([Add]).encode(Add(1)))


# -- the list ------------------------------------------------------------------------------------


def test_a_module_lists_all_its_own_classes() -> None:
    module = ModuleType("shop_messages")
    sys.modules[module.__name__] = module
    try:
        exec(
            "from dataclasses import dataclass\nfrom enum import Enum\n"
            "from tests.network.pairs import Add\n"
            "@dataclass\nclass Buy:\n    what: str\n"
            "class Kind(Enum):\n    A = 1\n"
            "class NotAMessage: pass\n",
            vars(module),
        )
        types = MessageTypes([module])
        value = [module.Buy("tea"), module.Kind.A]
        assert types.decode(types.encode(value)) == value
        with pytest.raises(RefusedValueError, match="NotAMessage cannot travel"):
            types.encode(module.NotAMessage())
        with pytest.raises(RefusedValueError, match=r"pairs\.Add is not among the types"):
            types.encode(Add(1))
    finally:
        del sys.modules[module.__name__]


def test_two_classes_of_the_same_name_are_refused_with_the_line_to_write() -> None:
    with pytest.raises(BadInputError, match='give one of them `__wire__ = "another name"`'):
        MessageTypes([Add, _class()])


def test_a_name_on_the_wire_can_be_chosen() -> None:
    other: Any = dataclass(
        type("Add", (), {"__annotations__": {"number": int}, "__wire__": "shop.Add"})
    )
    types = MessageTypes([Add, other])

    assert type(types.decode(types.encode(other(1)))) is other
    assert type(types.decode(types.encode(Add(1)))) is Add


@pytest.mark.parametrize("entry", [Hidden, 5, "Add", Add(1)])
def test_an_entry_that_is_no_message_class_is_refused(entry: Any) -> None:
    with pytest.raises(BadInputError, match="a module, or a class: a dataclass, a msgspec"):
        MessageTypes([entry])


def test_a_dataclass_with_a_computed_field_is_refused() -> None:
    @dataclass
    class Computed:
        width: int
        area: int = field(init=False, default=0)

    with pytest.raises(BadInputError, match="the field 'area' has init=False"):
        MessageTypes([Computed])
