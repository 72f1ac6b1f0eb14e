"""Servers that listen with a socket that they have not opened: it goes on when they end."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import PID, BadInputError, Drain, InitError, Node, Shutdown
from ergo_py.meta.inherited_sockets import InheritedSockets
from ergo_py.meta.readers import ReaderKind
from ergo_py.meta.sockets.datagrams import UDPData
from ergo_py.meta.sockets.messages import Endpoint, TCPConnected
from ergo_py.meta.sockets.tcp import TCPServer
from ergo_py.meta.sockets.udp import UDPServer
from ergo_py.meta.sockets.unix import UnixServer
from ergo_py.web import WebServer
from tests.meta.wires import Ear, Mail, Wire, echo, spawn_meta, until, wired_node
from tests.support import loopback_of_this_program

Open = Callable[..., socket.socket]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Makes sockets that are closed after the test."""
    with ExitStack() as stack:

        def open_socket(*args: Any) -> socket.socket:
            return stack.enter_context(socket.socket(*args))

        yield open_socket


@pytest.fixture
def tcp(opened: Open) -> socket.socket:
    """A socket that listens, in the mode in which ``socket`` makes it: it blocks."""
    sock = opened(socket.AF_INET, socket.SOCK_STREAM)
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    return sock


def listening(wire: Wire, opened: Open) -> socket.socket:
    if wire.kind == "tcp":
        sock = opened(socket.AF_INET)
        sock.bind(("127.0.0.1", 0))
    else:
        sock = opened(socket.AF_UNIX)
        sock.bind(str(wire.directory / "given.sock"))
    sock.listen()
    return sock


def server_with(wire: Wire, sock: socket.socket, **options: Any) -> Any:
    server = TCPServer if wire.kind == "tcp" else UnixServer
    return server(sock=sock, reader=wire.reader, **options)


async def stop(node: Node, owner: PID) -> None:
    """Stop the owner of a server in order."""
    node.send_exit(owner, Shutdown())
    await until(lambda: node.metas() == [])


async def test_a_socket_outlives_its_server_with_the_peers_in_its_queue(
    wire: Wire, opened: Open
) -> None:
    sock = listening(wire, opened)
    async with wired_node() as node:
        mail = Mail()
        first = server_with(wire, sock, max_connections=1)
        owner = await node.spawn(Ear, mail, echo)
        await spawn_meta(node, owner, first)
        held, waiting = wire.dial_plain(first), wire.dial_plain(first)
        with held, waiting:
            waiting.sendall(b"still here")
            await mail.wait_for(TCPConnected)
            await stop(node, owner)
            late = wire.dial_plain(first)  # while there is no server

            second = server_with(wire, sock)
            await spawn_meta(node, await node.spawn(Ear, mail, echo), second)

            with late:
                late.sendall(b"and here")
                assert await trio.to_thread.run_sync(waiting.recv, 10) == b"still here"
                assert await trio.to_thread.run_sync(late.recv, 10) == b"and here"
            assert second.local == first.local
    if wire.kind == "unix":
        assert await trio.Path(first.local).exists()


async def test_a_server_that_waits_for_peers_stops_and_leaves_the_next_to_others(
    wire: Wire, opened: Open
) -> None:
    sock = listening(wire, opened)
    async with wired_node() as node:
        owner = await node.spawn(Ear, Mail(), echo)
        server = server_with(wire, sock)
        await spawn_meta(node, owner, server)
        with wire.dial_plain(server) as first:  # so that the server waits for the next
            first.sendall(b"first")
            assert await trio.to_thread.run_sync(first.recv, 10) == b"first"

        await stop(node, owner)

        with wire.dial_plain(server), sock.accept()[0]:
            assert server.accepted == 1


async def test_a_drain_leaves_the_queue_to_the_other_holders_of_the_socket(
    wire: Wire, opened: Open
) -> None:
    sock = listening(wire, opened)
    async with wired_node() as node:
        owner = await node.spawn(Ear, Mail())
        server = server_with(wire, sock)
        await spawn_meta(node, owner, server)

        assert await node.call(server.id, Drain(60.0)) == 0

        with wire.dial_plain(server), sock.accept()[0]:
            assert server.accepted == 0


async def test_a_socket_does_not_block_any_more_in_any_of_its_copies(
    tcp: socket.socket, opened: Open
) -> None:
    udp = opened(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    async with wired_node() as node:
        owner = await node.spawn(Ear, Mail())
        # The holder of another copy may have taken what has woken this server.
        await spawn_meta(node, owner, TCPServer(sock=tcp))
        await spawn_meta(node, owner, UDPServer(sock=udp))

        assert not os.get_blocking(tcp.fileno())
        assert not os.get_blocking(udp.fileno())


@pytest.mark.parametrize("reader", ["thread", "task"])
async def test_datagrams_wait_for_the_next_server_of_their_socket(
    reader: ReaderKind, opened: Open
) -> None:
    sock = opened(socket.AF_INET, socket.SOCK_DGRAM)
    peer = opened(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    async with wired_node() as node:
        for word in (b"one", b"two"):
            peer.sendto(word, sock.getsockname())  # while there is no server
            mail = Mail()
            owner = await node.spawn(Ear, mail)
            server = UDPServer(sock=sock, reader=reader)
            await spawn_meta(node, owner, server)
            await mail.first(UDPData)
            peer.sendto(b"more", sock.getsockname())
            assert [each.data for each in await mail.wait_for(UDPData, 2)] == [word, b"more"]
            assert server.local == Endpoint(*sock.getsockname())
            await stop(node, owner)


# -- sockets of a service manager ------------------------------------------------------------------

Inherit = Callable[..., dict[str, str]]
FIRST = 700
"""The first descriptor of the inherited sockets in this program, which has its own at 3."""


@pytest.fixture
def inherit(monkeypatch: pytest.MonkeyPatch) -> Iterator[Inherit]:
    """Passes descriptors with names to this program, as systemd does."""
    taken: list[int] = []

    def inherit(*named: tuple[str, int], names: bool = True, pid: int = 0) -> dict[str, str]:
        for number, (_, fd) in enumerate(named, FIRST):
            taken.append(os.dup2(fd, number))
        environ = {"LISTEN_PID": str(pid or os.getpid()), "LISTEN_FDS": str(len(named))}
        if names:
            environ["LISTEN_FDNAMES"] = ":".join(name for name, _ in named)
        made = InheritedSockets(environ, FIRST)
        # The program has inherited none at the usual place.
        monkeypatch.setattr("ergo_py.meta.sockets.socket_setup.inherited_sockets", lambda: made)
        return environ

    yield inherit
    for number in taken:
        os.close(number)


async def refusal(server: Any) -> str:
    """Why a server does not start."""
    async with wired_node() as node:
        with pytest.raises(InitError) as caught:
            await spawn_meta(node, await node.spawn(Ear, Mail()), server)
    return str(caught.value.__cause__)


async def test_a_server_takes_an_inherited_socket_by_its_name(
    wire: Wire, opened: Open, inherit: Inherit
) -> None:
    sock = listening(wire, opened)
    environ = inherit(("other", sock.fileno()), ("echo", sock.fileno()))

    async with wired_node() as node:
        for _ in range(2):  # a restarted server takes it again
            owner = await node.spawn(Ear, Mail(), echo)
            kind = TCPServer if wire.kind == "tcp" else UnixServer
            server = kind(sock="echo", reader=wire.reader)
            await spawn_meta(node, owner, server)
            with wire.dial_plain(server) as peer:
                peer.sendall(b"hello")
                assert await trio.to_thread.run_sync(peer.recv, 10) == b"hello"
            await stop(node, owner)

    assert environ == {}
    assert not any(os.get_inheritable(number) for number in (FIRST, FIRST + 1))


async def test_sockets_without_names_are_called_unknown(
    tcp: socket.socket, inherit: Inherit
) -> None:
    inherit(("", tcp.fileno()), names=False)
    async with wired_node() as node:
        server = WebServer(sock="unknown")
        await spawn_meta(node, await node.spawn(Ear, Mail()), server)
        assert server.local == Endpoint(*tcp.getsockname())


async def test_a_program_without_inherited_sockets_listens_at_its_own_address(
    inherit: Inherit, short_path: Path
) -> None:
    inherit()
    host = loopback_of_this_program()
    async with wired_node() as node:
        owner = await node.spawn(Ear, Mail())
        for server in (TCPServer(host, 7777, sock="a"), UDPServer(host, 7777, sock="b")):
            await spawn_meta(node, owner, server)
            assert server.local == Endpoint(host, 7777)
        path = short_path / "own.sock"
        await spawn_meta(node, owner, UnixServer(path, sock="c"))
        assert path.exists()
    assert not path.exists()


async def test_a_name_that_is_not_there_is_refused_with_the_names_that_are(
    tcp: socket.socket, inherit: Inherit
) -> None:
    inherit(("http", tcp.fileno()), ("admin", tcp.fileno()))

    assert await refusal(TCPServer(port=1, sock="htpp")) == (
        "cannot listen with the inherited socket 'htpp': there are 'http', 'admin'; "
        "FileDescriptorName= of the .socket unit is its name"
    )


async def test_a_name_of_two_sockets_is_refused(tcp: socket.socket, inherit: Inherit) -> None:
    inherit(("http", tcp.fileno()), ("http", tcp.fileno()))

    assert "2 sockets have this name; write a .socket unit for each" in await refusal(
        TCPServer(sock="http")
    )


async def test_a_program_without_sockets_and_without_an_address_is_told_to_have_either(
    inherit: Inherit,
) -> None:
    inherit()

    assert "start it by its .socket unit, or give the server an address" in await refusal(
        TCPServer(sock="http")
    )


async def test_sockets_that_a_wrapper_has_kept_are_no_reason_to_open_others(
    tcp: socket.socket, inherit: Inherit
) -> None:
    inherit(("http", tcp.fileno()), pid=1)

    assert (
        f"LISTEN_PID names the process 1, and this is {os.getpid()}; let ExecStart= start the "
        "program itself" in await refusal(TCPServer(port=1, sock="http"))
    )


@pytest.mark.parametrize("is_open", [False, True])
async def test_a_descriptor_that_was_not_passed_is_no_socket_of_the_manager(
    is_open: bool, tcp: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket of the program has its number, or gets it later."""
    environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "http"}
    if is_open:
        os.dup2(tcp.fileno(), FIRST, inheritable=False)
    made = InheritedSockets(environ, FIRST)
    if not is_open:
        os.dup2(tcp.fileno(), FIRST, inheritable=False)
    try:
        monkeypatch.setattr("ergo_py.meta.sockets.socket_setup.inherited_sockets", lambda: made)

        assert "'http', descriptor 700, was not passed" in await refusal(TCPServer(sock="http"))
        assert made.to_hand_over() == {}
        made.pass_on()
        assert not os.get_inheritable(FIRST)
    finally:
        os.close(FIRST)


async def test_inherited_descriptors_that_are_no_open_sockets_are_refused(
    inherit: Inherit, tmp_path: Path
) -> None:
    with (tmp_path / "file").open("w") as file:
        inherit(("file", file.fileno()))
        assert "'file' is no socket; its unit needs ListenStream=" in await refusal(
            TCPServer(sock="file")
        )
    os.close(FIRST)
    try:
        assert "'file', descriptor 700, is not open" in await refusal(TCPServer(sock="file"))
    finally:
        os.dup2(0, FIRST)  # for the fixture to close


async def test_an_inherited_socket_of_another_kind_is_refused(
    opened: Open, inherit: Inherit
) -> None:
    udp = opened(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    inherit(("dns", udp.fileno()))

    assert "a socket of type SOCK_STREAM for IPv4 or IPv6; this one is <SocketKind.SOCK_DGRAM" in (
        await refusal(TCPServer(sock="dns"))
    )


# -- sockets that are refused ----------------------------------------------------------------------


def closed(opened: Open) -> socket.socket:
    sock = opened()
    sock.close()
    return sock


def connected(opened: Open) -> socket.socket:
    sock = opened(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect(("127.0.0.1", 9))
    return sock


@pytest.mark.parametrize(
    "server, sock, right",
    [
        (TCPServer, lambda _: 3, "an open socket.socket, or the name of an inherited socket"),
        (TCPServer, lambda _: "", "an open socket.socket, or the name of an inherited socket"),
        (TCPServer, closed, "an open socket; this one is closed"),
        (
            TCPServer,
            lambda opened: opened(socket.AF_UNIX),
            "a socket of type SOCK_STREAM for IPv4 or",
        ),
        (WebServer, lambda opened: opened(), "a socket that listens: call its listen()"),
        (UnixServer, lambda opened: opened(), "a socket of type SOCK_STREAM for AF_UNIX"),
        (UDPServer, lambda opened: opened(), "a socket of type SOCK_DGRAM for IPv4 or IPv6"),
        (
            UDPServer,
            lambda opened: opened(socket.AF_INET, socket.SOCK_DGRAM),
            "a socket with a port: call its bind()",
        ),
        (UDPServer, connected, "a socket for all peers; this one is connected"),
        (partial(TCPServer, port=80), lambda opened: opened(), "a socket or an address, not both"),
        (partial(UnixServer, "x"), lambda opened: opened(), "a socket or an address, not both"),
    ],
)
def test_a_socket_that_a_server_cannot_use_is_refused_and_the_error_names_its_needs(
    server: Any, sock: Callable[[Open], object], right: str, opened: Open
) -> None:
    with pytest.raises(BadInputError) as caught:
        server(sock=sock(opened))

    assert right in str(caught.value)


async def test_a_socket_that_is_closed_before_its_server_starts_is_refused(
    tcp: socket.socket,
) -> None:
    server = TCPServer(sock=tcp)
    tcp.close()

    assert "an open socket; this one is closed" in await refusal(server)
