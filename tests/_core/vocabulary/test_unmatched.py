"""Messages for which the `match` in `handle_message` has no case are told, once for each type."""

import ast
import linecache
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from ergo_py import LOOP, PINNED, Actor, Dispatcher, Down, open_node
from ergo_py._core.vocabulary.unmatched import Unmatched, unmatched_of


@dataclass(frozen=True)
class Poll:
    number: int


@dataclass(frozen=True)
class Other:
    number: int


class Special(Poll):
    """A subclass of a class that has a case."""


class Equal:  # noqa: PLW1641
    """Its instances are equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True


unknown: Any = SimpleNamespace(Poll=Poll, number=3)


class Answers(Actor):
    def handle_call(self, request: object, caller: object) -> object:
        return request


class Plain(Answers):
    """A plain handler, and a guard."""

    def handle_message(self, message: object, sender: object) -> None:
        """Match, with a line before."""
        self.log.debug("a message")
        match message:
            case Poll(1):
                pass
            case Poll(number) if number > 3:
                pass


class Coroutine(Answers):
    async def handle_message(self, message: object, sender: object) -> None:
        match message:
            case Poll():
                pass


def told_by(cls: type[Actor], *messages: object) -> list[str]:
    """The names of the types that are told."""
    texts: list[str] = []
    judge = unmatched_of(cls, cls.__qualname__, texts.append)
    assert judge is not None
    for message in messages:
        judge.look(message)
    return [text.partition(" has no case for ")[2].partition(",")[0] for text in texts]


@pytest.mark.parametrize("cls", [Plain, Coroutine])
@pytest.mark.parametrize("dispatcher", [LOOP, PINNED], ids=["loop", "thread"])
async def test_a_message_without_a_case_is_told_once_for_each_class_and_type(
    cls: type[Actor], dispatcher: Dispatcher, capsys: pytest.CaptureFixture[str]
) -> None:
    messages: list[object] = [Poll(1), Poll(2), Other(1), 3, None, (1, 2), Poll(9), 4, Other(2)]
    with trio.fail_after(20):
        async with open_node(watchdog=None, log_output="console") as node:
            for _ in range(2):
                pid = await node.spawn(cls, dispatcher=dispatcher)
                for message in messages:
                    node.send(pid, message)
                await node.call(pid, "after all messages")

    lines = [line for line in capsys.readouterr().err.splitlines() if "has no case for" in line]
    assert [line.partition("has no case for ")[2].partition(" pid=")[0] for line in lines] == [
        "Other, so such a message has no effect; write `case Other():`, or `case _:` to ignore all "
        "others",
        "int, so such a message has no effect; write `case int():`, or `case _:` to ignore all "
        "others",
        "NoneType, so such a message has no effect; write `case None:`, or `case _:` to ignore all "
        "others",
        "tuple, so such a message has no effect; write `case tuple():`, or `case _:` to ignore all "
        "others",
    ]
    assert all("[warning" in line and f"{cls.__name__}.handle_message" in line for line in lines)


class Patterns(Actor):
    """Cases of all kinds."""

    def handle_message(self, message: object, sender: object) -> None:
        match message:
            case Poll() | unknown.Poll():
                pass
            case "text" | b"bytes":
                pass
            case {"key": _}:
                pass
            case [1, *_]:
                pass
            case True | None:
                pass
            case Special() as special:
                self.log.debug(special)


def test_a_case_that_may_match_is_taken_to_match() -> None:
    some = [Poll(1), Special(2), "other", b"other", {}, [], (), True, None, Equal()]
    assert told_by(Patterns, *some) == []
    assert told_by(Patterns, 3, Other(1), object(), {1}, bytearray()) == [
        "int",
        "Other",
        "object",
        "set",
    ]
    assert told_by(Numbers, 3.0, 4, 1j, Equal()) == []
    assert told_by(Numbers, "3", Other(1)) == ["str"]


class Numbers(Actor):
    def handle_message(self, message: object, sender: object) -> None:
        match message:
            case 3:
                pass


class Undecided(Actor):
    def handle_message(self, message: object, sender: object) -> None:
        match message:
            case unknown.number:
                pass


def test_a_case_that_cannot_be_judged_is_taken_to_match() -> None:
    assert told_by(Undecided, 3, "text", Other(1)) == []
    function: Any = told_by
    for expression in ("missing", "unknown.missing", "missing.Poll", "unknown[0]", "unknown"):
        parsed = ast.parse(expression, mode="eval").body
        texts: list[str] = []
        Unmatched("A", function, [ast.MatchClass(parsed, [], [], [])], texts.append).look(3)
        assert texts == []


def test_messages_of_the_framework_are_not_told() -> None:
    assert told_by(Coroutine, Down(unknown, unknown)) == []


def test_a_name_of_the_surrounding_function_is_resolved() -> None:
    class Inner:
        pass

    class Local(Actor):
        def handle_message(self, message: object, sender: object) -> None:
            match message:
                case Inner():
                    pass

    assert told_by(Local, Inner(), 3) == ["int"]


class CatchAll(Actor):
    def handle_message(self, message: object, sender: object) -> None:
        match message:
            case Poll():
                pass
            case _:
                pass


class Before(Actor):
    def handle_message(self, message: object, sender: object) -> None:
        if isinstance(message, int):
            return
        match message:
            case Poll():
                pass


class After(Actor):
    def handle_message(self, message: object, sender: object) -> None:
        match message:
            case Poll():
                return
        self.log.debug("another message")


class OfSender(Actor):
    def handle_message(self, message: object, sender: object) -> None:
        match sender:
            case Poll():
                pass


class Without(Actor):
    def handle_message(self, message: object, sender: object) -> None:
        pass


def handle_both(*both: object) -> None:
    match both:
        case [Poll()]:
            pass


Odd: Any = type("Odd", (Actor,), {"handle_message": handle_both})


@pytest.mark.parametrize("cls", [CatchAll, Before, After, OfSender, Without, Odd, Actor])
def test_other_classes_are_not_judged(cls: type[Actor]) -> None:
    def warn(text: str) -> None:
        raise AssertionError(text)

    assert unmatched_of(cls, "A", warn) is None


@pytest.mark.parametrize("source", ["match message:\n    case (\n", "match = 3\n", "x = 1\n"])
def test_a_source_that_has_changed_is_not_judged(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def getlines(name: str) -> list[str]:
        return ["\n"] * (Coroutine.handle_message.__code__.co_firstlineno - 1) + source.splitlines(
            keepends=True
        )

    monkeypatch.setattr(linecache, "getlines", getlines)

    assert unmatched_of(Coroutine, "A", print) is None


def test_types_that_are_made_at_run_time_are_forgotten() -> None:
    texts: list[str] = []
    pattern = ast.MatchClass(ast.Name("Poll"), [], [], [])
    function: Any = told_by
    judge = Unmatched("A", function, [pattern], texts.append)
    for number in range(1001):
        judge.look(type(f"T{number}", (), {})())

    assert len(texts) == 1001
    assert len(judge.seen) == 1
