"""Direct hand-off: a woken process runs in the turn of the task that woke it, with the same
results as in a turn of its own.
"""

import sys
import threading
import types
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from contextvars import ContextVar, copy_context
from itertools import groupby
from queue import SimpleQueue
from statistics import median
from types import SimpleNamespace
from typing import Any

import outcome
import pytest
import trio
from trio.lowlevel import Task, checkpoint, current_task
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    PID,
    Actor,
    Caller,
    ChildSpec,
    Overflow,
    Shutdown,
    TargetDownError,
)
from ergo_py._core.messaging.waiters import NoMailbox
from ergo_py._core.processes.process import Process
from ergo_py._core.runtime import handoff
from ergo_py._core.runtime.handoff import Handoff, turns_of_loop, unmet
from ergo_py._core.runtime.parking import PARKED, TrioTurns, park, park_as
from ergo_py._core.runtime.time_slices import SLICE
from ergo_py._core.vocabulary.envelopes import MESSAGE, Lane
from ergo_py._core.vocabulary.states import State
from tests.actors import Failed, Puppet, Recorder
from tests.support import Collected, process_of, replace_private, running_node

variable: ContextVar[str] = ContextVar("variable", default="unset")


class Turns(trio.abc.Instrument):
    """Counts the passes of trio's loop, and records the steps of tasks."""

    def __init__(self) -> None:
        self.passes = 0
        self.steps: list[tuple[str, Task]] = []

    def before_io_wait(self, timeout: float) -> None:
        self.passes += 1

    def task_scheduled(self, task: Task) -> None:
        self.steps.append(("scheduled", task))

    def before_task_step(self, task: Task) -> None:
        self.steps.append(("before", task))

    def after_task_step(self, task: Task) -> None:
        self.steps.append(("after", task))


@asynccontextmanager
async def watched_turns() -> AsyncIterator[Turns]:
    turns = Turns()
    trio.lowlevel.add_instrument(turns)
    yield turns
    trio.lowlevel.remove_instrument(turns)


class Asynchronous(Puppet):
    """Runs the functions that it is sent, in async callbacks."""


class Plain(Actor):
    """Runs the functions that it is sent, in plain callbacks."""

    def handle_message(self, message: Any, sender: Any) -> None:
        message(self)


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(handoff.SWITCH, raising=False)


@pytest.fixture(autouse=True)
def endless_time_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a step may take longer than a time slice, and the rest is left to trio. The
    tests of slow steps have clocks of their own.
    """
    replace_private(monkeypatch, "clock of time slices", lambda: 0.0)


# -- the installed trio ----------------------------------------------------------------------------


def test_the_installed_trio_has_all_that_direct_hand_off_leans_on() -> None:
    assert unmet() == []


def test_a_trio_without_a_needed_name_is_described() -> None:
    loop = SimpleNamespace(**vars(trio._core._run))
    loop.Task = type("Task", (), {"coro": None})
    del loop.GLOBAL_RUN_CONTEXT

    found = unmet(loop, SimpleNamespace())

    assert "trio._core._run has no GLOBAL_RUN_CONTEXT" in found
    assert "trio._core._run.Task has no _abort_func" in found
    assert "trio._core._run.Task has no coro" not in found
    assert "trio._core._traps has no WaitTaskRescheduled" in found


def test_a_trio_with_other_duties_in_its_loop_is_described() -> None:
    def unrolled_run(task: Any) -> None:
        task._next_send_fn = task._new_duty

    loop = SimpleNamespace(**vars(trio._core._run))
    loop.unrolled_run = unrolled_run

    found = unmet(loop)

    assert "unrolled_run uses _new_duty, which is not known here" in found
    assert "unrolled_run no longer uses _abort_func" in found
    assert not any("_next_send_fn" in text for text in found)


def test_a_trio_with_other_arguments_of_a_task_is_described() -> None:
    def other_order(self: Any, coro: Any, parent_nursery: Any) -> None:
        """Of the arguments."""

    loop = SimpleNamespace(**vars(trio._core._run))
    parts = {name: getattr(Task, name) for name in dir(Task) if not name.startswith("__")}
    loop.Task = type("Task", (), {**parts, "__init__": other_order})

    [found] = unmet(loop)

    assert "takes other arguments than ('parent_nursery', 'coro'" in found


def test_a_trio_that_ends_tasks_as_the_first_supported_release_is_known() -> None:
    def task_exited(self: Any) -> None:
        self._activate_cancel_status(self._cancel_status)
        self._child_finished(self._parent_nursery)

    loop = SimpleNamespace(**vars(trio._core._run))
    loop.Runner = type("Runner", (trio._core._run.Runner,), {"task_exited": task_exited})

    assert unmet(loop) == []


async def test_nodes_of_a_loop_share_their_turns() -> None:
    assert isinstance(turns_of_loop(True), Handoff)
    assert turns_of_loop(True) is turns_of_loop(True)


async def test_a_task_is_alone_if_no_other_task_is_ready() -> None:
    turns = turns_of_loop(True)
    await trio.lowlevel.checkpoint()
    assert turns.is_alone()
    assert turns.is_last()
    assert not TrioTurns().is_alone()
    assert not TrioTurns().is_last()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.lowlevel.checkpoint)
        assert not turns.is_alone()
        await trio.lowlevel.checkpoint()
        assert not turns.is_alone()  # the other task is in the same pass
        assert not turns.is_last()
    instrument = Turns()
    trio.lowlevel.add_instrument(instrument)
    await trio.lowlevel.checkpoint()
    assert not turns.is_alone()
    assert turns.is_last()
    trio.lowlevel.remove_instrument(instrument)


async def test_instruments_see_a_caller_that_a_root_wakes() -> None:
    turns = turns_of_loop(True)
    caller: Any = SimpleNamespace(task=None, mailbox=NoMailbox())
    scheduled: list[object] = []

    class Scheduled(trio.abc.Instrument):
        def task_scheduled(self, task: trio.lowlevel.Task) -> None:
            scheduled.append(task)

    async def wait() -> None:
        caller.task = trio.lowlevel.current_task()
        await park_as(caller.task, caller)
        scheduled.append("it ran")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        await trio.lowlevel.checkpoint()
        instrument = Scheduled()
        trio.lowlevel.add_instrument(instrument)
        root = trio.lowlevel.current_task()
        assert turns.begin(root)
        turns.wake_caller(caller)
        assert turns.serve(root)
        trio.lowlevel.remove_instrument(instrument)
        assert scheduled[:2] == [caller.task, "it ran"]


@pytest.mark.parametrize("watched", [True, False])
async def test_several_sleeping_tasks_wake_up_and_instruments_see_each(watched: bool) -> None:
    turns, ran = turns_of_loop(True), list[Task]()

    async def sleep(sleeper: Any) -> None:
        sleeper.task = current_task()
        await park(sleeper.task)
        ran.append(sleeper.task)

    sleepers: list[Any] = [SimpleNamespace(task=None, mailbox=NoMailbox()) for _ in range(3)]
    async with trio.open_nursery() as nursery:
        for sleeper in sleepers:
            nursery.start_soon(sleep, sleeper)
        await wait_all_tasks_blocked()
        tasks = [sleeper.task for sleeper in sleepers]
        instrument = Turns()
        if watched:
            trio.lowlevel.add_instrument(instrument)
        for sleeper in sleepers:
            turns.wake(sleeper)
            turns.wake(sleeper)  # which is awake
        scheduled = [task for what, task in instrument.steps if what == "scheduled"]
        if watched:
            trio.lowlevel.remove_instrument(instrument)

    assert scheduled == (tasks if watched else [])
    assert sorted(ran, key=tasks.index) == tasks


async def test_trio_runs_every_step_if_hand_off_is_off_or_trio_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [type(turns_of_loop(False))]
    with monkeypatch.context() as patch:
        patch.setenv("ERGO_DIRECT_HANDOFF", "0")
        found.append(type(turns_of_loop(True)))
    replace_private(monkeypatch, "details of trio that differ", ["the loop has changed"])
    found.append(type(turns_of_loop(True)))

    assert found == [TrioTurns] * 3


# -- a caller and its callee -----------------------------------------------------------------------


@pytest.mark.parametrize("direct", [True, False])
async def test_a_call_to_a_sleeping_process_takes_no_turn_of_the_scheduler(direct: bool) -> None:
    async with running_node(direct_handoff=direct) as node:
        pid = await node.spawn(Asynchronous)
        await wait_all_tasks_blocked()
        async with watched_turns() as turns:
            replies = [await node.call(pid, lambda me: 1) for _ in range(3)]

    assert replies == [1, 1, 1]
    assert (turns.passes == 0) is direct


async def test_a_callee_runs_in_its_own_task_and_context() -> None:
    def look(me: Any) -> tuple[Task, str]:
        seen = variable.get()
        variable.set("the callee's")
        return current_task(), seen

    async with running_node() as node:
        pid = await node.spawn(Asynchronous)
        await wait_all_tasks_blocked()
        variable.set("the caller's")
        first = await node.call(pid, look)
        second = await node.call(pid, look)
        task = process_of(node, pid).task

        assert first == (task, "unset")
        assert second == (task, "the callee's")
        assert variable.get() == "the caller's"
        assert current_task() is not task


async def test_a_callee_sees_that_its_caller_waits() -> None:
    states = []

    async def ask(me: Any, pid: PID) -> None:
        states.append(await me.call(pid, lambda other: node.process_info(me.pid).state))
        states.append(node.process_info(me.pid).state)

    async with running_node() as node:
        callee = await node.spawn(Asynchronous)
        caller = await node.spawn(Asynchronous)
        await wait_all_tasks_blocked()
        node.send(caller, lambda me: ask(me, callee))
        await wait_all_tasks_blocked()

    assert states == [State.WAIT_RESPONSE, State.RUNNING]


async def test_a_callee_does_not_see_the_exception_that_its_caller_handles() -> None:
    async with running_node() as node:
        pid = await node.spawn(Asynchronous)
        await wait_all_tasks_blocked()
        try:
            raise Failed
        except Failed:
            seen = await node.call(pid, lambda me: sys.exc_info()[1])

    assert seen is None


async def test_a_callee_that_waits_replies_later() -> None:
    async def wait(me: Any) -> str:
        await checkpoint()
        await trio.lowlevel.cancel_shielded_checkpoint()
        return "waited"

    async with running_node() as node:
        pid = await node.spawn(Asynchronous)
        await wait_all_tasks_blocked()

        assert await node.call(pid, wait) == "waited"


async def test_a_callee_calls_another_process_in_its_step() -> None:
    async with running_node() as node:
        first, second = [await node.spawn(Asynchronous) for _ in range(2)]
        await wait_all_tasks_blocked()

        reply = await node.call(first, lambda me: me.call(second, lambda other: other.pid))

    assert reply == second


async def test_a_callee_that_ends_in_its_step_is_down_for_its_caller() -> None:
    def fail(me: Any) -> None:
        raise Failed

    async with running_node() as node:
        failing, stopping = [await node.spawn(Asynchronous) for _ in range(2)]
        await wait_all_tasks_blocked()
        with pytest.raises(TargetDownError):
            await node.call(failing, fail)
        await node.call(stopping, lambda me: me.stop())
        await wait_all_tasks_blocked()

        assert node.processes() == []


async def test_a_cancelled_caller_leaves_its_call() -> None:
    replies = []
    async with running_node() as node:
        pid = await node.spawn(Asynchronous)
        await wait_all_tasks_blocked()
        with trio.CancelScope() as before:
            before.cancel()
            replies.append(await node.call(pid, lambda me: 1))
        await wait_all_tasks_blocked()
        with trio.CancelScope() as meanwhile:
            replies.append(await node.call(pid, lambda me: meanwhile.cancel()))

    assert before.cancelled_caught
    assert meanwhile.cancelled_caught
    assert replies == []


async def test_instruments_see_a_step_at_a_time() -> None:
    async with running_node() as node:
        pid = await node.spawn(Asynchronous)
        await wait_all_tasks_blocked()
        async with watched_turns() as turns:
            await node.call(pid, lambda me: None)
        task, me = process_of(node, pid).task, current_task()

    assert turns.steps[:5] == [
        ("scheduled", task),
        ("after", me),
        ("before", task),
        ("after", task),
        ("before", me),
    ]


async def test_an_instrument_without_steps_is_left_alone() -> None:
    class Ends(trio.abc.Instrument):
        def task_exited(self, task: Task) -> None:
            ended.append(task)

    ended: list[Task] = []
    async with running_node() as node:
        pid = await node.spawn(Asynchronous)
        await wait_all_tasks_blocked()
        task = process_of(node, pid).task
        trio.lowlevel.add_instrument(ends := Ends())
        await node.call(pid, lambda me: me.stop())
        await wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(ends)

    assert ended == [task]


async def test_a_hundred_callers_of_an_async_callee_take_turns() -> None:
    served: list[int] = []

    async def ask(pid: PID, number: int) -> None:
        for _ in range(20):
            await node.call(pid, lambda me: served.append(number))

    async with running_node() as node:
        pid = await node.spawn(Asynchronous)
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(ask, pid, number)

    assert Counter(served) == dict.fromkeys(range(100), 20)
    assert max(len(list(run)) for _, run in groupby(served[:1500])) <= 3


async def test_callers_with_an_async_callee_each_make_some_calls_in_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replace_private(monkeypatch, "clock of time slices", lambda: 0.0)  # no time slice ends
    served: list[int] = []

    async def ask(pid: PID, number: int) -> None:
        for _ in range(10):
            await node.call(pid, lambda me: served.append(number))

    async with running_node() as node:
        pids = [await node.spawn(Asynchronous) for _ in range(3)]
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            for number, pid in enumerate(pids):
                nursery.start_soon(ask, pid, number)

    assert Counter(served) == dict.fromkeys(range(3), 10)
    # A callee does not know its caller at the first call: a turn for that, and for all others.
    assert len(list(groupby(served))) <= 2 * 3


async def test_callers_of_a_plain_callee_take_turns_after_a_few_calls() -> None:
    served: list[int] = []

    class Noting(Actor):
        def handle_call(self, request: int, caller: Caller) -> None:
            served.append(request)

    async def ask(pid: PID, number: int) -> None:
        for _ in range(200):
            await node.call(pid, number)

    async with running_node() as node:
        pid = await node.spawn(Noting)
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(ask, pid, number)

    runs = [len(list(run)) for _, run in groupby(served[:3000])]
    # trio reverses some passes, so that the last caller of a pass may be the first of the next, and
    # continues with twice as many calls.
    assert max(runs) <= 16 + 31
    assert median(runs) <= 16


@pytest.mark.parametrize("kind", [Asynchronous, Recorder])
async def test_a_caller_in_a_loop_lets_other_tasks_run(kind: type[Actor]) -> None:
    turns: list[int] = []

    async def take_turns() -> None:
        while True:
            turns.append(len(turns))
            await trio.lowlevel.checkpoint()

    async with running_node() as node:
        pid = await node.spawn(kind)
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_turns)
            for _ in range(1000):
                await node.call(pid, list)
            nursery.cancel_scope.cancel()

    assert len(turns) > 10


class PlainCallee(Actor):
    """Runs the functions that it is asked for, in a plain callback."""

    def handle_call(self, request: Any, caller: Caller) -> object:
        return request(self)


@pytest.mark.parametrize("kind", [Asynchronous, PlainCallee])
async def test_a_call_that_is_longer_than_a_time_slice_is_followed_by_a_turn_of_the_others(
    kind: type[Actor], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    replace_private(monkeypatch, "clock of time slices", lambda: now)
    turns: list[str] = []

    def work(_me: object) -> None:
        nonlocal now
        now += 2 * SLICE
        turns.append("call")

    async def take_turns() -> None:
        while True:
            turns.append("other")
            await checkpoint()

    async with running_node() as node:
        pid = await node.spawn(kind)
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_turns)
            await checkpoint()
            for _ in range(30):
                await node.call(pid, work)
            nursery.cancel_scope.cancel()

    # Two passes of the loop meet if trio reverses the order of tasks between them.
    calls = [len(list(run)) for turn, run in groupby(turns) if turn == "call"]
    assert sum(calls) == 30
    assert max(calls) <= 2


async def test_a_caller_pauses_after_its_time_slice_also_if_its_callee_calls_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    replace_private(monkeypatch, "clock of time slices", lambda: now)

    def work(_me: object) -> None:
        nonlocal now
        now += SLICE / 2

    async with running_node() as node:
        plain = await node.spawn(PlainCallee)

        class Middle(Actor):
            async def handle_call(self, request: Any, caller: Caller) -> object:
                return await self.call(plain, request)

        middle = await node.spawn(Middle)
        await wait_all_tasks_blocked()
        async with watched_turns() as turns:
            for _ in range(30):
                await node.call(middle, work)

    # A slice has two such calls.
    assert turns.passes >= 10


# -- a root and those that it wakes ----------------------------------------------------------------


@pytest.mark.parametrize("direct", [True, False])
async def test_processes_woken_by_a_plain_batch_run_in_its_turn_in_order(direct: bool) -> None:
    heard: list[tuple[object, int]] = []

    def tell(me: Any) -> None:
        for number, pid in enumerate(pids):
            me.send(pid, lambda _, number=number: heard.append((number, turns.passes)))
        heard.append(("told", turns.passes))

    async with running_node(direct_handoff=direct) as node:
        pids = [await node.spawn(Plain) for _ in range(5)]
        root = await node.spawn(Plain)
        await wait_all_tasks_blocked()
        async with watched_turns() as turns:
            node.send(root, tell)
            await wait_all_tasks_blocked()

    assert heard[0] == ("told", 1)
    assert sorted(heard[1:]) == [(number, 1 if direct else 2) for number in range(5)]
    assert not direct or heard[1:] == sorted(heard[1:])


async def test_many_plain_senders_wake_their_receiver_once() -> None:
    steps: list[Any] = []

    class Steps(trio.abc.Instrument):
        def before_task_step(self, task: Task) -> None:
            steps.append(task)

    async with running_node() as node:
        heard: list[Any] = []
        receiver = await node.spawn(Recorder, heard)
        senders = [await node.spawn(Plain) for _ in range(10)]
        await wait_all_tasks_blocked()
        task = process_of(node, receiver).task
        trio.lowlevel.add_instrument(instrument := Steps())
        for sender in senders:
            node.send(sender, lambda me: me.send(receiver, me.pid))
        await wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(instrument)

    assert sorted(heard) == senders
    assert steps.count(task) == 1


async def test_a_root_that_wakes_many_leaves_the_rest_to_trio() -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pids = [await node.spawn(Recorder, heard) for _ in range(100)]
        root = await node.spawn(Plain)
        await wait_all_tasks_blocked()
        node.send(root, lambda me: [me.send(pid, number) for number, pid in enumerate(pids)])
        await wait_all_tasks_blocked()

    assert sorted(heard) == list(range(100))


async def test_a_root_with_slow_steps_leaves_the_rest_to_trio(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter(range(1000))
    heard: list[Any] = []
    async with running_node() as node:
        pids = [await node.spawn(Recorder, heard) for _ in range(3)]
        root = await node.spawn(Plain)
        await wait_all_tasks_blocked()
        replace_private(monkeypatch, "clock of time slices", lambda: float(next(times)))
        async with watched_turns() as turns:
            node.send(root, lambda me: [me.send(pid, pid) for pid in pids])
            await wait_all_tasks_blocked()

    steps = [kind for kind, _ in turns.steps]
    assert sorted(heard) == sorted(pids)
    assert steps.count("scheduled") > 4


class Echo(Actor):
    """Answers a PID with its own."""

    def handle_message(self, message: PID, sender: Any) -> None:
        self.send(message, self.pid)


async def test_two_plain_processes_that_answer_each_other_let_other_tasks_run() -> None:
    async with running_node() as node:
        first, second = [await node.spawn(Echo) for _ in range(2)]
        await wait_all_tasks_blocked()
        node.send(first, second)
        with trio.fail_after(60):
            while process_of(node, first).turn.handled <= 100:  # noqa: ASYNC110
                await trio.sleep(0.001)
        node.kill(first)


async def test_a_message_is_served_though_the_root_that_sent_it_fails() -> None:
    errors: list[Any] = []

    def tell_and_fail(me: Any) -> None:
        me.send(witness, lambda other: errors.append(sys.exc_info()[1]))
        raise Failed

    async with running_node() as node:
        witness = await node.spawn(Plain)
        root = await node.spawn(Plain)
        await wait_all_tasks_blocked()
        node.send(root, tell_and_fail)
        await wait_all_tasks_blocked()

    assert errors == [None]


class Waiter:
    def __init__(self) -> None:
        self.admitted: list[bool] = []

    def settle(self, admitted: bool, /) -> None:
        self.admitted.append(admitted)


async def test_a_process_with_waiting_senders_gets_a_turn_of_its_own() -> None:
    heard: list[tuple[str, int]] = []
    waiter = Waiter()

    def tell(me: Any) -> None:
        me.send(full, lambda _: heard.append(("first", turns.passes)))
        second = (MESSAGE, me.pid, None, lambda _: heard.append(("second", turns.passes)))
        process_of(node, full).mailbox.wait_for_room(Lane.MAIN, second, waiter)

    async with running_node() as node:
        full = await node.spawn(Plain, mailbox_size=1, overflow=Overflow.WAIT)
        root = await node.spawn(Plain)
        await wait_all_tasks_blocked()
        async with watched_turns() as turns:
            node.send(root, tell)
            await wait_all_tasks_blocked()

    assert heard == [("first", 2), ("second", 2)]
    assert waiter.admitted == [True]


async def test_a_process_killed_while_a_root_has_woken_it_ends() -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Recorder, heard)
        root = await node.spawn(Plain)
        await wait_all_tasks_blocked()
        node.send(root, lambda me: (me.send(pid, "message"), node.kill(pid)))
        await wait_all_tasks_blocked()

        assert node.processes() == [root]
    assert heard == []


# -- single steps, as trio runs them ---------------------------------------------------------------


class Sleeper:
    """A task that parks, and then awaits a function."""

    def __init__(self, then: Callable[[], Awaitable[object]]) -> None:
        self.then = then
        self.task: Any = None
        self.mailbox: Any = SimpleNamespace(waiters=None)

    async def run(self) -> None:
        self.task = current_task()
        await park(self.task)
        await self.then()


@asynccontextmanager
async def asleep(then: Callable[[], Awaitable[object]]) -> AsyncIterator[Sleeper]:
    sleeper = Sleeper(then)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeper.run)
        await wait_all_tasks_blocked()
        yield sleeper


async def test_a_task_that_raises_in_a_step_fails_its_nursery() -> None:
    async def fail() -> None:
        raise Failed

    with pytest.raises(ExceptionGroup) as caught:
        async with asleep(fail) as sleeper:
            turns_of_loop(True).step(sleeper)

    (error,) = caught.value.exceptions
    assert isinstance(error, Failed)
    assert error.__traceback__ is not None
    assert error.__traceback__.tb_frame.f_code is Sleeper.run.__code__


async def test_a_task_that_is_cancelled_is_told_when_its_step_ends() -> None:
    ends = []

    async def sleep() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await trio.sleep_forever()
        ends.append(scope.cancelled_caught)

    async with asleep(sleep) as sleeper:
        turns_of_loop(True).step(sleeper)

    assert ends == [True]


async def test_a_task_that_awaits_another_framework_gets_a_type_error() -> None:
    errors = []

    @types.coroutine
    def foreign() -> Generator[Any, Any, None]:
        yield "not a trap of trio"

    async def wait() -> None:
        try:
            await foreign()
        except TypeError as error:
            errors.append(str(error))

    async with asleep(wait) as sleeper:
        turns_of_loop(True).step(sleeper)

    assert "unrecognized yield message 'not a trap of trio'" in errors[0]


async def test_a_task_that_detaches_its_coroutine_has_ended() -> None:
    ends = []

    async def leave() -> None:
        await trio.lowlevel.permanently_detach_coroutine_object(outcome.Value(None))
        ends.append("resumed elsewhere")

    async with asleep(leave) as sleeper:
        turns_of_loop(True).step(sleeper)
        coroutine = sleeper.task.coro
    with pytest.raises(StopIteration):
        coroutine.send(None)

    assert ends == ["resumed elsewhere"]


def test_the_main_task_of_each_guest_run_may_end_in_a_step() -> None:
    """Its host unwraps the outcome, which no other task may share."""

    async def main() -> None:
        sleeper = Sleeper(checkpoint)
        sleeper.task = current_task()

        async def step() -> None:
            turns_of_loop(True).step(sleeper)

        trio.lowlevel.spawn_system_task(step)
        await park(sleeper.task)

    for _ in range(2):
        jobs: SimpleQueue[Callable[[], object]] = SimpleQueue()
        ends: list[outcome.Outcome[None]] = []
        trio.lowlevel.start_guest_run(
            main, run_sync_soon_threadsafe=jobs.put, done_callback=ends.append
        )
        while not ends:
            jobs.get(timeout=60)()
        ends[0].unwrap()


async def test_a_task_that_raises_in_its_last_step_fails_its_nursery() -> None:
    async def fail() -> None:
        raise Failed

    with pytest.raises(ExceptionGroup) as caught:
        async with asleep(fail) as sleeper:
            turns_of_loop(True).end_asleep(sleeper.task)

    assert [type(error) for error in caught.value.exceptions] == [Failed]


async def test_a_task_that_waits_in_its_last_step_goes_on_in_turns_of_trio() -> None:
    ends = []

    async def wait() -> None:
        await checkpoint()
        ends.append(current_task())

    async with asleep(wait) as sleeper:
        me = current_task()
        turns_of_loop(True).end_asleep(sleeper.task)
        assert current_task() is me
        before = list(ends)

    assert (before, ends) == ([], [sleeper.task])


async def test_a_task_that_was_woken_takes_its_last_step_in_a_turn_of_trio() -> None:
    ends = []

    async def end() -> None:
        ends.append("ended")

    async with asleep(end) as sleeper:
        turns_of_loop(True).wake(sleeper)
        turns_of_loop(True).end_asleep(sleeper.task)
        before = list(ends)

    assert (before, ends) == ([], ["ended"])


async def test_a_second_root_is_no_root() -> None:
    turns = turns_of_loop(True)
    await trio.lowlevel.checkpoint()
    task = current_task()

    assert turns.begin(task)
    assert not turns.begin(task)
    assert not turns.serve(task)
    assert turns.begin(task)
    assert not turns.end(task)
    assert not turns.end(task)


async def test_a_root_that_wakes_many_does_deferred_work_after_all_steps() -> None:
    order: list[str] = []

    async def step() -> None:
        order.append("step")
        turns.defer(lambda: order.append("deferred"))

    turns = turns_of_loop(True)
    async with asleep(step) as first, asleep(step) as second:
        await checkpoint()
        assert turns.begin(current_task(), True)
        assert turns.defers
        turns.wake(first)
        turns.wake(second)
        assert turns.serve(current_task())

        assert order == ["step", "step", "deferred", "deferred"]
        assert not turns.defers


async def test_a_root_that_wakes_few_defers_nothing() -> None:
    turns = turns_of_loop(True)
    await checkpoint()

    assert turns.begin(current_task())
    assert not turns.defers
    turns.end(current_task())


async def test_deferred_work_is_done_though_other_work_fails_or_no_process_was_woken() -> None:
    done: list[str] = []

    def fail() -> None:
        raise Failed

    turns = turns_of_loop(True)
    await checkpoint()
    assert turns.begin(current_task(), True)
    turns.defer(fail)
    turns.defer(lambda: done.append("second"))
    with pytest.raises(Failed):
        turns.serve(current_task())

    assert done == ["second"]


async def test_only_a_root_that_wakes_many_begins_beside_other_tasks() -> None:
    begun: list[bool] = []

    async def begin() -> None:
        task = current_task()
        begun.append(turns.begin(task))
        begun.append(turns.begin(task, True))
        turns.end(task)

    turns = turns_of_loop(True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(begin)
        nursery.start_soon(begin)

    assert begun == [False, True] * 2


async def test_turns_without_hand_off_step_nothing() -> None:
    turns, task, sleeper = TrioTurns(), current_task(), Sleeper(trio.lowlevel.checkpoint)

    assert not turns.may_step(sleeper)
    assert not turns.begin(task)
    assert not turns.serve(task)
    assert not turns.defers
    with pytest.raises(NotImplementedError):
        turns.step(sleeper)
    with pytest.raises(NotImplementedError):
        turns.defer(lambda: None)


# -- finalizers that send to the process that is being woken ---------------------------------------


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("beside", [True, False])
async def test_a_finalizer_sends_to_the_process_that_a_message_wakes(
    direct: bool, beside: bool
) -> None:
    async with running_node(direct_handoff=direct) as node, trio.open_nursery() as nursery:
        heard: list[Any] = []
        receiver = await node.spawn(Recorder, heard)
        await wait_all_tasks_blocked()
        if beside:  # another task is scheduled
            nursery.start_soon(trio.lowlevel.checkpoint)
        Collected(process_of(node, receiver).task, lambda: node.send(receiver, "finalizer"))

        node.send(receiver, "message")
        await wait_all_tasks_blocked()

        assert sorted(heard) == ["finalizer", "message"]
        assert await node.call(receiver, None) == heard


@pytest.mark.parametrize("direct", [True, False])
async def test_a_finalizer_sends_to_the_process_that_a_plain_callback_wakes(direct: bool) -> None:
    async with running_node(direct_handoff=direct) as node:
        heard: list[Any] = []
        receiver, sender = await node.spawn(Recorder, heard), await node.spawn(Plain)
        await wait_all_tasks_blocked()
        Collected(process_of(node, receiver).task, lambda: node.send(receiver, "finalizer"))

        node.send(sender, lambda me: me.send(receiver, "message"))
        await wait_all_tasks_blocked()

        assert sorted(heard) == ["finalizer", "message"]


@pytest.mark.parametrize("direct", [True, False])
async def test_a_finalizer_sends_to_the_callee_that_a_call_wakes(direct: bool) -> None:
    async with running_node(direct_handoff=direct) as node:
        callee = await node.spawn(Asynchronous)
        await wait_all_tasks_blocked()
        Collected(process_of(node, callee).task, lambda: node.send(callee, "finalizer"))

        assert await node.call(callee, lambda me: "answer") == "answer"
        await wait_all_tasks_blocked()

        assert await node.call(callee, lambda me: me.heard) == ["finalizer"]


async def test_a_callee_that_is_woken_before_its_step_takes_the_step_in_its_own_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_node() as node:
        callee, caller = await node.spawn(Asynchronous), await node.spawn(Puppet)
        await wait_all_tasks_blocked()
        orders = [lambda: node.send(callee, "finalizer")]

        def clock() -> float:
            """The caller begins to wait: a finalizer runs between the look and the step."""
            if orders and process_of(node, caller).waiting is not None:
                orders.pop()()
            return 0.0

        async def ask(me: Puppet) -> None:
            replace_private(monkeypatch, "clock of processes", clock)
            answers.append(await me.call(callee, lambda callee: "answer"))
            me.send(callee, "message")

        answers: list[str] = []
        node.send(caller, ask)  # not a call: steps do not nest
        await wait_all_tasks_blocked()

        assert (answers, orders) == (["answer"], [])
        assert await node.call(callee, lambda me: me.heard) == ["finalizer", "message"]


async def test_a_finalizer_kills_the_process_that_is_being_woken() -> None:
    async with running_node() as node:
        receiver = await node.spawn(Asynchronous)
        await node.call(receiver, lambda me: None)
        Collected(process_of(node, receiver).task, lambda: node.kill(receiver))

        node.send(receiver, "message")
        while receiver in node.processes():
            await trio.lowlevel.checkpoint()

        assert await node.spawn(Recorder)


# -- the first and the last step of a task --------------------------------------------------------


class Heard(Actor):
    """Notes its messages."""

    def __init__(self, heard: list[Any]) -> None:
        self.heard = heard

    def handle_message(self, message: Any, sender: Any) -> None:
        self.heard.append(message)


async def test_a_new_process_sleeps_without_a_turn_of_the_scheduler() -> None:
    heard: list[Any] = []
    async with running_node() as node:
        process = process_of(node, await node.spawn(Heard, heard))
        mark = process.task.custom_sleep_data
        node.send(process.id, "first")
        await wait_all_tasks_blocked()

    assert mark is PARKED
    assert heard == ["first"]


async def test_a_process_handles_a_message_of_a_thread_that_came_while_its_task_was_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin_task, heard = Process.begin_task, list[Any]()

    def send_meanwhile(process: Process, task: Task) -> None:
        begin_task(process, task)
        thread = threading.Thread(target=node.send, args=(process.id, "meanwhile"))
        thread.start()
        thread.join()

    async with running_node() as node:
        monkeypatch.setattr(Process, "begin_task", send_meanwhile)
        await node.spawn(Heard, heard)
        await wait_all_tasks_blocked()

    assert heard == ["meanwhile"]


class New:
    """A process whose task is to sleep."""

    mailbox = NoMailbox()
    task: Task

    def begin_task(self, task: Task) -> None:
        self.task = task

    def has_work(self) -> bool:
        return False


async def sleep(process: Any) -> None:
    await park(process.task)


async def test_the_last_task_of_a_nursery_that_ends_in_a_step_closes_the_nursery() -> None:
    turns, process = turns_of_loop(True), New()

    async def end() -> None:
        await wait_all_tasks_blocked()
        turns.end_asleep(process.task)

    with trio.fail_after(60):
        async with trio.open_nursery() as outer, trio.open_nursery() as nursery:
            turns.start(process, sleep, nursery, copy_context(), "new")
            assert process.task in nursery.child_tasks
            outer.start_soon(end)

    assert not nursery.child_tasks


async def test_a_task_that_ends_in_a_step_breaks_its_parking_lots() -> None:
    turns, process, lot = turns_of_loop(True), New(), trio.lowlevel.ParkingLot()
    async with trio.open_nursery() as nursery:
        turns.start(process, sleep, nursery, copy_context(), "new")
        trio.lowlevel.add_parking_lot_breaker(process.task, lot)
        turns.end_asleep(process.task)

    assert lot.broken_by == [process.task]


async def test_instruments_see_the_first_step_of_a_process() -> None:
    async with running_node() as node, watched_turns() as turns:
        task = process_of(node, await node.spawn(Recorder)).task
        await wait_all_tasks_blocked()
        seen = [what for what, whose in turns.steps if whose.name == Recorder.__qualname__]

    assert task is not None
    assert seen == ["scheduled", "before", "after"]


@pytest.mark.parametrize("moment", ["before", "between"])
async def test_a_process_that_starts_in_a_cancelled_node_ends(moment: str) -> None:
    """Its task is cancelled at its first sleep."""
    ends: list[str] = []
    async with trio.open_nursery() as nursery:
        turns = turns_of_loop(True)

        class New:
            def begin_task(self, task: Task) -> None:
                self.task = task
                nursery.cancel_scope.cancel()  # as a finalizer may do it here

            def has_work(self) -> bool:
                return False

        async def body(process: Any) -> None:
            try:
                await park(current_task() if moment == "before" else process.task)
            finally:
                ends.append("ended")

        if moment == "before":
            nursery.cancel_scope.cancel()
        new: Any = New()
        turns.start(new, body, nursery, copy_context(), "new")

    assert ends == ["ended"]


async def test_a_process_that_is_stopped_in_its_sleep_leaves_no_task() -> None:
    async with running_node() as node:
        process = process_of(node, await node.spawn(Recorder))
        task, nursery = process.task, process.kernel.nursery
        before = task in nursery.child_tasks

        await process.shut(Shutdown())
        after = task in nursery.child_tasks

    assert (before, after) == (True, False)


async def test_instruments_see_the_last_step_of_a_process_that_is_stopped_in_its_sleep() -> None:
    async with running_node() as node:
        process = process_of(node, await node.spawn(Recorder))
        task = process.task
        async with watched_turns() as turns:
            await process.shut(Shutdown())
        seen = [what for what, whose in turns.steps if whose is task]

    assert seen == ["scheduled", "before", "after"]


async def test_a_supervisor_restarts_a_child_in_the_turn_of_its_end() -> None:
    async with running_node() as node:
        passes: list[int] = []

        class Child(Actor):
            def init(self) -> None:
                passes.append(turns.passes)

        async with watched_turns() as turns:
            await node.supervise([ChildSpec("child", Child)])
            await wait_all_tasks_blocked()
            before = turns.passes
            node.kill("child")
            await wait_all_tasks_blocked()

    assert passes[1] - before == 1


async def test_a_process_that_sends_to_itself_in_init_handles_it_in_its_own_task() -> None:
    tasks: list[Task] = []

    class Eager(Actor):
        def init(self) -> None:
            self.send(self.pid, "begin")

        def handle_message(self, message: Any, sender: Any) -> None:
            tasks.append(current_task())

    async with running_node() as node:
        process = process_of(node, await node.spawn(Eager))
        await wait_all_tasks_blocked()

        assert tasks == [process.task]
