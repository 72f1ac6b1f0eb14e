from array import array
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from ergo_py._core.vocabulary.text import brief, printable, shortened, shown, text_of, type_of


class Raises:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __repr__(self) -> str:
        raise self.error

    __str__ = __repr__


@pytest.mark.parametrize("error", [RuntimeError("no"), GeneratorExit(), SystemExit(3)], ids=repr)
def test_a_value_with_a_failing_str_or_repr_is_replaced_by_a_remark(error: BaseException) -> None:
    assert text_of(Raises(error)) == "<its __str__ raised>"
    assert shown(Raises(error)) == "<Raises: its __repr__ raised>"


@pytest.mark.parametrize("function", [text_of, shown])
def test_ctrl_c_is_passed_on(function: Callable[[object], str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        function(Raises(KeyboardInterrupt()))


def test_values_are_shown_unchanged() -> None:
    assert text_of("five") == "five"
    assert shown("five") == "'five'"


@pytest.mark.parametrize(
    "text,safe",
    [
        ("grüße, 世界", "grüße, 世界"),
        ("two\nlines\r", r"two\nlines\r"),
        ("\x1b[2J\x9b\u2028\u202e\ud800", r"\x1b[2J\x9b\u2028\u202e\ud800"),
    ],
)
def test_line_ends_and_cursor_movements_are_escaped(text: str, safe: str) -> None:
    assert printable(text) == safe


# -- no more than is shown -------------------------------------------------------------------------


@dataclass
class Basket:
    owner: str
    items: list[Any] = field(default_factory=list)
    secret: str = field(default="secret", repr=False)


@dataclass
class Terse:
    number: int

    def __repr__(self) -> str:
        return "terse"


class Point(NamedTuple):
    x: int
    y: Any


class Listing(list[int]):
    """Has no ``__repr__`` of its own, but may have had such a method."""


LOOP: list[Any] = [1]
LOOP.append(LOOP)
RING: dict[str, Any] = {"around": [2]}
RING["around"].append(RING)


@pytest.mark.parametrize(
    "value",
    [
        1,
        None,
        1.5,
        int,
        "it's\n",
        b"x",
        bytearray(b"x"),
        [],
        [1, [2]],
        (),
        (1,),
        (1, 2),
        {},
        {1: {"a": (2,)}, (1, 2): 3},
        set(),
        {1},
        frozenset(),
        frozenset({1}),
        deque(),
        deque([1]),
        deque([1], maxlen=4),
        defaultdict(list, {1: [2]}),
        array("d"),
        array("d", [1.5]),
        SimpleNamespace(a=1, b=[2]),
        Basket("me", [Basket("you")]),
        Basket,
        Terse(1),
        Point(1, [2]),
        Listing([1]),
        LOOP,
        RING,
    ],
    ids=repr,
)
def test_the_brief_text_of_a_short_value_is_its_repr(value: object) -> None:
    assert brief(value, 1_000) == repr(value)


def test_an_ordered_dict_is_shown_the_same_on_every_python() -> None:
    assert brief(OrderedDict(a=1), 1_000) == "OrderedDict({'a': 1})"


class Counting(int):
    """Counts how often it is asked for its text."""

    asked = 0

    def __repr__(self) -> str:
        Counting.asked += 1
        return "1"


MILLION = [Counting(1)] * 1_000_000


@pytest.mark.parametrize(
    "value, size",
    [
        (MILLION, " (1000000 items)"),
        (tuple(MILLION), " (1000000 items)"),
        (deque(MILLION), " (1000000 items)"),
        (dict.fromkeys(range(100_000), Counting(1)), " (100000 items)"),
        ([[MILLION], 2], " (2 items)"),
        ({"a": MILLION}, " (1 items)"),
        (defaultdict(list, {"a": MILLION}), " (1 items)"),
        (Basket("me", MILLION), ""),
        (Point(1, MILLION), " (2 items)"),
        (SimpleNamespace(a=MILLION), ""),
        (array("b", bytes(1_000_000)), " (1000000 items)"),
        ("x" * 1_000_000, " (1000000 characters)"),
        (b"x" * 1_000_000, " (1000000 characters)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_brief_text_of_a_large_value_reads_no_more_than_it_shows(
    value: object, size: str
) -> None:
    Counting.asked = 0

    text = brief(value, 100)

    assert text.endswith(f"…{size}")
    assert text.index("…") == 100
    assert Counting.asked <= 100


def test_a_deeply_nested_value_is_cut_without_an_error() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]

    assert brief(value, 1_000) == "[" * 51 + "..." + "]" * 51


def test_the_error_of_a_text_is_not_hidden() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise LookupError("no")

    with pytest.raises(LookupError):
        brief([Broken()], 100)


def test_a_long_line_and_a_long_text_lose_their_middle() -> None:
    short = "a" * 1000
    assert shortened(short) is short
    assert shortened("x" + short) == f"x{short[:499]} [… 1 characters …] {short[:500]}"
    assert shortened(f"first\n{'b' * 1500}\nlast").splitlines()[::2] == ["first", "last"]

    many = "\n".join(f"line {number}" for number in range(10_000))
    cut = shortened(many)
    assert cut.startswith("line 0\nline 1\n")
    assert cut.endswith("\nline 9999")
    assert "characters …]" in cut
    assert len(cut) < 20_100


class Wrapped:
    """A request that carries another, such as a command with an id."""

    __carries_request__ = True

    def __init__(self, request: object) -> None:
        self.request = request


def test_a_request_that_carries_another_request_has_its_type() -> None:
    assert type_of(Wrapped(Wrapped(1.5))) == "float"
    assert type_of(Wrapped) == "type"


def test_a_request_that_carries_itself_has_its_own_type() -> None:
    request = Wrapped(None)
    request.request = request

    assert type_of(request) == "Wrapped"
