"""`run_task` and `map_stream` of a blocking node: tasks as futures."""

import asyncio
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, wait
from typing import Any

import pytest
import trio

from ergo_py import BadInputError, Node, NodeStoppedError, NotAllowedError, TaskSupervisor
from ergo_py._core.vocabulary.errors import TaskEndedError, TaskTimeoutError, TooManyTasksError
from ergo_py.blocking import handle, open_node
from ergo_py.blocking.loop_thread import OwnedNode
from ergo_py.blocking.tasks import BlockingTask
from ergo_py.tasks import FailedItem


async def twice(number: int) -> int:
    await trio.lowlevel.checkpoint()
    return 2 * number


def name_of_thread(prefix: str) -> str:
    return prefix + threading.current_thread().name


async def fail(text: str) -> int:
    raise LookupError(text)


async def run_on_the_loop(node: Node) -> None:
    handle(node).run_task(twice, 1)


@pytest.fixture
def node() -> Iterator[OwnedNode]:
    with open_node("tasks@localhost", log_output="none") as node:
        yield node


def test_an_async_and_a_plain_function_return_their_results(node: OwnedNode) -> None:
    assert node.run_task(twice, 4).result(60) == 8
    name = node.run_task(name_of_thread, "in ").result(60)
    assert name.startswith("in ")
    assert name != f"in {threading.current_thread().name}"
    assert not name.startswith("in ergo-loop")


def test_a_failure_is_raised_with_the_line_of_the_function(node: OwnedNode) -> None:
    task = node.run_task(fail, "gone")

    with pytest.raises(LookupError, match="gone") as caught:
        task.result(60)

    assert "raise LookupError(text)" in "".join(traceback.format_exception(caught.value))
    assert isinstance(task.exception(10), LookupError)
    assert node.info().crashed == 0


def test_a_failure_that_no_code_takes_is_a_crash(node: OwnedNode) -> None:
    task = node.run_task(fail, "lost")
    wait([task], 10)
    assert node.info().crashed == 0

    del task
    while node.info().crashed == 0:
        pass


def test_a_task_without_a_handle_runs_and_reports_its_failure(node: OwnedNode) -> None:
    node.run_task(fail, "lost")

    while node.info().crashed == 0:
        pass


def test_to_cancel_the_future_cancels_the_function(node: OwnedNode) -> None:
    seen = threading.Event()
    begun = threading.Event()

    async def long() -> None:
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            seen.set()

    task = node.run_task(long)
    assert begun.wait(60)
    assert task.cancel()
    with pytest.raises(CancelledError):
        task.result(60)
    assert seen.wait(60)
    node.wait_ended(task.pid)
    assert not node.run_task(twice, 1).cancelled()
    assert node.info().crashed == 0


def test_a_finished_task_cannot_be_cancelled(node: OwnedNode) -> None:
    task = node.run_task(twice, 1)
    assert task.result(60) == 2
    assert not task.cancel()
    assert task.result(0) == 2


def test_the_first_of_several_and_a_thread_that_stops_waiting(node: OwnedNode) -> None:
    async def never(number: int) -> int:
        await trio.sleep_forever()
        return number

    endless = node.run_task(never, 3)
    quick = node.run_task(twice, 3)

    done, _ = wait([endless, quick], return_when=FIRST_COMPLETED)
    assert done == {quick}
    with pytest.raises(TimeoutError):
        endless.result(0)
    assert node.process_info(endless.pid).pid == endless.pid
    assert endless.name.endswith("never")
    assert "never" in repr(endless)


def test_asyncio_waits_for_tasks_of_a_node(node: OwnedNode) -> None:
    async def main() -> list[int]:
        return await asyncio.gather(
            *(asyncio.wrap_future(node.run_task(twice, number)) for number in range(20))
        )

    assert asyncio.run(main()) == list(range(0, 40, 2))


def test_options_are_those_of_the_node(node: OwnedNode) -> None:
    with pytest.raises(TaskTimeoutError):
        node.run_task(trio.sleep_forever, timeout=0.01).result(60)
    node.spawn(TaskSupervisor, 1, name="tasks")
    first = node.run_task(trio.sleep_forever, under="tasks", name="first")
    with pytest.raises(TooManyTasksError):
        node.run_task(twice, 1, under="tasks")
    node.kill(first.pid)
    with pytest.raises(TaskEndedError):
        first.result(60)


def test_bad_input_is_refused_where_it_is_given(node: OwnedNode) -> None:
    with pytest.raises(BadInputError, match="run_task"):
        node.run_task("no function")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    with pytest.raises(BadInputError, match="timeout"):
        node.run_task(twice, 1, timeout=-1)
    options: Any = {"timeot": 1}
    with pytest.raises(BadInputError, match="did you mean timeout"):
        node.run_task(twice, 1, **options)
    with pytest.raises(NotAllowedError, match=r"`node.run_task` and `await`"):
        node.run(run_on_the_loop)
    with pytest.raises(BadInputError, match="at_once"):
        node.map_stream(twice, [1], at_once=0)


def test_a_node_that_stops_settles_its_tasks() -> None:
    with open_node("tasks@localhost", log_output="none") as node:
        task: BlockingTask[Any] = node.run_task(trio.sleep_forever)
    with pytest.raises(TaskEndedError):
        task.result(60)
    with pytest.raises(NodeStoppedError):
        node.run_task(twice, 1)


def test_map_stream_is_a_plain_iterator(node: OwnedNode) -> None:
    assert list(node.map_stream(twice, range(5), at_once=2)) == [0, 2, 4, 6, 8]
    failed = list(node.map_stream(fail, ["a"], on_failure=FailedItem))
    assert [type(each) for each in failed] == [FailedItem]


def test_a_consumer_that_leaves_early_cancels_the_functions_in_progress(node: OwnedNode) -> None:
    async def wait_for_ever(number: int) -> int:
        if number:
            await trio.sleep_forever()
        return number

    with node.map_stream(wait_for_ever, range(10), at_once=4) as results:
        assert next(results) == 0
        assert len(node.processes()) == 1
    assert node.processes() == []
