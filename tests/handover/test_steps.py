"""Each step of the hand-over at which a program may be killed, or hang. The tests play this
program, and a node of this test program is the other.
"""

import os
from collections.abc import Awaitable, Callable
from contextlib import closing
from math import inf
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import ChildSpec, NotAllowedError
from ergo_py.handover.channel import REQUEST, Channel, connect, take_turn
from tests.handover.test_moved_processes import counter, old_program, run_program
from tests.handover.test_succession import place

__all__ = ["place"]

LONG = 300.0
"""Virtual seconds: longer than all limits of the hand-over together."""
ENDS = pytest.mark.parametrize("hangs", [False, True], ids=["killed", "hangs"])
SUCCESSOR = ["take", "sockets", "up", "states", "taken", "yours", "turn", "mine"]
"""The acts of a successor: it says a line, hears one, or takes its turn."""
PREDECESSOR = ["take", "sockets", "up", "state", "states", "taken", "yours", "mine"]
"""The acts of a predecessor."""


async def act_as_successor(channel: Channel, act: str) -> None:
    match act:
        case "take":
            await channel.say(REQUEST)
        case "up":
            await channel.say({"up": True, "takes": ["counter", "unknown"]})
        case "taken" | "mine":
            await channel.say({act: True})
        case "sockets" | "yours":
            assert act in await channel.hear()
        case "states":
            assert await channel.hear() == {"state": "counter", "body": b"\x05"}
            assert await channel.hear() == {"states": 1, "fresh": []}
        case _:
            assert takes_turn(channel)


def takes_turn(channel: Channel) -> bool:
    *sockets, turn = channel.take_descriptors()
    try:
        return take_turn(turn)
    finally:
        for descriptor in (*sockets, turn):
            os.close(descriptor)


async def check_waits_for_successors() -> None:
    channel = await connect("shop")
    assert channel is not None
    channel.close()


@ENDS
@pytest.mark.parametrize("acts", range(len(SUCCESSOR) + 1))
async def test_a_program_goes_on_unless_its_successor_has_taken_its_turn(
    acts: int, hangs: bool, place: Path, autojump_clock: Any
) -> None:
    async with old_program(counter(), limit=inf) as (old, _):
        old.node.send("counter", 5)
        channel = await connect("shop")
        assert channel is not None
        with closing(channel):
            for act in SUCCESSOR[:acts]:
                await act_as_successor(channel, act)
            if hangs:
                await trio.sleep(LONG)
                if SUCCESSOR[acts:] == ["turn", "mine"]:
                    assert not takes_turn(channel)
        if SUCCESSOR[acts:] == [] or (hangs and SUCCESSOR[acts:] == ["mine"]):
            await old.has_ended.wait()
            if SUCCESSOR[acts:]:
                told = ["the next version hangs"]
            else:  # a state has moved, and has ended with the successor
                told = [] if hangs else ["the hand-over has failed"]
            assert [record.event for record in old.log] == told
            return

        old.node.send("counter", 6)
        assert await old.node.call("counter", "total") == 11
        await check_waits_for_successors()


async def test_a_program_goes_on_when_its_successor_refuses_or_replaces_its_file_and_ends(
    place: Path,
) -> None:
    async with old_program(counter(), limit=inf) as (old, _):
        old.node.send("counter", 5)
        for last in ("refused", "turn"):
            sock = trio.socket.socket(trio.socket.AF_UNIX)
            await sock.connect(str(place / "shop.handover"))
            with closing(Channel(sock)) as channel:
                for act in SUCCESSOR[: SUCCESSOR.index("taken")]:
                    await act_as_successor(channel, act)
                if last == "refused":
                    await channel.say({"refused": "no"})
                else:
                    for act in ("taken", "yours", "turn"):
                        await act_as_successor(channel, act)
                    (place / "next").touch()
                    (place / "next").rename(place / "shop.handover")
                    sock.shutdown(trio.socket.SHUT_WR)
                assert await channel.hear() == {}

        assert await old.node.call("counter", "total") == 5
        await check_waits_for_successors()
        assert os.listdir(place) == ["shop.handover"]


async def test_a_program_goes_on_when_its_successor_does_not_read_a_large_state(
    place: Path, autojump_clock: Any
) -> None:
    large = b"x" * 10_000_000
    async with old_program(counter(lambda _: large), limit=inf) as (old, _):
        channel = await connect("shop")
        assert channel is not None
        with closing(channel):
            for act in ("take", "sockets", "up"):
                await act_as_successor(channel, act)
            await trio.sleep(LONG)
            assert await old.node.call("counter", 5) == 5


def turn_of(byte: bytes) -> int:
    reading, writing = os.pipe()
    os.write(writing, byte)
    os.close(writing)
    return reading


async def act_as_predecessor(channel: Channel, act: str) -> None:
    match act:
        case "sockets":
            await channel.say({"sockets": []})
        case "state":
            await channel.say({"state": "counter"}, body=b"\x05")
        case "states":
            await channel.say({"states": 1, "fresh": []})
        case "yours":
            turn = turn_of(b".")
            await channel.say({"yours": True}, (turn,))
            os.close(turn)
        case _:
            assert act in await channel.hear()


async def meet_predecessor(
    place: Path,
    play: Callable[[Channel], Awaitable[object]],
    check: Callable[[Any], Any],
    children: list[ChildSpec] | None = None,
) -> None:
    """Start a program whose predecessor plays its part, and check this program, or the error with
    which it ends at once.
    """
    waiting = trio.socket.socket(trio.socket.AF_UNIX)
    await waiting.bind(str(place / "shop.handover"))
    waiting.listen(1)

    async def meet() -> None:
        sock, _ = await waiting.accept()
        waiting.close()
        with closing(Channel(sock)) as channel:
            await play(channel)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(meet)
        try:
            new = await nursery.start(run_program, "new", children or counter(), {"limit": inf})
        except NotAllowedError as error:
            await check(str(error))
        else:
            new.is_up()
            await check(new)
        nursery.cancel_scope.cancel()


@ENDS
@pytest.mark.parametrize("acts", range(len(PREDECESSOR) + 1))
async def test_a_successor_serves_with_all_states_or_none_unless_its_predecessor_hangs(
    acts: int, hangs: bool, place: Path, autojump_clock: Any
) -> None:
    done = PREDECESSOR[:acts]

    async def play(channel: Channel) -> None:
        for act in done:
            await act_as_predecessor(channel, act)
        if hangs:
            await trio.sleep_forever()

    async def check(new: Any) -> None:
        if hangs and "yours" not in done:
            if isinstance(new, str):
                assert "sockets" not in done
                text = new
            else:
                await new.has_ended.wait()
                assert not new.serves.is_set()
                text = new.failure
            assert text == "the running program 'shop' goes on: it did not answer within 150 s"
        else:
            await new.serves.wait()
            assert await new.node.call("counter", "total") == (5 if "states" in done else 0)

    await meet_predecessor(place, play, check)


async def test_a_successor_ends_if_its_turn_was_taken_back(place: Path) -> None:
    async def play(channel: Channel) -> None:
        for act in PREDECESSOR[:-2]:
            await act_as_predecessor(channel, act)
        turn = turn_of(b"")
        await channel.say({"yours": True}, (turn,))
        os.close(turn)

    async def check(new: Any) -> None:
        await new.has_ended.wait()
        assert not new.serves.is_set()
        assert "goes on: this one did not take its turn in time" in new.failure

    await meet_predecessor(place, play, check)


@pytest.mark.parametrize(
    "line",
    [
        {"later": 1},
        {"late": 7, "size": 0},
        {"message": "nobody", "size": 0},
        {"message": "counter", "size": 0},
        {"batch": 1},
        {"batch": 1, "turn": [2], "connections": [], "size": 0},
        {"batch": 1, "turn": 2, "connections": [[1, "door", 3, 1]], "size": 0},
        {"batch": 1, "turn": 2, "connections": [[1, "door", 3, -1, 1, 0]], "size": 0},
        {"batch": 1, "turn": 2, "connections": [[1, "door", 3, 5, 0, 0]], "size": 0},
    ],
)
async def test_a_successor_goes_on_behind_a_line_that_it_does_not_understand(
    line: dict[str, Any], place: Path, autojump_clock: Any
) -> None:
    async def play(channel: Channel) -> None:
        for act in PREDECESSOR:
            await act_as_predecessor(channel, act)
        await channel.say(line)
        for number in range(2):  # the first answer may come before the batch is looked at
            await channel.say({"call": "counter", "number": number}, body=b"\xa5total")
            heard.append((await channel.hear()).get("body"))
        is_over.set()

    heard, is_over = list[object](), trio.Event()

    async def check(_new: Any) -> None:
        await is_over.wait()

    await meet_predecessor(place, play, check)
    assert heard == [b"\x05", b"\x05"]


async def test_a_successor_gets_states_without_bodies_and_lists_that_are_none(
    place: Path, autojump_clock: Any
) -> None:
    async def play(channel: Channel) -> None:
        for act in ("take", "sockets", "up"):
            await act_as_predecessor(channel, act)
        await channel.say({"state": "counter"})
        await channel.say({"states": 1, "fresh": 5})
        assert "refused" in await channel.hear()

    async def check(new: Any) -> None:
        await new.has_ended.wait()
        assert "'counter' cannot take its state over" in new.failure

    await meet_predecessor(place, play, check)
