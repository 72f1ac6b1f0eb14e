"""Calls that are answered in the caller's own task keep every promise of a call."""

import traceback
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    PID,
    Actor,
    Caller,
    NodeStoppedError,
    Priority,
    Reject,
    Shutdown,
    TargetDownError,
)
from ergo_py.errors import DeadlockError, UnhandledCallError
from ergo_py.info import State
from tests._core.messaging.servers import PlainServer, Way, asleep, echo
from tests.actors import Failed, Puppet, Recorder
from tests.support import kernel_of, running_node


async def test_a_call_does_not_overtake_messages_sent_before_by_the_caller(
    autojump_clock: MockClock, way: Way
) -> None:
    log: list[object] = []

    def note(me: PlainServer, caller: Caller) -> None:
        log.append("call")

    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server, log)
        puppet = await node.spawn(Puppet)

        async def tell_then_ask(me: Puppet) -> None:
            for number in range(3):
                me.send(server, number)
            await me.call(server, note)
            me.send(server, 3)

        await node.call(puppet, tell_then_ask)
        await wait_all_tasks_blocked()

        assert log == [0, 1, 2, "call", 3]


async def test_while_a_call_is_served_the_callee_shows_as_running(
    autojump_clock: MockClock, way: Way
) -> None:
    def look(me: Any, caller: Caller) -> object:
        return me.node.process_info(me.pid)

    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)
        await wait_all_tasks_blocked()

        info = await node.call(server, look)
        await wait_all_tasks_blocked()

        assert info.state is State.RUNNING
        assert info.callback == "handle_call"
        assert info.message_type == "function"
        after = node.process_info(server)
        assert (after.state, after.callback, after.message_type) == (State.SLEEP, None, None)
        assert after.messages_in == 1


async def test_a_caller_in_a_loop_lets_other_tasks_run_and_notices_its_cancellation(
    way: Way,
) -> None:
    turns = 0

    async def neighbour() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(neighbour)
            for _ in range(2_000):
                await node.call(server, echo(1))
            enough = turns
            with trio.CancelScope() as scope:
                scope.cancel()
                for _ in range(2_000):
                    await node.call(server, echo(1))
            nursery.cancel_scope.cancel()

        assert enough >= 20
        assert scope.cancelled_caught


async def test_a_plain_handler_that_returns_a_coroutine_raises_and_suggests_async_def(
    autojump_clock: MockClock, way: Way
) -> None:
    class Mistaken(Actor):
        def handle_call(self, request: Any, caller: Caller) -> object:
            return self.answer()

        async def answer(self) -> int:
            return 1

    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, Mistaken)

        with pytest.raises(TargetDownError) as caught:
            await node.call(server, 1)

        assert "write `async def handle_call`" in str(caught.value.__cause__)


async def test_a_call_to_a_process_without_handle_call_is_rejected_at_once(
    autojump_clock: MockClock,
) -> None:
    class Silent(Actor):
        pass

    async with running_node() as node:
        silent = await node.spawn(Silent)
        recorder = await node.spawn(Recorder)

        with pytest.raises(UnhandledCallError, match=r"Silent.*has no handle_call") as caught:
            await node.call(silent, 1)

        assert caught.value.request == 1
        assert node.process_info(silent).unhandled == 1
        assert trio.current_time() == 0
        assert await node.call(recorder, 1) == []


async def test_a_call_waiting_in_terminate_ends_like_any_other_call(
    autojump_clock: MockClock, way: Way
) -> None:
    answers: list[object] = []

    class Leaving(Actor):
        def __init__(self, server: PID) -> None:
            self.server = server

        async def terminate(self, reason: object) -> None:
            answers.append(await self.call(self.server, echo("goodbye")))

    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)
        leaving = await node.spawn(Leaving, server)

        node.send_exit(leaving, Shutdown())
        await wait_all_tasks_blocked()

        assert answers == ["goodbye"]
        assert node.processes() == [server]


async def test_a_call_by_an_abandoned_process_raises_that_the_node_has_stopped() -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)

    with pytest.raises(NodeStoppedError):
        await kernel_of(node).calls.call(None, node.pid, pid, "hello", 1.0, Priority.NORMAL)


@pytest.mark.parametrize("inline", [True, False], ids=["on the spot", "in its own turn"])
async def test_an_exception_shared_by_many_callers_does_not_grow(inline: bool) -> None:
    def raised() -> Failed:
        try:
            raise Failed("always the same")
        except Failed as error:
            return error

    shared = raised()

    class Refuses(Actor):
        def handle_call(self, request: Any, caller: Caller) -> Any:
            raise Reject(shared)

    def frames(error: BaseException) -> list[str]:
        return [frame.name for frame in traceback.extract_tb(error.__traceback__)]

    async with running_node(inline_calls=inline) as node:
        pid = await node.spawn(Refuses)
        seen = []
        for _ in range(3):
            with pytest.raises(Failed) as caught:
                await node.call(pid, 1)
            assert caught.value is shared
            seen.append(frames(shared))

    assert seen[0] == seen[1] == seen[2]
    # Where it came from is still there.
    assert seen[2][-1] == "raised"


async def test_a_passed_on_exception_shows_where_it_was_raised_first() -> None:
    class First(Actor):
        def handle_call(self, request: Any, caller: Caller) -> Any:
            try:
                {}[request]
            except KeyError as error:
                raise Reject(error) from None

    class Second(Actor):
        def __init__(self, first: PID) -> None:
            self.first = first

        async def handle_call(self, request: Any, caller: Caller) -> Any:
            try:
                return await self.call(self.first, request)
            except KeyError as error:
                raise Reject(error) from None

    async with running_node() as node:
        second = await node.spawn(Second, await node.spawn(First))
        with pytest.raises(KeyError) as caught:
            await node.call(second, 1)

    line = traceback.extract_tb(caught.value.__traceback__)[-1].line
    assert line == "{}[request]"


async def call_in_a_nursery(me: Any, to: Any, request: Any, depth: int = 1) -> Any:
    """Call in a task of a nursery that the callback waits for."""
    answers: list[Any] = []

    async def call() -> None:
        answers.append(await me.call(to, request))

    async def nest(depth: int) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call if depth == 1 else partial(nest, depth - 1))

    await nest(depth)
    return answers[0]


def deadlocks(group: BaseException | None) -> list[DeadlockError]:
    """The deadlocks among the errors that left a nursery, or among their causes."""
    if isinstance(group, BaseExceptionGroup):
        return [found for one in group.exceptions for found in deadlocks(one)]
    return [group] if isinstance(group, DeadlockError) else []


@pytest.mark.parametrize("depth", [1, 3])
async def test_a_call_to_its_own_process_by_a_task_of_a_callback_is_a_deadlock(
    depth: int,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)

        with pytest.raises(TargetDownError) as caught:
            await node.call(pid, lambda me: call_in_a_nursery(me, me.pid, "anything", depth))

        [deadlock] = deadlocks(caught.value.__cause__)
        assert deadlock.ring == (pid, pid)


@pytest.mark.parametrize("closing", ["in the nursery", "outside of it"])
async def test_a_ring_through_a_task_that_a_callback_waits_for_is_a_deadlock(closing: str) -> None:
    async with running_node() as node:
        one, other = await node.spawn(Puppet), await node.spawn(Puppet)

        def ask_plainly(me: Any) -> Any:
            return me.call(one, "anything")

        def ask_in_nursery(me: Any) -> Any:
            return call_in_a_nursery(me, other if closing == "outside of it" else one, ask_plainly)

        with pytest.raises(TargetDownError) as caught:
            if closing == "outside of it":
                await node.call(one, ask_in_nursery)
            else:
                await node.call(one, lambda me: me.call(other, ask_in_nursery))

        cause: Any = caught.value
        while not (found := deadlocks(cause)):
            cause = cause.__cause__ or next(
                down for down in cause.exceptions if isinstance(down, TargetDownError)
            )
        assert set(found[0].ring) == {one, other}


async def test_a_process_shows_no_call_after_the_call_of_a_callbacks_task_has_ended() -> None:
    async with running_node() as node:
        answering, plain = await node.spawn(Puppet), await node.spawn(Recorder)
        pid = await node.spawn(Puppet)
        for to in (answering, plain, plain):
            assert await node.call(pid, lambda me, to=to: call_in_a_nursery(me, to, "all")) == []
            assert node.process_info(pid).asks is None


async def test_a_thread_that_a_callback_waits_for_cannot_call_that_process() -> None:
    async with running_node() as node:
        pid, other = await node.spawn(Puppet), await node.spawn(Puppet)

        def ask_in_thread(to: Any) -> Any:
            return lambda me: trio.to_thread.run_sync(
                partial(node.call_from_thread, to, "anything")
            )

        assert await node.call(pid, ask_in_thread(other)) == []
        with pytest.raises(TargetDownError) as caught:
            await node.call(pid, ask_in_thread(pid))

        assert isinstance(caught.value.__cause__, DeadlockError)
        assert caught.value.__cause__.ring == (pid, pid)
        assert await trio.to_thread.run_sync(node.call_from_thread, other, "anything") == []


async def test_a_task_that_an_init_waits_for_may_call() -> None:
    class Asks(Puppet):
        def __init__(self, to: PID) -> None:
            super().__init__()
            self.to = to

        async def init(self) -> None:
            self.heard.append(await call_in_a_nursery(self, self.to, "anything"))

    async with running_node() as node:
        pid = await node.spawn(Asks, await node.spawn(Puppet))

        assert await node.call(pid, "what") == [[]]
