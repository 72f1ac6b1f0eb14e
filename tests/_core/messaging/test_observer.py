"""The observer sees starts, ends, sends and deliveries, and disturbs none of them."""

import asyncio
import json
import queue
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    Actor,
    BadInputError,
    Custom,
    EventName,
    InitError,
    Killed,
    MetaProcess,
    Overflow,
    Shutdown,
    TargetDownError,
    Threads,
    open_node,
)
from ergo_py._core.messaging.calls import Calls
from ergo_py._core.messaging.observer import ChangedMessages
from ergo_py._core.messaging.router import Router
from ergo_py._core.vocabulary.ids import PID, Target
from ergo_py.info import Delivered, Dispatcher, Sent, Sight, Spawned, Stopped
from tests.actors import Failed, LogKeeper, Puppet, Recorder, Witness
from tests.meta.owner import eventually
from tests.support import kernel_of, router_of, running_node


class Hearing(Recorder):
    def init(self) -> None:
        self.subscribe("news")

    def handle_event(self, event: Any) -> None:
        self.heard.append(event.message)


def of(seen: list[Sight], *kinds: type) -> list[Sight]:
    return [sight for sight in seen if type(sight) in kinds]


async def test_an_observer_sees_starts_and_ends(autojump_clock: MockClock) -> None:
    seen: list[Sight] = []
    async with running_node(observer=seen.append) as node:
        parent = await node.spawn(Puppet, name="parent")
        child = await node.call(parent, lambda me: me.spawn(Recorder))

        node.kill(parent)
        await node.wait_ended(parent)

        assert of(seen, Spawned, Stopped) == [
            Spawned(parent, node.pid, "Puppet", "parent"),
            Spawned(child, parent, "Recorder", None),
            Stopped(child, Shutdown()),
            Stopped(parent, Killed()),
        ]


async def test_a_start_that_fails_is_neither_a_start_nor_an_end(autojump_clock: MockClock) -> None:
    class Broken(Actor):
        def init(self) -> None:
            raise Failed

    seen: list[Sight] = []
    async with running_node(observer=seen.append) as node:
        with pytest.raises(InitError):
            await node.spawn(Broken)

        assert seen == []


@pytest.mark.parametrize("behaviour", [Recorder, Puppet])
async def test_a_message_and_a_call_are_seen_when_sent_and_when_delivered(
    behaviour: type[Recorder | Puppet], autojump_clock: MockClock
) -> None:
    seen: list[Sight] = []
    async with running_node(observer=seen.append) as node:
        pid = await node.spawn(behaviour, name="one")
        await wait_all_tasks_blocked()

        node.send("one", "hello")
        before = of(seen, Sent, Delivered)
        await node.call(pid, "all")

        assert before == [Sent(node.pid, "one", "hello")]
        assert of(seen, Sent, Delivered) == [
            Sent(node.pid, "one", "hello"),
            Sent(node.pid, pid, "all"),
            Delivered(pid, node.pid, "hello"),
            Delivered(pid, node.pid, "all"),
        ]


async def test_an_observer_sees_messages_between_two_processes(autojump_clock: MockClock) -> None:
    seen: list[Sight] = []
    async with running_node(observer=seen.append) as node:
        one, other = await node.spawn(Puppet), await node.spawn(Recorder)
        seen.clear()

        await node.call(one, lambda me: me.send(other, "hello"))
        await node.call(one, lambda me: me.call(other, "all"))

        assert of(seen, Sent)[1::2] == [Sent(one, other, "hello"), Sent(one, other, "all")]
        assert [
            sight
            for sight in of(seen, Delivered)
            if isinstance(sight, Delivered) and sight.pid == other
        ] == [
            Delivered(other, one, "hello"),
            Delivered(other, one, "all"),
        ]


async def test_an_observer_sees_a_message_to_an_unknown_name_as_sent_and_not_delivered(
    autojump_clock: MockClock,
) -> None:
    seen: list[Sight] = []
    async with running_node(observer=seen.append) as node:
        node.send("nobody", "hello")

        assert seen == [Sent(node.pid, "nobody", "hello")]


async def test_a_message_that_waits_for_room_is_seen_once(autojump_clock: MockClock) -> None:
    seen: list[Sight] = []
    async with running_node(observer=seen.append) as node, trio.open_nursery() as nursery:
        pid = await node.spawn(Recorder, mailbox_size=1, overflow=Overflow.WAIT)

        for number in range(2):
            nursery.start_soon(node.send_wait, pid, number)
        await wait_all_tasks_blocked()

        assert sorted(sight.message for sight in of(seen, Sent) if isinstance(sight, Sent)) == [
            0,
            1,
        ]
        assert len(of(seen, Delivered)) == 2


async def test_an_observer_sees_the_sends_of_a_thread_once_and_on_the_loop() -> None:
    seen: list[tuple[Sight, object]] = []

    def observe(sight: Sight) -> None:
        seen.append((sight, trio.lowlevel.in_trio_run()))

    async with running_node(observer=observe) as node:
        pids = [await node.spawn(Recorder), await node.spawn(Recorder, mailbox_size=5)]

        targets: list[Target] = [*pids, "nobody"]
        for pid in targets:
            await trio.to_thread.run_sync(node.send, pid, "hello")
        await wait_all_tasks_blocked()

        assert [sight.to for sight, _ in seen if isinstance(sight, Sent)] == targets
        assert all(on_loop for _, on_loop in seen)


async def test_a_publication_is_seen_when_published_and_at_each_subscriber(
    autojump_clock: MockClock,
) -> None:
    seen: list[Sight] = []
    async with running_node(observer=seen.append) as node:
        producer = await node.spawn(Puppet)
        await node.call(producer, lambda me: me.register_event("news"))
        subscribers = [await node.spawn(Hearing) for _ in range(2)]
        seen.clear()

        await node.call(producer, lambda me: me.publish("news", "extra"))
        await wait_all_tasks_blocked()

        news = EventName("news", node.name)
        assert Sent(producer, news, "extra") in seen
        assert (
            sorted(sight.pid for sight in of(seen, Delivered)[1:] if isinstance(sight, Delivered))
            == subscribers
        )


class Device(MetaProcess):
    """Its reader sends a given message, and its handler sends an echo."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.told: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def start(self) -> None:
        while (message := self.told.get()) is not None:
            self.send(self.owner, message)

    def unblock(self) -> None:
        self.told.put(None)


class BlockingDevice(Device):
    def handle_message(self, message: Any, sender: Any) -> None:
        self.told.put(message)

    def handle_call(self, request: Any, caller: Any) -> object:
        return request


class AsyncDevice(Device):
    async def handle_message(self, message: Any, sender: Any) -> None:
        self.told.put(message)

    async def handle_call(self, request: Any, caller: Any) -> object:
        return request


@pytest.mark.parametrize("device", [BlockingDevice, AsyncDevice])
async def test_a_meta_process_is_seen_from_its_start_to_its_end(device: type[Device]) -> None:
    seen: list[Sight] = []
    async with running_node(observer=seen.append) as node:
        heard: list[Any] = []
        owner, receiver = await node.spawn(Puppet), await node.spawn(Recorder, heard)
        alias = await node.call(owner, lambda me: me.spawn_meta(device(receiver)))

        for number in range(5):
            node.send(alias, number)
        answer = await node.call(alias, "asked")
        await eventually(lambda: len(heard) == 5)
        node.send_exit(alias, "enough")
        await eventually(lambda: alias not in node.metas())

        assert answer == "asked"
        assert of(seen, Spawned, Stopped)[2:] == [
            Spawned(alias, owner, device.__qualname__, None),
            Stopped(alias, Custom("enough")),
        ]
        mine = [sight for sight in of(seen, Sent, Delivered) if alias in sight[:2]]
        assert [sight for sight in mine if sight[0] == alias and isinstance(sight, Delivered)] == [
            *(Delivered(alias, node.pid, number) for number in range(5)),
            Delivered(alias, node.pid, "asked"),
        ]
        assert [sight for sight in mine if isinstance(sight, Sent) and sight.sender == alias] == [
            Sent(alias, receiver, number) for number in range(5)
        ]
        assert [
            sight for sight in mine if isinstance(sight, Delivered) and sight.pid == receiver
        ] == [Delivered(receiver, alias, number) for number in range(5)]


async def test_a_meta_process_that_fails_to_start_is_not_seen(autojump_clock: MockClock) -> None:
    class Broken(Device):
        async def init(self) -> None:
            raise Failed

    seen: list[Sight] = []
    async with running_node(observer=seen.append) as node:
        owner = await node.spawn(Puppet)

        with pytest.raises(TargetDownError, match="InitError"):
            await node.call(owner, lambda me: me.spawn_meta(Broken(owner)))

        assert {sight[0] for sight in of(seen, Spawned, Stopped)} == {owner}


@pytest.mark.parametrize("where", [Threads(), Threads("workers", 2), Threads("pod")], ids=str)
async def test_an_observer_sees_a_process_with_a_thread_on_the_loop_and_in_order(
    where: Dispatcher,
) -> None:
    class Echo(Recorder):
        def handle_message(self, message: Any, sender: Any) -> None:
            self.send("receiver", message)

    seen: list[tuple[Sight, bool]] = []

    def observe(sight: Sight) -> None:
        seen.append((sight, trio.lowlevel.in_trio_run()))

    async with running_node(observer=observe) as node:
        receiver, echo = (
            await node.spawn(Recorder, name="receiver"),
            await node.spawn(Echo, dispatcher=where),
        )
        seen.clear()

        for number in range(3):
            node.send(echo, number)
        await eventually(lambda: len(seen) == 12)

        assert all(on_loop for _, on_loop in seen)
        assert [
            sight for sight, _ in seen if isinstance(sight, Delivered) and sight.pid == echo
        ] == [Delivered(echo, node.pid, number) for number in range(3)]
        assert [sight for sight, _ in seen if isinstance(sight, Sent) and sight.sender == echo] == [
            Sent(echo, "receiver", number) for number in range(3)
        ]
        assert [
            sight for sight, _ in seen if isinstance(sight, Delivered) and sight.pid == receiver
        ] == [Delivered(receiver, echo, number) for number in range(3)]


async def test_an_observer_still_sees_a_process_after_a_trace_and_a_suspension(
    autojump_clock: MockClock,
) -> None:
    seen: list[Sight] = []
    async with running_node(observer=seen.append) as node:
        pid = await node.spawn(Recorder)
        async with node.trace(pid, limit=1) as trace:
            node.send(pid, "traced")
            assert len([entry async for entry in trace]) == 1
        await node.suspend(pid)
        await node.resume(pid)
        seen.clear()

        node.send(pid, "afterwards")
        await node.call(pid, "all")

        assert of(seen, Delivered) == [
            Delivered(pid, node.pid, "afterwards"),
            Delivered(pid, node.pid, "all"),
        ]


async def test_an_observer_that_raises_is_reported_once_and_disturbs_no_delivery(
    autojump_clock: MockClock,
) -> None:
    def fail(sight: Sight) -> None:
        if isinstance(sight, Sent):
            raise Failed

    records: list[Any] = []

    async with running_node(observer=fail) as node:
        node.add_logger(await node.spawn(LogKeeper, records), "error")
        pid = await node.spawn(Recorder)

        node.send(pid, "hello")

        assert await node.call(pid, "all") == ["hello"]
        await wait_all_tasks_blocked()
        assert [record.event for record in records] == [
            "the observer raised; further errors are not logged"
        ]


async def test_a_node_without_an_observer_has_a_plain_router_and_plain_calls(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        assert type(router_of(node)) is Router
        assert type(kernel_of(node).calls) is Calls


def test_an_observer_that_is_no_function_is_refused() -> None:
    with pytest.raises(BadInputError, match="a function that takes"):
        open_node(observer="print")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt], ids=lambda one: one.__name__)
async def test_an_observer_that_raises_an_error_for_the_program_stops_the_node_in_order(
    autojump_clock: MockClock, error: type[BaseException]
) -> None:
    ends: list[Any] = []

    def observe(sight: Any) -> None:
        if ends == ["armed"]:
            raise error

    with pytest.raises(error):
        async with running_node(observer=observe) as node:
            pid = await node.spawn(Witness, ends, "ended")
            ends.append("armed")
            node.send(pid, "hello")
            await trio.sleep_forever()

    assert ends == ["armed", "ended"]


async def test_an_observer_that_raises_any_other_error_is_reported(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    def observe(sight: Any) -> None:
        raise asyncio.CancelledError

    async with running_node(observer=observe, log_output="json") as node:
        await node.spawn(Recorder)
        await wait_all_tasks_blocked()

        assert not node.stopping
    assert "the observer raised" in capsys.readouterr().err


async def test_a_message_that_changes_after_it_was_sent_is_reported_once(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Sight] = []
    options: Any = {"debug_shared_state": True, "log_output": "json", "observer": seen.append}
    async with running_node(**options) as node:
        pid = await node.spawn(Recorder)
        changed, sent_again, untouched = [1], {1}, (1, [2])
        for message in (changed, sent_again, untouched, len, lambda: 5, "text"):
            node.send(pid, message)
        changed.append(2)  # before the receiver has it
        await node.call(pid, "the messages are handled")
        for number in (2, 3):
            sent_again.add(number)
            node.send(pid, sent_again)
        await node.call(pid, "these, too")

    told = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert [text.partition(" has changed since it was sent")[0] for text in told] == [
        "a message of type list",
        "a message of type set",
    ]
    assert Sent(node.pid, pid, untouched) in seen


def test_few_messages_are_watched_for_changes() -> None:
    told: list[str] = []
    changes = ChangedMessages(told.append)
    pid = PID("demo@localhost", 7, 1)
    messages = [[number] for number in range(1001)]
    for message in messages:
        changes(Sent(pid, pid, message))
        message.append(0)

    changes(Delivered(pid, pid, messages[0]))
    assert told == []
    changes(Delivered(pid, pid, messages[1]))

    assert len(told) == 1
