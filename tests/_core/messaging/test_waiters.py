"""A waiter is woken by its own answer or its own place, and by nothing else."""

import pytest
import trio
from trio.lowlevel import Task, checkpoint, current_task
from trio.testing import wait_all_tasks_blocked

from ergo_py import PID, Custom, Killed, TargetDownError
from ergo_py._core.messaging.waiters import CallWaiter, TaskCaller, TaskWaiter, ThreadCaller
from ergo_py._core.runtime.handoff import SWITCH, turns_of_loop
from ergo_py._core.runtime.parking import TrioTurns, park_as
from ergo_py._core.vocabulary.reasons import NoProcess
from tests.actors import Recorder
from tests.support import process_of, promise_answer, replace_private, running_node


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    # On a busy machine a step may take longer than a time slice, and the rest is left to trio.
    replace_private(monkeypatch, "clock of time slices", lambda: 0.0)


SENDER = PID("test@localhost", 1, 0)


def make_call(number: int, task: trio.lowlevel.Task) -> TaskCaller:
    return TaskCaller(SENDER, number, "callee", "request", task)


async def test_an_answer_wakes_the_task_that_called(nursery: trio.Nursery) -> None:
    calls: list[TaskCaller] = []
    answers: list[object] = []

    async def ask() -> None:
        task = trio.lowlevel.current_task()
        calls.append(make_call(1, task))
        await park_as(task, calls[0])
        answers.append(calls[0].result())

    nursery.start_soon(ask)
    await wait_all_tasks_blocked()
    settled = [calls[0].settle(answer, None) for answer in ("first", "second")]
    await wait_all_tasks_blocked()

    assert settled == [True, False]
    assert answers == ["first"]


async def test_a_late_answer_does_not_wake_a_task_that_waits_for_another_answer(
    nursery: trio.Nursery,
) -> None:
    calls: list[TaskCaller] = []
    answers: list[object] = []

    async def ask_twice() -> None:
        task = trio.lowlevel.current_task()
        calls.extend(make_call(number, task) for number in (1, 2))
        with trio.move_on_after(0):
            await park_as(task, calls[0])
        await park_as(task, calls[1])
        answers.append(calls[1].result())

    nursery.start_soon(ask_twice)
    await wait_all_tasks_blocked()
    calls[0].settle("late", None)
    await wait_all_tasks_blocked()
    woken_by_the_late_one = list(answers)
    calls[1].settle("the one it waits for", None)
    await wait_all_tasks_blocked()

    assert woken_by_the_late_one == []
    assert answers == ["the one it waits for"]


async def test_an_answer_before_the_task_sleeps_is_not_lost() -> None:
    call = make_call(1, trio.lowlevel.current_task())

    call.settle("at once", None)

    assert call.settled
    assert call.result() == "at once"


async def test_a_task_that_waits_for_room_learns_whether_it_was_admitted(
    nursery: trio.Nursery,
) -> None:
    waiters: list[TaskWaiter] = []
    admitted: list[bool | None] = []

    async def wait() -> None:
        waiter = TaskWaiter(trio.lowlevel.current_task())
        waiters.append(waiter)
        await park_as(waiter.task, waiter)
        admitted.append(waiter.admitted)

    for answer in (True, False):
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        waiters[-1].settle(answer)
        await wait_all_tasks_blocked()

    assert admitted == [True, False]


async def test_a_task_that_gave_up_waiting_for_room_is_not_woken(nursery: trio.Nursery) -> None:
    waiters: list[TaskWaiter] = []
    went_on = trio.Event()

    async def wait() -> None:
        waiter = TaskWaiter(trio.lowlevel.current_task())
        waiters.append(waiter)
        with trio.move_on_after(0):
            await park_as(waiter.task, waiter)
        await went_on.wait()

    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    waiters[0].settle(True)
    await wait_all_tasks_blocked()

    assert not went_on.is_set()
    assert went_on.statistics().tasks_waiting == 1
    went_on.set()


async def test_an_admitted_call_continues_to_wait_for_its_answer() -> None:
    async with running_node() as node:
        call = make_call(1, trio.lowlevel.current_task())
        call.callee = process_of(node, await node.spawn(Recorder))

        CallWaiter(call).settle(True)

        assert not call.settled


async def test_a_call_that_was_never_admitted_ends_with_the_reason_of_its_callee() -> None:
    async with running_node() as node:
        receiver = process_of(node, await node.spawn(Recorder))
        errors = []
        for reason in (Killed(), Custom("why"), None):
            call = make_call(1, trio.lowlevel.current_task())
            call.callee = receiver
            receiver.reason = reason
            CallWaiter(call).settle(False)
            errors.append(call.error)

    assert [error.reason for error in errors if isinstance(error, TargetDownError)] == [
        Killed(),
        Custom("why"),
        NoProcess(),
    ]


async def test_an_abandoned_call_gets_no_error_when_it_is_not_admitted() -> None:
    call = make_call(1, trio.lowlevel.current_task())
    call.abandon()

    CallWaiter(call).settle(False)

    assert call.error is None


class Scheduled(trio.abc.Instrument):
    """Notes the tasks that trio schedules."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def task_scheduled(self, task: Task) -> None:
        self.tasks.append(task)


@pytest.mark.parametrize("is_watched", [False, True])
@pytest.mark.parametrize("is_deferred", [False, True])
async def test_callers_of_a_process_wake_in_the_order_of_their_answers(
    nursery: trio.Nursery, is_deferred: bool, is_watched: bool
) -> None:
    calls: dict[int, TaskCaller] = {}
    scopes: dict[int, trio.CancelScope] = {}
    answers: list[object] = []

    async def ask(number: int) -> None:
        task = current_task()
        calls[number] = TaskCaller(SENDER, number, "callee", "request", task, callee)
        if is_deferred:
            calls[number].defer(callee)
        with trio.CancelScope() as scopes[number]:
            await park_as(task, calls[number])
            answers.append(calls[number].result())

    async with running_node() as node:
        callee = process_of(node, await node.spawn(Recorder))
        for number in range(5):
            nursery.start_soon(ask, number)
        await wait_all_tasks_blocked()
        scopes[4].cancel()
        scheduled = Scheduled()
        if is_watched:
            trio.lowlevel.add_instrument(scheduled)
        order = [2, 0, 3, 1]
        settled = [calls[number].settle(f"answer {number}", None) for number in (*order, 0, 4)]
        assert answers == []
        await wait_all_tasks_blocked()
        if is_watched:
            trio.lowlevel.remove_instrument(scheduled)
            woken = [task for task in scheduled.tasks if task in {calls[n].task for n in order}]
            assert woken == [calls[number].task for number in order]
        owed = callee.deferred

    assert settled == [True, True, True, True, False, True]
    assert sorted(map(str, answers)) == [f"answer {number}" for number in range(4)]
    assert scopes[4].cancelled_caught
    assert not owed


async def test_a_root_runs_callers_in_its_own_turn(
    nursery: trio.Nursery,
) -> None:
    order: list[object] = []
    calls: list[TaskCaller] = []

    async def ask(number: int) -> None:
        task = current_task()
        calls.append(make_call(number, task))
        await park_as(task, calls[-1])
        order.append(calls[number].result())

    for number in range(3):
        nursery.start_soon(ask, number)
        await wait_all_tasks_blocked()
    turns, root = turns_of_loop(True), current_task()
    await checkpoint()
    assert turns.begin(root)
    promise_answer(calls[2])
    settled = [calls[number].settle_in(turns, number, None) for number in (2, 0, 0)]
    order.append("brought")
    assert turns.serve(root)
    order.append("served")
    await wait_all_tasks_blocked()
    assert calls[1].settle_in(turns, "without a root", None)
    assert order == ["brought", 2, 0, "served"]
    await wait_all_tasks_blocked()

    assert settled == [True, True, False]
    assert order[4:] == ["without a root"]
    assert not calls[2].deferred


async def test_more_callers_than_a_root_may_run_wait_for_their_turn(
    nursery: trio.Nursery,
) -> None:
    order: list[object] = []
    calls: list[TaskCaller] = []

    async def ask(number: int) -> None:
        task = current_task()
        calls.append(make_call(number, task))
        await park_as(task, calls[number])
        order.append(number)

    for number in range(70):
        nursery.start_soon(ask, number)
        await wait_all_tasks_blocked()
    turns, root = turns_of_loop(True), current_task()
    await checkpoint()
    assert turns.begin(root)
    for caller in calls:
        caller.settle_in(turns, None, None)
    turns.end(root)
    assert order == []
    await wait_all_tasks_blocked()

    assert sorted(map(str, order)) == sorted(map(str, range(70)))


async def test_a_caller_that_waits_elsewhere_is_not_woken(nursery: trio.Nursery) -> None:
    turns, caller = turns_of_loop(True), make_call(1, current_task())

    assert caller.settle_in(turns, "nobody waits", None)
    assert caller.result() == "nobody waits"


async def test_without_direct_hand_off_an_answer_wakes_the_caller(nursery: trio.Nursery) -> None:
    answers: list[object] = []
    calls: list[TaskCaller] = []

    async def ask() -> None:
        task = current_task()
        calls.append(make_call(1, task))
        await park_as(task, calls[0])
        answers.append(calls[0].result())

    nursery.start_soon(ask)
    await wait_all_tasks_blocked()
    assert calls[0].settle_in(TrioTurns(), "woken", None)
    await wait_all_tasks_blocked()

    assert answers == ["woken"]


def test_the_call_of_a_thread_is_settled_at_once() -> None:
    caller = ThreadCaller(SENDER, 1, "callee", "request")

    assert caller.settle_in(TrioTurns(), "answer", None)
    assert caller.parker.wait(0)
