"""Closed classes: encoded as a whole, and equal in value and type on arrival as all others."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergo_py import Request
from ergo_py.network.messages.closed_types import MARK, closed_type
from ergo_py.network.messages.listed_class import UnreadableValueError
from ergo_py.network.messages.message_types import MessageTypes


@dataclass(frozen=True, slots=True)
class Scalars:
    """All kinds of fields of a closed class."""

    number: int
    rate: float = 0.5
    text: str | None = None
    data: bytes = b""
    flag: bool = False
    either: int | float = 0
    lines: list[int] = field(default_factory=list)
    nothing: None = None


@dataclass(frozen=True)
class Empty(Request[int]):
    """A request without fields."""


class Packed(msgspec.Struct):
    """A Struct."""

    width: int
    name: str = ""


def is_closed(types: MessageTypes, value: object) -> bool:
    return types.encode(value)[0] == MARK


SCALARS: Any = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
)


@given(st.tuples(*[SCALARS] * 6), st.lists(SCALARS, max_size=3), SCALARS)
def test_any_value_in_any_field_arrives_equal_in_type(
    values: tuple[Any, ...], lines: list[Any], last: Any
) -> None:
    types = MessageTypes([Scalars])
    make: Any = Scalars
    sent = make(*values, lines, last)
    try:
        got = types.decode(types.encode(sent))
    except UnreadableValueError:
        # A value of another type than the annotation is unreadable, if it does not arrive as it is.
        assert not is_closed(types, sent)
        return

    assert got == sent
    assert [type(getattr(got, name)) for name in Scalars.__slots__] == [
        type(getattr(sent, name)) for name in Scalars.__slots__
    ]
    assert [*map(type, got.lines)] == [*map(type, lines)]


@pytest.mark.parametrize(
    "value",
    [Scalars(1, 2.0, "x", b"y", True, 3.0, [4]), Scalars(1), Empty(), Packed(3, "x")],
    ids=repr,
)
def test_an_instance_with_values_that_fit_is_closed(value: object) -> None:
    types = MessageTypes([Scalars, Empty, Packed])

    assert is_closed(types, value)
    assert types.decode(types.encode(value)) == value
    assert type(types.decode(memoryview(types.encode(value)))) is type(value)


@pytest.mark.parametrize(
    "value",
    [Scalars(True), Scalars(1, 2), Scalars(1, lines=[1, True]), Scalars(1, lines=[2.0])],  # type: ignore[list-item] # pyright: ignore[reportArgumentType]
    ids=repr,
)
def test_an_instance_with_another_value_is_not_closed(value: object) -> None:
    assert not is_closed(MessageTypes([Scalars]), value)


def test_attributes_that_are_no_fields_do_not_travel() -> None:
    @dataclass
    class Cached:
        number: int

        @cached_property
        def double(self) -> int:
            return 2 * self.number

    types = MessageTypes([Cached])
    sent = Cached(2)
    assert sent.double == 4
    got = types.decode(types.encode(sent))

    assert is_closed(types, sent)
    assert vars(got) == {"number": 2}


def class_with(**fields: Any) -> type:
    made: type = dataclass(type("Changed", (), {"__annotations__": fields}))
    return made


@pytest.mark.parametrize(
    "here, there, is_read",
    [
        ({"a": int, "b": int}, {"a": int}, True),
        ({"a": int}, {"a": int | None}, True),
        ({"a": int}, {"a": object}, True),
        ({"a": int}, {"a": str}, False),
        ({"a": int}, {"a": int, "b": int}, False),
        ({"a": list[int]}, {"a": list[str]}, True),
        ({"a": list[int]}, {"a": int}, False),
    ],
)
def test_a_class_of_another_version_is_read_field_by_field(
    here: Any, there: Any, is_read: bool
) -> None:
    sent = class_with(**here)(*([[1]] if "list" in str(here) else [1] * len(here)))
    types = MessageTypes([type(sent)])
    data = types.encode(sent)
    assert data[0] == MARK
    receiver = MessageTypes([class_with(**there)])
    if is_read:
        assert receiver.decode(data).a == sent.a
    else:
        with pytest.raises(UnreadableValueError, match="Changed"):
            receiver.decode(data)


def test_a_closed_class_that_the_receiver_does_not_list_is_named() -> None:
    data = MessageTypes([Scalars]).encode(Scalars(1))

    with pytest.raises(UnreadableValueError, match="the type 'Scalars' is not in this node's"):
        MessageTypes().decode(data)


@pytest.mark.parametrize("rest", [b"", b"\x00", b"\xff", b"\x07Scalars", b"\x07Scalars\xc1"])
def test_bytes_that_are_cut_short_are_unreadable(rest: bytes) -> None:
    with pytest.raises(UnreadableValueError):
        MessageTypes([Scalars]).decode(bytes((MARK,)) + rest)


def test_an_integer_of_more_than_64_bits_is_refused() -> None:
    with pytest.raises(TypeError, match=r"ints < -2\*\*63 or > 2\*\*64 - 1"):
        MessageTypes([Scalars]).encode(Scalars(2**70))


class Tagged(msgspec.Struct, tag=True):
    """A Struct whose encoding is not a map of its fields only."""

    a: int


class Renamed(msgspec.Struct, rename="camel"):
    """A Struct with other names on the wire."""

    first_field: int


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    """A Struct that refuses the fields of a later version."""

    a: int


@dataclass(init=False)
class OwnInit:
    """A class with a constructor of its own."""

    a: int

    def __init__(self, a: int) -> None:
        self.a = a


@dataclass
class OwnNew:
    """A class that makes its instances in its own way."""

    a: int

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(cls)


@dataclass
class Unknown:
    """A class with an annotation for type checkers only."""

    a: "Missing"  # type: ignore[name-defined] # noqa: F821 # pyright: ignore[reportUndefinedVariable]


@pytest.mark.parametrize("cls", [Tagged, Renamed, Strict, OwnInit, OwnNew, Unknown])
def test_an_unusual_class_takes_the_general_way(cls: Any) -> None:
    types = MessageTypes([cls])
    sent = cls(1)

    assert not is_closed(types, sent)
    got = types.decode(types.encode(sent))
    assert type(got) is cls
    names = getattr(cls, "__struct_fields__", ("a",))
    assert [getattr(got, name) for name in names] == [1]


def test_a_very_long_name_takes_the_general_way() -> None:
    assert closed_type(Scalars, "x" * 256, ("number",)) is None


@dataclass
class Base:
    """A closed class."""

    x: int = 0


class Checked(Base):
    """A subclass whose constructor refuses values."""

    def __init__(self, x: int = 0) -> None:
        if x < 0:
            raise ValueError(f"negative: {x}")
        super().__init__(x)


@dataclass
class Decorated:
    """A dataclass that defines its constructor itself, which `dataclass` keeps."""

    x: int = 0

    def __init__(self, x: int = 0) -> None:
        if x < 0:
            raise ValueError(f"negative: {x}")
        self.x = x


class Inherited(Base):
    """A subclass without a constructor of its own."""


made: list[int] = []


@dataclass
class Counted:
    """Counts its instances, and refuses some."""

    x: int = 0

    def __post_init__(self) -> None:
        made.append(self.x)
        if self.x < 0:
            raise ValueError(f"negative: {self.x}")


@pytest.mark.parametrize("cls", [Checked, Decorated, Counted])
def test_an_instance_arrives_by_the_constructor_of_its_class(cls: Any) -> None:
    types = MessageTypes([cls])
    wrong = cls()
    wrong.x = -5

    assert types.decode(types.encode(cls(5))).x == 5
    with pytest.raises(UnreadableValueError, match="cannot be made: ValueError"):
        types.decode(types.encode(wrong))


def test_the_check_of_a_class_runs_once_for_an_instance_that_arrives() -> None:
    types = MessageTypes([Counted])
    wrong = Counted()
    wrong.x = -5
    data = types.encode(wrong)
    made.clear()

    with pytest.raises(UnreadableValueError):
        types.decode(data)
    assert made == [-5]


def test_classes_with_a_generated_constructor_stay_closed() -> None:
    types = MessageTypes([Base, Inherited])

    assert is_closed(types, Base(1))
    assert is_closed(types, Inherited(1))
    assert type(types.decode(types.encode(Inherited(1)))) is Inherited
