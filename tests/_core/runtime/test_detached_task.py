"""A detached task: it can be asked to end, and in the end be cut off."""

import contextvars
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py._core.runtime.detached_task import DetachedTask, without_cancellation

VARIABLE = contextvars.ContextVar("VARIABLE", default="nobody's")


def in_nursery(nursery: trio.Nursery) -> Any:
    """A kernel that starts its tasks in this nursery."""
    return SimpleNamespace(
        start=lambda function, *args, name: nursery.start_soon(function, *args, name=name)
    )


async def swallow_everything() -> None:
    while True:
        try:
            await trio.sleep(60)
        except trio.Cancelled:
            pass


async def test_a_detached_task_runs_in_an_empty_context_and_reports_its_end() -> None:
    seen: list[Any] = []
    detached = DetachedTask(lambda: seen.append("ended"))

    async def body() -> None:
        seen.append((VARIABLE.get(), detached.task is trio.lowlevel.current_task()))

    VARIABLE.set("mine")
    async with trio.open_nursery() as nursery:
        detached.start(in_nursery(nursery), body, "an detached")
        before = detached.task
        await detached.gone.wait()

    assert before is None
    assert seen == [("nobody's", True), "ended"]
    assert detached.task is None


async def test_a_detached_task_can_be_cancelled_before_it_has_begun_and_later() -> None:
    reached: list[str] = []

    async def body() -> None:
        reached.append("begun")
        await trio.sleep(60)
        reached.append("done")

    async with trio.open_nursery() as nursery:
        early, late = DetachedTask(), DetachedTask()
        for detached in (early, late):
            detached.start(in_nursery(nursery), body, "an detached")
        early.cancel()
        await early.gone.wait()
        late.cancel()
        await late.gone.wait()

    assert reached == ["begun", "begun"]


@pytest.mark.parametrize("when", ["before it begins", "in its sleep", "when it is runnable"])
async def test_a_detached_task_that_swallows_its_cancellation_is_cut_off(when: str) -> None:
    closed: list[str] = []

    async def body() -> None:
        try:
            await swallow_everything()
        finally:
            closed.append("closed")

    async with trio.open_nursery() as nursery:
        detached = DetachedTask()
        detached.start(in_nursery(nursery), body, "an detached")
        if when != "before it begins":
            await wait_all_tasks_blocked()
        if when == "when it is runnable":
            detached.cancel()
        was_cut = await detached.cut_off()
        again = await detached.cut_off()

    assert (was_cut, again) == (True, True)
    assert closed == ([] if when == "before it begins" else ["closed"])


async def test_a_detached_task_that_waits_for_a_thread_is_cut_off() -> None:
    held = threading.Event()

    async def body() -> None:
        await trio.to_thread.run_sync(held.wait)

    async with trio.open_nursery() as nursery:
        detached = DetachedTask()
        detached.start(in_nursery(nursery), body, "an detached")
        await wait_all_tasks_blocked()
        was_cut = await detached.cut_off()
    held.set()

    assert was_cut
    assert detached.gone.is_set()


async def test_a_detached_task_that_cannot_be_aborted_delays_no_nursery() -> None:
    ended: list[str] = []

    async def body() -> None:
        try:
            await trio.sleep_forever()
        finally:
            await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            detached = DetachedTask(lambda: ended.append("ended"))
            detached.start(in_nursery(nursery), body, "an detached")
            await wait_all_tasks_blocked()
            task = detached.task

            was_cut = await detached.cut_off()
            again = await detached.cut_off()

        # It is woken when it is needed no more.
        assert task is not None
        trio.lowlevel.reschedule(task)
        await wait_all_tasks_blocked()

    assert was_cut
    assert again
    assert detached.gone.is_set()
    assert ended == ["ended"]


async def cancellation() -> trio.Cancelled:
    """The error that trio raises to cancel a task."""
    caught: list[trio.Cancelled] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as error:
            caught.append(error)
            raise
    return caught[0]


async def test_a_cancellation_is_no_failure() -> None:
    cancelled = await cancellation()
    failure = ValueError()
    both = without_cancellation(BaseExceptionGroup("both", [cancelled, failure]))

    assert without_cancellation(failure) is failure
    assert without_cancellation(cancelled) is None
    assert without_cancellation(BaseExceptionGroup("one", [cancelled])) is None
    assert isinstance(both, BaseExceptionGroup)
    assert both.exceptions == (failure,)
