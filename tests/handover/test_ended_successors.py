"""Successors that end in the middle of the move of connections: the old program goes on with the
connections of unanswered batches. The tests play the successor, or stop it.
"""

import os
import socket
from contextlib import closing, suppress
from math import inf
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import Drain
from ergo_py._core.verbs.node_access import kernel_of
from ergo_py.handover.arriving_connections import ArrivingConnections
from ergo_py.handover.channel import Channel, Line, make_turn, take_turn
from ergo_py.handover.channel import connect as connect_to_program
from ergo_py.handover.leaving_connections import LeavingConnections
from ergo_py.handover.next_version import NextVersion
from ergo_py.meta import TCP
from ergo_py.meta.sockets.listener import listeners_of
from ergo_py.web import WS, Route
from ergo_py.web.parsing.frames import TEXT, encode_frame
from examples.guide.moved_session import Visitor
from tests.handover.test_moved_connections import (
    batch_of,
    connect,
    door,
    greeted,
    move_to,
    own_sockets,
    receive,
    take_over,
)
from tests.handover.test_moved_processes import counter, old_program
from tests.handover.test_moved_websockets import Talk, clock, dial, site, talks
from tests.handover.test_steps import check_waits_for_successors
from tests.handover.test_succession import place
from tests.support import loopback_of_this_program
from tests.web.rig import Peer, get
from tests.web.test_websocket import MASK

__all__ = ["clock", "own_sockets", "place"]

MOVES = "ergo_py.handover.leaving_connections."
ENDED = "the next version has ended after it has taken over"


class Reports(list[Any]):
    """The reports of a program to ``ergo upgrade``."""

    def __init__(self) -> None:
        super().__init__()
        self.has_failed = trio.Event()

    def add(self, line: Line) -> None:
        self.append(line)
        if "failed" in line:
            self.has_failed.set()


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Reports:
    made = Reports()
    monkeypatch.setattr(NextVersion, "report", lambda version, line: made.add(line))
    return made


class Batches:
    """Plays the part of a successor that gets batches, and keeps their descriptors."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.sockets = dict[int, int]()
        """By inode."""

    async def hear(self) -> tuple[int, list[int]]:
        """The turn of the next batch, and the numbers of its connections."""
        line = await self.channel.hear()
        for descriptor in self.channel.take_descriptors():
            self.sockets[os.fstat(descriptor).st_ino] = descriptor
        return self.sockets[line["turn"]], [row[0] for row in line["connections"]]

    def end(self) -> None:
        """End as a program that is killed."""
        self.channel.close()
        for descriptor in self.sockets.values():
            os.close(descriptor)


@pytest.mark.parametrize("has_turn", [False, True], ids=["waits", "turn"])
@pytest.mark.parametrize("answered", range(4))
async def test_a_program_goes_on_with_all_that_an_ended_successor_has_not_answered(
    answered: int,
    has_turn: bool,
    place: Path,
    autojump_clock: Any,
    monkeypatch: pytest.MonkeyPatch,
    reports: Reports,
) -> None:
    """Five connections move in three batches; the successor ends after some answers, with the turn
    of the next batch, or when it has heard that all have moved.
    """
    monkeypatch.setattr(f"{MOVES}_BATCH", 2)
    async with old_program(door(Visitor, unix=place), limit=inf) as (old, start):
        peers = [await connect(place) for _ in range(5)]
        for peer in peers:
            await peer.send_all(b"Ann\nha")
            assert await receive(peer, 14) == b"welcome\n1 Ann\n"
        channel = await connect_to_program("shop")
        assert channel is not None
        await take_over(channel, [])
        batches, lost = Batches(channel), set[int]()
        for number in range(1, answered + 1):
            turn, members = await batches.hear()
            assert take_turn(turn)
            await channel.say({"begun": number, "stay": []})
            lost.update(members)
        if has_turn and answered < 3:
            assert take_turn((await batches.hear())[0])
        elif has_turn:
            assert await channel.hear() == {"moved": 5}
        batches.end()

        staying = list[trio.SocketStream]()
        for peer in peers:
            with suppress(trio.BrokenResourceError):
                await peer.send_all(b"lf\n")
                if answer := await peer.receive_some():
                    assert answer == b"2 half\n"
                    staying.append(peer)
        assert len(staying) == 5 - len(lost)
        await reports.has_failed.wait()
        failed = {"failed": f"{ENDED}, and with it {len(lost)} of 5 connections"}
        assert [line for line in reports if "failed" in line or "done" in line] == [failed]
        await check_waits_for_successors()
        await trio.testing.wait_all_tasks_blocked()
        assert old.node.info().processes == 3 + len(staying)  # those of lost connections have ended

        # The program accepts again, and the next hand-over moves all.
        fresh = await greeted(place)
        await start(door(Visitor, unix=place), limit=inf)
        await old.has_ended.wait()
        for peer in staying:
            await peer.send_all(b"Bob\n")
            assert await receive(peer, 6) == b"3 Bob\n"
        await fresh.send_all(b"Bob\n")
        assert await receive(fresh, 6) == b"1 Bob\n"
        for peer in (*peers, fresh):
            await peer.aclose()
        assert sorted(os.listdir(place)) == ["door", "shop.handover"]


async def test_a_program_says_that_a_successor_hangs_with_all_connections(
    place: Path, autojump_clock: Any, reports: Reports
) -> None:
    async with old_program(door(Visitor, unix=place), limit=inf) as (old, _):
        peer = await greeted(place)
        channel = await connect_to_program("shop")
        assert channel is not None
        await take_over(channel, [])
        batches = Batches(channel)
        assert take_turn((await batches.hear())[0])
        await channel.say({"begun": 1, "stay": []})
        assert await channel.hear() == {"moved": 1}
        await old.has_ended.wait()
        batches.end()
        await peer.aclose()
    assert reports[-1] == {
        "done": True,
        "connections": 1,
        "staying": {},
        "hangs": "the next version has taken over, and did not answer within 10 s: it hangs",
    }


async def test_a_program_that_has_given_its_states_away_ends_after_its_successor(
    place: Path, autojump_clock: Any, reports: Reports
) -> None:
    async with old_program([*counter(), *door(Visitor, unix=place)], limit=inf) as (old, _):
        peer = await greeted(place)
        channel = await connect_to_program("shop")
        assert channel is not None
        await take_over(channel, ["counter"])
        batches = Batches(channel)
        assert take_turn((await batches.hear())[0])
        batches.end()
        await peer.send_all(b"Ann\n")
        assert await receive(peer, 6) == b"1 Ann\n"  # it serves the connection to its end
        await peer.aclose()
        await old.has_ended.wait()
    assert reports[-1] == {
        "done": True,
        "connections": 0,
        "staying": {"not answered by the next version": 1},
        "hangs": f"{ENDED}, and with it 0 of 1 connections and the states of counter",
    }


@pytest.fixture
def late_move(monkeypatch: pytest.MonkeyPatch) -> trio.Event:
    """Lets the old program move its connections: until then the successor may end."""
    may_move, move = trio.Event(), LeavingConnections.move

    async def move_later(self: LeavingConnections, *args: Any) -> None:
        await may_move.wait()
        await move(self, *args)

    monkeypatch.setattr(LeavingConnections, "move", move_later)
    return may_move


async def succeed_and_end(late_move: trio.Event) -> None:
    """Play a successor that takes over, and ends before a connection has moved."""
    channel = await connect_to_program("shop")
    assert channel is not None
    with closing(channel):
        await take_over(channel, [])
    late_move.set()


@pytest.mark.parametrize("reader", ["task", "thread"])
async def test_a_program_without_connections_goes_on_after_an_ended_successor(
    reader: str, place: Path, late_move: trio.Event, reports: Reports
) -> None:
    # In real time: a virtual clock would jump while the thread reads.
    async with old_program(door(Visitor, reader=reader), limit=inf) as (old, _):
        for _ in range(2):
            await succeed_and_end(late_move)
            await reports.has_failed.wait()
            assert reports[-1] == {"failed": ENDED}
            reports.has_failed = trio.Event()
            async with await greeted():
                (server,) = listeners_of(kernel_of(old.node))
                assert not server.is_draining


async def test_a_program_ends_after_its_successor_if_a_further_program_serves(
    place: Path, autojump_clock: Any, late_move: trio.Event, reports: Reports
) -> None:
    async with old_program(door(Visitor, unix=place), limit=inf) as (old, _):
        (place / "shop.handover").rename(place / "former")
        with socket.socket(socket.AF_UNIX) as further:
            sock = trio.socket.socket(trio.socket.AF_UNIX)
            await sock.connect(str(place / "former"))
            with closing(Channel(sock)) as channel:
                await take_over(channel, [])
                further.bind(str(place / "shop.handover"))
                further.listen()
            late_move.set()
            await old.has_ended.wait()
    assert reports[-1]["hangs"] == ENDED


async def test_a_server_that_was_drained_before_does_not_accept_again(
    place: Path, autojump_clock: Any, late_move: trio.Event, reports: Reports
) -> None:
    async with old_program(door(Visitor, unix=place), limit=inf) as (old, _):
        (server,) = listeners_of(kernel_of(old.node))
        await server.begin_drain(1.0)
        await succeed_and_end(late_move)
        await reports.has_failed.wait()
        assert server.is_draining


async def test_a_server_that_a_process_drains_meanwhile_does_not_accept_again(
    place: Path, autojump_clock: Any
) -> None:
    async with old_program(door(Visitor, unix=place), limit=inf) as (old, _):
        (server,) = listeners_of(kernel_of(old.node))
        await server.begin_drain(1.0, is_replaced=True)
        assert await old.node.call(server.id, Drain(1.0)) == 0
        server.accept_again()
        assert server.is_draining


async def test_a_websocket_goes_on_when_the_next_program_ends_with_its_turn(
    place: Path, reports: Reports
) -> None:
    heard = list[Any]()
    async with old_program(talks(heard), limit=inf) as (old, start):
        client = await dial()
        whole = encode_frame(TEXT, b"half", MASK)
        await client.peer.send(encode_frame(TEXT, b"Ann", MASK) + whole[:7])
        assert await client.next() == (TEXT, "1 Ann", 0)
        channel = await connect_to_program("shop")
        assert channel is not None
        with closing(channel):
            await move_to(channel)
            with batch_of(channel) as (turn, _):
                assert take_turn(turn)
                old.node.send(heard[0].connection, WS.Send("late"))
                await client.peer.send(whole[7:])
        assert await client.next() == (TEXT, "late", 0)
        assert await client.next() == (TEXT, "2 half", 0)
        await reports.has_failed.wait()
        assert reports[-1] == {"failed": f"{ENDED}, and with it 0 of 1 connections"}

        other = await dial()
        await start(talks(), limit=inf)
        await old.has_ended.wait()
        for each, text in ((client, "3 Bob"), (other, "1 Bob")):
            await each.send(TEXT, b"Bob")
            assert await each.next() == (TEXT, text, 0)
            await each.peer.aclose()


async def test_a_web_server_that_accepts_again_serves_requests_and_limits_heads(
    place: Path, clock: trio.testing.MockClock, late_move: trio.Event, reports: Reports
) -> None:
    children = site(Route("/talk", websocket=Talk), head_timeout=20.0)
    async with old_program(children, limit=inf):
        early = Peer(await trio.open_tcp_stream(loopback_of_this_program(), 7791))
        await succeed_and_end(late_move)
        await reports.has_failed.wait()
        assert await early.rest() == b""  # it had not asked yet
        clock.jump(10)
        peer, slow = [
            Peer(await trio.open_tcp_stream(loopback_of_this_program(), 7791)) for _ in range(2)
        ]
        await slow.send(b"GET / HT")
        assert (await peer.ask(get("/unknown"))).status == 404
        clock.jump(21)
        assert b"408" in await slow.until(b"\r\n")
        for each in (early, peer, slow):
            await each.aclose()


async def test_a_successor_that_stops_before_its_answer_leaves_the_connections_alone(
    place: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch, reports: Reports
) -> None:
    say, answers, arrived = Channel.say, trio.Event(), list[Any]()
    take = ArrivingConnections.keep

    async def wait_to_answer(self: Channel, line: Line, *args: Any, **options: Any) -> None:
        if "begun" in line:
            answers.set()
            await trio.sleep_forever()
        await say(self, line, *args, **options)

    def note(self: ArrivingConnections, descriptors: list[int]) -> None:
        arrived.extend((number, os.fstat(number).st_ino) for number in descriptors)
        take(self, descriptors)

    def is_open(number: int, inode: int) -> bool:
        with suppress(OSError):
            return os.fstat(number).st_ino == inode
        return False

    monkeypatch.setattr(Channel, "say", wait_to_answer)
    monkeypatch.setattr(ArrivingConnections, "keep", note)
    async with old_program(door(Visitor, unix=place), limit=inf) as (old, start):
        peers = [await greeted(place) for _ in range(3)]
        new = await start(door(Visitor, unix=place), limit=inf)
        await answers.wait()
        assert len(arrived) == 4  # with the turn
        new.node.stop()
        await reports.has_failed.wait()
        for peer in peers:
            await peer.send_all(b"Ann\n")
            assert await receive(peer, 6) == b"1 Ann\n"
            await peer.aclose()
        assert not [each for each in arrived if is_open(*each)]
        await check_waits_for_successors()
        assert not old.has_ended.is_set()


async def test_answers_count_when_no_descriptor_is_left_for_the_next_batch(
    place: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch, reports: Reports
) -> None:
    turns, make = list[int](), make_turn

    def make_once() -> int:
        if turns:
            failed.set()
            raise OSError("no descriptor is left")
        turns.append(make())
        return turns[0]

    failed = trio.Event()
    monkeypatch.setattr(f"{MOVES}_BATCH", 1)
    monkeypatch.setattr(f"{MOVES}make_turn", make_once)
    async with old_program(door(Visitor, unix=place), limit=inf) as (old, _):
        peers = [await greeted(place) for _ in range(2)]
        channel = await connect_to_program("shop")
        assert channel is not None
        with closing(channel):
            await move_to(channel)
            with batch_of(channel) as (turn, _):
                assert take_turn(turn)
            await failed.wait()
            await trio.testing.wait_all_tasks_blocked()
            await channel.say({"begun": 1, "stay": [1]})
            for peer in peers:
                await peer.send_all(b"Ann\n")
                assert await receive(peer, 6) == b"1 Ann\n"
                await peer.aclose()
            await old.has_ended.wait()
    assert reports[-1]["staying"] == {
        "refused by the next version": 1,
        "no descriptor is left": 1,
    }


async def test_options_of_a_version_do_not_outlive_it_on_its_connections(
    place: Path, autojump_clock: Any
) -> None:
    options: dict[str, Any] = {
        "keepalive": TCP.KeepAlive(idle=77, interval=7, count=3),
        "receive_buffer": 50_000,
        "send_buffer": 40_000,
    }
    async with old_program(door(Visitor, **options), limit=inf) as (old, start):
        peer = await greeted()
        new = await start(door(Visitor), limit=inf)
        await old.has_ended.wait()
        (server,) = listeners_of(kernel_of(new.node))
        (connection,) = server.open_connections()
        departure = connection.departure()
        assert departure is not None
        with (
            socket.socket(fileno=os.dup(departure.descriptor)) as moved,
            socket.socket(socket.AF_INET) as fresh,
        ):
            for option in [
                (socket.SOL_SOCKET, socket.SO_SNDBUF),
                (socket.SOL_SOCKET, socket.SO_RCVBUF),
                (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
                (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
                (socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
            ]:
                assert moved.getsockopt(*option) == fresh.getsockopt(*option)
        await peer.aclose()
