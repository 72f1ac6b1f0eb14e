"""Messages for which the `match` in `handle_message` has no case are told, once for each type."""

import ast
import linecache
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import trio

from ergo_py import LOOP, Actor, Down, Threads, open_node
from ergo_py._core.processes.envelope_handlers import callback
from ergo_py._core.vocabulary.unmatched import Unmatched, unmatched_of
from ergo_py.info import Dispatcher
from tests.support import process_of


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
        """Match, with lines before."""
        import math

        most: float = math.inf
        least = -most
        self.log.debug("a message", most=most, least=least)
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
@pytest.mark.parametrize("dispatcher", [LOOP, Threads()], ids=["loop", "thread"])
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
                self.log.debug("special", value=special)


class Named(Answers):
    def handle_message(self, message: object, sender: object) -> None:
        match message:
            case Poll():
                pass


async def test_a_message_to_the_name_of_a_process_is_told_as_well(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with trio.fail_after(20):
        async with open_node(watchdog=None, log_output="console") as node:
            await node.spawn(Named, name="named")
            for message in (Poll(1), Other(2), Other(3)):
                node.send("named", message)
            await node.call("named", "done")

    assert capsys.readouterr().err.count("has no case for Other,") == 1


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


class Asking(type):
    """Asks the instance, and cannot be hashed."""

    def __instancecheck__(cls, instance: object) -> bool:
        return instance == 3

    def __eq__(cls, other: object) -> bool:
        return cls is other

    __hash__: Any = None


class Asked(metaclass=Asking):
    """Its metaclass decides."""


class Proxy:
    """Stands for an object that may be missing."""

    def __init__(self, *present: object) -> None:
        self._present = present

    __class__: Any = property(lambda self: type(self._present[0]))


class WithoutModule:
    """Such a class comes from an extension, or from code without a module."""


setattr(WithoutModule, "__module__", None)  # noqa: B010 - no type checker allows it
lazy: Any = ModuleType("lazy")


def import_later(name: str) -> object:
    raise ImportError(name)


lazy.__getattr__ = import_later


class AsksInstances(Actor):
    def handle_message(self, message: object, sender: object) -> None:
        match message:
            case Poll() | Asked():
                pass


class Later(Actor):
    def handle_message(self, message: object, sender: object) -> None:
        match message:
            case lazy.Poll():
                pass


def test_a_class_is_asked_as_the_match_asks_it() -> None:
    assert told_by(AsksInstances, Mock(spec=Poll), Proxy(Poll(1)), 3) == []
    assert told_by(AsksInstances, Mock(spec=Other)) == ["Mock"]
    assert told_by(AsksInstances, Proxy(Other(1))) == ["Proxy"]
    assert told_by(AsksInstances, 4) == ["int"]


def test_a_type_that_cannot_be_asked_is_not_told() -> None:
    assert told_by(AsksInstances, Proxy(), WithoutModule()) == []
    assert told_by(Later, 3) == []


def test_a_name_that_has_no_value_yet_or_is_local_is_not_judged() -> None:
    class Early(Actor):
        def handle_message(self, message: object, sender: object) -> None:
            match message:
                case Inner():
                    pass

    class Local(Actor):
        def handle_message(self, message: object, sender: object) -> None:
            Poll: Any = Other  # noqa: N806
            match message:
                case Poll():
                    pass

    class LocalOfInner(Actor):
        def handle_message(self, message: object, sender: object) -> None:
            Poll = Other  # noqa: N806
            match message:
                case Poll():
                    self.log.debug("later", make=lambda: Poll(1))

    assert told_by(Early, 3) == []
    assert told_by(Local, Other(1)) == []
    assert told_by(LocalOfInner, Other(1)) == []

    class Inner:
        pass

    assert told_by(Early, 3) == ["int"]


class Becoming(Answers):
    """Has another handler from its start on."""

    def __init__(self) -> None:
        self.handled: list[object] = []

    def init(self) -> None:
        setattr(self, "handle_message", self.handle_all)  # noqa: B010 - no type checker allows it

    def handle_message(self, message: object, sender: object) -> None:
        match message:
            case Poll():
                pass

    def handle_all(self, message: object, sender: object) -> None:
        self.handled.append(message)

    def handle_call(self, request: object, caller: object) -> object:
        return len(self.handled)


async def test_a_handler_that_was_replaced_on_the_instance_is_not_judged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with trio.fail_after(20):
        async with open_node(watchdog=None, log_output="console") as node:
            pid = await node.spawn(Becoming)
            for message in (3, Asked(), Poll(1)):
                node.send(pid, message)

            assert await node.call(pid, "after all messages") == 3

    assert "has no case for" not in capsys.readouterr().err


@pytest.mark.parametrize("dispatcher", [LOOP, Threads()], ids=["loop", "thread"])
async def test_a_message_of_a_type_that_cannot_be_hashed_or_asked_is_handled(
    dispatcher: Dispatcher,
) -> None:
    with trio.fail_after(20):
        async with open_node(watchdog=None) as node:
            pid = await node.spawn(Plain, dispatcher=dispatcher)
            for message in (Asked(), WithoutModule()):
                node.send(pid, message)

            assert await node.call(pid, "goes on") == "goes on"


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


class Counting(Actor):
    """All messages have an effect."""

    count = 0

    def handle_message(self, message: object, sender: object) -> None:
        self.count += 1
        match message:
            case Poll():
                pass


class Timing(Counting):
    def handle_message(self, message: object, sender: object) -> None:
        self.count = 0
        match message:
            case Poll():
                pass


class Touching(Counting):
    def handle_message(self, message: object, sender: object) -> None:
        self.touch()
        match message:
            case Poll():
                pass

    def touch(self) -> None: ...


class Returning(Counting):
    """Ignores some senders."""

    def handle_message(self, message: object, sender: object) -> None:
        if sender is None:
            return
        match message:
            case Poll():
                pass


class OnlyPositional(Actor):
    def handle_message(self, /, message: object, sender: object) -> None:
        match sender:
            case Poll():
                pass


class IdleCatchAll(Actor):
    """The compiler drops the last statement."""

    def handle_message(self, message: object, sender: object) -> None:
        match message:
            case Poll():
                pass
            case _:
                "ignored"


without_module: dict[str, Any] = {"Actor": Actor, "Poll": Poll}
exec(
    """
class Made(Actor):
    def handle_message(self, message, sender):
        match message:
            case Poll():
                pass
""",
    without_module,
)
Made: Any = without_module["Made"]


def handle_both(*both: object) -> None:
    match both:
        case [Poll()]:
            pass


Odd: Any = type("Odd", (Actor,), {"handle_message": handle_both})


@pytest.mark.parametrize(
    "cls",
    [
        *(CatchAll, IdleCatchAll, Before, After, OfSender, OnlyPositional, Without, Odd, Actor),
        *(Counting, Timing, Touching, Returning, Made),
    ],
)
def test_other_classes_are_not_judged(cls: type[Actor]) -> None:
    def warn(text: str) -> None:
        raise AssertionError(text)

    assert unmatched_of(cls, "A", warn) is None


@pytest.mark.parametrize(
    "source",
    [
        "match message:\n    case (\n",
        "match = 3\n",
        "x = 1\n",
        "def handle_other(self, message, sender):\n    match message:\n        case 3:\n"
        "            pass\n            pass\n",
    ],
)
def test_a_source_that_has_changed_is_not_judged(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A file of its own: patterns of a file that were read before stay known.
    file = str(tmp_path / "changed.py")
    code = Coroutine.handle_message.__code__.replace(co_filename=file)
    function: Any = FunctionType(code, globals())
    cls: Any = type("Changed", (Actor,), {"handle_message": function})

    def getlines(name: str, *_module: object) -> list[str]:
        assert name == file
        return ["\n"] * (code.co_firstlineno - 1) + source.splitlines(keepends=True)

    monkeypatch.setattr(linecache, "getlines", getlines)

    assert unmatched_of(cls, "A", print) is None


def test_a_source_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = Coroutine.handle_message.__code__.replace(co_filename=str(tmp_path / "once.py"))
    function: Any = FunctionType(code, globals())
    cls: Any = type("Once", (Actor,), {"handle_message": function})
    lines = linecache.getlines(__file__)
    monkeypatch.setattr(linecache, "getlines", lambda name: lines)
    assert unmatched_of(cls, "A", print) is not None

    monkeypatch.setattr(linecache, "getlines", lambda name: [])

    assert unmatched_of(cls, "A", print) is not None


def test_types_that_are_made_at_run_time_are_forgotten() -> None:
    texts: list[str] = []
    pattern = ast.MatchClass(ast.Name("Poll"), [], [], [])
    function: Any = told_by
    judge = Unmatched("A", function, [pattern], texts.append)
    messages = [type(f"T{number}", (), {})() for number in range(1001)]
    for message in messages:
        judge.look(message)

    assert len(texts) == 1001
    assert len(judge.seen) == 1


async def test_a_message_beside_the_loop_without_a_case_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with trio.fail_after(20):
        async with open_node(watchdog=None, log_output="console") as node:
            pid = await node.spawn(Plain)
            await callback(process_of(node, pid), "handle_message", Other(1), pid)

    assert "has no case for Other," in capsys.readouterr().err
