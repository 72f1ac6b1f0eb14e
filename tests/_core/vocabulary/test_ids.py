import pickle
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergo_py._core.vocabulary.ids import (
    PID,
    Alias,
    EventName,
    Key,
    Name,
    NodeName,
    Ref,
    local_name,
    name_in,
)

KINDS = (PID, Alias, Ref)


@pytest.mark.parametrize("kind", KINDS)
def test_an_identifier_cannot_be_changed(kind: type[PID | Alias | Ref]) -> None:
    one = kind("demo@localhost", 7, 1)

    for attribute in ("node", "creation", "number", "colour"):
        with pytest.raises(AttributeError):
            setattr(one, attribute, 2)

    assert one == kind("demo@localhost", 7, 1)


@pytest.mark.parametrize(
    "kind, fields",
    [
        (PID, ("demo@localhost", 7, 1)),
        (Name, ("stock", "shop@paris")),
        (Key, ("users", "ada", "demo@localhost", "key")),
    ],
)
def test_the_class_in_an_address_is_for_type_checkers_only(
    kind: Any, fields: tuple[object, ...]
) -> None:
    plain, typed = kind(*fields), kind[int](*fields)

    assert type(typed) is kind
    assert typed == plain == fields
    assert (hash(typed), repr(typed)) == (hash(fields), repr(plain))
    assert pickle.dumps(typed) == pickle.dumps(plain)
    assert msgspec.msgpack.encode(typed) == msgspec.msgpack.encode(fields)
    assert msgspec.convert(fields, kind[int]) == plain
    assert not hasattr(typed, "__dict__")


@given(kinds=st.lists(st.sampled_from(KINDS), max_size=30))
def test_identifiers_of_a_node_are_never_equal_for_any_kinds(
    kinds: list[type[PID | Alias | Ref]],
) -> None:
    numbers, references = count(1), count(1)

    made = [
        kind("demo@localhost", 7, next(references if kind is Ref else numbers)) for kind in kinds
    ]

    assert len(set(made)) == len(made)
    assert all(one != other for i, one in enumerate(made) for other in made[:i])


@given(numbers=st.lists(st.integers(0, 2**64), unique=True))
def test_identifiers_sort_in_the_order_they_were_made(numbers: list[int]) -> None:
    made = [PID("demo@localhost", 7, number) for number in numbers]

    assert [pid.number for pid in sorted(made)] == sorted(numbers)


def test_equal_identifiers_find_the_same_entry_of_a_table() -> None:
    table = {PID("demo@localhost", 7, 1): "here"}

    assert table[PID("demo@localhost", 7, 1)] == "here"


def test_another_start_of_the_node_makes_another_identifier() -> None:
    earlier, later = PID("demo@localhost", 7, 1), PID("demo@localhost", 8, 1)

    assert earlier != later
    assert earlier < later


def test_a_name_never_equals_a_node_or_an_event_of_that_name() -> None:
    names: list[object] = [
        Name("db"),
        Name("db", "demo@localhost"),
        NodeName("db"),
        NodeName("demo@localhost"),
        EventName("db"),
        EventName("db", "demo@localhost"),
    ]

    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "identifier, text",
    [
        (PID("demo@localhost", 7, 12), "<PID 12 demo@localhost>"),
        (Alias("demo@localhost", 7, 12), "<Alias 12 demo@localhost>"),
        (Ref("demo@localhost", 7, 12), "<Ref 12 demo@localhost>"),
        (Name("db"), "Name('db')"),
        (Name("db", "demo@localhost"), "Name('db', 'demo@localhost')"),
        (NodeName("demo@localhost"), "NodeName(node='demo@localhost')"),
        (EventName("prices"), "EventName('prices')"),
        (EventName("prices", "demo@localhost"), "EventName('prices', 'demo@localhost')"),
    ],
)
def test_an_identifier_has_a_readable_text(identifier: object, text: str) -> None:
    assert repr(identifier) == text
    assert str(identifier) == text


@pytest.mark.parametrize(
    "address, name, here",
    [
        ("store", "store", "store"),
        (Name("store"), "store", "store"),
        (Name("store", "b@site"), "store", None),
        (PID("demo@localhost", 7, 1), None, None),
    ],
)
def test_an_address_may_have_a_registered_name(
    address: object, name: str | None, here: str | None
) -> None:
    assert (name_in(address), local_name(address)) == (name, here)
