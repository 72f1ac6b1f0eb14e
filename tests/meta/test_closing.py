"""The last bytes of a connection: a peer gets all of them, or sees that it did not."""

import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import PID, Alias, Node, Shutdown
from ergo_py.errors import ProcessUnknownError
from ergo_py.meta.readers import ReaderKind
from ergo_py.meta.sockets.messages import Cause, TCPClose, TCPConnected, TCPDisconnected, TCPSend
from ergo_py.meta.sockets.tcp import TCPServer
from ergo_py.meta.sockets.tls import TLSFiles
from tests.meta.support import is_half_closed, set_cause
from tests.meta.wires import Ear, Mail, Wire, spawn_meta, until, wired_node
from tests.support import process_of, replace_private, router_of

MANY = 150_000
CERTIFICATES = Path(__file__).parent / "certificates"


@pytest.fixture(params=["thread", "task"])
def reader(request: pytest.FixtureRequest) -> ReaderKind:
    kind: ReaderKind = request.param
    return kind


async def connect(
    node: Node, reader: ReaderKind, **options: Any
) -> tuple[Any, Any, socket.socket, Mail]:
    """An owner, its only connection, and the peer, with a system that takes little at a time."""
    mail = Mail()
    owner = await node.spawn(Ear, mail)
    server = TCPServer(reader=reader, send_buffer=2 * MANY, **options)
    await spawn_meta(node, owner, server)
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.connect(server.local)
    return owner, (await mail.first(TCPConnected)).connection, peer, mail


def read_all(peer: socket.socket) -> int:
    """How many bytes come before the end. Raises ConnectionResetError at an end that is none."""
    count = 0
    while data := peer.recv(65536):
        count += len(data)
    return count


def is_ending(node: Node, alias: Any) -> bool:
    receiver = router_of(node).resolve(alias)
    return receiver is None or receiver.reason is not None


# -- cut off ---------------------------------------------------------------------------------------


ENDS: dict[str, Callable[[Node, Any, Any], object]] = {
    "the owner stops": lambda node, owner, connection: node.send_exit(owner, Shutdown()),
    "the owner crashes": lambda node, owner, connection: node.send(owner, "crash"),
    "a close, and the owner stops": lambda node, owner, connection: (
        node.send(connection, TCPClose()),
        node.send_exit(owner, Shutdown()),
    ),
    "the connection is stopped": lambda node, owner, connection: node.send_exit(
        connection, Shutdown()
    ),
}


@pytest.mark.parametrize("how", ENDS)
async def test_a_peer_that_does_not_get_all_data_sees_a_reset(reader: ReaderKind, how: str) -> None:
    def react(me: Ear, message: object) -> None:
        assert message != "crash"

    async with wired_node() as node:
        owner, connection, peer, _ = await connect(node, reader)
        process_of(node, owner).behaviour_itself.react = react
        with peer:
            node.send(connection, TCPSend(bytes(20_000_000)))

            ENDS[how](node, owner, connection)
            await until(lambda: router_of(node).resolve(connection) is None)

            with pytest.raises(ConnectionResetError):
                await trio.to_thread.run_sync(read_all, peer)


async def test_a_send_that_still_waits_in_the_mailbox_causes_a_reset(reader: ReaderKind) -> None:
    async with wired_node() as node:
        _, connection, peer, mail = await connect(node, reader)
        with peer:
            # As if its time were over before the handler has begun with the sent data.
            meta: Any = router_of(node).resolve(connection)
            set_cause(meta.behaviour, Cause.TIMEOUT)
            meta.mailbox.main.append((0, connection, None, TCPSend(b"never sent")))
            meta.finish(Shutdown())
            await mail.first(TCPDisconnected)

            with pytest.raises(ConnectionResetError):
                await trio.to_thread.run_sync(read_all, peer)


# -- on its way ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["the owner stops", "the connection is stopped"])
async def test_a_peer_that_sends_after_the_end_gets_the_acknowledged_data(
    reader: ReaderKind, how: str
) -> None:
    async with wired_node() as node:
        owner, connection, peer, _ = await connect(node, reader)
        with peer:
            assert await node.call(connection, TCPSend(bytes(MANY))) == MANY

            ENDS[how](node, owner, connection)
            await until(lambda: is_ending(node, connection))
            peer.sendall(b"GET /next")
            count = await trio.to_thread.run_sync(read_all, peer)

        assert count == MANY


@dataclass
class HalfClosed:
    """A connection that has closed its half after many bytes, of which its peer has read none."""

    owner: PID
    connection: Alias
    peer: socket.socket

    def say(self, data: bytes) -> None:
        try:
            self.peer.sendall(data)
        except BrokenPipeError:
            # The peer of a Unix socket is told that its half is not read any more.
            assert self.peer.family == socket.AF_UNIX


@asynccontextmanager
async def half_closed(
    node: Node, wire: Wire, tls: TLSFiles | None = None, stop_timeout: float = 5.0, **options: Any
) -> AsyncIterator[HalfClosed]:
    mail = Mail()
    owner = await node.spawn(Ear, mail)
    if tls is not None:
        options["tls"] = tls
    server = wire.server(send_buffer=2 * MANY, **options)
    await spawn_meta(node, owner, server, stop_timeout=stop_timeout)
    peer = socket.socket(socket.AF_INET if wire.kind == "tcp" else socket.AF_UNIX)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.connect(server.local)
    if tls is not None:
        context = ssl.create_default_context(cafile=CERTIFICATES / "authority.pem")
        plain = peer
        peer = await trio.to_thread.run_sync(
            lambda: context.wrap_socket(plain, server_hostname="localhost")
        )
    with peer:
        connection = (await mail.first(TCPConnected)).connection
        assert await node.call(connection, TCPSend(bytes(MANY))) == MANY
        stream: Any = find(node, connection).behaviour
        node.send(connection, TCPClose())
        await until(lambda: is_half_closed(stream))
        yield HalfClosed(owner, connection, peer)


def find(node: Node, alias: Alias) -> Any:
    return router_of(node).resolve(alias)


async def read_after_end(node: Node, it: HalfClosed, how: str) -> int:
    """End the connection, let its peer send once more, and count the bytes that the peer gets."""
    meta = find(node, it.connection)
    ENDS[how](node, it.owner, it.connection)
    # By then the reader was told to end.
    await until(lambda: meta.resources.stopping)
    it.say(b"GET /next")
    return await trio.to_thread.run_sync(read_all, it.peer)


@pytest.mark.parametrize("how", ["the owner stops", "the connection is stopped"])
async def test_a_peer_that_sends_after_a_half_close_gets_the_acknowledged_data(
    wire: Wire, how: str
) -> None:
    async with wired_node() as node, half_closed(node, wire) as it:
        assert await read_after_end(node, it, how) == MANY


@pytest.mark.parametrize("wire", ["tcp-thread", "tcp-task"], indirect=True)
@pytest.mark.parametrize("how", ["the owner stops", "the connection is stopped"])
async def test_a_peer_that_sends_after_a_half_close_gets_all_data_through_tls(
    wire: Wire, how: str
) -> None:
    tls = TLSFiles(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
    async with wired_node() as node, half_closed(node, wire, tls) as it:
        assert await read_after_end(node, it, how) == MANY


@pytest.mark.parametrize("how", ["takes nothing", "is killed"])
async def test_a_peer_that_does_not_read_after_a_half_close_does_not_delay_the_end(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    replace_private(
        monkeypatch, "patience with a half-closed peer", 0.02 if how == "takes nothing" else 1000.0
    )
    async with (
        wired_node() as node,
        half_closed(node, wire, stop_timeout=2000.0, linger=1000.0) as it,
    ):
        meta = find(node, it.connection)
        node.send_exit(it.connection, Shutdown())
        await until(lambda: meta.resources.stopping)
        if how == "is killed":
            node.kill(it.connection)
        await meta.wait_gone()


async def test_a_half_close_waits_for_no_longer_than_its_own_linger(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_private(monkeypatch, "patience with a half-closed peer", 1000.0)
    async with wired_node() as node, half_closed(node, wire, stop_timeout=2000.0, linger=0.1) as it:
        await find(node, it.connection).wait_gone()


async def test_a_peer_without_a_receiver_gets_the_acknowledged_data(reader: ReaderKind) -> None:
    mail = Mail()
    async with wired_node() as node:
        receiver, owner = await node.spawn(Ear, mail), await node.spawn(Ear, Mail())
        server = TCPServer(receiver=receiver, reader=reader, send_buffer=2 * MANY)
        await spawn_meta(node, owner, server)
        with socket.socket() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.connect(server.local)
            connection = (await mail.first(TCPConnected)).connection
            meta = find(node, connection)
            assert await node.call(connection, TCPSend(bytes(MANY))) == MANY
            node.kill(receiver)
            await node.wait_ended(receiver)

            peer.sendall(b"hello?")
            await until(lambda: meta.resources.stopping)
            peer.sendall(b"hello?")

            assert await trio.to_thread.run_sync(read_all, peer) == MANY
            assert meta.behaviour.cause is Cause.NO_RECEIVER


async def test_unread_input_causes_no_reset(reader: ReaderKind) -> None:
    async with wired_node() as node:
        owner, connection, peer, _ = await connect(node, reader)

        def react(me: Ear, message: object) -> None:
            if message == "end":
                me.send(connection, TCPSend(b"goodbye"))
                peer.sendall(b"nobody reads this")
                me.stop()

        process_of(node, owner).behaviour_itself.react = react
        with peer:
            node.send(owner, "end")
            await node.wait_ended(owner)

            assert await trio.to_thread.run_sync(read_all, peer) == len(b"goodbye")


async def test_a_peer_that_does_not_read_does_not_delay_the_end(
    reader: ReaderKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_private(monkeypatch, "patience with a half-closed peer", 0.02)
    async with wired_node() as node:
        owner, connection, peer, _ = await connect(node, reader, linger=1000.0)
        with peer:
            assert await node.call(connection, TCPSend(bytes(MANY))) == MANY

            node.send_exit(owner, Shutdown())
            await node.wait_ended(owner)

            assert await trio.to_thread.run_sync(read_all, peer) == MANY


async def test_a_kill_ends_the_waiting_for_a_peer(
    reader: ReaderKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_private(monkeypatch, "patience with a half-closed peer", 1000.0)
    mail = Mail()
    async with wired_node() as node:
        owner = await node.spawn(Ear, mail)
        server = TCPServer(reader=reader, send_buffer=2 * MANY, linger=1000.0)
        await spawn_meta(node, owner, server, stop_timeout=2000.0)
        with socket.socket() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.connect(server.local)
            connection = (await mail.first(TCPConnected)).connection
            assert await node.call(connection, TCPSend(bytes(MANY))) == MANY
            node.send_exit(connection, Shutdown())
            await until(lambda: is_ending(node, connection))

            node.kill(connection)
            await mail.first(TCPDisconnected)

        with pytest.raises(ProcessUnknownError):
            node.meta_info(connection)
