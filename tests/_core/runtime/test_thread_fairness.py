"""A loop that is never idle does not starve threads, and without threads this costs nothing."""

import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from ergo_py import Actor, MetaProcess
from ergo_py._core.runtime.thread_fairness import ThreadFairness
from tests._core.metas.metas import InTaskServedInThread, InThread, Owned, owning
from tests.actors import Puppet
from tests.support import replace_private

ENOUGH = 100
"""Wake-ups that a thread must get within the time limit. Starved, it gets a handful each second."""
LIMIT = 8.0
"""Seconds of processor time that the loop has for itself meanwhile: a busy machine delays all of
them, and starves none.
"""


async def within_limit(owned: Owned, condition: Callable[[], bool]) -> None:
    began = time.thread_time()
    await owned.until(lambda: condition() or time.thread_time() - began > LIMIT)


class Feeds(Actor):
    """Sends itself a message forever, and works for so many seconds on each."""

    def __init__(self, turn: float) -> None:
        self.turn = turn

    def init(self) -> None:
        self.send(self.pid, "on")

    async def handle_message(self, message: Any, sender: Any) -> None:
        end = time.perf_counter() + self.turn
        while time.perf_counter() < end:
            pass
        self.send(self.pid, "on")


class Ticks(MetaProcess):
    """A reader that should wake about every millisecond, and counts how often it does."""

    def __init__(self) -> None:
        self.count = 0

    def start(self) -> None:
        while not self.stopping:
            # The point of the test: to come back from a sleep the reader needs the interpreter,
            # which the loop has.
            time.sleep(0.001)
            self.count += 1
            if self.count % 10 == 0:
                # Its message must get through as well.
                self.send(self.parent, self.count)


@pytest.mark.parametrize("turn", [0.00001, 0.0001, 0.001])
async def test_readers_progress_beside_a_process_that_sends_to_itself(turn: float) -> None:
    async with owning(limit=300) as owned:
        ticks = [Ticks() for _ in range(3)]
        for one in ticks:
            await owned.spawn(one)
        busy = await owned.node.spawn(Feeds, turn, shutdown=0.0)
        before = owned.node.process_info(busy).messages_in

        await within_limit(owned, lambda: min(one.count for one in ticks) >= ENOUGH)

        assert min(one.count for one in ticks) >= ENOUGH
        # And the process has not been stopped for it; how often it came to work meanwhile depends
        # on the load of this machine.
        await owned.until(lambda: owned.node.process_info(busy).messages_in > before + 100)
        await owned.until(lambda: len(owned.heard) >= 20)


async def test_readers_progress_beside_a_loop_with_io_that_is_always_ready() -> None:
    async def echo(sock: trio.socket.SocketType) -> None:
        while True:
            data = await sock.recv(100)
            end = time.perf_counter() + 0.0002
            while time.perf_counter() < end:
                pass
            await sock.send(data)

    ours, theirs = trio.socket.socketpair()
    async with owning(limit=300) as owned:
        ticks = Ticks()
        await owned.spawn(ticks)
        with ours, theirs:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(echo, ours)
                nursery.start_soon(echo, theirs)
                await theirs.send(b"x")
                await within_limit(owned, lambda: ticks.count >= ENOUGH)
                nursery.cancel_scope.cancel()

        assert ticks.count >= ENOUGH


async def test_worker_threads_progress_too() -> None:
    async with owning(limit=300) as owned:
        meta = InTaskServedInThread()
        await owned.spawn(meta)
        await owned.node.spawn(Feeds, 0.001, shutdown=0.0)

        def tick(_me: Any) -> None:
            for _ in range(ENOUGH):
                # As above.
                time.sleep(0.001)
            done.set()

        done = threading.Event()
        owned.node.send(meta.id, tick)
        await within_limit(owned, done.is_set)

        assert done.is_set()


# -- the costs -------------------------------------------------------------------------------------


@asynccontextmanager
async def counting_instruments() -> AsyncIterator[list[str]]:
    changes: list[str] = []
    add, remove = trio.lowlevel.add_instrument, trio.lowlevel.remove_instrument

    def added(instrument: Any) -> None:
        changes.append("on")
        add(instrument)

    def removed(instrument: Any) -> None:
        changes.append("off")
        remove(instrument)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trio.lowlevel, "add_instrument", added)
        patch.setattr(trio.lowlevel, "remove_instrument", removed)
        yield changes


async def test_the_loop_is_watched_only_while_there_are_threads() -> None:
    async with counting_instruments() as changes, owning() as owned:
        await owned.node.spawn(Puppet)
        without = list(changes)
        first, second = InThread(), InThread()
        await owned.spawn(first)
        await owned.spawn(second)
        with_readers = list(changes)
        await owned.end(first.id)
        still = list(changes)
        await owned.end(second.id)
        await owned.until(lambda: owned.node.info().reader_threads == 0)

        assert without == []
        assert with_readers == still
        assert changes.count("on") == changes.count("off")
        assert changes[-1] == "off"


async def test_an_abandoned_thread_does_not_leave_the_watch_on() -> None:
    class Refuses(MetaProcess):
        def start(self) -> None:
            held.wait(20)

    held = threading.Event()
    async with counting_instruments() as changes:
        async with owning() as owned:
            await owned.spawn(Refuses(), stop_timeout=0.01)
        held.set()

        assert changes == ["on", "off"]


async def test_a_loop_that_waits_is_given_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    replace_private(monkeypatch, "sleep of thread fairness", pauses.append)
    now = 0.0
    replace_private(monkeypatch, "clock of thread fairness", lambda: now)
    thread_fairness = ThreadFairness()
    thread_fairness.take_place()

    def passes(count: int, turn: float, wait: float) -> None:
        nonlocal now
        for _ in range(count):
            now += turn
            thread_fairness.before_io_wait(1.0)
            now += wait
            thread_fairness.after_io_wait(1.0)

    try:
        passes(100, 0.001, 0.001)
        idle = len(pauses)
        passes(100, 0.001, 0.0)
        busy = len(pauses)
        passes(1000, 0.00001, 0.0)
        quick = len(pauses)
    finally:
        thread_fairness.give_place_back()

    assert idle == 0
    # Once in about five milliseconds, for every length of a turn.
    assert 10 <= busy <= 25
    assert 1 <= quick - busy <= 3


def test_places_are_counted() -> None:
    async def main() -> list[int]:
        thread_fairness = ThreadFairness()
        counts = [thread_fairness.readers]
        for step in (
            thread_fairness.take_place,
            thread_fairness.take_place,
            thread_fairness.watch,
            thread_fairness.give_place_back,
        ):
            step()
            counts.append(thread_fairness.readers)
        thread_fairness.stop()
        thread_fairness.give_place_back()
        thread_fairness.unwatch()
        thread_fairness.stop()
        return [*counts, thread_fairness.readers]

    assert trio.run(main) == [0, 1, 2, 2, 1, 0]
