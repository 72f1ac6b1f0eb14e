"""Snapshots: every field shows the present state, without waiting for a process."""

import dataclasses
from time import perf_counter
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import PID, Actor, Caller, Overflow, Priority, Why
from ergo_py._core.inspection.census import Census
from ergo_py.errors import ProcessUnknownError
from ergo_py.info import NodeInfo, ProcessInfo, State
from tests._core.inspection.test_census import rows_of
from tests.actors import Deferring, Fragile, Puppet, Recorder, SlowStart
from tests.support import replace_private, running_node


async def test_a_snapshot_of_an_idle_process(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        began = perf_counter()
        pid = await node.spawn(Recorder)
        await wait_all_tasks_blocked()

        info = node.process_info(pid)

        assert 0 < info.uptime <= perf_counter() - began
        assert dataclasses.replace(info, history=(), uptime=0.0, running_time=0.0) == ProcessInfo(
            pid=pid,
            name=None,
            behaviour="Recorder",
            state=State.SLEEP,
            history=(),
            lanes={"urgent": 0, "system": 0, "main": 0, "log": 0},
            messages_in=0,
            messages_out=0,
            dropped=0,
            unhandled=0,
            callback=None,
            message_type=None,
            running_time=0.0,
            uptime=0.0,
            parent=node.pid,
            children=(),
            links=(),
            linked_by=(),
            monitors=(),
            monitored_by=(),
            aliases=(),
            waits_for=None,
            asks=None,
            trap_exit=False,
            mailbox_size=None,
            env=None,
        )


async def test_a_snapshot_of_a_process_with_all_kinds_of_relations(
    autojump_clock: MockClock,
) -> None:
    async with running_node(env={"colour": "red"}, expose_env=True) as node:
        other, parent = await node.spawn(Puppet, name="other"), await node.spawn(Puppet)
        pid = await node.call(
            parent,
            lambda me: me.spawn(
                Puppet,
                name="rich",
                mailbox_size=2,
                overflow=Overflow.DROP_NEWEST,
                env={"size": "large"},
            ),
        )

        async def prepare(me: Puppet) -> tuple[Any, Any]:
            me.trap_exit = True
            me.link(other)
            me.monitor("other")
            me.send(other, "one")
            me.send("nobody", "two")
            return await me.spawn(Puppet), me.create_alias()

        child, alias = await node.call(pid, prepare)
        await node.call(other, lambda me: (me.link(pid), me.monitor("rich"), me.monitor(alias)))
        gate = trio.Event()
        node.send(pid, lambda me: gate.wait())
        await wait_all_tasks_blocked()
        for _ in range(3):
            node.send(pid, 1)
        node.send(pid, 1, priority=Priority.HIGH)
        node.send(pid, 1, priority=Priority.MAX)

        info = node.process_info("rich")
        gate.set()

        assert (info.pid, info.name, info.behaviour, info.parent) == (pid, "rich", "Puppet", parent)
        assert (info.state, info.callback, info.message_type) == (
            State.RUNNING,
            "handle_message",
            "function",
        )
        assert info.lanes == {"urgent": 1, "system": 1, "main": 2, "log": 0}
        assert (info.messages_in, info.messages_out, info.dropped, info.mailbox_size) == (
            6,
            2,
            1,
            2,
        )
        assert (info.children, info.aliases, info.trap_exit) == ((child,), (alias,), True)
        assert info.links == (other,)
        assert info.linked_by == (other,)
        assert [target.name for target in info.monitors if not isinstance(target, PID)] == ["other"]  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
        assert info.monitored_by == (other, other)
        assert info.env == {"colour": "red", "size": "large"}


async def test_a_snapshot_is_frozen_and_does_not_change_with_its_process(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder)
        info, whole = node.process_info(pid), node.info()
        before = dataclasses.asdict(info), dataclasses.asdict(whole)

        with pytest.raises(dataclasses.FrozenInstanceError):
            info.name = "other"  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue]
        for number in range(3):
            node.send(pid, number)
        node.send("nobody", 1)
        node.register("named", pid)
        await wait_all_tasks_blocked()

        assert (dataclasses.asdict(info), dataclasses.asdict(whole)) == before


async def test_counters_count_messages_received_and_messages_sent(
    autojump_clock: MockClock,
) -> None:
    class Silent(Actor):
        pass

    async with running_node() as node:
        silent = await node.spawn(Silent)
        puppet = await node.spawn(Puppet)

        async def work(me: Puppet) -> None:
            me.send(silent, 1)
            me.send("nobody", 1)
            await me.send_wait(silent, 1)
            await me.call(puppet_too, lambda _: None)
            me.forward(silent, 1, me.pid)

        puppet_too = await node.spawn(Puppet)
        await node.call(puppet, work)
        await wait_all_tasks_blocked()

        assert node.process_info(puppet).messages_out == 5
        assert node.process_info(puppet).messages_in == 1
        assert node.process_info(silent).messages_in == 3
        assert node.process_info(silent).unhandled == 3
        assert node.process_info(puppet_too).messages_in == 1


@pytest.mark.parametrize("inline_calls", [True, False])
async def test_a_snapshot_shows_the_call_in_which_a_process_waits(
    autojump_clock: MockClock, inline_calls: bool
) -> None:
    callers: list[Caller] = []

    async with running_node(inline_calls=inline_calls) as node:
        server, puppet = await node.spawn(Deferring, callers), await node.spawn(Puppet)
        await wait_all_tasks_blocked()
        node.send(puppet, lambda me: me.call(server, 1, timeout=None))
        await wait_all_tasks_blocked()

        info = node.process_info(puppet)
        in_flight = node.info().calls_in_flight
        node.reply(callers[0], "answer")
        await wait_all_tasks_blocked()

        assert (info.state, info.waits_for, info.asks) == (
            State.WAIT_RESPONSE,
            callers[0].ref,
            server,
        )
        assert info.callback == "handle_message"
        assert in_flight == 1
        assert node.process_info(puppet).waits_for is None
        assert node.process_info(puppet).asks is None
        assert node.info().calls_in_flight == 0


@pytest.mark.parametrize("inline_calls", [True, False])
async def test_a_snapshot_shows_no_call_that_has_ended(
    autojump_clock: MockClock, inline_calls: bool
) -> None:
    async with running_node(inline_calls=inline_calls) as node:
        server, puppet = await node.spawn(Recorder), await node.spawn(Puppet)
        await wait_all_tasks_blocked()

        async def call_and_look(me: Puppet) -> tuple[object, int]:
            await me.call(server, None)
            return me.node.process_info(me.pid).waits_for, me.node.info().calls_in_flight

        seen = await node.call(puppet, call_and_look)

        assert seen == (None, 0)


class Work:
    """A clock that only work moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for worker in (
            *("message loops", "processes", "snapshots", "inline calls", "callback watches"),
            *("new processes", "traces", "the census"),
        ):
            replace_private(monkeypatch, f"clock of {worker}", lambda: self.now)

    def do(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("inline", [True, False], ids=["on the spot", "in its own turn"])
async def test_time_in_a_call_belongs_to_the_callee(
    inline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(monkeypatch)
    seen: list[float] = []

    class Works(Actor):
        def handle_call(self, request: Any, caller: Caller) -> None:
            work.do(2.0)
            seen.append(node.process_info(self.pid).running_time)
            work.do(1.0)

    async with running_node(inline_calls=inline) as node:
        pid = await node.spawn(Works)
        await node.call(pid, "and sleep")
        await wait_all_tasks_blocked()
        census = Census()
        rows_of(census, node)
        for _ in range(3):
            await node.call(pid, "work")
            await wait_all_tasks_blocked()
            work.do(1.0)

        assert seen == [2.0, 5.0, 8.0, 11.0]
        assert node.process_info(pid).running_time == 12.0
        [row] = rows_of(census, node)
        assert (row.time, row.load) == (12.0, 0.75)
        found = await node.statistics(pid, seconds=0.0)
        assert found.busy is not None


async def test_a_suspended_process_with_mail_spends_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = Work(monkeypatch)

    class Works(Actor):
        def handle_message(self, message: Any, sender: PID) -> None:
            work.do(message)

    async with running_node() as node:
        pid = await node.spawn(Works)
        node.send(pid, 2.0)
        await wait_all_tasks_blocked()
        await node.suspend(pid)
        times = [node.process_info(pid).running_time]
        for _ in range(3):
            # Mail wakes it, and it goes back to sleep.
            node.send(pid, 1.0)
            await wait_all_tasks_blocked()
            work.do(100.0)
            [row] = rows_of(Census(), node)
            times += [node.process_info(pid).running_time, row.time]
        await node.resume(pid)
        await wait_all_tasks_blocked()

        assert times == [2.0] * 7
        assert node.process_info(pid).running_time == 5.0


async def test_running_time_grows_with_work_and_not_with_sleep() -> None:
    async with running_node() as node:
        server, pid = await node.spawn(Puppet), await node.spawn(Puppet)

        async def work(me: Puppet) -> None:
            await trio.sleep(0.05)

        await node.call(pid, work)
        await wait_all_tasks_blocked()
        after_work = node.process_info(pid).running_time
        await trio.sleep(0.05)
        after_sleep = node.process_info(pid).running_time

        async def call_slowly(me: Puppet) -> list[float]:
            seen = [me.node.process_info(me.pid).running_time]
            await trio.sleep(0.02)
            seen.append(await me.call(server, lambda it: it.node.process_info(pid).running_time))
            seen.append(me.node.process_info(me.pid).running_time)
            return seen

        before, waiting, after = await node.call(pid, call_slowly)

        assert after_work >= 0.05
        assert after_sleep == after_work
        assert after_work < before
        assert before + 0.02 <= waiting < after


async def test_answering_inline_does_not_make_a_sleep_look_like_work() -> None:
    class NodeInspection(Actor):
        def handle_call(self, request: Any, caller: Caller) -> object:
            return self.node.process_info(self.pid)

    async with running_node() as node:
        pid = await node.spawn(NodeInspection)
        await wait_all_tasks_blocked()
        before = node.process_info(pid).running_time
        await trio.sleep(0.2)

        asked = perf_counter()
        info = await node.call(pid, 1)

        assert info.state is State.RUNNING
        assert info.running_time - before <= perf_counter() - asked


@pytest.mark.parametrize("expose_env", [True, False])
async def test_environments_are_shown_only_if_the_node_allows_it(
    autojump_clock: MockClock, expose_env: bool
) -> None:
    async with running_node(env={"password": "secret"}, expose_env=expose_env) as node:
        pid = await node.spawn(Puppet, env={"token": "secret"})

        seen = node.info().env, node.process_info(pid).env

        if expose_env:
            assert seen == ({"password": "secret"}, {"password": "secret", "token": "secret"})
        else:
            assert seen == (None, None)
            assert "secret" not in repr((node.info(), node.process_info(pid)))


async def test_a_snapshot_of_a_node(autojump_clock: MockClock) -> None:
    before = perf_counter()
    async with running_node("demo@localhost", max_processes=10) as node:
        began = perf_counter()
        pid, other = await node.spawn(Puppet, name="named"), await node.spawn(Puppet)
        crashing = await node.spawn(Fragile)
        await node.call(
            pid,
            lambda me: (
                me.create_alias(),
                me.link(other),
                me.monitor(other),
                me.send_after(9, other, 1),
            ),
        )
        node.send(crashing, 1)
        await wait_all_tasks_blocked()
        node.send(crashing, 1)
        node.send("nobody", 1)

        asked = perf_counter()
        info = node.info()

        expected = {
            "name": "demo@localhost",
            "creation": pid.creation,
            "processes": 2,
            "names": 1,
            "aliases": 1,
            "relations": 2,
            "timers": 1,
            "calls_in_flight": 0,
            "dead_letters": {Why.NO_PROCESS: 2},
            "late_replies": 0,
            "late_messages": 0,
            "spawned": 3,
            "crashed": 1,
            "log_lines_lost": 0,
            "times_blocked": 0,
            "last_blocked": None,
            "max_processes": 10,
            "env": None,
        }
        assert isinstance(info, NodeInfo)
        assert {key: getattr(info, key) for key in expected} == expected
        assert asked - began <= info.uptime <= perf_counter() - before


async def test_a_snapshot_does_not_wait_for_a_busy_process(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        node.send(pid, lambda me: trio.Event().wait())
        await wait_all_tasks_blocked()

        info = node.process_info(pid)

        assert (info.state, info.callback) == (State.RUNNING, "handle_message")
        assert trio.current_time() == 0


async def test_a_snapshot_of_a_process_in_its_init_shows_that_state(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: node.spawn(SlowStart, 1.0, name="slow"))
        await wait_all_tasks_blocked()

        info = node.process_info("slow")

        assert (info.state, info.callback, info.message_type) == (State.INIT, "init", None)


async def test_a_snapshot_of_a_process_that_has_ended_is_an_error(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        node.kill(pid)
        await wait_all_tasks_blocked()

        with pytest.raises(ProcessUnknownError):
            node.process_info(pid)
