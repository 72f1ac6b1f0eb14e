"""Nurseries and cancel scopes that a callback leaves open: only its process crashes, with an error
that shows the right way.
"""

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import Actor, ChildSpec, Crashed, InitError, Reason, TargetDownError
from ergo_py._core.runtime.cancel_scopes import CancelScopes
from ergo_py.supervision import Decision
from tests.actors import Failed, Puppet, Witness
from tests.support import running_node


async def leave_nursery(me: Any) -> None:
    me.manager = trio.open_nursery()
    nursery = await me.manager.__aenter__()
    nursery.start_soon(trio.sleep_forever)


async def leave_scope(me: Any) -> None:
    me.manager = trio.CancelScope()
    me.manager.__enter__()


async def leave_several(me: Any) -> None:
    await leave_scope(me)
    await leave_nursery(me)
    await leave_scope(me)
    await leave_nursery(me)


async def leave_a_failing_task(me: Any) -> None:
    async def fail() -> None:
        raise Failed("in a nursery")

    me.manager = trio.open_nursery()
    nursery = await me.manager.__aenter__()
    nursery.start_soon(fail)


LEAVING = [leave_nursery, leave_scope, leave_several, leave_a_failing_task]
leaving = pytest.mark.parametrize("leave", LEAVING, ids=lambda function: function.__name__)


@leaving
@pytest.mark.parametrize("where", ["post_start", "handle_message", "handle_call"])
async def test_a_callback_that_leaves_a_scope_open_crashes_only_its_process(
    autojump_clock: MockClock, leave: Any, where: str
) -> None:
    ends: list[Any] = []

    class Leaves(Witness):
        async def post_start(self) -> None:
            if where == "post_start":
                await leave(self)

    async with running_node() as node:
        other = await node.spawn(Puppet)
        pid = await node.spawn(Leaves, ends)
        if where == "handle_message":
            node.send(pid, leave)
        elif where == "handle_call":
            await node.call(pid, leave)
        reason = await node.wait_ended(pid)

        assert await node.call(other, lambda me: "alive") == "alive"

    assert isinstance(reason, Crashed)
    assert f"{where} has left a" in str(reason)
    assert "self.start_task(function, *args)" in str(reason)
    assert ends == [reason]


@leaving
async def test_a_process_that_stops_with_an_open_scope_ends_as_asked(
    autojump_clock: MockClock, leave: Any
) -> None:
    ends: list[Any] = []

    async def leave_and_stop(me: Any) -> None:
        await leave(me)
        me.stop("enough")

    async with running_node() as node:
        pid = await node.spawn(Witness, ends)
        node.send(pid, leave_and_stop)
        await node.wait_ended(pid)

        assert len(ends) == 1
        assert node.processes() == []


async def test_a_process_with_an_open_nursery_is_restarted_and_not_resumed(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        await node.supervise([ChildSpec("child", Puppet, decide=lambda _: Decision.RESUME)])
        first = node.whereis("child")
        node.send("child", leave_nursery)
        await wait_all_tasks_blocked()

        assert node.whereis("child") not in (None, first)


@leaving
@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
async def test_an_init_that_leaves_a_scope_open_fails_and_its_spawner_continues(
    autojump_clock: MockClock, leave: Any, raises: bool
) -> None:
    class Leaves(Actor):
        async def init(self) -> None:
            await leave(self)
            if raises:
                raise Failed("after all")

    async with running_node() as node:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                with pytest.raises(InitError, match="after all" if raises else "init has left a"):
                    await node.spawn(Leaves)
                nursery.start_soon(trio.sleep, 1)
            scope.cancel()
            await trio.sleep_forever()
        parent = await node.spawn(Puppet)

        async def spawn(me: Any) -> str:
            with pytest.raises(InitError) as caught:
                await me.spawn(Leaves)
            return str(caught.value)

        assert await node.call(parent, spawn)
        assert await node.call(parent, lambda me: "alive") == "alive"
        assert node.processes() == [parent]

    assert scope.cancelled_caught


async def test_a_plain_init_that_leaves_a_scope_open_fails(autojump_clock: MockClock) -> None:
    class Leaves(Actor):
        def init(self) -> None:
            trio.CancelScope().__enter__()

    async with running_node() as node:
        with pytest.raises(InitError, match="init has left a cancel scope open"):
            await node.spawn(Leaves)

        assert node.processes() == []


@leaving
async def test_a_process_with_a_terminate_that_leaves_a_scope_open_ends(
    autojump_clock: MockClock, leave: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    class Leaves(Actor):
        async def terminate(self, reason: Reason) -> None:
            await leave(self)

    async with running_node(log_output="json") as node:
        pid = await node.spawn(Leaves)
        node.send_exit(pid, "enough")
        await node.wait_ended(pid)

        assert node.processes() == []

    assert "terminate has left a" in capsys.readouterr().err


def enter_scope(me: Any) -> None:
    me.manager = trio.CancelScope()
    me.manager.__enter__()


def enter_several(me: Any) -> None:
    for _ in range(3):
        enter_scope(me)


def enter_nursery(me: Any) -> None:
    me.manager = trio.open_nursery()
    with pytest.raises(StopIteration) as caught:
        me.manager.__aenter__().send(None)
    caught.value.value.start_soon(trio.sleep_forever)


class Plain(Actor):
    """Has no async callback, and runs the functions it gets."""

    def handle_message(self, message: Any, sender: Any) -> None:
        message(self)

    def handle_call(self, request: Any, caller: Any) -> object:
        return request(self)


entering = pytest.mark.parametrize(
    "enter", [enter_scope, enter_several, enter_nursery], ids=lambda function: function.__name__
)


@entering
async def test_an_inline_call_leaves_no_scope_open_in_the_task_of_its_caller(
    autojump_clock: MockClock, enter: Any
) -> None:
    task = trio.lowlevel.current_task()
    async with running_node() as node:
        pid, other = await node.spawn(Plain), await node.spawn(Plain)
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)
            with trio.CancelScope() as scope:
                status = task._cancel_status

                # The answer counts, as it does in its own turn.
                assert await node.call(pid, lambda me: enter(me) or "answer") == "answer"

                assert task._cancel_status is status
                assert task.child_nurseries[-1] is nursery
                scope.cancel()
                await trio.sleep_forever()
        reason = await node.wait_ended(pid)

        assert await node.call(other, lambda me: "alive") == "alive"

    assert isinstance(reason, Crashed)
    assert "Plain.handle_call has left a" in str(reason)
    assert ("nursery" in str(reason)) == (enter is enter_nursery)


@entering
async def test_a_calling_process_continues_after_its_callee_left_a_scope_open(
    autojump_clock: MockClock, enter: Any
) -> None:
    async with running_node() as node:
        pid, calling = await node.spawn(Plain), await node.spawn(Puppet)
        await wait_all_tasks_blocked()

        async def call(me: Any) -> object:
            return await me.call(pid, lambda callee: enter(callee) or "answer")

        assert await node.call(calling, call) == "answer"
        assert isinstance(await node.wait_ended(pid), Crashed)
        assert await node.call(calling, lambda me: "alive") == "alive"


async def test_a_call_that_raises_with_an_open_scope_fails_with_that_error(
    autojump_clock: MockClock,
) -> None:
    task = trio.lowlevel.current_task()

    def fail(me: Any) -> None:
        enter_scope(me)
        raise Failed("in the middle")

    async with running_node() as node:
        pid = await node.spawn(Plain)
        await wait_all_tasks_blocked()
        status = task._cancel_status
        with pytest.raises(TargetDownError) as caught:
            await node.call(pid, fail)

        assert task._cancel_status is status
        assert caught.value.reason == await node.wait_ended(pid) == Crashed(Failed("in the middle"))


async def test_a_callee_that_has_left_a_scope_open_is_restarted_and_not_resumed(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        await node.supervise([ChildSpec("child", Plain, decide=lambda _: Decision.RESUME)])
        first = node.whereis("child")
        await wait_all_tasks_blocked()
        await node.call("child", enter_scope)
        await wait_all_tasks_blocked()

        assert node.whereis("child") not in (None, first)


@entering
async def test_a_plain_callback_that_leaves_a_scope_open_crashes_only_its_process(
    autojump_clock: MockClock, enter: Any
) -> None:
    async with running_node() as node:
        pid, other = await node.spawn(Plain), await node.spawn(Plain)
        node.send(pid, enter)
        reason = await node.wait_ended(pid)

        assert await node.call(other, lambda me: "alive") == "alive"

    assert "Plain.handle_message has left a" in str(reason)


@pytest.mark.parametrize("asleep", [True, False], ids=["asleep", "in its own turn"])
async def test_a_plain_terminate_that_leaves_a_scope_open_does_no_harm(
    autojump_clock: MockClock, asleep: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    task = trio.lowlevel.current_task()

    class Leaves(Plain):
        def terminate(self, reason: Reason) -> None:
            enter_scope(self)

    async with running_node(log_output="json") as node:
        pid = await node.spawn(Leaves)
        await wait_all_tasks_blocked()
        status = task._cancel_status
        if not asleep:
            node.send(pid, lambda me: None)
        node.send_exit(pid, "enough")

        assert task._cancel_status is status
        await node.wait_ended(pid)
        assert node.processes() == []

    assert "terminate has left a cancel scope open" in capsys.readouterr().err


async def test_a_call_in_progress_gets_the_reason(autojump_clock: MockClock) -> None:
    class Leaves(Puppet):
        async def handle_call(self, request: Any, caller: Any) -> object:
            await leave_nursery(self)
            raise Failed("in the middle")

    async with running_node() as node:
        pid = await node.spawn(Leaves)
        with pytest.raises(TargetDownError) as caught:
            await node.call(pid, 1)

        assert caught.value.reason == Crashed(Failed("in the middle"))


async def test_scopes_that_were_closed_in_the_wrong_order_are_removed(
    autojump_clock: MockClock,
) -> None:
    task = trio.lowlevel.current_task()
    scopes = CancelScopes(task)
    outer, inner = trio.CancelScope(), trio.CancelScope()
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(RuntimeError, match="Cancel scope stack corrupted"):
        outer.__exit__(None, None, None)
    task._activate_cancel_status(inner._cancel_status)

    scopes.close_plain()

    assert not scopes.are_left()
    await trio.sleep(1)
