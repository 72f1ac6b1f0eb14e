"""The order of turns, case by case; ``test_strategies.py`` tries all of it together against a
model.
"""

import pytest

from ergo_py import Actor, ChildSpec, Strategy
from ergo_py._core.vocabulary.info import Phase
from ergo_py.supervision.actions import Action, Start, Stop, Wake
from ergo_py.supervision.child import Child
from ergo_py.supervision.start_order import StartOrder


class Worker(Actor):
    pass


def family(names: str, phase: Phase = Phase.PENDING) -> list[Child]:
    children = [
        Child(name, ChildSpec(name, Worker), position) for position, name in enumerate(names)
    ]
    for child in children:
        child.phase = phase
    return children


def wait(order: StartOrder, child: Child, due: float) -> None:
    child.due = due
    order.wait(child)


def test_only_a_single_child_starts_at_a_time() -> None:
    order, (a, b) = StartOrder(Strategy.ONE_FOR_ONE), family("ab")
    wait(order, b, 0.0)
    wait(order, a, 0.0)

    first, meanwhile = order.take(0.0), order.take(0.0)
    a.started("pid", 0.0)
    second = order.take(0.0)

    assert (first, meanwhile, second) == ([Start("a")], [], [Start("b")])


def test_a_child_that_a_caller_waits_for_starts_first_and_at_once() -> None:
    order, (a, b) = StartOrder(Strategy.ONE_FOR_ONE), family("ab")
    wait(order, a, 0.0)
    wait(order, b, 10.0)

    order.go_first(b)
    actions = order.take(0.0)

    assert actions == [Start("b")]


def test_a_child_that_waits_again_loses_its_previous_place() -> None:
    order, (a, b) = StartOrder(Strategy.ONE_FOR_ONE), family("ab")
    wait(order, a, 10.0)
    wait(order, a, 21.0)
    wait(order, b, 16.0)

    waits, starts = order.take(1.0), order.take(16.0)

    assert (waits, starts) == ([Wake(16.0)], [Start("b")])


def test_the_wake_up_time_is_given_once_until_it_has_come() -> None:
    order, (a,) = StartOrder(Strategy.ONE_FOR_ONE), family("a")
    wait(order, a, 10.0)

    told, meanwhile = order.take(0.0), order.take(1.0)
    order.woken()
    too_early = order.take(9.9)

    assert (told, meanwhile, too_early) == ([Wake(10.0)], [], [Wake(10.0)])


@pytest.mark.parametrize(
    "strategy, expected",
    [
        (Strategy.ONE_FOR_ONE, [Start("b")]),
        (Strategy.REST_FOR_ONE, [Wake(5.0)]),
        (Strategy.ALL_FOR_ONE, [Wake(9.0)]),
    ],
)
def test_the_strategy_decides_which_children_wait_for_others(
    strategy: Strategy, expected: list[Action]
) -> None:
    order, (a, b, c) = StartOrder(strategy), family("abc")
    for child, due in ((c, 9.0), (a, 5.0), (b, 0.0)):
        wait(order, child, due)

    actions = order.take(1.0)

    assert actions == expected


def test_a_group_does_not_wait_for_a_child_that_is_no_longer_wanted() -> None:
    order, (a, b) = StartOrder(Strategy.ALL_FOR_ONE), family("ab")
    wait(order, a, 5.0)
    wait(order, b, 9.0)
    b.wanted = False

    actions = order.take(1.0)

    assert actions == [Wake(5.0)]


def test_a_group_is_stopped_in_reverse_order_before_any_child_starts() -> None:
    order, (a, b) = StartOrder(Strategy.ALL_FOR_ONE), family("ab", Phase.RUNNING)
    (failed,) = family("c")
    wait(order, failed, 0.0)
    order.cycle([a, b])

    first, meanwhile = order.take(0.0), order.take(0.0)
    order.leave_cycle(b)
    second = order.take(0.0)
    order.leave_cycle(a)
    third = order.take(0.0)

    assert (first, meanwhile) == ([Stop("b", returns=True)], [])
    assert second == [Stop("a", returns=True)]
    assert third == [Start("c")]


def test_a_child_that_joins_the_group_later_is_stopped_in_the_order_of_the_spec() -> None:
    order, (a, b, c) = StartOrder(Strategy.ALL_FOR_ONE), family("abc", Phase.RUNNING)
    order.cycle([b])
    order.cycle([a, c])

    first = order.take(0.0)

    assert first == [Stop("c", returns=True)]


def test_a_starting_child_is_stopped_with_its_siblings_when_it_runs() -> None:
    order, (a, b) = StartOrder(Strategy.ALL_FOR_ONE), family("ab", Phase.RUNNING)
    b.phase = Phase.STARTING
    order.cycle([a, b])

    before = order.take(0.0)
    b.started("pid", 0.0)
    after = order.take(0.0)

    assert (before, after) == ([], [Stop("b", returns=True)])


def test_the_order_is_new_until_all_children_have_started() -> None:
    order, (a,) = StartOrder(Strategy.ONE_FOR_ONE), family("a")
    wait(order, a, 0.0)

    order.take(0.0)
    before = order.is_new
    a.started("pid", 0.0)
    order.take(0.0)

    assert before
    assert not order.is_new
