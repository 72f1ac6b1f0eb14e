"""The processes of tasks: their parents, their ends, their time limits."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    Actor,
    BadInputError,
    ChildSpec,
    Custom,
    Killed,
    NodeStoppedError,
    NotAllowedError,
    Reason,
    Supervisor,
    SupervisorSpec,
    TargetDownError,
    TaskSupervisor,
    Threads,
)
from ergo_py._core.vocabulary.errors import (
    TaskEndedError,
    TaskTimeoutError,
    TooManyProcessesError,
    TooManyTasksError,
)
from ergo_py.errors import UnhandledCallError
from ergo_py.tasks import Task
from tests.actors import Failed, Puppet
from tests.support import running_node


class Owner(Puppet):
    """Keeps its tasks, and the ends of its children."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[Any] = []
        self.total = 0

    def handle_child_exit(self, child: Any, reason: Reason) -> None:
        self.ends.append((child, reason))

    async def ask(self, to: Any, request: Any) -> Any:
        return await self.call(to, request)


async def test_a_task_is_a_child_with_the_name_of_its_function_in_the_tree() -> None:
    async with running_node() as node:
        owner = await node.spawn(Owner)
        pid = await node.call(owner, lambda me: me.run_task(trio.sleep_forever).pid)
        named = await node.call(owner, lambda me: me.run_task(trio.sleep, 9, name="nap").pid)

        assert node.process_info(pid).parent == owner
        assert node.process_info(pid).behaviour == "Task sleep_forever"
        assert "Task nap" in str(node.tree())
        assert await node.inspect(named) == {"task": "nap"}


async def test_tasks_end_with_the_process_that_started_them_all_at_once(
    autojump_clock: MockClock,
) -> None:
    ended: list[float] = []

    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
            ended.append(trio.current_time())

    async with running_node() as node:
        owner = await node.spawn(Owner)
        tasks: list[Task[Any]] = await node.call(
            owner, lambda me: [me.run_task(work) for _ in range(20)]
        )
        await wait_all_tasks_blocked()
        node.send_exit(owner)
        await node.wait_ended(owner)
        for task in tasks:
            assert isinstance(task.failure, TaskEndedError)
        assert node.processes() == []

    assert len(ended) == 20
    assert max(ended) - min(ended) < 0.5


@pytest.mark.parametrize("end", ["kill", "crash", "node"])
async def test_no_task_outlives_its_parent(end: str) -> None:
    steps: list[str] = []

    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            steps.append("cleanup")

    def crash(me: Any) -> None:
        raise Failed

    async with running_node() as node:
        owner = await node.spawn(Owner)
        task: Task[None] = await node.call(owner, lambda me: me.run_task(work))
        await wait_all_tasks_blocked()
        if end != "node":
            node.kill(owner) if end == "kill" else node.send(owner, crash)
            await node.wait_ended(owner)
            assert node.processes() == []

    assert steps == ["cleanup"]
    assert isinstance(task.failure, TaskEndedError)
    assert node.exit_report is not None
    assert node.exit_report.killed == ()


async def test_a_task_may_use_the_verbs_of_its_parent_while_the_parent_sleeps() -> None:
    async with running_node() as node:
        echo = await node.spawn(Puppet, ["kept"])
        owner = await node.spawn(Owner)
        task: Task[Any] = await node.call(owner, lambda me: me.run_task(me.ask, echo, "all"))
        await wait_all_tasks_blocked()

        assert await task == ["kept"]


async def test_a_task_may_use_the_verbs_of_its_parent_in_a_nursery_of_its_own() -> None:
    async def ask_twice(me: Any, to: Any) -> list[Any]:
        got: list[Any] = []

        async def ask() -> None:
            await trio.lowlevel.checkpoint()
            got.append(await me.call(to, "all"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)
        return got

    async with running_node() as node:
        echo = await node.spawn(Puppet, ["kept"])
        owner = await node.spawn(Owner)
        task: Task[Any] = await node.call(owner, lambda me: me.run_task(ask_twice, me, echo))

        assert await task == [["kept"], ["kept"]]


async def test_other_code_may_not_use_the_verbs_of_a_sleeping_process_with_tasks() -> None:
    async with running_node() as node:
        owner = await node.spawn(Owner)
        me = await node.call(owner, lambda me: (me.run_task(trio.sleep_forever), me)[1])
        await wait_all_tasks_blocked()
        with pytest.raises(NotAllowedError, match="sleep"):
            me.call(owner, "all")


async def test_the_end_of_a_task_is_told_to_the_parent_after_its_result() -> None:
    async def answer() -> int:
        return 5

    async with running_node() as node:
        owner = await node.spawn(Owner)
        task: Task[int] = await node.call(owner, lambda me: me.run_task(answer))
        await node.wait_ended(task.pid)
        ends: list[Any] = await node.call(owner, lambda me: me.ends)

    assert [(child, str(reason)) for child, reason in ends] == [(task.pid, "normal")]
    assert task.result() == 5


async def test_a_failure_of_a_task_does_not_end_its_parent() -> None:
    async def fail() -> None:
        raise Failed

    async with running_node() as node:
        owner = await node.spawn(Owner)
        task: Task[None] = await node.call(owner, lambda me: me.run_task(fail))
        with pytest.raises(Failed):
            await task
        assert await node.call(owner, "all") == []


async def test_a_process_that_is_ending_starts_no_task() -> None:
    errors: list[BaseException] = []

    class Late(Actor):
        def terminate(self, reason: Reason) -> None:
            try:
                _ = self.run_task(trio.sleep_forever)
            except NotAllowedError as error:
                errors.append(error)

    async with running_node() as node:
        late = await node.spawn(Late)
        node.send_exit(late)
        await node.wait_ended(late)

    assert "stopping" in str(errors)


async def test_a_node_that_has_stopped_starts_no_task() -> None:
    async with running_node() as node:
        pass
    with pytest.raises(NodeStoppedError):
        _ = node.run_task(trio.sleep_forever)


async def test_the_limit_of_processes_counts_tasks() -> None:
    async with running_node(max_processes=1) as node:
        kept = node.run_task(trio.sleep_forever)
        with pytest.raises(TooManyProcessesError):
            _ = node.run_task(trio.sleep_forever)
        kept.cancel()


async def test_a_time_limit_ends_a_task_with_a_timeout_at_its_moment(
    autojump_clock: MockClock,
) -> None:
    async def reluctant() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(3)

    async with running_node() as node:
        began = trio.current_time()
        task = node.run_task(reluctant, timeout=2.0, name="slow")
        with pytest.raises(TaskTimeoutError, match="slow took more than 2 s") as caught:
            await task
        assert trio.current_time() - began == pytest.approx(2.0)
        assert task.pid in node.processes()  # it has time for its cleanup
        await node.wait_ended(task.pid)
        assert trio.current_time() - began == pytest.approx(5.0)

    assert isinstance(caught.value, TimeoutError)
    assert caught.value.timeout == 2.0


async def test_a_task_within_its_time_limit_leaves_no_deadline() -> None:
    async with running_node() as node:
        task = node.run_task(trio.sleep, 0, timeout=1000.0)
        await task
        await node.wait_ended(task.pid)

    assert task.failure is None


async def test_a_task_that_ignores_cancellation_is_cut_off(autojump_clock: MockClock) -> None:
    async def shielded() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep_forever()

    async with running_node() as node:
        task = node.run_task(shielded)
        await wait_all_tasks_blocked()
        task.cancel()
        with pytest.raises(TaskEndedError):
            await task
        assert node.processes() == []


async def test_an_exit_of_the_program_in_a_task_ends_the_node() -> None:
    async def leave() -> None:
        raise SystemExit(3)

    tasks: list[Task[None]] = []
    with pytest.raises(SystemExit):
        async with running_node() as node:
            tasks.append(node.run_task(leave))
            await trio.sleep_forever()

    assert isinstance(tasks[0].failure, SystemExit)


async def test_a_group_with_a_cancellation_inside_is_the_failure_without_it() -> None:
    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise Failed

    async with running_node() as node:
        task = node.run_task(work)
        with pytest.raises(ExceptionGroup) as caught:
            await task

    assert caught.group_contains(Failed)


async def test_a_task_refuses_messages_and_calls() -> None:
    async with running_node() as node:
        task = node.run_task(trio.sleep_forever)
        assert node.send(task.pid, "hello")
        with pytest.raises(UnhandledCallError):
            await node.call(task.pid, "hello")
        assert node.process_info(task.pid).unhandled == 2


class TestTaskSupervisor:
    async def test_tasks_under_it_survive_the_process_that_started_them(self) -> None:
        release = trio.Event()

        async def work() -> str:
            await release.wait()
            return "done"

        async with running_node() as node:
            tasks = await node.spawn(TaskSupervisor, name="tasks")
            owner = await node.spawn(Owner)
            task: Task[str] = await node.call(owner, lambda me: me.run_task(work, under="tasks"))
            node.kill(owner)
            await node.wait_ended(owner)
            assert node.process_info(task.pid).parent == tasks
            release.set()

            assert await task == "done"

    async def test_tasks_end_with_it(self) -> None:
        async with running_node() as node:
            tasks = await node.spawn(TaskSupervisor)
            task = node.run_task(trio.sleep_forever, under=tasks)
            node.send_exit(tasks)
            await node.wait_ended(tasks)

            assert isinstance(task.failure, TaskEndedError)

    async def test_it_refuses_more_than_max_tasks_until_some_have_ended(self) -> None:
        async with running_node() as node:
            await node.spawn(TaskSupervisor, 2, name="tasks")
            first = node.run_task(trio.sleep_forever, under="tasks")
            _ = node.run_task(trio.sleep_forever, under="tasks")
            with pytest.raises(TooManyTasksError, match="max_tasks=2") as caught:
                _ = node.run_task(trio.sleep_forever, under="tasks")
            first.cancel()
            await node.wait_ended(first.pid)
            _ = node.run_task(trio.sleep_forever, under="tasks")
            shown = await node.inspect("tasks")

        assert caught.value.limit == 2
        assert shown == {"tasks": "2", "started": "3", "max_tasks": "2"}

    async def test_it_can_be_supervised(self) -> None:
        async with running_node() as node:
            spec = SupervisorSpec([ChildSpec("tasks", TaskSupervisor, 5)])
            await node.spawn(Supervisor, spec)
            before = node.whereis("tasks")
            task = node.run_task(trio.sleep_forever, under="tasks")
            node.kill("tasks")
            with pytest.raises(TaskEndedError):
                await task
            while node.whereis("tasks") in (None, before):
                await trio.lowlevel.checkpoint()
            await node.run_task(trio.sleep, 0, under="tasks")

    @pytest.mark.parametrize("given", [0, -1, 1.5, "many"])
    async def test_a_wrong_limit_is_refused(self, given: Any) -> None:
        with pytest.raises(BadInputError, match="max_tasks"):
            TaskSupervisor(given)

    async def test_a_missing_or_wrong_supervisor_is_refused(self) -> None:
        async with running_node() as node:
            other = await node.spawn(Puppet)
            with pytest.raises(TargetDownError, match="no such process"):
                _ = node.run_task(trio.sleep_forever, under="tasks")
            with pytest.raises(BadInputError, match="TaskSupervisor"):
                _ = node.run_task(trio.sleep_forever, under=other)
            with pytest.raises(BadInputError, match="target"):
                node.run_task(trio.sleep_forever, under=5)  # type: ignore[call-overload, call-arg]  # pyright: ignore[reportCallIssue, reportArgumentType]

    async def test_it_refuses_messages_and_calls(self) -> None:
        async with running_node() as node:
            tasks = await node.spawn(TaskSupervisor)
            node.send(tasks, "hello")
            with pytest.raises(UnhandledCallError):
                await node.call(tasks, "hello")


async def test_a_plain_callback_in_a_thread_starts_a_task_and_waits_for_it() -> None:
    class InThread(Actor):
        def handle_call(self, request: Callable[[], Any], caller: object) -> object:
            return self.wait_for(self.run_task(trio.sleep, 0, name="nap").wait())

    async with running_node() as node:
        pid = await node.spawn(InThread, dispatcher=Threads())

        assert await node.call(pid, "go") is None


async def test_a_task_that_is_sent_an_exit_ends_with_its_reason() -> None:
    async with running_node() as node:
        task = node.run_task(trio.sleep_forever)
        node.send_exit(task.pid, "why not")
        with pytest.raises(TaskEndedError) as caught:
            await task
        killed = node.run_task(trio.sleep_forever)
        await wait_all_tasks_blocked()
        node.kill(killed.pid)
        await node.wait_ended(killed.pid)

    assert caught.value.reason == Custom("why not")
    assert killed.failure is not None
    assert isinstance(getattr(killed.failure, "reason", None), Killed)
