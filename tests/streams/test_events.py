"""Events as iterators, topics of the node, and publishing from ordinary code and threads."""

import gc
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    Actor,
    BadInputError,
    Down,
    EventName,
    NodeStoppedError,
    NotAllowedError,
    Published,
    Unregistered,
)
from ergo_py._core.vocabulary.errors import EventTakenError, EventUnknownError
from ergo_py.blocking import handle
from tests.actors import Puppet
from tests.support import running_node


class Owner(Puppet):
    async def init(self) -> None:
        self.token = self.register_event("owned", buffer=2)


async def test_a_stream_has_recent_publications_first_and_then_all_others() -> None:
    async with running_node() as node:
        node.open_topic("prices", buffer=2)
        for price in (1, 2, 3):
            node.publish("prices", price)
        async with node.events("prices") as prices:
            assert node.events()["prices"] == 1
            assert node.publish("prices", 4) == 1
            got = [(await anext(prices)).message for _ in range(3)]
        assert node.events()["prices"] == 0
        assert node.processes() == []
        with pytest.raises(StopAsyncIteration):
            await anext(prices)

    assert got == [2, 3, 4]


async def test_topics_are_open_to_processes_and_ordinary_code() -> None:
    class Reader(Puppet):
        async def init(self) -> None:
            self.subscribe("news")

        def handle_event(self, event: Published) -> None:
            self.heard.append(event.message)

    async with running_node() as node:
        with pytest.raises(EventUnknownError):
            node.publish("news", 0)
        node.open_topic("news")
        node.open_topic("news", buffer=5)  # it exists, and stays as it is
        reader = await node.spawn(Reader)
        node.publish("news", 1)
        await node.call(reader, lambda me: me.publish("news", 2))
        await wait_all_tasks_blocked()
        assert await node.call(reader, "all") == [1, 2]
        node.close_topic("news")
        await wait_all_tasks_blocked()
        heard = await node.call(reader, "all")
        with pytest.raises(EventUnknownError):
            node.close_topic("news")

    assert heard[-1] == Down(EventName("news", "test@localhost"), Unregistered())


async def test_a_topic_does_not_replace_the_event_of_a_process() -> None:
    async with running_node() as node:
        owner = await node.spawn(Owner)
        with pytest.raises(EventTakenError):
            node.open_topic("owned")
        with pytest.raises(NotAllowedError, match="no topic of the node"):
            node.close_topic("owned")
        with pytest.raises(NotAllowedError, match="no topic of the node"):
            node.close_topic("ergo.dead_letter")
        with pytest.raises(NotAllowedError, match="token"):
            node.publish("owned", 1)
        token = await node.call(owner, lambda me: me.token)
        assert node.publish("owned", 1, token=token) == 0


async def test_a_stream_ends_with_its_event_and_says_why() -> None:
    async with running_node() as node:
        owner = await node.spawn(Owner)
        stream = node.events("owned")
        await node.call(owner, lambda me: me.publish("owned", 1))
        node.kill(owner)
        got = [event.message async for event in stream]
        while node.processes():
            await trio.lowlevel.checkpoint()
        with pytest.raises(EventUnknownError):
            node.events("owned")

    assert got == [1]
    assert "killed" in str(stream.reason)


async def test_a_reader_that_waits_is_woken_when_the_node_stops() -> None:
    async with running_node() as node:
        node.open_topic("news")
        stream = node.events("news")
    assert [event async for event in stream] == []
    stream.close()
    with pytest.raises(NodeStoppedError):
        node.events("news")


async def test_a_stream_has_the_publications_before_the_end_of_its_event() -> None:
    async with running_node() as node:
        node.open_topic("news")
        stream = node.events("news")
        for number in range(3):
            node.publish("news", number)
        node.close_topic("news")  # in the same turn: a failure overtakes what waits

        assert [event.message async for event in stream] == [0, 1, 2]
        assert stream.reason == Unregistered()


async def test_a_slow_reader_loses_the_oldest_publications_which_are_counted() -> None:
    async with running_node() as node:
        node.open_topic("news")
        stream = node.events("news", max_waiting=3)
        for number in range(10):
            node.publish("news", number)
        await wait_all_tasks_blocked()
        got = [(await anext(stream)).message for _ in range(3)]

    assert got == [7, 8, 9]
    assert stream.dropped == 7


async def test_a_stream_that_is_dropped_or_left_unsubscribes() -> None:
    async with running_node() as node:
        node.open_topic("news", buffer=1)
        node.publish("news", 1)
        async for _ in node.events("news"):
            break
        gc.collect()
        while node.processes():
            await trio.lowlevel.checkpoint()

        assert node.events()["news"] == 0


async def test_events_of_the_node_can_be_read() -> None:
    async with running_node() as node, node.events("ergo.process_started") as started:
        pid = await node.spawn(Actor)
        while (event := await anext(started)).message != pid:
            pass

    assert event.event.name == "ergo.process_started"


async def test_a_topic_with_subscribers_is_no_event_of_the_node() -> None:
    async with running_node() as node:
        node.open_topic("news")
        stream = node.events("news")
        await node.spawn(Actor)
        node.send("missing", "a dead letter")
        await wait_all_tasks_blocked()
        stream.close()

        assert [event.message async for event in stream] == []


async def test_threads_publish_and_read() -> None:
    async with running_node() as node:
        blocking = handle(node)

        def work() -> list[Any]:
            blocking.open_topic("news")
            with blocking.events("news") as events:
                for number in range(5):
                    blocking.publish("news", number)
                got = [next(events).message for _ in range(5)]
            blocking.close_topic("news")
            return [*got, list(events)]

        assert await trio.to_thread.run_sync(work) == [0, 1, 2, 3, 4, []]
        assert blocking.events()["ergo.dead_letter"] == 0


@pytest.mark.parametrize("most", [0, -1, 1.5, "many"])
async def test_wrong_arguments_are_refused(most: Any) -> None:
    async with running_node() as node:
        node.open_topic("news")
        with pytest.raises(BadInputError, match="max_waiting"):
            node.events("news", max_waiting=most)
        with pytest.raises(BadInputError, match="buffer"):
            node.open_topic("other", buffer=-1)
        with pytest.raises(BadInputError):
            node.open_topic("")
        with pytest.raises(EventUnknownError, match=r"open_topic.*did you mean 'news'"):
            node.publish("new", 1)
        assert node.processes() == []
