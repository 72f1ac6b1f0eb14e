"""A conversation with a node, without any socket."""

import json
from pathlib import Path
from typing import Any

import pytest

from ergo_py.control.client import Link
from ergo_py.control.conversation import Answer, Conversation
from ergo_py.control.protocol import MAX_ANSWER, ControlError, encode
from tests.control.rig import in_thread, served

PATH = Path("node.sock")
HELLO = encode({"ergo": 1, "node": "shop@here", "os_pid": 7, "may": ["look"]})


def greeted(other: str | None = None) -> Conversation:
    conversation = Conversation(PATH, other)
    assert conversation.feed(HELLO) == Answer(None)
    return conversation


def asked(conversation: Conversation, do: str = "ps", **arguments: Any) -> dict[str, Any]:
    request: dict[str, Any] = json.loads(conversation.ask(do, arguments))
    return request


def answer(number: object, result: object) -> bytes:
    return encode({"id": number, "ok": True, "result": result})


def test_the_greeting_names_the_node_its_program_and_the_permissions() -> None:
    conversation = greeted()

    assert (conversation.node, conversation.os_pid, conversation.may) == ("shop@here", 7, ["look"])


@pytest.mark.parametrize(
    "line, code",
    [
        (encode({"ergo": 2, "node": "shop@here", "os_pid": 7, "may": []}), "version"),
        (encode({"error": {"code": "busy", "text": "later"}}), "busy"),
    ],
)
def test_a_node_may_refuse_the_conversation(line: bytes, code: str) -> None:
    with pytest.raises(ControlError) as refused:
        Conversation(PATH).feed(line)

    assert refused.value.code == code


@pytest.mark.parametrize(
    "line",
    [
        b"HTTP/1.1 400 Bad Request\n",
        b"[]\n",
        encode({"ergo": 1}),
        encode({"ergo": 1, "node": "shop@here", "os_pid": 7, "may": [7]}),
        encode({"error": "no"}),
    ],
)
def test_other_protocols_are_told_apart(line: bytes) -> None:
    with pytest.raises(ConnectionError, match="does not speak the protocol"):
        Conversation(PATH).feed(line)


def test_an_answer_may_come_byte_by_byte() -> None:
    conversation = greeted()
    request = asked(conversation, find="x")
    line = answer(request["id"], {"rows": []})

    found = [conversation.feed(line[place : place + 1]) for place in range(len(line))]

    assert request == {"v": 1, "id": 1, "do": "ps", "with": {"find": "x"}}
    assert found == [None] * (len(line) - 1) + [Answer({"rows": []})]


def test_output_comes_before_the_answer_in_order() -> None:
    conversation = greeted()
    number = asked(conversation, "trace")["id"]
    out: list[str] = []
    lines = [encode({"id": number, "out": text}) for text in ("a", "b")]

    assert conversation.feed(lines[0] + lines[1][:5], out.append) is None
    assert conversation.feed(lines[1][5:] + answer(number, 2), out.append) == Answer(2)
    assert out == ["a", "b"]


def test_output_without_a_listener_is_dropped() -> None:
    conversation = greeted()
    number = asked(conversation, "trace")["id"]

    assert conversation.feed(encode({"id": number, "out": "a"}) + answer(number, 1)) == Answer(1)


def test_the_answer_to_an_earlier_request_is_skipped() -> None:
    conversation = greeted()
    early, late = asked(conversation)["id"], asked(conversation)["id"]

    assert conversation.feed(answer(early, "old")) is None
    assert conversation.feed(answer(late, "new")) == Answer("new")


def test_bytes_after_an_answer_wait_for_the_next_request() -> None:
    conversation = greeted()
    number = asked(conversation)["id"]

    assert conversation.feed(answer(number, 1) + answer(number + 1, 2)) == Answer(1)
    asked(conversation)
    assert conversation.answer() == Answer(2)
    assert conversation.answer() is None


def test_a_refusal_without_a_number_belongs_to_the_last_request() -> None:
    conversation = greeted()
    asked(conversation)

    with pytest.raises(ControlError, match="too long"):
        conversation.feed(
            encode({"id": None, "ok": False, "error": {"code": "too_large", "text": "too long"}})
        )
    with pytest.raises(ConnectionError, match="does not speak the protocol"):
        conversation.feed(encode({"id": None, "ok": False}))


def test_requests_are_passed_on_to_another_node() -> None:
    conversation = greeted("other@there")

    assert conversation.node == "other@there"
    assert asked(conversation, find="x")["with"] == {
        "node": "other@there",
        "do": "ps",
        "with": {"find": "x"},
    }
    conversation.pass_on("third@there")
    assert asked(conversation)["with"]["node"] == conversation.node == "third@there"


def test_the_end_of_the_stream_and_endless_lines_are_errors() -> None:
    with pytest.raises(ConnectionError, match=r"node.sock closed the connection"):
        Conversation(PATH).feed(b"")
    with pytest.raises(ConnectionError, match="shop@here closed the connection"):
        greeted().feed(b"")
    with pytest.raises(ConnectionError, match="more than the protocol allows"):
        greeted().feed(b"x" * (2 * MAX_ANSWER + 1))


async def test_a_late_cancel_does_not_refuse_the_next_request() -> None:
    def talk(path: Path) -> list[Any]:
        with Link(path) as link:
            link.open()
            first = link.ask("info")["name"]
            link.cancel()
            return [first, link.ask("info")["name"]]

    async with served("look") as (node, server):
        assert await in_thread(talk, server.path) == [node.name] * 2
