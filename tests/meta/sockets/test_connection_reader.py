"""The reader's half of connections: the peers it serves, the peers it waits for, and the causes of
their ends.
"""

import socket
from typing import Any

import pytest
import trio

from ergo_py import Crashed, Custom, Down, Name
from ergo_py.meta.parsing.decoder import Decoder
from ergo_py.meta.parsing.framing import Delimiter, Framing, LengthHeader
from ergo_py.meta.sockets.messages import (
    Cause,
    TCPConnected,
    TCPData,
    TCPDisconnected,
    TCPFrames,
    TCPProtocolError,
    TCPSend,
)
from ergo_py.meta.sockets.streams import parser as parser_module
from tests.meta.support import (
    connections_of,
    is_half_closed,
    is_held_up,
    look_at_clock,
    read_size,
    set_read_size,
)
from tests.meta.wires import Ear, Mail, MovableClock, Wire, serve, spawn_meta, until, wired_node

MEBI = 1024 * 1024


async def test_the_connection_does_not_wait_for_a_peer_that_closed_both_halves(wire: Wire) -> None:
    def answer(me: Ear, message: object) -> None:
        if isinstance(message, TCPData):
            me.send(message.connection, TCPSend(bytes(20 * MEBI)))

    async with wired_node() as node:
        server, mail = await serve(node, wire, answer, linger=1000.0)
        peer = wire.dial_plain(server)
        peer.sendall(b"much, please")
        peer.shutdown(socket.SHUT_WR)
        await mail.first(TCPData)
        (connection,) = connections_of(server)
        await until(lambda: connection.cause is Cause.EOF and connection.pending)

        # The unread data makes this a reset.
        peer.close()
        disconnected = await mail.first(TCPDisconnected)

        assert disconnected.reason is Cause.EOF
        assert "bytes were not sent" in disconnected.detail


async def test_a_peer_that_closes_its_half_long_after_it_asked_is_answered(
    wire: Wire, clock: MovableClock
) -> None:
    class Slow(Ear):
        async def handle_message(self, message: Any, sender: Any) -> None:
            await super().handle_message(message, sender)
            if isinstance(message, TCPData):
                await go_on.wait()
                self.send(message.connection, TCPSend(b"at last"))

    go_on, mail = trio.Event(), Mail()
    async with wired_node(limit=5000.0) as node:
        owner = await node.spawn(Slow, mail)
        server = wire.server(linger=1000.0)
        await spawn_meta(node, owner, server)
        stream = await wire.dial(server)
        await stream.send_all(b"well?")
        await mail.first(TCPData)
        (connection,) = connections_of(server)

        clock.move(2000.0)
        await stream.send_eof()
        await until(lambda: connection.cause)
        go_on.set()
        said = b"".join([part async for part in stream])

        assert said == b"at last"
        await stream.aclose()


async def test_two_connections_that_send_more_than_fits_do_not_deadlock(
    wire: Wire,
) -> None:
    small: dict[str, Any] = {"write_limit": 10_000, "send_buffer": 65_536, "receive_buffer": 65_536}
    async with wired_node() as node:
        server, _ = await serve(node, wire, **small)
        mail = Mail()
        owner = await node.spawn(Ear, mail)
        alias = await spawn_meta(node, owner, wire.client(server, **small))

        for _ in range(80):
            node.send(alias, TCPSend(bytes(50_000)))
        got = await mail.bytes(80 * 50_000)

        assert len(got) == 80 * 50_000


@pytest.mark.parametrize("limit", ["idle_timeout", "frame_timeout"])
async def test_a_slow_receiver_does_not_count_as_an_idle_peer(
    wire: Wire, limit: str, clock: MovableClock
) -> None:
    class Busy(Ear):
        async def handle_message(self, message: Any, sender: Any) -> None:
            if isinstance(message, TCPData):
                await go_on.wait()
            await super().handle_message(message, sender)

    go_on, mail, framing = trio.Event(), Mail(), LengthHeader()
    async with wired_node(limit=5000.0) as node:
        owner = await node.spawn(Busy, mail)
        server = wire.server(framing=framing, **{limit: 1000.0})
        await spawn_meta(node, owner, server)
        stream = await wire.dial(server)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, framing.encode(bytes(200_000)) * 60)
            await mail.first(TCPConnected)
            (connection,) = connections_of(server)
            await until(lambda: is_held_up(connection))
            clock.move(2000.0)
            look_at_clock(connection)
            cause = connection.cause
            go_on.set()
        await mail.wait_for(TCPData, 60)

        assert cause is None
        assert mail.of(TCPDisconnected) == []
        await stream.aclose()


@pytest.mark.counted
async def test_a_connection_without_a_receiver_is_closed(wire: Wire) -> None:
    async with wired_node() as node:
        server, _ = await serve(node, wire, receiver=Name("nobody"))

        async with await wire.dial(server) as stream:
            said = await stream.receive_some()

        assert said == b""
        await until(lambda: server.connections == 0)


class Faulty(Framing):
    """A framing with a mistake of its author."""

    def decoder(self) -> Decoder:
        class Faulting(Decoder):
            def cut(self, stream: bytes | bytearray, frames: list[Any], most: int) -> int:
                raise KeyError("mistake")

        return Faulting()

    def encode(self, frame: bytes) -> bytes:
        return frame


async def test_a_framing_that_fails_ends_only_its_own_connection(
    wire: Wire,
) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire, framing=Faulty())
        watcher = Mail()
        watching = await node.spawn(Ear, watcher)
        await node.call(watching, lambda me: me.monitor(server.id) and None)
        one, two = await wire.dial(server), await wire.dial(server)
        await mail.wait_for(TCPConnected, 2)

        await one.send_all(b"x")
        disconnected = await mail.first(TCPDisconnected)
        third = await wire.dial(server)
        await mail.wait_for(TCPConnected, 3)

        assert disconnected.reason is Cause.FAILED
        assert disconnected.detail == "the framing raised KeyError('mistake')"
        assert len(mail.of(TCPDisconnected)) == 1
        assert watcher.of(Down) == []
        for stream in (one, two, third):
            await stream.aclose()


async def test_a_framing_that_fails_is_a_crash_for_us_and_a_reset_for_the_peer(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire, framing=Faulty())
        stream = await wire.dial(server)
        # Unread data would be a reset in any case; so the peer sends only data that is read.
        await stream.send_all(b"x")
        await mail.first(TCPDisconnected)

        if wire.kind == "tcp":
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()
        (crash,) = node.crashes()
        assert isinstance(crash.reason, Crashed)
        assert isinstance(crash.reason.error, KeyError)
        assert "in cut" in crash.reason.traceback
        await stream.aclose()


# -- very many small frames ------------------------------------------------------------------------


async def test_a_slow_receiver_stops_the_cutting_of_empty_frames(
    wire: Wire,
) -> None:
    class Busy(Ear):
        async def handle_message(self, message: Any, sender: Any) -> None:
            if isinstance(message, TCPData):
                await go_on.wait()
            await super().handle_message(message, sender)

    go_on, mail = trio.Event(), Mail()
    lines, empty = b"x" * 1000 + b"\n", 6 * parser_module._TURN
    async with wired_node() as node:
        owner = await node.spawn(Busy, mail)
        server = wire.server(framing=Delimiter(b"\n"))
        await spawn_meta(node, owner, server, backlog=600)
        stream = await wire.dial(server)
        await mail.first(TCPConnected)
        (connection,) = connections_of(server)
        # As if long lines had come before: reads have grown.
        set_read_size(connection, 256 * 1024)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, lines + b"\n" * empty)
            await until(lambda: is_held_up(connection))
            cut = connection.messages_in
            go_on.set()
            await until(lambda: len(mail.heard) == 2 + empty)

        assert cut <= 600 + 2 * parser_module._TURN
        assert read_size(connection) < 256 * 1024
        assert [len(message.data) for message in mail.of(TCPData)] == [1000] + [0] * empty
        await stream.aclose()


async def test_other_tasks_run_while_very_many_frames_are_cut(wire: Wire) -> None:
    turns = 0

    class Counting(Framing):
        """Says how many frames were cut at once, and how many turns others had by then."""

        def decoder(self) -> Decoder:
            class Noting(Decoder):
                def cut(self, stream: bytes | bytearray, frames: list[Any], most: int) -> int:
                    frames.extend(b"" for _ in range(min(most, len(stream))))
                    cuts.append((len(frames), turns))
                    return len(frames)

            return Noting()

        def encode(self, frame: bytes) -> bytes:
            return b"x"

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    cuts = list[tuple[int, int]]()
    async with wired_node() as node:
        server, mail = await serve(node, wire, None, framing=Counting())
        stream = await wire.dial(server)
        await mail.first(TCPConnected)
        (connection,) = connections_of(server)
        set_read_size(connection, 256 * 1024)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_turns)
            await stream.send_all(b"x" * 10_000)
            await until(lambda: len(mail.heard) == 1 + 10_000)
            nursery.cancel_scope.cancel()

        assert max(count for count, _ in cuts) <= parser_module._TURN
        if wire.reader == "task":
            # In two turns of the loop, each of two tasks has run at least once, in any order.
            assert all(
                after > before for (_, before), (_, after) in zip(cuts, cuts[2:], strict=False)
            )
        await stream.aclose()


# -- a last word after a mistake of the peer's -----------------------------------------------------


def complain(me: Ear, message: object) -> None:
    if isinstance(message, TCPProtocolError):
        me.send(message.connection, TCPSend(f"-ERR {message.detail}\n".encode()))


@pytest.mark.parametrize("batch", [False, True])
async def test_a_peer_gets_an_answer_to_its_protocol_error_before_the_connection_ends(
    wire: Wire, batch: bool
) -> None:
    async with wired_node() as node:
        framing = Delimiter(b"\n", max_frame=10)
        server, mail = await serve(
            node, wire, complain, framing=framing, last_word=True, batch=batch
        )
        stream = await wire.dial(server)

        async with trio.open_nursery() as nursery:
            # Far more than is read at once: it must neither be taken for frames nor make the end a
            # reset.
            nursery.start_soon(stream.send_all, b"fine\n" + b"x" * 1_000_000 + b"\nok\n" * 10)
            said = b"".join([part async for part in stream])
        await stream.aclose()
        disconnected = await mail.first(TCPDisconnected)

        assert said == b"-ERR a line of more than 10 bytes\n"
        kinds = [TCPConnected, TCPFrames if batch else TCPData, TCPProtocolError, TCPDisconnected]
        assert [type(message) for message in mail.heard] == kinds
        assert disconnected.reason is Cause.PROTOCOL_ERROR
        assert disconnected.detail == "a line of more than 10 bytes"


async def test_a_peer_that_stays_after_a_protocol_error_is_dropped_after_a_time(
    wire: Wire, clock: MovableClock
) -> None:
    async with wired_node(limit=9000.0) as node:
        framing = Delimiter(b"\n", max_frame=10)
        server, mail = await serve(node, wire, None, framing=framing, last_word=True, linger=1000.0)
        with wire.dial_plain(server) as peer:
            await mail.first(TCPConnected)
            (connection,) = connections_of(server)
            peer.send(b"x" * 100)
            await mail.first(TCPProtocolError)
            await until(lambda: is_half_closed(connection))

            clock.move(1001.0)
            disconnected = await mail.first(TCPDisconnected)

        assert disconnected.reason is Cause.PROTOCOL_ERROR


async def test_a_protocol_error_is_the_cause_although_the_peer_leaves_at_once(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(
            node, wire, None, framing=Delimiter(b"\n", max_frame=10), last_word=True
        )
        watcher = Mail()
        watching = await node.spawn(Ear, watcher)
        stream = await wire.dial(server)
        alias = (await mail.first(TCPConnected)).connection
        await node.call(watching, lambda me: me.monitor(alias) and None)

        await stream.send_all(b"x" * 100)
        await stream.send_eof()
        disconnected = await mail.first(TCPDisconnected)
        down = await watcher.first(Down)

        assert disconnected.reason is Cause.PROTOCOL_ERROR
        assert down.reason == Custom("protocol error: a line of more than 10 bytes")
        await stream.aclose()
