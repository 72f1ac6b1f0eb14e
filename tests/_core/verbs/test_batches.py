"""Actors that handle their messages in batches."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    Actor,
    Caller,
    ChildSpec,
    Crashed,
    Down,
    Killed,
    LogRecord,
    Node,
    Overflow,
    Priority,
    Published,
    Reason,
    Shutdown,
    TargetDownError,
    Threads,
)
from ergo_py._core.vocabulary.envelopes import FENCE, Lane
from ergo_py.errors import BadInputError, BehaviourError
from ergo_py.methods import cast, exposed
from ergo_py.pipelines import Batch
from ergo_py.supervision import Fate
from ergo_py.testing import Alone
from tests.actors import Failed, Puppet, Recorder
from tests.support import kernel_of, process_of, running_node


class Writer(Actor):
    """Notes its batches, and its other callbacks, in a list that the test holds."""

    batch = Batch(3, within=1.0)

    def __init__(self, heard: list[Any]) -> None:
        self.heard = heard

    def handle_batch(self, messages: Sequence[Any]) -> Any:
        self.heard.append(list(messages))
        if "fail" in messages:
            raise Failed("on purpose")

    def handle_call(self, request: Any, caller: Caller) -> object:
        if callable(request):
            return request(self)
        self.heard.append(request)
        return request

    def handle_event(self, event: Published) -> None:
        self.heard.append(event.message)

    def handle_log(self, record: LogRecord) -> None:
        self.heard.append(record.event)

    @exposed
    def note(self, text: str) -> None:
        self.heard.append(text)


class AsyncWriter(Writer):
    async def handle_batch(self, messages: Sequence[Any]) -> None:
        await trio.lowlevel.checkpoint()
        super().handle_batch(messages)


def send_all(node: Node, to: Any, *messages: object) -> None:
    for message in messages:
        node.send(to, message)


@pytest.mark.parametrize("writer", [Writer, AsyncWriter])
async def test_an_actor_gets_full_batches_and_the_rest_when_its_time_is_over(
    autojump_clock: MockClock, writer: type[Writer]
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(writer, heard)

        send_all(node, pid, *range(7))
        await wait_all_tasks_blocked()
        before = list(heard)
        await trio.sleep(0.99)
        still = list(heard)
        await trio.sleep(0.02)

        assert before == still == [[0, 1, 2], [3, 4, 5]]
        assert heard == [[0, 1, 2], [3, 4, 5], [6]]
        assert node.process_info(pid).messages_in == 7


async def test_a_batch_waits_for_messages_from_its_first_message_on(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Writer, heard)

        node.send(pid, 1)
        await trio.sleep(0.6)
        node.send(pid, 2)
        await trio.sleep(0.6)

        assert heard == [[1, 2]]


async def test_a_batch_without_a_time_takes_the_messages_that_are_there(
    autojump_clock: MockClock,
) -> None:
    class Prompt(Writer):
        batch = Batch(3)

    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Prompt, heard)

        send_all(node, pid, 1, 2, 3, 4)
        await wait_all_tasks_blocked()

        assert heard == [[1, 2, 3], [4]]


def call(node: Node, writer: Any) -> Any:
    return node.call(writer, "next")


async def cast_next(node: Node, writer: Any) -> None:
    node.send(writer, cast(Writer.note, "next"))


async def publish_next(node: Node, writer: Any) -> None:
    node.publish("news", "next")


async def log_next(node: Node, writer: Any) -> None:
    node.add_logger(writer, "warning")
    node.log.warning("next")


@pytest.mark.parametrize("follow", [call, cast_next, publish_next, log_next])
async def test_another_envelope_ends_the_wait_and_comes_after_the_batch(
    autojump_clock: MockClock, follow: Callable[[Node, Any], Any]
) -> None:
    heard: list[Any] = []
    async with running_node(log_output="none") as node:
        pid = await node.spawn(Writer, heard)
        node.open_topic("news")
        await node.call(pid, lambda me: me.subscribe("news"))
        send_all(node, pid, 1, 2)
        await wait_all_tasks_blocked()

        await follow(node, pid)
        await wait_all_tasks_blocked()

        assert heard == [[1, 2], "next"]


async def test_a_hand_over_waits_for_the_batch(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        kernel, process = kernel_of(node), process_of(node, await node.spawn(Writer, heard))
        send_all(node, process.id, 1, 2)
        await wait_all_tasks_blocked()

        # As a hand-over waits for the messages before it.
        await kernel.calls.ask(
            kernel.pid, process, process.id, Lane.MAIN, FENCE, "fence", None, None
        )

        assert heard == [[1, 2]]


async def test_a_call_behind_queued_messages_comes_after_them(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Writer, heard)

        send_all(node, pid, 1, 2)
        await node.call(pid, "next")

        assert heard == [[1, 2], "next"]


@pytest.mark.parametrize("order", [None, abs], ids=["plain", "ordered"])
async def test_a_message_with_a_priority_waits_for_no_others(
    autojump_clock: MockClock, order: Callable[[Any], Any] | None
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Writer, heard, mailbox_size=10, order=order)

        node.send(pid, 1, priority=Priority.HIGH)
        await wait_all_tasks_blocked()
        node.send(pid, 2)
        await wait_all_tasks_blocked()
        node.send(pid, 3, priority=Priority.MAX)
        await wait_all_tasks_blocked()

        assert heard == [[1], [2], [3]]


async def test_the_notice_of_an_end_comes_at_once_behind_the_messages_of_the_process(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        writer, puppet = await node.spawn(Writer, heard), await node.spawn(Puppet)
        await node.call(writer, lambda me: me.monitor(puppet))

        def end(me: Puppet) -> None:
            send_all(node, writer, 1)
            me.stop()

        await node.call(puppet, end)
        await wait_all_tasks_blocked()

        [first, [notice]] = heard
        assert first == [1]
        assert isinstance(notice, Down)


async def test_an_inspection_shows_the_batch_and_does_not_end_its_wait(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid, plain = await node.spawn(Writer, heard), await node.spawn(Actor)
        send_all(node, pid, 1, 2)
        await wait_all_tasks_blocked()

        told, other = await node.inspect(pid), await node.inspect(plain)

        assert told == {"batch": "2 of 3"}
        assert other == {}
        assert node.process_info(pid).lanes["postponed"] == 2
        assert "postponed" not in node.process_info(plain).lanes
        assert heard == []
        await trio.sleep(1.5)
        assert heard == [[1, 2]]
        assert await node.inspect(pid) == {"batch": "0 of 3"}


async def test_a_stop_comes_after_the_batch_that_has_begun(autojump_clock: MockClock) -> None:
    heard: list[Any] = []

    class Closing(Writer):
        def terminate(self, reason: Reason) -> None:
            self.heard.append(reason)

    async with running_node() as node:
        pid = await node.spawn(Closing, heard)
        send_all(node, pid, 1, 2)
        await wait_all_tasks_blocked()

        node.send_exit(pid)
        await node.wait_ended(pid)

        assert heard == [[1, 2], Shutdown()]
        assert node.dead_letters() == []


async def test_a_killed_process_leaves_its_batch_to_the_dead_letters(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Writer, heard)
        process = process_of(node, pid)
        send_all(node, pid, 1, "two")
        await wait_all_tasks_blocked()

        node.kill(pid)
        await process.wait_gone()

        assert heard == []
        assert process.reason == Killed()
        assert [letter.message_type for letter in node.dead_letters()] == ["int", "str"]
        assert process.handled == 1


async def test_an_inspection_during_the_wait_fails_with_a_killed_process(
    autojump_clock: MockClock,
) -> None:
    class Slow(Writer):
        async def handle_inspect(self, *items: str) -> dict[str, str]:
            self.heard.append("inspected")
            await trio.sleep_forever()
            return {}

    heard: list[Any] = []
    async with running_node() as node, trio.open_nursery() as nursery:
        pid = await node.spawn(Slow, heard)
        node.send(pid, 1)
        await wait_all_tasks_blocked()

        async def inspect() -> None:
            with pytest.raises(TargetDownError):
                await node.inspect(pid, timeout=5.0)
            heard.append("down")

        nursery.start_soon(inspect)
        await wait_all_tasks_blocked()
        node.kill(pid)
        await wait_all_tasks_blocked()

        assert heard == ["inspected", "down"]


async def test_a_crash_loses_the_batch_in_progress_and_nothing_else(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        await node.supervise([ChildSpec("writer", Writer, heard, mailbox=Fate.KEEP)])

        send_all(node, "writer", 1, "fail", 2, 3, 4)
        await trio.sleep(2.0)

        assert heard == [[1, "fail", 2], [3, 4]]
        assert node.dead_letters() == []


async def test_a_crash_is_reported_with_the_callback_and_the_first_message(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        pid = await node.spawn(Writer, [])
        process = process_of(node, pid)

        send_all(node, pid, "fail", 2, 3)
        await wait_all_tasks_blocked()

        assert isinstance(process.reason, Crashed)
        [crash] = node.crashes()
        assert (crash.callback, crash.message_type) == ("handle_batch", "str")


async def test_a_suspended_actor_takes_no_messages(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Writer, heard)
        node.send(pid, 1)
        await wait_all_tasks_blocked()

        await node.suspend(pid)
        send_all(node, pid, 2, 3, 4)
        await trio.sleep(5.0)
        before = list(heard)
        await node.resume(pid)
        await wait_all_tasks_blocked()

        assert before == [[1]]
        assert heard == [[1], [2, 3, 4]]


async def test_an_upgrade_comes_after_the_batch_and_may_end_or_begin_batches(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        supervisor = await node.supervise([ChildSpec("writer", Writer, heard)])
        send_all(node, "writer", 1, 2)
        await wait_all_tasks_blocked()

        for behaviour in (Recorder, Writer):
            await supervisor.upgrade_child("writer", behaviour, heard)
            send_all(node, "writer", 3, 4)
            await trio.sleep(2.0)

        assert heard == [[1, 2], 3, 4, [3, 4]]


async def test_after_an_upgrade_to_batches_a_priority_still_waits_for_no_others(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []
    spec = ChildSpec("writer", Recorder, heard, mailbox_size=1, overflow=Overflow.WAIT)
    async with running_node() as node, trio.open_nursery() as nursery:
        supervisor = await node.supervise([spec])
        await node.suspend("writer")
        node.send("writer", 1)
        nursery.start_soon(node.send_wait, "writer", 2)
        await wait_all_tasks_blocked()

        await supervisor.upgrade_child("writer", Writer, heard)
        node.send("writer", 3, priority=Priority.HIGH)
        await node.resume("writer")
        await wait_all_tasks_blocked()
        before = list(heard)
        await trio.sleep(2.0)

        assert before == [[3]]
        assert heard == [[3], [1, 2]]


async def test_a_callback_that_calls_handle_message_handles_the_given_message_at_once(
    autojump_clock: MockClock,
) -> None:
    class Forwarding(Writer):
        async def deliver(self, message: object) -> None:
            handling = self.handle_message(message, self.pid)
            assert handling is not None
            await handling

        async def init(self) -> None:
            await self.deliver("in init")

        async def handle_call(self, request: Any, caller: Caller) -> object:
            await self.deliver("other")
            await self.deliver(request)
            return "answer"

        async def handle_batch(self, messages: Sequence[Any]) -> None:
            self.heard.append(list(messages))
            if messages[0] == "again":
                await self.deliver("once more")

        @exposed
        async def take(self, text: str) -> None:
            await self.deliver(text)

    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Forwarding, heard)

        answer = await node.call(pid, "request", timeout=0.5)
        node.send(pid, cast(Forwarding.take, "noted"))
        await wait_all_tasks_blocked()
        node.send(pid, "again")
        await trio.sleep(2.0)

        assert answer == "answer"
        assert heard == [
            *(["in init"], ["other"], ["request"], ["noted"]),
            *(["again"], ["once more"]),
        ]


async def test_senders_that_wait_for_room_fill_the_batch(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Writer, heard, mailbox_size=1, overflow=Overflow.WAIT)

        with trio.fail_after(0.5):
            for number in range(6):
                await node.send_wait(pid, number)
        await wait_all_tasks_blocked()

        assert heard == [[0, 1, 2], [3, 4, 5]]


async def test_an_order_holds_for_the_messages_of_a_batch(autojump_clock: MockClock) -> None:
    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Writer, heard, mailbox_size=10, order=abs)

        send_all(node, pid, 5, 4, 3, 2, 1, 0)
        await wait_all_tasks_blocked()

        assert heard == [[0, 1, 2], [3, 4, 5]]


async def test_an_actor_with_full_batches_lets_other_tasks_run() -> None:
    """Eight messages a batch: the message loop reads its clock only at every eighth message."""

    class Endless(Writer):
        batch = Batch(8, within=1.0)

        def handle_batch(self, messages: Sequence[Any]) -> None:
            self.heard.append(messages)
            if len(self.heard) < 1000:
                send_all(self.node, self.pid, *messages)

    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Endless, heard)
        send_all(node, pid, *range(8))

        for _ in range(5):
            await trio.lowlevel.checkpoint()

        assert 0 < len(heard) < 1000


async def test_an_observer_sees_each_message(autojump_clock: MockClock) -> None:
    seen: list[object] = []

    def observe(sight: Any) -> None:
        if type(sight).__name__ == "Delivered":
            seen.append(sight.message)

    async with running_node(observer=observe) as node:
        pid = await node.spawn(Writer, [])

        send_all(node, pid, 1, 2, 3)
        await wait_all_tasks_blocked()

        assert seen == [1, 2, 3]


async def test_a_thread_handles_batches_and_loses_none_that_it_has_not_begun() -> None:
    began, may_end = trio.Event(), trio.Event()
    heard: list[Any] = []

    class Waits(Writer):
        def handle_batch(self, messages: Sequence[Any]) -> None:
            trio.from_thread.run_sync(began.set, trio_token=token)
            trio.from_thread.run(may_end.wait, trio_token=token)
            super().handle_batch(messages)

    token = trio.lowlevel.current_trio_token()
    async with running_node() as node:
        first = await node.spawn(Waits, heard, dispatcher=Threads("pod"))
        other = await node.spawn(Writer, heard, dispatcher=Threads("pod"))
        process = process_of(node, other)
        send_all(node, first, 1, 2, 3)
        await began.wait()
        send_all(node, other, 4, "five", 6.0)
        await wait_all_tasks_blocked()

        node.kill(other)
        await process.wait_gone()
        may_end.set()
        assert await node.call(first, lambda me: list(me.heard)) == [[1, 2, 3]]

        letters = [letter.message_type for letter in node.dead_letters()]
        assert letters == ["int", "str", "float"]
        assert process.handled == 0


async def test_a_watch_shows_the_messages_of_each_batch(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        pid = await node.spawn(Writer, [])
        async with node.trace(pid, contents=True, limit=2) as trace:
            send_all(node, pid, 1, 2, 3, 4, 5, 6)
            entries = [entry async for entry in trace]

        assert [(entry.callback, entry.message) for entry in entries] == [
            ("handle_batch", "[1, 2, 3]"),
            ("handle_batch", "[4, 5, 6]"),
        ]


async def test_a_subclass_with_idle_time_and_methods_keeps_them(
    autojump_clock: MockClock,
) -> None:
    class Tired(Writer):
        def init(self) -> None:
            self.set_idle_timeout(5.0)

        def handle_idle(self) -> None:
            self.heard.append("idle")

    heard: list[Any] = []
    async with running_node() as node:
        pid = await node.spawn(Tired, heard)

        await trio.sleep(4.5)
        send_all(node, pid, 1)
        await trio.sleep(7.0)

        assert heard == [[1], "idle"]


async def test_alone_delivers_a_message_as_a_batch() -> None:
    alone = Alone(Writer, [])

    await alone.message(1)

    assert alone.behaviour.heard == [[1]]


def without_batch() -> type[Actor]:
    class Half(Actor):
        def handle_batch(self, messages: Sequence[Any]) -> None:
            """Never called."""

    return Half


def without_callback() -> type[Actor]:
    class Half(Actor):
        batch = Batch(10, 0.1)

    return Half


def with_both() -> type[Actor]:
    class Both(Actor):
        batch = Batch(10, 0.1)

        def handle_message(self, message: Any, sender: Any) -> None:
            """Never called."""

        def handle_batch(self, messages: Sequence[Any]) -> None:
            """Never called."""

    return Both


@pytest.mark.parametrize(
    "make, told",
    [
        (without_batch, "batch = Batch"),
        (without_callback, "def handle_batch"),
        (with_both, "handle_batch alone"),
    ],
)
async def test_a_class_with_a_part_of_batches_is_refused(
    make: Callable[[], type[Actor]], told: str
) -> None:
    async with running_node() as node:
        with pytest.raises(BehaviourError, match=told):
            await node.spawn(make())


@pytest.mark.parametrize("size, within", [(0, 1.0), (1.5, 1.0), (1, -1.0)])
def test_a_batch_has_a_size_and_a_time(size: Any, within: float) -> None:
    with pytest.raises(BadInputError, match=r"^(size|within)"):
        Batch(size, within)
