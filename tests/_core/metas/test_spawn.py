"""A meta-process that is spawned in a task of its own, which becomes its reader, or without any
task.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import Any

import pytest
import trio

from ergo_py import InitError, MetaProcess, NodeStoppedError, Normal, Shutdown, SpawnError
from ergo_py._core.messaging.router import Router
from ergo_py._core.metas.meta import Meta
from ergo_py._core.metas.spawn import spawn_meta, spawn_meta_beside, spawn_meta_in_passing
from ergo_py._core.processes.process import Process
from ergo_py._core.vocabulary.options import MetaOptions
from tests.actors import Puppet
from tests.support import process_behind, running_node

Told = list[BaseException | None]


class InTask(MetaProcess):
    """Reads in a task, until it is let go."""

    def __init__(self, failure: BaseException | None = None) -> None:
        self.failure = failure
        self.tasks: list[Any] = []
        self.reasons: list[Any] = []
        self.gate = trio.Event()

    async def init(self) -> None:
        self.tasks.append(trio.lowlevel.current_task())
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure

    async def start(self) -> None:
        self.tasks.append(trio.lowlevel.current_task())
        await self.gate.wait()

    async def terminate(self, reason: Any) -> None:
        self.reasons.append(reason)


class InThread(MetaProcess):
    """Reads in a thread, until it is stopped."""

    def start(self) -> None:
        while self.pause(60.0):
            pass


@asynccontextmanager
async def owner(**options: Any) -> AsyncIterator[tuple[Any, Process]]:
    """A node, and a process of it that can own something."""
    async with running_node(**options) as node:
        pid = await node.spawn(Puppet)
        process: Process = await node.call(pid, process_behind)
        yield node, process


def beside(process: Process, behaviour: MetaProcess, told: Told) -> Any:
    async def find_owner() -> Process:
        return process

    return spawn_meta_beside(
        process.kernel, find_owner, behaviour, MetaOptions(), told.append, copy_context()
    )


async def test_the_task_that_spawns_a_meta_process_is_its_reader_and_ends_it() -> None:
    told: Told = []
    behaviour = InTask()
    async with owner() as (node, process):
        detached = beside(process, behaviour, told)
        assert node.metas() == []
        while len(behaviour.tasks) < 2:
            await trio.lowlevel.checkpoint()
        alive = node.metas()
        behaviour.gate.set()
        await detached.gone.wait()

        assert told == [None]
        assert alive == [behaviour.id]
        assert behaviour.tasks[0] is behaviour.tasks[1]
        assert behaviour.reasons == [Normal()]
        assert node.metas() == []


async def test_the_spawning_task_ends_when_a_reader_thread_has_started() -> None:
    told: Told = []
    behaviour = InThread()
    async with owner() as (node, process):
        await beside(process, behaviour, told).gone.wait()

        assert told == [None]
        assert node.metas() == [behaviour.id]


@pytest.mark.parametrize(
    "failure,text",
    [
        (ValueError("not today"), "init of InTask raised ValueError: not today"),
        (asyncio.CancelledError("foreign"), "init of InTask raised CancelledError: foreign"),
        (SystemExit("enough"), "enough"),
    ],
    ids=["error", "foreign cancellation", "exit"],
)
async def test_a_meta_process_that_cannot_start_leaves_only_its_error(
    failure: BaseException, text: str
) -> None:
    told: Told = []
    async with owner() as (node, process):
        await beside(process, InTask(failure), told).gone.wait()

        assert [str(error) for error in told] == [text]
        assert node.metas() == []


async def test_a_meta_process_cancelled_before_its_start_is_not_in_the_table() -> None:
    told: Told = []
    behaviour = InTask()
    async with owner() as (node, process):
        detached = beside(process, behaviour, told)
        detached.cancel()
        await detached.gone.wait()

        assert [type(error) for error in told] == [trio.Cancelled]
        assert len(behaviour.tasks) == 1
        assert node.metas() == []


async def test_a_node_that_has_ended_spawns_no_meta_process() -> None:
    told: Told = []
    async with owner() as (_, process):
        kernel = process.kernel
    with pytest.raises(NodeStoppedError):
        beside(process, InTask(), told)

    assert kernel.router.stopped
    assert told == []


class InPassing(InTask):
    """Can start without waiting for ``init``, if ``can`` is true."""

    def __init__(self, can: bool) -> None:
        super().__init__()
        self.can = can

    def _begin_in_passing(self) -> bool:
        self.tasks.append("in passing")
        return self.can


@pytest.mark.parametrize("can", [False, True])
async def test_a_meta_process_that_can_start_without_waiting_skips_its_init(can: bool) -> None:
    told: Told = []
    behaviour = InPassing(can)
    async with owner() as (_, process):
        detached = beside(process, behaviour, told)
        behaviour.gate.set()
        await detached.gone.wait()

        assert told == [None]
        assert behaviour.tasks[0] == "in passing"
        assert len(behaviour.tasks) == (2 if can else 3)


async def test_a_stop_during_an_init_that_waits_for_nothing_fails_the_spawn() -> None:
    class Stops(InPassing):
        def _begin_in_passing(self) -> bool:
            self.stop("enough")
            return True

    behaviours = [Stops(can=True), Stops(can=True)]
    async with owner() as (node, process):
        with pytest.raises(SpawnError, match="was stopped during its init: enough"):
            await spawn_meta(process, behaviours[0], MetaOptions())
        with pytest.raises(SpawnError, match="was stopped during its init: enough"):
            spawn_meta_in_passing(process, behaviours[1], MetaOptions())

        assert [behaviour.tasks for behaviour in behaviours] == [[], []]
        assert node.metas() == []


async def test_an_init_that_waits_for_nothing_and_fails_fails_the_spawn() -> None:
    class Fails(InPassing):
        def _begin_in_passing(self) -> bool:
            raise ValueError("not today")

    behaviour = Fails(can=True)
    async with owner() as (node, process):
        with pytest.raises(InitError, match="not today") as caught:
            spawn_meta_in_passing(process, behaviour, MetaOptions())

        assert isinstance(caught.value.__cause__, ValueError)
        assert behaviour.reasons == []
        assert node.metas() == []


async def test_writes_are_watched_after_an_init_that_waits_for_nothing() -> None:
    behaviour = WithoutTask()
    async with owner(debug_shared_state=True) as (_, process):
        begin(process, behaviour)

        assert type(behaviour) is not WithoutTask


async def test_a_cancelled_spawn_behind_the_init_of_a_meta_process_returns_the_alias(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Router, "pause_is_due", lambda _router: True)
    async with owner() as (_, process):
        with trio.CancelScope() as scope:
            scope.cancel()
            made = await spawn_meta(process, InPassing(can=True), MetaOptions())
            assert made.reason is None

        assert not scope.cancelled_caught


class WithoutTask(InPassing):
    """Reads without a task, as far as ``reads`` says, and ends without a task if ``ends``."""

    def __init__(self, reads: bool | Exception = True, ends: bool = False) -> None:
        super().__init__(can=True)
        self.reads = reads
        self.ends = ends

    def read_in_passing(self) -> bool:
        if isinstance(self.reads, Exception):
            raise self.reads
        return self.reads

    def _stop_in_passing(self) -> None:
        self.tasks.append("stopped")

    def _end_in_passing(self, reason: Any) -> bool:
        if self.ends:
            self.reasons.append((reason, "in passing"))
        return self.ends

    async def handle_message(self, message: Any, sender: Any) -> None:
        await self.gate.wait()


def begin(process: Process, behaviour: WithoutTask) -> Meta:
    meta = spawn_meta_in_passing(process, behaviour, MetaOptions())
    meta.reader.begin(behaviour.read_in_passing)
    return meta


async def test_a_reader_without_a_task_is_stopped_with_its_meta_process() -> None:
    behaviour = WithoutTask()
    async with owner() as (node, process):
        meta = begin(process, behaviour)
        alive, task = node.metas(), meta.reader.task
        await meta.shut(Shutdown())

        assert alive == [behaviour.id]
        assert task is None
        assert behaviour.tasks == ["in passing", "stopped"]
        assert behaviour.reasons == [Shutdown()]
        assert node.metas() == []


async def test_a_reader_that_has_something_to_wait_for_goes_on_in_a_task() -> None:
    behaviour = WithoutTask(reads=False)
    async with owner() as (_, process):
        meta = begin(process, behaviour)
        behaviour.gate.set()
        await meta.wait_gone()

        assert [type(task) for task in behaviour.tasks] == [str, trio.lowlevel.Task]
        assert behaviour.reasons == [Normal()]


async def test_an_exception_of_a_reader_without_a_task_is_a_crash() -> None:
    failure = ValueError("not today")
    behaviour = WithoutTask(failure)
    async with owner() as (node, process):
        await begin(process, behaviour).wait_gone()

        assert [getattr(reason, "error", None) for reason in behaviour.reasons] == [failure]
        assert [crash.pid for crash in node.crashes()] == [behaviour.id]


@pytest.mark.parametrize("ends", [False, True])
async def test_a_meta_process_without_a_task_ends_at_once_unless_its_terminate_has_to_wait(
    ends: bool,
) -> None:
    behaviour = WithoutTask(ends=ends)
    async with owner() as (node, process):
        meta = begin(process, behaviour)
        can = meta.ending.can_run_in_passing()
        meta.ending.run_in_passing(Normal())
        left = node.metas()
        await meta.wait_gone()

        assert can
        assert left == ([] if ends else [behaviour.id])
        assert behaviour.reasons == [(Normal(), "in passing") if ends else Normal()]
        assert node.metas() == []


async def test_a_meta_process_cannot_end_at_once_while_its_handler_serves_a_message() -> None:
    behaviour = WithoutTask()
    async with owner() as (node, process):
        meta = begin(process, behaviour)
        node.send(behaviour.id, "wait")
        await trio.testing.wait_all_tasks_blocked()

        assert not meta.ending.can_run_in_passing()
        behaviour.gate.set()


async def test_a_reader_without_a_task_that_is_given_up_is_stopped() -> None:
    behaviour = WithoutTask()
    async with owner() as (_, process):
        meta = begin(process, behaviour)
        meta.reader.give_up()
        meta.reader.give_up()
        await meta.wait_gone()

        assert behaviour.tasks == ["in passing", "stopped"]
        assert not meta.abandoned
