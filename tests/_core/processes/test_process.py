"""The states of a process, and the ways to end it from outside."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import PID, Actor, Custom, InitError, Killed, Normal, Reason, Shutdown
from ergo_py._core.runtime.bridge import Bridge
from ergo_py._core.tables.mailbox import Mailbox
from ergo_py.info import State
from tests.actors import Failed, Puppet, Recorder, Witness
from tests.support import process_behind, process_of, running_node

# -- P1: states ------------------------------------------------------------------------------------


async def test_the_state_of_a_process_follows_its_work(autojump_clock: MockClock) -> None:
    seen: dict[str, State] = {}

    class NodeInspection(Actor):
        def look(self, where: str) -> None:
            seen[where] = self.node.process_info(self.pid).state

        async def init(self) -> None:
            self.look("init")

        async def handle_message(self, message: Any, sender: Any) -> None:
            self.look("callback")
            await trio.lowlevel.checkpoint()
            self.look("callback after a checkpoint")

        def terminate(self, reason: Reason) -> None:
            self.look("terminate")

    async with running_node() as node:
        pid = await node.spawn(NodeInspection)
        seen["after spawn"] = node.process_info(pid).state
        node.send(pid, 1)
        await wait_all_tasks_blocked()
        seen["idle"] = node.process_info(pid).state
        node.send_exit(pid, Normal())
        await wait_all_tasks_blocked()

    assert seen == {
        "init": State.INIT,
        "after spawn": State.SLEEP,
        "callback": State.RUNNING,
        "callback after a checkpoint": State.RUNNING,
        "idle": State.SLEEP,
        "terminate": State.STOPPING,
    }


async def test_a_process_waits_for_the_response_inside_a_call_and_then_continues(
    autojump_clock: MockClock,
) -> None:
    class Asking(Actor):
        def __init__(self, server: PID) -> None:
            self.server = server

        async def init(self) -> None:
            await self.ask()
            states.append(self.node.process_info(self.pid).state)

        async def handle_message(self, message: Any, sender: Any) -> None:
            await self.ask()
            states.append(self.node.process_info(self.pid).state)

        async def ask(self) -> None:
            await self.call(
                self.server, lambda it: states.append(it.node.process_info(self.pid).state)
            )

    states: list[State] = []
    async with running_node() as node:
        server = await node.spawn(Puppet)

        pid = await node.spawn(Asking, server)
        node.send(pid, 1)
        await wait_all_tasks_blocked()

        assert states == [State.WAIT_RESPONSE, State.INIT, State.WAIT_RESPONSE, State.RUNNING]


async def test_a_process_refuses_a_change_of_state_outside_the_table() -> None:
    async with running_node() as node:
        process = process_of(node, await node.spawn(Actor))
        with pytest.raises(AssertionError, match="no transition from SLEEP to TERMINATED"):
            process.enter(State.TERMINATED)
        assert process.state is State.SLEEP


async def test_the_last_changes_of_state_are_kept_with_their_times(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        await wait_all_tasks_blocked()
        first = node.process_info(pid).history
        for _ in range(100):
            await node.call(pid, lambda me: None)

        last = node.process_info(pid).history

        assert [state for state, _ in first] == [State.INIT, State.SLEEP]
        assert 0 < len(last) <= 8
        assert [moment for _, moment in last] == sorted(moment for _, moment in last)
        assert min(moment for _, moment in last) > first[-1][1]


async def test_the_history_stays_short_in_a_callback_that_makes_many_calls(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        server, pid = await node.spawn(Puppet), await node.spawn(Puppet)

        async def call_often(me: Puppet) -> int:
            for _ in range(50):
                await me.call(server, lambda it: None)
            return len(me.node.process_info(me.pid).history)

        length = await node.call(pid, call_often)

        assert 0 < length <= 8


# -- P8: exits and kills ---------------------------------------------------------------------------


async def test_an_exit_is_taken_between_messages_and_before_waiting_messages(
    autojump_clock: MockClock,
) -> None:
    ends: list[Any] = []
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Witness, ends)
        await node.call(pid, lambda me: setattr(me, "heard", heard))
        gate = trio.Event()

        async def busy(me: Puppet) -> None:
            await gate.wait()
            me.heard.append("finished")

        node.send(pid, busy)
        node.send(pid, "waits")
        await wait_all_tasks_blocked()
        node.send_exit(pid, "enough")
        await wait_all_tasks_blocked()
        before = list(ends)
        gate.set()
        await wait_all_tasks_blocked()

        assert before == []
        assert heard == ["finished"]
        assert ends == [Custom("enough")]


async def wait(me: Any) -> None:
    await trio.sleep_forever()


@pytest.mark.parametrize("target", ["by pid", "by name", "by alias"])
async def test_a_kill_reaches_a_callback_at_its_next_checkpoint(
    autojump_clock: MockClock, target: str
) -> None:
    ends: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Witness, ends, name="victim")
        alias = await node.call(pid, lambda me: me.create_alias())
        node.send(pid, wait)
        await wait_all_tasks_blocked()

        killed = node.kill({"by pid": pid, "by name": "victim", "by alias": alias}[target])
        await wait_all_tasks_blocked()

        assert killed is True
        assert ends == [Killed()]
        assert node.processes() == []
        assert trio.current_time() == 0


async def test_a_kill_is_not_trapped(autojump_clock: MockClock) -> None:
    ends: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Witness, ends)
        await node.call(pid, lambda me: setattr(me, "trap_exit", True))

        node.kill(pid)
        await wait_all_tasks_blocked()

        assert ends == [Killed()]


@pytest.mark.parametrize(
    "behaviour", [Recorder, Puppet], ids=["plain callbacks", "async callbacks"]
)
async def test_a_process_may_be_killed_before_it_took_its_first_step(
    autojump_clock: MockClock, behaviour: type[Actor]
) -> None:
    async with running_node() as node:
        pid = await node.spawn(behaviour)
        state = node.process_info(pid).state

        node.kill(pid)
        reason = await node.wait_ended(pid)

        assert state is State.SLEEP
        assert reason == Killed()


async def test_a_process_with_plain_callbacks_is_killed_before_waiting_messages(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Recorder, heard)
        for number in range(5):
            node.send(pid, number)

        node.kill(pid)
        reason = await node.wait_ended(pid)

        assert reason == Killed()
        assert heard == []


async def test_a_process_that_always_has_messages_can_be_killed(autojump_clock: MockClock) -> None:
    class Busy(Actor):
        def init(self) -> None:
            self.send(self.pid, 1)

        def handle_message(self, message: Any, sender: Any) -> None:
            self.send(self.pid, 1)

    class AsyncBusy(Actor):
        def init(self) -> None:
            self.send(self.pid, 1)

        async def handle_message(self, message: Any, sender: Any) -> None:
            self.send(self.pid, 1)

    async with running_node() as node:
        pids = [await node.spawn(Busy), await node.spawn(AsyncBusy)]
        await trio.lowlevel.checkpoint()

        for pid in pids:
            node.kill(pid)
            assert await node.wait_ended(pid) == Killed()


async def test_a_process_may_kill_itself(autojump_clock: MockClock) -> None:
    ends: list[Any] = []
    heard: list[Any] = []

    async def kill_itself(me: Puppet) -> None:
        me.kill(me.pid)
        heard.append("before the checkpoint")
        await trio.lowlevel.checkpoint()
        heard.append("after it")

    async with running_node() as node:
        pid = await node.spawn(Witness, ends)

        node.send(pid, kill_itself)
        await wait_all_tasks_blocked()

        assert heard == ["before the checkpoint"]
        assert ends == [Killed()]


async def test_kill_and_send_exit_to_an_unknown_target_return_false(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        puppet = await node.spawn(Puppet)

        from_the_node = [node.kill("nobody"), node.send_exit("nobody", Normal())]
        from_a_process = await node.call(
            puppet,
            lambda me: [me.kill("nobody"), me.send_exit(PID("test@localhost", 1, 1), Normal())],
        )

        assert from_the_node == from_a_process == [False, False]


async def test_an_error_of_a_callback_during_a_kill_does_not_change_the_reason(
    autojump_clock: MockClock,
) -> None:
    ends: list[Any] = []

    async def raise_when_cancelled(me: Any) -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            raise Failed("instead") from None

    async def nursery_of_two(me: Any) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(raise_when_cancelled, me)
            nursery.start_soon(trio.sleep_forever)

    async with running_node() as node:
        for doing in (raise_when_cancelled, nursery_of_two):
            pid = await node.spawn(Witness, ends)
            node.send(pid, doing)
            await wait_all_tasks_blocked()
            node.kill(pid)
            await wait_all_tasks_blocked()

        assert ends == [Killed(), Killed()]
        assert node.processes() == []


async def test_the_end_of_a_process_gives_wait_ended_its_reason(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        reasons: list[Reason] = []

        async def watch() -> None:
            reasons.append(await node.wait_ended(pid))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            nursery.start_soon(watch)
            await wait_all_tasks_blocked()
            node.send_exit(pid, Shutdown("for the night"))

        assert reasons == [Shutdown("for the night")] * 2


async def test_a_kill_after_a_failed_init_does_not_hurry_the_end_of_the_children() -> None:
    go, ending = trio.Event(), trio.Event()
    pids: list[PID] = []

    class Slow(Actor):
        async def terminate(self, reason: Reason) -> None:
            ending.set()
            await go.wait()

    class Failing(Actor):
        async def init(self) -> None:
            pids.append(self.pid)
            await self.spawn(Slow)
            raise Failed("in init")

    async with running_node() as node, trio.open_nursery() as nursery:

        @nursery.start_soon
        async def _() -> None:
            with pytest.raises(InitError):
                await node.spawn(Failing)

        await ending.wait()
        node.kill(pids[0])
        await wait_all_tasks_blocked()
        still_there = pids[0] in node.processes()
        go.set()

    assert still_there


async def test_a_thread_that_failed_to_wake_a_process_does_not_block_the_next_sender(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[Any] = []

    def refuse(*_job: Any) -> None:
        raise MemoryError

    async with running_node(limit=30) as node:
        pid = await node.spawn(Recorder, heard)
        await wait_all_tasks_blocked()
        with monkeypatch.context() as patched:
            patched.setattr(Bridge, "post", refuse)
            with pytest.raises(MemoryError):
                await trio.to_thread.run_sync(node.send, pid, "first")

        await trio.to_thread.run_sync(node.send, pid, "second")
        while len(heard) < 2:  # noqa: ASYNC110 - it has no event that could be waited for
            await trio.sleep(0.001)

        assert heard == ["first", "second"]


async def test_wait_gone_returns_at_once_for_a_process_that_has_ended(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder)
        process = process_of(node, pid)
        node.kill(pid)
        await node.wait_ended(pid)

        with trio.fail_after(1):
            await process.wait_gone()

        assert process.state is State.TERMINATED


async def test_a_kill_of_a_process_that_has_ended_changes_neither_state_nor_reason(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder)
        process = process_of(node, pid)
        node.send_exit(pid, "enough")
        await node.wait_ended(pid)

        process.kill()

        assert (process.state, process.reason) == (State.TERMINATED, Custom("enough"))


async def test_queued_messages_move_with_the_process_to_another_mailbox() -> None:
    class Moving(Recorder):
        def init(self) -> None:
            self.send(self.pid, "early")
            process_behind(self).use_mailbox(Mailbox())

    async with running_node() as node:
        pid = await node.spawn(Moving)
        node.send(pid, "late")

        assert await node.call(pid, "messages") == ["early", "late"]
