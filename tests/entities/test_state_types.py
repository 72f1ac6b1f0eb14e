"""Classes of states: which are closed, and which stored data fits them."""

import sys
import typing
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, StrEnum
from functools import partial
from itertools import permutations, product
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergo_py.entities.errors import StateTypeError
from ergo_py.entities.states.state_type import StateType


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Number(Enum):
    ONE = 1


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
class Child:
    a: int = 0


@dataclass
class Grandchild(Child):
    b: int = 0


class Named(Inner):
    title: str = ""


class Marks(TypedDict, total=False):
    x: int


class IntLike(int):
    """A number of another class."""


class Word(StrEnum):
    YES = "yes"


class SameChild(Child):
    """A class of its own, with the same fields."""


class FakeDatetime(datetime):
    """As libraries have it that stop the clock."""


class FakeTime(time):
    """The same of a time."""


@dataclass
class Many(Child):
    price: Decimal = Decimal(0)
    when: datetime | None = None
    day: date | None = None
    clock: time = time()
    child: Child = field(default_factory=Child)
    children: list[Child] = field(default_factory=list)
    by_name: dict[str, Child] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    tags: set[str] = field(default_factory=set)
    pair: tuple[int, Child | None] = (0, None)
    rest: tuple[float, ...] = ()
    share: float = 0.0
    data: bytes = b""
    word: str = ""
    mode: Literal["yes", "no"] = "no"
    small: Annotated[int, msgspec.Meta(ge=0)] = 0
    colour: Colour = Colour.RED
    point: Point = ORIGIN
    marks: Marks = field(default_factory=Marks)
    inner: Inner = field(default_factory=Inner)


@dataclass
class MoreOfMany(Many):
    more: int = 0


def _many(**fields: Any) -> Many:
    state = Many()
    for name, value in fields.items():
        setattr(state, name, value)
    return state


_SECONDS = timezone(timedelta(minutes=53, seconds=28))  # as before there were zones of time


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"price": "1.50"}, "price: got '1.50', which is a str; here is a Decimal"),
        ({"when": "2020-01-01T00:00:00Z"}, r"when: .* write datetime.fromisoformat\("),
        (
            {"when": FakeDatetime(2020, 1, 1)},
            r"when: .* be a datetime after .* write datetime.fromisoformat\(value.isoformat\(\)\)",
        ),
        ({"day": datetime(2020, 1, 1, 12, tzinfo=UTC)}, r"day: .* write value.date\(\)"),
        ({"clock": FakeTime(1)}, r"clock: .* write time.fromisoformat\(value.isoformat\(\)\)"),
        ({"clock": time(1, tzinfo=_SECONDS)}, "clock has an offset with seconds"),
        ({"clock": "01:00:00"}, "clock: .* here is a time"),
        ({"child": {"a": 1}}, "child: got .* which is a dict; here is a Child"),
        ({"child": Grandchild(1, 2)}, r"child: .*Grandchild; .* a subclass .* write Child\("),
        ({"child": SameChild(1)}, r"child: .* would be a Child after .* write Child\("),
        ({"pair": (1, Grandchild())}, r"pair\[1\]: .* write Child\("),
        ({"children": [Child(), Grandchild()]}, r"children\[1\]: .*Grandchild"),
        ({"children": (Child(),)}, r"children: .*tuple; here is a list\[.*Child\]"),
        ({"children": [{"a": 1}]}, r"children\[0\]: .*dict"),
        ({"by_name": {"x": Child(), "y": Grandchild()}}, r"by_name\['y'\]: .*Grandchild"),
        ({"by_name": {Word.YES: Child()}}, "by_name.*Word"),
        ({"by_name": {"x": Child(None)}}, r"by_name\['x'\].a: "),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        ({"counts": {"x": Number.ONE}}, r"counts\['x'\]: .*Number; here is a int"),
        ({"counts": defaultdict(int, x=1)}, r"counts: .*defaultdict; here is a dict\[str, int\]"),
        ({"tags": ["a", "a"]}, r"tags: .*list; here is a set\[str\], .* write set\("),
        ({"tags": frozenset("a")}, "tags: .*frozenset"),
        ({"pair": [1, None]}, "pair: .*list; here is a tuple"),
        ({"pair": (1, None, 2)}, r"pair has 3 elements, and tuple\[int, .*Child.*\] has 2"),
        ({"pair": ()}, "pair has 0 elements"),
        ({"pair": (1, Grandchild())}, r"pair\[1\]: .*Grandchild"),
        ({"pair": Point(1, 2)}, "pair: .*Point"),
        ({"rest": (0.5, "1")}, r"rest\[1\]: .* is a str; here is a float.*write float\("),
        ({"share": True}, r"share: got True, .* write float\("),
        ({"share": Number.ONE}, "share: .*Number; here is a float"),
        ({"data": bytearray(b"x")}, r"data: .* write bytes\("),
        ({"word": Word.YES}, "word: .*Word"),
        ({"word": UUID(int=0)}, "word: .*UUID"),
        ({"mode": Word.YES}, "mode: .*Word"),
        ({"mode": "other"}, "mode"),
        ({"small": -1}, "small"),
        ({"small": IntLike(1)}, "small: .*IntLike"),
        ({"a": Number.ONE}, "a: .*Number"),
        ({"a": None}, "a: got None, .* here is a int"),
        ({"a": Decimal(1)}, "a: .*Decimal"),
        ({"colour": "blue"}, r"colour: .* write Colour\("),
        ({"point": (1, 2)}, "point: .*tuple; here is a Point"),
        ({"point": Point(1, 0.5)}, "point.y: "),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        ({"marks": {"x": 1, "y": 2}}, "marks has the key 'y', which Marks does not have"),
        ({"marks": {Word.YES: 2}}, "marks has the key"),
        ({"marks": {"x": "1"}}, "marks.x: "),
        ({"inner": Named("a", "b")}, "inner: .*Named"),
    ],
)
def test_a_value_that_is_loaded_as_another_is_refused(fields: dict[str, Any], text: str) -> None:
    kind = StateType(Many)

    with pytest.raises(StateTypeError, match=text):
        kind.encode(_many(**fields), kind.encode(kind.new()))


@pytest.mark.parametrize(
    "state, text",
    [
        (MoreOfMany(), "MoreOfMany; here is a Many"),
        (Child(), "got .*Child; here is a Many"),
        ({"a": 1}, "got .*dict; here is a Many"),
        (msgspec.msgpack.decode(msgspec.msgpack.encode(Many())), "got .*dict; here is a Many"),
    ],
)
def test_a_state_of_another_class_is_refused(state: object, text: str) -> None:
    kind = StateType(Many)

    for before in (None, kind.encode(Many())):
        with pytest.raises(StateTypeError, match=text):
            kind.encode(state, before)


@pytest.mark.parametrize(
    "fields",
    [
        {"colour": "red"},
        {"child": {"a": 0}},
        {"pair": [0, None]},
        {"price": "0"},
        {"children": [{"a": 0}]},
        {"rest": [0.5]},
        {"tags": ["t"]},
        {"by_name": {"x": {"a": 0}}},
        {"marks": {"x": Number.ONE}},
    ],
)
def test_a_value_of_another_type_is_refused_also_if_its_bytes_are_the_same(
    fields: dict[str, Any],
) -> None:
    def make(**others: Any) -> Many:
        parts = {"children": [Child()], "rest": (0.5,), "tags": {"t"}, "by_name": {"x": Child()}}
        return _many(**{**parts, "marks": {"x": 1}, **others})

    kind = StateType(Many)
    before = kind.encode(make())
    assert kind.encode(make(), before) is before

    with pytest.raises(StateTypeError, match=next(iter(fields))):
        kind.encode(make(**fields), before)


@dataclass
class Names:
    names: list[str] = field(default_factory=list)
    name: str = ""


@pytest.mark.parametrize(
    "state",
    [Names([], Word.YES), Names(("yes",), "yes")],  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
)
def test_an_enum_with_the_bytes_of_the_text_before_is_refused(state: Names) -> None:
    kind = StateType(Names)
    before = kind.encode(Names(["yes"] if state.names else [], "yes"))

    with pytest.raises(StateTypeError, match=r"Word|tuple"):
        kind.encode(state, before)


@dataclass
class Worded:
    word: str = ""


def test_an_enum_with_the_bytes_of_the_only_text_before_is_refused() -> None:
    kind = StateType(Worded)

    with pytest.raises(StateTypeError, match=r"word: .*Word"):
        kind.encode(Worded(Word.YES), kind.encode(Worded("yes")))


def _calls(action: typing.Callable[[], object]) -> int:
    """How many Python functions are called."""
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    others = sys.getprofile()
    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(others)
    return calls


@dataclass
class Order:
    name: str = ""
    price: float = 0.0
    tags: list[str] = field(default_factory=list)
    points: dict[str, tuple[Child, ...]] = field(default_factory=dict)


@dataclass
class Orders:
    number: int = 0
    orders: list[Order] = field(default_factory=list)


def test_all_values_of_a_place_are_looked_at_together() -> None:
    kind = StateType(Orders)
    orders = Orders(0, [Order(str(n), 1.5, ["a"], {"x": (Child(),)}) for n in range(2000)])
    before = kind.encode(orders)
    orders.number = 1

    assert _calls(lambda: kind.encode(orders, before)) < 100
    assert _calls(lambda: kind.encode(orders, kind.encode(orders))) < 200


def test_a_number_alone_is_a_state() -> None:
    kind = StateType(int)
    assert kind.load(kind.encode(5, kind.encode(kind.new()))) == 5

    with pytest.raises(StateTypeError, match="got 'five', which is a str; here is a int"):
        kind.encode("five")


def test_a_state_that_misses_a_value_is_refused() -> None:
    state = Many()
    del state.children

    with pytest.raises(StateTypeError, match=r"it misses a field: .*children"):
        StateType(Many).encode(state)


def test_a_state_that_contains_itself_is_refused() -> None:
    state = Branch()
    state.next = state

    with pytest.raises(StateTypeError, match=r"cannot be stored as a Branch: .* contains itself"):
        StateType(Branch).encode(state)


@dataclass
class Node:
    next: "Node | None" = None
    number: int = 0


@dataclass
class Tree:
    trees: list["Tree"] = field(default_factory=list)


class Link(msgspec.Struct, array_like=True):
    next: "Link | None" = None
    number: int = 0


def _nested(cls: Any, levels: int) -> Any:
    is_list, make = cls is Tree, cls
    state = make()
    for _ in range(levels - 1):
        state = make([state] if is_list else state)
    return state


def _deeper(frames: int, action: typing.Callable[[], Any]) -> Any:
    return _deeper(frames - 1, action) if frames else action()


@pytest.mark.parametrize("cls, levels", [(Node, 500), (Link, 500), (Tree, 250)])
def test_a_state_as_deep_as_allowed_is_loaded_under_a_deeper_stack(cls: Any, levels: int) -> None:
    kind, state = StateType(cls), _nested(cls, levels)
    encoded = kind.encode(state)
    without = encoded.replace(b"\xa6number\x00", b"").replace(b"\x82\xa4next", b"\x81\xa4next")
    without = without.replace(b"\x92", b"\x91").rstrip(b"\0") if cls is Link else without

    for stored in (encoded, without):
        loaded = _deeper(300, partial(kind.load, stored))
        assert kind.encode(loaded) == encoded


@pytest.mark.parametrize("cls, levels", [(Node, 501), (Link, 501), (Tree, 251), (Node, 100_000)])
def test_a_state_that_is_too_deep_is_refused(cls: Any, levels: int) -> None:
    with pytest.raises(StateTypeError, match=r"more than 500 levels deep.* write a list"):
        StateType(cls).encode(_nested(cls, levels))


def test_values_of_the_types_of_their_fields_are_loaded_as_they_were() -> None:
    kind = StateType(Many)
    state = _many(
        when=datetime(2026, 7, 1, tzinfo=ZoneInfo("Europe/Berlin")),
        clock=time(1, tzinfo=UTC),
        children=[Child(1)],
        by_name={"x": Child(2)},
        counts={"x": 1},
        tags={"a", "b"},
        pair=(1, Child()),
        rest=(0.5,),
        marks={"x": 1},
    )

    for _ in range(2):  # also with types that are known
        assert kind.load(kind.encode(state)) == state


_Options: Any = dataclass(
    type(
        "Options",
        (),
        {"__annotations__": {f"f{n}": int | None for n in range(7)}}
        | dict.fromkeys([f"f{n}" for n in range(7)]),
    )
)


def test_a_class_with_many_optional_fields_is_stored_with_each_of_them() -> None:
    kind = StateType(_Options)

    for values in product((None, 1), repeat=7):
        state = _Options(*values)
        assert kind.load(kind.encode(state)) == state
    with pytest.raises(StateTypeError, match="f6"):
        kind.encode(_Options(1, 1, 1, 1, 1, 1, ""))


@dataclass
class Counted:
    text: str = ""
    uses: int = field(default=5, init=False)


@dataclass
class AllCounted:
    first: Counted = field(default_factory=Counted)
    counted: dict[str, Counted] = field(default_factory=dict)


def test_a_default_of_a_field_without_init_is_stored_at_once() -> None:
    kind, stored = StateType(AllCounted), {"text": "", "uses": 5}

    new = msgspec.msgpack.decode(kind.encode(kind.new()))
    changed = msgspec.msgpack.decode(kind.encode(AllCounted(counted={"a": Counted()})))

    assert new == {"first": stored, "counted": {}}
    assert changed == {"first": stored, "counted": {"a": stored}}


@dataclass(init=False)
class WithoutInit:
    text: str = ""
    uses: int = 5


@dataclass
class OwnInit:
    text: str = ""
    uses: int = 5

    def __init__(self, text: str = "") -> None:
        self.text = text


class OwnInitOfSubclass(Counted):
    def __init__(self) -> None:
        self.text = ""


@dataclass(init=False)
class InitOfBase(Child):
    uses: int = 5


@pytest.mark.parametrize("cls", [WithoutInit, OwnInit, OwnInitOfSubclass, InitOfBase])
def test_a_default_that_init_does_not_set_is_stored_at_once(cls: Any) -> None:
    kind = StateType(cls)

    assert msgspec.msgpack.decode(kind.encode(kind.new()))["uses"] == 5
    assert msgspec.msgpack.decode(kind.encode(cls()))["uses"] == 5


def test_a_default_that_init_sets_is_not_looked_for() -> None:
    kind, state = StateType(Version1), Version1(1)
    before = kind.encode(state)

    assert _calls(lambda: kind.encode(state, before)) <= 2


@dataclass
class Measured:
    value: float = 0
    values: list[float] = field(default_factory=list)
    maybe: float | None = None


@pytest.mark.parametrize(
    "state", [Measured(), Measured(21, [21, 21.5, -1], 2), Measured(0.5, [], 1.0)]
)
def test_an_int_in_the_field_of_a_float_is_loaded_as_a_float(state: Measured) -> None:
    kind = StateType(Measured)

    got = kind.load(kind.encode(state))

    assert got == state
    assert {type(each) for each in (got.value, *got.values)} == {float}


@dataclass
class Loose:
    value: float | None = 0
    values: list[float] = field(default_factory=list)
    table: dict[float, str] = field(default_factory=dict)
    level: float | Number = 0.0


@pytest.mark.parametrize(
    "number", [2**53 + 1, -(2**53) - 1, 2**63 + 1, pytest.param(2**1100, id="huge")]
)
@pytest.mark.parametrize("where", ["value", "values", "table"])
def test_an_int_that_no_float_is_equal_to_is_refused_in_the_field_of_a_float(
    where: str, number: int
) -> None:
    fields: dict[str, Any] = {"value": number, "values": [0.5, number], "table": {number: ""}}
    kind, text = StateType(Loose), "here is a float.* no float is equal to it: write int or Decimal"

    for _ in range(2):  # also with types that are known
        assert kind.again(kind.encode(Loose(2**53, [-(2**60)], {1: ""}))).value == 2.0**53
        with pytest.raises(StateTypeError, match=rf"{where}.*{text}"):
            kind.encode(Loose(**{where: fields[where]}))


def test_an_int_that_would_be_loaded_as_a_member_of_an_enum_is_refused() -> None:
    kind = StateType(Loose)
    assert kind.again(kind.encode(Loose(level=Number.ONE))).level is Number.ONE

    for number in (1, 2):
        with pytest.raises(StateTypeError, match=r"level: got \d, .* a int; .* write float\("):
            kind.encode(Loose(level=number))


@dataclass
class Half:
    amount: float = "0"  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]


def test_a_default_of_another_type_is_refused_when_the_class_is_defined() -> None:
    with pytest.raises(StateTypeError, match=r"Half\(\) has a wrong default: amount: got '0'"):
        StateType(Half)


@dataclass
class Growing:
    numbers: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.numbers.append(1)


@dataclass
class Surrogate:
    text: str = "\udc80"


@dataclass
class Counting:
    counts: dict[str, int] = field(default_factory=typing.Counter[str])


@pytest.mark.parametrize(
    "cls, text",
    [
        (Growing, "`__post_init__` changes values"),
        (Surrogate, "surrogates not allowed"),
        (Counting, r"counts: .* which is a Counter; here is a dict\[str, int\]"),
    ],
)
def test_a_first_state_that_is_loaded_as_another_is_refused_at_the_definition(
    cls: Any, text: str
) -> None:
    with pytest.raises(StateTypeError, match=rf"^{cls.__name__}\(\) has a wrong default: .*{text}"):
        StateType(cls)


ZERO: Any = 0


@dataclass
class PricedLine:
    text: str
    price: Decimal = ZERO


class PricedStruct(msgspec.Struct):
    text: str
    prices: list[Decimal] = msgspec.field(default_factory=lambda: [ZERO])


class PricedPoint(NamedTuple):
    text: str
    price: Decimal = ZERO


@dataclass
class PricedLater:
    text: str = ""
    price: Decimal = ZERO

    def __post_init__(self) -> None:
        self.text = self.text.strip()


@pytest.mark.parametrize("part", [PricedLine, PricedStruct, PricedPoint, PricedLater])
def test_a_wrong_default_of_a_part_is_refused_when_the_class_is_defined(part: Any) -> None:
    text = rf"Odd: {part.__name__} has a wrong default: price.*: got 0, .* here is a .*Decimal"

    with pytest.raises(StateTypeError, match=text):
        StateType(_with(list[part] | None))


@dataclass
class Replaced:
    numbers: list[int] = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]

    def __post_init__(self) -> None:
        self.numbers = self.numbers or []


@dataclass
class Unmade:
    text: str = ""
    numbers: list[int] = field(default_factory=lambda: [1 // 0])


@pytest.mark.parametrize("part", [Replaced, Unmade])
def test_a_default_that_is_replaced_or_cannot_be_made_is_left_alone(part: Any) -> None:
    StateType(_with(list[part] | None))


@dataclass
class Trimmed:
    name: str = ""
    tags: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.name = self.name.strip()
        if self.name == "?":
            raise LookupError(self.name)


def test_a_value_that_post_init_changes_is_refused_until_it_is_called() -> None:
    kind, state = StateType(Trimmed), Trimmed("a", set("abcdefgh"))
    assert kind.load(kind.encode(state)) == state
    state.name = " b "

    with pytest.raises(StateTypeError, match="`__post_init__` changes values"):
        kind.encode(state)
    state.__post_init__()
    assert kind.load(kind.encode(state)) == state


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
    kind = StateType(Wide)
    data = _encoded(_wide({"text": "x", "tax": 19}, list(range(1000))))

    assert 0 < _calls(lambda: kind.load(data)) < 1000


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
        ({"amount": 5, "colour": 1}, "unknown field 'colour'"),
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


@dataclass(frozen=True)
class Place:
    x: int = 0


class Corners(NamedTuple):
    place: Place
    corners: "Corners | None" = None


class Spot(msgspec.Struct, frozen=True, array_like=True):
    x: int = 0


@pytest.mark.parametrize("key", [Place, tuple[Place, ...], Corners, Place | None])
def test_a_key_that_is_stored_as_a_dict_is_refused(key: Any) -> None:
    with pytest.raises(StateTypeError, match=r"Odd.part: .* allowed is .* a NamedTuple"):
        StateType(_with(dict[key, int]))


class Numbered(NamedTuple):
    number: int = 0
    spot: Spot | None = None


@dataclass
class Spots:
    spots: dict[Numbered, int] = field(default_factory=dict)
    more: int = 0


def test_a_key_that_is_stored_as_a_list_is_loaded_also_by_another_version() -> None:
    stored = _encoded({"spots": {Numbered(1, Spot(2)): 3}})

    assert StateType(Spots).load(stored) == Spots({Numbered(1, Spot(2)): 3}, 0)


def test_any_exception_of_post_init_is_an_unreadable_state() -> None:
    for data in ({"name": "?"}, {"name": "?", "tags": []}):
        with pytest.raises(ValueError, match="LookupError: "):
            StateType(Trimmed).load(_encoded(data))


def test_bytes_that_are_no_state_are_refused() -> None:
    with pytest.raises(ValueError, match="truncated"):
        StateType(Upgraded).load(b"\x81")


def test_a_load_of_another_version_visits_only_differences() -> None:
    kind = StateType(Bill)
    lines = [{"text": str(number)} for number in range(500)]
    data = _encoded({"lines": lines, "notes": {"a": [{"text": "x", "tax": 1}] * 500}})

    assert _calls(lambda: kind.load(data)) < 6 * 1000  # those that complete each dataclass
    assert kind.load(data).lines[499] == Line("499", 19)


def test_an_unknown_field_far_inside_is_named() -> None:
    data: dict[str, Any] = {"colour": 1}
    for _ in range(200):
        data = {"branches": [data]}

    with pytest.raises(ValueError, match=r"unknown field '(branches\[0\]\.){200}colour"):
        StateType(Branch).load(_encoded(data))


@dataclass
class Emptied:
    table: dict[str, int] | None = None
    numbers: list[int] | None = None

    def __post_init__(self) -> None:
        self.table = self.numbers = None


@pytest.mark.parametrize("data", [{"table": {"a": 1}}, {"numbers": [1]}])
def test_data_that_post_init_drops_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"unknown field '{next(iter(data))}"):
        StateType(Emptied).load(_encoded(data))


def test_a_value_that_post_init_normalizes_is_loaded() -> None:
    assert StateType(Trimmed).load(_encoded({"name": " a "})) == Trimmed("a")


class Linked(NamedTuple):
    number: int = 0
    next: "Linked | None" = None


@dataclass
class Keyed:
    links: dict[Linked, int] = field(default_factory=dict)
    either: Annotated[time | Line | None, msgspec.Meta(title="either")] = None


def test_a_key_that_contains_itself_is_loaded() -> None:
    kind, state = StateType(Keyed), Keyed({Linked(1, Linked(2)): 3}, time(1))
    assert kind.load(kind.encode(state)) == state
    stored = kind.encode(kind.load(_encoded({"either": {"text": "x"}})))
    assert msgspec.msgpack.decode(stored)["either"] == {"text": "x", "tax": 19}


def test_a_state_that_was_not_changed_keeps_its_bytes() -> None:
    kind = StateType(Version1)
    before = kind.encode(Version1(5))

    assert kind.encode(Version1(5), before) is before


def test_a_name_that_is_not_known_at_run_time_is_refused() -> None:
    with pytest.raises(StateTypeError, match="import these names at run time"):
        StateType(_with("Elsewhere"))
