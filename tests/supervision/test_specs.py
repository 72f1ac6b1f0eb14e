"""Specs check themselves: a mistake is found before anything starts, and the error shows a valid
value.
"""

import math
from functools import partial
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergo_py import (
    Actor,
    Backoff,
    BadInputError,
    ChildSpec,
    Overflow,
    RestartPolicy,
    Strategy,
    Supervisor,
    SupervisorSpec,
)
from ergo_py.errors import BehaviourError
from ergo_py.supervision import AutoShutdown, Budget, Fate, Redirect


class Worker(Actor):
    def __init__(self, number: int = 0) -> None:
        self.number = number


def test_a_child_has_sensible_defaults() -> None:
    spec = ChildSpec("a", Worker, 5)

    assert (spec.name, spec.behaviour, spec.args) == ("a", Worker, (5,))
    assert (spec.restart, spec.shutdown, spec.significant, spec.backoff) == (
        RestartPolicy.PERMANENT,
        5.0,
        False,
        None,
    )
    assert spec.options.name == "a"


def test_a_supervisor_as_a_child_may_take_as_long_as_its_own_children_need() -> None:
    spec = ChildSpec("a", Supervisor, [])

    assert spec.shutdown == inf
    assert spec.options.init_timeout == math.inf
    assert ChildSpec("a", Supervisor, [], shutdown=3.0).shutdown == 3.0


def test_further_options_are_those_of_spawn() -> None:
    spec = ChildSpec(
        "a", partial(Worker, number=5), mailbox_size=3, overflow=Overflow.WAIT, register=False
    )

    assert (spec.options.mailbox_size, spec.options.overflow, spec.options.name) == (
        3,
        Overflow.WAIT,
        None,
    )
    assert spec.cls is Worker


def test_a_spec_does_not_print_its_arguments_which_may_hold_secrets() -> None:
    assert "swordfish" not in repr(
        ChildSpec("a", partial(Worker), 5, env={"password": "swordfish"})
    )
    assert "12345" not in repr(ChildSpec("a", Worker, 12345))


def test_the_same_child_under_another_name_is_otherwise_the_same() -> None:
    spec = ChildSpec("a", Worker, 5, mailbox=Fate.KEEP, mailbox_size=3)

    other = spec.named("b")

    assert (other.name, other.options.name, other.args, other.mailbox) == (
        "b",
        "b",
        (5,),
        Fate.KEEP,
    )
    assert spec.name == "a"
    with pytest.raises(BadInputError):
        spec.named("")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "not empty"),
    ({"name": 5}, "not empty"),
    ({"restart": "always"}, "PERMANENT, TRANSIENT or TEMPORARY"),
    ({"shutdown": -1}, "shutdown"),
    ({"shutdown": math.nan}, "shutdown"),
    ({"shutdown": "soon"}, "shutdown"),
    ({"backoff": 1.0}, "Backoff(first, ceiling"),
    ({"budget": 3}, "Budget(restarts, period)"),
    ({"significant": 1, "restart": RestartPolicy.TRANSIENT}, "True or False"),
    ({"significant": True}, "make it TRANSIENT or TEMPORARY"),
    ({"significant": True, "restart": RestartPolicy.PERMANENT}, "make it TRANSIENT or TEMPORARY"),
    ({"decide": "restart"}, "a function from an exception"),
    ({"mailbox": "keep"}, "Redirect(name)"),
    ({"mailbox": Redirect}, "Redirect(name)"),
    ({"max_waiters": -1}, "max_waiters"),
    ({"max_waiters": 1.5}, "max_waiters"),
    ({"register": "yes"}, "True or False"),
    ({"mailbox_size": 0}, "mailbox_size"),
    ({"overflow": "drop"}, "overflow"),
    ({"init_timeout": -1}, "init_timeout"),
    ({"restrat": RestartPolicy.PERMANENT}, "restart"),
    ({"link": True}, "Behaviour.spec"),
]


@pytest.mark.parametrize("options, word", WRONG, ids=str)
def test_the_error_about_an_invalid_child_spec_suggests_valid_values(
    options: dict[str, Any], word: str
) -> None:
    given = {"name": "a", "behaviour": Worker, **options}

    with pytest.raises(BadInputError) as caught:
        ChildSpec(given.pop("name"), given.pop("behaviour"), **given)

    assert word in str(caught.value)


@pytest.mark.parametrize("behaviour", [Worker(5), 5, object, lambda: Worker(5), None])
def test_a_behaviour_that_is_no_behaviour_class_is_refused(behaviour: Any) -> None:
    with pytest.raises(BehaviourError) as caught:
        ChildSpec("a", behaviour)

    assert "ChildSpec('a', behaviour)" in str(caught.value)


@pytest.mark.parametrize("to", ["", 5, None])
def test_a_redirect_needs_a_name(to: Any) -> None:
    with pytest.raises(BadInputError):
        Redirect(to)


CHILD = ChildSpec("a", Worker)


@pytest.mark.parametrize(
    "options",
    [
        {"children": "abc"},
        {"children": CHILD},
        {"children": [Worker]},
        {"children": [CHILD, CHILD]},
        {"strategy": "one_for_one"},
        {"intensity": -1},
        {"intensity": 1.5},
        {"intensity": True},
        {"period": 0},
        {"period": -1.0},
        {"period": math.nan},
        {"auto_shutdown": None},
        {"auto_shutdown": "never"},
        {"max_children": 0},
        {"max_children": True},
        {"max_children": 1, "children": [CHILD, CHILD.named("b")]},
        {
            "auto_shutdown": AutoShutdown.NEVER,
            "children": [ChildSpec("a", Worker, significant=True, restart=RestartPolicy.TEMPORARY)],
        },
        {"strategy": Strategy.SIMPLE_ONE_FOR_ONE},
        {"strategy": Strategy.SIMPLE_ONE_FOR_ONE, "children": [CHILD, CHILD.named("b")]},
        {
            "strategy": Strategy.SIMPLE_ONE_FOR_ONE,
            "children": [ChildSpec("a", Worker, significant=True, restart=RestartPolicy.TEMPORARY)],
        },
    ],
    ids=str,
)
def test_an_invalid_supervisor_spec_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadInputError):
        SupervisorSpec(**options)


def test_a_supervisor_has_sensible_defaults_and_takes_any_sequence() -> None:
    spec = SupervisorSpec((CHILD,))

    assert (spec.strategy, spec.intensity, spec.period, spec.auto_shutdown) == (
        Strategy.ONE_FOR_ONE,
        3,
        5.0,
        AutoShutdown.LAST_CHILD,
    )
    assert spec.max_children is None
    assert list(spec.children) == [CHILD]


def test_a_bool_is_short_for_the_usual_kinds_of_automatic_shutdown() -> None:
    chosen = [SupervisorSpec((CHILD,), auto_shutdown=flag).auto_shutdown for flag in (True, False)]

    assert chosen == [AutoShutdown.LAST_CHILD, AutoShutdown.ANY_SIGNIFICANT]


@pytest.mark.parametrize(
    "options",
    [
        {"first": -1},
        {"first": 2.0, "ceiling": 1.0},
        {"factor": 0.5},
        {"jitter": 1.5},
        {"jitter": -0.1},
        {"healthy": -1},
        {"ceiling": math.nan},
        {"until_started": 1},
        {"until_started": True, "first": 0.0},
    ],
    ids=str,
)
def test_an_invalid_back_off_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadInputError):
        Backoff(**{"first": 0.1, "ceiling": 1.0, **options})


@pytest.mark.parametrize("options", [{"restarts": -1}, {"restarts": 1.5}, {"period": 0}], ids=str)
def test_an_invalid_budget_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadInputError):
        Budget(**{"restarts": 1, "period": 1.0, **options})


@given(
    first=st.floats(0, 100),
    more=st.floats(0, 1000),
    factor=st.floats(1, 100),
    jitter=st.floats(0, 1),
    tries=st.integers(0, 10_000),
    chance=st.floats(0, 1),
)
def test_a_delay_grows_to_the_ceiling_and_jitter_only_shortens_it(
    first: float, more: float, factor: float, jitter: float, tries: int, chance: float
) -> None:
    backoff = Backoff(first, first + more, factor, jitter)

    delay = backoff.delay(tries, chance)

    full = backoff.delay(tries, 0.0)
    assert first * 0.999999 <= full <= backoff.ceiling or first == 0.0
    assert full * (1 - jitter) * 0.999999 <= delay <= full
    assert backoff.delay(tries + 1, 0.0) >= full


def test_brutal_and_infinite_are_shutdown_times() -> None:
    assert (0.0, math.inf) == (0.0, inf)
