"""Steps of the processes that a root wakes, in C or in Python. Without instruments of trio, which
only Python calls.
"""

import gc
import sys
import weakref
from contextvars import ContextVar
from traceback import extract_stack
from typing import Any

import pytest
import trio
from trio.lowlevel import checkpoint, current_task
from trio.testing import wait_all_tasks_blocked

from ergo_py import PID, Actor, Caller, Crashed, Node, Overflow, Priority
from ergo_py._core.inspection.watchdog import look_at_loop
from ergo_py._core.runtime.handoff import SWITCH, turns_of_loop
from ergo_py._core.speed.installation import is_fast
from ergo_py._core.vocabulary.envelopes import MESSAGE, Lane
from ergo_py._core.vocabulary.states import State
from tests.support import kernel_of, process_of, replace_private, router_of, running_node


class Does(Actor):
    """Executes its messages."""

    def handle_message(self, message: Any, sender: Any) -> None:
        message(self)


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    replace_private(monkeypatch, "clock of time slices", lambda: 0.0)


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
        replace_private(monkeypatch, "clock of time slices", lambda: float(next(times)))
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


# -- processes that have served before: with the C extension their own tasks sleep on --------------

variable: ContextVar[str] = ContextVar("variable", default="unset")


class Answers(Does):
    """Executes its requests, too."""

    def handle_call(self, request: Any, caller: Caller) -> object:
        return request(self)


async def spawn_asleep(node: Node, count: int = 1, kind: type[Actor] = Does) -> list[PID]:
    """Processes that have served a message, and sleep."""
    pids = [await node.spawn(kind) for _ in range(count)]
    for pid in pids:
        node.send(pid, lambda me: variable.set(str(me.pid)))
    await wait_all_tasks_blocked()
    return pids


class Waits(trio.abc.Instrument):
    """Watches the waits for I/O, as a node with reader threads does."""

    def after_io_wait(self, timeout: float) -> None:
        pass


@pytest.mark.parametrize("is_watched", [False, True])
async def test_a_woken_process_serves_in_its_own_task_and_context(is_watched: bool) -> None:
    seen: list[Any] = []
    if is_watched:
        trio.lowlevel.add_instrument(Waits())

    def look(me: Any) -> None:
        state = process_of(node, me.pid).state
        is_in_place = "serve_in_place" in [frame.name for frame in extract_stack()]
        seen.append((me.pid, current_task(), variable.get(), state, is_in_place))
        variable.set("left")

    async with running_node() as node:
        pids = await spawn_asleep(node, 2)
        tasks = [process_of(node, pid).task for pid in pids]
        own, handled = variable.get(), process_of(node, pids[0]).turn.handled
        await run_as_root(node, pids, look)
        process = process_of(node, pids[0])
        assert process.turn.handled == handled + 1
        assert process.turn.handling is None
        assert process.turn.woken == 0.0
        assert process.state is State.SLEEP
        assert process.history[-4::2] == [State.RUNNING, State.SLEEP]

    assert seen == [
        (pid, task, str(pid), State.RUNNING, is_fast) for pid, task in zip(pids, tasks, strict=True)
    ]
    assert variable.get() == own


async def test_a_process_that_was_served_in_place_is_woken_again() -> None:
    heard: list[str] = []
    async with running_node() as node:
        pids = await spawn_asleep(node)
        for name in ("first", "second"):
            await run_as_root(node, pids, lambda _, name=name: heard.append(name))
        node.send(pids[0], lambda _: heard.append("by trio"))
        await wait_all_tasks_blocked()
        await run_as_root(node, pids, lambda _: heard.append("third"))
        await trio.to_thread.run_sync(node.send, pids[0], lambda _: heard.append("by a thread"))
        await wait_all_tasks_blocked()
        assert await node.call((await spawn_asleep(node, 1, Answers))[0], lambda _: "reply")

    assert heard == ["first", "second", "by trio", "third", "by a thread"]


async def test_messages_and_calls_that_wait_are_served_in_order() -> None:
    heard: list[Any] = []

    def more(me: Any) -> None:
        heard.append("first")
        me.send(me.pid, lambda _: heard.append("last"))

    async def ask(pid: PID) -> None:
        heard.append(await node.call(pid, lambda _: "reply"))

    async with running_node() as node, trio.open_nursery() as nursery:
        pids = await spawn_asleep(node, 1, Answers)
        await wait_all_tasks_blocked()
        turns, task = turns_of_loop(True), current_task()
        await checkpoint()
        assert turns.begin(task, True)
        node.send(pids[0], more)
        nursery.start_soon(ask, pids[0])
        assert turns.serve(task)
        assert heard == ["first", "last"]
        await wait_all_tasks_blocked()

    assert heard == ["first", "last", "reply"]


async def test_an_exception_in_place_is_a_crash_like_any_other() -> None:
    async def crash_of(by_root: bool) -> tuple[Any, ...]:
        async with running_node() as node:
            pids = await spawn_asleep(node)
            if by_root:
                await run_as_root(node, pids, fail)
            else:
                node.send(pids[0], fail)
            await wait_all_tasks_blocked()
            (crash,) = node.crashes()
            assert node.processes() == []
        assert isinstance(crash.reason, Crashed)
        return crash.callback, crash.message_type, str(crash.reason), crash.reason.traceback

    def fail(_me: Any) -> None:
        raise ValueError("a fault")

    there, here = await crash_of(True), await crash_of(False)

    assert there == here
    assert there[:2] == ("handle_message", "function")


async def test_an_exception_in_place_leaves_the_root_and_the_others_alone() -> None:
    heard: list[Any] = []

    def act(me: Any) -> None:
        heard.append((me.pid, sys.exc_info()[1]))
        if me.pid == pids[1]:
            raise KeyError("no")

    async with running_node() as node:
        pids = await spawn_asleep(node, 3)
        await run_as_root(node, pids, act)
        assert sys.exc_info()[1] is None
        assert node.processes() == [pids[0], pids[2]]

    assert heard == [(pid, None) for pid in pids]


async def test_a_signal_for_a_process_in_place_follows_its_message() -> None:
    heard: list[Any] = []

    def act(me: Any) -> None:
        heard.append("message")
        me.send(me.pid, lambda _: heard.append("urgent"), priority=Priority.MAX)
        me.send(me.pid, lambda _: heard.append("next"))

    async with running_node() as node:
        pids = await spawn_asleep(node)
        await run_as_root(node, pids, act)
        assert heard == ["message", "urgent", "next"]

        await run_as_root(node, pids, lambda me: me.stop())
        assert node.processes() == []


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_event_keeps_its_place_also_if_only_the_message_loop_can_await_it(
    is_async: bool,
) -> None:
    heard: list[Any] = []

    class Listens(Does):
        def handle_event(self, event: Any) -> None:
            heard.append(event.message)

    class Awaits(Does):
        async def handle_event(self, event: Any) -> None:
            heard.append(event.message)

    async with running_node() as node:
        owner, *pids = await spawn_asleep(node, 2, Awaits if is_async else Listens)
        node.send(owner, lambda me: me.register_event("news"))
        await wait_all_tasks_blocked()
        node.send(pids[0], lambda me: me.subscribe("news"))
        await wait_all_tasks_blocked()

        def tell(me: Any) -> None:
            me.send(pids[0], lambda _: heard.append("before"))
            me.publish("news", "news")
            me.send(pids[0], lambda _: heard.append("after"))

        await run_as_root(node, [owner], tell)
        assert heard == ["before", "news", "after"]


async def test_a_cancel_scope_that_a_callback_in_place_leaves_open_is_a_crash() -> None:
    def enter(_me: Any) -> None:
        scopes.append(trio.CancelScope())
        scopes[0].__enter__()

    scopes: list[trio.CancelScope] = []
    async with running_node() as node:
        pids = await spawn_asleep(node)
        await run_as_root(node, pids, enter)
        await wait_all_tasks_blocked()
        (crash,) = node.crashes()

    assert crash.callback == "handle_message"
    assert "cancel scope" in str(crash.reason)


async def test_a_long_batch_in_place_lets_other_tasks_run() -> None:
    heard: list[Any] = []

    def act(me: Any) -> None:
        heard.append("message")
        if len(heard) == 1:
            for _ in range(99):
                me.send(me.pid, act)

    async def beside() -> None:
        heard.append("other task")

    async with running_node(burst=10) as node, trio.open_nursery() as nursery:
        pids = await spawn_asleep(node)
        await wait_all_tasks_blocked()
        turns, task = turns_of_loop(True), current_task()
        await checkpoint()
        assert turns.begin(task, True)
        node.send(pids[0], act)
        assert turns.serve(task)
        at_once = len(heard)
        nursery.start_soon(beside)
        assert process_of(node, pids[0]).state is State.RUNNING
        await wait_all_tasks_blocked()

    assert at_once < 30
    assert heard.count("message") == 100
    assert heard.index("other task") < 60


async def test_a_process_killed_before_or_while_it_is_served_in_place_ends() -> None:
    heard: list[str] = []
    async with running_node() as node:
        killed, kills = await spawn_asleep(node, 2)
        await wait_all_tasks_blocked()
        turns, task = turns_of_loop(True), current_task()
        await checkpoint()
        assert turns.begin(task, True)
        node.send(kills, lambda me: (node.kill(killed), node.kill(me.pid)))
        node.send(killed, lambda _: heard.append("too late"))
        node.send(kills, lambda _: heard.append("too late"))
        assert turns.serve(task)
        await wait_all_tasks_blocked()
        assert node.processes() == []

    assert heard == []


async def test_a_finalizer_that_sends_while_the_process_falls_asleep_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[str] = []
    garbage: list[object] = []

    class Sends:
        def __del__(self) -> None:
            node.send(pids[0], lambda _: heard.append("from the finalizer"))

    def clock() -> float:
        garbage.clear()
        return 1.0

    replace_private(monkeypatch, "clock of message loops", clock)
    async with running_node() as node:
        pids = await spawn_asleep(node)
        await run_as_root(node, pids, lambda _: garbage.append(Sends()))
        assert heard == ["from the finalizer"]


async def test_the_watchdog_finds_a_process_that_is_served_in_place() -> None:
    reports: list[Any] = []
    async with running_node() as node:
        pids = await spawn_asleep(node)
        bridge = router_of(node).bridge
        await run_as_root(node, pids, lambda _: reports.append(look_at_loop(bridge, 1.0)))

    assert [(report.process, report.callback) for report in reports] == [
        (pids[0], "handle_message")
    ]


async def test_a_process_in_place_is_not_protected_from_ctrl_c() -> None:
    seen: list[bool] = []
    async with running_node() as node:
        pids = await spawn_asleep(node)
        await run_as_root(node, pids, lambda _: seen.append(trio.lowlevel.currently_ki_protected()))

    assert seen == [False]


async def test_a_node_that_stops_wakes_processes_that_were_served_in_place() -> None:
    ends: list[Any] = []

    class Ends(Does):
        def terminate(self, reason: Any) -> None:
            ends.append(self.pid)

    async with running_node() as node:
        pids = await spawn_asleep(node, 3, Ends)
        await run_as_root(node, pids, lambda _: None)

    assert sorted(ends) == pids


async def test_a_suspended_process_is_not_served_in_place() -> None:
    heard: list[str] = []
    async with running_node() as node:
        pids = await spawn_asleep(node)
        await node.suspend(pids[0])
        await run_as_root(node, pids, lambda _: heard.append("message"))
        await wait_all_tasks_blocked()
        assert heard == []
        await node.resume(pids[0])
        await wait_all_tasks_blocked()

    assert heard == ["message"]


async def test_a_process_that_ends_asleep_keeps_no_behaviour_alive() -> None:
    seen: list[weakref.ref[Actor]] = []
    gc.collect()
    gc.disable()  # which would find a cycle of references
    try:
        async with running_node() as node:
            pids = await spawn_asleep(node)
            await run_as_root(node, pids, lambda me: seen.append(weakref.ref(me)))
            process = process_of(node, pids[0])
        assert process.turn.batch is None
        assert seen[0]() is None
    finally:
        gc.enable()


async def test_a_burst_that_began_in_place_goes_on_in_the_own_task() -> None:
    heard: list[str] = []

    def act(me: Any) -> None:
        heard.append("message")
        if len(heard) == 1:
            me.send(me.pid, lambda _: heard.append("urgent"), priority=Priority.MAX)
            for _ in range(5):
                me.send(me.pid, act)

    async with running_node(burst=3) as node:
        pids = await spawn_asleep(node)
        await run_as_root(node, pids, act)
        assert heard == ["message", "urgent", "message"]
        await wait_all_tasks_blocked()

    assert len(heard) == 7


async def test_a_cancellation_after_a_burst_in_place_is_obeyed() -> None:
    heard: list[str] = []

    def act(me: Any) -> None:
        heard.append("message")
        if len(heard) == 1:
            for _ in range(5):
                me.send(me.pid, act)

    async with running_node(burst=3) as node:
        pids = await spawn_asleep(node)
        await run_as_root(node, pids, act)
        assert len(heard) == 3
        kernel_of(node).nursery.cancel_scope.cancel()
        await wait_all_tasks_blocked()

    assert len(heard) == 3


async def test_an_exception_in_place_keeps_its_context() -> None:
    def fail(_me: Any) -> None:
        try:
            raise KeyError("cause")
        except KeyError:
            raise ValueError("effect")  # noqa: B904 - the context is the point

    async with running_node() as node:
        pids = await spawn_asleep(node)
        try:
            raise LookupError("of the root")
        except LookupError:
            await run_as_root(node, pids, fail)
        await wait_all_tasks_blocked()
        (crash,) = node.crashes()

    assert isinstance(crash.reason, Crashed)
    assert "KeyError: 'cause'" in crash.reason.traceback


@pytest.mark.parametrize("by_root", [True, False])
async def test_a_finalizer_of_the_last_message_can_send_a_signal(by_root: bool) -> None:
    heard: list[str] = []

    class Signals:
        """A message whose end sends another one, with a priority."""

        def __call__(self, me: Any) -> None:
            self.me = me

        def __del__(self) -> None:
            self.me.send(self.me.pid, lambda _: heard.append("urgent"), priority=Priority.MAX)

    async with running_node() as node:
        pids = await spawn_asleep(node)
        turns, task = turns_of_loop(True), current_task()
        await checkpoint()
        if by_root:
            assert turns.begin(task, True)
        node.send(pids[0], Signals())
        assert not by_root or turns.serve(task)
        await wait_all_tasks_blocked()
        assert heard == ["urgent"]
