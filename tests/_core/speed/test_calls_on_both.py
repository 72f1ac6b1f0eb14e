"""Calls in the C extension beside their Python twins: the same requests have the same replies, the
same counters and the same states.
"""

import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

import ergo_py
import ergo_py.info
from ergo_py import NO_REPLY, Actor, Caller, CallTimeoutError, Node, Priority, Reject
from ergo_py._core.messaging.calls import Calls
from ergo_py._core.processes.message_loop import Turn
from ergo_py._core.tables.mailbox import Mailbox
from ergo_py.info import State
from tests.support import process_of, running_node

TWINS: tuple[tuple[Any, str, object], ...] = (
    (Calls, "short_cut", None),
    (Turn, "begin_batch", None),
    (Mailbox, "main_type", deque),
)
"""The places where the extension takes the calls, each with its value in pure Python."""


class PlainCallee(Actor):
    kept: Caller | None = None

    def handle_call(self, request: Any, caller: Caller) -> object:
        match request:
            case "crash":
                raise ValueError("a fault")
            case "reject":
                raise Reject(LookupError("no such thing"))
            case "later":
                self.kept = caller
                return NO_REPLY
            case "now":
                if self.kept is not None:
                    self.reply(self.kept, "late")
            case "twice":
                self.reply(caller, "first")
                return "second"
        return None if request == "none" else [request]


class AsyncCallee(PlainCallee):
    async def handle_call(self, request: Any, caller: Caller) -> object:
        if request == "wait":
            await trio.sleep(0.25)
        if request == "wait and reject":
            await trio.sleep(0.25)
            raise Reject(LookupError("no such thing"))
        return super().handle_call(request, caller)


class Asker(Actor):
    """Makes calls: in a turn of its own for a message, inside the turn of its caller for a call."""

    def __init__(self, answers: list[object] | None = None) -> None:
        self.answers = answers

    async def handle_message(self, message: Any, sender: Any) -> None:
        assert self.answers is not None
        self.answers.append(await self.handle_call(message, None))

    async def handle_call(self, request: Any, caller: Caller | None) -> object:
        to, wanted, priority = request
        return await answer_of(self.call(to, wanted, timeout=1.0, priority=priority))


async def answer_of(call: Any) -> object:
    try:
        return await call
    except Exception as error:
        return type(error).__name__


REQUESTS = st.tuples(
    st.sampled_from(["plain", "async"]),
    st.sampled_from(
        ["1", "none", "reject", "crash", "later", "now", "twice", "wait", "wait and reject"]
    ),
    st.sampled_from(["process", "inner process", "outside", "message first", "urgent"]),
)


async def make_calls(requests: list[tuple[str, str, str]]) -> list[object]:
    """Make the calls, one after the other. Returns all that can be seen of them."""
    seen: list[object] = []
    async with running_node() as node:
        await node.spawn(PlainCallee, name="plain")
        await node.spawn(AsyncCallee, name="async")
        asker = await node.spawn(Asker, seen, name="asker")
        at = {name: process_of(node, name).id for name in ("plain", "async")}
        await wait_all_tasks_blocked()
        for name, request, way in requests:
            if way == "message first":
                node.send(at[name], "a message")
            priority = Priority.HIGH if way == "urgent" else Priority.NORMAL
            if way == "process":
                node.send(asker, (at[name], request, priority))
                await trio.sleep(2)  # longer than the timeout of the call
            elif way == "inner process":
                seen.append(await node.call(asker, (at[name], request, priority)))
            else:
                call = node.call(at[name], request, timeout=1.0, priority=priority)
                seen.append(await answer_of(call))
            await wait_all_tasks_blocked()
            seen.append(node.info().late_replies)
            seen += [look_at(node, each) for each in ("plain", "async", "asker")]
    return seen


def look_at(node: Node, name: str) -> object:
    if node.whereis(name) is None:
        return "gone"
    process = process_of(node, name)
    states = process.history[::2]  # without their times
    return (process.turn.handled, process.turn.handling, process.sent, states, len(process.main))


@pytest.mark.skipif(not ergo_py.info.is_fast, reason="the C extension is not installed")
@given(st.lists(REQUESTS, max_size=8))
def test_the_extension_and_python_do_the_same(requests: list[tuple[str, str, str]]) -> None:
    in_c = trio.run(make_calls, requests, clock=MockClock(autojump_threshold=0))
    with pytest.MonkeyPatch.context() as replaced:
        for owner, name, value in TWINS:
            replaced.setattr(owner, name, value)
        in_python = trio.run(make_calls, requests, clock=MockClock(autojump_threshold=0))

    assert in_c == in_python


async def test_a_call_that_waits_can_time_out(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        callee = await node.spawn(AsyncCallee)
        await wait_all_tasks_blocked()

        with pytest.raises(CallTimeoutError):
            await node.call(callee, "wait", timeout=0.1)
        await trio.sleep(1)

        assert node.info().late_replies == 1
        assert await node.call(callee, 1) == [1]


async def test_an_answer_may_be_a_tuple_also_under_a_tracer(autojump_clock: MockClock) -> None:
    class Pairs(Actor):
        async def handle_call(self, request: Any, caller: Caller) -> object:
            await trio.sleep(0.25)
            return (request, "and more")

    async with running_node() as node:
        callee = await node.spawn(Pairs)
        await wait_all_tasks_blocked()
        before = sys.gettrace()
        # Python awaits in another way while a debugger or a measurement of coverage is active.
        sys.settrace(lambda *_: None)
        try:
            answer = await node.call(callee, 1)
        finally:
            sys.settrace(before)

        assert answer == (1, "and more")


async def test_a_call_with_an_async_callee_is_a_checkpoint() -> None:
    async with running_node() as node:
        callee = await node.spawn(AsyncCallee)
        await wait_all_tasks_blocked()

        with trio.CancelScope() as scope:
            scope.cancel()
            await node.call(callee, 1)

        assert scope.cancelled_caught
        assert process_of(node, callee).turn.handled == 1


class Kills(Actor):
    """Is killed, or ends, while it answers."""

    async def handle_call(self, request: Any, caller: Caller) -> object:
        if request == "kill":
            self.kill(self.pid)
            await trio.sleep_forever()
        self.stop()
        return "the last answer"


async def test_a_callee_may_end_inside_the_turn_of_its_caller() -> None:
    async with running_node() as node:
        first, second = await node.spawn(Kills), await node.spawn(Kills)
        asker = await node.spawn(Asker)
        await wait_all_tasks_blocked()

        assert await node.call(first, "stop") == "the last answer"
        assert await node.call(asker, (second, "kill", None)) == "TargetDownError"
        await wait_all_tasks_blocked()

        assert node.process_info(asker).state is State.SLEEP
        assert await answer_of(node.call(first, 1)) == "TargetDownError"
        assert await answer_of(node.call(second, 1)) == "TargetDownError"


# -- Ctrl-C ----------------------------------------------------------------------------------------


@pytest.fixture
def default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class PlainInterrupted(Actor):
    def __init__(self, press: Callable[[], None]) -> None:
        self.press = press

    def handle_call(self, request: Any, caller: Caller) -> object:
        self.press()
        return request


class AsyncInterrupted(PlainInterrupted):
    async def handle_call(self, request: Any, caller: Caller) -> object:
        return super().handle_call(request, caller)


@pytest.mark.usefixtures("default_handler")
@pytest.mark.parametrize("kind", [PlainInterrupted, AsyncInterrupted])
@pytest.mark.parametrize("from_process", [True, False])
def test_an_interrupt_inside_a_call_waits_until_the_call_is_complete(
    kind: type[PlainInterrupted], from_process: bool
) -> None:
    events: list[object] = []

    def press() -> None:
        signal.raise_signal(signal.SIGINT)
        events.append("pressed")

    async def main() -> None:
        async with running_node() as node:
            callee = await node.spawn(kind, press)
            asker = await node.spawn(Asker, name="asker")
            await wait_all_tasks_blocked()
            to, request = (asker, (callee, "reply", None)) if from_process else (callee, "reply")
            try:
                events.append(await node.call(to, request))
                await trio.lowlevel.checkpoint()
            finally:
                process = process_of(node, callee)
                assert process.turn.handling is None
                assert process_of(node, "asker").waiting is None
                assert [process.turn.handled, len(process.main)] == [1, 0]
                events.append("looked")

    with pytest.raises(BaseException) as caught:  # noqa: PT011 - alone, or in the group of a nursery
        trio.run(main)

    leaves = [caught.value]
    while isinstance(leaves[0], BaseExceptionGroup):
        leaves = list(leaves[0].exceptions)
    assert [type(leaf) for leaf in leaves] == [KeyboardInterrupt]
    assert [event for event in events if event != "reply"] == ["pressed", "looked"]
