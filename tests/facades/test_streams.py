"""Streams of a node for other code: they end with their node, and have the values of theirs."""

import asyncio
from typing import Any

import pytest

from ergo_py import Unregistered
from ergo_py.aio import open_node as open_asyncio_node
from ergo_py.blocking import open_node as open_blocking_node
from ergo_py.facades.streams import BlockingEvents, BlockingStream
from ergo_py.streams.events import EventStream
from ergo_py.tasks.stream import MapStream


class OwnError(Exception):
    """An error of the program."""


def public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def test_a_stream_has_the_values_of_the_stream_of_the_node() -> None:
    assert public(EventStream) <= public(BlockingEvents)
    assert public(MapStream) - {"aclose"} <= public(BlockingStream)


@pytest.mark.parametrize("make", ["map_stream", "events"])
def test_a_stream_of_synchronous_code_ends_with_its_node(make: str) -> None:
    node = open_blocking_node(log_output="none", watchdog=None)
    node.open_topic("news")
    stream: Any = node.map_stream(abs, range(3)) if make == "map_stream" else node.events("news")
    if make == "map_stream":
        next(stream)

    with pytest.raises(OwnError), stream:
        node.close()
        raise OwnError


@pytest.mark.parametrize("make", ["map_stream", "events"])
def test_a_stream_of_asyncio_code_ends_with_its_node(make: str) -> None:
    async def main() -> None:
        async with open_asyncio_node(log_output="none", watchdog=None) as node:
            await node.open_topic("news")
            stream: Any = (
                node.map_stream(abs, range(3))
                if make == "map_stream"
                else await node.events("news")
            )
            if make == "map_stream":
                await anext(stream)
        with pytest.raises(OwnError):
            async with stream:
                raise OwnError

    asyncio.run(main())


def test_synchronous_code_sees_how_many_publications_were_dropped_and_why_they_ended() -> None:
    with open_blocking_node(log_output="none", watchdog=None) as node:
        node.open_topic("news")
        with node.events("news", max_waiting=2) as stream:
            for number in range(5):
                node.publish("news", number)
            assert next(stream).message == 3
            assert (stream.dropped, stream.reason) == (3, None)
            node.close_topic("news")
            assert [each.message for each in stream] == [4]
            assert stream.reason == Unregistered()


def test_asyncio_code_sees_how_many_publications_were_dropped() -> None:
    async def main() -> None:
        async with open_asyncio_node(log_output="none", watchdog=None) as node:
            await node.open_topic("news")
            async with await node.events("news", max_waiting=2) as stream:
                for number in range(5):
                    await node.publish("news", number)
                assert (await anext(stream)).message == 3
                assert (stream.dropped, stream.reason) == (3, None)

    asyncio.run(main())
