from dataclasses import FrozenInstanceError, fields
from inspect import signature
from math import inf, nan
from typing import Any, get_type_hints

import pytest

from ergo_py import LOOP, Threads
from ergo_py._core.node_lifecycle import NodeKeywords, open_node
from ergo_py._core.vocabulary.envelopes import Divert, Overflow, Priority
from ergo_py._core.vocabulary.errors import BadInputError
from ergo_py._core.vocabulary.options import (
    DEFAULTS,
    LEVELS,
    META_DEFAULTS,
    Behind,
    MetaKeywords,
    MetaOptions,
    Options,
    SpawnKeywords,
    check_level,
    check_name,
    check_number,
    read_meta_options,
    read_options,
)

NO_TIMES = [-1, -0.001, nan, -inf, "5", None, True, 5j, [5], 10**400]
NO_SIZES = [0, -1, 1.0, inf, "5", True, [5]]
NO_LEVELS = ["", "loud", "INFO", 20, b"info"]

# Keyword, invalid values, and the allowed values that the error names.
BAD: list[tuple[str, list[Any], str]] = [
    ("name", ["", 5, b"db", ["db"]], "a str that is not empty"),
    ("link", ["no", 0, None], "True or False"),
    ("mailbox_size", NO_SIZES, "a whole number from 1 up"),
    ("overflow", ["raise", 0, None, Overflow, Divert], "a member of Overflow, or Divert(to=name)"),
    ("priority", [0, 1, "high", None, Priority], "Priority.NORMAL, Priority.HIGH or Priority.MAX"),
    ("init_timeout", NO_TIMES, "a number from 0 up"),
    ("terminate_timeout", NO_TIMES, "a number from 0 up"),
    ("shutdown", NO_TIMES, "a number from 0 up"),
    ("env", ["key=value", [("key", "value")], 5], "a mapping from names to values"),
    ("log_level", NO_LEVELS, "one of debug, info, warning, error, critical, off"),
    (
        "dispatcher",
        ["loop", None, Threads, Threads],
        "LOOP, Threads(), Threads(cpu=…), Threads(name, size) or Threads.MAIN",
    ),
    (
        "order",
        ["urgency", 5, len],  # a function needs a bounded mailbox, too
        "a function from a message to its key, together with mailbox_size=… and without a "
        "dispatcher: a message is sorted among all that wait",
    ),
]

META_BAD: list[tuple[str, list[Any], str]] = [
    *(
        row
        for row in BAD
        if row[0] in {"mailbox_size", "overflow", "priority", "init_timeout", "env", "log_level"}
    ),
    ("backlog", [*NO_SIZES, None], "a whole number from 1 up"),
    ("when_behind", ["wait", None, Overflow.WAIT], "a member of Behind"),
    ("stop_timeout", NO_TIMES, "a number from 0 up"),
    ("drain", NO_TIMES, "a number from 0 up"),
    ("linger", ["no", 0, None], "True or False"),
    ("needed", ["no", 0], "True or False"),
]


def each(table: list[tuple[str, list[Any], str]]) -> list[tuple[str, Any, str]]:
    return [(keyword, value, allowed) for keyword, values, allowed in table for value in values]


@pytest.mark.parametrize("keyword, value, allowed", each(BAD))
def test_spawn_refuses_an_invalid_value(keyword: str, value: Any, allowed: str) -> None:
    with pytest.raises(BadInputError) as caught:
        read_options({keyword: value})

    assert caught.value.what == keyword
    assert caught.value.given is value
    assert caught.value.allowed == allowed


@pytest.mark.parametrize("keyword, value, allowed", each(META_BAD))
def test_spawn_meta_refuses_an_invalid_value(keyword: str, value: Any, allowed: str) -> None:
    with pytest.raises(BadInputError) as caught:
        read_meta_options({keyword: value})

    assert caught.value.what == keyword
    assert caught.value.given is value
    assert caught.value.allowed == allowed


@pytest.mark.parametrize(
    "table, options, keywords",
    [(BAD, Options, SpawnKeywords), (META_BAD, MetaOptions, MetaKeywords)],
)
def test_every_keyword_is_checked_and_known_to_the_type_checkers(
    table: Any, options: Any, keywords: Any
) -> None:
    names = [field.name for field in fields(options) if field.name != "given"]

    assert {row[0] for row in table} == set(names)
    assert list(get_type_hints(keywords)) == names


def test_functions_that_hand_options_on_to_open_node_know_all_of_them() -> None:
    parameters = signature(open_node).parameters

    hinted = get_type_hints(open_node)
    assert get_type_hints(NodeKeywords) == {
        name: hinted[name] for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY
    }


GOOD: list[tuple[str, list[Any]]] = [
    ("name", ["db", " ", "ünïcode"]),
    ("link", [True, False]),
    ("mailbox_size", [None, 1, 10**400]),
    ("overflow", [*Overflow, Divert("spill"), Divert("spill", "tag")]),
    ("priority", list(Priority)),
    ("init_timeout", [0, 0.0, 5, 0.001, inf]),
    ("terminate_timeout", [0, 0.0, 5, 0.001, inf]),
    ("shutdown", [0, 0.0, 5, 0.001, inf]),
    ("env", [None, {}, {"key": object()}]),
    ("log_level", [None, *LEVELS]),
    ("dispatcher", [LOOP, Threads(), Threads("io", 2)]),
    ("order", [None]),
]


@pytest.mark.parametrize(
    "keyword, value", [(keyword, value) for keyword, values in GOOD for value in values]
)
def test_spawn_keeps_an_allowed_value(keyword: str, value: Any) -> None:
    options = read_options({keyword: value})

    assert getattr(options, keyword) is value


@pytest.mark.parametrize("behind", Behind)
def test_spawn_meta_keeps_allowed_values(behind: Behind) -> None:
    options = read_meta_options(
        {"when_behind": behind, "backlog": 1, "stop_timeout": 0, "linger": True}
    )

    assert options == MetaOptions(when_behind=behind, backlog=1, stop_timeout=0, linger=True)


def test_processes_without_options_share_a_set_of_options() -> None:
    assert read_options({}) is DEFAULTS
    assert read_meta_options({}) is META_DEFAULTS
    with pytest.raises(FrozenInstanceError):
        DEFAULTS.link = True  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


def test_a_keyword_for_the_behaviour_is_refused_with_the_two_ways_to_pass_it() -> None:
    with pytest.raises(BadInputError) as caught:
        read_options({"start": 5, "name": "counter"})

    assert caught.value.given == 5
    assert "spawn(…, start=…)" in str(caught.value)
    assert "mailbox_size" in str(caught.value)
    assert "positional" in str(caught.value)
    assert "spawn(Behaviour.spec(key=value))" in str(caught.value)


def test_an_unknown_keyword_of_spawn_meta_is_refused_with_its_right_place() -> None:
    with pytest.raises(BadInputError) as caught:
        read_meta_options({"path": "events.fifo"})

    assert "spawn_meta(…, path=…)" in str(caught.value)
    assert "constructor" in str(caught.value)


@pytest.mark.parametrize("value", [1, 4.5, 10])
def test_a_number_within_its_limits_is_taken(value: float) -> None:
    check_number("ratio", value, least=1, most=10)


@pytest.mark.parametrize("value", [0.999, 10.001, 11, nan, inf])
def test_a_number_beyond_its_limits_is_refused_with_both(value: float) -> None:
    with pytest.raises(BadInputError, match="a number from 1 to 10"):
        check_number("ratio", value, least=1, most=10)


def test_a_level_has_a_number_that_grows_with_its_severity() -> None:
    numbers = [
        check_level(name) for name in ("debug", "info", "warning", "error", "critical", "off")
    ]

    assert numbers == sorted(set(numbers))


def test_check_name_returns_the_name() -> None:
    assert check_name("db") == "db"
