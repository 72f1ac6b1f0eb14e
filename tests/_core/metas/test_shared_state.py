"""State that both halves touch: helpers that need no lock, and a mode that finds attributes without
them.
"""

import threading
from typing import Any

import pytest

from ergo_py._core.metas.reader import Reader
from ergo_py._core.metas.shared_state import watched_class
from ergo_py.meta import Counter, Flag
from tests._core.metas.metas import COLOURS, InTask, InThread, owning
from tests._core.metas.test_resources import Lines
from tests.meta.support import replace_logger
from tests.support import replace_private


def test_a_counter_loses_no_addition(switching_fast: None) -> None:
    counter = Counter(5)

    def add() -> None:
        for _ in range(20_000):
            counter.add()
            counter.add(2)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert counter.value == int(counter) == 5 + 4 * 20_000 * 3
    assert (str(counter), repr(counter)) == ("240005", "Counter(240005)")


def test_an_addition_returns_the_new_value() -> None:
    counter = Counter()

    assert [counter.add(), counter.add(10), counter.add(-1)] == [1, 11, 10]


def test_a_flag_has_the_value_it_was_last_set_to() -> None:
    flag = Flag()
    states = [bool(flag)]

    for change in (flag.set, flag.set, flag.clear):
        change()
        states.append(bool(flag))

    assert states == [False, True, True, False]
    assert repr(Flag(True)) == "Flag(True)"


def test_an_attribute_is_reported_once_when_both_sides_have_written_it() -> None:
    class Thing:
        def __init__(self) -> None:
            self.before = 1

    thing, reported = Thing(), list[str]()
    side: str | None = None
    thing.__class__ = watched_class(type(thing), lambda: side, reported.append)

    for side in ("reader", "handler", "handler", "reader", None):
        thing.before = 2
        if side != "handler":
            setattr(thing, "own", side)  # noqa: B010 - an attribute that no checker knows

    assert reported == ["before"]
    assert thing.before == 2
    assert type(thing).__name__ == "Thing"
    assert isinstance(thing, Thing)


@pytest.mark.parametrize("colour", COLOURS)
async def test_a_node_in_debug_mode_names_an_attribute_that_both_sides_write(
    colour: type[Any],
) -> None:
    def write(me: Any) -> None:
        me.shared = 1

    lines: list[str] = []
    async with owning(debug_shared_state=True) as owned:
        meta = colour()
        await owned.spawn(meta)
        log = Warnings(lines)
        replace_logger(meta, log)
        await owned.in_reader(meta, write)
        await owned.in_handler(meta, lambda me: setattr(me, "own", 1))
        before = list(lines)
        await owned.in_handler(meta, write)
        await owned.end(meta.id)

    assert before == []
    assert lines == ["shared"]
    assert "Counter or Flag" in log.text


@pytest.mark.parametrize("colour", [InThread, InTask])
async def test_writes_in_init_and_in_terminate_are_not_reported(colour: type[Any]) -> None:
    class Alone(colour):  # type: ignore[misc]
        def init(self) -> None:
            self.resource = "open"

        async def terminate(self, reason: Any) -> None:
            self.resource = "closed"

    lines: list[str] = []
    async with owning(debug_shared_state=True) as owned:
        meta = Alone()
        await owned.spawn(meta)
        replace_logger(meta, Warnings(lines))
        await owned.in_reader(meta, lambda me: setattr(me, "resource", "used"))
        await owned.end(meta.id)

    assert meta.resource == "closed"
    assert lines == []


async def test_writes_of_a_reader_before_the_spawn_returns_are_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_written = threading.Event()

    class Eager(InThread):
        def start(self) -> None:
            self.shared = 1
            has_written.set()
            super().start()

    start = Reader.start

    def start_and_let_it_go_first(reader: Reader) -> None:
        start(reader)
        assert has_written.wait(20)

    replace_private(monkeypatch, "start of readers", start_and_let_it_go_first)
    lines: list[str] = []
    async with owning(debug_shared_state=True) as owned:
        meta = Eager()
        await owned.spawn(meta)
        replace_logger(meta, Warnings(lines))

        await owned.in_handler(meta, lambda me: setattr(me, "shared", 2))

    assert lines == ["shared"]


async def test_without_the_option_no_attribute_is_watched() -> None:
    async with owning() as owned:
        meta = InThread()
        await owned.spawn(meta)

        assert type(meta) is InThread


class Warnings(Lines):
    """Keeps the attributes that were warned about."""

    text = ""

    def warning(self, text: str, *, attribute: str) -> None:
        self.text = text
        self._lines.append(attribute)
