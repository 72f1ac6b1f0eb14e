"""Features of TCP only: both versions of addresses, options of sockets, and foreign clients."""

import inspect
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from ergo_py import BadInputError, ChildSpec, InitError, Node
from ergo_py.meta import TCP
from ergo_py.meta.parsing.framing import Delimiter, LengthHeader
from ergo_py.meta.readers import ReaderKind
from ergo_py.meta.sockets.messages import (
    Cause,
    Endpoint,
    TCPConnected,
    TCPData,
    TCPDisconnected,
    TCPSend,
)
from ergo_py.meta.sockets.options import StreamOptions
from ergo_py.meta.sockets.tcp import TCPConnection, TCPServer
from ergo_py.meta.sockets.tls import TLSFiles
from tests.actors import Puppet
from tests.meta.support import connections_of, meta_of, socket_of
from tests.meta.wires import Ear, Mail, echo, needs_ipv6, spawn_meta, until, wired_node

CERTIFICATES = Path(__file__).parent.parent / "certificates"


@pytest.fixture(params=["thread", "task"])
def reader(request: pytest.FixtureRequest) -> ReaderKind:
    kind: ReaderKind = request.param
    return kind


async def serve(
    node: Node,
    reader: ReaderKind,
    react: Callable[[Ear, Any], object] | None = echo,
    host: str = "127.0.0.1",
    **options: Any,
) -> tuple[TCPServer, Mail]:
    mail = Mail()
    owner = await node.spawn(Ear, mail, react)
    server = TCPServer(host, reader=reader, **options)
    await spawn_meta(node, owner, server)
    return server, mail


# -- addresses -------------------------------------------------------------------------------------


async def ask(host: str, port: int) -> bytes:
    async with await trio.open_tcp_stream(host, port) as stream:
        await stream.send_all(b"?")
        return bytes(await stream.receive_some())


async def test_a_server_listens_on_loopback_by_default(reader: ReaderKind) -> None:
    async with wired_node() as node:
        owner = await node.spawn(Puppet)
        server = TCPServer(reader=reader)
        await spawn_meta(node, owner, server)

        assert server.local.host == "127.0.0.1"
        assert server.local.port > 0
        assert str(server.local) == f"127.0.0.1:{server.local.port}"


@needs_ipv6
async def test_a_server_listens_on_ipv6(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader, host="::1")

        assert await ask("::1", server.local.port) == b"?"
        assert str(server.local) == f"[::1]:{server.local.port}"
        assert str(mail.of(TCPConnected)[0].peer).startswith("[::1]:")


@needs_ipv6
async def test_a_socket_serves_ipv4_and_ipv6(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader, host="::")

        answers = [await ask("::1", server.local.port), await ask("127.0.0.1", server.local.port)]

        assert answers == [b"?", b"?"]
        peers = [message.peer for message in mail.of(TCPConnected)]
        assert [peer.host for peer in peers if isinstance(peer, Endpoint)] == ["::1", "127.0.0.1"]
        locals_ = [message.local for message in mail.of(TCPConnected)]
        assert locals_ == [Endpoint(host, server.local.port) for host in ("::1", "127.0.0.1")]


@needs_ipv6
async def test_a_server_serves_only_ipv6_if_configured(reader: ReaderKind) -> None:
    async with wired_node() as node:
        with socket.socket() as held:
            # Otherwise another program may serve the same port of IPv4.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("127.0.0.1", 0))
            port = held.getsockname()[1]
            server, _ = await serve(node, reader, host="::", port=port, dual_stack=False)

            assert await ask("::1", server.local.port) == b"?"
            with pytest.raises(OSError, match="connect"):
                await ask("127.0.0.1", server.local.port)


async def test_a_name_is_looked_up(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, _ = await serve(node, reader, host="localhost")

        assert server.local.host in ("127.0.0.1", "::1")
        assert await ask("localhost", server.local.port) == b"?"


async def test_a_foreign_or_unknown_address_fails_the_spawn(
    reader: ReaderKind,
) -> None:
    async with wired_node() as node:
        owner = await node.spawn(Puppet)
        for host in ("192.0.2.1", "no-such-host.invalid"):
            with pytest.raises(InitError) as caught:
                await spawn_meta(node, owner, TCPServer(host, reader=reader), init_timeout=30.0)

            assert isinstance(caught.value.__cause__, OSError)
        assert node.metas() == []


async def test_servers_may_share_a_port(reader: ReaderKind) -> None:
    async with wired_node() as node:
        first, _ = await serve(node, reader, reuse_port=True)
        second, _ = await serve(node, reader, reuse_port=True, port=first.local.port)

        answers = [await ask("127.0.0.1", first.local.port) for _ in range(20)]

        assert answers == [b"?"] * 20
        assert first.accepted + second.accepted == 20


# -- connecting ------------------------------------------------------------------------------------


async def test_connect_gives_up_after_its_timeout(reader: ReaderKind) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = []
        # A queue that is full: the operating system does not even answer.
        for _ in range(4):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(full.getsockname())
            waiting.append(sock)
        async with wired_node() as node:
            owner = await node.spawn(Puppet)
            client = TCPConnection.connect(*full.getsockname(), reader=reader, connect_timeout=0.2)

            with pytest.raises(InitError) as caught:
                await spawn_meta(node, owner, client)

            assert isinstance(caught.value.__cause__, TimeoutError)
            assert node.metas() == []
        for sock in waiting:
            sock.close()


async def test_a_refused_client_fails_to_spawn_with_the_address(reader: ReaderKind) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # it does not listen
        address = held.getsockname()
        async with wired_node() as node:
            owner = await node.spawn(Puppet)

            with pytest.raises(InitError) as caught:
                await spawn_meta(node, owner, TCPConnection.connect(*address, reader=reader))

    assert isinstance(caught.value.__cause__, ConnectionRefusedError)
    assert f"Connection refused: 127.0.0.1:{address[1]}" in str(caught.value)


async def test_a_client_of_an_unknown_host_fails_to_spawn_with_its_name(
    reader: ReaderKind,
) -> None:
    async with wired_node() as node:
        owner = await node.spawn(Puppet)

        with pytest.raises(InitError) as caught:
            await spawn_meta(
                node, owner, TCPConnection.connect("no-such-host.invalid", 80, reader=reader)
            )

        assert isinstance(caught.value.__cause__, socket.gaierror)
        assert "no-such-host.invalid" in str(caught.value)
        with pytest.raises(InitError, match=r"no name of a host: x{300}"):
            await spawn_meta(node, owner, TCPConnection.connect("x" * 300, 80, reader=reader))
        with pytest.raises(InitError, match=r": no-such-host\.invalid"):
            await spawn_meta(node, owner, TCPServer("no-such-host.invalid", reader=reader))


async def test_a_socket_that_is_connected_can_be_taken_over(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, _ = await serve(node, reader)
        mail = Mail()
        owner = await node.spawn(Ear, mail)
        sock = socket.create_connection(server.local)

        alias = await spawn_meta(node, owner, TCPConnection(sock, reader=reader))

        assert (await mail.first(TCPConnected)).connection == alias
        assert sock.fileno() >= 0
        node.send_exit(alias)
        await until(lambda: sock.fileno() < 0)


async def test_a_socket_that_its_peer_has_reset_fails_the_spawn_and_logs_nothing_else(
    reader: ReaderKind, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        peer = socket.create_connection(listening.getsockname())
        sock, _ = listening.accept()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    peer.close()
    with pytest.raises(ConnectionResetError):
        sock.recv(1)  # waits for the reset
    async with wired_node(log_output="console") as node:
        owner = await node.spawn(Puppet)

        with pytest.raises(InitError) as caught:
            await spawn_meta(node, owner, TCPConnection(sock, reader=reader))

    assert isinstance(caught.value.__cause__, OSError)
    assert "raised" not in capsys.readouterr().err
    assert sock.fileno() < 0


def test_an_invalid_endpoint_is_refused() -> None:
    for host, port in (("localhost", 0), ("localhost", 70_000), (5, 80), ("", 80)):
        with pytest.raises(BadInputError):
            TCPConnection.connect(host, port)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_only_a_stream_socket_can_be_taken_over() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        for sock in (None, "socket", datagrams):
            with pytest.raises(BadInputError, match="SOCK_STREAM"):
                TCPConnection(sock)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "settings", [{"idle": 32768}, {"interval": 32768}, {"count": 128}, {"idle": 0}], ids=str
)
def test_an_invalid_keep_alive_is_refused_when_it_is_created(
    settings: dict[str, int],
) -> None:
    with pytest.raises(BadInputError):
        TCP.KeepAlive(**settings)


async def test_options_reach_the_socket(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, mail = await serve(
            node,
            reader,
            nodelay=False,
            keepalive=TCP.KeepAlive(idle=77, interval=7, count=3),
            receive_buffer=30_000,
            send_buffer=40_000,
        )
        async with await trio.open_tcp_stream(*server.local):
            await mail.first(TCPConnected)
            (connection,) = connections_of(server)
            sock = socket_of(connection)

            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 77
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 7
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
            # Linux doubles the requested size.
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 60_000
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 80_000


# -- peers that die --------------------------------------------------------------------------------

HALF_A_FRAME = """
    import socket, sys, time
    sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    sock.sendall(b"\\0\\0\\0\\5whole" + b"\\0\\0\\0\\x64only a part")
    print("sent", flush=True)
    time.sleep(100)
"""


async def test_clients_killed_in_the_middle_of_a_frame_leave_only_a_reason(
    reader: ReaderKind,
) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader, None, framing=LengthHeader())
        command = [
            sys.executable,
            "-I",
            "-S",
            "-c",
            textwrap.dedent(HALF_A_FRAME),
            str(server.local.port),
        ]
        programs = [
            await trio.lowlevel.open_process(command, stdout=subprocess.PIPE) for _ in range(3)
        ]
        for program in programs:
            assert program.stdout is not None
            await program.stdout.receive_some()

        for program in programs:
            program.send_signal(signal.SIGKILL)
        disconnected = await mail.wait_for(TCPDisconnected, 3)
        for program in programs:
            await program.wait()
            assert program.stdout is not None
            await program.stdout.aclose()

        assert [message.data for message in mail.of(TCPData)] == [b"whole"] * 3
        assert all(message.reason in (Cause.TRUNCATED, Cause.RESET) for message in disconnected)
        assert all(
            "after 15 bytes" in message.detail
            for message in disconnected
            if message.reason is Cause.TRUNCATED
        )
        assert server.connections == 0


# -- foreign clients -------------------------------------------------------------------------------


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


async def run(command: list[str], stdin: bytes) -> bytes:
    done = await trio.run_process(
        command, stdin=stdin, capture_stdout=True, capture_stderr=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def netcat() -> list[str]:
    """The traditional netcat closes by itself; that of BSD needs an option."""
    usage = subprocess.run(["nc", "-h"], capture_output=True, text=True, check=False)
    return ["nc", "-N"] if "-N" in usage.stdout + usage.stderr else ["nc", "-q", "1"]


@needs("nc")
async def test_netcat_gets_its_answer(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader, framing=Delimiter(b"\n", keep=True))

        answer = await run([*netcat(), "127.0.0.1", str(server.local.port)], b"hello\nworld\n")

        assert answer == b"hello\nworld\n"
        assert (await mail.first(TCPDisconnected)).reason is Cause.EOF


@needs("socat")
async def test_socat_moves_megabytes_both_ways(reader: ReaderKind) -> None:
    content = os.urandom(3_000_000)
    async with wired_node() as node:
        server, _ = await serve(node, reader)

        # It is given time for the answer after the end of its input.
        answer = await run(
            ["socat", "-t", "10", "-", f"TCP:127.0.0.1:{server.local.port}"], content
        )

        assert answer == content


@needs("openssl")
async def test_s_client_of_openssl_talks_tls(reader: ReaderKind) -> None:
    tls = TLSFiles(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
    async with wired_node() as node:
        server, mail = await serve(node, reader, framing=Delimiter(b"\n", keep=True), tls=tls)
        command = [
            *("openssl", "s_client", "-quiet", "-verify_return_error", "-servername", "localhost"),
            *(
                "-CAfile",
                str(CERTIFICATES / "authority.pem"),
                "-connect",
                f"127.0.0.1:{server.local.port}",
            ),
        ]
        program = await trio.lowlevel.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert program.stdin is not None
        assert program.stdout is not None

        await program.stdin.send_all(b"hello\n")
        answer = await program.stdout.receive_some()
        await program.stdin.aclose()
        program.terminate()
        await program.wait()
        await program.stdout.aclose()

        assert answer == b"hello\n"
        facts = mail.of(TCPConnected)[0].tls
        assert facts is not None
        assert facts.server_name == "localhost"


@needs("openssl")
async def test_our_client_talks_to_s_server_of_openssl(reader: ReaderKind) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    command = [
        *("openssl", "s_server", "-quiet", "-rev", "-accept", f"127.0.0.1:{port}", "-naccept", "1"),
        *("-cert", str(CERTIFICATES / "server.pem"), "-key", str(CERTIFICATES / "server.key")),
    ]
    async with wired_node() as node:
        program = await trio.lowlevel.open_process(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        mail = Mail()
        owner = await node.spawn(Ear, mail, None)
        alias = None
        while alias is None:
            client = TCPConnection.connect(
                "localhost",
                port,
                reader=reader,
                tls=TLSFiles(authorities=CERTIFICATES / "authority.pem"),
            )
            try:
                alias = await spawn_meta(node, owner, client)
            except InitError:  # it has not begun to listen yet
                await trio.sleep(0.02)

        node.send(alias, TCPSend(b"drawkcab\n"))
        got = await mail.bytes(9)
        program.kill()
        await program.wait()

        assert got == b"backward\n"


# -- restarts and floods ---------------------------------------------------------------------------


class Fragile(Ear):
    """An echo server at a port of its own, which crashes when it is told to."""

    def __init__(self, port: int, reader: ReaderKind, starts: list[TCPServer]) -> None:
        super().__init__(Mail(), echo)
        self.server = TCPServer(port=port, reader=reader)
        self.starts = starts

    async def init(self) -> None:
        await self.spawn_meta(self.server)
        self.starts.append(self.server)

    async def handle_message(self, message: Any, sender: Any) -> None:
        await super().handle_message(message, sender)
        if isinstance(message, TCPData) and message.data == b"crash":
            raise ValueError("as asked")


async def test_a_server_that_is_restarted_by_its_supervisor_gets_its_port_back_at_once(
    reader: ReaderKind,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    starts: list[TCPServer] = []

    async def restarted(times: int) -> None:
        await until(lambda: len(starts) == times + 1)

    async with wired_node() as node:
        await node.supervise(
            [ChildSpec("fragile", Fragile, port, reader, starts)], intensity=10, period=1.0
        )
        # Connections that stay open: the operating system remembers them after the server is gone.
        open_ = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(5)]

        for number in range(1, 6):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(b"crash")
                assert await stream.receive_some() in (b"crash", b"")
            await restarted(number)

        assert await ask("127.0.0.1", port) == b"?"
        assert len(starts) == 6
        for stream in open_:
            await stream.aclose()


async def test_every_connection_of_a_flood_is_served(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, _ = await serve(node, reader, receiver=partial(Ear, Mail(), echo))
        answers: list[bytes] = []

        async def talk(number: int) -> None:
            async with await trio.open_tcp_stream(*server.local) as stream:
                await stream.send_all(b"%03d" % number)
                answers.append(bytes(await stream.receive_some()))

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(talk, number)

        assert sorted(answers) == [b"%03d" % number for number in range(200)]
        await until(lambda: server.connections == 0 and len(node.processes()) == 1)


def test_the_error_about_a_wrong_keyword_lists_the_allowed_keywords() -> None:
    wrong: dict[str, Any] = {"max_connection": 5}

    with pytest.raises(BadInputError) as server:
        TCPServer(**wrong)
    with pytest.raises(BadInputError) as client:
        TCPConnection.connect("127.0.0.1", 1, **wrong)

    own = {
        "max_connections",
        "when_full",
        "queue",
        "reuse_port",
        "dual_stack",
        "receiver",
        "reader",
    }
    shared = {field.name for field in fields(StreamOptions)}
    words = str(server.value).replace(",", " ").replace(";", " ").split()
    assert own | shared <= set(words)
    assert str(server.value).endswith("did you mean max_connections?")
    assert "connect_timeout" in str(client.value)
    assert "max_connections" not in str(client.value)


def test_the_docstring_of_tcp_server_explains_every_option() -> None:
    explained = set(re.findall(r"^    (\w+): ", str(inspect.getdoc(TCPServer)), re.MULTILINE))

    own = {name for name in inspect.signature(TCPServer).parameters if name != "options"}
    assert explained == own | {field.name for field in fields(StreamOptions)}


async def test_connections_have_the_mailbox_size_of_their_server(
    reader: ReaderKind,
) -> None:
    async with wired_node() as node:
        mail = Mail()
        owner = await node.spawn(Ear, mail)
        server = TCPServer(reader=reader)
        await spawn_meta(node, owner, server, mailbox_size=7)

        async with await trio.open_tcp_stream(*server.local):
            connected = await mail.first(TCPConnected)
            (connection,) = connections_of(server)

            assert connected.connection == connection.id
            assert meta_of(connection).mailbox.limit == 7
