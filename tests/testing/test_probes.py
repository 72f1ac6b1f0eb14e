"""Probes: the received messages, in order, and the text of a failed expectation."""

from dataclasses import dataclass
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ergo_py import (
    Down,
    Exit,
    NotAllowedError,
    Published,
    Reject,
    Request,
    Shutdown,
    TargetDownError,
)
from ergo_py.testing import Probe
from tests.actors import Puppet
from tests.support import running_node


@dataclass(frozen=True)
class Tick:
    number: int


@dataclass(frozen=True)
class Price(Request[int]):
    item: str


async def test_the_next_message_may_be_expected_by_type_by_value_or_by_a_function(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        probe = await Probe.start(node)
        for number in range(4):
            node.send(probe.pid, Tick(number))

        by_type = await probe.expect(Tick)
        by_value = await probe.expect(Tick(1))
        by_function = await probe.expect(lambda message: message.number == 2)
        by_union = await probe.expect(int | Tick)

    assert [by_type, by_value, by_function, by_union] == [Tick(0), Tick(1), Tick(2), Tick(3)]
    assert probe.messages == [Tick(0), Tick(1), Tick(2), Tick(3)]


async def test_expect_waits_for_a_later_message(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        probe = await Probe.start(node)
        node.send_after(5, probe.pid, "late")

        message = await probe.expect(str, timeout=6)
        moment = trio.current_time()

    assert (message, moment) == ("late", 5)


async def test_an_unexpected_message_fails_and_shows_the_received_messages(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        probe = await Probe.start(node)
        node.send(probe.pid, "hello")
        node.send(probe.pid, Tick(7))

        with pytest.raises(AssertionError) as failure:
            await probe.expect(Tick)

    text = str(failure.value)
    assert "expected a Tick, but the next message was 'hello'" in text
    assert f"read  'hello' from {node.pid}" in text
    assert "unread  Tick(number=7)" in text


async def test_a_missing_message_fails_after_the_timeout_and_shows_it(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        probe = await Probe.start(node)

        with pytest.raises(AssertionError) as failure:
            await probe.expect(Tick(1), timeout=3)
        moment = trio.current_time()

    assert moment == 3
    assert "expected Tick(number=1), but nothing came within 3 s" in str(failure.value)
    assert "nothing at all" in str(failure.value)


async def test_fish_skips_messages_that_do_not_match(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        probe = await Probe.start(node)
        for message in ("a", "b", Tick(1), "c"):
            node.send(probe.pid, message)

        caught = await probe.fish(Tick)
        following = await probe.expect(str)
        with pytest.raises(AssertionError, match="expected a Tick, but nothing came within 2 s"):
            await probe.fish(Tick, timeout=2)

    assert (caught, following) == (Tick(1), "c")


async def test_expect_none_waits_for_silence_and_counts_unread_messages(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        probe = await Probe.start(node)
        await probe.expect_none(2)
        node.send_after(5, probe.pid, "late")
        await probe.expect_none(4)

        with pytest.raises(AssertionError, match="expected nothing, but 'late' came"):
            await probe.expect_none(2)
        with pytest.raises(AssertionError, match="expected nothing, but 'late' came"):
            await probe.expect_none(0)
        await probe.expect_none(1, what=Tick)
        probe.clear()
        await probe.expect_none(1)

    assert probe.unread == []


async def test_expect_in_order_reads_messages_singly(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        probe = await Probe.start(node)
        for message in ("a", Tick(1), "c", "d"):
            node.send(probe.pid, message)

        found = await probe.expect_in_order("a", Tick, str)
        with pytest.raises(AssertionError, match="expected a Tick, number 1 of 2, but 'd' came"):
            await probe.expect_in_order(Tick, str)

    assert found == ["a", Tick(1), "c"]


async def test_expect_all_gives_each_message_to_the_pattern_that_needs_it(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        probe = await Probe.start(node)
        for message in (Tick(1), Tick(2), "x", "y"):
            node.send(probe.pid, message)

        # The type would take the first tick, which the value needs.
        found = await probe.expect_all("x", Tick, Tick(1))
        with pytest.raises(AssertionError, match="in any order a Tick, but 'y' came"):
            await probe.expect_all(Tick)

    assert found == ["x", Tick(2), Tick(1)]


async def test_calls_are_kept_and_answered_by_a_function(autojump_clock: MockClock) -> None:
    def answer(request: Price) -> int:
        if request.item == "moon":
            raise Reject(LookupError(request.item))
        return 12

    async with running_node() as node:
        probe = await Probe.start(node, answer=answer, name="shop")

        price = await node.call("shop", Price("tea"))
        with pytest.raises(LookupError):
            await node.call("shop", Price("moon"))

    assert price == 12
    assert probe.messages == [Price("tea"), Price("moon")]
    assert probe.received[0].caller is not None


async def test_calls_are_answered_by_hand_oldest_first_or_in_a_chosen_order(
    autojump_clock: MockClock,
) -> None:
    answers: dict[str, object] = {}

    async def ask(item: str) -> None:
        try:
            answers[item] = await node.call(probe.pid, Price(item))
        except LookupError as error:
            answers[item] = error

    async with running_node() as node, trio.open_nursery() as nursery:
        probe = await Probe.start(node)
        for item in ("a", "b", "c"):
            nursery.start_soon(ask, item)
            await probe.expect(Price(item))
        probe.reply(3, probe.waiting[2])
        error = LookupError("a")
        probe.reject(error)
        probe.reply(2)

        with pytest.raises(AssertionError, match="there is no call to answer"):
            probe.reply(4)

    assert answers == {"a": error, "b": 2, "c": 3}


async def test_a_call_that_a_probe_never_answered_ends_when_the_probe_stops(
    autojump_clock: MockClock,
) -> None:
    failures: list[TargetDownError] = []

    async def ask() -> None:
        try:
            await node.call(probe.pid, "anything", timeout=None)
        except TargetDownError as error:
            failures.append(error)

    async with running_node() as node, trio.open_nursery() as nursery:
        probe = await Probe.start(node)
        nursery.start_soon(ask)
        await probe.expect("anything")

        reason = await probe.stop()

    assert isinstance(reason, Shutdown)
    assert len(failures) == 1


async def test_a_probe_uses_verbs_and_gets_the_replies_as_messages(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as node:
        other = await node.spawn(Puppet, name="other")
        probe = await Probe.start(node)
        probe.send(other, "hi")
        heard = await probe.call(other, "what have you heard?")
        await probe.monitor(other)
        await probe.link("other")
        await probe.subscribe("ergo.process_ended")

        node.send_exit(other, Shutdown())
        came = await probe.expect_all(Down, Exit, Published)
        pid = await probe.do(lambda me: me.pid)

    assert heard == ["hi"]
    assert came[0].target == other
    assert pid == probe.pid


async def test_the_sender_is_known_after_a_message_was_read(autojump_clock: MockClock) -> None:
    async with running_node() as node:
        probe, other = await Probe.start(node), await Probe.start(node)
        with pytest.raises(NotAllowedError, match="expect"):
            probe.sender  # noqa: B018

        other.send(probe.pid, 1)
        node.send(probe.pid, 2)
        await probe.expect(1)

    senders: list[Any] = [probe.sender, *probe.senders]
    assert senders == [other.pid, other.pid, node.pid]
