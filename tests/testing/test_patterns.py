"""The ways in which a test may describe a message."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergo_py.testing.patterns import assign, describe, matches


@pytest.mark.parametrize(
    "what, message, expected",
    [
        (int, 3, True),
        (int, "3", False),
        (int | str, "3", True),
        (3, 3, True),
        (3, 4, False),
        (lambda message: message > 3, 4, True),
        (lambda message: message > 3, 3, False),
    ],
)
def test_a_pattern_may_be_a_type_a_value_or_a_function(
    what: Any, message: object, expected: bool
) -> None:
    assert matches(what, message) is expected


def is_even(number: int) -> bool:
    return number % 2 == 0


def test_a_pattern_is_described_in_words() -> None:
    assert [describe(what) for what in (int, int | str, 3, is_even)] == [
        "an int",
        "int | str",
        "3",
        "a message that is_even accepts",
    ]


@given(st.lists(st.integers(0, 3), max_size=5), st.lists(st.integers(0, 3), max_size=5))
def test_patterns_are_assigned_if_and_only_if_the_messages_suffice(
    whats: list[int], messages: list[int]
) -> None:
    enough = all(messages.count(what) >= whats.count(what) for what in whats)

    places = assign(list(whats), list(messages))

    assert (places is not None) is enough
    if places is not None:
        assert [messages[place] for place in places] == whats
        assert len(set(places)) == len(places)


def test_a_general_pattern_makes_room_for_a_specific_pattern() -> None:
    places = assign([int, is_even, 2], [2, 4, 5])

    assert places == [2, 1, 0]
