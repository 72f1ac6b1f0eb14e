"""A node starts and stops: in order, in bounded time, however its processes behave and however the
body ends.
"""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from inspect import signature
from math import inf
from typing import Any

import pytest
import structlog
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    PID,
    Actor,
    BadInputError,
    Caller,
    ChildSpec,
    Killed,
    Node,
    NodeStoppedError,
    NoNode,
    NotAllowedError,
    Pool,
    PoolSpec,
    Priority,
    Reason,
    Shutdown,
    SpawnError,
    Strategy,
    Supervisor,
    SupervisorSpec,
    TargetDownError,
    open_node,
)
from ergo_py._core.inspection.watchdog import Watchdog
from ergo_py._core.messaging.clock import Clock
from ergo_py._core.processes import termination as termination_module
from ergo_py._core.processes.process import Process
from ergo_py._core.vocabulary.options import NodeOptions
from tests.actors import (
    Failed,
    Fragile,
    Puppet,
    Recorder,
    Shielded,
    SlowEnd,
    SlowStart,
    Stubborn,
    Witness,
)
from tests.support import (
    kernel_of,
    open_descriptors,
    replace_private,
    router_of,
    running_node,
    short_directory,
)


@pytest.fixture
def fast_clock() -> MockClock:
    """Virtual time that passes by itself: a clock that jumps when nothing moves would wait forever
    for tasks that always move.
    """
    return MockClock(rate=20.0)


class SlowWitness(Witness):
    """Takes a second to end."""

    async def terminate(self, reason: Reason) -> None:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
        await trio.sleep(1)
        self.ends.append((self.label, reason))


# -- N1: up and down -------------------------------------------------------------------------------


async def test_a_node_is_ready_on_entry_and_stops_its_processes_on_exit_last_started_first(
    autojump_clock: MockClock,
) -> None:
    ends: list[Any] = []
    before = trio.lowlevel.current_statistics().tasks_living

    async with open_node("test@localhost", log_output="none", watchdog=None) as node:
        for label in ("first", "second", "third"):
            await node.spawn(SlowWitness, ends, label, name=label)
    await wait_all_tasks_blocked()

    assert ends == [(label, Shutdown()) for label in ("third", "second", "first")]
    assert node.processes() == []
    assert node.whereis("first") is None
    assert trio.lowlevel.current_statistics().tasks_living <= before


async def test_a_node_leaves_no_thread_running() -> None:
    before = set(threading.enumerate())

    async with running_node(watchdog=0.5) as node:
        await node.spawn(Puppet)
        during = set(threading.enumerate())

    [watchdog] = during - before
    watchdog.join(20)  # the node waits for it, too, but not for as long as a busy machine may need
    assert set(threading.enumerate()) <= before


async def test_an_error_of_the_body_is_raised_unchanged_after_the_node_has_stopped(
    autojump_clock: MockClock,
) -> None:
    ends: list[Any] = []
    error = Failed("in the body")

    with pytest.raises(Failed) as caught:
        async with running_node() as node:
            await node.spawn(SlowWitness, ends, "process")
            raise error

    assert caught.value is error
    assert ends == [("process", Shutdown())]


async def test_a_node_cancelled_from_outside_stops_in_order_and_passes_the_cancellation_on(
    autojump_clock: MockClock,
) -> None:
    ends: list[Any] = []

    with trio.move_on_after(1) as scope:
        async with open_node(log_output="none", watchdog=None) as node:
            parent = await node.spawn(SlowWitness, ends, "parent")
            await node.call(parent, lambda me: me.spawn(SlowWitness, ends, "child"))
            await trio.sleep_forever()

    assert scope.cancelled_caught
    assert ends == [("child", Shutdown()), ("parent", Shutdown())]
    assert trio.current_time() == 3


async def test_a_node_opened_in_a_cancelled_scope_still_stops(
    autojump_clock: MockClock,
) -> None:
    before = trio.lowlevel.current_statistics().tasks_living

    with trio.CancelScope() as scope:
        scope.cancel()
        async with open_node(log_output="none", watchdog=None):
            await trio.sleep_forever()
    await wait_all_tasks_blocked()

    assert scope.cancelled_caught
    assert trio.lowlevel.current_statistics().tasks_living <= before


@pytest.mark.parametrize(
    "stop",
    [
        lambda node: node.stop(),
        lambda node: node.stop_soon(),
        lambda node: node.send("stopper", lambda me: me.node.stop()),
        lambda node: trio.to_thread.run_sync(node.stop),
    ],
    ids=["in the body", "as a signal handler would", "from a process", "from a thread"],
)
async def test_stop_ends_the_body_of_a_node_quietly(stop: Callable[[Node], Any]) -> None:
    ends: list[Any] = []
    reached = False

    async with running_node() as node:
        await node.spawn(Witness, ends, name="stopper")
        result = stop(node)
        if result is not None and not isinstance(result, bool):
            await result
        await trio.sleep_forever()
        reached = True

    assert not reached
    assert ends == [Shutdown()]
    assert node.stopping


async def test_a_second_stop_has_no_effect(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        node.stop()
        node.stop()
        await trio.sleep_forever()

    with pytest.raises(NodeStoppedError):
        node.stop()


async def test_two_nodes_in_the_same_program_are_independent(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node("left@localhost", env={"side": "left"}) as left:
        async with running_node("right@localhost", env={"side": "right"}) as right:
            on_left = await left.spawn(Recorder, heard, name="same")
            on_right = await right.spawn(Puppet, name="same")
            left.send("same", "for the left")
            right.send("same", "for the right")

            with pytest.raises(TargetDownError) as caught:
                await left.call(on_right, 1)
            sent = left.send(on_right, "astray"), right.send(on_left, "astray")
            envs = dict(left.env), await right.call(on_right, lambda me: dict(me.env))

        assert caught.value.reason == NoNode("right@localhost")
        assert sent == (False, False)
        assert envs == ({"side": "left"}, {"side": "right"})
        assert right.processes() == []
        assert left.processes() == [on_left]
        left.send("same", "the other one is down")
        await wait_all_tasks_blocked()

    assert heard == ["for the left", "the other one is down"]


async def test_a_process_may_call_a_process_of_another_node_through_that_node(
    autojump_clock: MockClock,
) -> None:
    async with running_node("left@localhost") as left, running_node("right@localhost") as right:
        puppet = await left.spawn(Puppet)
        server = await right.spawn(Puppet)

        answer = await left.call(puppet, lambda me: right.call(server, lambda it: it.pid))

        assert answer == server


async def test_a_context_is_entered_once(autojump_clock: MockClock) -> None:
    context = open_node(log_output="none", watchdog=None)

    async with context as node:
        with pytest.raises(NotAllowedError, match="call open_node again"):
            await context.__aenter__()
        pid = await node.spawn(Puppet)
        assert node.processes() == [pid]

    with pytest.raises(NotAllowedError, match="call open_node again"):
        await context.__aenter__()


async def test_a_context_entered_by_two_tasks_at_once_is_entered_once(
    autojump_clock: MockClock,
) -> None:
    context = open_node(log_output="none", watchdog=None)
    outcomes: list[str] = []

    async def enter() -> None:
        try:
            async with context as node:
                await node.spawn(Puppet)
                outcomes.append("entered")
        except NotAllowedError:
            outcomes.append("refused")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(enter)
        nursery.start_soon(enter)

    assert sorted(outcomes) == ["entered", "refused"]


async def test_a_timer_that_is_due_while_the_node_stops_is_no_error(
    autojump_clock: MockClock,
) -> None:
    # Which task is first is left to chance in each turn of the scheduler.
    for _ in range(20):
        async with running_node() as node:
            node.send_after(0, "nobody", 1)

        assert node.exit_report is not None


# -- processes that do not end ---------------------------------------------------------------------


@pytest.mark.parametrize("behaviour", [Stubborn, Shielded])
async def test_a_node_stops_although_a_process_does_not_end(
    fast_clock: MockClock, behaviour: type[Actor]
) -> None:
    ends: list[Any] = []
    async with running_node(limit=600, stop_timeout=0.5) as node:
        await node.spawn(Witness, ends, "first", name="first")
        pid = await node.spawn(behaviour, name="stubborn")
        await node.spawn(Witness, ends, "last", name="last")
        node.send(pid, "begin")
        await wait_all_tasks_blocked()

    assert sorted(ends) == ["first", "last"]
    assert node.processes() == []
    assert node.exit_report is not None
    assert [one.name for one in node.exit_report.abandoned] == ["stubborn"]


async def test_a_node_stops_within_its_stop_timeout_and_a_grace(
    autojump_clock: MockClock,
) -> None:
    async with running_node(stop_timeout=3) as node:
        for _ in range(10):
            pid = await node.spawn(Shielded, shutdown=100, terminate_timeout=100)
            node.send(pid, "begin")
        await wait_all_tasks_blocked()

    assert 3 <= trio.current_time() <= 3 + 1.5
    assert node.exit_report is not None
    assert len(node.exit_report.abandoned) == 10


async def test_a_node_stops_although_a_process_waits_for_a_thread() -> None:
    release = threading.Event()

    class Blocked(Actor):
        async def handle_message(self, message: Any, sender: Any) -> None:
            await trio.to_thread.run_sync(release.wait)

    try:
        with trio.fail_after(20):
            async with running_node(stop_timeout=0.1) as node:
                pid = await node.spawn(Blocked, name="blocked")
                node.send(pid, "begin")
                await wait_all_tasks_blocked(0.01)

        assert node.exit_report is not None
        assert [one.name for one in node.exit_report.abandoned] == ["blocked"]
        with pytest.raises(NodeStoppedError):
            node.send(pid, 1)
    finally:
        release.set()


def three(behaviour: type[Actor] = Shielded, **options: Any) -> SupervisorSpec:
    return SupervisorSpec(
        [ChildSpec(f"stuck-{number}", behaviour, **options) for number in range(3)]
    )


class Parent(Actor):
    """A plain parent of the given children."""

    def __init__(self, *children: tuple[Any, ...]) -> None:
        self.children = children

    async def init(self) -> None:
        for number, (behaviour, *args) in enumerate(self.children):
            await self.spawn(behaviour, *args, name=None if args else f"stuck-{number}")


TREES: dict[str, tuple[Any, ...]] = {
    "a supervisor": (Supervisor, three()),
    "children that may take for ever": (Supervisor, three(shutdown=inf)),
    "children with more time than the node": (Supervisor, three(shutdown=100)),
    "children that are killed at once": (Supervisor, three(shutdown=0)),
    "a supervisor of a supervisor": (
        Supervisor,
        SupervisorSpec([ChildSpec("one", Supervisor, three())]),
    ),
    "three supervisors deep": (
        Supervisor,
        SupervisorSpec(
            [ChildSpec("one", Supervisor, SupervisorSpec([ChildSpec("two", Supervisor, three())]))]
        ),
    ),
    "a plain parent": (Parent, (Shielded,), (Shielded,), (Shielded,)),
    "a plain parent of a supervisor": (Parent, (Supervisor, three())),
    "a pool": (Pool, PoolSpec(Shielded, size=3)),
    "all at once": (
        Supervisor,
        SupervisorSpec([ChildSpec("one", Shielded)], strategy=Strategy.SIMPLE_ONE_FOR_ONE),
    ),
}


@pytest.mark.parametrize(
    "stop_timeout", [0.0, 1.0, 5.5, 30.0], ids=lambda seconds: f"{seconds:g} s"
)
@pytest.mark.parametrize("tree", TREES)
async def test_stuck_processes_at_any_depth_block_neither_the_node_nor_the_run(
    autojump_clock: MockClock, tree: str, stop_timeout: float
) -> None:
    before = trio.lowlevel.current_statistics().tasks_living
    behaviour, *args = TREES[tree]
    async with running_node(limit=1_000, stop_timeout=stop_timeout) as node:
        pid = await node.spawn(behaviour, *args)
        if tree == "all at once":
            for _ in range(3):
                await node.supervisor(pid).start_child("one")
        stuck = {one for one in node.processes() if node.process_info(one).behaviour == "Shielded"}
        assert len(stuck) == 3
        for one in stuck:
            node.send(one, "begin")
        await wait_all_tasks_blocked()
    await wait_all_tasks_blocked()

    # Nothing is left that ``trio.run`` would wait for; and the report names those that were stuck,
    # and them only.
    assert trio.lowlevel.current_statistics().tasks_living <= before
    report = node.exit_report
    assert report is not None
    assert {one.pid for one in report.abandoned} == stuck
    assert not stuck & {one.pid for one in (*report.stopped, *report.killed)}


async def in_a_nursery_with_a_stubborn_task() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.Event().wait)
        with trio.CancelScope(shield=True):
            await trio.sleep_forever()


async def in_a_program_that_runs_on() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(1000)"]
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            PROGRAMS.append(await nursery.start(trio.run_process, command))


async def in_a_thread() -> None:
    await trio.to_thread.run_sync(HELD.wait)


async def in_a_nursery_with_a_thread() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(in_a_thread)


HELD = threading.Event()
PROGRAMS: list[trio.Process] = []


async def end_programs() -> None:
    while PROGRAMS:
        program = PROGRAMS.pop()
        program.kill()
        while program.poll() is None:  # noqa: ASYNC110 - `wait` waits for the abandoned task
            await trio.sleep(0.01)


STUCK = [
    in_a_nursery_with_a_stubborn_task,
    in_a_program_that_runs_on,
    in_a_thread,
    in_a_nursery_with_a_thread,
]


@pytest.mark.parametrize("stuck", STUCK, ids=lambda function: function.__name__)
async def test_a_stuck_callback_blocks_neither_the_node_nor_the_run(
    stuck: Any,
) -> None:
    HELD.clear()
    before = trio.lowlevel.current_statistics().tasks_living

    class Stuck(Actor):
        async def handle_message(self, message: Any, sender: Any) -> None:
            await stuck()

    try:
        async with running_node(stop_timeout=0.1) as node:
            pid = await node.spawn(Stuck, name="stuck")
            node.send(pid, "begin")
            while stuck is in_a_program_that_runs_on and not PROGRAMS:  # noqa: ASYNC110 - there is no event
                await trio.sleep(0.01)
            await wait_all_tasks_blocked(0.01)
        await wait_all_tasks_blocked()

        assert node.exit_report is not None
        assert [one.name for one in node.exit_report.abandoned] == ["stuck"]
        assert trio.lowlevel.current_statistics().tasks_living <= before
    finally:
        HELD.set()
        await end_programs()


async def test_the_exit_report_names_the_killed_processes_and_not_their_parent(
    autojump_clock: MockClock,
) -> None:
    ends: list[Any] = []
    async with running_node(stop_timeout=100) as node:
        door = await node.spawn(Witness, ends, "door", name="door", shutdown=5)
        sessions = [
            await node.call(door, lambda me: me.spawn(Witness, ends, shutdown=10)) for _ in range(3)
        ]
        for session in sessions:
            node.send(session, lambda me: trio.Event().wait())
        await wait_all_tasks_blocked()

    report = node.exit_report
    assert report is not None
    assert {one.pid for one in report.killed} == set(sessions)
    assert [one.pid for one in report.stopped] == [door]
    assert report.abandoned == ()
    assert ends == [*[Killed()] * 3, "door"]


async def test_supervisors_that_are_killed_while_they_stop_abandon_no_process(
    autojump_clock: MockClock,
) -> None:
    spec = SupervisorSpec([ChildSpec("leaf", SlowEnd)])
    for depth in range(6):
        spec = SupervisorSpec([ChildSpec(f"level {depth}", Supervisor, spec)])
    async with running_node(stop_timeout=0.1) as node:
        await node.spawn(Supervisor, spec)

    report = node.exit_report
    assert report is not None
    assert report.abandoned == ()
    assert [one.name for one in report.killed] == ["leaf"]


async def test_a_terminate_cut_off_by_a_kill_is_logged_as_cut_off_by_a_kill(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running_node(stop_timeout=0.1, log_output="json") as node:
        await node.spawn(SlowEnd)
    by_kill = capsys.readouterr().err
    async with running_node(log_output="json") as node:
        await node.spawn(SlowEnd)
    by_limit = capsys.readouterr().err

    assert "terminate was cut off by a kill" in by_kill
    assert "terminate was cut off" in by_limit
    assert "by a kill" not in by_limit


async def test_a_node_stops_although_a_terminate_never_returns(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        await node.spawn(SlowEnd, terminate_timeout=1)
        await node.spawn(SlowEnd, terminate_timeout=2)

    assert trio.current_time() == 3


async def test_a_node_stops_although_a_process_spawns_whenever_a_child_ends(
    autojump_clock: MockClock,
) -> None:
    class Hydra(Puppet):
        async def init(self) -> None:
            await self.spawn(Puppet)

        async def handle_child_exit(self, child: PID, reason: Reason) -> None:
            for _ in range(2):
                await self.spawn(Puppet)

    async with running_node() as node:
        pid = await node.spawn(Hydra)
        for child in node.process_info(pid).children:
            assert isinstance(child, PID)
            node.kill(child)
        await wait_all_tasks_blocked()

    assert node.processes() == []


async def test_a_node_stops_although_its_processes_send_without_end(
    autojump_clock: MockClock,
) -> None:
    class Talker(Actor):
        def handle_message(self, message: Any, sender: PID) -> None:
            self.send(sender, message)

    async with running_node() as node:
        left, right = await node.spawn(Talker), await node.spawn(Puppet)
        await node.call(right, lambda me: me.send(left, "ping"))
        one, two = await node.spawn(Talker), await node.spawn(Talker)
        router_of(node).send(one, two, "ping", Priority.NORMAL)
        await trio.lowlevel.checkpoint()

    assert node.processes() == []


async def test_an_init_that_is_still_running_ends_with_the_node(autojump_clock: MockClock) -> None:
    errors: list[BaseException] = []

    async def spawn(node: Node) -> None:
        try:
            await node.spawn(SlowStart, init_timeout=1_000, shutdown=2)
        except Exception as error:
            errors.append(error)

    async with trio.open_nursery() as nursery, running_node() as node:
        nursery.start_soon(spawn, node)
        await wait_all_tasks_blocked()

    assert [type(error).__name__ for error in errors] == ["SpawnError"]
    assert trio.current_time() == 2
    assert node.processes() == []


async def test_an_init_that_cannot_be_ended_is_abandoned_and_its_spawner_gets_an_error(
    autojump_clock: MockClock,
) -> None:
    errors: list[BaseException] = []
    gate = trio.Event()

    class Deaf(Actor):
        async def init(self) -> None:
            with trio.CancelScope(shield=True):
                await gate.wait()

    async def spawn(node: Node) -> None:
        try:
            await node.spawn(Deaf, name="deaf", init_timeout=1_000, shutdown=1, terminate_timeout=1)
        except Exception as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        async with running_node() as node:
            nursery.start_soon(spawn, node)
            await wait_all_tasks_blocked()
        gate.set()

    assert [type(error).__name__ for error in errors] == ["SpawnError"]
    assert node.exit_report is not None
    assert [one.name for one in node.exit_report.abandoned] == ["deaf"]


# -- N4: the report --------------------------------------------------------------------------------


async def test_the_exit_report_lists_stopped_killed_and_abandoned_processes(
    fast_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    # 600 seconds are half a minute of real time, so that a busy machine has no influence.
    async with running_node(
        limit=6000, stop_timeout=600, log_output="json", log_level="info"
    ) as node:
        up = node.exit_report
        await node.spawn(Puppet, name="willing", shutdown=600)
        busy = await node.spawn(Puppet, name="busy", shutdown=0.1, terminate_timeout=600)
        stubborn = await node.spawn(Stubborn, name="stubborn", shutdown=0.1, terminate_timeout=0.1)
        parent = await node.spawn(Puppet, name="parent", shutdown=600)
        await node.call(parent, lambda me: me.spawn(Puppet, name="child", shutdown=600))
        node.send(busy, lambda me: trio.Event().wait())
        node.send(stubborn, "begin")
        await wait_all_tasks_blocked()

    report = node.exit_report
    assert up is None
    assert report is not None
    assert {one.name for one in report.stopped} == {"willing", "parent", "child"}
    assert [(one.name, one.behaviour) for one in report.killed] == [("busy", "Puppet")]
    assert [(one.name, one.pid) for one in report.abandoned] == [("stubborn", stubborn)]
    assert report.seconds > 0
    assert "3 stopped, 1 killed" in str(report)
    assert f"1 abandoned ({stubborn} 'stubborn' Stubborn)" in str(report)
    assert "node down in" in capsys.readouterr().err


async def test_no_process_is_in_the_exit_report_twice(autojump_clock: MockClock) -> None:
    async with running_node(stop_timeout=2) as node:
        parent = await node.spawn(Puppet, name="parent", shutdown=100)
        for name, shutdown in (("last", 100), ("left", 0), ("right", 0)):
            child = await node.call(
                parent, lambda me, n=name, s=shutdown: me.spawn(Puppet, name=n, shutdown=s)
            )
            node.send(child, lambda me: trio.Event().wait())
        node.send(parent, lambda me: trio.Event().wait())
        await wait_all_tasks_blocked()

    report = node.exit_report
    assert report is not None
    names = [one.name for one in (*report.stopped, *report.killed, *report.abandoned)]
    assert sorted(str(name) for name in names) == ["last", "left", "parent", "right"]
    assert report.stopped == ()


async def test_the_exit_report_does_not_list_processes_killed_before_the_stop(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        for _ in range(5):
            parent = await node.spawn(Puppet)
            await node.call(parent, lambda me: me.spawn(Puppet, shutdown=0))
            node.kill(parent)
            await node.wait_ended(parent)
        await node.spawn(Puppet, name="last")

    report = node.exit_report
    assert report is not None
    assert [one.name for one in report.stopped] == ["last"]
    assert report.killed == ()


# -- errors for the whole program ------------------------------------------------------------------


class Fatal(Actor):
    """Raises an error for the whole program in the callback it was made for."""

    def __init__(self, where: str, error: BaseException) -> None:
        self.where = where
        self.error = error

    def check(self, where: str) -> None:
        if where == self.where:
            raise self.error

    def handle_message(self, message: Any, sender: Any) -> None:
        self.check("message")
        if message == "stop":
            self.stop()

    def handle_call(self, request: Any, caller: Caller) -> None:
        self.check("call")

    def terminate(self, reason: Reason) -> None:
        self.check("terminate")


class AsyncFatal(Fatal):
    async def handle_message(self, message: Any, sender: Any) -> None:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
        await trio.lowlevel.checkpoint()
        self.check("message")
        if message == "wait":
            try:
                await trio.sleep_forever()
            finally:
                self.check("while killed")
        if message == "stop":
            self.stop()

    async def handle_call(self, request: Any, caller: Caller) -> None:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
        await trio.lowlevel.checkpoint()
        self.check("call")

    async def terminate(self, reason: Reason) -> None:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
        await trio.lowlevel.checkpoint()
        self.check("terminate")


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(3)], ids=["KeyboardInterrupt", "SystemExit"]
)
@pytest.mark.parametrize(
    "behaviour, where",
    [
        (Fatal, "message"),
        (Fatal, "call"),
        (Fatal, "terminate"),
        (AsyncFatal, "message"),
        (AsyncFatal, "call"),
        (AsyncFatal, "terminate"),
        (AsyncFatal, "while killed"),
    ],
)
async def test_an_interrupt_in_a_callback_reaches_the_host_after_the_node_has_stopped(
    autojump_clock: MockClock, behaviour: type[Fatal], where: str, error: BaseException
) -> None:
    ends: list[Any] = []

    with pytest.raises(type(error)) as caught:
        async with running_node() as node:
            await node.spawn(SlowWitness, ends, "other")
            pid = await node.spawn(behaviour, where, error)
            await wait_all_tasks_blocked()
            if where == "call":
                with pytest.raises(TargetDownError) as told:
                    await node.call(pid, 1)
                assert told.value.__cause__ is error
            else:
                node.send(pid, {"terminate": "stop", "while killed": "wait"}.get(where, 1))
            if where == "while killed":
                await wait_all_tasks_blocked()
                node.kill(pid)
            await trio.sleep_forever()

    assert caught.value is error
    assert ends == [("other", Shutdown())]


async def test_an_interrupt_in_init_reaches_the_spawner(autojump_clock: MockClock) -> None:
    class Interrupted(Actor):
        def init(self) -> None:
            raise KeyboardInterrupt

    async with running_node() as node:
        with pytest.raises(KeyboardInterrupt):
            await node.spawn(Interrupted, name="interrupted")

        assert node.processes() == []
        assert node.whereis("interrupted") is None


async def test_an_interrupted_process_ends_like_a_crashed_process(
    autojump_clock: MockClock,
) -> None:
    ends: list[Any] = []

    def interrupt(me: Puppet) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        async with running_node() as node:
            pid = await node.spawn(Witness, ends)
            await node.call(pid, lambda me: me.spawn(Witness, ends))
            node.send(pid, interrupt)
            await trio.sleep_forever()

    assert [str(reason) for reason in ends] == ["shutdown", "crashed: KeyboardInterrupt"]


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, text",
    [
        ({"name": ""}, "name"),
        ({"name": 7}, "name"),
        ({"max_processes": 0}, "max_processes.*None"),
        ({"max_processes": -1}, "max_processes"),
        ({"max_processes": 1.5}, "max_processes"),
        ({"max_processes": True}, "max_processes"),
        ({"burst": 0}, "burst"),
        ({"dead_letters": -1}, "dead_letters"),
        ({"stop_timeout": -1}, "stop_timeout"),
        ({"stop_timeout": "soon"}, "stop_timeout"),
        ({"stop_timeout": float("nan")}, "stop_timeout"),
        ({"log_level": "loud"}, "log_level"),
        ({"log_output": "xml"}, "log_output"),
        ({"env": ["key"]}, "env"),
        ({"watchdog": 0}, "watchdog.*None"),
        ({"watchdog": -1}, "watchdog"),
        ({"watchdog": False}, "watchdog.*None"),
        ({"max_reader_threads": -1}, "max_reader_threads"),
        ({"max_reader_threads": 1.5}, "max_reader_threads"),
        ({"obituaries": -1}, "obituaries"),
        ({"recent_messages": -1}, "recent_messages"),
        ({"mailbox_warning": 0}, "mailbox_warning"),
        ({"expose_env": "no"}, "expose_env"),
        ({"inline_calls": None}, "inline_calls"),
        ({"debug_shared_state": 1}, "debug_shared_state"),
    ],
    ids=repr,
)
async def test_an_invalid_option_is_refused_before_any_task_starts(
    autojump_clock: MockClock, options: dict[str, Any], text: str
) -> None:
    before = trio.lowlevel.current_statistics().tasks_living

    with pytest.raises(BadInputError, match=text) as caught:
        open_node(**options)

    assert isinstance(caught.value, ValueError)
    assert "allowed is" in str(caught.value)
    assert trio.lowlevel.current_statistics().tasks_living <= before


def test_a_node_that_is_opened_without_async_with_raises_and_suggests_it() -> None:
    context: Any = open_node()

    async def await_it() -> None:
        await context

    with pytest.raises(NotAllowedError, match=r"async with open_node.*ergo_py\.blocking"), context:
        pass
    with pytest.raises(NotAllowedError, match="async with open_node"):
        trio.run(await_it)


def test_the_node_options_have_the_names_and_defaults_of_open_node() -> None:
    parameters = signature(open_node).parameters
    record = {field.name: field.default for field in fields(NodeOptions)}

    assert list(parameters) == list(record)
    assert {name: parameter.default for name, parameter in parameters.items()} == {
        **record,
        "control": (),
    }
    assert record["control"] == frozenset()


async def test_a_node_keeps_a_copy_of_its_environment() -> None:
    env = {"colour": "red"}
    context = open_node(env=env)
    env["colour"] = "blue"

    async with context as node:
        assert node.env["colour"] == "red"


async def test_an_option_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="max_proceses"):
        open_node(max_proceses=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def test_the_reason_of_a_killed_process_is_killed(
    autojump_clock: MockClock,
) -> None:
    ends: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Witness, ends, shutdown=1)
        node.send(pid, lambda me: trio.Event().wait())
        await wait_all_tasks_blocked()

    assert ends == [Killed()]


async def test_an_escalation_is_kept_or_stops_the_node() -> None:
    options: Any = {"on_escalation": "panic"}

    with pytest.raises(BadInputError, match="'keep' or 'stop'"):
        open_node(**options)


async def test_a_node_that_cannot_be_made_raises_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise Failed("no kernel")

    replace_private(monkeypatch, "kernel of new nodes", refuse)

    with pytest.raises(ExceptionGroup) as caught:
        async with running_node():
            raise AssertionError("there is no node")

    assert caught.group_contains(Failed, match="no kernel")


async def test_an_error_inside_the_node_reaches_the_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[Node] = []
    broken = trio.Event()

    async def fail(_clock: object) -> None:
        await broken.wait()
        raise Failed("in the clock")

    monkeypatch.setattr(Clock, "run", fail)

    ends: list[Any] = []
    with pytest.raises(Failed, match="in the clock"):
        async with running_node() as node:
            opened.append(node)
            await node.spawn(Witness, ends)
            broken.set()
            # The body is told, and not left alone with a node in which nothing moves.
            await trio.sleep_forever()

    [node] = opened
    assert ends == [Shutdown()]
    assert node.exit_report is not None
    with pytest.raises(NodeStoppedError):
        node.send("anybody", 1)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize("where", ["release", "Process.refuse", "stop_all"])
async def test_an_error_in_the_end_of_a_process_ends_the_node_in_order_with_that_error(
    monkeypatch: pytest.MonkeyPatch, where: str, asynchronous: bool
) -> None:
    opened: list[Node] = []
    *_, name = where.split(".")
    place: Any = Process if where.startswith("Process") else termination_module
    original = getattr(place, name)
    ends: list[Any] = []

    def fail(process: Any, *args: Any) -> Any:
        monkeypatch.setattr(place, name, original)
        raise Failed("in the kernel")

    monkeypatch.setattr(place, name, fail)
    with pytest.raises(Failed, match="in the kernel"):
        async with running_node() as node:
            opened.append(node)
            server = await node.spawn(Puppet, name="server")
            await node.spawn(Witness, ends)
            parent = await node.spawn(Puppet if asynchronous else Recorder)
            if where == "stop_all" or asynchronous:
                parent = await node.spawn(Puppet)
                await node.call(parent, lambda me: me.spawn(Puppet))

            async def call() -> None:
                with pytest.raises(TargetDownError):
                    await node.call(server, lambda me: trio.Event().wait(), timeout=None)
                ends.append("settled")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                await wait_all_tasks_blocked()
                nursery.cancel_scope.shield = True
                node.kill(parent)
                ended = await node.wait_ended(parent)
                assert isinstance(ended, Killed)
                node.kill(server)
            await trio.sleep_forever()

    [node] = opened
    assert ends == ["settled", Shutdown()]
    assert node.processes() == []


async def test_an_error_while_abandoning_a_process_ends_the_node_with_that_error(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    opened: list[Node] = []

    async def fail(_ending: object) -> None:
        raise Failed("in the kernel")

    monkeypatch.setattr(termination_module.Ending, "cut_off", fail)
    with pytest.raises(Failed, match="in the kernel"):
        async with running_node(stop_timeout=1) as node:
            opened.append(node)
            parent = await node.spawn(Puppet)
            child = await node.call(parent, lambda me: me.spawn(Shielded, name="stuck"))
            node.send(child, "begin")
            await wait_all_tasks_blocked()

    [node] = opened
    assert node.processes() == []


async def test_a_terminate_in_a_wait_that_cannot_be_aborted_is_abandoned(
    autojump_clock: MockClock,
) -> None:
    class Waits(Actor):
        async def terminate(self, reason: Reason) -> None:
            await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)

    before = trio.lowlevel.current_statistics().tasks_living
    async with running_node(stop_timeout=1) as node:
        await node.spawn(Waits, name="waits")
    await wait_all_tasks_blocked()

    assert node.exit_report is not None
    assert [one.name for one in node.exit_report.abandoned] == ["waits"]
    assert trio.lowlevel.current_statistics().tasks_living <= before


async def test_a_log_output_that_raises_no_exception_ends_the_node_in_order(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(name: str) -> Any:
        raise GeneratorExit(name)

    ends: list[Any] = []
    monkeypatch.setattr(structlog, "get_logger", leave)
    with pytest.raises(GeneratorExit), trio.fail_after(20):
        async with running_node(log_output="structlog") as node:
            await node.spawn(Witness, ends)
            node.send(await node.spawn(Fragile), 1)
            await trio.sleep_forever()

    assert ends == [Shutdown()]


@pytest.mark.parametrize("behaviour", [Puppet, Shielded], ids=["willing", "stuck"])
async def test_an_error_in_the_nursery_of_the_node_ends_the_node(
    autojump_clock: MockClock, behaviour: type[Actor]
) -> None:
    """Nothing of this package raises there; tasks that other code has started there may."""
    opened: list[Node] = []

    async def fail() -> None:
        raise Failed("in the nursery")

    with pytest.raises(ExceptionGroup) as caught:
        async with running_node(stop_timeout=1) as node:
            opened.append(node)
            pid = await node.spawn(behaviour)
            node.send(pid, lambda me: trio.Event().wait())
            await wait_all_tasks_blocked()
            kernel_of(node).nursery.start_soon(fail)
            await trio.sleep_forever()

    [node] = opened
    assert caught.group_contains(Failed, match="in the nursery")
    assert node.stopping
    assert node.processes() == []


async def test_an_error_while_the_node_stops_is_raised_and_the_node_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[Node] = []

    async def fail(*_: object) -> None:
        raise Failed("cannot stop")

    with pytest.raises(Failed, match="cannot stop"):
        async with running_node(watchdog=0.5) as node:
            opened.append(node)
            await node.spawn(Puppet)
            replace_private(monkeypatch, "stop of a node's processes", fail)
    [node] = opened
    await wait_all_tasks_blocked()

    with pytest.raises(NodeStoppedError):
        node.send("anybody", 1)


async def test_an_error_of_closing_the_watchdog_is_raised_and_the_rest_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[Node] = []
    original = Watchdog.stop

    def fail(watchdog: Any) -> None:
        original(watchdog)
        raise Failed("cannot close")

    monkeypatch.setattr(Watchdog, "stop", fail)

    with pytest.raises(Failed, match="cannot close"):
        async with running_node(watchdog=0.5) as node:
            opened.append(node)

    [node] = opened
    assert node.exit_report is not None


async def test_a_node_without_a_thread_for_its_watchdog_leaves_no_task_or_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    descriptors = open_descriptors()
    before = trio.lowlevel.current_statistics().tasks_living

    def refuse(_thread: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            async with running_node(watchdog=0.5):
                raise AssertionError("there is no node")
    await wait_all_tasks_blocked()

    assert trio.lowlevel.current_statistics().tasks_living <= before
    assert open_descriptors() <= descriptors


@pytest.mark.parametrize(
    "error", [GeneratorExit, SystemExit, asyncio.CancelledError], ids=lambda one: one.__name__
)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
async def test_a_terminate_that_raises_any_exception_does_not_keep_others_from_stopping(
    autojump_clock: MockClock, error: type[BaseException], asynchronous: bool
) -> None:
    ends: list[Any] = []

    class Plain(Actor):
        def terminate(self, reason: Reason) -> None:
            raise error

    class Waits(Actor):
        async def terminate(self, reason: Reason) -> None:
            await trio.lowlevel.checkpoint()
            raise error

    async def stop() -> None:
        async with running_node(watchdog=0.5) as node:
            await node.spawn(Witness, ends)
            await node.spawn(Waits if asynchronous else Plain)

    if error is SystemExit:
        with pytest.raises(error):
            await stop()
    else:
        await stop()

    assert ends == [Shutdown()]


async def test_a_plain_terminate_that_raises_a_cancellation_does_not_keep_a_node_running(
    autojump_clock: MockClock,
) -> None:
    ends: list[Any] = []
    cancelled: list[trio.Cancelled] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.sleep(1)
        except trio.Cancelled as error:
            cancelled.append(error)
            raise

    class Odd(Actor):
        def terminate(self, reason: Reason) -> None:
            raise cancelled[0]

    async with running_node() as node:
        await node.spawn(Witness, ends)
        await node.spawn(Odd)

    assert ends == [Shutdown()]


def test_a_node_that_is_never_closed_ends_with_the_loop() -> None:
    opened: list[Any] = []

    async def forget() -> None:
        opened.append(open_node("forgotten@localhost", watchdog=None, log_output="none"))
        await opened[0].__aenter__()

    trio.run(forget)

    assert opened[0]._down.is_set()


async def test_the_exit_report_names_all_of_very_many_processes(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pids = [await node.spawn(Puppet) for _ in range(300)]

    assert node.exit_report is not None
    assert [one.pid for one in node.exit_report.stopped] == pids


async def test_the_exit_report_has_the_processes_that_start_while_the_node_stops(
    autojump_clock: MockClock,
) -> None:
    class Unwilling(Actor):
        def init(self) -> None:
            raise Failed

    async def work(me: Puppet) -> None:
        await trio.sleep(1)
        await me.spawn(Puppet, name="late")
        with suppress(SpawnError):
            await me.spawn(Unwilling)

    async with running_node() as node:
        node.send(await node.spawn(Puppet, name="early"), work)
        await wait_all_tasks_blocked()

    report = node.exit_report
    assert report is not None
    ended = [(one.name, one.reason) for one in report.stopped]
    assert ended == [("early", Shutdown()), ("late", Shutdown())]


# -- the first mistakes ----------------------------------------------------------------------------


def test_a_node_in_asyncio_is_refused_and_trio_is_named() -> None:
    async def main() -> None:
        async with open_node():
            pass

    with pytest.raises(NotAllowedError) as caught:
        asyncio.run(main())

    assert "write `trio.run(main)` instead of `asyncio.run(main())`" in str(caught.value)
    assert "`from ergo_py.blocking import open_node`" in str(caught.value)


def test_a_node_outside_of_any_loop_is_refused_and_trio_is_named() -> None:
    entering = open_node().__aenter__()

    with pytest.raises(NotAllowedError) as caught:
        entering.send(None)

    assert str(caught.value) == (
        "open_node(...) needs trio: start the program with `trio.run(main)`"
    )


async def test_a_context_that_asyncio_refused_can_be_entered_in_trio() -> None:
    context = open_node(watchdog=None)

    async def main() -> None:
        await context.__aenter__()

    with pytest.raises(NotAllowedError):
        await trio.to_thread.run_sync(asyncio.run, main())

    async with context as node:
        assert node.info().processes == 0


@pytest.mark.parametrize("name", ["spawn", "send", "name", "supervise", "no_such_name"])
def test_the_context_of_a_node_names_the_block_that_makes_the_node(name: str) -> None:
    context: Any = open_node()

    with pytest.raises(AttributeError) as caught:
        getattr(context, name)

    assert f"write `async with open_node(...) as node:`, and `node.{name}` inside" in str(
        caught.value
    )
    assert not hasattr(context, "_no_such_name")
    assert not hasattr(context, "__len__")


def test_a_node_refuses_everything_after_the_end_of_its_run_with_the_reason() -> None:
    async def first() -> Node:
        node = await open_node(watchdog=None, log_output="none").__aenter__()
        await node.spawn(Puppet, name="puppet")
        return node

    node = trio.run(first)

    async def spawn() -> None:
        await node.spawn(Puppet)

    async def call() -> None:
        await node.call("puppet", 5)

    async def look() -> None:
        node.info()

    for verb in (spawn, call, look):
        with pytest.raises(NodeStoppedError) as caught:
            trio.run(verb)

        assert "the `trio.run(…)` that opened it is over" in str(caught.value)
        assert "`from ergo_py.blocking import open_node`" in str(caught.value)
    with pytest.raises(NodeStoppedError):
        node.send("puppet", 5)


async def test_an_error_of_the_body_gets_a_hint_about_asyncio(autojump_clock: MockClock) -> None:
    with pytest.raises(RuntimeError) as caught:
        async with running_node():
            await asyncio.sleep(1)

    assert "`await trio.sleep(…)`" in caught.value.__notes__[0]


# -- objects beside a node -------------------------------------------------------------------------


class Companion:
    """Works beside a node, and notes its beginning and its end."""

    control = frozenset({"look"})

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name = name
        self.seen = seen

    def open(self, node: Any) -> Callable[[], object]:
        assert threading.current_thread() is not threading.main_thread()
        assert node.control_path.exists()
        self.seen.append(f"{self.name} begins")
        if self.name == "refuses":
            raise Failed("no")
        return self.close

    def close(self) -> None:
        self.seen.append(f"{self.name} ends")
        if self.name == "fails":
            raise Failed("at the end")


async def test_objects_beside_a_node_begin_after_its_control_socket_and_end_in_reverse(
    control_directory: None,
) -> None:
    seen: list[str] = []
    async with running_node(beside=[Companion("a", seen), Companion("b", seen)]) as node:
        assert node.control_path is not None
        assert seen == ["a begins", "b begins"]

    assert seen[2:] == ["b ends", "a ends"]


async def test_an_object_beside_that_refuses_keeps_the_node_from_opening(
    control_directory: None,
) -> None:
    seen: list[str] = []
    with pytest.raises(Failed, match="no"):
        async with running_node(beside=[Companion("a", seen), Companion("refuses", seen)]):
            raise AssertionError("it must not open")

    assert seen == ["a begins", "refuses begins", "a ends"]


async def test_the_failed_end_of_an_object_beside_is_an_error_of_the_node(
    control_directory: None,
) -> None:
    seen: list[str] = []
    with pytest.raises(Failed, match="at the end"):
        async with running_node(beside=[Companion("a", seen), Companion("fails", seen)]):
            pass

    assert seen[2:] == ["fails ends", "a ends"]


def test_beside_is_a_list_of_objects_that_open() -> None:
    wrong: Any
    for wrong in ("observe", [1], object()):
        with pytest.raises(BadInputError, match="beside"):
            open_node(beside=wrong)


@pytest.fixture
def control_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with short_directory() as path:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
        yield
