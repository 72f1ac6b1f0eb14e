"""The observer: what it sees, and that it disturbs nothing."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    Actor,
    BadInputError,
    Delivered,
    EventName,
    InitError,
    Killed,
    Overflow,
    Sent,
    Shutdown,
    Sight,
    Spawned,
    Stopped,
    open_node,
)
from ergo_py._core.calls import Calls
from ergo_py._core.ids import Target
from ergo_py._core.router import Router
from tests.support import Failed, Puppet, Recorder, running_node


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


async def test_what_a_process_sends_to_another_is_seen(autojump_clock: MockClock) -> None:
    seen: list[Sight] = []
    async with running_node(observer=seen.append) as node:
        one, other = await node.spawn(Puppet), await node.spawn(Recorder)
        seen.clear()

        await node.call(one, lambda me: me.send(other, "hello"))
        await node.call(one, lambda me: me.call(other, "all"))

        assert of(seen, Sent)[1::2] == [Sent(one, other, "hello"), Sent(one, other, "all")]
        assert [sight for sight in of(seen, Delivered) if isinstance(sight, Delivered) and sight.pid == other] == [
            Delivered(other, one, "hello"),
            Delivered(other, one, "all"),
        ]


async def test_a_message_to_nobody_is_seen_to_be_sent_and_not_to_be_delivered(autojump_clock: MockClock) -> None:
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

        assert sorted(sight.message for sight in of(seen, Sent) if isinstance(sight, Sent)) == [0, 1]
        assert len(of(seen, Delivered)) == 2


async def test_what_a_thread_sends_is_seen_once_and_on_the_loop() -> None:
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


async def test_a_publication_is_seen_when_published_and_at_each_subscriber(autojump_clock: MockClock) -> None:
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
        assert sorted(sight.pid for sight in of(seen, Delivered)[1:] if isinstance(sight, Delivered)) == subscribers


async def test_an_observer_that_raises_is_reported_once_and_disturbs_nobody(autojump_clock: MockClock) -> None:
    def fail(sight: Sight) -> None:
        if isinstance(sight, Sent):
            raise Failed

    records: list[Any] = []

    class Keeper(Recorder):
        def handle_log(self, record: Any) -> None:
            records.append(record)

    async with running_node(observer=fail) as node:
        node.add_logger(await node.spawn(Keeper), "error")
        pid = await node.spawn(Recorder)

        node.send(pid, "hello")

        assert await node.call(pid, "all") == ["hello"]
        await wait_all_tasks_blocked()
        assert [record.event for record in records] == ["the observer raised; this is said once"]


async def test_without_an_observer_nothing_is_in_the_way(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        assert type(node._router) is Router
        assert type(node._kernel.calls) is Calls


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(BadInputError, match="a function that takes"):
        open_node(observer="print")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
