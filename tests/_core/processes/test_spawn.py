"""Spawning a process: it is there, initialised and where it belongs, or nothing of it is."""

import asyncio
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    PID,
    Actor,
    Caller,
    ChildSpec,
    Crashed,
    Custom,
    Down,
    InitError,
    MetaProcess,
    NameTakenError,
    Node,
    NodeStoppedError,
    Priority,
    Reason,
    Reject,
    SpawnError,
    Supervisor,
    SupervisorSpec,
    TargetDownError,
    Why,
)
from ergo_py._core import sources
from ergo_py._core.messaging.router import Router
from ergo_py._core.processes import termination as termination_module
from ergo_py._core.processes.lifecycle import NOT_YET
from ergo_py._core.vocabulary.errors import TooManyProcessesError
from ergo_py.errors import InitTimeoutError
from tests.actors import Failed, FailsToStart, Puppet, Recorder, SlowStart, Witness
from tests.support import (
    kernel_of,
    loggers_of,
    process_of,
    process_of_ending,
    relation_tables,
    replace_private,
    running_node,
)


def tables(node: Node) -> dict[str, object]:
    """The size of everything that a process can leave something in."""
    info = node.info()
    return {
        "processes": info.processes,
        "names": info.names,
        "aliases": info.aliases,
        "relations": info.relations,
        "timers": info.timers,
        "loggers": len(loggers_of(node)),
        "roots": len(kernel_of(node).roots),
    }


EMPTY = dict.fromkeys(
    ("processes", "names", "aliases", "relations", "timers", "loggers", "roots"), 0
)


# -- P2: spawning is complete or undone ------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [True, False], ids=["async init", "plain init"])
async def test_spawn_returns_after_init_has_succeeded(
    autojump_clock: MockClock, asynchronous: bool
) -> None:
    order: list[str] = []

    class Plain(Actor):
        def init(self) -> None:
            order.append("init")

    class Slow(Actor):
        async def init(self) -> None:
            await trio.sleep(1)
            order.append("init")

    async with running_node() as node:
        await node.spawn(Slow if asynchronous else Plain)
        order.append("spawned")

    assert order == ["init", "spawned"]


async def test_messages_that_init_sends_to_its_process_are_handled_first(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []

    class Eager(Recorder):
        def init(self) -> None:
            self.send(self.pid, "from init")

    async with running_node() as node:
        pid = await node.spawn(Eager, heard)
        node.send(pid, "from outside")
        await wait_all_tasks_blocked()

    assert heard == ["from init", "from outside"]


class Hoarder(Witness):
    """Takes a name, aliases, timers, links and children in ``init``, then runs ``then``."""

    def __init__(self, ends: list[Any], then: Callable[[Any], Any]) -> None:
        super().__init__(ends, "the hoarder")
        self.then = then

    async def init(self) -> None:
        await self.spawn(Witness, self.ends, "first child")
        await self.spawn(partial(Grandparent, self.ends))
        self.register("hoarder")
        self.create_alias()
        self.create_alias()
        self.send_after(100, self.pid, 1)
        self.send_every(100, "watcher", 1)
        self.link("linked")
        self.monitor("linked")
        self.node.add_logger(self.pid)
        result = self.then(self)
        if result is not None:
            await result


class Grandparent(Witness):
    def __init__(self, ends: list[Any]) -> None:
        super().__init__(ends, "second child")

    async def init(self) -> None:
        await self.spawn(Witness, self.ends, "grandchild")


def fail(me: Any) -> None:
    raise Failed("in init")


async def wait(me: Any) -> None:
    await trio.sleep_forever()


async def swallow(me: Any) -> None:
    try:
        await trio.sleep_forever()
    except trio.Cancelled:
        pass


@pytest.mark.parametrize("from_a_process", [False, True], ids=["from the node", "from a process"])
async def test_an_init_that_raises_leaves_no_process_behind(
    autojump_clock: MockClock, from_a_process: bool
) -> None:
    ends: list[Any] = []
    async with running_node() as node:
        watcher = await node.spawn(Puppet, name="watcher")
        linked = await node.spawn(Puppet, name="linked")
        before = tables(node)

        with pytest.raises(InitError) as caught:
            if from_a_process:
                await node.call(watcher, lambda me: _rejecting(me.spawn(Hoarder, ends, fail)))
            else:
                await node.spawn(Hoarder, ends, fail)

        assert str(caught.value) == "init of Hoarder raised Failed: in init"
        assert isinstance(caught.value.__cause__, Failed)
        assert caught.value.error is caught.value.__cause__
        assert tables(node) == before
        assert node.processes() == [watcher, linked]
        # The children are stopped in order and terminated; the process that never lived is not.
        assert ends == ["grandchild", "second child", "first child"]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
async def test_an_init_that_raises_a_foreign_cancellation_fails_like_any_other(
    autojump_clock: MockClock, asynchronous: bool
) -> None:
    class Plain(Actor):
        def init(self) -> None:
            raise asyncio.CancelledError

    class Waits(Actor):
        async def init(self) -> None:
            await trio.lowlevel.checkpoint()
            raise asyncio.CancelledError

    async with running_node() as node:
        with pytest.raises(InitError) as caught:
            await node.spawn(Waits if asynchronous else Plain)

        assert isinstance(caught.value.error, asyncio.CancelledError)
        assert node.processes() == []


@pytest.mark.parametrize("raised", [RuntimeError, GeneratorExit])
async def test_an_init_that_raises_an_unprintable_error_fails_like_any_other(
    autojump_clock: MockClock, raised: type[BaseException]
) -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise raised

    class Starts(Actor):
        def init(self) -> None:
            raise Unprintable

    async with running_node() as node:
        with pytest.raises(InitError) as caught:
            await node.spawn(Starts)

        assert str(caught.value).endswith("Starts raised Unprintable: <its __str__ raised>")
        assert isinstance(caught.value.error, Unprintable)
        assert node.processes() == []


async def _rejecting(coming: Any) -> Any:
    try:
        return await coming
    except Exception as error:
        raise Reject(error) from None


@pytest.mark.parametrize("then", [wait, swallow], ids=["waiting", "swallowing the cancellation"])
async def test_an_init_that_takes_too_long_leaves_no_process_behind(
    autojump_clock: MockClock, then: Callable[[Any], Any]
) -> None:
    ends: list[Any] = []
    async with running_node() as node:
        await node.spawn(Puppet, name="watcher")
        await node.spawn(Puppet, name="linked")
        before = tables(node)

        with pytest.raises(InitTimeoutError, match="larger init_timeout") as caught:
            await node.spawn(Hoarder, ends, then, init_timeout=2)

        assert trio.current_time() == 2
        assert isinstance(caught.value, TimeoutError)
        assert (caught.value.behaviour, caught.value.timeout) == ("Hoarder", 2)
        assert tables(node) == before
        assert ends == ["grandchild", "second child", "first child"]


@pytest.mark.parametrize("then", [wait, swallow], ids=["waiting", "swallowing the cancellation"])
@pytest.mark.parametrize("from_a_process", [False, True], ids=["from the node", "from a process"])
async def test_a_process_killed_in_its_init_leaves_no_entry_in_the_tables(
    autojump_clock: MockClock, then: Callable[[Any], Any], from_a_process: bool
) -> None:
    ends: list[Any] = []
    async with running_node() as node:
        watcher = await node.spawn(Puppet, name="watcher")
        await node.spawn(Puppet, name="linked")
        killer = await node.spawn(Puppet)
        before = tables(node)
        node.send_after(1, killer, lambda me: me.kill("hoarder"))
        await wait_all_tasks_blocked()

        with pytest.raises(SpawnError, match="Hoarder was killed during its init"):
            if from_a_process:
                await node.call(watcher, lambda me: _rejecting(me.spawn(Hoarder, ends, then)))
            else:
                await node.spawn(Hoarder, ends, then)

        assert trio.current_time() == 1
        assert tables(node) == before
        assert ends == ["grandchild", "second child", "first child"]
        assert node.info().crashed == 0


async def test_a_plain_init_that_kills_its_process_fails_the_spawn(
    autojump_clock: MockClock,
) -> None:
    class Despairing(Actor):
        def init(self) -> None:
            self.kill(self.pid)

    async with running_node() as node:
        with pytest.raises(SpawnError, match="was killed during its init"):
            await node.spawn(Despairing, name="despairing")

        assert tables(node) == EMPTY


async def test_a_spawn_that_is_cancelled_leaves_no_entry_in_the_tables(
    autojump_clock: MockClock,
) -> None:
    ends: list[Any] = []
    async with running_node() as node:
        await node.spawn(Puppet, name="watcher")
        await node.spawn(Puppet, name="linked")
        before = tables(node)

        with trio.move_on_after(1) as scope:
            await node.spawn(Hoarder, ends, wait)

        assert scope.cancelled_caught
        assert tables(node) == before
        assert ends == ["grandchild", "second child", "first child"]


async def test_a_spawn_that_is_cancelled_behind_its_init_returns_the_pid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Router, "pause_is_due", lambda _router: True)
    async with running_node() as node:
        with trio.CancelScope() as scope:
            scope.cancel()
            pid = await node.spawn(Puppet)
            assert node.processes() == [pid]

        assert not scope.cancelled_caught


async def test_a_spawner_killed_while_it_waits_for_an_init_ends_the_child(
    autojump_clock: MockClock,
) -> None:
    ends: list[Any] = []
    async with running_node() as node:
        await node.spawn(Puppet, name="watcher")
        await node.spawn(Puppet, name="linked")
        parent = await node.spawn(Witness, ends, "parent")
        node.send(parent, lambda me: me.spawn(Hoarder, ends, wait))
        await wait_all_tasks_blocked()

        node.kill(parent)
        await wait_all_tasks_blocked()

        assert ends == ["grandchild", "second child", "first child", "parent"]
        assert node.whereis("hoarder") is None
        assert node.info().processes == 2


async def test_a_constructor_that_raises_fails_the_init(autojump_clock: MockClock) -> None:
    class Broken(Actor):
        def __init__(self) -> None:
            raise Failed("in __init__")

    async with running_node() as node:
        with pytest.raises(InitError) as caught:
            await node.spawn(Broken, name="broken")

        assert isinstance(caught.value.__cause__, Failed)
        assert tables(node) == EMPTY


async def test_messages_and_calls_for_a_process_with_a_failing_init_are_accounted_for(
    autojump_clock: MockClock,
) -> None:
    reasons: list[object] = []

    async def fail_later(me: Any) -> None:
        await trio.sleep(1)
        raise Failed("in init")

    class Late(Actor):
        async def init(self) -> None:
            await fail_later(self)

    async with running_node() as node:

        async def call() -> None:
            with pytest.raises(TargetDownError) as caught:
                await node.call("late", 1, timeout=None)
            reasons.append(caught.value.reason)

        async def spawn() -> None:
            with pytest.raises(InitError):
                await node.spawn(Late, name="late")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(spawn)
            await wait_all_tasks_blocked()
            nursery.start_soon(call)
            node.send("late", 1)

        assert reasons == [Crashed(Failed("in init"))]
        assert node.info().dead_letters == {Why.UNHANDLED_AT_EXIT: 1}


async def test_a_monitor_of_a_process_with_a_failing_init_gets_down_once(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []

    class Late(Actor):
        async def init(self) -> None:
            self.send("watcher", self.pid)
            await trio.sleep(1)
            raise Failed("in init")

    class Watcher(Recorder):
        def handle_message(self, message: Any, sender: Any) -> None:
            super().handle_message(message, sender)
            if isinstance(message, PID):
                self.monitor(message)

    async with running_node() as node:
        await node.spawn(Watcher, heard, name="watcher")

        with pytest.raises(InitError):
            await node.spawn(Late)
        await wait_all_tasks_blocked()

        assert heard == [heard[0], Down(heard[0], Crashed(Failed("in init")))]


async def test_a_parent_gets_no_notice_of_a_child_that_never_started(
    autojump_clock: MockClock,
) -> None:
    told: list[Any] = []

    class Parent(Puppet):
        def handle_child_exit(self, child: PID, reason: Reason) -> None:
            told.append(reason)

    async with running_node() as node:
        parent = await node.spawn(Parent)

        with pytest.raises(InitError):
            await node.call(parent, lambda me: _rejecting(me.spawn(FailsToStart)))
        await wait_all_tasks_blocked()

        assert told == []
        assert node.process_info(parent).children == ()


async def test_a_taken_name_stops_a_spawn_before_the_constructor_runs(
    autojump_clock: MockClock,
) -> None:
    started: list[Any] = []

    class Second(Actor):
        def __init__(self) -> None:
            started.append(self)

    async with running_node() as node:
        holder = await node.spawn(Puppet, name="taken")
        before = tables(node)

        with pytest.raises(NameTakenError) as caught:
            await node.spawn(Second, name="taken")

        assert caught.value.name == "taken"
        assert str(holder) in str(caught.value)
        assert started == []
        assert tables(node) == before
        assert node.whereis("taken") == holder


async def test_a_class_is_called_again_for_each_start(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        factory = partial(Puppet, None)
        first, second = await node.spawn(factory), await node.spawn(factory)

        await node.call(first, lambda me: me.heard.append("mine"))

        assert await node.call(first, None) == ["mine"]
        assert await node.call(second, None) == []


# -- P3, P9, I1 ------------------------------------------------------------------------------------


async def test_a_process_spawned_by_a_process_is_its_child(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        parent = await node.spawn(Puppet)
        child = await node.call(parent, lambda me: me.spawn(Puppet))

        parents = [await node.call(pid, lambda me: me.parent) for pid in (parent, child)]

        assert parents == [node.pid, parent]
        assert node.process_info(parent).children == (child,)


@pytest.mark.parametrize(
    "end",
    [
        lambda node, pid: node.kill(pid),
        lambda node, pid: node.send_exit(pid, "enough"),
        lambda node, pid: node.send(pid, lambda me: me.stop()),
        lambda node, pid: node.send(pid, fail),
    ],
    ids=["killed", "asked to exit", "stopped", "crashed"],
)
async def test_a_child_never_outlives_its_parent(
    autojump_clock: MockClock, end: Callable[[Node, PID], object]
) -> None:
    ends: list[Any] = []
    async with running_node() as node:
        root = await node.spawn(Witness, ends, "root")
        for name in ("left", "right"):
            child = await node.call(root, lambda me, name=name: me.spawn(Witness, ends, name))
            await node.call(child, lambda me, name=name: me.spawn(Witness, ends, f"{name} leaf"))

        end(node, root)
        await wait_all_tasks_blocked()

        assert ends == ["right leaf", "right", "left leaf", "left", "root"]
        assert node.processes() == []


async def test_spawn_stops_at_max_processes_and_leaves_no_partial_process(
    autojump_clock: MockClock,
) -> None:
    started: list[Any] = []

    class Third(Actor):
        def __init__(self) -> None:
            started.append(self)

    async with running_node(max_processes=2) as node:
        first = await node.spawn(Puppet)
        await node.call(first, lambda me: me.spawn(Puppet))
        before = tables(node)

        with pytest.raises(TooManyProcessesError, match="max_processes=2"):
            await node.spawn(Third, name="third")
        with pytest.raises(TooManyProcessesError):
            await node.call(first, lambda me: _rejecting(me.spawn(Third)))
        after = tables(node)
        node.kill(first)
        await node.wait_ended(first)

        assert started == []
        assert after == before
        assert await node.spawn(Third, name="third") in node.processes()


async def test_a_process_in_its_init_counts_against_max_processes(
    autojump_clock: MockClock,
) -> None:
    async with running_node(max_processes=1) as node, trio.open_nursery() as nursery:
        nursery.start_soon(node.spawn, SlowStart, 1.0)
        await wait_all_tasks_blocked()

        with pytest.raises(TooManyProcessesError):
            await node.spawn(Puppet)


async def test_numbers_of_pids_aliases_and_refs_only_grow_and_no_two_are_equal(
    autojump_clock: MockClock,
) -> None:
    numbers: list[int] = []
    references: list[int] = []
    values: list[Any] = []

    class Answering(Actor):
        def handle_call(self, request: Any, caller: Caller) -> object:
            return caller.ref

    async with running_node() as node:
        for _ in range(20):
            pid = await node.spawn(Puppet)
            alias = await node.call(pid, lambda me: me.create_alias())
            server = await node.spawn(Answering)
            ref = await node.call(server, 1)
            values += [pid, alias, server, ref]
            numbers += [pid.number, alias.number, server.number]
            references.append(ref.number)
            node.kill(pid)
            await node.wait_ended(pid)

    assert numbers == sorted(set(numbers))
    assert references == sorted(set(references))
    assert set(numbers) & set(references)
    assert len(set(values)) == len(values)


async def test_calls_events_and_inspections_use_no_numbers_of_processes() -> None:
    async with running_node() as node:
        first = await node.spawn(Puppet, name="service")
        await node.call(first, lambda me: me.register_event("news"))
        for _ in range(10):
            await node.call(first, "anything")
            await node.inspect(first)
            await trio.to_thread.run_sync(node.call_from_thread, first, "anything")
        second = await node.spawn(Puppet)

    assert second.number == first.number + 1


async def test_every_start_of_a_node_has_a_new_creation() -> None:
    creations = set()
    for _ in range(5):
        async with running_node() as node:
            creations.add(node.info().creation)

    assert len(creations) == 5


@pytest.mark.parametrize("clock", [lambda: 7, lambda: -1], ids=["stands still", "was set back"])
async def test_every_start_of_a_node_has_a_new_creation_for_any_clock(
    clock: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time_ns", clock)
    creations = []
    async with running_node() as node:
        creations.append(node.info().creation)
        earlier = await node.spawn(Puppet)
    async with running_node() as node:
        creations.append(node.info().creation)
        later = await node.spawn(Puppet)

        assert earlier.number == later.number
        assert not node.send(earlier, 1)

    assert creations == sorted(set(creations))


# -- environment and settings ----------------------------------------------------------------------


async def test_the_environment_is_inherited_from_node_to_parent_to_child(
    autojump_clock: MockClock,
) -> None:
    async with running_node(env={"colour": "node", "size": "node", "shape": "node"}) as node:
        parent = await node.spawn(Puppet, env={"size": "parent", "shape": "parent"})
        child = await node.call(parent, lambda me: me.spawn(Puppet, env={"shape": "child"}))
        heir = await node.call(parent, lambda me: me.spawn(Puppet))

        envs = [await node.call(pid, lambda me: dict(me.env)) for pid in (parent, child, heir)]

        assert envs == [
            {"colour": "node", "size": "parent", "shape": "parent"},
            {"colour": "node", "size": "parent", "shape": "child"},
            {"colour": "node", "size": "parent", "shape": "parent"},
        ]
        assert dict(node.env) == {"colour": "node", "size": "node", "shape": "node"}


async def test_a_change_of_the_given_environment_changes_neither_node_nor_process(
    autojump_clock: MockClock,
) -> None:
    given = {"key": "old"}
    async with running_node(env=given) as node:
        pid = await node.spawn(Puppet, env=given)
        given["key"] = "new"

        with pytest.raises(TypeError):
            node.env["key"] = "newer"  # type: ignore[index]  # pyright: ignore[reportIndexIssue]
        envs = [dict(node.env), await node.call(pid, lambda me: dict(me.env))]

        assert envs == [{"key": "old"}, {"key": "old"}]


async def test_a_process_sends_with_the_priority_it_was_spawned_with(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        receiver = await node.spawn(Puppet, heard)
        urgent = await node.spawn(Puppet, priority=Priority.MAX)
        gate = trio.Event()
        node.send(receiver, lambda me: gate.wait())
        await wait_all_tasks_blocked()

        async def send_three(me: Puppet) -> None:
            me.send(receiver, "normal after all", priority=Priority.NORMAL)
            me.send(receiver, "urgent")
            me.send_priority = Priority.HIGH
            me.send(receiver, "high")

        await node.call(urgent, send_three)
        gate.set()
        await wait_all_tasks_blocked()

        assert heard == ["urgent", "high", "normal after all"]


# -- links made by spawn ---------------------------------------------------------------------------


async def test_spawn_with_a_link_links_both_ways(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        parent = await node.spawn(Puppet)
        child = await node.call(parent, lambda me: me.spawn(Puppet, link=True))

        infos = node.process_info(parent), node.process_info(child)

        assert [(info.links, info.linked_by) for info in infos] == [
            ((child,), (child,)),
            ((parent,), (parent,)),
        ]


async def test_a_linked_spawn_does_not_walk_through_the_links_of_its_parent(
    autojump_clock: MockClock,
) -> None:
    class NotWalked(dict[Any, Any]):
        def __iter__(self) -> NoReturn:
            raise AssertionError("a walk through all links")

    async with running_node() as node:
        parent = await node.spawn(Puppet)
        await node.call(parent, lambda me: me.spawn(Puppet, link=True))
        table, _ = relation_tables(kernel_of(node).relations)
        table[parent] = NotWalked(table[parent])

        child = await node.call(parent, lambda me: me.spawn(Puppet, link=True))

        table[parent] = dict(table[parent].items())
        assert child in node.process_info(parent).links


async def test_a_linked_child_that_crashes_ends_its_parent(
    autojump_clock: MockClock,
) -> None:
    ends: list[Any] = []
    async with running_node() as node:
        parent = await node.spawn(Witness, ends)
        child = await node.call(parent, lambda me: me.spawn(Puppet, link=True))

        node.send(child, fail)
        await wait_all_tasks_blocked()

        assert ends == [Crashed(Failed("in init"))]
        assert node.processes() == []


async def test_the_end_of_a_linked_child_that_dies_at_once_is_never_missed(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []

    class Short(Actor):
        def init(self) -> None:
            self.stop("at once")

    async def spawn_many(me: Puppet) -> None:
        me.trap_exit = True
        for _ in range(500):
            await me.spawn(Short, link=True)

    async with running_node() as node:
        parent = await node.spawn(Puppet, heard)

        await node.call(parent, spawn_many)
        await wait_all_tasks_blocked()

        assert [type(message).__name__ for message in heard] == ["Exit"] * 500
        assert len({message.source for message in heard}) == 500
        assert node.info().relations == 0


async def test_an_init_that_has_already_linked_does_not_prevent_a_link_by_spawn(
    autojump_clock: MockClock,
) -> None:
    class Linking(Puppet):
        def init(self) -> None:
            self.link(self.parent)

    async with running_node() as node:
        parent = await node.spawn(Puppet)

        child = await node.call(parent, lambda me: me.spawn(Linking, link=True))

        assert node.process_info(child).links == (parent,)


# -- spawning on a node that stops -----------------------------------------------------------------


async def test_a_stopped_node_refuses_to_spawn(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pass

    with pytest.raises(NodeStoppedError, match="open_node"):
        await node.spawn(Puppet)


async def test_a_stopping_node_refuses_to_spawn(
    autojump_clock: MockClock,
) -> None:
    errors: list[BaseException] = []

    class Leaving(Actor):
        async def terminate(self, reason: Reason) -> None:
            try:
                await self.node.spawn(Puppet, name="late")
            except NodeStoppedError as error:
                errors.append(error)

    async with running_node() as node:
        await node.spawn(Leaving)

    assert len(errors) == 1
    assert node.exit_report is not None
    assert len(node.exit_report.stopped) == 1


async def test_a_process_that_finishes_its_work_may_spawn_while_the_node_stops(
    autojump_clock: MockClock,
) -> None:
    ends: list[Any] = []

    async def work(me: Puppet) -> None:
        await trio.sleep(1)
        await me.spawn(Witness, ends, "child")

    async with running_node() as node:
        pid = await node.spawn(Witness, ends, "parent")
        node.send(pid, work)
        await wait_all_tasks_blocked()

    assert ends == ["child", "parent"]


# -- an init that will not end ---------------------------------------------------------------------


async def shielded() -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()


async def swallowing() -> None:
    while True:
        try:
            await trio.sleep(1)
        except BaseException:
            pass


async def in_a_nursery() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shielded)


STUCK = [shielded, swallowing, in_a_nursery]


@pytest.fixture
def fast_clock() -> MockClock:
    """Virtual time that passes by itself: a task that swallows its cancellation always moves."""
    return MockClock(rate=20.0)


@pytest.mark.parametrize("stuck", STUCK, ids=lambda function: function.__name__)
async def test_an_init_that_is_stuck_obeys_its_time_limit(
    fast_clock: MockClock, stuck: Any
) -> None:
    class Stuck(Actor):
        async def init(self) -> None:
            await stuck()

    async with running_node(limit=600) as node:
        with pytest.raises(InitTimeoutError):
            await node.spawn(Stuck, init_timeout=2)

        assert node.processes() == []
        with trio.move_on_after(1) as scope:
            await trio.sleep_forever()
        assert scope.cancelled_caught


async def test_an_init_that_is_stuck_in_a_thread_obeys_its_time_limit() -> None:
    held = threading.Event()

    class Stuck(Actor):
        async def init(self) -> None:
            await trio.to_thread.run_sync(held.wait)

    try:
        async with running_node() as node:
            with pytest.raises(InitTimeoutError):
                await node.spawn(Stuck, init_timeout=0.01)

            assert node.processes() == []
    finally:
        held.set()


@pytest.mark.parametrize("stuck", STUCK, ids=lambda function: function.__name__)
async def test_a_supervisor_answers_although_the_init_of_a_child_is_stuck(
    fast_clock: MockClock, stuck: Any
) -> None:
    starts: list[int] = []

    class Stuck(Puppet):
        async def init(self) -> None:
            starts.append(1)
            if len(starts) == 2:
                await stuck()

    async with running_node(limit=600) as node:
        top = await node.supervise([ChildSpec("child", Stuck, init_timeout=1)])
        node.kill("child")
        while len(starts) < 2:
            await trio.lowlevel.checkpoint()

        # It waits for the init, and answers then.
        await top.add_child(ChildSpec("other", Puppet), timeout=None)

        assert node.whereis("other") is not None


async def test_a_process_that_is_killed_and_abandoned_in_its_init_frees_its_spawner(
    autojump_clock: MockClock,
) -> None:
    class Stuck(Actor):
        async def init(self) -> None:
            await shielded()

    async with running_node() as node:
        errors: list[BaseException] = []

        async def spawn() -> None:
            try:
                await node.spawn(Stuck, name="stuck", init_timeout=1_000)
            except SpawnError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(spawn)
            await wait_all_tasks_blocked()
            pid = node.whereis("stuck")
            assert pid is not None
            process = process_of(node, pid)
            process.kill()
            await process.abandon()

        assert len(errors) == 1
        assert node.processes() == []


# -- deep trees ------------------------------------------------------------------------------------


def nested(depth: int) -> SupervisorSpec:
    spec = SupervisorSpec([ChildSpec("leaf", Puppet)])
    for level in range(depth):
        spec = SupervisorSpec([ChildSpec(f"level-{level}", Supervisor, spec)])
    return spec


# Counting lines takes a part of the interpreter's stack for each frame.
@pytest.mark.no_cover
def test_a_tree_of_a_hundred_levels_starts() -> None:
    found: list[int] = []

    async def main() -> None:
        async with running_node(limit=60) as node:
            await node.spawn(Supervisor, nested(100))
            found.append(len(node.processes()))

    # In a thread of its own, so that nothing but the tree is on its stack.
    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    thread.join()

    assert found == [102]


async def test_a_tree_that_is_too_deep_to_start_leaves_no_process_behind() -> None:
    async with running_node(limit=60) as node:
        with pytest.raises(
            SpawnError, match=r"nested too deeply.*spawn its children after its init"
        ):
            await node.spawn(Supervisor, nested(400))

        assert node.processes() == []
        assert node.whereis("leaf") is None


@pytest.fixture
def usual_stack() -> Iterator[int]:
    """The frames on the stack of the fixture; puts the recursion limit back."""
    before = sys.getrecursionlimit()
    yield len(inspect.stack(0))
    sys.setrecursionlimit(before)


@pytest.mark.no_cover  # as above
async def test_a_deep_tree_is_refused_however_much_stack_is_left(usual_stack: int) -> None:
    async with running_node(limit=60) as node:
        for room in range(300, 330):  # of a small stack, which is filled soon
            sys.setrecursionlimit(usual_stack + room)

            with pytest.raises(SpawnError, match="nested too deeply"):
                await node.spawn(Supervisor, nested(60))

            assert node.processes() == []


async def test_a_child_with_a_failed_undoing_is_undone_with_its_parent(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    original = termination_module.Ending.undo
    refused: list[Any] = []

    async def undo(ending: Any, reason: Any) -> None:
        if not refused:
            refused.append(ending)
            raise RecursionError("no room")
        await original(ending, reason)

    replace_private(monkeypatch, "undoing of a spawn", undo)

    async with running_node() as node:
        with pytest.raises(InitError):
            await node.spawn(Supervisor, SupervisorSpec([ChildSpec("child", FailsToStart)]))

        assert node.processes() == []
        assert trio.current_time() < 1


def let_undoing_fail_once(monkeypatch: pytest.MonkeyPatch, *, begun: bool) -> None:
    """Have the first failed ``init`` not undone, as where there is no room left on the stack; or
    only ``begun``.
    """
    original, refused = termination_module.Ending.undo, list[Any]()

    async def undo(ending: Any, reason: Any) -> None:
        if not refused:
            refused.append(ending)
            process = process_of_ending(ending)
            process.record_reason(reason)
            if begun:
                process.begin_to_end(reason)
            raise RecursionError("no room")
        await original(ending, reason)

    replace_private(monkeypatch, "undoing of a spawn", undo)


class SilentMeta(MetaProcess):
    async def start(self) -> None:
        await trio.sleep_forever()


class Inner(Actor):
    """Starts a process and a meta-process, and fails."""

    async def init(self) -> None:
        await self.spawn(Recorder, name="leaf")
        await self.spawn_meta(SilentMeta())
        raise Failed("in init")


class Outer(Actor):
    async def init(self) -> None:
        await self.spawn(Inner)


class Patient(Actor):
    """Goes on although the process that it spawned has failed to start."""

    async def handle_message(self, message: Any, sender: Any) -> None:
        with pytest.raises(SpawnError):
            await self.spawn(Inner)


@pytest.mark.parametrize("begun", [False, True])
async def test_descendants_of_a_child_with_a_failed_undoing_end_with_its_parent(
    monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    let_undoing_fail_once(monkeypatch, begun=begun)
    async with running_node() as node:
        with pytest.raises(InitError):
            await node.spawn(Outer)

        assert node.processes() == []
        assert node.metas() == []
        assert node.whereis("leaf") is None


@pytest.mark.parametrize("begun", [False, True])
async def test_a_child_with_a_failed_undoing_ends_with_a_parent_that_continued(
    monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    let_undoing_fail_once(monkeypatch, begun=begun)
    async with running_node() as node:
        pid = await node.spawn(Patient)
        node.send(pid, "spawn")
        await wait_all_tasks_blocked()

        node.send_exit(pid, "enough")
        await node.wait_ended(pid)

        assert node.processes() == []
        assert node.metas() == []


async def test_an_error_in_the_undoing_leaves_no_process_in_the_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original, failed = termination_module._clear, list[Any]()

    async def clear(process: Any, reason: Any) -> None:
        if not failed:
            failed.append(process)
            raise MemoryError
        await original(process, reason)

    replace_private(monkeypatch, "clearing of the tables", clear)

    async with running_node() as node:
        with pytest.raises((SpawnError, MemoryError)):
            await node.spawn(FailsToStart)

        assert node.processes() == []


async def test_a_process_that_has_ended_is_neither_undone_nor_released_again() -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder)
        process = process_of(node, pid)
        node.send_exit(pid, "enough")
        await node.wait_ended(pid)

        await process.to_end().undo(Crashed(Failed("late")))

        assert termination_module.release(process) is None
        assert process.reason == Custom("enough")


async def test_a_process_that_is_abandoned_before_its_first_step_takes_no_step() -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder)
        process = process_of(node, pid)

        await process.abandon()

        assert node.processes() == []
        assert [one.pid for one in kernel_of(node).lifetimes.abandoned] == [pid]


async def test_a_process_abandoned_before_the_first_turn_of_its_task_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources, "is_seeded", True)  # so that the task begins in trio's turn
    async with running_node() as node:
        pid = await node.spawn(Recorder)
        process = process_of(node, pid)
        assert process.task is NOT_YET

        await process.to_end().cut_off()
        await process.abandon()

        assert node.processes() == []


async def test_a_plain_init_that_returns_a_coroutine_fails() -> None:
    async def prepare() -> None:
        raise AssertionError("never runs")

    class Wrong(Actor):
        def init(self) -> Any:
            return prepare()

    async with running_node() as node:
        with pytest.raises(InitError, match="write `async def init`"):
            await node.spawn(Wrong)

        assert node.processes() == []
