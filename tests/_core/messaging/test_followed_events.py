"""Subscriptions that follow the name of an event when its producer ends, also on another node."""

from typing import Any

import pytest
import trio

from ergo_py import BadInputError, Down, EventName, Published
from ergo_py.network import Memory, NetworkError
from tests.actors import Puppet
from tests.support import kernel_of, running_node

NEWS = EventName("news", "b@test")


class Producer(Puppet):
    """Publishes a first message as soon as it has registered the event."""

    def __init__(self, first: object) -> None:
        super().__init__()
        self.first = first

    async def init(self) -> None:
        self.register_event("news", buffer=1)
        self.publish("news", self.first)


class Reader(Puppet):
    def handle_event(self, event: Published) -> None:
        self.heard.append(event.message)


def refuse_to_link_and_follow(me: Any) -> None:
    with pytest.raises(BadInputError, match="follow"):
        me.subscribe("news", link=True, follow=True)


def follow(me: Any) -> Any:
    return me.subscribe(NEWS, follow=True)


async def end(node: Any, pid: Any) -> None:
    """Kill a process, and wait until its event has ended."""
    node.kill(pid)
    await trio.sleep(1)


async def test_a_stream_goes_on_with_the_next_event_of_its_name(autojump_clock: Any) -> None:
    async with running_node() as node:
        stream = node.events("news", follow=True)
        for number in (1, 2):
            # Each producer publishes before any other process has had a turn.
            producer = await node.spawn(Producer, number)
            assert node.events()["news"] == 1
            await end(node, producer)
        node.open_topic("news")
        node.publish("news", 3)
        heard = [(await anext(stream)).message for _ in range(3)]
        stream.close()
        await trio.sleep(1)
        assert node.events()["news"] == 0

    assert heard == [1, 2, 3]
    assert "shut" in str(stream.reason)


async def test_a_process_that_follows_gets_no_down_and_may_leave_at_any_time(
    autojump_clock: Any,
) -> None:
    async with running_node() as node:
        reader, other = await node.spawn(Reader), await node.spawn(Reader)
        await node.call(other, refuse_to_link_and_follow)
        assert await node.call(reader, lambda me: me.subscribe("news", follow=True)) == ()
        # A monitor of the missing event is told, and the follower stays.
        await node.call(other, lambda me: me.monitor(EventName("news")))
        await end(node, await node.spawn(Producer, 1))
        await end(node, await node.spawn(Producer, 2))
        await node.call(reader, lambda me: me.unsubscribe("news"))
        await node.spawn(Producer, 3)
        await trio.sleep(1)

        assert await node.call(reader, "all") == [1, 2]
        assert [type(message) for message in await node.call(other, "all")] == [Down]


async def test_a_follower_that_ends_is_forgotten(autojump_clock: Any) -> None:
    async with running_node() as node:
        reader = await node.spawn(Reader)
        await node.call(reader, lambda me: me.subscribe("news", follow=True))
        await end(node, reader)
        await node.spawn(Producer, 1)

        assert node.events()["news"] == 0


async def test_an_event_of_another_node_is_followed_through_ends_and_starts(
    autojump_clock: Any,
) -> None:
    network = Memory()
    async with running_node("a@test", network=network) as a:
        stream = a.events(NEWS, follow=True)
        heard: list[object] = []
        for start in range(2):  # the node is missing at first, and ends in between
            async with running_node("b@test", network=network) as b:
                for number in range(2):
                    producer = await b.spawn(Producer, (start, number))
                    heard.append((await anext(stream)).message)
                    await end(b, producer)

    assert heard == [(0, 0), (0, 1), (1, 0), (1, 1)]


async def test_kept_publications_come_once_to_each_follower(autojump_clock: Any) -> None:
    network = Memory()
    async with (
        running_node("a@test", network=network) as a,
        running_node("b@test", network=network) as b,
    ):
        first, second = await a.spawn(Reader), await a.spawn(Reader)
        await a.call(first, follow)
        await trio.sleep(8)
        producer = await b.spawn(Producer, "kept")
        await a.call(second, follow)
        await trio.sleep(0.01)
        await b.call(producer, lambda me: me.publish("news", "next"))
        await trio.sleep(20)

        assert await a.call(first, "all") == await a.call(second, "all") == ["kept", "next"]


@pytest.mark.parametrize("others", [0, 1])
async def test_a_process_that_leaves_and_follows_again_subscribes_once(
    others: int, autojump_clock: Any
) -> None:
    network = Memory()
    async with (
        running_node("a@test", network=network) as a,
        running_node("b@test", network=network) as b,
    ):
        reader = await a.spawn(Reader)
        await a.call(reader, follow)
        for _ in range(others):
            await a.call(await a.spawn(Reader), follow)
        await trio.sleep(8)
        await a.call(reader, lambda me: me.unsubscribe(NEWS))
        await b.spawn(Producer, "kept")
        await a.call(reader, follow)
        await trio.sleep(20)

        assert await a.call(reader, "all") == ["kept"]
        for process in a.processes():
            await end(a, process)
        assert kernel_of(a).links.away == {}


async def test_tries_get_rarer_and_begin_again_after_an_event_that_has_lasted(
    autojump_clock: Any,
) -> None:
    network, heard = Memory(), list[Any]()
    async with (
        running_node("a@test", network=network) as a,
        running_node("b@test", network=network) as b,
    ):
        reader = await a.spawn(Reader, heard)
        await a.call(reader, follow)
        # It tries after 0.1, 0.2, 0.4, 0.8, 1.6 and 3.2 seconds, and then each 5 seconds.
        await trio.sleep(8)
        producer = await b.spawn(Producer, 1)
        await trio.sleep(2.5)
        assert heard == []
        await trio.sleep(1.5)
        assert heard == [1]
        await trio.sleep(10)
        b.kill(producer)
        await trio.sleep(0.01)
        await b.spawn(Producer, 2)
        await trio.sleep(0.5)

        assert heard == [1, 2]


async def test_an_end_and_a_new_subscriber_may_cross_on_their_way(autojump_clock: Any) -> None:
    network = Memory()
    async with (
        running_node("a@test", network=network) as a,
        running_node("b@test", network=network) as b,
    ):
        b.open_topic("news")
        streams = [a.events(NEWS, follow=True)]
        await trio.sleep(1)
        # Neither node has heard of the other's act.
        b.close_topic("news")
        b.open_topic("news")
        streams.append(a.events(NEWS, follow=True))
        heard: list[object] = []
        for number in range(2):
            await trio.sleep(8)
            b.publish("news", number)
            for stream in streams:
                with trio.fail_after(8):
                    heard.append((await anext(stream)).message)
            b.close_topic("news")
            b.open_topic("news")

    assert heard == [0, 0, 1, 1]


async def test_a_network_that_refuses_is_tried_again(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise NetworkError("not now")

    network = Memory()
    async with (
        running_node("a@test", network=network) as a,
        running_node("b@test", network=network) as b,
    ):
        stream = a.events(NEWS, follow=True)
        await trio.sleep(1)
        with monkeypatch.context() as patched:
            patched.setattr(kernel_of(a).router.remote, "watch", refuse)
            await trio.sleep(20)
        await b.spawn(Producer, "kept")
        with trio.fail_after(8):
            assert (await anext(stream)).message == "kept"
