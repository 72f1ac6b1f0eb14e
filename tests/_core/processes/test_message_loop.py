"""How a mailbox is served: the order, a single callback at a time, and exceptions."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    PID,
    Actor,
    Caller,
    CallError,
    CallTimeoutError,
    ChildSpec,
    Crashed,
    Custom,
    Down,
    Exit,
    Killed,
    LogRecord,
    Node,
    Normal,
    Overflow,
    Priority,
    Reason,
    Shutdown,
    TargetDownError,
    Why,
    open_node,
)
from ergo_py._core.processes.envelope_handlers import HANDLERS
from ergo_py._core.processes.lifecycle import NOT_YET
from ergo_py._core.processes.message_loop import run
from ergo_py._core.vocabulary import envelopes
from ergo_py.errors import CallbackError, DeadlockError
from ergo_py.supervision import Decision
from tests.actors import Failed, Frozen, Puppet, Recorder, Witness
from tests.support import replace_private, running_node


def fail(me: Any) -> None:
    raise Failed("on purpose")


# -- M1, M2: the order of service ------------------------------------------------------------------


class Ordered(Puppet):
    """Notes all served envelopes in a list."""

    def handle_child_exit(self, child: PID, reason: Reason) -> None:
        self.heard.append("child exit")

    def handle_log(self, record: LogRecord) -> None:
        self.heard.append(f"log {record.event}")

    def handle_inspect(self, *items: str) -> dict[str, str]:
        self.heard.append("inspect")
        return {}


async def test_lanes_are_served_in_order_and_each_first_in_first_out(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Puppet, heard)
        gate = trio.Event()
        node.send(pid, lambda me: gate.wait())
        await wait_all_tasks_blocked()

        for number in range(3):
            for priority in Priority:
                node.send(pid, (priority.name, number), priority=priority)
        gate.set()
        await wait_all_tasks_blocked()

        assert heard == [
            (priority, number) for priority in ("MAX", "HIGH", "NORMAL") for number in range(3)
        ]


@pytest.mark.parametrize("behaviour", ["plain", "async"])
async def test_lanes_are_checked_before_every_message(
    autojump_clock: MockClock, behaviour: str
) -> None:
    heard: list[Any] = []

    def on_message(me: Actor, message: Any) -> None:
        heard.append(message)
        if message == "first":
            me.send(me.pid, "high", priority=Priority.HIGH)
            me.send(me.pid, "urgent", priority=Priority.MAX)
        if message == "high":
            me.send(me.pid, "urgent again", priority=Priority.MAX)

    class Plain(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            on_message(self, message)

    class Async(Actor):
        async def handle_message(self, message: Any, sender: Any) -> None:
            on_message(self, message)

    async with running_node() as node:
        pid = await node.spawn(Plain if behaviour == "plain" else Async)

        node.send(pid, "first")
        node.send(pid, "second")
        await wait_all_tasks_blocked()

        assert heard == ["first", "urgent", "high", "urgent again", "second"]


async def test_exits_and_inspects_are_urgent_downs_and_child_exits_next_log_records_last(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        monitored, linked = await node.spawn(Puppet), await node.spawn(Puppet)
        pid = await node.spawn(Ordered, heard)

        async def prepare(me: Puppet) -> PID:
            me.trap_exit = True
            me.monitor(monitored)
            me.link(linked)
            return await me.spawn(Puppet)

        child = await node.call(pid, prepare)
        node.add_logger(pid, "error")
        gate = trio.Event()
        node.send(pid, lambda me: gate.wait())
        await wait_all_tasks_blocked()

        node.log.error("a record")
        node.send(pid, "normal")
        for other in (child, monitored):
            node.kill(other)
            await wait_all_tasks_blocked()
        node.send(pid, "high", priority=Priority.HIGH)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.inspect, pid)
            await wait_all_tasks_blocked()
            node.kill(linked)
            await wait_all_tasks_blocked()
            node.send(pid, "urgent", priority=Priority.MAX)
            gate.set()

        names = [type(one).__name__ if isinstance(one, Exit | Down) else one for one in heard]
        assert names == [
            "inspect",
            "Exit",
            "urgent",
            "child exit",
            "Down",
            "high",
            "normal",
            "log a record",
        ]


async def test_an_inspect_is_answered_before_a_backlog_of_messages(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Puppet, heard)
        for number in range(1_000):
            node.send(pid, number)

        seen = await node.inspect(pid)

        assert seen == {"heard": "0"}


# -- M6: fairness ----------------------------------------------------------------------------------


class Passes(trio.abc.Instrument):
    """Counts the passes of the event loop: in each pass, all tasks that can run do so once."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


class Turns:
    """A neighbour that counts how often it gets its turn."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            self.count += 1


@pytest.mark.parametrize("time_slice", ["goes on", "ends in the second burst"])
@pytest.mark.parametrize("burst", [1, 8, 12, 32])
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_process_with_many_messages_lets_other_tasks_run_after_a_burst(
    kind: str, burst: int, time_slice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def clock() -> float:
        return float(time_slice != "goes on" and len(seen) > burst + burst // 3)

    replace_private(monkeypatch, "clock of time slices", clock)
    passes = Passes()

    class Plain(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            seen.append(passes.count)

    class Async(Actor):
        async def handle_message(self, message: Any, sender: Any) -> None:
            seen.append(passes.count)

    async with running_node(burst=burst) as node:
        pid = await node.spawn(Plain if kind == "plain" else Async)
        await wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(passes)
        for number in range(1_000):
            node.send(pid, number)

        while len(seen) < 1_000:
            await trio.lowlevel.checkpoint()
        trio.lowlevel.remove_instrument(passes)

    assert max(seen.count(each) for each in set(seen)) <= burst


async def test_a_process_with_slow_handlers_lets_other_tasks_run_after_a_time_slice() -> None:
    turns = Turns()
    seen: list[int] = []

    class Slow(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            seen.append(turns.count)
            end = time.perf_counter() + 0.001
            while time.perf_counter() < end:
                pass

    async with running_node() as node, trio.open_nursery() as nursery:
        pid = await node.spawn(Slow)
        await wait_all_tasks_blocked()
        nursery.start_soon(turns.run)
        for number in range(100):
            node.send(pid, number)

        while len(seen) < 100:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()

    in_one_turn = max(seen.count(turn) for turn in set(seen))
    assert in_one_turn <= 24


class Broadcaster(Actor):
    """Feeds itself, and publishes an event with each message up to a pass of the event loop. Notes
    the pass in which it handles each message.
    """

    def __init__(self, passes: Passes, seen: list[int], until: int) -> None:
        self.passes, self.seen, self.until = passes, seen, until

    def init(self) -> None:
        self.register_event("news")

    def feed(self, message: Any) -> None:
        self.seen.append(self.passes.count)
        if self.passes.count < self.until:
            self.publish("news", message)
        self.send(self.pid, message)


class PlainBroadcaster(Broadcaster):
    def handle_message(self, message: Any, sender: Any) -> None:
        self.feed(message)


class AsyncBroadcaster(Broadcaster):
    async def handle_message(self, message: Any, sender: Any) -> None:
        self.feed(message)


class Subscriber(Actor):
    def init(self) -> None:
        self.subscribe("news")

    def handle_event(self, event: Any) -> None:
        pass

    def handle_down(self, down: Down) -> None:
        pass


@pytest.mark.parametrize("kind", [PlainBroadcaster, AsyncBroadcaster])
@pytest.mark.parametrize("subscribers, in_a_turn", [(0, 40), (1, 20), (10, 4), (39, 1), (50, 1)])
async def test_a_publication_counts_in_the_burst_for_each_of_its_receivers(
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Broadcaster],
    subscribers: int,
    in_a_turn: int,
) -> None:
    replace_private(monkeypatch, "clock of time slices", lambda: 0.0)  # no time slice ends
    passes = Passes()
    seen: list[int] = []
    with trio.fail_after(30):
        async with running_node(burst=40) as node:
            pid = await node.spawn(kind, passes, seen, 10)
            for _ in range(subscribers):
                await node.spawn(Subscriber)
            await wait_all_tasks_blocked()
            trio.lowlevel.add_instrument(passes)
            node.send(pid, "on")
            while passes.count < 20:
                await trio.lowlevel.checkpoint()
            trio.lowlevel.remove_instrument(passes)
            node.kill(pid)

    # The first burst begins after a sleep, and is longer.
    assert [seen.count(number) for number in range(3, 10)] == [in_a_turn] * 7
    assert [seen.count(number) for number in range(12, 20)] == [40] * 8


class Failing(Actor):
    """Has a plain ``handle_event``, which is a mistake or raises."""

    def init(self) -> None:
        self.register_event("news")
        self.subscribe("news")

    def handle_message(self, message: Any, sender: Any) -> None:
        self.publish("news", message)

    def handle_event(self, event: Any) -> Any:
        if event.message == "raise":
            raise ValueError("a fault")
        return self._wait()

    async def _wait(self) -> None:
        raise AssertionError("no caller may await it")


@pytest.mark.parametrize("message, text", [("raise", "a fault"), ("await", "handle_event")])
async def test_a_plain_callback_for_events_that_fails_ends_its_process(
    message: str, text: str
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Failing)
        node.send(pid, message)
        await wait_all_tasks_blocked()
        (crash,) = node.crashes()

    assert crash.pid == pid
    assert crash.callback == "handle_event"
    assert crash.message_type == "Published"
    assert text in str(crash.reason)


# -- P4: a single callback at a time ---------------------------------------------------------------


@pytest.mark.parametrize("inline_calls", [True, False])
async def test_callbacks_of_a_process_never_overlap(
    autojump_clock: MockClock, inline_calls: bool
) -> None:
    inside: list[str] = []
    most = 0
    served: set[str] = set()

    class Careful(Actor):
        async def work(self, what: str) -> None:
            nonlocal most
            inside.append(what)
            served.add(what)
            most = max(most, len(inside))
            await trio.sleep(0.01)
            inside.remove(what)

        async def handle_message(self, message: Any, sender: Any) -> None:
            if message == "spawn":
                await self.spawn(Puppet, name=f"child {len(served)} {trio.current_time()}")
            await self.work("message")

        async def handle_call(self, request: Any, caller: Caller) -> None:
            await self.work("call")

        async def handle_inspect(self, *items: str) -> dict[str, str]:
            await self.work("inspect")
            return {}

        async def handle_child_exit(self, child: PID, reason: Reason) -> None:
            await self.work("child exit")

        async def handle_log(self, record: LogRecord) -> None:
            await self.work("log")

        async def terminate(self, reason: Reason) -> None:
            await self.work("terminate")

    async with running_node(inline_calls=inline_calls) as node:
        pid = await node.spawn(Careful)
        node.add_logger(pid, "error")

        async def ask(verb: Callable[..., Any]) -> None:
            with suppress(TargetDownError):
                await verb(pid, "1")

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask, node.call)
                nursery.start_soon(ask, node.inspect)
                node.send(pid, "spawn")
                node.send(pid, "message", priority=Priority.MAX)
                node.log.error("record")
                await trio.sleep(0.015)
            await trio.sleep(1)
            for child in node.process_info(pid).children:
                assert isinstance(child, PID)
                node.kill(child)
            node.send(pid, "message")
            await trio.sleep(1)
            node.send_exit(pid, Normal())
            await node.wait_ended(pid)

        assert most == 1
        assert served == {"message", "call", "inspect", "child exit", "log", "terminate"}


# -- P5: crashes -----------------------------------------------------------------------------------


class Fragile(Actor):
    """Raises in the callback it was made for."""

    def __init__(self, where: str, ends: list[Reason]) -> None:
        self.where = where
        self.ends = ends

    def check(self, where: str) -> None:
        if where == self.where:
            raise Failed(where)

    async def init(self) -> None:
        self.trap_exit = True
        self.child = await self.spawn(Puppet)

    def handle_message(self, message: Any, sender: Any) -> None:
        self.check(
            "exit"
            if isinstance(message, Exit)
            else "down"
            if isinstance(message, Down)
            else "message"
        )
        if message == "watch":
            self.monitor(self.child)

    async def handle_call(self, request: Any, caller: Caller) -> None:
        self.check("call")

    def handle_child_exit(self, child: PID, reason: Reason) -> None:
        self.check("child exit")

    def handle_log(self, record: LogRecord) -> None:
        self.check("log")

    def terminate(self, reason: Reason) -> None:
        self.ends.append(reason)


def _end_child(node: Node, pid: PID) -> None:
    [child] = node.process_info(pid).children
    assert isinstance(child, PID)
    node.kill(child)


async def _watch_and_end_child(node: Node, pid: PID) -> None:
    node.send(pid, "watch")
    await wait_all_tasks_blocked()
    _end_child(node, pid)


async def _call(node: Node, pid: PID) -> None:
    with pytest.raises(TargetDownError):
        await node.call(pid, 1)


def _exit_from_another(node: Node, pid: PID) -> None:
    exit_ = lambda me: me.send_exit(pid, "enough")  # noqa: E731
    node.send("other", exit_)


CRASHES: dict[str, tuple[Callable[[Node, PID], Any], str, str]] = {
    "message": (lambda node, pid: node.send(pid, 1), "handle_message", "int"),
    "call": (_call, "handle_call", "int"),
    "exit": (_exit_from_another, "exit", "Custom"),
    "down": (_watch_and_end_child, "handle_message", "Killed"),
    "child exit": (_end_child, "handle_child_exit", "Killed"),
    "log": (lambda node, pid: node.log.error("record"), "handle_log", "LogRecord"),
}


@pytest.mark.parametrize("where", CRASHES)
async def test_an_exception_that_leaves_a_callback_ends_only_its_process_with_a_log_line(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    ends: list[Reason] = []
    provoke, callback, message_type = CRASHES[where]
    async with running_node(log_output="json", log_level="error") as node:
        sibling = await node.spawn(Puppet, name="other")
        pid = await node.spawn(Fragile, where, ends, name="fragile")
        if where == "log":
            node.add_logger(pid, "error")

        result = provoke(node, pid)
        if result is not None and not isinstance(result, bool):
            await result
        await wait_all_tasks_blocked()
        capturing = [json.loads(line) for line in capsys.readouterr().err.splitlines()]

        [reason] = ends
        assert reason == Crashed(Failed(where))
        assert isinstance(reason, Crashed)
        assert "in check" in reason.traceback
        assert node.processes() == [sibling]
        assert node.info().crashed == 1
        [line] = [line for line in capturing if line["event"] == "process crashed"]
        assert (line["level"], line["pid"], line["name"], line["behaviour"]) == (
            "error",
            str(pid),
            "fragile",
            "Fragile",
        )
        assert (line["callback"], line["message_type"]) == (callback, message_type)
        assert f"Failed: {where}" in line["exception"]


async def test_a_crash_report_counts_the_waiting_messages(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running_node(log_output="json", log_level="error") as node:
        pid = await node.spawn(Puppet)
        node.send(pid, fail)
        for priority in (Priority.NORMAL, Priority.NORMAL):
            node.send(pid, 1, priority=priority)
        await wait_all_tasks_blocked()

        [line] = [json.loads(line) for line in capsys.readouterr().err.splitlines()]

        assert line["waiting"] == 2


async def test_a_message_that_crashed_its_receiver_is_not_delivered_again(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []

    class Once(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            heard.append(message)
            raise Failed("on purpose")

    async with running_node() as node:
        pid = await node.spawn(Once)

        for number in range(3):
            node.send(pid, number)
        await wait_all_tasks_blocked()

        assert heard == [0]
        assert node.info().dead_letters == {Why.UNHANDLED_AT_EXIT: 2}


async def test_the_contents_of_messages_do_not_appear_in_the_log(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    class Silent(Actor):
        pass

    class Broken(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            raise Failed("no secrets here")

        async def handle_call(self, request: Any, caller: Caller) -> None:
            raise Failed("no secrets here")

    async with running_node(log_output="json", log_level="debug") as node:
        silent, broken, broken_too = (
            await node.spawn(Silent),
            await node.spawn(Broken),
            await node.spawn(Broken),
        )

        node.send(silent, "top secret")
        node.send(broken, "top secret")
        node.send(broken, "top secret")
        with pytest.raises(TargetDownError):
            await node.call(broken_too, "top secret")
        node.send("nobody", "top secret")
        await wait_all_tasks_blocked()

    logged = capsys.readouterr().err
    assert "unhandled message" in logged
    assert "process crashed" in logged
    assert "top secret" not in logged


async def test_a_plain_callback_that_returns_a_coroutine_raises_and_suggests_async_def(
    autojump_clock: MockClock,
) -> None:
    ends: list[Any] = []

    class Mistaken(Witness):
        def handle_message(self, message: Any, sender: Any) -> Any:
            return self.later()

        async def later(self) -> None:
            pass

    async with running_node() as node:
        pid = await node.spawn(Mistaken, ends)

        node.send(pid, 1)
        await wait_all_tasks_blocked()

        [reason] = ends
        assert isinstance(reason.error, CallbackError)
        assert "write `async def handle_message`" in str(reason.error)


class AsyncioLike:
    """Awaits like an asyncio future: it yields something that trio does not know."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield self


def _generate() -> Generator[None]:
    yield


async def _generate_slowly() -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    "make", [_generate, _generate_slowly, AsyncioLike], ids=["generator", "async", "awaitable"]
)
async def test_a_plain_handler_that_returns_a_coroutine_crashes_its_process(
    make: Callable[[], Any],
) -> None:
    ends: list[Any] = []

    class Returns(Witness):
        def handle_message(self, message: Any, sender: Any) -> Any:
            return make()

        def handle_inspect(self, *items: str) -> Any:
            return make()

    async with running_node() as node:
        pid = await node.spawn(Returns, ends)
        with pytest.raises(
            CallbackError, match=r"Returns\.handle_inspect is a plain `def` but returned"
        ):
            await node.inspect(pid)
        node.send(pid, 1)
        await node.wait_ended(pid)

        [reason] = ends
        assert isinstance(reason.error, CallbackError)
        assert "which would never run; write `async def handle_message`" in str(reason.error)


async def test_the_answer_to_a_call_may_be_a_generator() -> None:
    class Streams(Actor):
        def handle_call(self, request: Any, caller: Caller) -> Any:
            return (number * number for number in range(request))

    for inline in (True, False):
        async with running_node(inline_calls=inline) as node:
            assert list(await node.call(await node.spawn(Streams), 3)) == [0, 1, 4]


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "queued"])
async def test_the_answer_to_a_call_may_be_an_awaitable_object(inline: bool) -> None:
    client = AsyncioLike()

    class LendsClient(Actor):
        def handle_call(self, request: Any, caller: Caller) -> Any:
            return client

    async with running_node(inline_calls=inline) as node:
        assert await node.call(await node.spawn(LendsClient), "client") is client


@pytest.mark.parametrize("caught", [False, True], ids=["once", "again after it was caught"])
async def test_an_awaitable_of_another_library_crashes_only_the_process_that_awaits_it(
    autojump_clock: MockClock, caught: bool
) -> None:
    ends: list[Any] = []

    async def mix_libraries(me: Puppet) -> None:
        if caught:
            with pytest.raises(TypeError):
                await AsyncioLike()
        await AsyncioLike()

    async with running_node() as node:
        sibling = await node.spawn(Puppet)
        pid = await node.spawn(Witness, ends)

        node.send(pid, mix_libraries)
        await wait_all_tasks_blocked()

        [reason] = ends
        assert isinstance(reason, Crashed)
        assert isinstance(reason.error, TypeError)
        assert node.processes() == [sibling]
        assert await node.call(sibling, lambda me: "alive") == "alive"


async def test_a_handler_that_survived_an_awaitable_of_another_library_continues(
    autojump_clock: MockClock,
) -> None:
    async def recover(me: Puppet) -> str:
        with pytest.raises(TypeError):
            await AsyncioLike()
        await trio.sleep(1)
        return "recovered"

    async with running_node() as node:
        pid = await node.spawn(Puppet)

        answer = await node.call(pid, recover)

        assert answer == "recovered"


# -- P6: stopping ----------------------------------------------------------------------------------


async def test_stop_lets_the_callback_finish_and_takes_no_more_messages(
    autojump_clock: MockClock,
) -> None:
    ends: list[Any] = []
    done: list[str] = []

    async def stop_and_go_on(me: Puppet) -> None:
        me.stop("finished")
        await trio.sleep(1)
        done.append("came to its end")

    async with running_node() as node:
        pid = await node.spawn(Witness, ends)
        node.send(pid, stop_and_go_on)
        node.send(pid, lambda me: done.append("served after stop"))
        node.send(pid, lambda me: done.append("served after stop"), priority=Priority.MAX)
        await node.wait_ended(pid)

        assert ends == [Custom("finished")]
        assert "came to its end" in done
        assert trio.current_time() == 1


@pytest.mark.parametrize(
    "given, reason",
    [
        ((), Normal()),
        ((Normal(),), Normal()),
        ((Shutdown("for the night"),), Shutdown("for the night")),
        (("words",), Custom("words")),
        ((7,), Custom(7)),
        ((Failed("a pity"),), Crashed(Failed("a pity"))),
    ],
    ids=repr,
)
async def test_stop_takes_any_reason(
    autojump_clock: MockClock, given: tuple[Any, ...], reason: Reason
) -> None:
    ends: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Witness, ends)

        node.send(pid, lambda me: me.stop(*given))
        await wait_all_tasks_blocked()

        assert ends == [reason]


async def test_stop_in_init_ends_the_process_after_it_was_spawned(
    autojump_clock: MockClock,
) -> None:
    ends: list[Any] = []
    heard: list[Any] = []

    class Brief(Witness):
        def init(self) -> None:
            self.send(self.pid, lambda me: heard.append("served"))
            self.stop("brief")

    async with running_node() as node:
        pid = await node.spawn(Brief, ends)
        await wait_all_tasks_blocked()

        assert ends == [Custom("brief")]
        assert heard == []
        assert pid not in node.processes()


async def test_a_stop_that_is_followed_by_a_crash_is_a_crash(autojump_clock: MockClock) -> None:
    ends: list[Any] = []

    def stop_and_crash(me: Puppet) -> None:
        me.stop()
        raise Failed("after stop")

    async with running_node() as node:
        pid = await node.spawn(Witness, ends)

        node.send(pid, stop_and_crash)
        await wait_all_tasks_blocked()

        assert ends == [Crashed(Failed("after stop"))]


# -- P8: exits -------------------------------------------------------------------------------------


async def test_an_exit_from_another_process_is_trapped_with_sender_and_reason(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid, other = await node.spawn(Puppet, heard), await node.spawn(Puppet)
        await node.call(pid, lambda me: setattr(me, "trap_exit", True))

        await node.call(other, lambda me: me.send_exit(pid, "enough"))
        await wait_all_tasks_blocked()

        assert heard == [Exit(other, Custom("enough"))]
        assert await node.call(pid, lambda me: me.trap_exit) is True


async def test_an_exit_of_the_parent_is_not_trapped(autojump_clock: MockClock) -> None:
    ends: list[Any] = []

    class Trapping(Witness):
        def init(self) -> None:
            self.trap_exit = True

    async with running_node() as node:
        parent = await node.spawn(Puppet)
        child = await node.call(parent, lambda me: me.spawn(Trapping, ends))
        root = await node.spawn(Trapping, ends)

        await node.call(parent, lambda me: me.send_exit(child, "by its parent"))
        node.send_exit(root, "by its node")
        await wait_all_tasks_blocked()

        assert sorted(map(str, ends)) == ["by its node", "by its parent"]
        assert node.processes() == [parent]


async def test_an_exit_without_a_trap_ends_the_process_with_that_reason(
    autojump_clock: MockClock,
) -> None:
    ends: list[Any] = []
    async with running_node() as node:
        other = await node.spawn(Puppet)
        for reason in (Normal(), Shutdown(), Custom("words")):
            pid = await node.spawn(Witness, ends)
            await node.call(other, lambda me, pid=pid, reason=reason: me.send_exit(pid, reason))
            await wait_all_tasks_blocked()

        assert ends == [Normal(), Shutdown(), Custom("words")]


async def test_trap_exit_can_be_switched_off_again(autojump_clock: MockClock) -> None:
    ends: list[Any] = []
    async with running_node() as node:
        pid, other = await node.spawn(Witness, ends), await node.spawn(Puppet)
        for value in (True, False):
            await node.call(pid, lambda me, value=value: setattr(me, "trap_exit", value))

        await node.call(other, lambda me: me.send_exit(pid, "enough"))
        await wait_all_tasks_blocked()

        assert ends == [Custom("enough")]


# -- child exits, inspections, log records ---------------------------------------------------------


async def test_a_parent_with_handle_child_exit_gets_the_end_of_each_child(
    autojump_clock: MockClock,
) -> None:
    told: list[Any] = []

    class Parent(Puppet):
        async def handle_child_exit(self, child: PID, reason: Reason) -> None:
            told.append((child, reason))

    async with running_node() as node:
        parent = await node.spawn(Parent)
        children = [await node.call(parent, lambda me: me.spawn(Puppet)) for _ in range(3)]

        node.send(children[0], fail)
        await wait_all_tasks_blocked()
        node.send_exit(children[1], "enough")
        await wait_all_tasks_blocked()

        assert told == [
            (children[0], Crashed(Failed("on purpose"))),
            (children[1], Custom("enough")),
        ]
        assert node.process_info(parent).children == (children[2],)


async def test_inspect_gives_items_and_gets_strings(autojump_clock: MockClock) -> None:
    class Inspected(Actor):
        async def handle_inspect(self, *items: str) -> dict[Any, Any]:
            return {"items": items, 7: None}

    async with running_node() as node:
        pid = await node.spawn(Inspected, name="inspected")

        seen = await node.inspect("inspected", "this", "that")

        assert seen == {"items": "('this', 'that')", "7": "None"}
        assert node.process_info(pid).messages_in == 1


def _raise_in_inspect(*items: str) -> dict[str, str]:
    raise Failed("while inspected")


@pytest.mark.parametrize(
    "handle, error",
    [(_raise_in_inspect, Failed), (lambda *items: None, TypeError), (lambda *items: 7, TypeError)],
    ids=["raises", "returns None", "returns no mapping"],
)
async def test_an_inspect_that_fails_does_not_end_the_inspected_process(
    autojump_clock: MockClock, handle: Callable[..., Any], error: type[Exception]
) -> None:
    class Clumsy(Puppet):
        def handle_inspect(self, *items: str) -> dict[str, str]:
            return handle(*items)  # type: ignore[no-any-return]

    async with running_node() as node:
        pid = await node.spawn(Clumsy)

        with pytest.raises(error):
            await node.inspect(pid)

        assert await node.call(pid, lambda me: "alive") == "alive"
        assert node.info().crashed == 0


async def test_an_inspect_of_a_busy_process_times_out_and_the_process_continues(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        gate = trio.Event()
        node.send(pid, lambda me: gate.wait())
        await wait_all_tasks_blocked()

        with pytest.raises(CallTimeoutError):
            await node.inspect(pid, timeout=2)
        gate.set()

        assert trio.current_time() == 2
        assert await node.inspect(pid) == {"heard": "0"}


async def test_a_process_that_inspects_itself_gets_an_error_at_once(
    autojump_clock: MockClock,
) -> None:
    async def inspect_itself(me: Puppet) -> Any:
        with pytest.raises(DeadlockError) as caught:
            await me.node.inspect("me")
        return caught.value.ring

    async with running_node() as node:
        puppet = await node.spawn(Puppet, name="me")

        assert await node.call(puppet, inspect_itself) == (puppet, puppet)
        assert await node.inspect(puppet) == {"heard": "0"}


async def test_an_inspect_of_a_process_that_ends_meanwhile_raises_target_down(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Puppet)
        node.send(pid, lambda me: trio.Event().wait())
        await wait_all_tasks_blocked()

        async with trio.open_nursery() as nursery:

            async def inspect() -> None:
                with pytest.raises(TargetDownError):
                    await node.inspect(pid)

            nursery.start_soon(inspect)
            await wait_all_tasks_blocked()
            node.kill(pid)


async def test_a_logger_process_gets_records_of_its_level_except_its_own(
    autojump_clock: MockClock,
) -> None:
    records: list[LogRecord] = []

    class Keeper(Puppet):
        def handle_log(self, record: LogRecord) -> None:
            records.append(record)
            self.log.error("heard something")

    async with running_node(log_level="info") as node:
        keeper, speaker = await node.spawn(Keeper), await node.spawn(Puppet, name="speaker")
        node.add_logger(keeper, "warning")

        await node.call(speaker, lambda me: (me.log.info("quiet"), me.log.warning("loud", size=3)))
        await wait_all_tasks_blocked()
        removed = node.remove_logger(keeper), node.remove_logger(keeper)
        node.log.error("after it was removed")
        await wait_all_tasks_blocked()

        [record] = records
        assert (record.level, record.event, record.source, record.node) == (
            "warning",
            "loud",
            speaker,
            node.name,
        )
        assert record.fields["size"] == 3
        assert removed == (True, False)


async def test_an_unhandled_message_is_counted(autojump_clock: MockClock) -> None:
    class Silent(Actor):
        pass

    async with running_node() as node:
        pid = await node.spawn(Silent)

        node.send(pid, 1)
        node.send(pid, 2)
        await wait_all_tasks_blocked()

        assert node.process_info(pid).unhandled == 2
        assert node.info().dead_letters == {}


async def test_the_last_message_is_not_kept_alive_by_a_sleeping_process(
    autojump_clock: MockClock,
) -> None:
    import gc
    import weakref

    class Large:
        pass

    class Forgetful(Actor):
        def handle_message(self, message: Any, sender: Any) -> None:
            pass

        async def handle_call(self, request: Any, caller: Caller) -> object:
            return request

    async with running_node() as node:
        pid = await node.spawn(Forgetful)
        message, request = Large(), Large()
        gone = [weakref.ref(message), weakref.ref(request)]

        await node.call(pid, request)
        node.send(pid, message)
        await wait_all_tasks_blocked()
        del message, request
        gc.collect()

        assert [one() for one in gone] == [None, None]


async def test_a_recorder_with_plain_callbacks_answers_messages_and_calls_alike(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Recorder)

        node.send(pid, 1)
        heard = await node.call(pid, None)

        assert heard == [1]


async def test_a_failure_that_is_resumed_during_an_inline_call_keeps_the_process() -> None:
    class Answers(Actor):
        def handle_call(self, request: Any, caller: Any) -> object:
            if request == "fail":
                raise Failed("on purpose")
            return self.pid

    async with running_node() as node:
        await node.supervise(
            [ChildSpec("a", Answers, decide=lambda _error: Decision.RESUME)], name="tree"
        )
        before = await node.call("a", "who")

        with pytest.raises(CallError):
            await node.call("a", "fail")

        assert await node.call("a", "who") == before


async def test_post_restart_does_not_run_at_the_first_start() -> None:
    greeted: list[Reason] = []

    class Greets(Actor):
        def post_restart(self, reason: Reason) -> None:
            greeted.append(reason)

        def handle_message(self, message: Any, sender: Any) -> None:
            raise Failed("on purpose")

    async with running_node() as node:
        await node.supervise([ChildSpec("a", Greets)], name="tree")
        await wait_all_tasks_blocked()
        first = list(greeted)

        node.send("a", "fail")
        await wait_all_tasks_blocked()

    assert first == []
    assert [type(reason) for reason in greeted] == [Crashed]


class Unspeakable(Exception):
    __notes__ = 7  # type: ignore[assignment] # pyright: ignore[reportAssignmentType]

    def __str__(self) -> str:
        raise SystemExit


class Odd(BaseException):
    """An error of a library that is no Exception."""


@pytest.mark.parametrize(
    "error",
    [GeneratorExit, Unspeakable, Frozen, asyncio.CancelledError, Odd],
    ids=lambda one: one.__name__,
)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
async def test_any_exception_that_leaves_a_callback_ends_only_its_process(
    autojump_clock: MockClock, error: type[BaseException], asynchronous: bool
) -> None:
    class Plain(Actor):
        def handle_call(self, request: Any, caller: Caller) -> object:
            raise error

    class Waits(Actor):
        async def handle_call(self, request: Any, caller: Caller) -> object:
            await trio.lowlevel.checkpoint()
            raise error

    async with running_node() as node:
        other = await node.spawn(Puppet)
        pid = await node.spawn(Waits if asynchronous else Plain)

        with pytest.raises(TargetDownError) as caught:
            await node.call(pid, 1)
        await wait_all_tasks_blocked()

        assert isinstance(caught.value.reason, Crashed)
        assert type(caught.value.reason.error) is error
        assert node.processes() == [other]
        assert await node.call(other, lambda me: "alive") == "alive"


@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
async def test_any_exception_that_leaves_terminate_ends_only_its_process(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str], asynchronous: bool
) -> None:
    class Plain(Actor):
        def terminate(self, reason: Reason) -> None:
            raise Odd

    class Waits(Actor):
        async def terminate(self, reason: Reason) -> None:
            await trio.lowlevel.checkpoint()
            raise Odd

    async with running_node(log_output="json") as node:
        pid = await node.spawn(Waits if asynchronous else Plain)
        node.send_exit(pid, Shutdown())

        assert await node.wait_ended(pid) == Shutdown()
        assert not node.stopping
    assert "terminate raised" in capsys.readouterr().err


async def test_any_exception_of_a_callback_that_is_killed_ends_only_its_process(
    autojump_clock: MockClock,
) -> None:
    async def wait(me: Puppet) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise Odd

    async with running_node() as node:
        pid = await node.spawn(Puppet)
        node.send(pid, wait)
        await wait_all_tasks_blocked()
        node.kill(pid)

        assert await node.wait_ended(pid) == Killed()
        assert not node.stopping


def test_every_kind_of_envelope_that_a_process_gets_has_a_handler() -> None:
    kinds = {kind for name in envelopes.__all__ if type(kind := getattr(envelopes, name)) is int}

    served = {envelopes.MESSAGE, envelopes.CALL, *envelopes.ENDS}
    # The forms of a traced call and of a batch in progress.
    shown = {envelopes.TRACED_CALL, envelopes.BATCH}
    assert set(HANDLERS) == kinds - served - shown


# -- callbacks that were replaced on the instance --------------------------------------------------


class Replaced(Actor):
    """Its async callbacks are replaced by plain functions, as a mock does."""

    def __init__(self, result: object) -> None:
        self.result = result

    def init(self) -> None:
        self.__dict__["handle_message"] = lambda message, sender: self.result
        self.__dict__["handle_call"] = lambda request, caller: self.result

    async def handle_message(self, message: Any, sender: Any) -> None:
        raise AssertionError

    async def handle_call(self, request: Any, caller: Caller) -> object:
        raise AssertionError


@pytest.mark.parametrize("result", [None, True, (1, 2), (0, 1, None, "message"), []], ids=repr)
async def test_an_async_callback_that_returns_no_awaitable_crashes_its_process(
    result: object,
) -> None:
    async with running_node() as node:
        watcher = await node.spawn(Puppet)
        for ask in (node.send, node.call):
            pid = await node.spawn(Replaced, result)
            await node.call(watcher, lambda me, pid=pid: me.monitor(pid))

            try:
                asked = ask(pid, "anything")
                if not isinstance(asked, bool):
                    await asked
            except TargetDownError:
                pass
            await wait_all_tasks_blocked()

            assert pid not in node.processes()
        downs = await node.call(watcher, lambda me: me.heard)
        assert [type(down.reason.error) for down in downs] == [TypeError, TypeError]


# -- messages and calls with a priority, which are served outside of a batch -----------------------


class Choosy(Actor):
    """Has a case for numbers only."""

    def handle_message(self, message: Any, sender: Any) -> None:
        match message:
            case int():
                pass


class Late(Actor):
    """Answers after a while."""

    async def handle_call(self, request: Any, caller: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return request


async def nothing() -> None:
    pass


class Hasty(Actor):
    """Returns a coroutine from its plain ``handle_call``, or a number."""

    def __init__(self, gate: trio.Event) -> None:
        self._gate = gate

    async def handle_message(self, message: Any, sender: Any) -> None:
        await self._gate.wait()

    def handle_call(self, request: Any, caller: Any) -> Any:
        return nothing() if request == "coroutine" else 5


class Forgetful(Actor):
    """Returns a coroutine from its plain ``handle_message``."""

    def handle_message(self, message: Any, sender: Any) -> Any:
        return nothing()


async def test_a_message_with_a_priority_and_without_a_case_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with open_node(watchdog=None, log_output="console") as node:
        pid = await node.spawn(Choosy)
        node.send(pid, "text", priority=Priority.HIGH)
        await wait_all_tasks_blocked()

    assert "has no case for str," in capsys.readouterr().err


async def test_a_call_with_a_priority_may_wait_for_its_answer() -> None:
    async with running_node() as node:
        pid = await node.spawn(Late)

        assert await node.call(pid, "x", priority=Priority.HIGH) == "x"


async def test_a_coroutine_as_the_result_of_a_plain_callback_ends_the_process() -> None:
    async with running_node() as node:
        pid = await node.spawn(Forgetful)
        node.send(pid, "x", priority=Priority.HIGH)
        await wait_all_tasks_blocked()
        assert pid not in node.processes()


async def test_a_call_with_a_priority_waits_for_the_callback_in_progress() -> None:
    async with running_node() as node, trio.open_nursery() as nursery:
        gate = trio.Event()
        pid = await node.spawn(Hasty, gate)
        node.send(pid, "x")
        await wait_all_tasks_blocked()
        answers: list[object] = []

        async def call(request: str) -> None:
            try:
                answers.append(await node.call(pid, request, priority=Priority.HIGH))
            except TargetDownError as error:
                answers.append(str(error))

        nursery.start_soon(call, "number")
        await wait_all_tasks_blocked()
        nursery.start_soon(call, "coroutine")
        await wait_all_tasks_blocked()
        assert answers == []
        gate.set()
        await wait_all_tasks_blocked()

        number, error = sorted(answers, key=str)
        assert number == 5
        assert "CallbackError" in str(error)


async def test_a_sender_that_waits_for_room_in_a_priority_lane_is_admitted() -> None:
    async with running_node() as node, trio.open_nursery() as nursery:
        pid = await node.spawn(Recorder, mailbox_size=1, overflow=Overflow.WAIT)
        for number in range(3):
            nursery.start_soon(
                partial(node.send_wait, pid, number, priority=Priority.HIGH, timeout=None)
            )
        await wait_all_tasks_blocked()

        assert not nursery.child_tasks


async def test_an_exception_of_a_callback_that_is_being_killed_ends_the_process() -> None:
    class Stubborn(Actor):
        async def handle_message(self, message: Any, sender: Any) -> None:
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                raise ValueError("instead of the cancellation") from None

    async with running_node() as node:
        pid = await node.spawn(Stubborn)
        node.send(pid, "x")
        await wait_all_tasks_blocked()
        node.kill(pid)
        await wait_all_tasks_blocked()

        assert pid not in node.processes()


def test_a_process_that_is_abandoned_before_its_first_step_runs_nothing() -> None:
    process: Any = SimpleNamespace(task=NOT_YET, abandoned=True)

    with pytest.raises(StopIteration):
        run(process).send(None)
