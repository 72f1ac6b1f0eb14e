"""The protocol: only valid requests are understood, and every snapshot can be encoded."""

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.budgets import Budget
from ergo_py import PID, Alias, Crashed, Killed, Name, Why
from ergo_py.control.conversation import Conversation
from ergo_py.control.protocol import (
    MAX_ANSWER,
    ControlError,
    ParsedRequest,
    answer,
    as_json,
    encode,
    read_request,
    refusal,
)


def verdict(line: bytes) -> str:
    try:
        request = read_request(line)
    except ControlError as error:
        return error.code
    return (
        "read" if isinstance(request.do, str) and isinstance(request.arguments, dict) else "wrong"
    )


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_an_error(line: bytes) -> None:
    assert verdict(line) in ("read", "bad_request", "version")


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_any_json_is_a_request_or_an_error(value: object) -> None:
    for said in (
        value,
        {"v": 1, "id": 1, "do": value},
        {"v": 1, "id": value, "do": "x"},
        {"v": 1, "do": "x", "with": value},
    ):
        assert verdict(json.dumps(said).encode()) in ("read", "bad_request", "version")


def test_a_request_has_a_command_arguments_and_a_number() -> None:
    assert read_request(b'{"v":1,"id":7,"do":"ps","with":{"a":1}}') == ParsedRequest(
        7, "ps", {"a": 1}
    )
    assert read_request(b'{"v":1,"do":"ps"}') == ParsedRequest(None, "ps", {})


def test_a_string_without_an_end_is_searched_once() -> None:
    """Each of its quotes could be the beginning of a string."""
    line = b"[]" * 60 + b'"' + b'\\"' * 16_000

    assert Budget().spend(verdict, line).outcome == "bad_request"


def test_a_refusal_may_have_details_of_any_name() -> None:
    details = {"code": "busy", "text": "later", "self": 1, "report": 2}

    with pytest.raises(ControlError) as refused:
        Conversation(Path("node.sock")).feed(encode({"error": details}))

    assert refused.value.more == {"self": 1, "report": 2}


def test_brackets_inside_of_strings_do_not_count_as_depth() -> None:
    text = "[" * 1000
    line = json.dumps({"v": 1, "do": "eval", "with": {"source": text + '\\"["'}}).encode()

    assert read_request(line).arguments["source"] == text + '\\"["'
    with pytest.raises(ControlError):
        read_request(b'{"v":1,"do":"eval","with":{"source":' + b"[" * 60 + b"]" * 60 + b"}}")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
def test_a_request_that_is_not_utf_8_is_refused(encoding: str) -> None:
    deep = '{"v":1,"do":"eval","with":{"source":' + "[" * 60 + "]" * 60 + "}}"

    assert verdict(deep.encode(encoding)) == "bad_request"
    assert verdict('{"v":1,"do":"ps"}'.encode(encoding)) == "bad_request"
    assert verdict('{"v":1,"do":"ps","with":{"find":"ä"}}'.encode()) == "read"


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Thing:
    who: PID
    what: object


def test_snapshots_become_plain_values() -> None:
    pid, alias = PID("a@b", 1, 4), Alias("a@b", 1, 5)

    assert as_json(Thing(pid, (alias, Name("db", "x@y"), Colour.RED))) == {
        "who": 4,
        "what": [5, "db", "red"],
    }
    assert as_json({Why.FULL: 1, 3: None}) == {"full": 1, "3": None}
    assert as_json(Killed()) == "killed"
    assert as_json(Crashed(ValueError("x"))) == "crashed: ValueError: x"
    assert isinstance(as_json(object()), str)


def test_an_answer_that_is_too_long_becomes_an_error() -> None:
    said = json.loads(answer(1, "x" * MAX_ANSWER))

    assert said["ok"] is False
    assert said["error"]["code"] == "too_large"
    assert json.loads(refusal(None, ControlError("busy", "no", more=[1])))["error"] == {
        "code": "busy",
        "text": "no",
        "more": [1],
    }
