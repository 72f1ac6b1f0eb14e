"""Classes of states: which are closed, and which stored data fits them."""

import sys
import typing
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from itertools import permutations
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID, uuid4

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergo_py.entities import StateTypeError
from ergo_py.entities.state_types import StateType


class Colour(Enum):
    RED = "red"


class Point(NamedTuple):
    x: int = 0
    y: int = 0


NO_ID, ORIGIN = UUID(int=0), Point()


class Inner(msgspec.Struct):
    name: str = ""


@dataclass
class Rich:
    flag: bool = False
    number: int = 0
    ratio: float = 0.0
    text: str = ""
    data: bytes = b""
    at: datetime | None = None
    lasts: timedelta = timedelta()
    price: Decimal = Decimal(0)
    id: UUID = NO_ID
    colour: Colour = Colour.RED
    mode: Literal["a", "b"] = "a"
    point: Point = ORIGIN
    inner: list[Inner] = field(default_factory=list)
    table: dict[str, dict[int, tuple[int, str]]] = field(default_factory=dict)
    tags: set[str] = field(default_factory=set)
    small: Annotated[int, msgspec.Meta(ge=0)] = 0


def test_a_rich_state_is_loaded_as_it_was() -> None:
    state = Rich(
        True, -5, 1.5, "é", b"\0", datetime(2026, 1, 2, tzinfo=UTC), timedelta(1.5),
        Decimal("1.10"), uuid4(), Colour.RED, "b", Point(1, 2), [Inner("x")],
        {"a": {1: (2, "z")}}, {"t"}, 3,
    )  # fmt: skip
    kind = StateType(Rich)
    assert kind.load(kind.encode(state)) == state
    assert kind.again(kind.encode(state)) == state


@dataclass
class Simple:
    names: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    maybe: float | None = None


@given(
    st.builds(
        Simple,
        st.lists(st.text(st.characters(exclude_categories=["Cs"]))),
        st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"])),
            st.integers(-(2**63), 2**64 - 1),
        ),
        st.none() | st.floats(allow_nan=False),
    )
)
def test_every_state_that_is_stored_is_loaded_as_it_was(state: Simple) -> None:
    kind = StateType(Simple)
    encoded = kind.encode(state)
    assert kind.load(encoded) == state


@dataclass
class Version1:
    amount: int = 0


class Omitting(msgspec.Struct, omit_defaults=True):
    amount: int = 0


def _with(annotation: Any) -> Any:
    return dataclass(type("Odd", (), {"__annotations__": {"part": annotation}, "part": None}))


@pytest.mark.parametrize(
    "annotation, text",
    [
        (Any, "Odd.part: .*Any cannot be loaded as it was stored"),
        (object, "object cannot be loaded"),
        (list, r"`list\[str\]`"),
        (dict, r"`dict\[str, int\]`"),
        (list[Any], "part"),
        (deque[int], "deque"),
        (OrderedDict[str, int], "OrderedDict"),
        (complex, "complex"),
        (typing.Callable[[], None], "Callable"),
        (set[Inner], "the order of a set"),
        (set[tuple[Inner, ...]], "the order of a set"),
        (Inner | Point | Version1 | None, "Odd: .*may not contain more than one"),
        (Omitting, "Odd.part: omit_defaults=True"),
        (dict[str, object], "object"),
    ],
)
def test_an_open_annotation_is_refused_by_its_field(annotation: Any, text: str) -> None:
    with pytest.raises(StateTypeError, match=text):
        StateType(_with(annotation))


def test_a_field_without_a_default_is_refused() -> None:
    @dataclass
    class Needy:
        amount: int

    with pytest.raises(StateTypeError, match="give every field a default"):
        StateType(Needy)


@pytest.mark.parametrize("state", [Any, dict[str, int], 5])
def test_a_state_that_is_no_class_is_refused(state: Any) -> None:
    with pytest.raises(StateTypeError, match="a dataclass or a msgspec"):
        StateType(state)


def _encoded(data: object) -> bytes:
    return msgspec.msgpack.encode(data)


@dataclass
class Version2:
    amount: int = 0
    currency: str = "EUR"
    parts: list[Inner] = field(default_factory=list)


class Pair(msgspec.Struct, array_like=True):
    x: int = 0
    y: int = 0


@dataclass
class Sets:
    paths: set[tuple[str, ...]] = field(default_factory=set)
    teams: set[frozenset[str]] = field(default_factory=set)
    distances: dict[frozenset[str], list[int]] = field(default_factory=dict)
    pairs: list[Pair] = field(default_factory=list)


def test_sets_that_another_program_has_stored_in_its_order_are_loaded() -> None:
    names = ["a", "b", "c"]
    sets = Sets(
        {("a",), ("b", "c"), ()},
        {frozenset("a"), frozenset("abc")},
        {frozenset("ab"): [1], frozenset("abc"): [2, 3]},
    )

    # The order of a set of texts follows from the salt of hashes of its program.
    for one, two in permutations([("a",), ("b", "c")]):
        for team in permutations(names):
            stored = {
                "paths": [one, (), two],
                "teams": [["a"], team],
                "distances": {team: [2, 3], ("b", "a"): [1]},
            }
            assert StateType(Sets).load(_encoded(stored)) == sets


@pytest.mark.parametrize(
    "data, text",
    [
        ({"paths": [["a"], ["a"]]}, "paths"),
        ({"teams": [["a", "a"]]}, "teams"),
        ({"distances": {("a", "a"): [1]}}, "distances"),
        ({"pairs": [[1, 2, {}]]}, "pairs"),
        ({"pairs": [[1, 2, msgspec.msgpack.Ext(5, b"x")]]}, "pairs"),
    ],
)
def test_a_part_of_a_list_or_set_that_is_not_kept_is_refused(data: object, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        StateType(Sets).load(_encoded(data))


def test_a_missing_field_takes_its_default() -> None:
    assert StateType(Version2).load(_encoded({"amount": 5})) == Version2(5, "EUR")


@dataclass
class Line:
    text: str = ""
    tax: int = 19


class Total(msgspec.Struct):
    line: Line = msgspec.field(default_factory=Line)


@dataclass
class Bill:
    currency: str = "EUR"
    lines: list[Line] = field(default_factory=list)
    notes: dict[str, tuple[Line, ...]] = field(default_factory=dict)
    total: Total = field(default_factory=Total)


def test_a_default_that_was_taken_is_stored_for_versions_with_another_default() -> None:
    kind, line, whole = StateType(Bill), {"text": "tea"}, {"text": "tea", "tax": 19}
    expected = {
        "currency": "EUR",
        "lines": [whole],
        "notes": {"a": [whole]},
        "total": {"line": whole},
    }
    parts = {"lines": [line], "notes": {"a": [line]}, "total": {"line": line}}

    for data in (parts, {**expected, **parts}, *({**expected, key: parts[key]} for key in parts)):
        loaded = kind.load(_encoded(data))

        assert msgspec.msgpack.decode(kind.encode(loaded)) == expected
    assert msgspec.msgpack.decode(kind.encode(kind.load(_encoded({})))) == {
        "currency": "EUR",
        "lines": [],
        "notes": {},
        "total": {"line": {"text": "", "tax": 19}},
    }


@dataclass
class Branch:
    size: int = 0
    branches: list["Branch"] = field(default_factory=list)
    next: "Branch | None" = None
    weight: int = 5


def test_a_default_inside_of_a_class_that_contains_itself_is_stored() -> None:
    inner = {"size": 2, "branches": []}
    data = {"size": 1, "branches": [inner], "next": inner, "weight": 1}
    kind, whole = StateType(Branch), {**inner, "next": None, "weight": 5}

    stored = msgspec.msgpack.decode(kind.encode(kind.load(_encoded(data))))

    assert stored == {**data, "branches": [whole], "next": whole}


@dataclass(slots=True)
class InSlots:
    a: int = 0


class Corner(NamedTuple):
    line: Line
    numbers: list[int]


class Sheet(TypedDict, total=False):
    line: Line
    numbers: list[int]


NO_CORNER = Corner(Line(), [])
NO_PLACES: tuple[int, list[int], Line] = (0, [], Line())


@dataclass
class Wide:
    """Many numbers beside each kind of part."""

    numbers: list[int] = field(default_factory=list)
    line: Line | None = None
    named: Annotated[Line | None, msgspec.Meta(title="named")] = None
    corner: Corner = NO_CORNER
    sheet: Sheet = field(default_factory=Sheet)
    places: tuple[int, list[int], Line] = NO_PLACES
    plain: tuple[int, list[int]] = (0, [])
    rest: tuple[Line, ...] = ()
    table: dict[str, list[int]] = field(default_factory=dict)
    lines: dict[str, list[Line]] = field(default_factory=dict)
    slots: InSlots = field(default_factory=InSlots)
    mode: Literal["a", "b"] = "a"


def _wide(line: dict[str, Any], numbers: list[int]) -> dict[str, Any]:
    return {
        "numbers": numbers,
        "line": line,
        "named": line,
        "corner": [line, numbers],
        "sheet": {"line": line, "numbers": numbers},
        "places": [0, numbers, line],
        "plain": [0, numbers],
        "rest": [line, line],
        "table": {"a": numbers},
        "lines": {"a": [line]},
        "slots": {"a": 0},
        "mode": "a",
    }


def test_a_default_is_stored_in_each_kind_of_part() -> None:
    kind = StateType(Wide)

    state = kind.load(_encoded(_wide({"text": "x"}, [1, 2])))

    assert msgspec.msgpack.decode(kind.encode(state)) == _wide({"text": "x", "tax": 19}, [1, 2])
    assert kind.encode(kind.load(_encoded({}))) == kind.encode(Wide())


def test_a_load_does_not_visit_numbers_beside_parts() -> None:
    kind, calls = StateType(Wide), 0
    data = _encoded(_wide({"text": "x", "tax": 19}, list(range(1000))))

    def count(_frame: object, _event: str, _arg: object) -> None:
        nonlocal calls
        calls += 1

    others = sys.getprofile()
    sys.setprofile(count)
    try:
        kind.load(data)
    finally:
        sys.setprofile(others)

    assert 0 < calls < 1000


class Mixin:
    """A class without slots: its subclasses have a ``__dict__``."""


@dataclass
class InDict:
    a: int = 0


@dataclass(slots=True)
class SlotsOfMixin(Mixin):
    a: int = 0


@dataclass(slots=True)
class SlotsOverDict(InDict):
    b: int = 1


@dataclass
class DictOverSlots(InSlots):
    b: int = 1


@dataclass
class DictOverSlotsOverDict(SlotsOverDict):
    c: int = 2


@dataclass(slots=True)
class SlotsOverDictOverSlots(DictOverSlots):
    c: int = 2


@dataclass
class SlotAgainInDict(InSlots):
    a: int = 5


@dataclass(slots=True)
class DictAgainInSlot(InDict):
    a: int = 5


@dataclass(slots=True)
class SlotAgainInDictBelowSlots(SlotAgainInDict):
    b: int = 1


@dataclass(frozen=True)
class FrozenInDict:
    a: int = 0
    b: int = 1


@dataclass(frozen=True, slots=True)
class FrozenSlots(Mixin):
    a: int = 0
    b: int = 1


class Doubled:
    """A data descriptor as the default of a field."""

    def __get__(self, value: Any, _cls: type) -> Any:
        return 0 if value is None else value.half * 2

    def __set__(self, value: Any, number: int) -> None:
        value.half = number // 2


DOUBLED: Any = Doubled()


@dataclass
class Described:
    a: int = DOUBLED
    b: int = 1


class InStruct(msgspec.Struct, dict=True):
    a: int = 0
    b: int = 1


_KINDS: list[Any] = [
    InDict,
    InSlots,
    SlotsOfMixin,
    SlotsOverDict,
    DictOverSlots,
    DictOverSlotsOverDict,
    SlotsOverDictOverSlots,
    SlotAgainInDict,
    DictAgainInSlot,
    SlotAgainInDictBelowSlots,
    FrozenInDict,
    FrozenSlots,
    Described,
    InStruct,
]


def _set_all(state: Any, number: int) -> dict[str, int]:
    names = [name for name in "abc" if hasattr(state, name)]
    change = setattr if isinstance(state, msgspec.Struct) else object.__setattr__  # also frozen
    for name in names:
        change(state, name, number)
    return dict.fromkeys(names, number)


@pytest.mark.parametrize("is_part", [False, True])
@pytest.mark.parametrize("cls", _KINDS)
def test_a_change_of_a_loaded_field_is_stored_wherever_the_field_is(
    cls: Any, is_part: bool
) -> None:
    whole: Any = dataclass(
        type("Whole", (), {"__annotations__": {"part": cls}, "part": field(default_factory=cls)})
    )
    kind = StateType(whole if is_part else cls)
    defaults = msgspec.msgpack.decode(kind.encode(kind.new()))
    whole_part = defaults["part"] if is_part else defaults

    for rest in ({}, {"a": 8}, dict.fromkeys(whole_part, 8)):
        state = kind.load(_encoded({"part": rest} if is_part else rest))
        part = state.part if is_part else state
        before = kind.encode(state)
        stored = msgspec.msgpack.decode(before)
        assert (stored["part"] if is_part else stored) == {**whole_part, **rest}

        expected = _set_all(part, 6)

        after = msgspec.msgpack.decode(kind.encode(state, before))
        assert (after["part"] if is_part else after) == expected


@dataclass
class Unlisted:
    a: Any = None


@dataclass
class Listed(Unlisted):
    a: list[int] = field(default_factory=list)


def test_a_field_that_a_subclass_has_defined_again_takes_the_default_of_the_subclass() -> None:
    state = StateType(Listed).load(_encoded({}))

    assert state == Listed([])


@pytest.mark.parametrize("data", [{"line": {"text": "x"}}, {}])
def test_a_default_inside_of_a_struct_is_stored(data: object) -> None:
    kind = StateType(Total)

    stored = msgspec.msgpack.decode(kind.encode(kind.load(_encoded(data))))

    assert stored["line"]["tax"] == 19


@pytest.mark.parametrize(
    "data, text",
    [
        ({"amount": 5, "colour": 1}, "unknown field colour"),
        ({"parts": [{"name": "x"}, {"name": "y", "size": 1}]}, r"parts\[1\].size"),
        ({"amount": "five"}, "amount"),
        ([1], "."),
    ],
)
def test_data_that_does_not_fit_is_refused(data: object, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        StateType(Version2).load(_encoded(data))


@dataclass
class Upgraded:
    cents: int = 0

    @classmethod
    def upgrade(cls, data: dict[str, Any]) -> dict[str, Any]:
        """From amounts in units."""
        return {"cents": data["amount"] * 100}


def test_an_upgrade_gets_data_that_does_not_fit() -> None:
    kind = StateType(Upgraded)
    assert kind.load(_encoded({"amount": 5})) == Upgraded(500)
    assert kind.load(_encoded({"cents": 5})) == Upgraded(5)
    with pytest.raises(ValueError, match="upgrade raised KeyError"):
        kind.load(_encoded({"other": 5}))


CYCLIC: dict[str, Any] = {}
CYCLIC["cents"] = CYCLIC


@pytest.mark.parametrize(
    "wrong", [object(), "\udc80", {"cents": object()}, None, {"cents": 2**70}, CYCLIC]
)
def test_an_upgrade_to_data_that_cannot_be_stored_is_refused(wrong: object) -> None:
    class Wrong(Upgraded):
        @classmethod
        def upgrade(cls, data: dict[str, Any]) -> Any:
            return wrong

    with pytest.raises(ValueError, match="the result of upgrade does not fit: "):
        StateType(Wrong).load(_encoded({"amount": 5}))
