"""A child as its supervisor knows it, and how often it may come back."""

import pytest

from ergo_py import Actor, Backoff, ChildSpec
from ergo_py._core.vocabulary.info import Phase
from ergo_py.supervision.child import Child, Window


class Worker(Actor):
    pass


def test_the_repr_of_a_child_shows_its_name_and_phase() -> None:
    child = Child("a", ChildSpec("a", Worker), 0)
    before = repr(child)

    child.phase = Phase.RUNNING

    assert before == "<Child 'a' pending>"
    assert repr(child) == "<Child 'a' running>"


@pytest.mark.parametrize(
    "phase, wanted, is_waiting",
    [
        (Phase.PENDING, True, True),
        (Phase.BACKING_OFF, True, True),
        (Phase.PENDING, False, False),
        (Phase.RUNNING, True, False),
    ],
)
def test_a_child_that_is_down_waits_for_its_turn_if_it_is_wanted(
    phase: Phase, wanted: bool, is_waiting: bool
) -> None:
    child = Child("a", ChildSpec("a", Worker), 0)

    child.phase, child.wanted = phase, wanted

    assert child.is_waiting is is_waiting


def test_a_child_that_is_to_start_at_once_forgets_an_earlier_back_off() -> None:
    child = Child("a", ChildSpec("a", Worker, backoff=Backoff(10.0, 10.0)), 0)
    child.awaits_restart(1.0, lambda: 0.5)
    earlier = (child.phase, child.due > 5.0)

    child.awaits_start(2.0)

    assert earlier == (Phase.BACKING_OFF, True)
    assert (child.phase, child.due) == (Phase.PENDING, 2.0)


@pytest.mark.parametrize("later, admitted", [(5.0, False), (5.1, True)])
def test_a_restart_counts_until_its_period_is_over(later: float, admitted: bool) -> None:
    window = Window(1, 5.0)
    first = window.admits(1.0)

    second = window.admits(1.0 + later)

    assert first
    assert second is admitted
