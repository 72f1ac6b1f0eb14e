"""A channel between a producer and a reader: order, credit, the end from either side."""

import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py.tasks.channel import Channel


async def drain(channel: Channel[int], into: list[int]) -> None:
    while await channel.wait():
        into.append(channel.take())


async def test_values_come_in_order_and_then_the_end() -> None:
    channel, got = Channel[int](2), list[int]()

    channel.put(1)
    channel.put(2)
    channel.finish()
    await drain(channel, got)

    assert got == [1, 2]
    assert not await channel.wait()
    assert str(channel) == "0 waiting, 2 taken"


async def test_a_reader_sleeps_until_a_value_comes() -> None:
    channel, got = Channel[int](2), list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(drain, channel, got)
        for number in range(3):
            await wait_all_tasks_blocked()
            channel.put(number)
        await wait_all_tasks_blocked()
        assert got == [0, 1, 2]
        channel.finish()


async def test_two_readers_share_the_values_and_both_see_the_end() -> None:
    channel, left, right = Channel[int](2), list[int](), list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(drain, channel, left)
        nursery.start_soon(drain, channel, right)
        for number in range(4):
            await wait_all_tasks_blocked()
            channel.put(number)
        channel.finish()
    assert sorted(left + right) == [0, 1, 2, 3]


async def test_a_producer_waits_for_room_at_its_credit() -> None:
    channel, made = Channel[int](2), list[int]()

    async def produce() -> None:
        for number in range(5):
            await channel.wait_until(channel.has_room)
            channel.put(number)
            made.append(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce)
        await wait_all_tasks_blocked()
        assert made == [0, 1]
        assert channel.take() == 0
        await wait_all_tasks_blocked()
        assert made == [0, 1, 2]
        channel.take()
        channel.take()
        await wait_all_tasks_blocked()
    assert made == [0, 1, 2, 3, 4]


async def test_a_reader_that_waits_wakes_the_producer_that_waits_for_demand() -> None:
    channel = Channel[int](1)

    async def produce() -> None:
        await channel.wait_until(lambda: channel.was_asked)
        channel.put(7)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce)
        await wait_all_tasks_blocked()
        assert not len(channel)
        assert await channel.wait()
    assert channel.take() == 7


async def test_a_ring_lets_the_producer_check_its_own_condition() -> None:
    channel, may = Channel[int](1), list[bool]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.wait_until, lambda: bool(may))
        await wait_all_tasks_blocked()
        channel.ring()
        await wait_all_tasks_blocked()
        may.append(True)
        channel.ring()


async def test_the_newest_value_takes_the_place_of_the_oldest() -> None:
    channel = Channel[int](2)

    for number in range(5):
        channel.put_newest(number)

    assert [channel.take(), channel.take()] == [3, 4]
    assert channel.dropped == 3


async def test_a_closed_channel_drops_values_of_before_and_after() -> None:
    channel = Channel[int](2)

    channel.put(1)
    channel.close()
    channel.put(2)

    assert not await channel.wait()
    assert not len(channel)
    assert channel.has_room()
