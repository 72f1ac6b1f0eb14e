"""Connections that move from a program to its successor. Both are nodes of this test program; each
has named sockets of its own.
"""

import os
import socket
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from itertools import cycle
from math import inf
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import PID, Actor, Alias, ChildSpec
from ergo_py.handover.channel import Channel, take_turn
from ergo_py.handover.channel import connect as connect_to_program
from ergo_py.meta import TCP, Delimiter, TCPServer, UnixServer
from examples.guide.moved_session import Visitor
from tests.actors import LogKeeper
from tests.handover.test_moved_processes import SOCKETS, Gate, counter, fail, old_program
from tests.handover.test_steps import PREDECESSOR, act_as_predecessor, meet_predecessor
from tests.handover.test_succession import place
from tests.support import loopback_of_this_program

__all__ = ["place"]


@pytest.fixture(autouse=True)
def own_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each program its own named sockets."""
    monkeypatch.setattr("ergo_py.meta.sockets.socket_setup.inherited_sockets", SOCKETS.get)


class Door(Actor):
    """Serves with a named socket."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    async def init(self) -> None:
        await self.spawn_meta(self.make())

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        if isinstance(message, TCP.Data):
            self.send(message.connection, TCP.Send(message.data))


class Visit(Visitor):
    """Tells the test what it hears, and sends as much as a peer asks for."""

    connection: Alias

    def __init__(self, heard: list[object], addresses: list[PID | Alias]) -> None:
        super().__init__()
        self.heard, self.addresses = heard, addresses

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        self.heard.append(message if isinstance(message, int) else type(message))
        if isinstance(message, TCP.Connected):
            self.addresses += [self.pid, message.connection]
        if isinstance(message, int):
            self.send(self.connection, TCP.Send(b"%d\n" % message))
        elif isinstance(message, TCP.Data) and message.data.startswith(b"send "):
            self.send(message.connection, TCP.Send(numbered(int(message.data[5:]))))
        elif isinstance(message, TCP.Connected | TCP.Data):
            super().handle_message(message, sender)


class Echo(Actor):
    """Sends all bytes back, and tells the test which program does so."""

    def __init__(self, programs: list[int], program: int) -> None:
        self.programs, self.program = programs, program

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        if isinstance(message, TCP.Data):
            self.programs.append(self.program)
            self.send(message.connection, TCP.Send(message.data + b"\n"))

    def hand_over(self) -> object:
        return None

    def take_over(self, state: object) -> None:
        """Take nothing."""


def numbered(size: int) -> bytes:
    """Bytes of which no part of 8 is like another."""
    return b"".join(b"%07d\n" % number for number in range(size // 8))


def door(session: Any, *, unix: Path | None = None, **options: Any) -> list[ChildSpec]:
    options = {"reader": "task", "framing": Delimiter(b"\n"), **options}
    if unix is not None:
        path = str(unix / "door")
        return [
            ChildSpec(
                "door", Door, partial(UnixServer, path, sock="door", receiver=session, **options)
            )
        ]
    host = loopback_of_this_program()
    return [
        ChildSpec(
            "door", Door, partial(TCPServer, host, 7790, sock="door", receiver=session, **options)
        )
    ]


async def connect(unix: Path | None = None) -> trio.SocketStream:
    if unix is not None:
        return await trio.open_unix_socket(str(unix / "door"))
    return await trio.open_tcp_stream(loopback_of_this_program(), 7790)


async def receive(peer: trio.SocketStream, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = await peer.receive_some(size - len(found))
        assert part, f"the stream has ended after {found[-40:]!r}"
        found += part
    return found


def take_at_once(peer: trio.SocketStream) -> bytes:
    """The bytes that have arrived."""
    found = b""
    with suppress(BlockingIOError):
        while True:
            found += os.read(peer.socket.fileno(), 65_536)
    return found


@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_no_byte_of_a_moved_connection_is_lost_doubled_or_reordered(
    kind: str, place: Path, autojump_clock: Any
) -> None:
    """The peer writes pieces that end anywhere in a line, reads at its own pace, and compares."""
    unix = place if kind == "unix" else None
    stream, pieces, served = numbered(120_000), [1, 7, 8, 9, 4096, 65_537, 13], list[int]()
    async with old_program(door(partial(Echo, served, 0), unix=unix), limit=inf) as (old, start):
        peer, programs, found = await connect(unix), [old], b""

        async def write() -> None:
            begin, sizes = 0, cycle(pieces)
            while begin < len(stream):
                size = next(sizes)
                await peer.send_all(stream[begin : begin + size])
                begin += size

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            for number, part in enumerate((1, 20_000, 60_003), 1):
                found += await receive(peer, part - len(found))
                children = door(partial(Echo, served, number), unix=unix)
                programs.append(await start(children, limit=inf))
                await programs[-1].serves.wait()
            found += await receive(peer, len(stream) - len(found))
        assert found == stream
        await peer.send_all(b"end\n")
        assert await receive(peer, 4) == b"end\n"
        assert served[-1] == 3
        for program in programs[:-1]:
            await program.has_ended.wait()
        await peer.aclose()


async def test_a_session_goes_on_with_its_state_and_its_unread_and_unsent_bytes(
    place: Path, autojump_clock: Any
) -> None:
    before, after, addresses = list[object](), list[object](), list[PID | Alias]()
    drained, begun = trio.Event(), trio.Event()
    gate = [ChildSpec("gate", Gate, drained, begun)]
    options: dict[str, Any] = {"unix": place, "send_buffer": 4096}
    size = 800_000
    first = [*door(partial(Visit, before, addresses), **options), *gate]
    async with old_program(first, limit=inf) as (old, start):
        peer = await connect(place)
        await peer.send_all(b"Ann\nsend %d\nhalf" % size)
        assert await receive(peer, 14) == b"welcome\n1 Ann\n"

        new = await start(door(partial(Visit, after, addresses), **options), limit=inf)
        await begun.wait()
        old.node.send(addresses[0], 7)
        assert await receive(peer, size) == numbered(size)
        assert await receive(peer, 2) == b"7\n"
        await peer.send_all(b" a line\n")
        assert await receive(peer, 14) == b"2 half a line\n"
        assert before == [TCP.Connected, TCP.Data, TCP.Data]
        assert after == [7, TCP.Data]
        assert old.node.info().metas == 1  # the server
        drained.set()
        await old.has_ended.wait()
        await peer.aclose()
        assert old.log == new.log == []


class Plain(Actor):
    """Answers as `Visitor` does, and has no methods for a move."""

    lines = 0

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case TCP.Connected(connection):
                self.send(connection, TCP.Send(b"welcome\n"))
            case TCP.Data(connection, line):
                self.lines += 1
                self.send(connection, TCP.Send(b"%d %s\n" % (self.lines, line)))


class NotTaking(Plain):
    """Has the first method only."""

    def hand_over(self) -> object:
        return self.lines


class Failing(Visitor):
    """Cannot give its state, or not take it."""

    def __init__(self, give: Callable[[Any], Any] = int, take: Callable[[Any], Any] = int) -> None:
        super().__init__()
        self.give, self.take = give, take

    def hand_over(self) -> object:
        return self.give(self.lines)

    def take_over(self, state: Any) -> None:
        self.lines = self.take(state)


class Hanging(Actor):
    """Does not take its state over."""

    async def take_over(self, state: object) -> None:
        await trio.sleep_forever()


class Waiting(Actor):
    """Waits in the middle of a message."""

    def __init__(self, go_on: trio.Event) -> None:
        self.go_on = go_on
        self.lines = 0

    async def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case TCP.Connected(connection):
                self.send(connection, TCP.Send(b"welcome\n"))
            case TCP.Data(connection, line):
                self.lines += 1
                self.send(connection, TCP.Send(b"%d %s\n" % (self.lines, line)))
                await self.go_on.wait()

    def hand_over(self) -> object:
        return self.lines

    def take_over(self, state: Any) -> None:
        self.lines = state


def make_not_taking() -> NotTaking:
    return NotTaking()


CASES: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "no methods": (Plain, Visitor, {}, "sessions without hand_over"),
    "not taken": (Visitor, NotTaking, {}, "not taken by the next version"),
    "function": (Visitor, make_not_taking, {}, "refused by the next version"),
    "raises": (partial(Failing, fail), Visitor, {}, "not this layout"),
    "refused": (Visitor, partial(Failing, int, fail), {}, "refused by the next version"),
    "hangs": (Visitor, Hanging, {}, "refused by the next version"),
    "threads": (Visitor, Visitor, {"reader": "thread"}, "reader threads"),
    "owner": (None, Visitor, {}, "no sessions"),
    "descriptors": (Visitor, Visitor, {}, "no descriptor is left"),
    "busy": (Waiting, Visitor, {}, "busy"),
}


class NoDescriptors:
    """The operating system when a program has no descriptor left."""

    def dup(self, descriptor: int) -> int:
        raise OSError("no descriptor is left")


@pytest.mark.parametrize("case", [case for case in CASES if case != "threads"])
async def test_a_connection_that_cannot_move_is_served_by_the_old_program(
    case: str, place: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await upgrade_beside_a_connection(case, place, monkeypatch)


async def test_a_connection_with_a_reader_thread_is_served_by_the_old_program(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In real time: a virtual clock would jump to the end of the drain while the thread reads.
    await upgrade_beside_a_connection("threads", place, monkeypatch)


async def upgrade_beside_a_connection(
    case: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, next_session, options, why = CASES[case]
    go_on, log = trio.Event(), list[Any]()
    if case == "descriptors":
        monkeypatch.setattr("ergo_py.handover.moved_connections.os", NoDescriptors())
    if case == "busy":
        session = partial(Waiting, go_on)
    children = door(session, unix=place, **options)
    async with old_program(children, log_level="info", limit=inf) as (old, start):
        old.node.add_logger(await old.node.spawn(LogKeeper, log), "info")
        peer = await connect(place)
        await peer.send_all(b"Ann\n")
        answer = b"Ann" if case == "owner" else b"welcome\n1 Ann\n"
        assert await receive(peer, len(answer)) == answer

        new = await start(door(next_session, unix=place), limit=inf)
        await new.serves.wait()
        go_on.set()
        await peer.send_all(b"Bob\n")
        answer = b"Bob" if case == "owner" else b"2 Bob\n"
        assert await receive(peer, len(answer)) == answer
        await peer.aclose()
        await old.has_ended.wait()
        (taken,) = (record for record in log if record.event == "a successor has taken over")
        assert (taken.fields["connections"], taken.fields["staying"]) == (0, {why: 1})


async def test_a_connection_goes_on_when_the_next_program_refuses_a_state(
    place: Path, autojump_clock: Any
) -> None:
    async with old_program([*counter(), *door(Visitor, unix=place)], limit=inf) as (_, start):
        peer = await connect(place)
        await peer.send_all(b"Ann\nha")
        assert await receive(peer, 14) == b"welcome\n1 Ann\n"

        new = await start([*counter(int, fail), *door(Visitor, unix=place)], limit=inf)
        await new.has_ended.wait()

        assert "cannot take its state over" in new.failure
        await peer.send_all(b"lf\n")
        assert await receive(peer, 7) == b"2 half\n"
        await peer.aclose()


async def move_to(channel: Channel, *acts: str) -> dict[str, Any]:
    """Play the acts of a successor that takes connections. Returns the line of the connection."""
    found: dict[str, Any] = {}
    await channel.say({"take": 1})
    await channel.hear()
    await channel.say({"up": True, "takes": [], "servers": ["door"]})
    for act in acts:
        if act in ("taken", "mine"):
            await channel.say({act: True})
            continue
        line: dict[str, Any] = {}
        while act not in line:
            line = await channel.hear()
            found = line if "connection" in line else found
    return found


@pytest.mark.parametrize("hangs", [False, True], ids=["killed", "hangs"])
@pytest.mark.parametrize("acts", range(1, 4))
async def test_a_connection_goes_on_when_the_next_program_is_killed_or_hangs(
    acts: int, hangs: bool, place: Path, autojump_clock: Any
) -> None:
    addresses = list[PID | Alias]()
    children = door(partial(Visit, [], addresses), unix=place, send_buffer=4096)
    async with old_program(children, limit=inf) as (old, _):
        peer = await connect(place)
        await peer.send_all(b"Ann\nsend 80000\nhalf")
        assert await receive(peer, 14) == b"welcome\n1 Ann\n"
        channel = await connect_to_program("shop")
        assert channel is not None
        with closing(channel):
            moved = await move_to(channel, *["states", "taken", "yours"][:acts])
            assert moved["body"][:4] == b"half"
            old.node.send(addresses[1], TCP.Send(b"late\n"))
            if hangs:
                await trio.sleep(300)  # virtual: longer than all limits

        assert await receive(peer, 80_005) == numbered(80_000) + b"late\n"
        await peer.send_all(b" a line\n")
        assert await receive(peer, 14) == b"2 half a line\n"
        await peer.aclose()


async def test_the_old_program_leaves_the_socket_alone_and_forwards_late_bytes(
    place: Path, autojump_clock: Any
) -> None:
    addresses = list[PID | Alias]()
    children = door(partial(Visit, [], addresses), unix=place, send_buffer=4096)
    async with old_program(children, limit=inf) as (old, _):
        peer = await connect(place)
        await peer.send_all(b"Ann\nsend 80000\nhalf")
        assert await receive(peer, 14) == b"welcome\n1 Ann\n"
        channel = await connect_to_program("shop")
        assert channel is not None
        with closing(channel):
            moved = await move_to(channel, "states", "taken", "yours")
            listening, taken, turn = channel.take_descriptors()
            assert take_turn(turn)
            os.close(turn)
            os.close(listening)
            old.node.send(addresses[1], TCP.Send(b"late\n"))
            old.node.send(addresses[1], TCP.Close())
            first = take_at_once(peer)  # makes room for more, which the old must not use
            await trio.testing.wait_all_tasks_blocked()
            await channel.say({"mine": True})
            assert await channel.hear() == {"late": 1, "closes": True, "body": b"late\n"}
            await old.has_ended.wait()

            async with trio.SocketStream(
                trio.socket.from_stdlib_socket(socket.socket(fileno=taken))
            ) as ours:
                async with trio.open_nursery() as nursery:
                    unread, unsent = moved["unread"], moved["unsent"]
                    nursery.start_soon(ours.send_all, moved["body"][unread : unread + unsent])
                    assert first + await receive(peer, 80_000 - len(first)) == numbered(80_000)
                await peer.send_all(b"!")
                assert await ours.receive_some(9) == b"!"
            await peer.aclose()


async def test_the_next_program_writes_unsent_bytes_before_late_bytes(
    place: Path, autojump_clock: Any
) -> None:
    theirs, ours = socket.socketpair()
    body = b"Ann" + b"unsent\n" + b"\x05"
    line = {"connection": 1, "server": "door", "unread": 3, "unsent": 7}

    async def play(channel: Channel) -> None:
        with theirs:
            for act in PREDECESSOR:
                if act == "state":
                    line["socket"] = os.fstat(theirs.fileno()).st_ino
                    # The first has lost its descriptor.
                    await channel.say({**line, "connection": 2, "socket": 0}, body=body)
                    await channel.say(line, (theirs.fileno(),), body)
                elif act == "taken":
                    assert await channel.hear() == {"taken": True, "stay": [2]}
                else:
                    await act_as_predecessor(channel, act)
        await channel.say({"late": 1, "closes": True}, body=b"late\n")
        await trio.sleep_forever()

    async def check(_: Any) -> None:
        async with trio.SocketStream(trio.socket.from_stdlib_socket(ours)) as peer:
            assert await receive(peer, 12) == b"unsent\nlate\n"
            await peer.send_all(b"a\n")
            assert await peer.receive_some(1) == b""

    await meet_predecessor(place, play, check, door(Visitor, unix=place))
