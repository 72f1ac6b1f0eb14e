"""The handle of a task: its result, its failure, and the wait for the first of several."""

import gc
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import BadInputError, Crashed, NotAllowedError, Shutdown, first_of
from ergo_py._core.vocabulary.errors import TaskEndedError
from ergo_py.tasks import Task, TaskResult
from tests.actors import Failed, Puppet, Recorder
from tests.support import kernel_of, running_node


async def value(result: Any, seconds: float = 0.0) -> Any:
    await trio.sleep(seconds)
    return result


async def fail(seconds: float = 0.0) -> None:
    await trio.sleep(seconds)
    raise Failed("on purpose")


async def test_a_task_gives_its_result_to_every_waiter_and_again() -> None:
    got: list[Any] = []

    async with running_node() as node:
        task = node.run_task(value, 5)

        async def wait() -> None:
            got.append(await task)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(wait)
        got.append(await task)

    assert got == [5, 5, 5]
    assert task.result() == 5
    assert task.failure is None


async def test_a_task_raises_the_exception_of_its_function_with_its_frames() -> None:
    async def fail_later() -> None:
        try:
            raise LookupError("the cause")
        except LookupError as cause:
            raise Failed("on purpose") from cause

    async with running_node() as node:
        task = node.run_task(fail_later)
        with pytest.raises(Failed):
            await task
        with pytest.raises(Failed) as caught:
            await task

    frames = [entry.name for entry in caught.traceback]
    assert frames[-1] == "fail_later"
    assert len(frames) <= 5, frames
    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.__traceback__ is not None


async def test_the_process_of_a_task_ends_as_crashed_after_a_failure_and_else_as_normal() -> None:
    async with running_node() as node:
        good, bad = node.run_task(value, 1), node.run_task(fail)
        reasons = [await node.wait_ended(task.pid) for task in (good, bad)]
        bad.failure  # noqa: B018 - takes the failure

    assert str(reasons[0]) == "normal"
    assert reasons[1] == Crashed(Failed("on purpose"))


async def test_a_wait_that_gives_up_leaves_the_task_running(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        task = node.run_task(value, 5, 10.0)
        with trio.move_on_after(1) as scope:
            await task

        assert scope.cancelled_caught
        assert not task.done
        with pytest.raises(NotAllowedError, match="await task"):
            task.result()
        assert await task == 5


async def test_a_cancelled_task_raises_task_ended_and_runs_its_cleanup() -> None:
    steps: list[str] = []

    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            steps.append("cleanup")

    async with running_node() as node:
        task = node.run_task(work)
        await wait_all_tasks_blocked()
        task.cancel()
        with pytest.raises(TaskEndedError, match="cancelled") as caught:
            await task
        task.cancel()

    assert isinstance(caught.value.reason, Shutdown)
    assert steps == ["cleanup"]


async def test_a_task_cancelled_before_its_first_step_ends() -> None:
    async with running_node() as node:
        task = node.run_task(trio.sleep_forever)
        task.cancel()
        with pytest.raises(TaskEndedError):
            await task


async def test_a_killed_task_raises_task_ended() -> None:
    async with running_node() as node:
        task = node.run_task(trio.sleep_forever)
        node.kill(task.pid)
        with pytest.raises(TaskEndedError, match="killed"):
            await task


async def test_a_task_that_finished_ignores_a_later_cancellation() -> None:
    async with running_node() as node:
        task = node.run_task(value, 5)
        assert await task == 5
        task.cancel()
        assert await task == 5


async def test_first_of_returns_the_task_that_is_done_first(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        slow, quick = node.run_task(value, "slow", 5.0), node.run_task(value, "quick", 1.0)

        assert await first_of(slow, quick) is quick
        assert await first_of(slow, quick) is quick
        assert not slow.done
        assert await first_of(slow) is slow
        assert await first_of(slow, quick) is slow


async def test_first_of_returns_a_failed_task_too(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        first: Task[Any] = await first_of(node.run_task(value, 1, 5.0), node.run_task(fail, 1.0))

    assert isinstance(first.failure, Failed)


@pytest.mark.parametrize("given", [(), (5,)])
async def test_first_of_refuses_anything_but_tasks(given: tuple[Any, ...]) -> None:
    with pytest.raises(BadInputError, match="one or more tasks"):
        _ = await first_of(*given)


@pytest.mark.counted
async def test_a_failure_is_reported_once_after_its_handle_is_dropped() -> None:
    async with running_node() as node:
        crashed: list[Any] = []
        kernel_of(node).lifetimes.watch_crashes(crashed.append)
        pid = node.run_task(fail).pid  # dropped before
        await node.wait_ended(pid)
        kept = node.run_task(fail)
        await node.wait_ended(kept.pid)
        assert len(crashed) == 1
        del kept
        gc.collect()

    assert [ended.reason for ended in crashed] == [Crashed(Failed("on purpose"))] * 2


async def test_a_failure_that_code_has_taken_is_not_reported() -> None:
    async with running_node() as node:
        crashed: list[Any] = []
        kernel_of(node).lifetimes.watch_crashes(crashed.append)
        awaited = node.run_task(fail)
        with pytest.raises(Failed):
            await awaited
        looked_at = node.run_task(fail)
        await node.wait_ended(looked_at.pid)
        assert looked_at.failure is not None
        cancelled = node.run_task(trio.sleep_forever)
        await wait_all_tasks_blocked()
        node.send_exit(cancelled.pid)
        await node.wait_ended(cancelled.pid)
        receiver = await node.spawn(Recorder)
        await node.wait_ended(node.run_task(fail, reply_to=receiver).pid)
        del awaited, looked_at, cancelled
        gc.collect()

    assert crashed == []


async def test_a_message_brings_the_result_or_the_failure_exactly_once(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        me = await node.spawn(Recorder, heard)
        tasks = [
            node.run_task(value, 5, reply_to=me, name="good"),
            node.run_task(fail, reply_to=me),
            node.run_task(trio.sleep_forever, reply_to=me),
            node.run_task(trio.sleep, 9, reply_to=me, timeout=1),
        ]
        await wait_all_tasks_blocked()
        node.kill(tasks[2].pid)
        for task in tasks:
            await node.wait_ended(task.pid)
        await wait_all_tasks_blocked()

    results: dict[Any, TaskResult[Any]] = {each.pid: each for each in heard}
    assert len(heard) == 4
    good, bad, killed, late = (results[task.pid] for task in tasks)
    assert (good.name, good.result(), good.error) == ("good", 5, None)
    with pytest.raises(Failed):
        bad.result()
    assert isinstance(killed.error, TaskEndedError)
    assert isinstance(late.error, TimeoutError)


async def test_a_result_is_no_dead_letter_if_its_receiver_has_ended() -> None:
    async with running_node() as node:
        parent = await node.spawn(Puppet)
        await node.call(parent, lambda me: me.run_task(trio.sleep_forever, reply_to=me.pid).pid)
        node.send_exit(parent)
        await node.wait_ended(parent)

        assert node.dead_letters() == []


async def test_a_full_mailbox_of_the_receiver_ends_neither_task_nor_node() -> None:
    async with running_node() as node:
        full = await node.spawn(Puppet, mailbox_size=1)
        release = trio.Event()
        node.send(full, lambda me: release.wait())
        await wait_all_tasks_blocked()
        node.send(full, "fills it")
        task = node.run_task(value, 5, reply_to=full)

        assert str(await node.wait_ended(task.pid)) == "normal"
        release.set()


def test_the_repr_of_a_task_shows_its_state() -> None:
    async def main() -> list[str]:
        async with running_node() as node:
            task = node.run_task(value, 5, name="five")
            shown = [repr(task)]
            await task
            return [*shown, repr(task)]

    running, done = trio.run(main)
    assert running.startswith("<Task five <PID")
    assert running.endswith("running>")
    assert done.endswith("done>")
