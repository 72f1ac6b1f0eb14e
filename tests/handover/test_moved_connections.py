"""Connections that move from a program to its successor. Both are nodes of this test program; each
has named sockets of its own.
"""

import gc
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import cycle
from math import inf
from pathlib import Path
from stat import S_ISFIFO
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from ergo_py import PID, Actor, Alias, ChildSpec
from ergo_py.handover.arriving_connections import ArrivingConnections
from ergo_py.handover.channel import REQUEST, Channel, Line, take_turn
from ergo_py.handover.channel import connect as connect_to_program
from ergo_py.handover.leaving_connections import LeavingConnections
from ergo_py.meta import TCP, Delimiter, TCPServer, UnixServer
from ergo_py.meta.sockets.streams.departure import Departure
from examples.guide.moved_session import Visitor
from tests.actors import LogKeeper
from tests.handover.test_moved_processes import SOCKETS, Gate, counter, fail, old_program
from tests.handover.test_steps import PREDECESSOR, act_as_predecessor, meet_predecessor, turn_of
from tests.handover.test_succession import place
from tests.meta.wires import until
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


async def greeted(unix: Path | None = None) -> trio.SocketStream:
    """A peer that its session has greeted."""
    peer = await connect(unix)
    assert await receive(peer, 8) == b"welcome\n"
    return peer


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


async def test_the_file_of_a_unix_server_outlives_its_restart_and_its_program(
    place: Path, autojump_clock: Any
) -> None:
    async def visit() -> None:
        await (await greeted(place)).aclose()

    restarted = trio.Event()

    class Restarted(Door):
        async def init(self) -> None:
            await super().init()
            if starts:
                restarted.set()
            starts.append(self.pid)

    starts = list[PID]()
    (spec,) = door(Visitor, unix=place)
    async with old_program([ChildSpec("door", Restarted, *spec.args)], limit=inf) as (old, start):
        await visit()
        old.node.kill("door")
        await restarted.wait()
        await visit()
        new = await start(door(Visitor, unix=place), limit=inf)
        await new.serves.wait()
        await old.has_ended.wait()
        await visit()


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
    "descriptors": (Visitor, Visitor, {}, "refused by the next version"),
    "busy": (Waiting, Visitor, {}, "busy"),
}


def fail_to_copy(descriptor: int) -> int:
    """Copy sockets only: the next program tries with the turn, a pipe."""
    if S_ISFIFO(os.fstat(descriptor).st_mode):
        raise OSError("no descriptor is left")
    return os.dup(descriptor)


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
        without = SimpleNamespace(**{**vars(os), "dup": fail_to_copy})
        monkeypatch.setattr("ergo_py.handover.arriving_connections.os", without)
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
        if case == "busy":
            await trio.sleep(1)  # virtual: it was not ready in time
        go_on.set()
        await peer.send_all(b"Bob\n")
        answer = b"Bob" if case == "owner" else b"2 Bob\n"
        assert await receive(peer, len(answer)) == answer
        # In real time, the old program has perhaps not counted the connection yet.
        await until(lambda: "a successor has taken over" in [record.event for record in log])
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


async def move_to(channel: Channel) -> dict[str, Any]:
    """Play a successor that takes over, up to the first batch of connections. Returns its line;
    empty if there is none.
    """
    await take_over(channel, [])
    line = await channel.hear()
    return line if "batch" in line else {}


async def succeed(channel: Channel) -> None:
    """Play a successor that takes over."""
    await take_over(channel, [])


async def take_over(
    channel: Channel, names: list[str], before: Callable[[], object] = list
) -> None:
    """Play a successor that takes over, with the states of these processes. ``before`` acts when
    they are suspended.
    """
    await channel.say(REQUEST)
    await channel.hear()
    await channel.say({"up": True, "takes": names, "connections": ["door"]})
    for name in names:
        assert (await channel.hear())["state"] == name
    assert await channel.hear() == {"states": len(names), "fresh": []}
    before()
    await channel.say({"taken": True})
    assert "yours" in await channel.hear()
    *listening, turn = channel.take_descriptors()
    assert take_turn(turn)
    for descriptor in (*listening, turn):
        os.close(descriptor)
    await channel.say({"mine": True})


async def end_move(channel: Channel, moved: int) -> None:
    """Hear how many connections have moved, and say that all have arrived."""
    assert await channel.hear() == {"moved": moved}
    await channel.say({"arrived": True})


@contextmanager
def batch_of(channel: Channel) -> Iterator[tuple[int, list[int]]]:
    """The turn of a batch, and its sockets."""
    turn, *sockets = channel.take_descriptors()
    try:
        yield turn, sockets
    finally:
        for descriptor in (turn, *sockets):
            os.close(descriptor)


@pytest.mark.parametrize("hangs", [False, True], ids=["killed", "hangs"])
async def test_a_connection_goes_on_when_the_next_program_is_killed_or_hangs_with_it(
    hangs: bool, place: Path, autojump_clock: Any
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
            batch = await move_to(channel)
            with batch_of(channel) as (turn, _):
                ((*_, unread, unsent, state),) = batch["connections"]
                assert batch["body"][:unread] == b"half"
                assert len(batch["body"]) == unread + unsent + state
                old.node.send(addresses[1], TCP.Send(b"late\n"))
                if not hangs:
                    channel.close()

                assert await receive(peer, 80_005) == numbered(80_000) + b"late\n"
                await peer.send_all(b" a line\n")
                assert await receive(peer, 14) == b"2 half a line\n"
                assert not take_turn(turn)
        await peer.aclose()


async def test_the_old_program_lets_go_of_a_batch_with_a_taken_turn(
    place: Path, autojump_clock: Any
) -> None:
    async with old_program(door(Visitor, unix=place), limit=inf) as (old, _):
        peer = await greeted(place)
        channel = await connect_to_program("shop")
        assert channel is not None
        with closing(channel):
            await move_to(channel)
            with batch_of(channel) as (turn, _):
                assert take_turn(turn)
                await peer.send_all(b"Ann\n")
                await old.has_ended.wait()
                assert take_at_once(peer) == b""
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
            batch = await move_to(channel)
            with batch_of(channel) as (turn, sockets):
                assert take_turn(turn)
                taken = os.dup(sockets[0])
            old.node.send(addresses[1], TCP.Send(b"late\n"))
            old.node.send(addresses[1], TCP.Close())
            first = take_at_once(peer)  # makes room for more, which the old must not use
            await trio.testing.wait_all_tasks_blocked()
            await channel.say({"begun": 1, "stay": []})
            assert await channel.hear() == {"late": 1, "closes": True, "body": b"late\n"}
            await end_move(channel, 1)
            await old.has_ended.wait()

            async with trio.SocketStream(
                trio.socket.from_stdlib_socket(socket.socket(fileno=taken))
            ) as ours:
                async with trio.open_nursery() as nursery:
                    ((*_, unread, unsent, _),) = batch["connections"]
                    nursery.start_soon(ours.send_all, batch["body"][unread : unread + unsent])
                    assert first + await receive(peer, 80_000 - len(first)) == numbered(80_000)
                await peer.send_all(b"!")
                assert await ours.receive_some(9) == b"!"
            await peer.aclose()


async def test_bytes_for_a_moved_connection_are_forwarded_until_all_have_moved(
    place: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ergo_py.handover.leaving_connections._BATCH", 1)
    addresses, answers, peers = list[PID | Alias](), list[object](), list[trio.SocketStream]()
    leave = LeavingConnections.leave
    async with old_program(door(partial(Visit, [], addresses), unix=place), limit=inf) as (old, _):
        for _ in range(2):
            peers.append(await greeted(place))
        channel = await connect_to_program("shop")
        assert channel is not None

        async def call(size: int) -> None:
            answers.append(await old.node.call(moved, TCP.Send(bytes(size))))

        async def send_and_leave(self: LeavingConnections, *args: Any) -> None:
            old.node.send(moved, TCP.Send(b"last"))
            old.node.send(moved, TCP.Close())
            await leave(self, *args)

        monkeypatch.setattr(LeavingConnections, "leave", send_and_leave)
        with closing(channel):
            number = (await move_to(channel))["connections"][0][0]
            moved = addresses[2 * number - 1]
            assert (await channel.hear())["batch"] == 2
            for descriptor in channel.take_descriptors():
                if S_ISFIFO(os.fstat(descriptor).st_mode):
                    assert take_turn(descriptor)
                os.close(descriptor)
            await channel.say({"begun": 1, "stay": []})
            await trio.testing.wait_all_tasks_blocked()  # the first connection has left
            assert old.node.send(moved, TCP.Send(b"late"))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, 3)
                await trio.testing.wait_all_tasks_blocked()
                assert answers == []
                await channel.say({"begun": 2, "stay": []})
                late = {"late": number, "closes": False, "body": b"late" + bytes(3)}
                assert await channel.hear() == late
            assert answers == [3]
            await end_move(channel, 2)
            assert await channel.hear() == {"late": number, "closes": True, "body": b"last"}
            await old.has_ended.wait()
            assert old.log == []
        for peer in peers:
            await peer.aclose()


async def test_bytes_behind_a_slow_peer_and_in_the_turn_of_the_move_are_forwarded(
    place: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses, leave = list[PID | Alias](), Departure.leave
    children = door(partial(Visit, [], addresses), unix=place, send_buffer=4096, write_limit=1000)
    async with old_program(children, limit=inf) as (old, _):
        peer = await connect(place)
        await peer.send_all(b"Ann\nsend 80000\n")
        assert await receive(peer, 14) == b"welcome\n1 Ann\n"
        channel = await connect_to_program("shop")
        assert channel is not None

        def send_and_leave(self: Departure, *args: Any) -> Any:
            old.node.send(addresses[1], TCP.Send(b"last\n"))
            old.node.send(addresses[1], TCP.Close())
            return leave(self, *args)

        monkeypatch.setattr(Departure, "leave", send_and_leave)
        with closing(channel):
            await move_to(channel)
            with batch_of(channel) as (turn, _):
                assert take_turn(turn)
            for number in range(3):
                old.node.send(addresses[1], TCP.Send(b"%d\n" % number))
            await trio.testing.wait_all_tasks_blocked()
            await channel.say({"begun": 1, "stay": []})
            assert await channel.hear() == {"late": 1, "closes": False, "body": b"0\n1\n2\n"}
            await end_move(channel, 1)
            assert await channel.hear() == {"late": 1, "closes": True, "body": b"last\n"}
            await old.has_ended.wait()
        await peer.aclose()


async def test_an_answer_to_a_batch_without_a_list_is_none_and_the_old_program_serves_on(
    place: Path, autojump_clock: Any
) -> None:
    async with old_program(door(Visitor, unix=place), limit=inf) as (_, _):
        peer = await greeted(place)
        channel = await connect_to_program("shop")
        assert channel is not None
        with closing(channel):
            await move_to(channel)
            with batch_of(channel) as (turn, _):
                await channel.say({"begun": 1})
                await peer.send_all(b"Ann\n")

                assert await receive(peer, 6) == b"1 Ann\n"
                assert not take_turn(turn)
        await peer.aclose()


class Telling(Visitor):
    """Sends messages to a process that has moved, just before its own move."""

    def hand_over(self) -> object:
        for number in range(50):
            self.send("counter", number)
        return 0


async def test_a_session_moves_after_the_messages_that_it_has_sent(
    place: Path, autojump_clock: Any
) -> None:
    async with old_program([*counter(), *door(Telling, unix=place)], limit=inf):
        peer = await greeted(place)
        channel = await connect_to_program("shop")
        assert channel is not None
        with closing(channel):
            for line in (
                REQUEST,
                {"up": True, "takes": ["counter"], "connections": ["door"]},
                {"taken": True},
                {"mine": True},
            ):
                await channel.say(line)
            heard = list[str]()
            while heard[-1:] != ["batch"]:
                heard.append(next(iter(await channel.hear())))
            assert heard == ["sockets", "state", "states", "yours", *["message"] * 50, "batch"]
        await peer.aclose()


async def give_batch(
    channel: Channel, sock: socket.socket, byte: bytes = b".", sent: bytes = b""
) -> None:
    """Play a predecessor up to a batch."""
    for act in PREDECESSOR:
        await act_as_predecessor(channel, act)
    await say_batch(channel, sock, byte, sent)


async def say_batch(
    channel: Channel, sock: socket.socket, byte: bytes = b".", sent: bytes = b""
) -> None:
    """Send a batch of two connections. The second has lost its descriptor."""
    turn = turn_of(byte)
    parts = (b"Ann", sent, b"\x05")
    sizes = [len(part) for part in parts]
    connections = [
        [1, "door", os.fstat(sock.fileno()).st_ino, *sizes],
        [2, "door", 0, *sizes],
    ]
    line = {"batch": 1, "turn": os.fstat(turn).st_ino, "connections": connections}
    await channel.say(line, (turn, sock.fileno()), b"".join(parts) * 2)
    os.close(turn)


async def test_the_next_program_writes_unsent_bytes_before_late_bytes(
    place: Path, autojump_clock: Any
) -> None:
    theirs, ours = socket.socketpair()

    async def play(channel: Channel) -> None:
        with theirs:
            await give_batch(channel, theirs, sent=b"unsent\n")
            assert await channel.hear() == {"begun": 1, "stay": [2]}
        await channel.say({"late": 1, "closes": True}, body=b"late\n")
        await trio.sleep_forever()

    async def check(_: Any) -> None:
        async with trio.SocketStream(trio.socket.from_stdlib_socket(ours)) as peer:
            assert await receive(peer, 12) == b"unsent\nlate\n"
            await peer.send_all(b"a\n")
            assert await peer.receive_some(1) == b""

    await meet_predecessor(place, play, check, [*counter(), *door(Visitor, unix=place)])


async def test_late_bytes_between_the_answer_and_the_first_touch_are_written(
    place: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = socket.socketpair()
    say, write_late, has_come = Channel.say, ArrivingConnections.write_late, trio.Event()

    async def say_and_wait(self: Channel, line: Line, *args: Any, **options: Any) -> None:
        await say(self, line, *args, **options)
        if "begun" in line:
            await has_come.wait()

    def note(self: ArrivingConnections, line: Line) -> None:
        write_late(self, line)
        has_come.set()

    monkeypatch.setattr(Channel, "say", say_and_wait)
    monkeypatch.setattr(ArrivingConnections, "write_late", note)

    async def play(channel: Channel) -> None:
        with theirs:
            await give_batch(channel, theirs, sent=b"unsent\n")
            assert await channel.hear() == {"begun": 1, "stay": [2]}
        await channel.say({"late": 1, "closes": False}, body=b"late\n")
        await trio.sleep_forever()

    async def check(_: Any) -> None:
        async with trio.SocketStream(trio.socket.from_stdlib_socket(ours)) as peer:
            assert await receive(peer, 12) == b"unsent\nlate\n"

    await meet_predecessor(place, play, check, [*counter(), *door(Visitor, unix=place)])


class TakingLater(Plain):
    """Takes its state over when the test lets it."""

    def __init__(self, go_on: trio.Event) -> None:
        self.go_on = go_on

    async def take_over(self, state: Any) -> None:
        await self.go_on.wait()
        self.lines = state


class TakingTogether(Plain):
    """Takes its state over when another does so, too, and tells whether garbage is collected."""

    def __init__(self, begun: list[bool], both: trio.Event) -> None:
        super().__init__()
        self.begun, self.both = begun, both

    async def take_over(self, state: Any) -> None:
        self.begun.append(gc.isenabled())
        if len(self.begun) == 2:
            self.both.set()
        await self.both.wait()
        self.lines = state


class GivenWithoutCollections(Visitor):
    """Notes whether the collector runs while its connection moves."""

    def __init__(self, given: list[bool]) -> None:
        super().__init__()
        self.given = given

    def hand_over(self) -> object:
        self.given.append(gc.isenabled())
        return super().hand_over()


@pytest.mark.parametrize("was_on", [True, False])
async def test_connections_leave_without_collections(
    was_on: bool, place: Path, autojump_clock: Any
) -> None:
    given = list[bool]()
    async with old_program(
        door(partial(GivenWithoutCollections, given), unix=place), limit=inf
    ) as (old, start):
        peers = [await greeted(place) for _ in range(2)]
        await start(door(Visitor, unix=place), limit=inf)
        if not was_on:
            gc.disable()
        try:
            await old.has_ended.wait()
            is_on = gc.isenabled()
        finally:
            gc.enable()
        for peer in peers:
            await peer.aclose()

    assert given == [False, False]
    assert is_on is was_on


@pytest.mark.parametrize("frozen", [0, 1_000])
async def test_sessions_of_a_batch_take_over_together_without_collections(
    frozen: int, place: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, steps = list[bool](), list[str]()
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen)
    monkeypatch.setattr(gc, "freeze", lambda: steps.append("freeze"))
    monkeypatch.setattr(gc, "unfreeze", lambda: steps.append("unfreeze"))
    async with old_program(door(Visitor, unix=place), limit=inf) as (old, start):
        peers = [await greeted(place) for _ in range(2)]
        await start(door(partial(TakingTogether, begun, trio.Event()), unix=place), limit=inf)
        await old.has_ended.wait()
        for peer in peers:
            await peer.send_all(b"Ann\n")
            assert await receive(peer, 6) == b"1 Ann\n"
            await peer.aclose()

    assert begun == [False, False]
    assert gc.isenabled()
    # A program that has frozen objects keeps them so. Here both programs are this one.
    assert steps == ([] if frozen else ["freeze", "unfreeze"] * 2)


async def test_the_next_program_serves_the_batch_of_an_ended_predecessor(
    place: Path, autojump_clock: Any
) -> None:
    theirs, ours = socket.socketpair()
    go_on = trio.Event()

    async def play(channel: Channel) -> None:
        with theirs:
            await give_batch(channel, theirs)

    async def check(new: Any) -> None:
        await new.serves.wait()
        await trio.testing.wait_all_tasks_blocked()
        go_on.set()
        async with trio.SocketStream(trio.socket.from_stdlib_socket(ours)) as peer:
            await peer.send_all(b" Lee\n")
            assert await receive(peer, 10) == b"6 Ann Lee\n"

    children = [*counter(), *door(partial(TakingLater, go_on), unix=place)]
    await meet_predecessor(place, play, check, children)


async def test_the_next_program_discards_a_batch_without_a_turn(
    place: Path, autojump_clock: Any
) -> None:
    theirs, ours = socket.socketpair()
    answered = trio.Event()

    async def play(channel: Channel) -> None:
        await give_batch(channel, theirs, b"")
        assert await channel.hear() == {"begun": 1, "stay": [1, 2]}
        answered.set()
        await trio.sleep_forever()

    async def check(new: Any) -> None:
        await answered.wait()
        theirs.send(b"!")
        assert ours.recv(9) == b"!"
        ours.send(b"Lee\n")
        assert theirs.recv(9) == b"Lee\n"

    with theirs, ours:
        await meet_predecessor(place, play, check, [*counter(), *door(Visitor, unix=place)])


async def test_a_program_forgets_moved_sessions_when_its_predecessor_has_ended(
    place: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[ArrivingConnections]()

    def make(*arguments: Any) -> ArrivingConnections:
        made.append(ArrivingConnections(*arguments))
        return made[-1]

    monkeypatch.setattr("ergo_py.handover.moved_processes.ArrivingConnections", make)
    async with old_program(door(Visitor, unix=place), limit=inf) as (old, start):
        peer = await greeted(place)
        await start(door(Visitor, unix=place), limit=inf)
        await old.has_ended.wait()
        await peer.send_all(b"Ann\n")
        assert await receive(peer, 6) == b"1 Ann\n"
        await trio.sleep(1)  # virtual: it hears that the old program has ended
        with pytest.raises(KeyError):
            made[-1].session(1)
        await peer.aclose()


@pytest.mark.parametrize("step", ["init", "take_over"])
async def test_a_program_that_stops_in_the_middle_of_a_batch_closes_its_descriptors(
    step: str, place: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Plain):
        async def init(self) -> None:
            if step == "init":
                begun.set()
                await trio.sleep(0.9)

        async def take_over(self, state: object) -> None:
            begun.set()
            await trio.sleep(0.9)

    begun, arrived, keep = trio.Event(), dict[int, int](), ArrivingConnections.keep

    def note(self: ArrivingConnections, descriptors: list[int]) -> None:
        arrived.update((number, os.fstat(number).st_ino) for number in descriptors)
        keep(self, descriptors)

    def is_open(number: int, inode: int) -> bool:
        with suppress(OSError):
            return os.fstat(number).st_ino == inode
        return False

    monkeypatch.setattr(ArrivingConnections, "keep", note)
    async with old_program(door(Visitor, unix=place), limit=inf) as (_, start):
        peers = [await greeted(place) for _ in range(3)]
        new = await start(door(Slow, unix=place), limit=inf)
        await begun.wait()
        assert len(arrived) == 4  # with the turn
        new.node.stop()
        for peer in peers:
            await peer.aclose()
    assert not [each for each in arrived.items() if is_open(*each)]


async def test_a_program_hands_over_when_all_connections_of_its_predecessor_have_come(
    place: Path, autojump_clock: Any
) -> None:
    asked, answers = trio.Event(), list[str]()

    async def play(channel: Channel) -> None:
        for act in PREDECESSOR:
            await act_as_predecessor(channel, act)
        await asked.wait()
        await trio.testing.wait_all_tasks_blocked()
        answers.append("moved")
        await channel.say({"moved": 0})
        await trio.sleep_forever()

    async def check(new: Any) -> None:
        await new.serves.wait()
        channel = await connect_to_program("shop")
        assert channel is not None
        with closing(channel):
            await channel.say(REQUEST)
            asked.set()
            answers.extend(await channel.hear())

    await meet_predecessor(place, play, check, [*counter(), *door(Visitor, unix=place)])
    assert answers == ["moved", "sockets"]
