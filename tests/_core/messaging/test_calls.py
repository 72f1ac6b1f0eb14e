"""Calls: one ending each, whoever dies, leaves or answers; with the short cut on and off, plain and
async handlers.
"""

import gc
import inspect
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    NO_REPLY,
    PID,
    Actor,
    Alias,
    Caller,
    CallTimeoutError,
    Crashed,
    Custom,
    DeadlockError,
    Killed,
    Name,
    Node,
    NodeStoppedError,
    NoNode,
    NoProcess,
    Normal,
    NotAllowedError,
    Overflow,
    Priority,
    Reject,
    Shutdown,
    State,
    TargetDownError,
    UnhandledCallError,
)
from tests.support import Failed, Puppet, Recorder, kernel_of, process_of, running_node

Doing = Callable[[Any, Caller], Any]


class PlainServer(Actor):
    """Answers with what the function it is asked with returns, called with the server and the
    caller.
    """

    def __init__(self, log: list[Any] | None = None) -> None:
        self.kept: list[Caller] = []
        self.log_: list[Any] = [] if log is None else log

    def handle_message(self, message: Any, sender: Any) -> None:
        if inspect.isfunction(message):
            message(self)
        else:
            self.log_.append(message)

    def handle_call(self, request: Doing, caller: Caller) -> object:
        return request(self, caller)


class AsyncServer(PlainServer):
    """The same with a handler that may wait."""

    async def handle_call(self, request: Doing, caller: Caller) -> object:
        result = request(self, caller)
        return await result if inspect.iscoroutine(result) else result


@dataclass(frozen=True)
class Way:
    """How calls are served in one run of a test."""

    inline_calls: bool
    server: type[PlainServer]


@pytest.fixture(
    params=[
        Way(True, PlainServer),
        Way(False, PlainServer),
        Way(True, AsyncServer),
        Way(False, AsyncServer),
    ],
    ids=["plain-short-cut", "plain-mailbox", "async-short-cut", "async-mailbox"],
)
def way(request: pytest.FixtureRequest) -> Way:
    chosen: Way = request.param
    return chosen


async def asleep(node: Node, server: Any, *args: Any, **options: Any) -> PID:
    """Spawn a server, and return when it sleeps in its mailbox: only there the short cut finds it."""
    pid: PID = await node.spawn(server, *args, **options)
    await wait_all_tasks_blocked()
    return pid


async def nap(me: Any, seconds: float) -> None:
    await trio.sleep(seconds)


def echo(value: object) -> Doing:
    return lambda me, caller: value


def keep(me: PlainServer, caller: Caller) -> object:
    me.kept.append(caller)
    return NO_REPLY


async def sleep_for_ever(me: Any, caller: Caller) -> None:
    await trio.sleep_forever()


def crash(me: Any, caller: Caller) -> object:
    raise Failed("on purpose")


def kept_by(node: Node, server: PID) -> Callable[[], Any]:
    """What the server has kept, found through its own callback."""

    async def ask() -> list[Caller]:
        found: list[Caller] = await node.call(server, lambda me, caller: list(me.kept))
        return found

    return ask


# -- C1: exactly one ending ------------------------------------------------------------------------


async def test_a_call_returns_what_the_handler_returns(autojump_clock: MockClock, way: Way) -> None:
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


async def test_a_rejected_call_raises_the_given_error_and_the_callee_lives_on(
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
async def test_a_call_to_nobody_raises_target_down_at_once(
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


async def test_timeouts_of_different_length_end_each_at_its_own_time(
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


async def test_a_cancelled_caller_leaves_at_once_and_the_callee_goes_on(
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


async def test_a_caller_killed_in_mid_call_ends_at_once_and_the_callee_goes_on(
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


async def test_a_call_cancelled_at_the_short_cut_does_not_stay_with_the_callee(
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


async def test_a_crash_is_a_crash_whether_told_or_asked(
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


async def test_a_caller_whose_callee_is_killed_while_handling_the_call_is_told(
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


async def test_a_slow_handler_whose_caller_left_returns_into_the_void(
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


async def test_a_deferred_reply_may_come_from_the_callee_itself(
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


async def test_a_process_that_deferred_many_calls_keeps_none_that_is_answered(
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


def forward_to(target: Any, request: Doing) -> Doing:
    return lambda me, caller: me.forward(target, request, caller)


async def test_a_forwarded_call_is_answered_by_the_third_with_the_caller_unchanged(
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


async def test_a_call_that_was_deferred_and_forwarded_survives_the_one_who_did_so(
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


async def test_a_call_forwarded_to_nobody_raises_target_down(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)

        with pytest.raises(TargetDownError) as caught:
            await node.call(server, forward_to("nobody", echo(1)))

        assert caught.value.reason == NoProcess()
        assert await node.call(server, echo("alive")) == "alive"


async def test_a_forwarded_call_survives_the_death_of_the_one_who_forwarded_it(
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
async def test_a_forwarded_call_ends_with_the_death_of_the_one_it_was_forwarded_to(
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


async def test_a_forwarded_call_leaves_nothing_with_the_one_who_forwarded_it(
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


# -- C5: deadlocks ---------------------------------------------------------------------------------


async def deadlock_of(me: Actor, target: Any, request: Any) -> tuple[object, ...]:
    with pytest.raises(DeadlockError) as caught:
        await me.call(target, request, timeout=None)
    return caught.value.ring


@pytest.mark.parametrize("inline_calls", [True, False])
async def test_a_call_to_oneself_is_a_deadlock_however_addressed(
    autojump_clock: MockClock, inline_calls: bool
) -> None:
    async with running_node(inline_calls=inline_calls) as node:
        puppet = await node.spawn(Puppet, name="me")
        alias = await node.call(puppet, lambda me: me.create_alias())

        rings = [
            await node.call(puppet, lambda me, target=target: deadlock_of(me, target, None))
            for target in (puppet, "me", Name("me"), Name("me", "test@localhost"), alias)
        ]

        assert rings == [(puppet, puppet)] * 5


@pytest.mark.parametrize("inline_calls", [True, False])
@pytest.mark.parametrize("length", [2, 3, 5])
async def test_a_ring_of_waiting_processes_is_a_deadlock_that_names_it(
    autojump_clock: MockClock, inline_calls: bool, length: int
) -> None:
    async with running_node(inline_calls=inline_calls) as node:
        puppets = [await node.spawn(Puppet) for _ in range(length)]

        def ask(me: Puppet, rest: list[PID]) -> Any:
            if not rest:
                return deadlock_of(me, puppets[0], None)
            return me.call(rest[0], lambda it: ask(it, rest[1:]), timeout=None)

        began = trio.current_time()

        ring = await node.call(puppets[0], lambda me: ask(me, puppets[1:]), timeout=None)

        assert ring == (puppets[-1], *puppets)
        assert trio.current_time() == began
        assert len(node.processes()) == length


@pytest.mark.parametrize("length", [1, 2, 3])
async def test_a_ring_of_calls_by_way_of_the_node_is_a_deadlock_too(
    autojump_clock: MockClock, length: int
) -> None:
    async with running_node() as node:
        puppets = [await node.spawn(Puppet) for _ in range(length)]

        async def ask(me: Puppet, rest: list[PID]) -> Any:
            if rest:
                return await node.call(rest[0], lambda it: ask(it, rest[1:]), timeout=None)
            with pytest.raises(DeadlockError) as caught:
                await node.call(puppets[0], None, timeout=None)
            return caught.value.ring

        ring = await node.call(puppets[0], lambda me: ask(me, puppets[1:]), timeout=None)

        assert ring == (puppets[-1], *puppets)


async def test_while_it_asks_by_way_of_the_node_a_process_waits_for_a_response(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        asking, asked = await node.spawn(Puppet), await node.spawn(Puppet)

        def look(_: Puppet) -> State:
            return node.process_info(asking).state

        during = await node.call(asking, lambda me: node.call(asked, look))

        assert during is State.WAIT_RESPONSE
        assert node.process_info(asking).state is State.SLEEP


async def test_code_that_is_no_callback_asks_for_itself(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        asking, asked = await node.spawn(Puppet), await node.spawn(Puppet)

        async def ask_in_a_task_of_its_own(me: Puppet) -> Any:
            answers: list[Any] = []

            async def ask() -> None:
                answers.append(await node.call(asked, lambda it: node.process_info(asking).state))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
            return answers

        assert await node.call(asking, ask_in_a_task_of_its_own) == [State.RUNNING]


async def test_an_init_that_asks_by_way_of_the_node_leaves_its_parent_waiting_for_it(
    autojump_clock: MockClock,
) -> None:
    rings: list[tuple[object, ...]] = []

    class Child(Actor):
        async def init(self) -> None:
            await self.node.call(other, None)
            rings.append(await deadlock_of(self, self.parent, None))

    async with running_node() as node:
        other, parent = await node.spawn(Puppet), await node.spawn(Puppet)

        child = await node.call(parent, lambda me: me.spawn(Child))

        assert rings == [(child, parent, child)]


async def test_the_text_of_a_deadlock_names_the_processes_and_a_way_out(
    autojump_clock: MockClock,
) -> None:
    async def text_of(me: Puppet) -> str:
        with pytest.raises(DeadlockError) as caught:
            await me.call(me.pid, None)
        return str(caught.value)

    async with running_node() as node:
        puppet = await node.spawn(Puppet)

        text = await node.call(puppet, text_of)

        assert f"{puppet} → {puppet}" in text
        assert "NO_REPLY" in text


async def test_a_ring_closed_by_a_forward_is_a_deadlock_for_the_caller(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        puppet = await node.spawn(Puppet)
        server = await asleep(node, way.server)

        ring = await node.call(
            puppet, lambda me: deadlock_of(me, server, forward_to(puppet, echo(1)))
        )

        assert ring == (puppet, puppet)
        assert await node.call(server, echo("alive")) == "alive"


async def test_a_ring_through_a_call_that_was_forwarded_is_a_deadlock(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        first, third = await node.spawn(Puppet), await node.spawn(Puppet)
        server = await asleep(node, way.server)
        request = lambda me, caller: me.forward(  # noqa: E731
            third, lambda it: deadlock_of(it, first, None), caller
        )

        ring = await node.call(first, lambda me: me.call(server, request, timeout=None))

        assert ring == (third, first, third)


async def test_an_init_that_calls_the_parent_who_waits_for_it_is_a_deadlock(
    autojump_clock: MockClock,
) -> None:
    rings: list[tuple[object, ...]] = []

    class Child(Actor):
        async def init(self) -> None:
            rings.append(await deadlock_of(self, self.parent, None))

    async with running_node() as node:
        parent = await node.spawn(Puppet)

        child = await node.call(parent, lambda me: me.spawn(Child), timeout=None)

        assert rings == [(child, parent, child)]


async def test_a_ring_through_a_spawn_and_a_third_process_is_a_deadlock(
    autojump_clock: MockClock,
) -> None:
    class Child(Actor):
        def __init__(self, third: PID) -> None:
            self.third = third

        async def init(self) -> None:
            rings.append(
                await self.call(
                    self.third, lambda me: deadlock_of(me, self.parent, None), timeout=None
                )
            )

    rings: list[tuple[object, ...]] = []
    async with running_node() as node:
        parent, third = await node.spawn(Puppet), await node.spawn(Puppet)

        child = await node.call(parent, lambda me: me.spawn(Child, third), timeout=None)

        assert rings == [(third, parent, child, third)]


async def test_a_grandchild_whose_init_calls_the_waiting_grandparent_is_a_deadlock(
    autojump_clock: MockClock,
) -> None:
    rings: list[tuple[object, ...]] = []

    class Grandchild(Actor):
        def __init__(self, grandparent: PID) -> None:
            self.grandparent = grandparent

        async def init(self) -> None:
            rings.append(await deadlock_of(self, self.grandparent, None))

    class Child(Actor):
        async def init(self) -> None:
            self.child = await self.spawn(Grandchild, self.parent)

        def handle_call(self, request: Any, caller: Caller) -> PID:
            return self.child

    async with running_node() as node:
        parent = await node.spawn(Puppet)

        child = await node.call(parent, lambda me: me.spawn(Child), timeout=None)

        assert rings == [
            (await node.call(child, None), parent, child, await node.call(child, None))
        ]


async def test_an_init_may_call_anybody_who_does_not_wait_for_it(
    autojump_clock: MockClock, way: Way
) -> None:
    class Child(Actor):
        def __init__(self, server: PID) -> None:
            self.server = server

        async def init(self) -> None:
            self.answer = await self.call(self.server, echo("ready"))

        def handle_call(self, request: Any, caller: Caller) -> object:
            return self.answer

    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)
        parent = await node.spawn(Puppet)

        child = await node.call(parent, lambda me: me.spawn(Child, server))

        assert await node.call(child, None) == "ready"


async def test_a_deferred_call_is_no_edge_of_a_ring(autojump_clock: MockClock, way: Way) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)
        waiting, third = await node.spawn(Puppet), await node.spawn(Puppet)
        node.send_after(
            1, server, lambda me: me.send(third, lambda it: it.reply(me.kept[0], "from the third"))
        )
        answers: list[object] = []

        # The one that deferred calls the one that waits for it, which is well: a third one answers
        # both.
        node.send(waiting, lambda me: _note(answers, me.call(server, keep)))
        await wait_all_tasks_blocked()
        caller = await node.spawn(Puppet)
        node.send(caller, lambda me: _note(answers, me.call(waiting, lambda _: "after the first")))
        await trio.sleep(2)

        assert answers == ["from the third", "after the first"]


async def _note(answers: list[object], coming: Any) -> None:
    answers.append(await coming)


async def test_the_one_that_deferred_may_call_the_one_that_waits_for_it(
    autojump_clock: MockClock,
) -> None:
    """A waits for B, which has deferred and now calls A: no deadlock, since C answers A."""
    answers: list[object] = []

    async with running_node() as node:
        b, a, c = await node.spawn(AsyncServer), await node.spawn(Puppet), await node.spawn(Puppet)

        async def then_call_a(me: Any, caller: Caller) -> object:
            return await me.call(a, lambda _: "a is free")

        node.send(a, lambda me: _note(answers, me.call(b, keep, timeout=None)))
        await wait_all_tasks_blocked()
        [caller] = await kept_by(node, b)()
        node.send_after(1, c, lambda me: me.reply(caller, "c answered"))
        answers.append(await node.call(b, then_call_a))

        assert answers == ["c answered", "a is free"]


async def test_tasks_of_a_handlers_own_nursery_may_call_without_being_a_ring(
    autojump_clock: MockClock,
) -> None:
    """The process is not held up by a task that one of its callbacks started, so long as the
    callback comes to its end.
    """
    answers: list[object] = []

    async with running_node() as node:
        puppet, other = await node.spawn(Puppet), await node.spawn(Puppet)

        async def both(me: Puppet) -> None:
            async def ask(number: int) -> None:
                answers.append(await me.call(other, lambda it: it.send(me.pid, number)))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, 1)
                nursery.start_soon(ask, 2)
                state = node.process_info(me.pid).state
            answers.append(state)

        await node.call(puppet, both)

        assert answers == [True, True, State.RUNNING]
        assert sorted(await node.call(puppet, None)) == [1, 2]


async def test_a_task_of_a_handlers_own_nursery_may_call_while_another_process_waits_for_it(
    autojump_clock: MockClock,
) -> None:
    answers: list[object] = []

    async with running_node() as node:
        puppet, other = await node.spawn(Puppet), await node.spawn(Puppet)

        async def ask_back(it: Puppet) -> object:
            # Not a ring: the callback of the first does not wait for its nursery yet, and cancels
            # it.
            return await it.call(puppet, lambda _: "answered", timeout=5)

        async def start_and_return(me: Puppet) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: _note(answers, me.call(other, ask_back, timeout=1)))
                await trio.sleep(0.5)
                nursery.cancel_scope.cancel()

        await node.call(puppet, start_and_return)
        await wait_all_tasks_blocked()

        assert answers == []
        assert set(node.processes()) == {puppet, other}
        assert node.info().crashed == 0


async def test_a_ring_is_no_longer_one_after_the_call_that_made_it_has_ended(
    autojump_clock: MockClock, way: Way
) -> None:
    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server)
        a, b = await node.spawn(Puppet), await node.spawn(Puppet)

        async def give_up(me: Puppet) -> None:
            with pytest.raises(CallTimeoutError):
                await me.call(b, lambda it: nap(it, 2), timeout=1)

        node.send(a, give_up)
        await trio.sleep(1.5)
        answer = await node.call(b, lambda it: it.call(a, lambda _: "free again"))

        assert answer == "free again"
        assert await node.call(server, echo(1)) == 1


# -- C6: who may call ------------------------------------------------------------------------------


async def test_a_thread_may_call_and_gets_what_a_task_would_get(way: Way) -> None:
    def reject(me: Any, caller: Caller) -> object:
        raise Reject(LookupError("no such key"))

    async with running_node(inline_calls=way.inline_calls) as node:
        server = await asleep(node, way.server, name="server")

        def ask() -> list[object]:
            results: list[object] = [
                node.call_from_thread("server", echo(1)),
                node.call_from_thread(server, echo(None)),
            ]
            for request in (reject, crash):
                try:
                    node.call_from_thread(server, request)
                except Exception as error:
                    results.append(error)
            try:
                node.call_from_thread(server, echo(1))
            except TargetDownError as error:
                results.append(error)
            return results

        one, none, rejected, crashed, gone = await trio.to_thread.run_sync(ask)

        assert (one, none) == (1, None)
        assert isinstance(rejected, LookupError)
        assert isinstance(crashed, TargetDownError)
        assert isinstance(crashed.__cause__, Failed)
        assert isinstance(gone, TargetDownError)


async def test_a_thread_that_waits_for_an_answer_is_woken_by_its_callees_death() -> None:
    async with running_node() as node:
        server = await node.spawn(AsyncServer)
        entered = trio.Event()

        async def wait(me: Any, caller: Caller) -> None:
            entered.set()
            await trio.sleep_forever()

        def ask() -> object:
            with pytest.raises(TargetDownError) as caught:
                node.call_from_thread(server, wait, timeout=None)
            return caught.value.reason

        reasons: list[object] = []

        async def in_thread() -> None:
            reasons.append(await trio.to_thread.run_sync(ask))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread)
            await entered.wait()
            node.kill(server)

        assert reasons == [Killed()]


async def test_a_thread_that_gives_up_leaves_a_late_reply() -> None:
    async with running_node() as node:
        server = await asleep(node, PlainServer)

        def ask() -> float:
            with pytest.raises(CallTimeoutError) as caught:
                node.call_from_thread(server, keep, timeout=0.01)
            return caught.value.timeout

        timeout = await trio.to_thread.run_sync(ask)
        [caller] = await kept_by(node, server)()

        assert timeout == 0.01
        assert node.reply(caller, 1) is False
        assert node.info().late_replies == 1


async def test_a_blocking_call_on_the_loops_own_thread_is_refused_with_what_to_write(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        server = await asleep(node, PlainServer)

        with pytest.raises(NotAllowedError, match=r"await node\.call"):
            node.call_from_thread(server, echo(1))


# -- the short cut keeps every promise -------------------------------------------------------------


async def test_a_call_does_not_overtake_what_the_caller_sent_before(
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


async def test_a_caller_in_a_loop_starves_nobody_and_sees_its_cancellation(way: Way) -> None:
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


async def test_a_plain_handler_that_returns_a_coroutine_is_told_to_be_async(
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


async def test_a_call_waiting_in_terminate_ends_like_any_other(
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


async def test_a_process_that_was_left_behind_and_calls_is_told_that_the_node_has_stopped() -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)

    with pytest.raises(NodeStoppedError):
        await kernel_of(node).calls.call(None, node.pid, pid, "hello", 1.0, Priority.NORMAL)


@pytest.mark.parametrize("inline", [True, False], ids=["on the spot", "in its own turn"])
async def test_an_exception_that_a_callee_gives_to_every_caller_does_not_grow(inline: bool) -> None:
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


async def test_an_exception_that_is_handed_on_says_where_it_was_raised_first() -> None:
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
    """The deadlocks among what has left a nursery, or what was the cause of it."""
    if isinstance(group, BaseExceptionGroup):
        return [found for one in group.exceptions for found in deadlocks(one)]
    return [group] if isinstance(group, DeadlockError) else []


@pytest.mark.parametrize("depth", [1, 3])
async def test_a_call_to_oneself_in_a_task_that_the_callback_waits_for_is_a_deadlock(
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


async def test_what_a_task_of_a_callback_asks_is_over_with_its_call() -> None:
    async with running_node() as node:
        answering, plain = await node.spawn(Puppet), await node.spawn(Recorder)
        pid = await node.spawn(Puppet)
        for to in (answering, plain, plain):
            assert await node.call(pid, lambda me, to=to: call_in_a_nursery(me, to, "all")) == []
            assert node.process_info(pid).asks is None


async def test_a_thread_that_a_callback_waits_for_cannot_ask_that_process() -> None:
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
