"""Checkers find the faults of histories, and none in correct histories."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import pytest

from ergo_py import PID
from ergo_py.testing import World
from ergo_py.testing.world.history import History, Lifetime, Operation


class Put(NamedTuple):
    value: int


def history(
    *lives: tuple[str, float, float], pauses: Sequence[tuple[str, float, float]] = ()
) -> History:
    made = History(lambda: 20.0)
    for node, began, ended in lives:
        made.lifetimes.append(Lifetime("only", PID(node, 1, 1), node, began, ended))
    made.pauses.extend(pauses)
    return made


@pytest.mark.parametrize(
    "lives, is_right",
    [
        ([], True),
        ([("a", 0.0, inf)], True),
        ([("a", 0.0, 1.0), ("b", 1.0, inf)], True),
        ([("a", 0.0, 1.0), ("b", 0.999, inf)], False),
        ([("a", 0.0, inf), ("b", 5.0, 6.0)], False),
        ([("a", 0.0, 9.0), ("a", 1.0, 2.0), ("b", 3.0, 4.0)], False),
        ([("a", 0.0, 1.0), ("b", 2.0, 3.0), ("a", 3.0, 4.0)], True),
    ],
)
def test_lifetimes_on_two_nodes_must_not_overlap(
    lives: list[tuple[str, float, float]], is_right: bool
) -> None:
    found = list(World.at_most_one("only")(history(*lives)))

    assert (found == []) is is_right
    assert list(World.at_most_one("other")(history(*lives))) == []


def test_a_stopped_program_does_not_count_until_it_has_noticed() -> None:
    lives = ("a", 0.0, 10.5), ("b", 5.0, inf)
    check = World.at_most_one("only", grace=1.0)

    assert list(check(history(*lives, pauses=[("a", 4.0, 10.0)]))) == []
    assert list(check(history(*lives, pauses=[("a", 6.0, 10.0)])))
    assert list(check(history(*lives, pauses=[("a", 4.0, 9.0)])))
    assert list(check(history(("a", 0.0, inf), lives[1], pauses=[("a", 4.0, 19.5)]))) == []
    assert list(check(history(("a", 0.0, inf), lives[1], pauses=[("a", 4.0, 18.5)])))


def test_a_call_without_an_end_is_not_answered() -> None:
    made = history()
    made.operations += [
        Operation("a", "shop", Put(1), 0.0, 1.0, "done"),
        Operation("a", "shop", Put(2), 0.0, 1.0, None, TimeoutError()),
    ]
    assert list(World.all_answered()(made)) == []

    made.operations.append(Operation("a", "shop", Put(3), 2.0))
    assert len(list(World.all_answered()(made))) == 1


def test_a_confirmed_request_must_be_kept_and_others_may_be() -> None:
    made = history()
    made.operations += [
        Operation("a", "shop", Put(1), 0.0, 1.0, "done"),
        Operation("a", "shop", Put(2), 0.0, 1.0, None, TimeoutError()),
        Operation("a", "shop", "look", 0.0, 1.0, "seen"),
    ]

    assert list(World.kept(Put, lambda: [Put(1)])(made)) == []
    assert list(World.kept(Put, lambda: [Put(1), Put(2)])(made)) == []
    assert "Put(value=1)" in next(iter(World.kept(Put, lambda: [Put(2)])(made)))
    assert list(World.kept(lambda each: each.request == "look", list)(made))
