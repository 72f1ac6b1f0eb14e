"""Steps of the processes that a root wakes, in C or in Python. Without instruments of trio, which
only Python calls.
"""

from typing import Any

import pytest
from trio.lowlevel import checkpoint, current_task
from trio.testing import wait_all_tasks_blocked

from ergo_py import Actor, Node, Overflow
from ergo_py._core.messaging.handoff import SWITCH, turns_of_loop
from ergo_py._core.vocabulary.envelopes import MESSAGE, Lane
from tests.support import process_of, replace_private, running_node


class Does(Actor):
    """Executes its messages."""

    def handle_message(self, message: Any, sender: Any) -> None:
        message(self)


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    replace_private(monkeypatch, "clock of direct hand-off", lambda: 0.0)


async def run_as_root(node: Node, pids: list[Any], message: Any) -> None:
    """Send a message to sleeping processes, and run their steps in this turn."""
    await wait_all_tasks_blocked()
    turns, task = turns_of_loop(True), current_task()
    await checkpoint()
    assert turns.begin(task, True)
    for pid in pids:
        node.send(pid, message)
    assert turns.serve(task)


@pytest.mark.parametrize("is_slow, at_once", [(False, 64), (True, 1)])
async def test_a_root_runs_a_bounded_number_of_steps_for_a_time_slice(
    monkeypatch: pytest.MonkeyPatch, is_slow: bool, at_once: int
) -> None:
    heard: list[Any] = []
    times = iter(range(1000))
    if is_slow:
        replace_private(monkeypatch, "clock of direct hand-off", lambda: float(next(times)))
    async with running_node() as node:
        pids = [await node.spawn(Does) for _ in range(70)]
        await run_as_root(node, pids, lambda me: heard.append((me.pid, current_task())))
        assert [pid for pid, _ in heard] == pids[:at_once]
        await wait_all_tasks_blocked()
        tasks = {pid: process_of(node, pid).task for pid in pids}

    assert dict(heard) == tasks
    assert len(heard) == 70


async def test_a_process_with_waiting_senders_is_left_to_trio() -> None:
    heard: list[str] = []
    admitted: list[bool] = []

    class Waiter:
        def settle(self, is_admitted: bool, /) -> None:
            admitted.append(is_admitted)

    async with running_node() as node:
        full = await node.spawn(Does, mailbox_size=1, overflow=Overflow.WAIT)
        second = (MESSAGE, full, None, lambda _: heard.append("second"))

        def fill(_me: Any) -> None:
            node.send(full, lambda _: heard.append("first"))
            process_of(node, full).mailbox.wait_for_room(Lane.MAIN, second, Waiter())

        other = await node.spawn(Does)
        await run_as_root(node, [other], fill)
        assert heard == []
        await wait_all_tasks_blocked()

    assert heard == ["first", "second"]
    assert admitted == [True]


async def test_processes_that_fail_or_end_in_their_step_leave_the_others_alone() -> None:
    heard: list[Any] = []

    def act(me: Any) -> None:
        heard.append(me.pid)
        if me.pid == pids[0]:
            raise KeyError("no")
        if me.pid == pids[1]:
            me.stop()

    async with running_node() as node:
        pids = [await node.spawn(Does) for _ in range(3)]
        await run_as_root(node, pids, act)
        task = current_task()
        await wait_all_tasks_blocked()
        left = [node.send(pid, lambda _me: None) for pid in pids]

        assert [crash.callback for crash in node.crashes()] == ["handle_message"]
    assert heard == pids
    assert left == [False, False, True]
    assert task is current_task()
