"""Reader threads that read without the GIL: backpressure, order, and ends."""

import os
import select
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from ergo_py import Behind, Node, Shutdown
from ergo_py._core.messaging.clock import Clock
from ergo_py._core.tables.pending_calls import Deadline
from ergo_py.meta.sockets.messages import (
    Cause,
    TCPClose,
    TCPConnected,
    TCPData,
    TCPDisconnected,
    TCPSend,
)
from ergo_py.meta.thread_inbox import ThreadInbox
from tests.meta.support import connections_of, is_held_up
from tests.meta.wires import Ear, Mail, Wire, echo, serve, spawn_meta, until, wired_node

in_threads = pytest.mark.skipif(not ThreadInbox.is_possible, reason="threads need the GIL here")
MEBI = 1024 * 1024


class Gated(Ear):
    """Takes the data of a connection only while its gate is open."""

    def __init__(
        self, mail: Mail, gate: trio.Event, react: Callable[[Ear, Any], object] | None = None
    ) -> None:
        super().__init__(mail, react)
        self.gate = gate

    async def handle_message(self, message: Any, sender: Any) -> None:
        if isinstance(message, TCPData):
            await self.gate.wait()
        await super().handle_message(message, sender)


class Slow(Gated):
    """Takes some time for each."""

    async def handle_message(self, message: Any, sender: Any) -> None:
        if isinstance(message, TCPData):
            await self.gate.wait()
            await trio.sleep(0.02)  # time for a connection that does not wait to end
        await super().handle_message(message, sender)


@pytest.fixture
def wire(tmp_path: Path) -> Wire:
    return Wire("tcp", "thread", tmp_path)


@asynccontextmanager
async def gated(
    node: Node,
    wire: Wire,
    owner_type: type[Gated] = Gated,
    react: Callable[[Ear, Any], object] | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Any, Mail, trio.Event, socket.socket]]:
    mail, gate = Mail(), trio.Event()
    owner = await node.spawn(owner_type, mail, gate, react)
    server = wire.server()
    await spawn_meta(node, owner, server, **options)
    with wire.dial_plain(server) as sock:
        await mail.first(TCPConnected)
        yield server, mail, gate, sock


async def send_slowly(server: Any, sock: socket.socket, pieces: int, sent: bytearray) -> None:
    """Send small pieces, each after the reader has taken the last."""
    (connection,) = connections_of(server)

    def is_read() -> bool:
        return bool(connection.bytes_in == len(sent))

    for number in range(pieces):
        sock.sendall(bytes([number]) * 100)
        sent += bytes([number]) * 100
        await until(is_read)


class ScriptedBuffer:
    """Stands in for `StreamBuffer`: the test decides which bytes the thread has read."""

    def __init__(self, has_bytes: Callable[[], None]) -> None:
        self._has_bytes = has_bytes
        self.bytes = b""
        self.is_full = False
        """The thread waits for the loop to take bytes."""
        self.is_too_small = False
        """A small read was as large as it could be."""
        self.is_endless = False
        """There are always further bytes to read."""
        self.sizes: list[int] = []
        """The sizes that :meth:`read` was called with."""
        self.next_size = 0
        """The size for the next read, by the last :meth:`take`."""
        self._ended = threading.Event()

    def give(self, data: bytes) -> bool:
        """The thread has read these bytes. Returns whether the loop has taken them."""
        self.bytes += data
        self._has_bytes()
        return not self.bytes

    def read(self, descriptor: int, size: int) -> bool:
        self.sizes.append(size)
        poll = select.poll()
        poll.register(descriptor, select.POLLRDHUP)
        while not self._ended.is_set() and (self.is_full or self.is_endless or not poll.poll(5)):
            if self.is_too_small:
                self.is_too_small = False
                return True
            self._ended.wait(0.005)
        return False

    def take(self, size: int) -> bytes:
        self.next_size = size
        taken, self.bytes = self.bytes, b""
        return taken

    def end(self) -> None:
        self._ended.set()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> list[ScriptedBuffer]:
    made: list[ScriptedBuffer] = []

    def new_buffer(_inbox: ThreadInbox, has_bytes: Callable[[], None]) -> ScriptedBuffer:
        made.append(ScriptedBuffer(has_bytes))
        return made[-1]

    # So the Python code runs these tests, too.
    monkeypatch.setattr(ThreadInbox, "is_possible", True)
    monkeypatch.setattr(ThreadInbox, "open", lambda _inbox, _turns: None)
    monkeypatch.setattr(ThreadInbox, "new_buffer", new_buffer)
    return made


async def test_bytes_stay_in_the_buffer_while_the_receiver_is_behind(
    wire: Wire, buffers: list[ScriptedBuffer]
) -> None:
    async with wired_node() as node, gated(node, wire, backlog=4) as (server, mail, gate, _):
        (buffer,) = buffers
        sent = b""
        while buffer.give(b"a"):
            sent += b"a"
            assert len(sent) < 10
        (connection,) = connections_of(server)
        assert is_held_up(connection)
        assert not buffer.give(b"b")

        gate.set()
        assert await mail.bytes(len(sent) + 2) == sent + b"ab"
        assert buffer.give(b"c")
        assert not is_held_up(connection)


async def test_bytes_stay_in_the_buffer_while_the_peer_reads_no_answers(
    wire: Wire, buffers: list[ScriptedBuffer]
) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire, write_limit=10_000)
        with wire.dial_plain(server) as sock:
            await mail.first(TCPConnected)
            (connection,) = connections_of(server)
            (buffer,) = buffers
            sent = 0
            while buffer.give(bytes(50_000)):
                sent += 50_000
                await mail.bytes(sent)
            assert connection.pending > 10_000
            assert is_held_up(connection)

            sock.setblocking(False)
            got = 0
            while got < sent + 50_000:
                await trio.lowlevel.wait_readable(sock)
                got += len(sock.recv(MEBI))
            assert buffer.give(b"")
            assert not is_held_up(connection)


@pytest.mark.parametrize("policy", [Behind.WAIT, Behind.DROP_OLDEST])
async def test_reading_goes_on_after_both_the_peer_and_the_receiver_were_behind(
    wire: Wire, buffers: list[ScriptedBuffer], policy: Behind
) -> None:
    async with wired_node() as node:
        mail, gate = Mail(), trio.Event()
        owner, other = await node.spawn(Gated, mail, gate), await node.spawn(Ear, Mail())
        server = wire.server(write_limit=10_000)
        await spawn_meta(node, owner, server, backlog=4, when_behind=policy)
        with wire.dial_plain(server) as sock:
            await mail.first(TCPConnected)
            (connection,) = connections_of(server)
            (buffer,) = buffers
            await node.call(other, lambda me: me.send(connection.id, TCPSend(bytes(20 * MEBI))))
            await until(lambda: connection.pending > 10_000)
            assert buffer.give(b"a")  # from now on, the peer holds up the reading
            for _ in range(6):
                await node.call(other, lambda me: me.send(owner, TCPData(connection.id, b"")))
            buffer.bytes = b"b"  # waits in the outbox
            buffer.is_too_small = True
            await until(lambda: not buffer.bytes)
            assert not buffer.give(b"c")

            sock.setblocking(False)
            got = 0
            while got < 20 * MEBI:
                await trio.lowlevel.wait_readable(sock)
                got += len(sock.recv(MEBI))
            gate.set()
            with trio.fail_after(30):
                assert await mail.bytes(3) == b"abc"


async def test_a_stop_takes_the_bytes_that_wait_in_the_buffer(
    wire: Wire, buffers: list[ScriptedBuffer]
) -> None:
    async with wired_node() as node, gated(node, wire, backlog=4) as (server, mail, gate, _):
        (buffer,) = buffers
        sent = b""
        while buffer.give(b"a"):
            sent += b"a"
        (connection,) = connections_of(server)
        other = await node.spawn(Ear, Mail())
        buffer.is_full = True
        await node.call(other, lambda me: me.send_exit(connection.id, Shutdown()))
        with trio.fail_after(30):
            await until(lambda: not buffer.bytes)
        # Nothing waits any more: the thread is to read until the end.
        for _ in range(10):
            assert buffer.give(b"b")
        buffer.end()
        gate.set()
        await mail.first(TCPDisconnected)
        assert (await mail.bytes(0)).startswith(sent + b"a")


async def test_a_stop_frees_a_thread_while_the_peer_reads_no_answers(
    wire: Wire, buffers: list[ScriptedBuffer]
) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire, write_limit=10_000)
        with wire.dial_plain(server):
            await mail.first(TCPConnected)
            (connection,) = connections_of(server)
            (buffer,) = buffers
            sent = 0
            while buffer.give(bytes(50_000)):
                sent += 50_000
                await mail.bytes(sent)
            buffer.is_full = True
            other = await node.spawn(Ear, Mail())
            await node.call(other, lambda me: me.send_exit(connection.id, Shutdown()))
            with trio.fail_after(30):
                await until(lambda: not buffer.bytes)
            buffer.end()


async def test_the_thread_reads_large_messages_into_the_buffer_too(
    wire: Wire, buffers: list[ScriptedBuffer]
) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire, None)
        with wire.dial_plain(server):
            await mail.first(TCPConnected)
            (buffer,) = buffers
            assert buffer.give(b"a")
            assert buffer.next_size == 4096
            buffer.is_too_small = True
            await until(lambda: len(buffer.sizes) == 2)
            assert buffer.sizes == [4096, 8192]

            # The size of the reads follows the messages.
            sizes = []
            for _ in range(2):
                buffer.give(bytes(8192))
                sizes.append(buffer.next_size)
            for _ in range(3):
                buffer.give(b"b")
                sizes.append(buffer.next_size)
            assert sizes == [8192, 16384, 16384, 8192, 4096]
            assert await mail.bytes(1 + 2 * 8192 + 3) == b"a" + bytes(2 * 8192) + b"bbb"
            assert len(buffer.sizes) == 2


async def test_without_a_receiver_the_connection_ends(
    wire: Wire, buffers: list[ScriptedBuffer]
) -> None:
    async with wired_node() as node:
        mail = Mail()
        receiver = await node.spawn(Ear, mail)
        server = wire.server(receiver=receiver)
        await spawn_meta(node, await node.spawn(Ear, Mail()), server)
        with wire.dial_plain(server):
            await mail.first(TCPConnected)
            (connection,) = connections_of(server)
            node.kill(receiver)
            await node.wait_ended(receiver)
            (buffer,) = buffers
            assert buffer.give(b"a")
            assert connection.cause is Cause.NO_RECEIVER
            assert buffer.give(b"b")
            assert connection.bytes_in == 1


async def test_a_connection_with_a_cause_to_end_reads_no_further(
    wire: Wire, buffers: list[ScriptedBuffer]
) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire, None)
        with wire.dial_plain(server) as sock:
            await mail.first(TCPConnected)
            (connection,) = connections_of(server)
            (buffer,) = buffers
            # The peer sends on and on: the thread finds no end of the stream.
            buffer.is_endless = True
            other = await node.spawn(Ear, Mail())
            await node.call(other, lambda me: me.send(connection.id, TCPClose(abort=True)))
            await mail.first(TCPDisconnected)
            assert buffer.has_ended
            with pytest.raises(ConnectionResetError):
                sock.recv(1)


@in_threads
@given(st.lists(st.integers(1, 20_000), min_size=1, max_size=12))
def test_small_and_large_pieces_arrive_whole_and_in_order(sizes: list[int]) -> None:
    async def main() -> None:
        async with wired_node() as node:
            server, mail = await serve(node, Wire("tcp", "thread", Path()), None)
            with wire_of(server) as sock:
                sent = bytearray()
                for size in sizes:
                    sock.sendall(piece := os.urandom(size))
                    sent += piece
                    # Sometimes the reader has read the piece before the next is sent.
                    if size % 2:
                        await mail.bytes(len(sent))
                assert await mail.bytes(len(sent)) == sent

    trio.run(main)


def wire_of(server: Any) -> socket.socket:
    return socket.create_connection(server.local)


@in_threads
async def test_a_receiver_that_is_behind_stops_the_thread_and_gets_everything(wire: Wire) -> None:
    async with wired_node() as node, gated(node, wire, backlog=4) as (server, mail, gate, sock):
        sent = bytearray()
        await send_slowly(server, sock, 6, sent)
        (connection,) = connections_of(server)
        assert is_held_up(connection)
        # Further bytes fill the buffer, and then the outbox.
        for number in range(150):
            sock.sendall(bytes([number]) * 2000)
            sent += bytes([number]) * 2000
            await trio.lowlevel.checkpoint()

        gate.set()
        assert await mail.bytes(len(sent)) == sent
        await until(lambda: not is_held_up(connection))


@in_threads
@pytest.mark.parametrize("policy", [Behind.DROP_OLDEST, Behind.DROP_NEWEST])
async def test_a_receiver_that_is_behind_loses_messages_if_that_is_the_policy(
    wire: Wire, policy: Behind
) -> None:
    async with (
        wired_node() as node,
        gated(node, wire, backlog=4, when_behind=policy) as (server, mail, gate, sock),
    ):
        await send_slowly(server, sock, 20, bytearray())
        gate.set()
        sock.shutdown(socket.SHUT_WR)
        await mail.first(TCPDisconnected)
        kept = [message.data[0] for message in mail.of(TCPData)]
        assert len(kept) < 20
        assert kept == sorted(kept)
        assert (19 in kept) == (policy is Behind.DROP_OLDEST)


@in_threads
async def test_the_end_of_the_stream_comes_after_bytes_that_waited_for_the_receiver(
    wire: Wire,
) -> None:
    async with wired_node() as node, gated(node, wire, backlog=4) as (server, mail, gate, sock):
        sent = bytearray()
        await send_slowly(server, sock, 6, sent)
        sock.sendall(b"last")
        sock.shutdown(socket.SHUT_WR)
        (connection,) = connections_of(server)
        await until(lambda: connection.bytes_in == len(sent) + 4)

        gate.set()
        assert (await mail.first(TCPDisconnected)).reason is Cause.EOF
        assert await mail.bytes(0) == sent + b"last"


async def test_a_stream_that_ends_with_nothing_to_answer_ends_without_a_wait(
    wire: Wire, buffers: list[ScriptedBuffer], monkeypatch: pytest.MonkeyPatch
) -> None:
    armed: list[float] = []

    def arm(clock: Clock, deadline: Deadline, seconds: float) -> None:
        armed.append(seconds)
        arm_call(clock, deadline, seconds)

    arm_call = Clock.arm_call
    async with wired_node() as node:
        server, mail = await serve(node, wire)
        with wire.dial_plain(server) as sock:
            await mail.first(TCPConnected)
            await trio.testing.wait_all_tasks_blocked()
            monkeypatch.setattr(Clock, "arm_call", arm)
            sock.shutdown(socket.SHUT_WR)
            ended = await mail.first(TCPDisconnected)
            monkeypatch.undo()

    assert ended.reason is Cause.EOF
    assert armed == []
    assert len(buffers) == 1


@in_threads
async def test_bytes_that_waited_for_the_receiver_are_answered_before_the_end(wire: Wire) -> None:
    async with (
        wired_node() as node,
        gated(node, wire, Slow, echo, backlog=4) as (server, _, gate, sock),
    ):
        sent = bytearray()
        await send_slowly(server, sock, 6, sent)
        sock.sendall(b"last")
        sock.shutdown(socket.SHUT_WR)
        (connection,) = connections_of(server)
        await until(lambda: connection.cause is Cause.EOF)

        gate.set()
        got = bytearray()
        while data := await trio.to_thread.run_sync(sock.recv, MEBI):
            got += data
        assert got == sent + b"last"


@in_threads
async def test_a_stop_frees_a_thread_while_the_receiver_is_behind(wire: Wire) -> None:
    async with wired_node() as node, gated(node, wire, backlog=4) as (server, _, gate, sock):
        await send_slowly(server, sock, 6, bytearray())
        for _ in range(150):
            sock.sendall(bytes(2000))
            await trio.lowlevel.checkpoint()
        (connection,) = connections_of(server)

        other = await node.spawn(Ear, Mail())
        await node.call(other, lambda me: me.send_exit(connection.id, Shutdown()))
        await until(lambda: not connections_of(server))
        gate.set()
    # The end of the node checks that no thread was abandoned.


@in_threads
async def test_bytes_before_a_reset_are_delivered(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire, None)
        with wire.dial_plain(server) as sock:
            await mail.first(TCPConnected)
            sent = bytearray()
            await send_slowly(server, sock, 3, sent)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        assert (await mail.first(TCPDisconnected)).reason is Cause.RESET
        assert await mail.bytes(0) == sent


@in_threads
async def test_a_peer_that_reads_no_answers_stops_the_thread(wire: Wire) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, wire, write_limit=10_000)
        with wire.dial_plain(server) as sock:
            await mail.first(TCPConnected)
            (connection,) = connections_of(server)
            sock.setblocking(False)
            sent = got = 0
            while not is_held_up(connection):
                try:
                    sent += sock.send(bytes(1000))
                except BlockingIOError:
                    pass
                await trio.lowlevel.checkpoint()
            with pytest.raises(BlockingIOError):
                while True:
                    sent += sock.send(bytes(1000))
                    await trio.lowlevel.checkpoint()

            # The peer reads: the thread goes on, and no answer is lost.
            while got < sent:
                await trio.lowlevel.wait_readable(sock)
                got += len(sock.recv(MEBI))
            assert connection.bytes_in == sent
