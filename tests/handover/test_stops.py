"""Programs that are stopped, such as by SIGTERM, at each step of a hand-over."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio

from ergo_py import ChildSpec
from ergo_py.handover.channel import REQUEST, Channel, Line, connect, take_turn
from ergo_py.handover.succession import Succession
from ergo_py.meta.inherited_sockets import InheritedSockets
from examples.guide.moved_session import Visitor
from tests.handover.test_ended_successors import ENDED, Batches, Reports, reports
from tests.handover.test_moved_connections import door, greeted, own_sockets, receive
from tests.handover.test_moved_processes import Gate, counter, old_program
from tests.handover.test_steps import (
    PREDECESSOR,
    SUCCESSOR,
    act_as_predecessor,
    act_as_successor,
    check_waits_for_successors,
    meet_predecessor,
)
from tests.handover.test_succession import named, place
from tests.meta.wires import until
from tests.support import running_node

__all__ = ["named", "own_sockets", "place", "reports"]

ACTS = [*SUCCESSOR, "batch", "begun", "moved", "arrived"]
"""The acts of a successor, with those for a connection."""
HAS_TURN = ACTS.index("taken")
"""From this act on, the predecessor has given the turn."""


async def act(channel: Channel, batches: Batches, name: str) -> None:
    match name:
        case "take":
            await channel.say(REQUEST)
        case "up":
            await channel.say({"up": True, "takes": ["counter"], "connections": ["door"]})
        case "batch":
            turn, numbers = await batches.hear()
            assert take_turn(turn)
            assert numbers == [1]
        case "begun":
            await channel.say({"begun": 1, "stay": []})
        case "moved":
            assert await channel.hear() == {"moved": 1}
        case "arrived":
            await channel.say({"arrived": True})
        case _:
            await act_as_successor(channel, name)


class Halfway(NamedTuple):
    """A program with a state and a connection, in the middle of a hand-over."""

    old: Any
    peer: trio.SocketStream
    """The peer of the connection."""
    channel: Channel
    """The side of the successor."""
    batches: Batches


@asynccontextmanager
async def halfway(place: Path, acts: Sequence[str]) -> AsyncIterator[Halfway]:
    """A program whose successor, which the test plays, has done these acts."""
    async with old_program([*counter(), *door(Visitor, unix=place)], limit=inf) as (old, _):
        old.node.send("counter", 5)
        peer = await greeted(place)
        channel = await connect("shop")
        assert channel is not None
        batches = Batches(channel)
        for name in acts:
            await act(channel, batches, name)
        yield Halfway(old, peer, channel, batches)


@pytest.mark.parametrize("acts", range(len(ACTS)))
async def test_a_stopped_program_gives_all_to_a_successor_that_has_its_turn(
    acts: int, place: Path, autojump_clock: Any, reports: Reports
) -> None:
    async with halfway(place, ACTS[:acts]) as (old, peer, channel, batches):
        await trio.testing.wait_all_tasks_blocked()
        old.node.stop()
        if acts <= HAS_TURN:
            while line := await channel.hear():
                assert "yours" not in line
            assert await connect("shop") is None  # the successor goes on alone
        else:
            for name in ACTS[acts:]:
                await act(channel, batches, name)
        await old.has_ended.wait()
        done = {"done": True, "connections": 1, "staying": {}, "hangs": ""}
        assert [line for line in reports if "done" in line] == ([done] if acts > HAS_TURN else [])
        batches.end()
        await peer.aclose()
    assert os.listdir(place) == ["door"]


@pytest.mark.parametrize("ends", [False, True], ids=["hangs", "ends"])
@pytest.mark.parametrize("last", ["taken", "batch"])
async def test_a_stopped_program_ends_when_its_successor_hangs_or_ends_with_its_turn(
    last: str, ends: bool, place: Path, autojump_clock: Any, reports: Reports
) -> None:
    async with halfway(place, ACTS[: ACTS.index(last)]) as (old, peer, channel, batches):
        began = trio.current_time()
        if last == "batch":
            await batches.hear()  # without its turn
        else:
            await act(channel, batches, last)
        await trio.testing.wait_all_tasks_blocked()
        old.node.stop()
        if ends:
            batches.end()
        await old.has_ended.wait()
        assert trio.current_time() - began <= (1 if ends else 11)
        assert await connect("shop") is None
        if not ends:
            batches.end()
        assert await peer.receive_some() == b""
        await peer.aclose()
    assert os.listdir(place) == ["door"]
    told = [line for line in reports if "done" in line or "failed" in line]
    assert len(told) == 1
    if last == "batch":
        lost = f"{ENDED}, and with it 0 of 1 connections and the states of counter"
        slow = "the next version has taken over, and did not answer before this program stopped"
        assert told[0]["hangs"] == (lost if ends else slow)
        assert told[0]["staying"] == {"not answered by the next version": 1}


async def test_a_program_that_is_stopped_while_it_drains_ends_at_once(
    place: Path, autojump_clock: Any
) -> None:
    begun = trio.Event()
    gate = ChildSpec("gate", Gate, trio.Event(), begun)
    async with old_program([*counter(), *door(Visitor, unix=place), gate], limit=inf) as (
        old,
        start,
    ):
        peer = await greeted(place)
        new = await start([*counter(), *door(Visitor, unix=place)], limit=inf)
        await begun.wait()
        began = trio.current_time()
        old.node.stop()
        await old.has_ended.wait()
        assert trio.current_time() == began
        await check_waits_for_successors()
        await peer.send_all(b"Ann\n")
        assert await receive(peer, 6) == b"1 Ann\n"
        await peer.aclose()
        assert not new.has_ended.is_set()


@pytest.mark.parametrize("acts", range(2, len(PREDECESSOR) + 1))
async def test_a_successor_that_is_stopped_leaves_its_predecessor_alone(
    acts: int, place: Path, autojump_clock: Any
) -> None:
    has_acted, heard = trio.Event(), list[Line]()

    async def play(channel: Channel) -> None:
        for name in PREDECESSOR[:acts]:
            await act_as_predecessor(channel, name)
        await trio.testing.wait_all_tasks_blocked()
        has_acted.set()
        while line := await channel.hear():
            heard.append(line)
        has_heard.set()

    async def check(new: Any) -> None:
        await has_acted.wait()
        new.node.stop()
        await new.has_ended.wait()
        await has_heard.wait()
        assert new.serves.is_set() is ("yours" in PREDECESSOR[:acts])
        assert ({"mine": True} in heard) is (PREDECESSOR[acts:] == ["mine"])
        # The file is that of the predecessor, which a program that has taken over replaces.
        assert os.listdir(place) == ([] if "yours" in PREDECESSOR[:acts] else ["shop.handover"])

    has_heard = trio.Event()
    await meet_predecessor(place, play, check)


@pytest.mark.parametrize("last", ["up", "taken", "mine", "begun", "arrived"])
async def test_a_program_goes_on_when_its_successor_is_stopped_before_a_line(
    last: str,
    place: Path,
    autojump_clock: Any,
    monkeypatch: pytest.MonkeyPatch,
    reports: Reports,
) -> None:
    say, waits = Channel.say, trio.Event()

    async def wait_to_say(self: Channel, line: Line, *args: Any, **options: Any) -> None:
        if last in line and not waits.is_set():
            waits.set()
            await trio.sleep_forever()
        await say(self, line, *args, **options)

    monkeypatch.setattr(Channel, "say", wait_to_say)
    async with old_program(door(Visitor, unix=place), limit=inf) as (old, start):
        peer = await greeted(place)
        new = await start(door(Visitor, unix=place), limit=inf)
        await waits.wait()
        new.node.stop()
        await new.has_ended.wait()
        await reports.has_failed.wait()
        fresh = await greeted(place)
        await check_waits_for_successors()
        if last == "arrived":
            assert reports[-1] == {"failed": f"{ENDED}, and with it 1 of 1 connections"}
            assert await peer.receive_some() == b""
        else:
            await peer.send_all(b"Ann\n")
            assert await receive(peer, 6) == b"1 Ann\n"

        await start(door(Visitor, unix=place), limit=inf)
        await old.has_ended.wait()
        await fresh.send_all(b"Bob\n")
        assert await receive(fresh, 6) == b"1 Bob\n"
        for each in (peer, fresh):
            await each.aclose()
    assert os.listdir(place) == ["door"]


async def test_a_program_that_ends_in_the_moment_when_it_is_up_does_not_take_over(
    place: Path, named: InheritedSockets
) -> None:
    succession, said = Succession("shop", named), list[bool]()
    await succession.begin()
    async with running_node() as node:
        is_up = succession.watch(node, lambda: said.append(True))
        await trio.testing.wait_all_tasks_blocked()
        is_up()
        await succession.end()
        await trio.testing.wait_all_tasks_blocked()
        assert (said, succession.serves, os.listdir(place)) == ([], False, [])


@pytest.mark.parametrize("last", ["yours", "mine"])
async def test_a_successor_that_is_stopped_in_the_moment_of_its_turn_ends_without_an_error(
    last: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step succeeds, so that its task goes on although the stop has cancelled it."""
    hear, say, acquire = Channel.hear, Channel.say, trio.Lock.acquire
    programs, files = list[Any](), {"yours": 2, "mine": 1}
    has_stopped = trio.Event()

    async def stop() -> None:
        monkeypatch.setattr(trio.Lock, "acquire", acquire_later)
        count = len(os.listdir(place))
        assert count == files[last] + 1
        with trio.CancelScope(shield=True):
            programs[0].node.stop()
            while len(os.listdir(place)) == count:
                await trio.lowlevel.checkpoint()
        has_stopped.set()

    async def acquire_later(self: trio.Lock) -> None:
        for _ in range(3):  # the task of the step goes on first
            await trio.lowlevel.cancel_shielded_checkpoint()
        await acquire(self)

    async def hear_and_stop(self: Channel) -> Line:
        line = await hear(self)
        if last in line and last == "yours":
            await stop()
        return line

    async def say_and_stop(self: Channel, line: Line, *args: Any, **options: Any) -> None:
        await say(self, line, *args, **options)
        if last in line and last == "mine":
            await stop()

    monkeypatch.setattr(Channel, "hear", hear_and_stop)
    monkeypatch.setattr(Channel, "say", say_and_stop)
    async with old_program([], limit=inf) as (old, start):
        programs.append(await start([], limit=inf))
        with trio.fail_after(30):
            await programs[0].has_ended.wait()
            await until(lambda: old.succession.serves and os.listdir(place) == ["shop.handover"])
        assert has_stopped.is_set()
        assert (programs[0].failure, programs[0].log) == ("", [])
        await check_waits_for_successors()
