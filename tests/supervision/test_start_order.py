"""Whose turn it is, one case at a time; ``test_strategies.py`` tries all of it together against a
model.
"""

import pytest

from ergo_py import ALL_FOR_ONE, ONE_FOR_ONE, REST_FOR_ONE, Actor, ChildSpec, Phase, Strategy
from ergo_py.supervision.actions import Action, Start, Stop, Wake
from ergo_py.supervision.child import Child
from ergo_py.supervision.start_order import Turns


class Worker(Actor):
    pass


def family(names: str, phase: Phase = Phase.PENDING) -> list[Child]:
    children = [
        Child(name, ChildSpec(name, Worker), position) for position, name in enumerate(names)
    ]
    for child in children:
        child.phase = phase
    return children


def taken(turns: Turns, now: float) -> list[Action]:
    actions: list[Action] = []
    turns.take(now, actions)
    return actions


def test_one_starts_at_a_time() -> None:
    turns, (a, b) = Turns(ONE_FOR_ONE), family("ab")
    turns.wait(b, 0.0)
    turns.wait(a, 0.0)

    first, meanwhile = taken(turns, 0.0), taken(turns, 0.0)
    turns.starting = None
    second = taken(turns, 0.0)

    assert (first, meanwhile, second) == ([Start("a")], [], [Start("b")])


def test_one_that_somebody_waits_for_starts_before_all_others_and_at_once() -> None:
    turns, (a, b) = Turns(ONE_FOR_ONE), family("ab")
    turns.wait(a, 0.0)
    turns.wait(b, 10.0)

    turns.go_first(b)
    actions = taken(turns, 0.0)

    assert actions == [Start("b")]


def test_one_that_waits_anew_does_not_keep_the_place_that_it_had_in_line() -> None:
    turns, (a, b) = Turns(ONE_FOR_ONE), family("ab")
    turns.wait(a, 10.0)
    turns.wait(a, 21.0)
    turns.wait(b, 16.0)

    waits, starts = taken(turns, 1.0), taken(turns, 16.0)

    assert (waits, starts) == ([Wake(16.0)], [Start("b")])


def test_when_to_come_back_is_said_once_until_that_time_has_come() -> None:
    turns, (a,) = Turns(ONE_FOR_ONE), family("a")
    turns.wait(a, 10.0)

    told, meanwhile = taken(turns, 0.0), taken(turns, 1.0)
    turns.woken()
    too_early = taken(turns, 9.9)

    assert (told, meanwhile, too_early) == ([Wake(10.0)], [], [Wake(10.0)])


@pytest.mark.parametrize(
    "strategy, expected",
    [(ONE_FOR_ONE, [Start("b")]), (REST_FOR_ONE, [Wake(5.0)]), (ALL_FOR_ONE, [Wake(9.0)])],
)
def test_who_waits_for_whom_depends_on_the_strategy(
    strategy: Strategy, expected: list[Action]
) -> None:
    turns, (a, b, c) = Turns(strategy), family("abc")
    for child, due in ((c, 9.0), (a, 5.0), (b, 0.0)):
        turns.wait(child, due)

    actions = taken(turns, 1.0)

    assert actions == expected


def test_a_group_does_not_wait_for_one_that_is_not_wanted_any_more() -> None:
    turns, (a, b) = Turns(ALL_FOR_ONE), family("ab")
    turns.wait(a, 5.0)
    turns.wait(b, 9.0)
    b.wanted = False

    actions = taken(turns, 1.0)

    assert actions == [Wake(5.0)]


def test_a_group_is_stopped_one_by_one_from_its_end_before_anybody_starts() -> None:
    turns, (a, b) = Turns(ALL_FOR_ONE), family("ab", Phase.RUNNING)
    (failed,) = family("c")
    turns.wait(failed, 0.0)
    turns.cycle([a, b])

    first, meanwhile = taken(turns, 0.0), taken(turns, 0.0)
    turns.leave_cycle(b)
    second = taken(turns, 0.0)
    turns.leave_cycle(a)
    third = taken(turns, 0.0)

    assert (first, meanwhile) == ([Stop("b", returns=True)], [])
    assert second == [Stop("a", returns=True)]
    assert third == [Start("c")]


def test_one_whose_start_is_under_way_is_stopped_with_its_siblings_when_it_runs() -> None:
    turns, (a, b) = Turns(ALL_FOR_ONE), family("ab", Phase.RUNNING)
    b.phase, turns.starting = Phase.STARTING, b
    turns.cycle([a, b])

    before = taken(turns, 0.0)
    b.phase, turns.starting = Phase.RUNNING, None
    after = taken(turns, 0.0)

    assert (before, after) == ([], [Stop("b", returns=True)])


def test_it_is_new_until_everybody_has_been_started() -> None:
    turns, (a,) = Turns(ONE_FOR_ONE), family("a")
    turns.wait(a, 0.0)

    taken(turns, 0.0)
    before, turns.starting = turns.is_new, None
    taken(turns, 0.0)

    assert before
    assert not turns.is_new
