"""Ended processes leave nothing behind: not in a table, and not in memory. ``python -m
benchmarks leaks`` does the same for longer.
"""

import gc
import threading
import tracemalloc
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from benchmarks.leaks import SPARE_OBJECTS, main, objects, soaking, tables
from ergo_py import NO_REPLY, Actor, Alias, Caller, CallTimeoutError, Node, TargetDownError
from ergo_py._core.tables.registry import Registry
from tests.actors import Puppet, Recorder
from tests.support import process_of, running_node

ROUNDS = 250


async def least_growth(
    work: Callable[[], Awaitable[object]],
    clock: MockClock | None = None,
    spare: int = SPARE_OBJECTS,
) -> int:
    """The number of objects that a piece of work adds at least: remains are left each time.

    So once it has added no more than may be spared, there is no need to see it again.
    """
    growth: list[int] = []
    while len(growth) < 3 and not any(one <= spare for one in growth):
        before = objects()
        await work()
        if clock is not None:
            # trio keeps a deadline, met or not, until its time has come.
            clock.jump(10**6)
            await trio.lowlevel.checkpoint()
        growth.append(objects() - before)
    return min(growth)


# These two are bounded by pytest's own time limit alone: they turn the clock themselves.
@pytest.mark.no_cover
async def test_ended_families_of_processes_leave_tables_and_objects_unchanged(
    mock_clock: MockClock,
) -> None:
    async with soaking(mock_clock) as soak:
        before = tables(soak.node)

        growth = await least_growth(partial(soak.run, ROUNDS))

        after = tables(soak.node)

    assert after == before
    assert growth <= SPARE_OBJECTS


@pytest.mark.no_cover
async def test_ended_families_of_processes_leave_no_memory_behind(mock_clock: MockClock) -> None:
    async with soaking(mock_clock) as soak:
        tracemalloc.start()
        try:
            # Long enough that the entries kept on purpose, the last dead letters and obituaries
            # above all, are there.
            await soak.run(60)
            growth = list[int]()
            while len(growth) < 3 and not any(one < 100 * 40 for one in growth):
                gc.collect()
                before, _ = tracemalloc.get_traced_memory()
                await soak.run(100)
                gc.collect()
                growth.append(tracemalloc.get_traced_memory()[0] - before)
        finally:
            tracemalloc.stop()

    # Less than a small object for each round: remains are left each time.
    assert min(growth) < 100 * 40


async def test_the_tables_grow_with_processes_names_aliases_and_relations() -> None:
    async with running_node() as node:
        empty = tables(node)
        pids = [await node.spawn(Puppet, name=f"puppet {number}") for number in range(3)]
        await node.call(pids[0], lambda me: me.link(pids[1]))
        await node.call(pids[0], lambda me: me.monitor(pids[2]))
        await node.call(pids[1], lambda me: me.create_alias() and None)
        await node.call(pids[2], lambda me: me.send_after(1, me.pid, "later") and None)
        full = tables(node)

    grown = {name.rpartition(".")[2] for name, size in full.items() if size > empty[name]}
    assert grown >= {"processes", "names", "aliases", "roots", "by_watcher", "by_target", "heap"}


@pytest.mark.no_cover
def test_the_long_version_reports_no_growth(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--rounds", "50"])

    assert status == 0
    assert "tables: flat, objects: flat, memory: flat" in capsys.readouterr().out


@pytest.mark.no_cover
def test_the_long_version_fails_if_an_alias_is_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep_it(self: Registry[Any], alias: Alias) -> Any:
        return self.aliases[alias]

    monkeypatch.setattr(Registry, "drop_alias", keep_it)

    status = main(["--rounds", "50"])

    assert status == 1
    assert "tables: GROWN" in capsys.readouterr().out


@pytest.mark.no_cover
async def test_calls_with_timeouts_leave_no_entries_after_their_deadlines(
    mock_clock: MockClock,
) -> None:
    async with running_node(limit=10**6) as node:
        pid = await node.spawn(Recorder)
        await wait_all_tasks_blocked()
        before = tables(node)
        for number in range(3000):
            await node.call(pid, number, timeout=1 + number / 1000)

        mock_clock.jump(10)
        await wait_all_tasks_blocked()
        after = tables(node)

    assert after == before


class Deferring(Actor):
    def handle_call(self, request: Any, caller: Caller) -> object:
        return NO_REPLY


async def test_calls_that_were_given_up_leave_no_entries_at_a_living_callee(
    autojump_clock: MockClock,
) -> None:
    async with running_node(limit=10**6) as node:
        pid = await node.spawn(Deferring)
        process = process_of(node, pid)
        for _ in range(200):
            with pytest.raises(CallTimeoutError):
                await node.call(pid, "in vain", timeout=1)
            with trio.move_on_after(1):
                await node.call(pid, "in vain", timeout=None)

        assert not process.deferred


@pytest.mark.no_cover
async def test_messages_and_calls_of_threads_leave_no_objects() -> None:
    def use(node: Node) -> None:
        pid = node.whereis("recorder")
        assert pid is not None
        for number in range(500):
            node.send(pid, number)
            node.send("nobody", number)
            node.call_from_thread("recorder", number)
            try:
                node.call_from_thread("nobody", number)
            except TargetDownError:
                pass

    async with running_node(dead_letters=10) as node:

        class Counts(Actor):
            def handle_message(self, message: Any, sender: Any) -> None: ...

            def handle_call(self, request: Any, caller: Caller) -> object:
                return request

        await node.spawn(Counts, name="recorder")
        await trio.to_thread.run_sync(use, node)
        before = tables(node)

        growth = await least_growth(lambda: trio.to_thread.run_sync(use, node))

        after = tables(node)

    assert after == before
    assert growth <= SPARE_OBJECTS


async def test_a_behaviour_is_free_as_soon_as_its_process_has_ended() -> None:
    behaviours: list[weakref.ref[Any]] = []
    messages: list[weakref.ref[Any]] = []

    class Message:
        pass

    class Kept(Puppet):
        async def init(self) -> None:
            behaviours.append(weakref.ref(self))

        async def handle_message(self, message: Any, sender: Any) -> None:
            if isinstance(message, Message):
                messages.append(weakref.ref(message))
            else:
                raise RuntimeError("on purpose")

    async with running_node() as node:
        for end in ("kill", "crash", "exit"):
            pid = await node.spawn(Kept)
            node.send(pid, Message())
            await wait_all_tasks_blocked()
            match end:
                case "kill":
                    node.kill(pid)
                case "crash":
                    node.send(pid, "crash")
                case "exit":
                    node.send_exit(pid)
            await wait_all_tasks_blocked()
        gc.collect()
        left = [one() for one in (*behaviours, *messages)]

    assert left == [None] * 6


@pytest.mark.no_cover
async def test_closed_nodes_leave_no_objects_and_no_threads(mock_clock: MockClock) -> None:
    async def some() -> None:
        for _ in range(30):
            async with running_node(watchdog=60) as node:
                for _ in range(3):
                    await node.spawn(Puppet)

    await some()
    threads = set(threading.enumerate())

    growth = await least_growth(some, mock_clock, SPARE_OBJECTS // 10)

    assert growth <= SPARE_OBJECTS // 10
    assert set(threading.enumerate()) <= threads

    assert [thread for thread in threading.enumerate() if thread not in threads] == []
