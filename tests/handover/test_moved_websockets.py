"""WebSockets that move from a program to its successor. Both are nodes of this test program; each
has named sockets of its own.
"""

import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from itertools import cycle
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from ergo_py import PID, Actor, Alias, Caller, ChildSpec
from ergo_py._core.verbs.node_access import kernel_of
from ergo_py.handover.channel import Channel, take_turn
from ergo_py.handover.channel import connect as connect_to_program
from ergo_py.meta import TLSFiles
from ergo_py.meta.sockets.listener import listeners_of
from ergo_py.meta.sockets.messages import Cause
from ergo_py.meta.sockets.streams.departure import Departure
from ergo_py.web import WS, Mount, Response, Route, WebServer
from ergo_py.web.parsing.deflate import Deflate
from ergo_py.web.parsing.frames import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    WebSocketParser,
    encode_frame,
)
from examples.guide.moved_session import Visitor
from tests.actors import LogKeeper
from tests.handover.test_moved_connections import (
    Door,
    batch_of,
    door,
    end_move,
    greeted,
    move_to,
    numbered,
    own_sockets,
    receive,
)
from tests.handover.test_moved_processes import counter, fail, old_program
from tests.handover.test_steps import (
    PREDECESSOR,
    act_as_predecessor,
    check_waits_for_successors,
    meet_predecessor,
    turn_of,
)
from tests.handover.test_succession import place
from tests.support import loopback_of_this_program
from tests.web.rig import Peer, get
from tests.web.test_asgi_websocket import shout
from tests.web.test_streams import PLACE
from tests.web.test_websocket import MASK, Client, upgrade

__all__ = ["own_sockets", "place"]

RESTART = (CLOSE, "", 1012)

# These tests run in real time: TCP has timers of its own, for which a virtual clock would not wait.


@pytest.fixture
def clock() -> trio.testing.MockClock:
    """Real time, in which the test may jump."""
    return trio.testing.MockClock(rate=1.0)


class Talk(Actor):
    """Numbers the messages of its peer, and sends each back."""

    connection: Alias

    def __init__(self, heard: list[Any] | None = None, pids: list[PID] | None = None) -> None:
        self.count = 0
        self.heard: list[Any] = [] if heard is None else heard
        self.pids: list[PID] = [] if pids is None else pids

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        self.heard.append(message)
        self.pids.append(self.pid)
        match message:
            case WS.Text(connection, text):
                self.count += 1
                self.send(connection, WS.Send(f"{self.count} {text}"))
            case WS.Binary(connection, data):
                self.send(connection, WS.Send(numbered(int(data))))

    def hand_over(self) -> object:
        return self.count

    def take_over(self, state: int) -> None:
        self.count = state


class Staying(Actor):
    """Has no methods for a move."""


def site(*routes: Any, **options: Any) -> list[ChildSpec]:
    host = loopback_of_this_program()
    make = partial(WebServer, host, 7791, sock="door", routes=routes, **options)
    return [ChildSpec("door", Door, make)]


def talks(
    heard: list[Any] | None = None, pids: list[PID] | None = None, **options: Any
) -> list[ChildSpec]:
    # The peers of these tests answer no pings.
    options = {"ping_interval": 1e6, **options}
    return site(Route("/talk", websocket=partial(Talk, heard, pids), **options))


async def dial(*fields: str, path: str = "/talk") -> Client:
    """Open a WebSocket."""
    peer = Peer(await trio.open_tcp_stream(loopback_of_this_program(), 7791))
    assert (await peer.ask(upgrade(path, *fields))).status == 101
    return Client(peer)


def part(opcode: int, payload: bytes, *, compressed: bool = False) -> bytes:
    """A frame that is not the last of its message."""
    whole = encode_frame(opcode, payload, MASK, compressed=compressed)
    return bytes((whole[0] & 0x7F,)) + whole[1:]


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "compressed"])
async def test_no_message_of_a_moved_websocket_is_lost_doubled_or_reordered(
    compress: bool, place: Path
) -> None:
    """The peer sends pieces that end anywhere in a frame, reads at its own pace, and compares."""
    texts = ["a" * size for size in (0, 1, 126, 2000, 5)] * 60
    fields = ("Sec-WebSocket-Extensions: permessage-deflate",) if compress else ()
    stream, ends = b"", list[int]()
    for text in texts:
        if compress and len(text) > 1000:
            stream += encode_frame(TEXT, Deflate().compress(text.encode()), MASK, compressed=True)
        else:
            stream += encode_frame(TEXT, text.encode(), MASK)
        ends.append(len(stream))
    async with old_program(talks(compress=compress), limit=inf) as (old, start):
        client, programs = await dial(*fields), [old]
        client.parser = type(client.parser)(
            is_masked=False, max_message=1 << 24, deflate=Deflate() if compress else None
        )
        begin, sizes = 0, cycle((1, 7, 409, 13, 6007))
        for number, text in enumerate(texts, 1):
            # Some messages are always on their way.
            while begin < ends[min(number + 10, len(texts) - 1)]:
                end = begin + next(sizes)
                await client.peer.send(stream[begin:end])
                begin = end
            assert await client.next() == (TEXT, f"{number} {text}", 0)
            if number in (1, 100, 200):
                programs.append(await start(talks(compress=compress), limit=inf))
                await programs[-1].serves.wait()
        for program in programs[:-1]:
            await program.has_ended.wait()
        await client.send(TEXT, b"end")
        assert await client.next() == (TEXT, f"{len(texts) + 1} end", 0)
        await client.peer.aclose()


def keep_few_bytes(old: Any) -> None:
    """Let the system keep few bytes for the peers of later connections."""
    with socket.socket(fileno=os.dup(old.sockets.to_hand_over()["door"])) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


UNREAD: dict[str, tuple[bytes, bytes, str]] = {
    "half a frame": (
        encode_frame(TEXT, b"half", MASK)[:7],
        encode_frame(TEXT, b"half", MASK)[7:],
        "half",
    ),
    "half a head": (b"\x81", encode_frame(TEXT, b"half", MASK)[1:], "half"),
    "fragments": (
        part(TEXT, "one €".encode()[:5]) + encode_frame(PING, b"?", MASK),
        encode_frame(0, "one €".encode()[5:], MASK),
        "one €",
    ),
}


@pytest.mark.parametrize("case", UNREAD)
async def test_an_incomplete_message_and_unsent_bytes_move_with_a_websocket(
    case: str, place: Path
) -> None:
    before, after, size = list[Any](), list[Any](), 800_000
    (first, second, text), log = UNREAD[case], list[Any]()
    async with old_program(talks(before), log_level="info", limit=inf) as (old, start):
        old.node.add_logger(await old.node.spawn(LogKeeper, log), "info")
        keep_few_bytes(old)
        client = await dial()
        ask = encode_frame(TEXT, b"Ann", MASK) + encode_frame(BINARY, b"%d" % size, MASK)
        await client.peer.send(ask + first)
        # A pong comes before the answers of the session.
        expected = [(TEXT, "1 Ann", 0), (BINARY, numbered(size), 0)]
        if case == "fragments":
            expected.insert(0, (PONG, b"?", 0))
        assert [await client.next() for _ in expected[:-1]] == expected[:-1]

        facts = await old.node.inspect_meta(before[0].connection, "pending", "unfinished")
        assert all(int(count) for count in facts.values()), facts
        await start(talks(after), limit=inf)
        assert await client.next() == expected[-1]
        await old.has_ended.wait()
        await client.peer.send(second)
        assert await client.next() == (TEXT, f"2 {text}", 0)
        assert [type(message) for message in before] == [WS.Connected, WS.Text, WS.Binary]
        assert [type(message) for message in after] == [WS.Text]
        (taken,) = (record for record in log if record.event == "a successor has taken over")
        assert (taken.fields["connections"], taken.fields["staying"]) == (1, {})
        await client.peer.aclose()


CAUSES = {
    "no route": "there is no route with the prefix '/talk' for WebSockets",
    "shorter prefix": "there is no route with the prefix '/talk' for WebSockets",
    "other protocol": "the connection is a WebSocket of the route '/talk'; a TCPServer takes none",
}
"""What the next program says of connections that it refuses."""

STAYING: dict[str, tuple[list[ChildSpec], list[ChildSpec], str, str]] = {
    "no methods": (
        site(Route("/talk", websocket=Staying)),
        talks(),
        "/talk",
        "sessions without hand_over",
    ),
    "not taken": (talks(), site(Route("/talk", websocket=Staying)), "/talk", "not taken by the"),
    "no route": (talks(), site(Route("/other", websocket=Talk)), "/talk", "refused by the"),
    "shorter prefix": (talks(), site(Route("/", websocket=Talk)), "/talk", "refused by the"),
    "other protocol": (talks(), door(Talk), "/talk", "refused by the"),
    "application": (
        site(Mount("/api", asgi=shout), Route("/talk", websocket=Talk)),
        talks(),
        "/api",
        "sessions without hand_over",
    ),
}


@pytest.mark.parametrize("case", STAYING)
async def test_a_websocket_that_cannot_move_is_closed_with_the_code_of_a_restart(
    case: str, place: Path
) -> None:
    children, following, path, why = STAYING[case]
    log = list[Any]()
    async with old_program(children, log_level="info", limit=inf) as (old, start):
        old.node.add_logger(await old.node.spawn(LogKeeper, log), "info")
        client = await dial(path=path)
        new = await start(following, limit=inf)
        assert await client.next() == RESTART
        await client.send(CLOSE, (1012).to_bytes(2, "big"))
        assert await client.peer.rest() == b""
        await client.peer.aclose()
        await old.has_ended.wait()
        (taken,) = (record for record in log if record.event == "a successor has taken over")
        assert taken.fields["connections"] == 0
        ((found, count),) = taken.fields["staying"].items()
        assert found.startswith(why)
        assert count == 1
        assert errors_of(new) == ([CAUSES[case]] if case in CAUSES else [])


def errors_of(program: Any) -> list[object]:
    """The errors in the log of a program, which also warns of the port of its predecessor."""
    return [record.fields["error"] for record in program.log if "error" in record.fields]


async def test_a_connection_that_is_no_websocket_stays_if_a_web_server_follows(
    place: Path,
) -> None:
    async with old_program(door(Visitor), limit=inf) as (old, start):
        stream = await greeted()
        new = await start(talks(), limit=inf)
        await new.serves.wait()
        await stream.send_all(b"Ann\n")
        assert await receive(stream, 6) == b"1 Ann\n"
        await stream.aclose()
        await old.has_ended.wait()
        assert errors_of(new) == ["the connection is no WebSocket; a WebServer takes only these"]


async def test_a_websocket_over_tls_is_closed_with_the_code_of_a_restart(place: Path) -> None:
    children = site(
        Route("/talk", websocket=Talk), tls=TLSFiles(PLACE / "server.pem", PLACE / "server.key")
    )
    context = ssl.create_default_context(cafile=str(PLACE / "authority.pem"))
    async with old_program(children, limit=inf) as (old, start):
        stream = await trio.open_tcp_stream(loopback_of_this_program(), 7791)
        peer = Peer(trio.SSLStream(stream, context, server_hostname="localhost"))
        assert (await peer.ask(upgrade("/talk"))).status == 101
        client = Client(peer)
        await start(children, limit=inf)
        assert await client.next() == RESTART
        await client.send(CLOSE, (1012).to_bytes(2, "big"))
        assert await peer.rest() == b""
        await peer.aclose()
        await old.has_ended.wait()


async def test_a_websocket_that_closes_at_the_turn_ends_in_the_old_program(place: Path) -> None:
    heard = list[Any]()
    async with old_program(talks(heard), limit=inf) as (old, start):
        client, web = (
            await dial(),
            Peer(await trio.open_tcp_stream(loopback_of_this_program(), 7791)),
        )
        await client.send(TEXT, b"Ann")
        assert await client.next() == (TEXT, "1 Ann", 0)
        old.node.send(heard[0].connection, WS.Close(4001, "enough"))
        assert await client.next() == (CLOSE, "enough", 4001)

        new = await start(talks(), limit=inf)
        await new.serves.wait()
        await client.send(CLOSE, (4001).to_bytes(2, "big"))
        assert await client.peer.rest() == b""
        assert await web.rest() == b""  # the peer has not asked yet: it connects again
        for peer in (client.peer, web):
            await peer.aclose()
        await old.has_ended.wait()
        assert isinstance(heard[-1], WS.Disconnected)


@asynccontextmanager
async def talked(place: Path, **options: Any) -> AsyncIterator[Any]:
    """A program with a WebSocket; its session, the client, and the channel of a successor, which
    the test plays.
    """
    heard, pids = list[Any](), list[PID]()
    async with old_program(talks(heard, pids, **options), limit=inf) as (old, _):
        client = await dial()
        await client.peer.send(
            encode_frame(TEXT, b"Ann", MASK) + encode_frame(TEXT, b"half", MASK)[:7]
        )
        assert await client.next() == (TEXT, "1 Ann", 0)
        channel = await connect_to_program("shop")
        assert channel is not None
        with closing(channel):
            yield SimpleNamespace(old=old, heard=heard, pids=pids), client, channel
        await client.peer.aclose()


@pytest.mark.parametrize("hangs", [False, True], ids=["killed", "hangs"])
async def test_a_websocket_goes_on_when_the_next_program_is_killed_or_hangs_with_it(
    hangs: bool, place: Path, clock: trio.testing.MockClock
) -> None:
    async with talked(place) as (talk, client, channel):
        batch = await move_to(channel)
        with batch_of(channel) as (turn, _):
            assert batch["connections"][0][-2:] == ["/talk", 0]
            talk.old.node.send(talk.heard[0].connection, WS.Send("late"))
            await client.peer.send(encode_frame(TEXT, b"half", MASK)[7:])
            if hangs:
                await trio.testing.wait_all_tasks_blocked()  # the old program awaits the answer
                clock.jump(10)
            else:
                channel.close()
            assert await client.next() == (TEXT, "late", 0)
            if not hangs:
                assert await client.next() == (TEXT, "2 half", 0)
                assert not take_turn(turn)
                await check_waits_for_successors()
                assert not talk.old.has_ended.is_set()
                return
            # The message that was on its way has its answer before the close, or none.
            assert await client.next() in (RESTART, (TEXT, "2 half", 0))
            assert not take_turn(turn)
            await client.send(CLOSE, (1012).to_bytes(2, "big"))
            await client.peer.rest()
            await client.peer.aclose()
            await talk.old.has_ended.wait()
        assert talk.heard[-2].text == "half"
        assert isinstance(talk.heard[-1], WS.Disconnected)


def end_while_messages_wait(old: Any, to: Any) -> None:
    """The connection is told to end, and its handler has not run since."""
    old.node.send(to.connection, WS.Send("late"))
    (server,) = listeners_of(kernel_of(old.node))
    (connection,) = server.open_connections()
    assert connection.end_stream(True)


LATE: dict[str, tuple[Callable[[Any, Any], None], list[Any]]] = {
    "message": (lambda old, to: old.node.send(to.connection, WS.Send("late")), [(TEXT, "late", 0)]),
    "close": (
        lambda old, to: old.node.send(to.connection, WS.Close(4001, "bye")),
        [(CLOSE, "bye", 4001)],
    ),
    "end": (end_while_messages_wait, [(TEXT, "late", 0), (CLOSE, "", 1001)]),
}


@pytest.mark.parametrize("case", LATE)
async def test_frames_that_a_process_sends_during_the_move_are_forwarded(
    case: str, place: Path
) -> None:
    act, expected = LATE[case]
    async with talked(place) as (talk, client, channel):
        await move_to(channel)
        with batch_of(channel) as (turn, _):
            assert take_turn(turn)
            act(talk.old, talk.heard[0])
            await trio.testing.wait_all_tasks_blocked()
            await channel.say({"begun": 1, "stay": []})
            late = await channel.hear()
            assert (late["late"], late["closes"]) == (1, case != "message")
            client.peer.buffer = late["body"]
            assert [await client.next() for _ in expected] == expected
            await end_move(channel, 1)
            await talk.old.has_ended.wait()
            # Neither session nor peer heard of an end.
            assert talk.old.log == []
            assert [type(message) for message in talk.heard] == [WS.Connected, WS.Text]
            with pytest.raises(BlockingIOError):
                os.read(client.peer.stream.socket.fileno(), 1)


async def test_frames_behind_a_slow_peer_and_in_the_turn_of_the_move_are_forwarded(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, leave = list[Any](), Departure.leave
    route = Route("/talk", websocket=partial(Talk, heard), ping_interval=1e6)
    async with old_program(site(route, write_limit=1000), limit=inf) as (old, _):
        keep_few_bytes(old)
        client = await dial()
        await client.peer.send(
            encode_frame(TEXT, b"Ann", MASK) + encode_frame(BINARY, b"800000", MASK)
        )
        assert await client.next() == (TEXT, "1 Ann", 0)
        channel = await connect_to_program("shop")
        assert channel is not None
        to = heard[0].connection

        def send_and_leave(self: Departure, *args: Any) -> Any:
            old.node.send(to, WS.Send("last"))
            old.node.send(to, WS.Close(4001, "bye"))
            return leave(self, *args)

        monkeypatch.setattr(Departure, "leave", send_and_leave)
        with closing(channel):
            await move_to(channel)
            with batch_of(channel) as (turn, _):
                assert take_turn(turn)
            for number in range(3):
                old.node.send(to, WS.Send(f"{number}"))
            await channel.say({"begun": 1, "stay": []})
            late = await channel.hear()
            await end_move(channel, 1)
            last = await channel.hear()
            assert (late["closes"], last["closes"]) == (False, True)
            client.peer.buffer = late["body"] + last["body"]
            forwarded = Client(client.peer)
            expected = [
                *((TEXT, text, 0) for text in ("0", "1", "2", "last")),
                (CLOSE, "bye", 4001),
            ]
            assert [await forwarded.next() for _ in expected] == expected
            await old.has_ended.wait()
        await client.peer.aclose()


async def test_a_session_that_ends_during_the_move_closes_its_websocket(place: Path) -> None:
    async with talked(place) as (talk, _, channel):
        await move_to(channel)
        with batch_of(channel) as (turn, _):
            assert take_turn(turn)
        talk.old.node.kill(talk.pids[0])
        await trio.testing.wait_all_tasks_blocked()
        await channel.say({"begun": 1, "stay": []})
        late = await channel.hear()
        assert (late["late"], late["closes"]) == (1, True)
        await end_move(channel, 1)
        await talk.old.has_ended.wait()


async def test_a_ping_without_an_answer_during_the_move_is_no_reason_to_end(
    place: Path, clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ergo_py.handover.leaving_connections._ANSWER", inf)
    async with talked(place, ping_interval=100.0) as (_, client, channel):
        await move_to(channel)
        with batch_of(channel) as (turn, _):
            assert take_turn(turn)
            for _ in range(3):
                clock.jump(100)
                await trio.testing.wait_all_tasks_blocked()
            await channel.say({"begun": 1, "stay": [1]})
            await end_move(channel, 0)
        assert [await client.next() for _ in range(4)] == [(PING, b"", 0)] * 3 + [RESTART]


async def test_a_look_at_a_websocket_that_is_not_ready_copies_none_of_its_message(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with talked(place) as (talk, _, _):
        (server,) = listeners_of(kernel_of(talk.old.node))
        (connection,) = server.open_connections()
        departure = connection.departure()
        assert departure is not None
        monkeypatch.setattr(WebSocketParser, "rest", fail)
        connection.cut(Cause.ASKED, "it ends")
        assert departure.collect() is None


CLOSES = {
    "frame": (encode_frame(CLOSE, b"\x0f\xa1"), [(CLOSE, "", 4001)]),
    "no frame": (b"", [(CLOSE, "", 1001)]),
}


@pytest.mark.parametrize("case", CLOSES)
async def test_the_next_program_goes_on_with_a_websocket_and_writes_late_frames(
    case: str, place: Path
) -> None:
    frame, expected = CLOSES[case]
    with socket.create_server((loopback_of_this_program(), 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
    heard, answered = list[Any](), trio.Event()

    async def play(channel: Channel) -> None:
        for act in PREDECESSOR:
            await act_as_predecessor(channel, act)
        turn = turn_of(b".")
        parts = encode_frame(TEXT, b"half", MASK)[:7], encode_frame(TEXT, b"unsent"), b"\x05"
        facts = [1, "door", os.fstat(theirs.fileno()).st_ino, *map(len, parts), "/talk", 0]
        line = {"batch": 1, "turn": os.fstat(turn).st_ino, "connections": [facts]}
        with theirs:
            await channel.say(line, (turn, theirs.fileno()), b"".join(parts))
        os.close(turn)
        assert await channel.hear() == {"begun": 1, "stay": []}
        await answered.wait()
        await channel.say({"late": 1, "closes": True}, body=frame)
        await trio.sleep_forever()

    async def check(_: Any) -> None:
        ours.setblocking(False)
        async with trio.SocketStream(trio.socket.from_stdlib_socket(ours)) as stream:
            client = Client(Peer(stream))
            await client.peer.send(encode_frame(TEXT, b"half", MASK)[7:])
            assert await client.next() == (TEXT, "unsent", 0)
            assert await client.next() == (TEXT, "6 half", 0)
            answered.set()
            assert [await client.next()] == expected
            await client.send(CLOSE, b"\x0f\xa1")
            assert await client.peer.rest() == b""

    await meet_predecessor(place, play, check, [*counter(), *talks(heard)])


class Later(Actor):
    """Answers requests when the test lets it."""

    def __init__(self, asked: trio.Event, go_on: trio.Event) -> None:
        self.asked, self.go_on = asked, go_on

    async def handle_call(self, request: object, caller: Caller) -> object:
        self.asked.set()
        await self.go_on.wait()
        return Response(200, "done")


async def test_requests_beside_moved_websockets_are_served_to_their_end(place: Path) -> None:
    log, asked, go_on = list[Any](), trio.Event(), trio.Event()
    children = [
        ChildSpec("later", Later, asked, go_on),
        *site(Route("/talk", websocket=Talk), Route("/", to="later")),
    ]
    async with old_program(children, log_level="info", limit=inf) as (old, start):
        old.node.add_logger(await old.node.spawn(LogKeeper, log), "info")
        web = Peer(await trio.open_tcp_stream(loopback_of_this_program(), 7791))
        client = await dial()
        await web.send(get("/"))
        await asked.wait()
        new = await start(children, limit=inf)
        await new.serves.wait()
        await client.send(TEXT, b"Ann")
        assert await client.next() == (TEXT, "1 Ann", 0)
        go_on.set()
        assert (await web.reply()).body == b"done"
        for peer in (client.peer, web):
            await peer.aclose()
        await old.has_ended.wait()
        (taken,) = (record for record in log if record.event == "a successor has taken over")
        assert (taken.fields["connections"], taken.fields["staying"]) == (1, {"HTTP": 1})
