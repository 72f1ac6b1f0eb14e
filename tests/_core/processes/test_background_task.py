"""Background tasks of a process: they go on between its callbacks, crash with it, and end before
it.
"""

import asyncio
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    Actor,
    BadInputError,
    Caller,
    ChildSpec,
    Crashed,
    Custom,
    InitError,
    Killed,
    NotAllowedError,
    Reason,
    Shutdown,
    Supervisor,
    SupervisorSpec,
    TargetDownError,
    Threads,
)
from ergo_py._core.vocabulary.reasons import Normal
from ergo_py.supervision import Decision
from tests.actors import Failed, Puppet, Recorder, Stubborn
from tests.support import process_of, running_node


class Ticker(Puppet):
    """Counts in a background task, and notes the end of the task."""

    def __init__(self, steps: list[Any]) -> None:
        super().__init__()
        self.steps = steps

    async def post_start(self) -> None:
        self.ticking = self.start_task(self.tick, 1.0, name="ticker")

    async def tick(self, period: float) -> None:
        try:
            while True:
                await trio.sleep(period)
                self.steps.append("tick")
                self.send(self.pid, "ticked")
        finally:
            self.steps.append("task ended")

    def terminate(self, reason: Reason) -> None:
        self.steps.append(reason)


async def test_a_task_runs_between_callbacks_and_acts_for_its_process(
    autojump_clock: MockClock,
) -> None:
    steps: list[Any] = []

    class Asks(Ticker):
        async def tick(self, period: float) -> None:
            await trio.sleep(period)
            self.steps.append(await self.call("other", "all"))
            child = await self.spawn(Recorder)
            self.steps.append(self.node.process_info(child).parent == self.pid)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.further)

        async def further(self) -> None:
            await trio.sleep(1)
            self.stop("enough")

    async with running_node() as node:
        await node.spawn(Recorder, ["hello"], name="other")
        pid = await node.spawn(Asks, steps)
        reason = await node.wait_ended(pid)

    assert reason == Custom("enough")
    assert steps == [["hello"], True, Custom("enough")]


ENDS: dict[str, tuple[Any, Reason]] = {
    "exit": (lambda node, pid: node.send_exit(pid, "enough"), Custom("enough")),
    "kill": (lambda node, pid: node.kill(pid), Killed()),
    "stop": (lambda node, pid: node.send(pid, lambda me: me.stop()), Normal()),
    "crash": (lambda node, pid: node.send(pid, fail), Crashed(Failed("in a callback"))),
    "node": (lambda node, pid: node.stop(), Shutdown()),
}


def fail(_: Any) -> None:
    raise Failed("in a callback")


@pytest.mark.parametrize("how", ENDS)
async def test_a_task_ends_before_terminate_however_its_process_ends(
    autojump_clock: MockClock, how: str
) -> None:
    steps: list[Any] = []
    end, reason = ENDS[how]
    async with running_node() as node:
        pid = await node.spawn(Ticker, steps)
        await trio.sleep(2.5)
        end(node, pid)
        if how != "node":
            await node.wait_ended(pid)

    assert steps == ["tick", "tick", "task ended", reason]


async def test_a_task_that_raises_crashes_its_process_out_of_the_callback_in_progress(
    autojump_clock: MockClock,
) -> None:
    steps: list[Any] = []

    class Fails(Ticker):
        async def tick(self, period: float) -> None:
            await trio.sleep(period)
            raise Failed("in a task")

    async with running_node() as node:
        asleep = await node.spawn(Fails, steps)
        busy = await node.spawn(Fails, steps)

        with pytest.raises(TargetDownError) as caught:
            await node.call(busy, lambda me: trio.Event().wait(), timeout=None)
        reasons = [caught.value.reason, await node.wait_ended(asleep)]
        crashes = node.crashes()
        assert node.info().crashed == 2

    assert reasons == [Crashed(Failed("in a task"))] * 2
    assert steps == reasons
    assert {one.callback for one in crashes} == {"task ticker"}


async def test_a_task_that_raises_in_init_fails_the_start(autojump_clock: MockClock) -> None:
    class Fails(Actor):
        async def init(self) -> None:
            self.start_task(self.fail)
            await trio.sleep_forever()

        async def fail(self) -> None:
            raise Failed("in a task")

    async with running_node() as node:
        with pytest.raises(InitError, match="in a task"):
            await node.spawn(Fails)

        assert node.processes() == []


async def test_a_start_that_fails_ends_the_tasks_that_it_has_started(
    autojump_clock: MockClock,
) -> None:
    steps: list[Any] = []

    class Fails(Actor):
        async def init(self) -> None:
            self.start_task(self.wait)
            await trio.sleep(1)
            raise Failed("in init")

        async def wait(self) -> None:
            try:
                await trio.sleep_forever()
            finally:
                steps.append("task ended")

    async with running_node() as node:
        with pytest.raises(InitError, match="in init"):
            await node.spawn(Fails)

        assert steps == ["task ended"]


async def test_decide_also_decides_about_failures_of_tasks(
    autojump_clock: MockClock,
) -> None:
    steps: list[Any] = []

    class Fails(Ticker):
        async def tick(self, period: float) -> None:
            raise Failed("in a task")

    async with running_node() as node:
        spec = ChildSpec("resumes", Fails, steps, decide=lambda _: Decision.RESUME)
        await node.supervise([spec])
        await wait_all_tasks_blocked()

        assert await node.call("resumes", lambda me: me.ticking.done)
        assert steps == []


async def test_a_task_can_be_cancelled_and_its_process_continues(autojump_clock: MockClock) -> None:
    steps: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Ticker, steps)
        await trio.sleep(1.5)
        before = await node.call(pid, lambda me: (me.ticking.done, repr(me.ticking)))
        await node.call(pid, lambda me: me.ticking.cancel())
        await wait_all_tasks_blocked()
        after = await node.call(pid, lambda me: (me.ticking.done, repr(me.ticking)))
        process = process_of(node, pid)

        assert steps == ["tick", "task ended"]
        assert before[0] is False
        assert after[0] is True
        assert before[1].startswith("<BackgroundTask 'ticker' of <")
        assert after[1].endswith(", done>")
        assert not process.tasks


@pytest.mark.parametrize("how", ["exit", "kill", "node"])
async def test_a_task_that_does_not_end_is_cut_off(
    autojump_clock: MockClock, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    steps: list[Any] = []

    class Stuck(Ticker):
        async def tick(self, period: float) -> None:
            with trio.CancelScope(shield=True):
                await trio.sleep_forever()

    before = trio.lowlevel.current_statistics().tasks_living
    end, reason = ENDS[how]
    async with running_node(log_output="json") as node:
        pid = await node.spawn(Stuck, steps, terminate_timeout=1)
        await wait_all_tasks_blocked()
        end(node, pid)
        if how != "node":
            await node.wait_ended(pid)
    await wait_all_tasks_blocked()

    assert steps == [reason]
    assert trio.lowlevel.current_statistics().tasks_living <= before
    assert "background tasks did not end" in capsys.readouterr().err


@pytest.mark.parametrize("killed_by", ["two kills", "its supervisor"])
async def test_a_task_that_does_not_end_ends_with_a_process_killed_while_it_waits_for_it(
    autojump_clock: MockClock, killed_by: str
) -> None:
    steps: list[Any] = []

    class Stuck(Ticker):
        async def tick(self, period: float) -> None:
            try:
                with trio.CancelScope(shield=True):
                    await trio.sleep_forever()
            finally:
                self.steps.append("task ended")

    async with running_node() as node:
        child = ChildSpec("stuck", Stuck, steps, shutdown=1, terminate_timeout=1000)
        supervisor = await node.spawn(Supervisor, SupervisorSpec([child]))
        pid = node.whereis("stuck")
        assert pid is not None
        await wait_all_tasks_blocked()
        if killed_by == "two kills":
            node.kill(pid)
            await wait_all_tasks_blocked()
            node.kill(pid)
        else:
            node.send_exit(supervisor)
        reason = await node.wait_ended(pid)

        assert steps[:2] == ["task ended", reason]


async def test_tasks_of_an_abandoned_process_are_cut_off_with_it(
    autojump_clock: MockClock,
) -> None:
    class Stuck(Ticker):
        async def tick(self, period: float) -> None:
            with trio.CancelScope(shield=True):
                await trio.sleep_forever()

        async def handle_message(self, message: Any, sender: Any) -> None:
            await self.tick(1)

    before = trio.lowlevel.current_statistics().tasks_living
    async with running_node(stop_timeout=1) as node:
        pid = await node.spawn(Stuck, [])
        node.send(pid, 1)
        await wait_all_tasks_blocked()
    await wait_all_tasks_blocked()

    assert trio.lowlevel.current_statistics().tasks_living <= before


async def test_an_error_of_a_task_while_its_process_ends_is_logged(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    steps: list[Any] = []

    class Fails(Ticker):
        async def tick(self, period: float) -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise Failed("in its cleaning up")

    async with running_node(log_output="json") as node:
        pid = await node.spawn(Fails, steps)
        await wait_all_tasks_blocked()
        node.send_exit(pid, "enough")
        reason = await node.wait_ended(pid)

    assert reason == Custom("enough")
    assert "in its cleaning up" in capsys.readouterr().err


@pytest.mark.parametrize("error", [GeneratorExit, asyncio.CancelledError, SystemExit])
async def test_a_task_may_raise_any_exception(
    autojump_clock: MockClock, error: type[BaseException]
) -> None:
    class Odd(Ticker):
        async def tick(self, period: float) -> None:
            raise error

    async def live() -> None:
        async with running_node() as node:
            pid = await node.spawn(Odd, [])
            assert await node.wait_ended(pid) == Crashed(error())
            if error is SystemExit:
                await trio.sleep_forever()

    if error is SystemExit:
        with pytest.raises(SystemExit):
            await live()
    else:
        await live()


async def test_a_process_with_a_thread_also_has_tasks() -> None:
    steps: list[Any] = []

    class InThread(Actor):
        def handle_call(self, request: Any, caller: Caller) -> object:
            self.start_task(self.work, request)
            return None

        async def work(self, what: str) -> None:
            steps.append((what, trio.lowlevel.in_trio_task()))

    async with running_node() as node:
        pid = await node.spawn(InThread, dispatcher=Threads())
        await node.call(pid, "work")
        await wait_all_tasks_blocked()

    assert steps == [("work", True)]


async def test_start_task_refuses_a_function_that_is_not_async(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        puppet = await node.spawn(Puppet)

        def attempt(me: Any) -> str:
            with pytest.raises(BadInputError) as caught:
                me.start_task(print, 1)
            return str(caught.value)

        assert "self.start_task(self.watch, path)" in await node.call(puppet, attempt)


async def test_only_the_process_starts_its_tasks(autojump_clock: MockClock) -> None:
    steps: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Ticker, steps)
        await wait_all_tasks_blocked()
        behaviour = process_of(node, pid).behaviour_itself

        with pytest.raises(NotAllowedError, match="inside its own callbacks"):
            behaviour.start_task(trio.sleep, 1)


async def test_a_task_may_be_cut_off_before_it_begins(autojump_clock: MockClock) -> None:
    steps: list[str] = []

    async def work() -> None:
        steps.append("begun")

    async def start(me: Any) -> bool:
        first, second = me.start_task(trio.sleep_forever), me.start_task(work)
        await second.cut_off()
        return not first.done and bool(second.done)

    async with running_node() as node:
        puppet = await node.spawn(Puppet)
        assert await node.call(puppet, start)
        await wait_all_tasks_blocked()

    assert steps == []


async def test_a_task_that_raises_an_old_cancellation_has_ended(autojump_clock: MockClock) -> None:
    caught: list[trio.Cancelled] = []

    async def work() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.sleep(1)
            except trio.Cancelled as error:
                caught.append(error)
        raise caught[0]

    async with running_node() as node:
        puppet = await node.spawn(Puppet)
        await node.call(puppet, lambda me: bool(me.start_task(work)))
        await wait_all_tasks_blocked()

        assert await node.call(puppet, lambda me: "alive") == "alive"


LIMITS: dict[str, dict[str, float]] = {
    "the process cuts its tasks off": {"terminate_timeout": 1.0},
    "its owner loses patience": {"shutdown": 1.0},
    "the node loses patience": {"shutdown": 100.0, "terminate_timeout": 100.0},
}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
async def test_the_exit_report_lists_all_processes_with_cut_off_tasks_as_killed(
    autojump_clock: MockClock, limits: Any
) -> None:
    async def hold_on() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep_forever()

    class Holds(Actor):
        async def post_start(self) -> None:
            self.start_task(hold_on)
            self.start_task(trio.sleep_forever)

    async with running_node(stop_timeout=10) as node:
        holding = {await node.spawn(Holds, **limits) for _ in range(3)}
        polite = await node.spawn(Puppet)
        await wait_all_tasks_blocked()

    report = node.exit_report
    assert report is not None
    assert {one.pid for one in report.killed} == holding
    assert [one.pid for one in report.stopped] == [polite]
    assert report.abandoned == ()


async def test_an_abandoned_process_takes_its_background_tasks_with_it(
    autojump_clock: MockClock,
) -> None:
    ended: list[str] = []

    class Stuck(Stubborn):
        async def init(self) -> None:
            self.start_task(self.tick)

        async def tick(self) -> None:
            try:
                await trio.sleep_forever()
            finally:
                ended.append("tick")

    async with running_node() as node:
        pid = await node.spawn(Stuck)
        node.send(pid, "begin")
        await wait_all_tasks_blocked()
        process = process_of(node, pid)

        node.kill(pid)
        await process.abandon()

        assert ended == ["tick"]
        assert node.processes() == []
