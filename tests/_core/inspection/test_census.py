"""The census: the figures of all processes, read without the help of the loop."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import MetaProcess
from ergo_py._core.inspection.census import (
    Census,
    Row,
    count_living,
    is_suspended,
    list_living,
    message_type_of,
    parent_of,
    read_row,
    resident_memory,
)
from ergo_py._core.verbs.node_access import info_of
from ergo_py.info import MetaInfo, ProcessInfo
from tests.actors import Puppet, Recorder
from tests.support import kernel_of, process_of, replace_private, running_node


def take(census: Census, node: Any, *, everything: bool = True) -> list[tuple[Any, Row]]:
    """The processes of a pass, with their rows."""
    living = census.begin(kernel_of(node))
    return [
        each
        for part in census.slices(living, everything=everything)
        for each in (
            zip(part.living, part.rows, strict=True)
            if everything
            else zip(part.changed, part.changed_rows, strict=True)
        )
    ]


def rows_of(census: Census, node: Any, *, everything: bool = True) -> list[Row]:
    """The rows of a pass."""
    return [row for _, row in take(census, node, everything=everything)]


def figures(row: Row) -> dict[str, Any]:
    """The figures of a row by their names."""
    return {name: getattr(row, name) for name in Row.__slots__ if name != "idle_at"}


class Speaker(MetaProcess):
    """A reader that sends a message, and waits until it ends."""

    async def start(self) -> None:
        self.send(self.parent, "started")
        await trio.sleep_forever()


class Owner(Puppet):
    async def init(self) -> None:
        await self.spawn_meta(Speaker())


async def test_a_pass_in_another_thread_finds_the_same_figures() -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder, name="recorder")
        node.send(pid, 1)
        await wait_all_tasks_blocked()

        (here,) = rows_of(Census(), node)
        (there,) = await trio.to_thread.run_sync(rows_of, Census(), node)

        assert figures(here) == figures(there) == figures(read_row(process_of(node, pid), 0.0))
        assert (here.number, here.messages, here.mailbox, here.sent) == (pid.number, 1, 0, 0)


async def test_a_process_in_a_long_callback_is_at_work(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        rows: list[tuple[str | None, int, bool]] = []

        def look(_me: Any) -> None:
            node.send(pid, "a message that waits")
            ((process, row),) = take(Census(), node)
            rows.append((message_type_of(process), row.mailbox, row.time > 0))

        await node.call(pid, look)

        assert rows == [("function", 1, True)]


async def test_a_turn_that_begins_during_the_pass_takes_no_negative_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)

        def look(_me: Any) -> float:
            replace_private(monkeypatch, "clock of the census", lambda: 0.0)
            (row,) = rows_of(Census(), node)
            return row.time

        assert await node.call(pid, look) == 0.0


async def test_rates_compare_two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    async with running_node() as node:
        replace_private(monkeypatch, "clock of the census", lambda: now)
        old, idle = await node.spawn(Puppet), await node.spawn(Puppet)
        census = Census()
        assert [row.rate for row in rows_of(census, node)] == [0.0, 0.0]
        assert census.elapsed == 0.0

        await node.call(old, lambda me: me.send(idle, None) and None)
        new = await node.spawn(Recorder)
        process_of(node, new).born = now + 1.0
        for number in range(4):
            node.send(new, number)
        await wait_all_tasks_blocked()
        now += 2.0
        rows = {row.number: row for row in rows_of(census, node)}

        assert census.elapsed == 2.0
        assert census.sent == 1
        assert [rows[pid.number].rate for pid in (old, idle, new)] == [0.5, 0.5, 2.0]
        assert 0.0 < rows[old.number].load <= 1.0
        assert census.read_again(process_of(node, old)).rate == 0.5
        busy = rows[old.number].load
        now += 2.0
        assert [row.rate for row in rows_of(census, node, everything=False)] == [0.0] * 3
        later = census.read_again(process_of(node, old))
        assert (later.load, later.worst) == (0.0, busy)
        assert rows_of(census, node, everything=False) == []
        assert census.remembered == 3


async def test_a_process_from_before_the_last_pass_that_it_missed_has_no_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    async with running_node() as node:
        replace_private(monkeypatch, "clock of the census", lambda: now)
        census = Census()
        rows_of(census, node)
        pid = await node.spawn(Recorder)
        process_of(node, pid).born = now - 1.0
        node.send(pid, 1)
        await wait_all_tasks_blocked()
        now += 2.0

        (row,) = rows_of(census, node)

        assert (row.messages, row.rate, row.load) == (1, 0.0, 0.0)


async def test_meta_processes_have_rows_after_the_processes() -> None:
    async with running_node() as node:
        owner = await node.spawn(Owner)
        await wait_all_tasks_blocked()

        (process, _), (meta, row) = take(Census(), node)

        assert (process.id, parent_of(process)) == (owner, None)
        assert parent_of(meta) is process
        assert (row.sent, row.time, row.is_calling, is_suspended(meta)) == (1, 0.0, False, False)
        assert figures(read_row(meta, 0.0)) == figures(row)
        assert list_living(kernel_of(node)).all() == [process, meta]
        assert count_living(kernel_of(node)) == (1, 0)


async def test_a_process_that_waits_in_a_call_is_counted() -> None:
    async with running_node() as node:
        callee, caller = await node.spawn(Puppet), await node.spawn(Puppet)
        found: list[tuple[list[bool], int]] = []

        def look(_me: Any) -> None:
            rows = rows_of(Census(), node)
            found.append(([row.is_calling for row in rows], count_living(kernel_of(node))[1]))

        await node.call(caller, lambda me: me.call(callee, look))

        assert found == [([False, True], 1)]


async def test_a_suspended_process_says_so() -> None:
    async with running_node() as node:
        process = process_of(node, await node.spawn(Recorder))
        await node.suspend(process.id)

        assert is_suspended(process)
        await node.resume(process.id)
        assert not is_suspended(process)


async def test_a_message_of_a_background_task_is_counted_at_its_process() -> None:
    async with running_node() as node:
        pid, _ = await node.spawn(Puppet), await node.spawn(Recorder)
        await wait_all_tasks_blocked()
        census = Census()
        rows_of(census, node)
        rows_of(census, node)
        process_of(node, pid).count_sent()

        row, _ = rows_of(census, node)

        assert (row.number, row.sent, census.sent) == (pid.number, 1, 1)
        assert Census().read_again(process_of(node, pid)).sent == 1


async def test_a_census_forgets_processes_that_have_ended() -> None:
    async with running_node() as node:
        census = Census()
        kept = await node.spawn(Recorder)
        pids = [await node.spawn(Recorder) for _ in range(1100)]
        rows_of(census, node)
        for pid in pids:
            node.kill(pid)
            await node.wait_ended(pid)
        young = await node.spawn(Recorder)

        rows = rows_of(census, node)

        assert [row.number for row in rows] == [kept.number, young.number]
        assert census.remembered == 2


def test_memory_is_unknown_where_the_system_does_not_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> None:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", refuse)

    assert resident_memory() is None


async def test_a_meta_process_and_a_process_have_snapshots_of_their_kinds() -> None:
    async with running_node() as node:
        owner = await node.spawn(Owner)
        await wait_all_tasks_blocked()
        (process, _), (meta, _) = take(Census(), node)

        assert isinstance(info_of(node, process, None), ProcessInfo)
        assert isinstance(info_of(node, meta, None), MetaInfo)
        assert process.id == owner
