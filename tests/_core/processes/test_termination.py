"""The end of a process: the same order for every cause, in bounded time, however it behaves."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    NO_REPLY,
    PID,
    Actor,
    Caller,
    Crashed,
    Custom,
    Down,
    Killed,
    MetaProcess,
    Name,
    NameTakenError,
    Node,
    Normal,
    NotAllowedError,
    Reason,
    Shutdown,
    TargetDownError,
    Why,
    open_node,
)
from ergo_py._core.processes.ownership import _force_ends, kill_all
from ergo_py._core.runtime import time_slices as time_slices_module
from ergo_py._core.runtime.cancel_scopes import Killing
from ergo_py.info import State
from tests.actors import Failed, Puppet, Recorder, Shielded, SlowEnd, Stubborn, Witness
from tests.meta.support import meta_of
from tests.support import (
    kernel_of,
    loggers_of,
    process_of,
    relation_tables,
    replace_private,
    router_of,
    running_node,
)


def fail(me: Any) -> None:
    raise Failed("on purpose")


ENDS: dict[str, tuple[Callable[[Node, PID], object], Reason]] = {
    "stopped": (lambda node, pid: node.send(pid, lambda me: me.stop("done")), Custom("done")),
    "asked to exit": (lambda node, pid: node.send_exit(pid, "enough"), Custom("enough")),
    "killed": (lambda node, pid: node.kill(pid), Killed()),
    "crashed": (lambda node, pid: node.send(pid, fail), Crashed(Failed("on purpose"))),
}
EVERY_END = pytest.mark.parametrize("how", ENDS)


# -- P7: the order ---------------------------------------------------------------------------------


class Recording(Puppet):
    """Notes when its terminate begins and ends."""

    def __init__(self, steps: list[Any], label: str) -> None:
        super().__init__()
        self.steps = steps
        self.label = label

    async def terminate(self, reason: Reason) -> None:
        self.steps.append((self.label, "terminate begins"))
        await trio.sleep(1)
        self.steps.append((self.label, "terminate ends"))


class Watcher(Puppet):
    """Notes its Down, and whether the ended process is still in the tables."""

    def __init__(self, steps: list[Any]) -> None:
        super().__init__()
        self.steps = steps

    async def handle_message(self, message: Any, sender: Any) -> None:
        if isinstance(message, Down):
            left = message.target in self.node.processes(), self.node.whereis("held")
            self.steps.append(("watcher", "down", left))
        else:
            await super().handle_message(message, sender)


@EVERY_END
async def test_a_process_ends_in_the_same_order_for_every_cause(
    autojump_clock: MockClock, how: str
) -> None:
    end, reason = ENDS[how]
    steps: list[Any] = []
    async with running_node() as node:
        watcher = await node.spawn(Watcher, steps)
        pid = await node.spawn(Recording, steps, "parent", name="held")
        for label in ("first child", "second child"):
            await node.call(pid, lambda me, label=label: me.spawn(Recording, steps, label))
        await node.call(watcher, lambda me: me.monitor(pid))

        async def call() -> None:
            with pytest.raises(TargetDownError) as caught:
                await node.call(pid, lambda me: NO_REPLY, timeout=None)
            steps.append(("caller", caught.value.reason))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await wait_all_tasks_blocked()
            end(node, pid)
            await wait_all_tasks_blocked()
            refused = node.send(pid, "too late"), node.whereis("held")
            await trio.sleep(2.5)
            in_terminate = node.send(pid, "too late"), node.whereis("held")

        await wait_all_tasks_blocked()
        assert refused == in_terminate == (False, pid)
        assert steps[:6] == [
            ("second child", "terminate begins"),
            ("second child", "terminate ends"),
            ("first child", "terminate begins"),
            ("first child", "terminate ends"),
            ("parent", "terminate begins"),
            ("parent", "terminate ends"),
        ]
        assert sorted(steps[6:], key=str) == [
            ("caller", reason),
            ("watcher", "down", (False, None)),
        ]


@EVERY_END
@pytest.mark.parametrize("asynchronous", [True, False], ids=["async terminate", "plain terminate"])
async def test_terminate_runs_exactly_once_with_the_reason(
    autojump_clock: MockClock, how: str, asynchronous: bool
) -> None:
    end, reason = ENDS[how]
    ends: list[Any] = []

    class Async(Puppet):
        async def terminate(self, reason: Reason) -> None:
            ends.append(reason)
            await trio.lowlevel.checkpoint()

    class Plain(Puppet):
        def terminate(self, reason: Reason) -> None:
            ends.append(reason)

    async with running_node() as node:
        pid = await node.spawn(Async if asynchronous else Plain)

        end(node, pid)
        await wait_all_tasks_blocked()
        end(node, pid)
        await wait_all_tasks_blocked()

        assert ends == [reason]
        assert node.processes() == []


@EVERY_END
async def test_every_monitor_gets_the_reason_once(autojump_clock: MockClock, how: str) -> None:
    end, reason = ENDS[how]
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Puppet, name="watched")
        alias = await node.call(pid, lambda me: me.create_alias())
        watcher = await node.spawn(Puppet, heard)
        for target in (pid, "watched", alias):
            await node.call(watcher, lambda me, target=target: me.monitor(target))

        end(node, pid)
        await wait_all_tasks_blocked()

        assert heard == [
            Down(target, reason) for target in (pid, Name("watched", "test@localhost"), alias)
        ]
        assert node.info().relations == 0


async def test_a_watcher_can_start_a_replacement_under_the_same_name_at_once(
    autojump_clock: MockClock,
) -> None:
    names: list[Any] = []

    class Keeper(Puppet):
        async def handle_message(self, message: Any, sender: Any) -> None:
            if isinstance(message, Down):
                names.append(self.node.whereis("kept"))
                self.monitor(await self.spawn(Puppet, name="kept"))
            else:
                await super().handle_message(message, sender)

        async def handle_child_exit(self, child: PID, reason: Reason) -> None:
            names.append("child exit")

    async with running_node() as node:
        keeper = await node.spawn(Keeper)

        async def begin(me: Puppet) -> None:
            me.monitor(await me.spawn(Puppet, name="kept"))

        await node.call(keeper, begin)
        for how in ENDS:
            pid = node.whereis("kept")
            assert pid is not None
            ENDS[how][0](node, pid)
            await wait_all_tasks_blocked()
            assert node.whereis("kept") not in (None, pid)

        assert [name for name in names if name != "child exit"] == [None] * len(ENDS)


async def test_a_name_is_free_only_after_terminate_has_finished(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(SlowEnd, 3.0, name="held")
        node.kill(pid)
        await trio.sleep(2.9)

        with pytest.raises(NameTakenError):
            await node.spawn(Puppet, name="held")
        await node.wait_ended(pid)
        successor = await node.spawn(Puppet, name="held")

        assert trio.current_time() == 3
        assert node.whereis("held") == successor


@EVERY_END
async def test_an_ended_process_remains_in_no_table(autojump_clock: MockClock, how: str) -> None:
    end, _ = ENDS[how]
    async with running_node() as node:
        other = await node.spawn(Puppet, name="other")
        pid = await node.spawn(Puppet, name="held")

        async def take_one_of_everything(me: Puppet) -> None:
            me.create_alias()
            me.send_after(1_000, other, 1)
            me.send_every(1_000, other, 1)
            me.link(other)
            me.monitor(other)
            await me.spawn(Puppet)

        await node.call(pid, take_one_of_everything)
        await node.call(other, lambda me: me.link(pid))
        await node.call(other, lambda me: setattr(me, "trap_exit", True))
        node.add_logger(pid)

        end(node, pid)
        await wait_all_tasks_blocked()

        info = node.info()
        assert (info.processes, info.names, info.aliases, info.relations, info.timers) == (
            1,
            1,
            0,
            0,
            0,
        )
        assert loggers_of(node) == {}
        assert list(kernel_of(node).roots) == [other]


OWNED: dict[str, Callable[[Any], Any]] = {
    "alias": lambda me: me.create_alias(),
    "timer": lambda me: me.send_after(1_000, "other", 1),
    "request": lambda me: me.request("other", lambda _other: NO_REPLY, timeout=None),
    "event": lambda me: me.register_event("event"),
    "key": lambda me: me.node.registry("keys").register("key", me.pid),
    "group": lambda me: me.node.group("group").join(me.pid),
    "monitored group": lambda me: me.node.group("watched").monitor(me.pid),
    "child": lambda me: me.spawn(Puppet),
}


@pytest.mark.parametrize("how", ["stopped", "stopped by its owner"])
@pytest.mark.parametrize("owned", OWNED)
async def test_each_thing_that_a_process_owns_is_released_when_it_ends(
    owned: str, how: str
) -> None:
    async with running_node() as node:
        await node.spawn(Puppet, name="other")
        owner = await node.spawn(Puppet)
        before = _left(node)
        pid = await node.call(owner, lambda me: me.spawn(Puppet))
        await node.call(pid, OWNED[owned])
        await wait_all_tasks_blocked()
        with_owned = _left(node)
        node.send(pid if how == "stopped" else owner, lambda me: me.stop())
        await node.wait_ended(pid)
        await wait_all_tasks_blocked()
        after = _left(node)

    owner_ended = how != "stopped"
    assert with_owned != before | {"processes": before["processes"] + 1}
    assert after == before | {"processes": before["processes"] - owner_ended}


def _left(node: Node) -> dict[str, int]:
    """How much there is of everything that a process can own."""
    directory, info = router_of(node).directory, node.info()
    return {
        "processes": info.processes,
        "aliases": info.aliases,
        "timers": info.timers,
        "requests": len(process_of(node, "other").deferred or ()),
        "events": len(node.events()),
        "keys": sum(len(table.entries) for table in directory.registries.values()),
        "groups": len(directory.groups) + len(directory.watchers),
    }


async def test_tables_do_not_grow_after_many_rounds_of_linking_and_dying(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        keeper = await node.spawn(Puppet)
        await node.call(keeper, lambda me: setattr(me, "trap_exit", True))

        for round_ in range(200):
            pid = await node.spawn(Puppet, name=f"name {round_ % 7}")
            await node.call(keeper, lambda me, pid=pid: (me.link(pid), me.monitor(pid)))
            await node.call(
                pid, lambda me: (me.link(keeper), me.monitor(keeper), me.create_alias())
            )
            ENDS[list(ENDS)[round_ % len(ENDS)]][0](node, pid)
            await wait_all_tasks_blocked()

        relations = kernel_of(node).relations
        info = node.info()
        assert (info.processes, info.names, info.aliases, info.relations, info.timers) == (
            1,
            0,
            0,
            0,
            0,
        )
        assert relation_tables(relations) == ({}, {})


async def test_timers_of_an_ended_process_do_not_fire(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        receiver = await node.spawn(Recorder, heard)
        pid = await node.spawn(Puppet)
        await node.call(
            pid,
            lambda me: (me.send_after(1, receiver, "once"), me.send_every(1, receiver, "often")),
        )

        node.kill(pid)
        await trio.sleep(5)

        assert heard == []


# -- children: within their time -------------------------------------------------------------------


async def test_a_child_that_does_not_end_when_asked_is_killed_after_its_shutdown_time(
    autojump_clock: MockClock,
) -> None:
    ends: list[Any] = []
    async with running_node() as node:
        parent = await node.spawn(Witness, ends)
        child = await node.call(parent, lambda me: me.spawn(Witness, ends, shutdown=2))
        node.send(child, lambda me: trio.Event().wait())
        await wait_all_tasks_blocked()

        node.send_exit(parent, "enough")
        await node.wait_ended(parent)

        assert ends == [Killed(), Custom("enough")]
        assert trio.current_time() == 2


async def test_a_child_is_asked_to_shut_down_and_may_finish_its_callback(
    autojump_clock: MockClock,
) -> None:
    ends: list[Any] = []
    done: list[str] = []

    async def finish(me: Puppet) -> None:
        await trio.sleep(1.5)
        done.append("finished")

    async with running_node() as node:
        parent = await node.spawn(Witness, ends)
        child = await node.call(parent, lambda me: me.spawn(Witness, ends, shutdown=2))
        node.send(child, finish)
        await wait_all_tasks_blocked()

        node.kill(parent)
        await node.wait_ended(parent)

        assert done == ["finished"]
        assert ends == [Shutdown(), Killed()]


class Sleeper(Puppet):
    """Notes in which task its last word is said, and with which reason."""

    def __init__(self, notes: list[Any]) -> None:
        super().__init__()
        self.notes = notes

    def terminate(self, reason: Reason) -> None:
        self.notes.append((trio.lowlevel.current_task().name, reason))
        self.send("watcher", "last word")


@pytest.mark.parametrize("served", [False, True], ids=["that never woke", "that has served"])
async def test_a_sleeping_child_is_ended_in_the_turn_of_its_owner(
    autojump_clock: MockClock, served: bool
) -> None:
    notes: list[Any] = []
    heard: list[Any] = []
    async with running_node() as node:
        watcher = await node.spawn(Puppet, heard, name="watcher")
        parent = await node.spawn(Puppet)
        child = await node.call(parent, lambda me: me.spawn(Sleeper, notes, name="held"))
        await node.call(watcher, lambda me: me.monitor(child))
        if served:
            await node.call(child, lambda me: me.send_after(1, "watcher", "never"))
        await wait_all_tasks_blocked()

        node.send_exit(parent, "enough")
        await trio.sleep(2)

        assert notes == [("Puppet", Shutdown())]
        assert heard == ["last word", Down(child, Shutdown())]
        assert node.processes() == [watcher]
        assert node.whereis("held") is None


async def test_deferred_calls_of_a_sleeping_child_are_answered_when_its_owner_ends(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        parent = await node.spawn(Puppet)
        child = await node.call(parent, lambda me: me.spawn(Sleeper, []))

        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def call() -> None:
                with pytest.raises(TargetDownError) as caught:
                    await node.call(child, lambda me: NO_REPLY, timeout=None)
                assert caught.value.reason == Shutdown()

            await wait_all_tasks_blocked()
            node.send_exit(parent, "enough")

        assert node.processes() == []


async def test_a_sleeping_child_with_a_failing_terminate_ends_with_its_owner(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    class Raising(Puppet):
        def terminate(self, reason: Reason) -> None:
            raise Failed("in terminate")

    async with running_node(log_output="json", log_level="error") as node:
        parent = await node.spawn(Puppet)
        for _ in range(2):
            await node.call(parent, lambda me: me.spawn(Raising))
        await wait_all_tasks_blocked()

        node.send_exit(parent, "enough")
        await wait_all_tasks_blocked()

        assert node.processes() == []
        assert capsys.readouterr().err.count("terminate raised") == 2


async def test_a_child_with_no_shutdown_time_is_killed_at_once(autojump_clock: MockClock) -> None:
    ends: list[Any] = []
    async with running_node() as node:
        parent = await node.spawn(Witness, ends)
        await node.call(parent, lambda me: me.spawn(Witness, ends, shutdown=0))

        node.send_exit(parent, "enough")
        await node.wait_ended(parent)

        assert ends == [Killed(), Custom("enough")]


async def test_the_parent_waits_for_a_child_with_an_infinite_shutdown_time(
    autojump_clock: MockClock,
) -> None:
    ends: list[Any] = []

    async with running_node(limit=10_000) as node:
        parent = await node.spawn(Witness, ends)
        child = await node.call(parent, lambda me: me.spawn(Witness, ends, shutdown=float("inf")))
        gate = trio.Event()
        node.send(child, lambda me: gate.wait())
        await wait_all_tasks_blocked()

        node.send_exit(parent, "enough")
        await trio.sleep(5_000)
        before = list(ends)
        gate.set()
        await node.wait_ended(parent)

        assert before == []
        assert ends == [Shutdown(), Custom("enough")]


async def test_a_child_that_traps_exits_ends_when_its_parent_does(
    autojump_clock: MockClock,
) -> None:
    ends: list[Any] = []

    class Trapping(Witness):
        def init(self) -> None:
            self.trap_exit = True

    async with running_node() as node:
        parent = await node.spawn(Puppet)
        await node.call(parent, lambda me: me.spawn(Trapping, ends))

        node.kill(parent)
        await node.wait_ended(parent)

        assert ends == [Shutdown()]
        assert trio.current_time() == 0


async def test_a_parent_killed_while_it_waits_for_its_children_ends_them_faster(
    autojump_clock: MockClock,
) -> None:
    ends: list[Any] = []
    async with running_node() as node:
        parent = await node.spawn(Witness, ends, "parent")
        child = await node.call(parent, lambda me: me.spawn(Witness, ends, "child", shutdown=1_000))
        node.send(child, lambda me: trio.Event().wait())
        await wait_all_tasks_blocked()
        node.send_exit(parent, "enough")
        await trio.sleep(1)

        node.kill(parent)
        await node.wait_ended(parent)

        assert ends == ["child", "parent"]
        assert trio.current_time() < 3


class Reception(MetaProcess):
    """Stands for a server: it says which children of its owner are sessions."""

    sessions: Sequence[PID] = ()
    is_open = True

    async def start(self) -> None:
        await trio.sleep_forever()

    def _stop_accepting(self) -> list[Any]:
        self.is_open = False
        return [meta_of(self).router.processes[pid] for pid in self.sessions]


async def test_sessions_end_together_before_other_children_and_have_their_shutdown_time(
    autojump_clock: MockClock,
) -> None:
    steps: list[Any] = []

    class Guest(Puppet):
        async def pre_stop(self, reason: Reason) -> None:
            steps.append(("session", trio.current_time(), reception.is_open))
            await trio.sleep(3)

    reception = Reception()
    async with running_node() as node:
        owner = await node.spawn(Puppet, shutdown=2)
        await node.call(owner, lambda me: me.spawn_meta(reception))
        reception.sessions = [await node.call(owner, lambda me: me.spawn(Guest)) for _ in range(3)]
        await node.call(owner, lambda me: me.spawn(Recording, steps, "other"))

    assert steps[:3] == [("session", 0, False)] * 3
    assert [step[0] for step in steps[3:]] == ["other", "other"]
    assert node.exit_report is not None
    assert node.exit_report.killed == ()


@pytest.mark.parametrize(
    "each, begun",
    [
        pytest.param(0.125, {0.0: 100, 0.125: 100, 0.25: 50}, id="those that end make room"),
        pytest.param(
            1.0, {0.0: 100, 0.25: 100, 0.5: 50}, id="those that hang hold up none for long"
        ),
    ],
)
async def test_a_hundred_of_many_sessions_end_at_the_same_time(
    autojump_clock: MockClock, each: float, begun: dict[float, int]
) -> None:
    times: Counter[float] = Counter()

    class Guest(Puppet):
        async def pre_stop(self, reason: Reason) -> None:
            times[trio.current_time()] += 1
            await trio.sleep(each)

    async def arrive(me: Puppet) -> list[PID]:
        return [await me.spawn(Guest, shutdown=2) for _ in range(250)]

    reception = Reception()
    async with running_node() as node:
        owner = await node.spawn(Puppet)
        await node.call(owner, lambda me: me.spawn_meta(reception))
        reception.sessions = await node.call(owner, arrive)

    assert times == begun
    assert node.exit_report is not None
    assert node.exit_report.killed == ()


async def test_an_owner_that_blocks_after_its_sessions_have_ended_is_killed(
    autojump_clock: MockClock,
) -> None:
    class Owner(Puppet):
        async def terminate(self, reason: Reason) -> None:
            await trio.sleep(100)

    reception = Reception()
    async with running_node() as node:
        owner = await node.spawn(Owner, shutdown=1, terminate_timeout=50)
        await node.call(owner, lambda me: me.spawn_meta(reception))
        reception.sessions = [await node.call(owner, lambda me: me.spawn(Puppet))]

    assert node.exit_report is not None
    assert [one.pid for one in node.exit_report.killed] == [owner]
    assert node.exit_report.seconds < 10


# -- faults in terminate ---------------------------------------------------------------------------


async def test_a_terminate_that_never_returns_is_cut_off_after_its_time(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []

    async with running_node() as node:
        pid = await node.spawn(SlowEnd, name="endless", terminate_timeout=2)
        watcher = await node.spawn(Puppet, heard)
        await node.call(watcher, lambda me: me.monitor(pid))

        node.send_exit(pid, "enough")
        reason = await node.wait_ended(pid)
        await wait_all_tasks_blocked()

        assert trio.current_time() == 2
        assert reason == Custom("enough")
        assert heard == [Down(pid, Custom("enough"))]
        assert node.whereis("endless") is None


@EVERY_END
async def test_a_terminate_that_cannot_be_cut_off_is_abandoned(
    autojump_clock: MockClock, how: str
) -> None:
    class Deaf(Puppet):
        async def terminate(self, reason: Reason) -> None:
            with trio.CancelScope(shield=True):
                await trio.sleep_forever()

    async with running_node() as node:
        heard: list[Any] = []
        watcher = await node.spawn(Puppet, heard)
        pid = await node.spawn(Deaf, name="deaf", terminate_timeout=2)
        await node.call(watcher, lambda me: me.monitor(pid))
        end, reason = ENDS[how]

        end(node, pid)
        told = await node.wait_ended(pid)
        await wait_all_tasks_blocked()

        assert told == reason
        assert 2 < trio.current_time() <= 4
        assert heard == [Down(pid, reason)]
        assert node.whereis("deaf") is None
        assert [one.pid for one in kernel_of(node).lifetimes.abandoned] == [pid]


@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "plain"])
@EVERY_END
async def test_a_terminate_that_raises_changes_neither_the_reason_nor_the_order(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str], how: str, asynchronous: bool
) -> None:
    end, reason = ENDS[how]
    heard: list[Any] = []

    class Plain(Puppet):
        def terminate(self, reason: Reason) -> None:
            raise Failed("in terminate")

    class Async(Puppet):
        async def terminate(self, reason: Reason) -> None:
            await trio.lowlevel.checkpoint()
            raise Failed("in terminate")

    async with running_node(log_output="json", log_level="error") as node:
        pid = await node.spawn(Async if asynchronous else Plain, name="held")
        watcher = await node.spawn(Puppet, heard)
        await node.call(watcher, lambda me: me.monitor(pid))

        end(node, pid)
        await wait_all_tasks_blocked()

        assert heard == [Down(pid, reason)]
        assert node.whereis("held") is None
        assert node.processes() == [watcher]
        assert "terminate raised" in capsys.readouterr().err


async def test_terminate_is_shielded_from_a_kill_that_came_before_it(
    autojump_clock: MockClock,
) -> None:
    done: list[str] = []

    class Careful(Puppet):
        async def terminate(self, reason: Reason) -> None:
            await trio.sleep(1)
            done.append("released")

    async with running_node() as node:
        pid = await node.spawn(Careful)
        node.send(pid, lambda me: trio.Event().wait())
        await wait_all_tasks_blocked()

        node.kill(pid)
        await node.wait_ended(pid)

        assert done == ["released"]


async def test_a_kill_during_terminate_cuts_it_short(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(SlowEnd, terminate_timeout=1_000)
        node.send_exit(pid, "enough")
        await trio.sleep(1)

        node.kill(pid)
        reason = await node.wait_ended(pid)

        assert reason == Custom("enough")
        assert trio.current_time() == 1


async def test_terminate_cannot_start_work_that_would_outlive_it(autojump_clock: MockClock) -> None:
    refused: dict[str, str] = {}

    class Late(Puppet):
        async def terminate(self, reason: Reason) -> None:
            verbs: dict[str, Callable[[], Any]] = {
                "spawn": lambda: self.spawn(Puppet, name="late"),
                "link": lambda: self.link("other"),
                "monitor": lambda: self.monitor("other"),
                "register": lambda: self.register("late"),
                "create_alias": self.create_alias,
                "send_after": lambda: self.send_after(1, "other", 1),
                "send_every": lambda: self.send_every(1, "other", 1),
                "stop": self.stop,
                "trap_exit": lambda: setattr(self, "trap_exit", True),
            }
            for name, verb in verbs.items():
                try:
                    result = verb()
                    if result is not None:
                        await result
                except NotAllowedError as error:
                    refused[name] = str(error)

    async with running_node() as node:
        other = await node.spawn(Puppet, name="other")
        pid = await node.spawn(Late)

        node.send_exit(pid, "enough")
        await wait_all_tasks_blocked()

        info = node.info()
        assert len(refused) == 9
        assert all("before the process stops" in text for text in refused.values())
        assert node.processes() == [other]
        assert (info.names, info.aliases, info.relations, info.timers) == (1, 0, 0, 0)


async def test_terminate_may_send_call_and_reply(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    answers: list[Any] = []

    class Polite(Puppet):
        def keep(self, caller: Caller) -> object:
            self.caller = caller
            return NO_REPLY

        async def handle_call(self, request: Any, caller: Caller) -> object:
            self.caller = caller
            return NO_REPLY

        async def terminate(self, reason: Reason) -> None:
            self.send("other", "goodbye")
            heard.append(await self.call("other", lambda me: "answered"))
            self.reply(self.caller, "the last word")

    async with running_node() as node:
        await node.spawn(Puppet, heard, name="other")
        pid = await node.spawn(Polite)

        async def call() -> None:
            answers.append(await node.call(pid, 1, timeout=None))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await wait_all_tasks_blocked()
            node.send_exit(pid, "enough")

        assert heard == ["goodbye", "answered"]
        assert answers == ["the last word"]


# -- those that will not end -----------------------------------------------------------------------


@pytest.fixture
def fast_clock() -> MockClock:
    """Virtual time that passes by itself: a clock that jumps when nothing moves would wait forever
    for tasks that always move.
    """
    return MockClock(rate=20.0)


class Rude(Actor):
    """Answers every cancellation with an exception of its own, and goes on."""

    async def handle_message(self, message: Any, sender: Any) -> None:
        while True:
            try:
                await trio.sleep(1)
            except BaseException:
                try:
                    raise Failed("not now") from None
                except Failed:
                    continue


class StubbornEnd(Actor):
    """Will not come to an end in ``terminate``."""

    def handle_message(self, message: Any, sender: Any) -> None:
        self.stop()

    async def terminate(self, reason: Reason) -> None:
        while True:
            try:
                await trio.sleep(1)
            except BaseException:
                pass


@pytest.mark.parametrize("behaviour", [Stubborn, Shielded, Rude, StubbornEnd])
async def test_a_child_that_does_not_end_is_abandoned(
    fast_clock: MockClock, behaviour: type[Actor]
) -> None:
    heard: list[Any] = []
    ends: list[Any] = []
    async with running_node(limit=600) as node:
        watcher = await node.spawn(Puppet, heard)
        parent = await node.spawn(Witness, ends)
        child = await node.call(
            parent,
            lambda me: me.spawn(behaviour, name="stubborn", shutdown=0.1, terminate_timeout=0.1),
        )
        await node.call(watcher, lambda me: me.monitor(child))
        node.send(child, "begin")
        await wait_all_tasks_blocked()
        node.send(child, "never handled")

        node.send_exit(parent, "enough")
        reason = await node.wait_ended(parent)
        await node.call(watcher, lambda me: None)

        assert reason == Custom("enough")
        assert ends == [Custom("enough")]
        assert [type(message) for message in heard] == [Down]
        assert node.processes() == [watcher]
        assert node.whereis("stubborn") is None
        # A process that ends by itself may have been abandoned before the message above was sent:
        # this clock is fast.
        before = node.info().dead_letters.get(Why.NO_PROCESS, 0)
        assert node.send(child, 1) is False
        assert node.info().dead_letters[Why.NO_PROCESS] == before + 1

    assert node.exit_report is not None
    assert [one.name for one in node.exit_report.abandoned] == ["stubborn"]


async def test_a_process_abandoned_by_two_waiters_in_the_same_turn_is_abandoned_once(
    fast_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node(limit=600) as node:
        watcher = await node.spawn(Puppet, heard)
        pid = await node.spawn(StubbornEnd, name="stubborn", terminate_timeout=100)
        await node.call(watcher, lambda me: me.monitor(pid))
        node.send(pid, "begin")
        await wait_all_tasks_blocked()
        process = process_of(node, pid)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.abandon)
            nursery.start_soon(process.abandon)
        left = pid in node.processes()
        await node.call(watcher, lambda me: None)

    assert not left
    assert [type(message) for message in heard] == [Down]
    assert node.exit_report is not None
    assert [one.name for one in node.exit_report.abandoned] == ["stubborn"]


async def test_abandoning_a_child_takes_no_longer_than_its_time_limits(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        parent = await node.spawn(Puppet)
        child = await node.call(
            parent, lambda me: me.spawn(Shielded, shutdown=2, terminate_timeout=3)
        )
        node.send(child, "begin")
        await wait_all_tasks_blocked()

        node.send_exit(parent, "enough")
        await node.wait_ended(parent)

        assert trio.current_time() == 2 + 3 + 0.5 + 0.5


async def test_a_call_to_an_abandoned_process_ends(autojump_clock: MockClock) -> None:
    reasons: list[Any] = []

    class StubbornServer(Actor):
        async def handle_call(self, request: Any, caller: Caller) -> object:
            with trio.CancelScope(shield=True):
                await trio.sleep_forever()
            return None

    async with running_node() as node:
        parent = await node.spawn(Puppet)
        child = await node.call(
            parent, lambda me: me.spawn(StubbornServer, shutdown=1, terminate_timeout=1)
        )

        async def call(request: str) -> None:
            with pytest.raises(TargetDownError) as caught:
                await node.call(child, request, timeout=None)
            reasons.append(caught.value.reason)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, "in progress")
            await wait_all_tasks_blocked()
            nursery.start_soon(call, "queued")
            await wait_all_tasks_blocked()
            node.kill(parent)

        assert reasons == [Killed(), Killed()]


async def test_children_of_an_abandoned_process_end_with_it(fast_clock: MockClock) -> None:
    ends: list[Any] = []

    class StubbornParent(Stubborn):
        async def init(self) -> None:
            await self.spawn(Witness, ends, "grandchild")

    async with running_node(limit=600) as node:
        root = await node.spawn(Puppet)
        child = await node.call(
            root, lambda me: me.spawn(StubbornParent, shutdown=1, terminate_timeout=1)
        )
        node.send(child, "begin")
        await wait_all_tasks_blocked()

        node.kill(root)
        await node.wait_ended(root)

        assert ends == ["grandchild"]
        assert node.processes() == []


async def test_an_abandoned_process_cannot_send(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    gate = trio.Event()

    class IdleHandlers(Actor):
        async def handle_message(self, message: Any, sender: Any) -> None:
            with trio.CancelScope(shield=True):
                await gate.wait()
            self.send("other", "from the beyond")

    async with running_node() as node:
        await node.spawn(Recorder, heard, name="other")
        parent = await node.spawn(Puppet)
        child = await node.call(
            parent, lambda me: me.spawn(IdleHandlers, shutdown=1, terminate_timeout=1)
        )
        node.send(child, "begin")
        await wait_all_tasks_blocked()
        node.kill(parent)
        await node.wait_ended(parent)

        gate.set()
        await wait_all_tasks_blocked()

        assert heard == []


@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
async def test_tasks_of_an_abandoned_process_do_no_harm_when_they_end(
    autojump_clock: MockClock, raises: bool
) -> None:
    gate = trio.Event()

    class WithTasks(Actor):
        async def handle_message(self, message: Any, sender: Any) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.endure)

        async def endure(self) -> None:
            with trio.CancelScope(shield=True):
                await gate.wait()
            if raises:
                raise Failed("too late")

    async with running_node() as node:
        other = await node.spawn(Puppet)
        parent = await node.spawn(Puppet)
        child = await node.call(
            parent, lambda me: me.spawn(WithTasks, shutdown=1, terminate_timeout=1)
        )
        node.send(child, "begin")
        await wait_all_tasks_blocked()
        node.kill(parent)
        await node.wait_ended(parent)

        gate.set()
        await wait_all_tasks_blocked()

        assert node.processes() == [other]
        assert await node.call(other, lambda me: "alive") == "alive"


async def test_process_info_shows_that_a_process_is_stopping(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(SlowEnd, 1.0)
        node.send_exit(pid, Normal())
        await wait_all_tasks_blocked()

        info = node.process_info(pid)

        assert (info.state, info.callback) == (State.STOPPING, "terminate")
        assert node.alive() == [f"<{info.behaviour} {pid}> stopping in terminate"]


async def test_an_exit_requested_twice_ends_the_process_once(autojump_clock: MockClock) -> None:
    ends: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Witness, ends)

        node.send_exit(pid, "first")
        node.send_exit(pid, "second")
        node.kill(pid)
        node.send(pid, lambda me: me.stop("third"))
        await wait_all_tasks_blocked()

        assert len(ends) == 1
        assert node.processes() == []


async def test_a_process_that_has_ended_cannot_be_abandoned() -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        process = process_of(node, pid)
        node.kill(pid)
        await node.wait_ended(pid)

        await process.abandon()

    assert node.exit_report is not None
    assert node.exit_report.abandoned == ()


async def test_an_abandoned_process_ends_its_children(autojump_clock: MockClock) -> None:
    ends: list[Any] = []

    class Parent(Stubborn):
        async def init(self) -> None:
            self.child = await self.spawn(Witness, ends, "child", name="child")

    async with running_node() as node:
        pid = await node.spawn(Parent, shutdown=1.0, terminate_timeout=1.0)
        node.send(pid, "hold on")
        await wait_all_tasks_blocked()
        process = process_of(node, pid)

        await process.abandon()

        assert node.whereis("child") is None
        assert node.processes() == []
    assert ends == ["child"]


async def test_pre_restart_does_not_run_when_the_process_ends() -> None:
    heard: list[Any] = []

    class Prepares(Puppet):
        def pre_restart(self, reason: Reason) -> None:
            heard.append(reason)

    async with running_node() as node:
        pid = await node.spawn(Prepares)

        node.send_exit(pid, "enough")
        reason = await node.wait_ended(pid)

    assert reason == Custom("enough")
    assert heard == []


# -- a program that stood still --------------------------------------------------------------------


class IdleHandlers(Puppet):
    """Takes until it is let go to say its last word."""

    def __init__(self, let_go: trio.Event, ended: list[str]) -> None:
        super().__init__()
        self.let_go = let_go
        self.ended = ended

    async def terminate(self, reason: Reason) -> None:
        await self.let_go.wait()
        self.ended.append(str(reason))


async def test_time_in_which_the_program_was_stopped_neither_cuts_terminate_off_nor_kills(
    mock_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    let_go, ended = trio.Event(), list[str]()
    async with open_node(watchdog=None, log_output="json") as node:
        owner = await node.spawn(Puppet)
        await node.call(owner, lambda me: me.spawn(IdleHandlers, let_go, ended))
        node.send_exit(owner)
        await wait_all_tasks_blocked()

        # Stopped and continued: the clock has gone on, and nothing has run since then.
        for _ in range(3):
            mock_clock.jump(6.0)
            await wait_all_tasks_blocked()
        let_go.set()
        await wait_all_tasks_blocked()
        assert node.processes() == []

    assert ended == ["shutdown"]
    assert capsys.readouterr().err == ""


async def test_a_terminate_is_cut_off_at_its_time_limit_and_not_before(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_node(watchdog=None, log_output="json") as node:
        lingering = await node.spawn(IdleHandlers, trio.Event(), [], terminate_timeout=3.5)
        began = trio.current_time()
        node.send_exit(lingering)
        await node.wait_ended(lingering)
        assert trio.current_time() - began == pytest.approx(3.5)

    assert "terminate was cut off" in capsys.readouterr().err


# -- many at once ----------------------------------------------------------------------------------


async def test_many_processes_are_killed_in_slices_and_other_tasks_run_in_between(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_private(monkeypatch, "length of a time slice", 0.0)
    turns = 0

    async def neighbour() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with running_node() as node:
        pids = [await node.spawn(Puppet) for _ in range(2000)]
        await wait_all_tasks_blocked()
        processes = router_of(node).processes
        async with trio.open_nursery() as nursery:
            nursery.start_soon(neighbour)
            await trio.lowlevel.checkpoint()
            work, before = _force_ends([[processes[pid] for pid in pids]]), turns
            await time_slices_module.in_slices(work)
            nursery.cancel_scope.cancel()
        await wait_all_tasks_blocked()

        # A turn for each slice, but for the last: the scheduler shuffles its tasks.
        assert turns - before >= 2000 // 256 - 1
        assert node.processes() == []


async def test_a_child_that_its_owner_stops_while_many_are_killed_is_not_cut_short(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_private(monkeypatch, "length of a time slice", 0.0)
    replace_private(monkeypatch, "many children", 1)
    steps: list[Any] = []

    class Slow(Puppet):
        async def terminate(self, reason: Reason) -> None:
            steps.append(reason)
            await trio.sleep(0.1)
            steps.append("done")

    async with running_node() as node:
        parent = await node.spawn(Puppet)
        child = await node.call(parent, lambda me: me.spawn(Slow))
        # Killed after the parent, and before its child: meanwhile the parent asks that to end.
        for _ in range(20):
            await node.spawn(Puppet)
        await wait_all_tasks_blocked()
        ending = process_of(node, child).to_end()
        await kill_all(dict(kernel_of(node).roots))

        assert steps == [Shutdown(), "done"]
        assert not ending.forced
        assert node.processes() == []


class Steps(trio.abc.Instrument):
    """Counts the steps of all tasks, and lets 2 ms pass with each pass of the event loop."""

    def __init__(self, clock: MockClock) -> None:
        self._clock = clock
        self.count = 0

    def before_task_step(self, task: object) -> None:
        self.count += 1

    def before_io_wait(self, timeout: float) -> None:
        self._clock.jump(0.002)


class Parent(Actor):
    """Spawns a child on request, and answers its pid."""

    async def handle_call(self, request: Any, caller: Caller) -> PID:
        return await self.spawn(Parent)


async def test_a_process_in_a_long_chain_of_generations_stops_in_few_steps(
    mock_clock: MockClock,
) -> None:
    async def stop_chain(generations: int) -> float:
        """Steps for each generation."""
        steps = Steps(mock_clock)
        async with running_node() as node:
            youngest = await node.spawn(Parent)
            for _ in range(generations - 1):
                youngest = await node.call(youngest, "spawn")
            await wait_all_tasks_blocked()
            trio.lowlevel.add_instrument(steps)
        trio.lowlevel.remove_instrument(steps)
        return steps.count / generations

    short = await stop_chain(20)
    long = await stop_chain(100)

    assert long <= 1.1 * short


@pytest.mark.parametrize("step", [0.01, 0.002])
async def test_a_chain_is_killed_in_few_steps_if_its_last_process_ends_late(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    """All limits of the chain expire in about the same moment."""
    cancel, cancelled = trio.CancelScope.cancel, 0

    def count(scope: trio.CancelScope, reason: str | None = None) -> None:
        nonlocal cancelled
        cancelled += 1
        cancel(scope, reason)

    class Chained(Actor):
        async def handle_call(self, request: Any, caller: Caller) -> PID:
            return await self.spawn(Last if request == "last" else Chained, shutdown=1.0)

    class Last(Puppet):
        async def terminate(self, reason: Reason) -> None:
            await trio.sleep_forever()

    async def pass_time() -> None:
        while True:
            mock_clock.jump(step)
            await trio.lowlevel.checkpoint()

    generations = 100
    async with trio.open_nursery() as nursery:
        async with running_node() as node:
            youngest = await node.spawn(Chained, shutdown=1.0)
            for _ in range(generations - 2):
                youngest = await node.call(youngest, "one more")
            await node.call(youngest, "last")
            await wait_all_tasks_blocked()
            nursery.start_soon(pass_time)
            monkeypatch.setattr(trio.CancelScope, "cancel", count)
        monkeypatch.undo()
        nursery.cancel_scope.cancel()

    assert node.processes() == []
    assert generations / 2 <= cancelled <= 8 * generations


async def test_a_wait_for_the_kill_of_a_tree_ends_with_that_kill() -> None:
    killing, steps = Killing(), 0

    async def wait() -> None:
        nonlocal steps
        with killing.while_it_lasts():
            await trio.sleep_forever()
        steps += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert steps == 0
        killing.end()
    await wait()
    assert steps == 2
