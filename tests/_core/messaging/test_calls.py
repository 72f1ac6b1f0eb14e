"""Calls: a single ending each, in every order of deaths, cancellations and answers; with the short
cut on and off, plain and async handlers.
"""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    NO_REPLY,
    PID,
    Alias,
    Caller,
    CallTimeoutError,
    Crashed,
    Custom,
    Killed,
    Name,
    Node,
    NoNode,
    NoProcess,
    Normal,
    Overflow,
    Priority,
    Reject,
    Request,
    TargetDownError,
)
from ergo_py.errors import UnhandledCallError
from ergo_py.info import State
from ergo_py.network import Memory
from tests._core.messaging.servers import (
    AsyncServer,
    Doing,
    PlainServer,
    Way,
    asleep,
    crash,
    echo,
    forward_to,
    keep,
    kept_by,
)
from tests.actors import Failed, Puppet
from tests.support import process_of, running_node


async def sleep_for_ever(me: Any, caller: Caller) -> None:
    await trio.sleep_forever()


# -- C1: exactly a single ending -------------------------------------------------------------------


async def test_a_call_returns_the_return_value_of_the_handler(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server, name="server")
        caller = await node.spawn(Puppet)

        from_a_task = await node.call(server, echo(1))
        from_a_process = await node.call(caller, lambda me: me.call("server", echo(2)))

        assert (from_a_task, from_a_process) == (1, 2)


async def test_a_call_names_its_caller(autojump_clock: MockClock, way: Way) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)
        puppet = await node.spawn(Puppet)

        from_the_node = await node.call(server, lambda me, caller: caller.pid)
        from_a_process = await node.call(
            puppet, lambda me: me.call(server, lambda _, caller: caller.pid)
        )
        refs = [await node.call(server, lambda me, caller: caller.ref) for _ in range(3)]

        assert from_the_node == node.pid
        assert from_a_process == puppet
        assert sorted(set(refs)) == refs


async def test_a_rejected_call_raises_the_given_error_and_the_callee_continues(
    autojump_clock: MockClock, way: Way
) -> None:
    error = LookupError("no such key")

    def reject(me: Any, caller: Caller) -> object:
        raise Reject(error)

    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)

        with pytest.raises(LookupError) as caught:
            await node.call(server, reject)

        assert caught.value is error
        assert await node.call(server, echo("alive")) == "alive"
        assert node.info().crashed == 0


@pytest.mark.parametrize(
    "target, reason",
    [
        (PID("test@localhost", 1, 1), NoProcess()),
        ("nobody", NoProcess()),
        (Name("nobody"), NoProcess()),
        (Alias("test@localhost", 1, 1), NoProcess()),
        (Name("db", "elsewhere@host"), NoNode("elsewhere@host")),
        (PID("elsewhere@host", 1, 1), NoNode("elsewhere@host")),
    ],
    ids=repr,
)
async def test_a_call_to_an_unknown_target_raises_target_down_at_once(
    autojump_clock: MockClock, target: Any, reason: object
) -> None:
    async with running_node() as node:
        puppet = await node.spawn(Puppet)
        request = echo(1)
        began = trio.current_time()

        with pytest.raises(TargetDownError) as from_a_task:
            await node.call(target, request)
        with pytest.raises(TargetDownError) as from_a_process:
            await node.call(puppet, lambda me: _expect_down(me, target, request))

        assert from_a_task.value.reason == from_a_process.value.reason == reason
        assert (from_a_task.value.target, from_a_task.value.request) == (target, request)
        assert trio.current_time() == began


async def _expect_down(me: Puppet, target: Any, request: Any) -> None:
    try:
        await me.call(target, request)
    except TargetDownError as error:
        raise Reject(error) from None


async def test_a_call_to_a_process_that_is_stopping_raises_target_down_at_once(
    autojump_clock: MockClock,
) -> None:
    class Slow(PlainServer):
        async def terminate(self, reason: object) -> None:
            await trio.sleep(3)

    async with running_node() as node:
        server = await node.spawn(Slow)
        node.send_exit(server, "enough")
        await wait_all_tasks_blocked()
        began = trio.current_time()

        with pytest.raises(TargetDownError) as caught:
            await node.call(server, echo(1))

        assert caught.value.reason == Custom("enough")
        assert trio.current_time() == began


async def test_a_call_that_is_not_answered_in_time_raises_after_exactly_its_timeout(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)
        puppet = await node.spawn(Puppet)
        began = trio.current_time()

        with pytest.raises(CallTimeoutError) as caught:
            await node.call(server, keep, timeout=1.5)
        between = trio.current_time()
        error = await node.call(puppet, lambda me: _timeout_of(me, server))

        assert between - began == 1.5
        assert trio.current_time() - between == 0.25
        assert (caught.value.target, caught.value.request, caught.value.timeout) == (
            server,
            keep,
            1.5,
        )
        assert isinstance(caught.value, TimeoutError)
        assert isinstance(error, CallTimeoutError)


async def _timeout_of(me: Puppet, server: PID) -> CallTimeoutError:
    with pytest.raises(CallTimeoutError) as caught:
        await me.call(server, keep, timeout=0.25)
    return caught.value


async def test_a_call_without_a_timeout_waits_as_long_as_the_callee_lives(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls, limit=10_000) as node:
        server = await asleep(node, way.server)
        node.send_after(5_000, server, lambda me: me.reply(me.kept[0], "at last"))

        answer = await node.call(server, keep, timeout=None)

        assert answer == "at last"


async def test_timeouts_of_different_length_each_end_on_time(
    autojump_clock: MockClock,
) -> None:
    ended: dict[float, float] = {}

    async with running_node() as node:
        server = await asleep(node, PlainServer)
        began = trio.current_time()

        async def call(timeout: float) -> None:
            with pytest.raises(CallTimeoutError):
                await node.call(server, keep, timeout=timeout)
            ended[timeout] = trio.current_time() - began

        async with trio.open_nursery() as nursery:
            for timeout in (3.0, 0.5, 2.0, 0.0, 1.0):
                nursery.start_soon(call, timeout)

        assert ended == {timeout: timeout for timeout in (3.0, 0.5, 2.0, 0.0, 1.0)}


async def test_a_cancelled_caller_leaves_at_once_and_the_callee_continues(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)

        with trio.move_on_after(1) as scope:
            await node.call(server, keep, timeout=None)
        cancelled_after = trio.current_time()
        [caller] = await kept_by(node, server)()
        accepted = node.reply(caller, "too late")

        assert scope.cancelled_caught
        assert cancelled_after == 1
        assert accepted is False
        assert node.info().late_replies == 1
        assert await node.call(server, echo("alive")) == "alive"


async def test_a_caller_killed_in_mid_call_ends_at_once_and_the_callee_continues(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)
        puppets = [await node.spawn(Puppet) for _ in range(5)]
        for puppet in puppets:
            node.send(puppet, lambda me: me.call(server, keep, timeout=None))
        await wait_all_tasks_blocked()
        states = {node.process_info(puppet).state for puppet in puppets}
        began = trio.current_time()

        for puppet in puppets:
            node.kill(puppet)
            assert await node.wait_ended(puppet) == Killed()

        assert states == {State.WAIT_RESPONSE}
        assert trio.current_time() == began
        assert [node.reply(caller, 1) for caller in await kept_by(node, server)()] == [False] * 5
        assert node.info().late_replies == 5
        assert await node.call(server, echo("alive")) == "alive"


async def test_a_call_cancelled_while_answered_inline_does_not_stay_with_the_callee(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        server = await asleep(node, PlainServer)

        for _ in range(200):
            with trio.CancelScope() as scope:
                scope.cancel()
                await node.call(server, keep, timeout=None)
        kept = await kept_by(node, server)()

        assert kept
        assert [node.reply(caller, 1) for caller in kept] == [False] * len(kept)


# -- the callee's end ------------------------------------------------------------------------------


async def test_a_callee_that_crashes_wakes_its_caller_at_once_with_its_error_as_the_cause(
    autojump_clock: MockClock, way: Way
) -> None:
    class SlowToEnd(way.server):  # type: ignore[name-defined,misc]
        async def terminate(self, reason: object) -> None:
            await trio.sleep(3)

    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, SlowToEnd)
        began = trio.current_time()

        with pytest.raises(TargetDownError) as caught:
            await node.call(server, crash)

        assert trio.current_time() == began
        assert isinstance(caught.value.__cause__, Failed)
        assert caught.value.reason == Crashed(Failed("on purpose"))
        assert "in crash" in "".join(caught.value.__notes__)
        assert await node.wait_ended(server) == Crashed(Failed("on purpose"))


async def test_a_crash_in_a_message_and_a_crash_in_a_call_both_end_the_process(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        asked, told = await asleep(node, way.server), await asleep(node, way.server)

        def fail(me: Any) -> None:
            raise Failed("on purpose")

        with pytest.raises(TargetDownError):
            await node.call(asked, crash)
        node.send(told, fail)
        await wait_all_tasks_blocked()

        assert node.processes() == []
        assert node.info().crashed == 2


@pytest.mark.parametrize("inline_calls", [True, False])
@pytest.mark.parametrize(
    "end, reason",
    [
        (lambda node, server: node.kill(server), Killed()),
        (lambda node, server: node.send_exit(server, "enough"), Custom("enough")),
        (lambda node, server: node.send(server, lambda me: me.stop()), Normal()),
        (
            lambda node, server: node.send(server, lambda me: crash(me, me)),
            Crashed(Failed("on purpose")),
        ),
    ],
    ids=["killed", "asked to exit", "stopped", "crashed"],
)
async def test_a_deferred_call_ends_when_its_callee_does(
    autojump_clock: MockClock,
    inline_calls: bool,
    end: Callable[[Node, PID], object],
    reason: object,
) -> None:
    async with running_node(inline_calls=inline_calls) as node:
        server = await asleep(node, PlainServer)
        errors: list[TargetDownError] = []

        async def call() -> None:
            with pytest.raises(TargetDownError) as caught:
                await node.call(server, keep, timeout=None)
            errors.append(caught.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            nursery.start_soon(call)
            await wait_all_tasks_blocked()
            end(node, server)

        assert [error.reason for error in errors] == [reason, reason]
        assert [(error.target, error.request) for error in errors] == [(server, keep)] * 2


@pytest.mark.parametrize(
    "end, reason",
    [
        (lambda node, server, busy: node.kill(server), Killed()),
        (
            lambda node, server, busy: (node.send_exit(server, "enough"), busy.set()),
            Custom("enough"),
        ),
        (
            lambda node, server, busy: (
                node.send(server, lambda me: crash(me, me), priority=Priority.MAX),
                busy.set(),
            ),
            Crashed(Failed("on purpose")),
        ),
    ],
    ids=["killed", "asked to exit", "crashed"],
)
async def test_queued_calls_end_when_the_callee_does(
    autojump_clock: MockClock, end: Callable[[Node, PID, trio.Event], object], reason: object
) -> None:
    reasons: dict[Priority, object] = {}

    async with running_node() as node:
        server = await node.spawn(Puppet)
        busy = trio.Event()
        node.send(server, lambda me: busy.wait())
        await wait_all_tasks_blocked()

        async def call(priority: Priority) -> None:
            with pytest.raises(TargetDownError) as caught:
                await node.call(server, lambda me: None, timeout=None, priority=priority)
            reasons[priority] = caught.value.reason

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, Priority.NORMAL)
            nursery.start_soon(call, Priority.HIGH)
            await wait_all_tasks_blocked()
            end(node, server, busy)

        assert reasons == {Priority.NORMAL: reason, Priority.HIGH: reason}


async def test_a_caller_gets_target_down_when_its_callee_is_killed_while_handling_the_call(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        server = await node.spawn(AsyncServer)
        puppet = await node.spawn(Puppet)
        node.send_after(1, puppet, lambda me: me.kill(server))

        with pytest.raises(TargetDownError) as caught:
            await node.call(server, sleep_for_ever, timeout=None)

        assert caught.value.reason == Killed()
        assert trio.current_time() == 1


async def test_the_call_in_progress_of_a_killed_callee_is_answered_after_its_terminate(
    autojump_clock: MockClock,
) -> None:
    class SlowToEnd(AsyncServer):
        async def terminate(self, reason: object) -> None:
            await trio.sleep(3)

    async with running_node() as node:
        server = await asleep(node, SlowToEnd)
        puppet = await node.spawn(Puppet)
        node.send_after(1, puppet, lambda me: me.kill(server))

        with pytest.raises(TargetDownError):
            await node.call(server, sleep_for_ever, timeout=None)

        assert trio.current_time() == 4


async def test_a_reply_returned_by_the_callback_that_stops_is_sent(
    autojump_clock: MockClock, way: Way
) -> None:
    def answer_and_stop(me: Any, caller: Caller) -> str:
        me.stop()
        return "the last word"

    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)

        answer = await node.call(server, answer_and_stop)
        await wait_all_tasks_blocked()

        assert answer == "the last word"
        assert node.processes() == []


# -- C2, C4: replies that come later, or too late --------------------------------------------------


async def test_none_is_an_ordinary_reply(autojump_clock: MockClock, way: Way) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)

        assert await node.call(server, echo(None), timeout=1) is None


class Doable:
    """A server answers with the result of ``does``."""

    def __init__(self, does: Doing) -> None:
        self.does = does

    def __call__(self, me: Any, caller: Caller) -> Any:
        return self.does(me, caller)


class Ask(Doable, Request[int]):
    """Asks for a number."""


class AskPerhaps(Doable, Request[int | None]):
    """The answer may be None."""


async def test_a_request_that_declares_its_answer_is_not_answered_with_none(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)
        request = Ask(echo(None))

        with pytest.raises(UnhandledCallError) as caught:
            await node.call(server, request, timeout=1)

        assert str(caught.value) == (
            f"{way.server.__name__} at {server} answered None to Ask, which is a Request[int]: no "
            "case of its handle_call matches it, or a `return` is missing; if None is an answer, "
            "declare Request[int | None]"
        )
        assert (caught.value.target, caught.value.request) == (server, request)
        assert await node.call(server, Ask(echo(0)), timeout=1) == 0
        assert await node.call(server, AskPerhaps(echo(None)), timeout=1) is None


async def test_none_as_a_deferred_answer_is_refused_for_a_declared_answer(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)

        async def answer() -> None:
            await wait_all_tasks_blocked()
            node.send(server, lambda me: me.reply(me.kept[0], None))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            with pytest.raises(UnhandledCallError, match="answered None to Ask"):
                await node.call(server, Ask(keep), timeout=1)


async def test_a_thread_gets_no_none_for_a_declared_answer() -> None:
    async with running_node() as node:
        server = await node.spawn(PlainServer)

        with pytest.raises(UnhandledCallError, match=r"PlainServer at .* answered None to Ask"):
            await trio.to_thread.run_sync(node.call_from_thread, server, Ask(echo(None)))


@pytest.mark.parametrize("target", ["conter", Name("conter")], ids=repr)
async def test_a_call_to_a_misspelled_name_proposes_the_name(target: Any) -> None:
    async with running_node() as node:
        await node.spawn(PlainServer, name="counter")

        with pytest.raises(TargetDownError) as caught:
            await node.call(target, 5)

        assert str(caught.value) == (
            f"{target!r} cannot answer: no such process; did you mean 'counter'?"
        )
        # The names of that time, whichever there are later.
        node.unregister("counter")
        assert str(caught.value).endswith("did you mean 'counter'?")


@pytest.mark.parametrize(
    "target",
    ["database", Name("conter", "other@host"), PID("demo@localhost", 1, 99)],
    ids=["not near", "elsewhere", "no name"],
)
async def test_a_call_without_a_near_name_proposes_none(target: Any) -> None:
    async with running_node() as node:
        await node.spawn(PlainServer, name="counter")

        with pytest.raises(TargetDownError) as caught:
            await node.call(target, 5)

        assert "did you mean" not in str(caught.value)


async def test_a_late_reply_is_counted_and_dropped_and_the_callee_does_not_notice(
    autojump_clock: MockClock, way: Way
) -> None:
    accepted: list[bool] = []

    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)
        with pytest.raises(CallTimeoutError):
            await node.call(server, keep, timeout=1)

        node.send(server, lambda me: accepted.append(me.reply(me.kept[0], "late")))
        node.send(server, lambda me: accepted.append(me.reply_error(me.kept[0], Failed())))
        answer = await node.call(server, echo("alive"))

        assert accepted == [False, False]
        assert node.info().late_replies == 2
        assert answer == "alive"


async def test_a_slow_answer_to_a_caller_that_timed_out_is_a_late_reply(
    autojump_clock: MockClock,
) -> None:
    async def slow(me: Any, caller: Caller) -> str:
        await trio.sleep(3)
        return "late"

    async with running_node() as node:
        server = await node.spawn(AsyncServer)

        with pytest.raises(CallTimeoutError):
            await node.call(server, slow, timeout=1)
        answer = await node.call(server, echo("alive"))

        assert answer == "alive"
        assert node.info().late_replies == 1


async def test_a_late_reply_does_not_answer_the_callers_next_call(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)
        with pytest.raises(CallTimeoutError):
            await node.call(server, keep, timeout=1)
        node.send_after(1, server, lambda me: me.reply(me.kept[0], "to the first"))
        node.send_after(2, server, lambda me: me.reply(me.kept[1], "to the second"))

        answer = await node.call(server, keep)

        assert answer == "to the second"


@pytest.mark.parametrize("overflow", Overflow)
async def test_an_answer_needs_no_room_in_the_mailbox_of_the_caller(
    autojump_clock: MockClock, way: Way, overflow: Overflow
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)
        caller = await node.spawn(Puppet, mailbox_size=1, overflow=overflow)

        async def fill_up_and_ask(me: Puppet) -> Any:
            me.send(me.pid, "fills its own mailbox")
            return [await me.call(server, echo(number), timeout=1) for number in range(3)]

        answers = await node.call(caller, fill_up_and_ask)

        assert answers == [0, 1, 2]
        assert await node.call(caller, None) == ["fills its own mailbox"]


async def test_a_deferred_reply_may_come_from_the_callee(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)
        node.send_after(1, server, lambda me: me.reply(me.kept[0], "later"))

        answer = await node.call(server, keep)

        assert answer == "later"
        assert trio.current_time() == 1


async def test_a_deferred_reply_may_come_from_any_process_and_may_be_an_error(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        helper = await node.spawn(Puppet)
        server = await asleep(node, way.server)

        def by_the_helper(me: Any, caller: Caller) -> object:
            me.send(helper, lambda other: other.reply(caller, "from the helper"))
            return NO_REPLY

        def refused_by_the_helper(me: Any, caller: Caller) -> object:
            me.send(helper, lambda other: other.reply_error(caller, Failed("from the helper")))
            return NO_REPLY

        answer = await node.call(server, by_the_helper)
        with pytest.raises(Failed, match="from the helper"):
            await node.call(server, refused_by_the_helper)

        assert answer == "from the helper"
        assert {helper, server} == set(node.processes())


async def test_only_the_first_reply_counts(autojump_clock: MockClock, way: Way) -> None:
    accepted: list[bool] = []

    def twice(me: Any, caller: Caller) -> object:
        accepted.append(me.reply(caller, "first"))
        accepted.append(me.reply(caller, "second"))
        return NO_REPLY

    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)

        answer = await node.call(server, twice)

        assert answer == "first"
        assert accepted == [True, False]
        assert node.info().late_replies == 1


async def test_a_value_returned_after_a_reply_is_a_late_reply(
    autojump_clock: MockClock, way: Way
) -> None:
    def reply_and_return(me: Any, caller: Caller) -> object:
        me.reply(caller, "replied")
        return "returned"

    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)

        answer = await node.call(server, reply_and_return)

        assert answer == "replied"
        assert node.info().late_replies == 1


async def test_a_reply_is_not_kept_alive_by_the_deadline_of_its_call(
    autojump_clock: MockClock, way: Way
) -> None:
    class Answer:
        pass

    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)

        answer = await node.call(server, lambda me, caller: Answer(), timeout=50)
        gone = weakref.ref(answer)
        del answer
        await wait_all_tasks_blocked()
        gc.collect()

        assert gone() is None


async def test_a_process_keeps_no_deferred_call_that_has_ended(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)

        for _ in range(20):
            node.send_after(1, server, lambda me: me.reply(me.kept.pop(), "later"))
            await node.call(server, keep)
        with pytest.raises(CallTimeoutError):
            await node.call(server, keep, timeout=1)
        with trio.move_on_after(1):
            await node.call(server, keep, timeout=None)

        assert not process_of(node, server).deferred


# -- forward ---------------------------------------------------------------------------------------


async def test_a_call_forwarded_to_a_waiting_process_is_answered_in_a_node_with_a_network() -> None:
    gate, begun, answers = trio.Event(), trio.Event(), list[Any]()

    async def wait(_me: Puppet) -> None:
        begun.set()
        await gate.wait()

    async with running_node(network=Memory()) as node:
        slow, third = await node.spawn(Puppet), await node.spawn(Puppet)
        server = await node.spawn(AsyncServer)
        node.send(third, lambda me: me.call(slow, wait))
        await begun.wait()

        def own_pid(me: Puppet) -> PID:
            return me.pid

        request: Any = own_pid

        async def ask() -> None:
            answers.append(await node.call(server, forward_to(third, request)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            gate.set()
        assert answers == [third]


async def test_a_third_process_answers_a_forwarded_call_with_the_caller_unchanged(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        third = await asleep(node, way.server)
        server = await asleep(node, way.server)
        puppet = await node.spawn(Puppet)
        request = forward_to(third, lambda me, caller: (me.pid, caller.pid))

        answer = await node.call(puppet, lambda me: me.call(server, request))

        assert answer == (third, puppet)


async def test_a_deferred_call_may_be_forwarded_later(autojump_clock: MockClock, way: Way) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        third = await asleep(node, way.server)
        server = await asleep(node, way.server)
        node.send_after(1, server, lambda me: me.forward(third, echo("from the third"), me.kept[0]))

        answer = await node.call(server, keep)

        assert answer == "from the third"


async def test_a_call_deferred_and_then_forwarded_survives_the_process_that_forwarded_it(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        third = await asleep(node, way.server)
        server = await asleep(node, way.server)
        node.send_after(1, server, lambda me: me.forward(third, keep, me.kept[0]))
        node.send_after(2, server, lambda me: me.stop("done"))
        node.send_after(3, third, lambda me: me.reply(me.kept[0], "from the third"))

        answer = await node.call(server, keep)

        assert answer == "from the third"
        assert node.processes() == [third]


async def test_a_call_forwarded_to_an_unknown_name_raises_target_down(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)

        with pytest.raises(TargetDownError) as caught:
            await node.call(server, forward_to("nobody", echo(1)))

        assert caught.value.reason == NoProcess()
        assert await node.call(server, echo("alive")) == "alive"


async def test_a_forwarded_call_survives_the_death_of_the_process_that_forwarded_it(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        third = await asleep(node, way.server)
        server = await asleep(node, way.server)
        node.send_after(1, server, lambda me: me.stop("done"))
        node.send_after(2, third, lambda me: me.reply(me.kept[0], "from the third"))

        answer = await node.call(server, forward_to(third, keep))

        assert answer == "from the third"
        assert node.processes() == [third]


@pytest.mark.parametrize(
    "request_at_third", [keep, sleep_for_ever], ids=["deferred", "in progress"]
)
async def test_a_forwarded_call_ends_with_the_death_of_its_new_receiver(
    autojump_clock: MockClock, request_at_third: Doing
) -> None:
    async with running_node() as node:
        third = await node.spawn(AsyncServer)
        server = await asleep(node, PlainServer)
        puppet = await node.spawn(Puppet)
        node.send_after(1, puppet, lambda me: me.kill(third))

        with pytest.raises(TargetDownError) as caught:
            await node.call(server, forward_to(third, request_at_third), timeout=None)

        assert caught.value.reason == Killed()
        assert trio.current_time() == 1
        assert await node.call(server, echo("alive")) == "alive"


async def test_a_forwarded_call_that_is_still_queued_ends_with_its_receiver(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        third = await node.spawn(AsyncServer)
        server = await asleep(node, PlainServer)
        puppet = await node.spawn(Puppet)
        node.send(puppet, lambda me: me.call(third, sleep_for_ever, timeout=None))
        await wait_all_tasks_blocked()
        killer = await node.spawn(Puppet)
        node.send_after(1, killer, lambda me: me.kill(third))

        with pytest.raises(TargetDownError) as caught:
            await node.call(server, forward_to(third, echo(1)), timeout=None)

        assert caught.value.reason == Killed()


async def test_a_forwarded_call_is_not_kept_by_the_process_that_forwarded_it(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        third = await asleep(node, way.server)
        server = await asleep(node, way.server)

        for _ in range(10):
            node.send_after(1, third, lambda me: me.reply(me.kept.pop(), "later"))
            await node.call(server, forward_to(third, keep))
            await node.call(server, forward_to(third, echo(1)))

        assert not process_of(node, server).deferred
        assert not process_of(node, third).deferred
