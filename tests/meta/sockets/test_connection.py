"""Connections over stream sockets: the same promises over TCP and Unix sockets, with reader threads
and with reader tasks.
"""

import gc
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import (
    BadInputError,
    Custom,
    Down,
    InitError,
    Normal,
    Priority,
    Reject,
    TargetDownError,
    open_node,
)
from ergo_py.meta import TCP
from ergo_py.meta.parsing.framing import Delimiter, LengthHeader, Netstring
from ergo_py.meta.sockets.messages import (
    Cause,
    TCPClose,
    TCPConnected,
    TCPData,
    TCPDisconnected,
    TCPFrames,
    TCPSend,
    TCPSet,
)
from ergo_py.testing import VirtualClock
from tests.actors import Puppet
from tests.meta.support import (
    connection_options,
    connections_of,
    has_searched_mailbox,
    has_unfinished_frame,
    is_closing,
    is_half_closed,
    look_at_clock,
    look_at_close,
    meta_of,
    waits_to_close,
)
from tests.meta.wires import Ear, Mail, MovableClock, Wire, serve, spawn_meta, until, wired_node
from tests.support import open_descriptors, refused

MEBI = 1024 * 1024


def some_bytes(count: int) -> bytes:
    return (bytes(range(251)) * (count // 251 + 1))[:count]


# -- talking ---------------------------------------------------------------------------------------


async def test_a_peer_causes_messages_about_connection_data_and_end(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire)

        stream = await wire.dial(server)
        await stream.send_all(b"hello")
        answer = await stream.receive_some()
        await stream.aclose()
        await mail.first(TCPDisconnected)

        connected, data, disconnected = mail.heard
        assert answer == b"hello"
        assert isinstance(connected, TCPConnected)
        assert connected.server == server.id
        assert connected.local == server.local
        assert connected.tls is None
        assert data == TCPData(connected.connection, b"hello")
        assert isinstance(disconnected, TCPDisconnected)
        assert disconnected.connection == connected.connection
        assert disconnected.reason is Cause.EOF
        assert (disconnected.bytes_in, disconnected.bytes_out, disconnected.detail) == (5, 5, "")
        assert disconnected.duration > 0


async def test_the_connected_message_has_the_address_of_the_peer(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire)

        with wire.dial_plain(server) as sock:
            connected = await mail.first(TCPConnected)

            assert connected.peer == (sock.getsockname() if wire.kind == "tcp" else "")


async def test_a_client_and_a_server_of_ours_talk_in_both_directions(wire: Wire) -> None:
    async with wired_node() as node:
        server, _ = await serve(node, wire)
        mail = Mail()
        owner = await node.spawn(Ear, mail)

        alias = await spawn_meta(node, owner, wire.client(server))
        node.send(alias, TCPSend(b"one"))
        await mail.bytes(3)
        node.send(alias, TCPSend(b"two"))

        assert await mail.bytes(6) == b"onetwo"
        connected = mail.of(TCPConnected)[0]
        assert connected.connection == alias
        assert connected.peer == server.local
        assert connected.server is None


async def test_megabytes_go_through_unchanged_in_both_directions_at_once(wire: Wire) -> None:
    sent = some_bytes(6 * MEBI)
    async with wired_node() as node:
        server, _ = await serve(node, wire)
        mail = Mail()
        owner = await node.spawn(Ear, mail)
        alias = await spawn_meta(node, owner, wire.client(server))

        for begin in range(0, len(sent), 100_000):
            await node.call(alias, TCPSend(sent[begin : begin + 100_000]), timeout=20)
        got = await mail.bytes(len(sent))

        assert got == sent


async def test_many_frames_arrive_whole_and_in_order(wire: Wire) -> None:
    lines = [f"line {number}: {'x' * 50}" for number in range(4_000)]
    async with wired_node() as node:
        server, mail = await serve(node, wire, None, framing=Delimiter(b"\n"))

        stream = await wire.dial(server)
        await stream.send_all("".join(line + "\n" for line in lines).encode())
        await mail.wait_for(TCPData, len(lines))

        assert [message.data.decode() for message in mail.of(TCPData)] == lines
        await stream.aclose()


async def test_all_frames_of_a_read_may_arrive_in_a_single_message(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire, None, framing=Delimiter(b"\n"), batch=True)

        stream = await wire.dial(server)
        await stream.send_all(b"one\ntwo\n\nthr")
        first = await mail.first(TCPFrames)
        await stream.send_all(b"ee\n")
        await mail.wait_for(TCPFrames, 2)
        node.send(first.connection, TCPSend([b"an", b"sw", b"er"]))

        assert await stream.receive_some() == b"answer"
        assert [message.frames for message in mail.of(TCPFrames)] == [
            [b"one", b"two", b""],
            [b"three"],
        ]
        assert mail.of(TCPData) == []
        assert first.connection == mail.of(TCPConnected)[0].connection
        await stream.aclose()


async def test_batched_frames_before_a_protocol_error_are_delivered(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire, None, framing=Netstring(), batch=True)

        stream = await wire.dial(server)
        await stream.send_all(b"2:ok,3:bad;")
        disconnected = await mail.first(TCPDisconnected)

        assert [message.frames for message in mail.of(TCPFrames)] == [[b"ok"]]
        assert disconnected.reason is Cause.PROTOCOL_ERROR
        await stream.aclose()


def test_batches_need_frames(wire: Wire) -> None:
    with pytest.raises(BadInputError, match="raw streams have no frames"):
        wire.server(batch=True)


@pytest.mark.parametrize("data", ["text", ["text"], (b"x", 5), 7, None])
def test_only_bytes_can_be_sent(data: Any) -> None:
    with pytest.raises(BadInputError, match="encode text first"):
        TCPSend(data)


class Session(Puppet):
    """Notes its connection when it gets its first message; it may have set something else
    before.
    """

    def __init__(self, seen: list[object], own: object = None) -> None:
        super().__init__()
        self.seen = seen
        if own is not None:
            self.connection = own

    async def handle_message(self, message: Any, sender: Any) -> None:
        self.seen.append((self.connection, message))


async def test_an_actor_created_for_a_connection_knows_its_alias(wire: Wire) -> None:
    seen: list[Any] = []
    async with wired_node() as node:
        owner = await node.spawn(Puppet)
        server = wire.server(receiver=partial(Session, seen))
        await spawn_meta(node, owner, server)

        async with await wire.dial(server):
            await until(lambda: seen)

        connection, message = seen[0]
        assert isinstance(message, TCPConnected)
        assert connection == message.connection


async def test_an_actor_may_have_an_attribute_named_connection(wire: Wire) -> None:
    seen: list[Any] = []
    async with wired_node() as node:
        owner = await node.spawn(Puppet)
        server = wire.server(receiver=partial(Session, seen, "of a database"))
        await spawn_meta(node, owner, server)

        async with await wire.dial(server):
            await until(lambda: seen)

        assert seen[0][0] == "of a database"


@pytest.mark.counted
async def test_the_error_about_a_missing_connection_names_the_receiver_option() -> None:
    async with wired_node() as node:
        pid = await node.spawn(Puppet)

        text = await node.call(pid, refused(AttributeError, lambda me: me.connection))

        assert "receiver=Session" in text


async def test_connections_do_not_disturb_each_other(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire)
        streams = [await wire.dial(server) for _ in range(30)]
        answers: dict[int, bytes] = {}

        async def talk(number: int, stream: trio.SocketStream) -> None:
            text = f"{number};".encode() * 50
            for begin in range(0, len(text), 7):
                await stream.send_all(text[begin : begin + 7])
            await stream.send_eof()
            answers[number] = b"".join([part async for part in stream])

        async with trio.open_nursery() as nursery:
            for number, stream in enumerate(streams):
                nursery.start_soon(talk, number, stream)

        assert answers == {number: f"{number};".encode() * 50 for number in range(30)}
        assert len({message.connection for message in mail.of(TCPConnected)}) == 30
        for stream in streams:
            await stream.aclose()


# -- how it ends -----------------------------------------------------------------------------------


async def test_requests_before_the_half_close_of_the_peer_are_answered(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire)
        question = some_bytes(MEBI)

        async def ask(stream: trio.SocketStream) -> None:
            await stream.send_all(question)
            await stream.send_eof()

        stream = await wire.dial(server)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, stream)
            answer = b"".join([part async for part in stream])

        assert answer == question
        assert (await mail.first(TCPDisconnected)).reason is Cause.EOF
        await stream.aclose()


async def test_an_unfinished_frame_is_reported_and_not_delivered(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire, None, framing=LengthHeader(size=2))

        stream = await wire.dial(server)
        await stream.send_all(b"\0\2ab\0\x09only")
        await stream.aclose()
        disconnected = await mail.first(TCPDisconnected)

        assert [message.data for message in mail.of(TCPData)] == [b"ab"]
        assert disconnected.reason is Cause.TRUNCATED
        assert "after 6 bytes" in disconnected.detail


async def test_a_hostile_header_ends_that_connection_only(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(
            node, wire, framing=LengthHeader(size=4, strip=False, max_frame=100)
        )
        good, bad = await wire.dial(server), await wire.dial(server)

        await bad.send_all(b"\0\0\0\1x\xff\xff\xff\xff")
        disconnected = await mail.first(TCPDisconnected)
        await good.send_all(b"\0\0\0\1y")

        assert await good.receive_some() == b"\0\0\0\1y"
        assert disconnected.reason is Cause.PROTOCOL_ERROR
        assert "at most 100" in disconnected.detail
        assert [message.data[4:] for message in mail.of(TCPData)] == [b"x", b"y"]
        await good.aclose()
        await bad.aclose()


async def test_a_reset_by_the_peer_is_reported_as_a_reset(tmp_path: Path) -> None:
    for reader in ("thread", "task"):
        wire = Wire("tcp", reader, tmp_path)
        async with wired_node() as node:
            server, mail = await serve(node, wire)
            sock = wire.dial_plain(server)
            await mail.first(TCPConnected)

            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            sock.close()

            assert (await mail.first(TCPDisconnected)).reason is Cause.RESET


async def test_closing_flushes_first_and_lets_the_peer_close_its_half(wire: Wire) -> None:
    content = some_bytes(3 * MEBI)

    def react(me: Ear, message: object) -> None:
        if isinstance(message, TCPConnected):
            me.send(message.connection, TCPSend(content))
            me.send(message.connection, TCPClose())
            me.send(message.connection, TCPSend(b"too late"))

    async with wired_node() as node:
        server, mail = await serve(node, wire, react)

        stream = await wire.dial(server)
        got = b"".join([part async for part in stream])
        await stream.send_all(b"heard you")
        await stream.send_eof()
        disconnected = await mail.first(TCPDisconnected)

        assert got == content
        assert [message.data for message in mail.of(TCPData)] == [b"heard you"]
        assert disconnected.reason is Cause.ASKED
        assert disconnected.bytes_out == len(content)
        await stream.aclose()


async def test_a_peer_that_closes_its_half_while_we_close_gets_all_that_was_sent(
    wire: Wire,
) -> None:
    def answer_and_close(me: Ear, message: object) -> None:
        if isinstance(message, TCPData):
            me.send(message.connection, TCPSend(bytes(8 * MEBI)))
            me.send(message.connection, TCPClose(linger=1000.0))

    async with wired_node() as node:
        server, mail = await serve(node, wire, answer_and_close, linger=0.0)
        stream = await wire.dial(server)
        await stream.send_all(b"much, please")
        await mail.first(TCPData)
        (connection,) = connections_of(server)
        await until(lambda: is_closing(connection) and connection.pending)

        await stream.send_eof()
        await until(lambda: connection.cause)
        got = sum([len(part) async for part in stream])
        await stream.aclose()
        disconnected = await mail.first(TCPDisconnected)

        assert got == 8 * MEBI
        assert (disconnected.reason, disconnected.detail) == (Cause.ASKED, "")


async def test_closing_waits_as_long_as_the_peer_reads(wire: Wire, clock: MovableClock) -> None:
    async with wired_node(limit=5000.0) as node:
        server, mail = await serve(node, wire, None, write_limit=100 * MEBI)
        async with await wire.dial(server) as peer:
            alias = (await mail.first(TCPConnected)).connection
            (connection,) = connections_of(server)
            node.send(alias, TCPSend(bytes(20 * MEBI)))
            node.send(alias, TCPClose(linger=1000.0))
            await until(lambda: is_closing(connection))

            for share in (5, 10):
                clock.move(700.0)
                while connection.bytes_out < share * MEBI:
                    await peer.receive_some(65536)
            look_at_close(connection)
            while_it_takes = connection.cause
            clock.move(1001.0)
            disconnected = await mail.first(TCPDisconnected)

        assert while_it_takes is None
        assert disconnected.reason is Cause.ASKED
        assert disconnected.detail.startswith("the peer took nothing for 1000 s; ")


@pytest.mark.parametrize("always, this_time", [(0.05, None), (1000.0, 0.05)])
async def test_closing_waits_only_for_a_limited_time_for_a_peer_that_stays(
    wire: Wire, always: float, this_time: float | None
) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire, linger=always)
        stream = await wire.dial(server)
        connection = (await mail.first(TCPConnected)).connection

        await node.call(connection, TCPClose(linger=this_time), timeout=20)
        disconnected = await mail.first(TCPDisconnected)

        assert disconnected.reason is Cause.ASKED
        assert disconnected.detail == "the peer did not close its side"
        assert await stream.receive_some() == b""
        await stream.aclose()


async def test_an_abort_resets_the_connection_without_a_flush(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire, None)
        stream = await wire.dial(server)
        connection = (await mail.first(TCPConnected)).connection

        await node.call(connection, TCPClose(abort=True))
        disconnected = await mail.first(TCPDisconnected)

        assert (disconnected.reason, disconnected.detail) == (Cause.ASKED, "aborted")
        if wire.kind == "tcp":
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()
        await stream.aclose()


HOW_TO_END = [TCPClose(abort=True), TCPClose(linger=0.05)]


@pytest.mark.parametrize("close", HOW_TO_END, ids=["abort", "close"])
async def test_a_close_ends_a_half_closed_connection_with_unread_answers(
    wire: Wire, close: TCPClose
) -> None:
    def answer(me: Ear, message: object) -> None:
        if isinstance(message, TCPData):
            me.send(message.connection, TCPSend(bytes(900_000)))

    async with wired_node() as node:
        server, mail = await serve(node, wire, answer, linger=1000.0, send_buffer=4096)
        with wire.dial_plain(server) as peer:
            peer.sendall(b"much, please")
            peer.shutdown(socket.SHUT_WR)
            alias = (await mail.first(TCPData)).connection
            (connection,) = connections_of(server)
            await until(lambda: connection.cause is Cause.EOF and connection.pending)

            await node.call(alias, close)
            disconnected = await mail.first(TCPDisconnected)

        assert disconnected.reason is Cause.EOF
        assert "bytes were not sent" in disconnected.detail


@pytest.mark.parametrize("close", HOW_TO_END, ids=["abort", "close"])
@pytest.mark.parametrize("priority", [Priority.NORMAL, Priority.HIGH])
async def test_a_close_ends_a_connection_with_much_unsent_output(
    wire: Wire, close: TCPClose, priority: Priority
) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire, None, write_limit=1000)
        with wire.dial_plain(server):
            alias = (await mail.first(TCPConnected)).connection
            for _ in range(5):
                node.send(alias, TCPSend(bytes(10 * MEBI)))
            await until(lambda: has_searched_mailbox(next(iter(connections_of(server)))))

            await node.call(alias, close, priority=priority)
            disconnected = await mail.first(TCPDisconnected)

        assert disconnected.reason is Cause.ASKED
        assert "bytes were not sent" in disconnected.detail


async def test_a_close_waits_for_earlier_sends_as_long_as_the_peer_reads(
    wire: Wire,
) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire, None, write_limit=1000, linger=20.0)
        stream = await wire.dial(server)
        alias = (await mail.first(TCPConnected)).connection
        for _ in range(5):
            node.send(alias, TCPSend(bytes(2 * MEBI)))
        node.send(alias, TCPClose())
        await until(lambda: waits_to_close(next(iter(connections_of(server)))))

        got = sum([len(part) async for part in stream])
        await stream.aclose()
        disconnected = await mail.first(TCPDisconnected)

        assert got == 10 * MEBI
        assert (disconnected.reason, disconnected.detail) == (Cause.ASKED, "")


@pytest.mark.counted
async def test_sends_before_the_end_of_the_owner_are_written(wire: Wire) -> None:
    def react(me: Ear, message: object) -> None:
        if isinstance(message, TCPData):
            # Something for the handler first, so that the following messages have to wait in the
            # mailbox.
            me.send(message.connection, "nothing it knows")
            me.send(message.connection, TCPSend(b"good"))
            me.send(message.connection, TCPSend(b"bye"))
            me.stop()

    async with wired_node() as node:
        server, _ = await serve(node, wire, react)

        stream = await wire.dial(server)
        await stream.send_all(b"end")

        assert b"".join([part async for part in stream]) == b"goodbye"
        await stream.aclose()


async def test_monitors_get_the_reason_of_the_end_of_a_connection(wire: Wire) -> None:
    def react(me: Ear, message: object) -> None:
        if isinstance(message, TCPConnected):
            me.monitor(message.connection)

    async with wired_node() as node:
        server, mail = await serve(node, wire, react, framing=LengthHeader(size=1, max_frame=10))
        first, second = await wire.dial(server), await wire.dial(server)
        await mail.wait_for(TCPConnected, 2)

        await first.send_all(b"\1a")
        await first.aclose()
        await mail.wait_for(Down, 1)
        await second.send_all(b"\xff")
        await mail.wait_for(Down, 2)

        reasons = [message.reason for message in mail.of(Down)]
        assert reasons[0] == Normal()
        assert isinstance(reasons[1], Custom)
        assert "protocol error" in str(reasons[1])
        await second.aclose()


# -- calls -----------------------------------------------------------------------------------------


async def test_a_send_by_call_is_answered_when_the_system_has_the_bytes(
    wire: Wire,
) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire, None, write_limit=64 * MEBI)
        stream = await wire.dial(server)
        connection = (await mail.first(TCPConnected)).connection
        answers: list[int] = []

        async def send_much() -> None:
            answers.append(await node.call(connection, TCPSend(bytes(8 * MEBI)), timeout=None))

        async with trio.open_nursery() as nursery:
            assert await node.call(connection, TCPSend(b"small")) == 5
            nursery.start_soon(send_much)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert answers == []
            got = 0
            while got < 8 * MEBI + 5:
                got += len(await stream.receive_some())

        assert answers == [8 * MEBI]
        await stream.aclose()


async def test_a_call_to_a_lost_connection_raises(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire, None)
        stream = await wire.dial(server)
        connection = (await mail.first(TCPConnected)).connection

        async with trio.open_nursery() as nursery:

            async def send_much() -> None:
                with pytest.raises(TargetDownError):
                    await node.call(connection, TCPSend(bytes(30 * MEBI)), timeout=None)

            nursery.start_soon(send_much)
            await trio.testing.wait_all_tasks_blocked(0.05)
            await stream.aclose()

        with pytest.raises(TargetDownError):
            await node.call(connection, TCPSend(b"x"))


async def test_after_a_close_sends_are_dropped_and_calls_raise(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire, None)
        stream = await wire.dial(server)
        connection = (await mail.first(TCPConnected)).connection

        node.send(connection, TCPClose())
        with pytest.raises(BrokenPipeError):
            await node.call(connection, TCPSend(b"x"))
        node.send(connection, TCPSend(b"y"))

        assert await stream.receive_some() == b""
        await stream.aclose()
        await mail.first(TCPDisconnected)
        assert node.dead_letters() == []
        assert node.info().late_messages == 1


async def test_a_connection_refuses_an_unknown_request(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire)
        async with await wire.dial(server) as stream:
            connection = (await mail.first(TCPConnected)).connection

            with pytest.raises(Exception, match="cannot answer"):
                await node.call(connection, "what?")
            node.send(connection, "what?")
            await stream.send_all(b"still there")

            assert await stream.receive_some() == b"still there"


# -- back-pressure ---------------------------------------------------------------------------------


async def test_a_slow_receiver_stops_the_reading_and_loses_no_bytes(wire: Wire) -> None:
    go_on = trio.Event()

    class Slow(Ear):
        async def handle_message(self, message: Any, sender: Any) -> None:
            await super().handle_message(message, sender)
            if isinstance(message, TCPData):
                await go_on.wait()

    async with wired_node() as node:
        mail = Mail()
        owner = await node.spawn(Slow, mail)
        server = wire.server()
        await spawn_meta(node, owner, server)
        stream = await wire.dial(server)
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while sent < 64 * MEBI:
                await stream.send_all(bytes(65_536))
                sent += 65_536
            await stream.send_eof()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            stalled = -1
            while sent != stalled:
                stalled = sent
                await trio.sleep(0.15)
            go_on.set()
            await mail.first(TCPDisconnected)

        # A few megabytes in mailbox, outbox and the buffers of the operating system; not all of it.
        assert stalled < 40 * MEBI
        assert sum(len(message.data) for message in mail.of(TCPData)) == 64 * MEBI
        await stream.aclose()


async def test_a_connection_waits_for_a_slow_peer_and_can_be_inspected_meanwhile(
    wire: Wire,
) -> None:
    content = [bytes([number]) * 200_000 for number in range(60)]

    def react(me: Ear, message: object) -> None:
        if isinstance(message, TCPConnected):
            for part in content:
                me.send(message.connection, TCPSend(part))

    async with wired_node() as node:
        server, mail = await serve(node, wire, react, write_limit=500_000)
        stream = await wire.dial(server)
        connection = (await mail.first(TCPConnected)).connection
        facts = await node.inspect_meta(connection, timeout=20)
        while int(facts["pending"]) <= 500_000:
            facts = await node.inspect_meta(connection, timeout=20)
        info = node.meta_info(connection)
        node.send(connection, TCPClose())
        got = b"".join([part async for part in stream])

        # Beyond the limit by at most the write that was under way when it was reached.
        assert int(facts["pending"]) <= 700_000
        assert info.lanes["main"] > 10
        assert got == b"".join(content)
        await stream.aclose()


async def test_a_connection_does_not_read_from_a_peer_that_does_not_read_answers(
    wire: Wire,
) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire, write_limit=100_000)
        sock = wire.dial_plain(server)
        sock.setblocking(False)
        connection = (await mail.first(TCPConnected)).connection

        async def flood() -> int:
            sent = idle = 0
            while idle < 20 and sent < 200 * MEBI:
                try:
                    sent += sock.send(bytes(65_536))
                    idle = 0
                    await trio.lowlevel.checkpoint()
                except BlockingIOError:
                    idle += 1
                    await trio.sleep(0.01)
            return sent

        sent = await flood()
        facts = await node.inspect_meta(connection)

        assert sent < 60 * MEBI
        assert int(facts["bytes in"]) < 60 * MEBI
        assert node.meta_info(connection).lanes["main"] < 1000
        sock.close()


async def test_a_slow_peer_is_dropped_if_that_is_the_policy(wire: Wire) -> None:
    def react(me: Ear, message: object) -> None:
        if isinstance(message, TCPConnected):
            for _ in range(100):
                me.send(message.connection, TCPSend(bytes(200_000)))

    async with wired_node() as node:
        server, mail = await serve(
            node, wire, react, write_limit=500_000, when_slow=TCP.WhenSlow.DROP
        )
        stream = await wire.dial(server)

        disconnected = await mail.first(TCPDisconnected)

        assert disconnected.reason is Cause.SLOW_PEER
        assert disconnected.bytes_out < 100 * 200_000
        await stream.aclose()


async def test_a_slow_peer_is_dropped_because_of_a_single_large_send(wire: Wire) -> None:
    def react(me: Ear, message: object) -> None:
        if isinstance(message, TCPConnected):
            me.send(message.connection, TCPSend(bytes(20 * MEBI)))

    async with wired_node() as node:
        server, mail = await serve(
            node, wire, react, write_limit=500_000, when_slow=TCP.WhenSlow.DROP
        )
        with wire.dial_plain(server):
            disconnected = await mail.first(TCPDisconnected)

        assert disconnected.reason is Cause.SLOW_PEER


# -- time ------------------------------------------------------------------------------------------


async def test_a_silent_peer_is_dropped(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire, idle_timeout=0.2)
        silent = await wire.dial(server)

        disconnected = await mail.first(TCPDisconnected)

        assert disconnected.reason is Cause.TIMEOUT
        assert disconnected.duration >= 0.2
        assert await silent.receive_some() == b""
        await silent.aclose()


@pytest.mark.parametrize("silent_ways", ["none", "in", "out", "both"])
async def test_a_peer_that_talks_or_is_talked_to_is_not_dropped(
    wire: Wire, silent_ways: str, clock: MovableClock
) -> None:
    async with wired_node(limit=5000.0) as node:
        server, mail = await serve(node, wire, None, idle_timeout=1000.0)
        stream = await wire.dial(server)
        alias = (await mail.first(TCPConnected)).connection
        (connection,) = connections_of(server)

        clock.move(700.0)
        if silent_ways in ("none", "out"):
            await stream.send_all(b"x")
            await mail.first(TCPData)
        if silent_ways in ("none", "in"):
            await node.call(alias, TCPSend(b"y"))
        clock.move(700.0)
        look_at_clock(connection)

        assert connection.cause is (Cause.TIMEOUT if silent_ways == "both" else None)
        await stream.aclose()
        await mail.first(TCPDisconnected)


@pytest.mark.parametrize("how", ["a call", "a message"])
async def test_a_time_limit_may_change_while_the_connection_lives(
    wire: Wire, how: str, clock: MovableClock
) -> None:
    async with wired_node(limit=90_000.0) as node:
        server, mail = await serve(node, wire, None, idle_timeout=1000.0)
        stream = await wire.dial(server)
        alias = (await mail.first(TCPConnected)).connection
        (connection,) = connections_of(server)

        await node.call(alias, TCPSet(idle_timeout=None, linger=7.0))
        clock.move(5000.0)
        look_at_clock(connection)
        without = connection.cause
        if how == "a call":
            await node.call(alias, TCPSet(idle_timeout=9000.0))
        else:
            node.send(alias, TCPSet(idle_timeout=9000.0))
            await until(lambda: connection_options(connection).idle_timeout)
        clock.move(5000.0)
        disconnected = await mail.first(TCPDisconnected)

        assert without is None
        assert disconnected.detail == "silent for 9000 s"
        assert connection_options(connection).linger == 7.0
        await stream.aclose()


async def test_a_frame_timeout_may_be_set_while_a_frame_is_unfinished(
    wire: Wire, clock: MovableClock
) -> None:
    async with wired_node(limit=9000.0) as node:
        server, mail = await serve(node, wire, None, framing=Delimiter(b"\n"))
        stream = await wire.dial(server)
        alias = (await mail.first(TCPConnected)).connection
        (connection,) = connections_of(server)
        await stream.send_all(b"half")
        await until(lambda: connection.frame_since is not None)

        await node.call(alias, TCPSet(frame_timeout=1000.0))
        clock.move(1001.0)
        disconnected = await mail.first(TCPDisconnected)

        assert disconnected.detail == "a frame was not complete after 1000 s"
        await stream.aclose()


@pytest.mark.parametrize(
    "wrong", [{"idle_timeout": 0}, {"frame_timeout": "1"}, {"linger": None}, {"linger": -1}]
)
def test_an_invalid_time_limit_is_refused_before_it_is_sent(
    wrong: dict[str, Any],
) -> None:
    with pytest.raises(BadInputError, match=f"TCP.Set\\({next(iter(wrong))}\\)"):
        TCPSet(**wrong)


async def test_a_connection_measures_time_with_the_clock_of_its_node(
    wire: Wire, clock: MovableClock
) -> None:
    async with wired_node(limit=90_000.0) as node:
        server, mail = await serve(node, wire, idle_timeout=50_000.0)
        stream = await wire.dial(server)
        await mail.first(TCPConnected)

        clock.move(50_000.0)
        disconnected = await mail.first(TCPDisconnected)

        assert (disconnected.reason, disconnected.detail) == (Cause.TIMEOUT, "silent for 50000 s")
        assert 50_000 <= disconnected.duration < 80_000
        assert server.failed == 0
        await stream.aclose()


def test_a_silent_hour_takes_no_real_time_under_a_virtual_clock(wire: Wire) -> None:
    async def be_silent() -> None:
        async with open_node("virtual@localhost", watchdog=None, log_output="none") as node:
            # The first thing that happens does so at zero.
            began = trio.current_time()
            server, mail = await serve(node, wire, idle_timeout=3600.0)
            with wire.dial_plain(server):
                ends.append((await mail.first(TCPDisconnected), trio.current_time() - began))

    ends = list[tuple[TCPDisconnected, float]]()
    trio.run(be_silent, clock=VirtualClock())

    ((disconnected, took),) = ends
    assert disconnected.reason is Cause.TIMEOUT
    assert disconnected.duration == pytest.approx(3600.0)
    assert took == pytest.approx(3600.0, abs=1.0)


def test_a_connection_waits_for_a_slow_peer_in_virtual_time(wire: Wire) -> None:
    def react(me: Ear, message: object) -> None:
        if isinstance(message, TCPConnected):
            me.send(message.connection, TCPSend(bytes(20 * MEBI)))

    async def linger() -> None:
        async with open_node("virtual@localhost", watchdog=None, log_output="none") as node:
            server, mail = await serve(node, wire, react, linger=3600.0, write_limit=100 * MEBI)
            with wire.dial_plain(server) as peer:
                await mail.first(TCPConnected)
                peer.shutdown(socket.SHUT_WR)
                ends.append((await mail.first(TCPDisconnected), trio.current_time()))

    ends = list[tuple[TCPDisconnected, float]]()
    trio.run(linger, clock=VirtualClock())

    ((disconnected, took),) = ends
    assert disconnected.reason is Cause.EOF
    assert "bytes were not sent" in disconnected.detail
    assert took == pytest.approx(3600.0, abs=1.0)


async def test_a_peer_that_does_not_read_is_dropped_after_the_idle_timeout(wire: Wire) -> None:
    def react(me: Ear, message: object) -> None:
        if isinstance(message, TCPConnected):
            for _ in range(100):
                me.send(message.connection, TCPSend(bytes(200_000)))

    async with wired_node() as node:
        server, mail = await serve(node, wire, react, write_limit=500_000, idle_timeout=0.2)
        stream = await wire.dial(server)

        disconnected = await mail.first(TCPDisconnected)

        assert disconnected.reason is Cause.TIMEOUT
        await stream.aclose()


async def test_a_slow_loris_is_dropped_while_others_are_served(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(
            node, wire, framing=Delimiter(b"\n", keep=True), frame_timeout=0.3, max_connections=3
        )
        loris = [await wire.dial(server) for _ in range(3)]
        await mail.wait_for(TCPConnected, 3)

        async def drip(stream: trio.SocketStream) -> None:
            try:
                while True:
                    await stream.send_all(b"x")
                    await trio.sleep(0.02)
            except trio.BrokenResourceError:
                return

        async with trio.open_nursery() as nursery:
            for stream in loris:
                nursery.start_soon(drip, stream)
            honest = await wire.dial(server)
            await honest.send_all(b"please\n")
            assert await honest.receive_some() == b"please\n"
            dropped = await mail.wait_for(TCPDisconnected, 1)
            await mail.wait_for(TCPDisconnected, 3)

        assert all(message.reason is Cause.TIMEOUT for message in dropped)
        for stream in (*loris, honest):
            await stream.aclose()


async def test_the_time_for_a_frame_begins_with_that_frame(wire: Wire, clock: MovableClock) -> None:
    async with wired_node(limit=5000.0) as node:
        server, mail = await serve(node, wire, framing=Delimiter(b"\n"), frame_timeout=1000.0)
        stream = await wire.dial(server)
        await mail.first(TCPConnected)
        (connection,) = connections_of(server)

        async def read(data: bytes) -> float | None:
            """When the unfinished frame was begun, after these bytes were read, which came long
            after those before.
            """
            clock.move(400.0)
            before = connection.bytes_in
            await stream.send_all(data)
            await until(lambda: connection.bytes_in == before + len(data))
            await until(
                lambda: not (has_unfinished_frame(connection) and connection.frame_since is None)
            )
            begun: float | None = connection.frame_since
            return begun

        first, same = await read(b"half"), await read(b" of it")
        following = await read(b"\nand the next one")
        await read(b"\n")
        await mail.wait_for(TCPData, 2)
        await until(lambda: connection.frame_since is None)

        assert first is not None
        assert same == first
        assert following is not None
        assert following >= first + 800
        assert mail.of(TCPDisconnected) == []
        await stream.aclose()


async def test_keep_alive_bytes_are_sent_on_an_idle_connection(wire: Wire) -> None:
    async with wired_node() as node:
        server, _ = await serve(node, wire, None, keepalive_bytes=b"<alive>", keepalive_period=0.05)

        stream = await wire.dial(server)
        got = b""
        while len(got) < 14:
            got += await stream.receive_some()

        assert got[:14] == b"<alive><alive>"
        await stream.aclose()


async def test_keep_alive_bytes_are_not_sent_after_other_data_or_after_closing(
    wire: Wire, clock: MovableClock
) -> None:
    async with wired_node(limit=5000.0) as node:
        server, mail = await serve(
            node, wire, None, keepalive_bytes=b"<alive>", keepalive_period=1000.0
        )
        stream = await wire.dial(server)
        alias = (await mail.first(TCPConnected)).connection
        (connection,) = connections_of(server)

        clock.move(700.0)
        look_at_clock(connection)
        await node.call(alias, TCPSend(b"words"))
        clock.move(700.0)
        look_at_clock(connection)
        clock.move(700.0)
        look_at_clock(connection)
        look_at_clock(connection)
        node.send(alias, TCPClose(linger=2000.0))
        await until(lambda: is_closing(connection))
        clock.move(1001.0)
        look_at_clock(connection)

        assert b"".join([part async for part in stream]) == b"words<alive>"
        await stream.aclose()


@pytest.mark.parametrize("state", ["a peer that takes nothing", "closing"])
async def test_unsent_keep_alive_bytes_do_not_pile_up(wire: Wire, state: str) -> None:
    period = 0.02
    async with wired_node() as node:
        server, mail = await serve(
            node, wire, None, keepalive_bytes=b"<alive>", keepalive_period=period
        )
        with wire.dial_plain(server):
            alias = (await mail.first(TCPConnected)).connection
            (connection,) = connections_of(server)
            if state == "closing":
                node.send(alias, TCPClose(linger=1000.0))
                await until(lambda: is_half_closed(connection))
            else:
                while not connection.pending:
                    node.send(alias, TCPSend(bytes(50_000)))
                    await trio.lowlevel.checkpoint()
            pending, handled, since = (
                connection.pending,
                meta_of(connection).handled,
                trio.current_time(),
            )

            await trio.sleep(10 * period)
            periods = (trio.current_time() - since) / period

            assert connection.pending <= pending
            # A look at the clock for each period, and some for the work under way.
            assert meta_of(connection).handled - handled <= periods + 10


# -- beginnings ------------------------------------------------------------------------------------


async def test_a_taken_address_fails_the_spawn_and_leaves_no_descriptor(
    wire: Wire,
) -> None:
    async with wired_node() as node:
        server, _ = await serve(node, wire)
        owner = await node.spawn(Puppet)
        gc.collect()
        before = open_descriptors()
        again = wire.server_at(server.local)

        with pytest.raises(InitError, match="already in use") as caught:
            await spawn_meta(node, owner, again)

        assert isinstance(caught.value.__cause__, OSError)
        gc.collect()
        assert open_descriptors() <= before
        assert len(node.metas()) == 1
        stream = await wire.dial(server)
        await stream.aclose()


async def test_a_client_without_a_server_fails_to_spawn_and_leaves_no_descriptor(
    wire: Wire,
) -> None:
    async with wired_node() as node:
        server, _ = await serve(node, wire)
        owner = await node.spawn(Puppet)
        node.send_exit(server.id, "enough")
        await trio.testing.wait_all_tasks_blocked(0.05)
        before = open_descriptors()

        with pytest.raises(InitError) as caught:
            await spawn_meta(node, owner, wire.client(server))

        assert isinstance(caught.value.__cause__, OSError)
        gc.collect()
        assert open_descriptors() <= before
        assert node.metas() == []


@pytest.mark.no_cover
async def test_many_short_connections_leave_no_descriptors_behind(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire)
        before: set[tuple[int, str]] = set()

        for number in range(1, 201):
            sock = wire.dial_plain(server)
            sock.send(b"x")
            sock.close()
            await mail.wait_for(TCPDisconnected, number)
            if number == 1:  # the first connection opens the shared descriptors
                before = open_descriptors()
        await until(lambda: node.metas() == [server.id] and open_descriptors() <= before)

        assert server.connections == 0
        info = node.info()
        assert info.relations == 0
        assert info.timers == 0


# -- looking inside --------------------------------------------------------------------------------


async def test_a_connection_can_be_inspected(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire, framing=Delimiter(b"\n", keep=True))
        stream = await wire.dial(server)
        await stream.send_all(b"one\ntwo\nthr")
        got = b""
        while len(got) < 8:
            got += await stream.receive_some()
        connected = mail.of(TCPConnected)[0]

        facts = await node.inspect_meta(connected.connection)
        some = await node.inspect_meta(connected.connection, "bytes in", "no such thing")

        assert facts["local"] == str(connected.local)
        assert facts["peer"] == str(connected.peer)
        assert facts["reader"] == wire.reader
        assert facts["state"] == "open"
        assert (facts["bytes in"], facts["bytes out"]) == ("11", "8")
        assert (facts["messages in"], facts["messages out"]) == ("2", "2")
        assert (facts["pending"], facts["unfinished"], facts["drops"]) == ("0", "3", "0")
        assert float(facts["age"]) >= 0
        assert facts["tls"] == ""
        assert some == {"bytes in": "11"}
        assert node.meta_info(connected.connection).reader == wire.reader
        await stream.aclose()


def test_a_send_of_text_is_refused_when_it_is_created() -> None:
    with pytest.raises(ValueError, match="encode text first"):
        TCPSend("text")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert TCPSend(bytearray(b"x")).data == b"x"  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert issubclass(Reject, Exception)
