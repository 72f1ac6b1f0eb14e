"""Sleeping and waking below trio's own primitives: these tests say at once if a release of trio no
longer bears it.
"""

import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import trio
from trio.lowlevel import Task, current_task
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py._core.runtime.parking import (
    PARKED,
    TaskPlaceholder,
    park,
    park_as,
    wake,
    wake_with,
    yield_turn,
)
from tests.support import Collected


class Sleeper:
    """A task that parks again and again, and notes each time it wakes."""

    def __init__(self) -> None:
        self.wakeups = 0
        self.task: Task | None = None

    async def run(self) -> None:
        self.task = current_task()
        while True:
            await park(self.task)
            self.wakeups += 1

    def wake(self) -> None:
        assert self.task is not None
        wake(self.task)


async def test_a_parked_task_sleeps_until_it_is_woken_and_can_park_again(
    autojump_clock: MockClock,
) -> None:
    sleeper = Sleeper()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeper.run)
        await wait_all_tasks_blocked()
        seen = [sleeper.wakeups]

        for _ in range(100):
            sleeper.wake()
            await wait_all_tasks_blocked()
            seen.append(sleeper.wakeups)
        nursery.cancel_scope.cancel()

    assert seen == list(range(101))


async def test_a_task_does_not_park_while_its_queue_has_items(
    autojump_clock: MockClock,
) -> None:
    queue, marks = [1], []

    async def serve() -> None:
        task = current_task()
        await park(task, queue)
        marks.append(task.custom_sleep_data)
        queue.clear()
        await park(task, queue)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await wait_all_tasks_blocked()
        (task,) = nursery.child_tasks
        marks.append(task.custom_sleep_data)
        wake(task)

    assert marks == [None, PARKED]


async def test_waking_twice_before_the_task_runs_is_waking_once(autojump_clock: MockClock) -> None:
    sleeper = Sleeper()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeper.run)
        await wait_all_tasks_blocked()

        sleeper.wake()
        sleeper.wake()
        sleeper.wake()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    assert sleeper.wakeups == 1


async def test_the_mark_is_there_exactly_while_the_task_sleeps(autojump_clock: MockClock) -> None:
    sleeper = Sleeper()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeper.run)
        await wait_all_tasks_blocked()
        assert sleeper.task is not None
        asleep = sleeper.task.custom_sleep_data

        sleeper.wake()
        woken = sleeper.task.custom_sleep_data
        await wait_all_tasks_blocked()
        asleep_again = sleeper.task.custom_sleep_data
        nursery.cancel_scope.cancel()

    assert (asleep, woken, asleep_again) == (PARKED, None, PARKED)
    assert repr(PARKED) == "PARKED"


async def test_a_task_that_sleeps_elsewhere_is_not_woken(autojump_clock: MockClock) -> None:
    tasks: list[Task] = []
    event = trio.Event()

    async def wait() -> None:
        tasks.append(current_task())
        await event.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()

        wake(tasks[0])
        woken = wake_with(tasks[0], object())
        await wait_all_tasks_blocked()
        still = nursery.child_tasks
        event.set()

    assert woken is False
    assert still is not None


async def test_a_task_is_woken_by_its_own_mark_only(autojump_clock: MockClock) -> None:
    mark, other = object(), object()
    order: list[Any] = []
    tasks: list[Task] = []

    async def wait() -> None:
        tasks.append(current_task())
        await park_as(tasks[0], mark)
        order.append("woken")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()

        order.append(wake_with(tasks[0], other))
        wake(tasks[0])
        await wait_all_tasks_blocked()
        order.append(wake_with(tasks[0], mark))
        order.append(wake_with(tasks[0], mark))

    assert order == [False, True, False, "woken"]


@pytest.mark.parametrize(
    "sleep, mark",
    [
        (park, PARKED),
        (lambda task: park(task, []), PARKED),
        (lambda task: park_as(task, "a mark"), "a mark"),
    ],
    ids=["park", "park_with_queue", "park_as"],
)
async def test_a_cancellation_ends_the_sleep_and_takes_the_mark_away(
    autojump_clock: MockClock, sleep: Callable[[Task], Awaitable[None]], mark: Any
) -> None:
    caught: list[str] = []
    tasks: list[Task] = []

    async def wait() -> None:
        tasks.append(current_task())
        try:
            await sleep(tasks[0])
        except trio.Cancelled:
            caught.append("cancelled")
            raise

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        asleep = tasks[0].custom_sleep_data

        nursery.cancel_scope.cancel()
        # trio has rescheduled it, so no other code may.
        cleared = tasks[0].custom_sleep_data
        wake(tasks[0])
        woken = wake_with(tasks[0], mark)

    assert asleep == mark
    assert caught == ["cancelled"]
    assert cleared is None
    assert woken is False


async def test_a_task_that_was_woken_before_it_was_cancelled_wakes(
    autojump_clock: MockClock,
) -> None:
    order: list[str] = []
    tasks: list[Task] = []

    async def wait() -> None:
        tasks.append(current_task())
        await park(tasks[0])
        order.append("woken")
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            order.append("cancelled")
            raise

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()

        wake(tasks[0])
        nursery.cancel_scope.cancel()

    assert order == ["woken", "cancelled"]


async def test_a_thread_that_tries_to_wake_is_refused_and_no_wakeup_is_lost(
    autojump_clock: MockClock,
) -> None:
    sleeper = Sleeper()
    errors: list[BaseException] = []

    def from_a_thread() -> None:
        try:
            sleeper.wake()
        except RuntimeError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeper.run)
        await wait_all_tasks_blocked()

        thread = threading.Thread(target=from_a_thread)
        thread.start()
        thread.join()
        assert sleeper.task is not None
        mark = sleeper.task.custom_sleep_data
        sleeper.wake()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    assert len(errors) == 1
    assert mark is PARKED
    assert sleeper.wakeups == 1


async def test_a_placeholder_of_a_task_is_never_woken() -> None:
    placeholder = TaskPlaceholder()

    wake(placeholder)

    assert placeholder.custom_sleep_data is None


async def test_many_tasks_may_sleep_in_the_same_trap(autojump_clock: MockClock) -> None:
    sleepers = [Sleeper() for _ in range(50)]
    async with trio.open_nursery() as nursery:
        for sleeper in sleepers:
            nursery.start_soon(sleeper.run)
        await wait_all_tasks_blocked()

        for sleeper in sleepers[::2]:
            sleeper.wake()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    assert [sleeper.wakeups for sleeper in sleepers] == [1, 0] * 25


# -- turns -----------------------------------------------------------------------------------------


async def test_a_task_that_yields_its_turn_lets_each_other_task_run_once() -> None:
    steps: list[str] = []

    async def walk(name: str) -> None:
        for _ in range(5):
            steps.append(name)
            await yield_turn(current_task())

    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(walk, name)

    passes = [sorted(steps[begin : begin + 3]) for begin in range(0, 15, 3)]
    assert passes == [["a", "b", "c"]] * 5


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_a_task_that_yields_its_turn_is_cancelled_like_at_a_checkpoint(when: str) -> None:
    began = False
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            if when == "before":
                scope.cancel()
            else:
                nursery.start_soon(_cancel, scope)
            with trio.CancelScope(shield=True):
                await yield_turn(current_task())
            began = True
            await yield_turn(current_task())
            raise AssertionError("not cancelled")

    assert began
    assert scope.cancelled_caught


async def _cancel(scope: trio.CancelScope) -> None:
    scope.cancel()


@pytest.fixture
def default_handler() -> Iterator[None]:
    """The handler of a program, which trio replaces by its own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("default_handler")
def test_a_keyboard_interrupt_reaches_the_main_task_that_yields_its_turn() -> None:
    done: list[str] = []

    async def beside() -> None:
        await yield_turn(current_task())
        done.append("another task")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(beside)
            signal.raise_signal(signal.SIGINT)
            try:
                await yield_turn(current_task())
            except KeyboardInterrupt:
                done.append("the main task")
            await yield_turn(current_task())

    trio.run(main, restrict_keyboard_interrupt_to_checkpoints=True)

    assert sorted(done) == ["another task", "the main task"]


# -- finalizers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", [PARKED, "a mark"])
@pytest.mark.parametrize("cancels", [False, True])
async def test_a_finalizer_that_wakes_the_task_that_is_being_woken_schedules_it_once(
    autojump_clock: MockClock, mark: object, cancels: bool
) -> None:
    tasks: list[Task] = []
    ends: list[str] = []

    async def wait() -> None:
        tasks.append(current_task())
        with trio.CancelScope() as scope:
            scopes.append(scope)
            await (park(tasks[0]) if mark is PARKED else park_as(tasks[0], mark))
        ends.append("woken")
        await trio.sleep(1)

    def wake_it() -> object:
        return wake(tasks[0]) if mark is PARKED else wake_with(tasks[0], mark)

    scopes: list[trio.CancelScope] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        Collected(tasks[0], lambda: scopes[0].cancel() if cancels else wake_it())

        wake_it()

    assert ends == ["woken"]


async def test_a_thread_that_tries_to_wake_a_marked_task_is_refused_and_the_mark_stays(
    autojump_clock: MockClock,
) -> None:
    tasks: list[Task] = []
    errors: list[BaseException] = []

    async def wait() -> None:
        tasks.append(current_task())
        await park_as(tasks[0], "a mark")

    def from_a_thread() -> None:
        try:
            wake_with(tasks[0], "a mark")
        except RuntimeError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        thread = threading.Thread(target=from_a_thread)
        thread.start()
        thread.join()

        assert tasks[0].custom_sleep_data == "a mark"
        assert wake_with(tasks[0], "a mark") is True

    assert len(errors) == 1
