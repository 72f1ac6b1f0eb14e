"""Plain functions of tasks: in threads, with a dispatcher, and when they do not return."""

import threading
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import LOOP, BadInputError, Threads
from ergo_py._core.vocabulary.errors import TaskEndedError
from ergo_py.errors import CallbackError
from tests.actors import Failed
from tests.support import kernel_of, running_node


def thread_name(_: object = None) -> str:
    return threading.current_thread().name


class Gate:
    """A plain function that blocks until the test opens the gate."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.calls = 0

    def pass_through(self) -> str:
        self.calls += 1
        self.entered.set()
        self.opened.wait(30)
        return "through"


async def entered(gate: Gate) -> None:
    assert await trio.to_thread.run_sync(gate.entered.wait, 30)


async def test_a_plain_function_runs_in_another_thread_than_the_loop() -> None:
    async with running_node() as node:
        assert await node.run_task(thread_name) != threading.current_thread().name


async def test_a_dispatcher_says_where_a_plain_function_runs() -> None:
    async with running_node() as node:
        here = threading.current_thread().name
        assert await node.run_task(thread_name, dispatcher=LOOP) == here
        assert await node.run_task(thread_name, dispatcher=Threads()) != here
        pool = Threads("sums", 1)
        names = {await node.run_task(thread_name, dispatcher=pool) for _ in range(3)}

    assert names == {"sums-1"}


async def test_the_exception_of_a_plain_function_is_the_failure() -> None:
    def fail() -> None:
        raise Failed("in a thread")

    async with running_node() as node:
        for dispatcher in (None, Threads(), LOOP):
            with pytest.raises(Failed, match="in a thread"):
                await node.run_task(fail, dispatcher=dispatcher)


async def test_a_cancelled_task_waits_for_its_thread_and_drops_the_result() -> None:
    gate = Gate()
    async with running_node() as node:
        task = node.run_task(gate.pass_through)
        await entered(gate)
        task.cancel()
        await wait_all_tasks_blocked()
        assert not task.done
        gate.opened.set()
        with pytest.raises(TaskEndedError):
            await task
        assert node.info().threads_abandoned == 0


async def test_a_cancelled_task_that_waits_for_a_thread_never_runs() -> None:
    first, second = Gate(), Gate()
    async with running_node() as node:
        pool = Threads("single", 1)
        running = node.run_task(first.pass_through, dispatcher=pool)
        await entered(first)
        waiting = node.run_task(second.pass_through, dispatcher=pool)
        await wait_all_tasks_blocked()
        waiting.cancel()
        with pytest.raises(TaskEndedError):
            await waiting
        first.opened.set()
        assert await running == "through"
        await node.wait_ended(running.pid)

    assert second.calls == 0


async def test_a_thread_that_does_not_return_is_abandoned_and_counted() -> None:
    gate = Gate()
    try:
        async with running_node() as node:
            task = node.run_task(gate.pass_through)
            await entered(gate)
            node.kill(task.pid)
            node.kill(task.pid)
            with pytest.raises(TaskEndedError):
                await task
            abandoned = node.info().threads_abandoned
    finally:
        gate.opened.set()

    assert abandoned == 1


async def test_a_time_limit_holds_for_a_function_that_blocks_its_thread() -> None:
    gate = Gate()
    async with running_node() as node:
        task = node.run_task(gate.pass_through, timeout=0.01)
        with pytest.raises(TimeoutError):
            await task
        gate.opened.set()
        await node.wait_ended(task.pid)


async def test_no_more_threads_run_than_the_node_allows() -> None:
    gates = [Gate() for _ in range(3)]
    async with running_node() as node:
        kernel_of(node).task_threads.total_tokens = 2
        tasks = [node.run_task(gate.pass_through) for gate in gates]
        while sum(gate.calls for gate in gates) < 2:
            await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked()
        assert sum(gate.calls for gate in gates) == 2
        for gate in gates:
            gate.opened.set()
        assert [await task for task in tasks] == ["through"] * 3


async def test_an_async_function_with_a_thread_is_refused() -> None:
    async with running_node() as node:
        with pytest.raises(BadInputError, match="async function sleep"):
            _ = node.run_task(trio.sleep, 1, dispatcher=Threads())


@pytest.mark.parametrize("given", [5, None, "fetch"])
async def test_anything_but_a_function_is_refused(given: Any) -> None:
    async with running_node() as node:
        with pytest.raises(BadInputError, match=r"run_task\(fetch, url\)"):
            _ = node.run_task(given)


async def test_a_coroutine_instead_of_a_function_is_refused() -> None:
    async with running_node() as node:
        coroutine: Any = entered(Gate())
        with pytest.raises(BadInputError, match=r"run_task\(fetch, url\)"):
            _ = node.run_task(coroutine)
        coroutine.close()
        with pytest.raises(CallbackError, match="async function itself"):
            await node.run_task(lambda: entered(Gate()))


@pytest.mark.parametrize(
    "options", [{"timeout": -1}, {"timeout": "soon"}, {"name": 5}, {"dispatcher": "pool"}]
)
async def test_wrong_options_are_refused_before_anything_starts(options: Any) -> None:
    async with running_node() as node:
        with pytest.raises(BadInputError):
            _ = node.run_task(trio.sleep, 1, **options)
        with pytest.raises(BadInputError):
            node.run_task(trio.sleep, 1, reply_to=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
        assert node.processes() == []
