"""TLS for servers and clients, with reader threads and with reader tasks."""

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from ergo_py import BadInputError, InitError, Node, NotAllowedError
from ergo_py._core.metas.outbox import Outbox
from ergo_py.meta.parsing.framing import Delimiter, Framing, Raw
from ergo_py.meta.readers import ReaderKind
from ergo_py.meta.sockets.messages import (
    Cause,
    TCPClose,
    TCPConnected,
    TCPData,
    TCPDisconnected,
    TCPSecured,
    TCPSend,
    TCPStartTLS,
)
from ergo_py.meta.sockets.tcp import TCPConnection, TCPServer
from ergo_py.meta.sockets.tls import TLSContexts, TLSFiles, TLSSession, _Records
from tests.actors import Puppet
from tests.meta.support import connections_of, has_unfinished_record, is_closing, replace_sending
from tests.meta.wires import Ear, Mail, MovableClock, echo, spawn_meta, until, wired_node

CERTIFICATES = Path(__file__).parent.parent / "certificates"
AUTHORITY = CERTIFICATES / "authority.pem"
MEBI = 1024 * 1024


def files(name: str, **options: Any) -> TLSFiles:
    return TLSFiles(CERTIFICATES / f"{name}.pem", CERTIFICATES / f"{name}.key", **options)


SERVER = files("server")
TRUSTING = TLSFiles(authorities=AUTHORITY)


@pytest.fixture(params=["thread", "task"])
def reader(request: pytest.FixtureRequest) -> ReaderKind:
    kind: ReaderKind = request.param
    return kind


async def serve(
    node: Node,
    reader: ReaderKind,
    react: Callable[[Ear, Any], object] | None = echo,
    **options: Any,
) -> tuple[TCPServer, Mail]:
    mail = Mail()
    owner = await node.spawn(Ear, mail, react)
    chosen: dict[str, Any] = {"tls": SERVER, **options}
    server = TCPServer(reader=reader, **chosen)
    await spawn_meta(node, owner, server)
    return server, mail


async def dial(
    server: TCPServer, name: str = "localhost", **options: Any
) -> trio.SSLStream[trio.SocketStream]:
    """A client of trio's own."""
    context = ssl.create_default_context(cafile=AUTHORITY)
    if "certificate" in options:
        context.load_cert_chain(
            CERTIFICATES / f"{options['certificate']}.pem",
            CERTIFICATES / f"{options['certificate']}.key",
        )
    if "alpn" in options:
        context.set_alpn_protocols(options["alpn"])
    stream = trio.SSLStream(
        await trio.open_tcp_stream(*server.local), context, server_hostname=name
    )
    try:
        await stream.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return stream


async def client_of(
    node: Node, server: TCPServer, reader: ReaderKind, **options: Any
) -> tuple[Any, Mail]:
    """A client of ours."""
    mail = Mail()
    owner = await node.spawn(Ear, mail)
    chosen: dict[str, Any] = {"tls": TRUSTING, **options}
    client = TCPConnection.connect("localhost", server.local.port, reader=reader, **chosen)
    return await spawn_meta(node, owner, client), mail


async def test_a_peer_talks_through_tls_and_the_receiver_gets_the_tls_facts(
    reader: ReaderKind,
) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader, tls=files("server", alpn=("echo/1",)))

        stream = await dial(server, alpn=["chat", "echo/1"])
        await stream.send_all(b"secret")
        answer = await stream.receive_some()
        await stream.aclose()
        disconnected = await mail.first(TCPDisconnected)

        connected = mail.of(TCPConnected)[0]
        assert answer == b"secret"
        assert mail.of(TCPData)[0].data == b"secret"
        assert connected.tls is not None
        assert connected.tls.version == "TLSv1.3"
        assert connected.tls.server_name == "localhost"
        assert connected.tls.alpn == "echo/1"
        assert connected.tls.peer_certificate == {}
        assert disconnected.reason is Cause.EOF
        assert disconnected.detail == ""
        assert disconnected.bytes_in > 6


async def test_both_sides_of_ours_talk_in_both_directions_at_once(reader: ReaderKind) -> None:
    sent = bytes(range(256)) * (MEBI // 64)
    async with wired_node() as node:
        server, _ = await serve(node, reader)
        alias, mail = await client_of(node, server, reader)

        for begin in range(0, len(sent), 50_000):
            await node.call(alias, TCPSend(sent[begin : begin + 50_000]), timeout=20)
        got = await mail.bytes(len(sent))

        assert got == sent
        connected = mail.of(TCPConnected)[0]
        assert connected.tls is not None
        assert connected.tls.peer_certificate["subject"] == ((("commonName", "localhost"),),)
        assert "TLS" in (await node.inspect_meta(alias))["tls"]


async def test_an_untrusted_certificate_fails_the_spawn(
    reader: ReaderKind,
) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader)

        with pytest.raises(InitError) as untrusted:
            await client_of(
                node, server, reader, tls=TLSFiles(authorities=CERTIFICATES / "stranger.pem")
            )
        with pytest.raises(InitError) as wrong_name:
            await client_of(node, server, reader, server_name="other.example")

        assert isinstance(untrusted.value.__cause__, ssl.SSLCertVerificationError)
        assert isinstance(wrong_name.value.__cause__, ssl.SSLCertVerificationError)
        assert mail.of(TCPData) == []
        await until(lambda: server.connections == 0)


async def test_mutual_tls_admits_clients_with_a_certificate(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, mail = await serve(
            node, reader, tls=files("server", authorities=AUTHORITY, require_certificate=True)
        )

        stream = await dial(server, certificate="client")
        await stream.send_all(b"it is me")
        answer = await stream.receive_some()
        alias, ours = await client_of(
            node, server, reader, tls=files("client", authorities=AUTHORITY)
        )
        node.send(alias, TCPSend(b"me too"))

        assert answer == b"it is me"
        assert await ours.bytes(6) == b"me too"
        subjects = [
            message.tls.peer_certificate["subject"]
            for message in mail.of(TCPConnected)
            if message.tls
        ]
        assert subjects == [((("commonName", "a client"),),)] * 2
        await stream.aclose()


async def test_mutual_tls_refuses_clients_without_a_certificate(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, mail = await serve(
            node, reader, tls=files("server", authorities=AUTHORITY, require_certificate=True)
        )

        # With TLS 1.3 a client thinks that all is well until it hears of the server.
        stream = await dial(server)
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()
        await trio.aclose_forcefully(stream)

        await until(lambda: server.failed == 1)
        assert mail.heard == []
        assert (await node.inspect_meta(server.id))["failed"] == "1"


async def test_a_server_shows_the_certificate_for_the_requested_name(
    reader: ReaderKind,
) -> None:
    async with wired_node() as node:
        server, mail = await serve(
            node, reader, tls=files("server", names={"other.example": files("other")})
        )

        first = await dial(server, "localhost")
        second = await dial(server, "other.example")
        await mail.wait_for(TCPConnected, 2)

        names = [message.tls.server_name for message in mail.of(TCPConnected) if message.tls]
        assert sorted(map(str, names)) == ["localhost", "other.example"]
        assert first.getpeercert()["subject"] == ((("commonName", "localhost"),),)
        assert second.getpeercert()["subject"] == ((("commonName", "other.example"),),)
        await first.aclose()
        await second.aclose()


async def test_a_certificate_that_was_renewed_is_shown_to_new_connections(
    reader: ReaderKind, tmp_path: Path
) -> None:
    for suffix in ("pem", "key"):
        shutil.copy(CERTIFICATES / f"server.{suffix}", tmp_path / f"mine.{suffix}")
    async with wired_node() as node:
        server, _ = await serve(
            node, reader, tls=TLSFiles(tmp_path / "mine.pem", tmp_path / "mine.key")
        )

        before = await dial(server)
        for suffix in ("pem", "key"):
            shutil.copy(CERTIFICATES / f"renewed.{suffix}", tmp_path / f"mine.{suffix}")
        after = await dial(server)
        (tmp_path / "mine.pem").write_text("rubbish")
        still = await dial(server)
        await before.send_all(b"old ones go on")

        assert await before.receive_some() == b"old ones go on"
        serials = [stream.getpeercert()["serialNumber"] for stream in (before, after, still)]
        assert serials[0] != serials[1] == serials[2]
        for stream in (before, after, still):
            await stream.aclose()


async def silent_peers(server: TCPServer) -> list[trio.SocketStream]:
    """Peers that do not finish the handshake; the first of them has begun with it."""
    silent = [await trio.open_tcp_stream(*server.local) for _ in range(5)]
    await silent[0].send_all(b"\x16\x03\x01")
    return silent


async def test_a_peer_that_never_finishes_the_handshake_does_not_delay_others(
    reader: ReaderKind,
) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader, handshake_timeout=1000.0)
        silent = await silent_peers(server)
        await until(lambda: server.connections == 5)

        stream = await dial(server)
        await stream.send_all(b"hello")
        answer = await stream.receive_some()
        await stream.aclose()

        assert answer == b"hello"
        assert len(mail.of(TCPConnected)) == 1
        for one in silent:
            await one.aclose()


async def test_a_peer_that_never_finishes_the_handshake_is_dropped(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader, handshake_timeout=0.2)

        silent = await silent_peers(server)
        await until(lambda: server.failed == 5)

        assert [await one.receive_some() for one in silent] == [b""] * 5
        assert mail.heard == []
        for one in silent:
            await one.aclose()


async def test_a_peer_that_does_not_speak_tls_is_refused(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader)

        stream = await trio.open_tcp_stream(*server.local)
        await stream.send_all(b"GET / HTTP/1.0\r\n\r\n")
        await until(lambda: server.failed == 1)

        assert mail.heard == []
        assert server.connections == 0
        await stream.aclose()


async def test_a_stream_without_a_goodbye_is_reported_as_truncated(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader)

        stream = await dial(server)
        await stream.send_all(b"half a sen")
        await stream.receive_some()
        await stream.transport_stream.aclose()
        disconnected = await mail.first(TCPDisconnected)

        assert disconnected.reason is Cause.TRUNCATED
        assert "without the goodbye" in disconnected.detail


class ByHand:
    """A client with bytes that the test sends, in any pieces."""

    def __init__(
        self,
        name: str = "localhost",
        context: ssl.SSLContext | None = None,
        session: ssl.SSLSession | None = None,
    ) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = context or ssl.create_default_context(cafile=AUTHORITY)
        self.object = context.wrap_bio(
            self.incoming, self.outgoing, server_hostname=name, session=session
        )

    async def echo(self, server: TCPServer) -> ssl.SSLSession | None:
        """Say something, and hear it again; the session, which another connection may try to
        resume.

        Raises:
            ssl.SSLError: the server has refused.
        """
        stream, last = await self.shake_hands(server)
        async with stream:
            await stream.send_all(last + self.record(b"hello"))
            while True:
                try:
                    self.object.read(100)
                    return self.object.session
                except ssl.SSLWantReadError:
                    self.incoming.write(await stream.receive_some())

    async def shake_hands(self, server: TCPServer) -> tuple[trio.SocketStream, bytes]:
        """The connection, and the last bytes of the handshake, which were not sent."""
        stream = await trio.open_tcp_stream(*server.local)
        while True:
            try:
                self.object.do_handshake()
                return stream, self.outgoing.read()
            except ssl.SSLWantReadError:
                await stream.send_all(self.outgoing.read())
                self.incoming.write(await stream.receive_some())
            except ssl.SSLError:
                await stream.aclose()
                raise

    def record(self, data: bytes) -> bytes:
        self.object.write(data)
        return self.outgoing.read()


def client_context(certificate: str, version: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=AUTHORITY)
    context.load_cert_chain(
        CERTIFICATES / f"{certificate}.pem", CERTIFICATES / f"{certificate}.key"
    )
    context.minimum_version = context.maximum_version = version
    return context


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_tls_session_of_a_name_is_not_valid_for_another_name(
    reader: ReaderKind, version: ssl.TLSVersion
) -> None:
    guarded = files("other", authorities=CERTIFICATES / "stranger.pem", require_certificate=True)
    tls = files(
        "server", authorities=AUTHORITY, require_certificate=True, names={"other.example": guarded}
    )
    context = client_context("client", version)
    async with wired_node() as node:
        server, mail = await serve(node, reader, tls=tls)

        with pytest.raises(ssl.SSLError):
            await ByHand("other.example", context).echo(server)
        session = await ByHand(context=context).echo(server)
        assert session is not None
        other = ByHand("other.example", context, session)
        if version is ssl.TLSVersion.TLSv1_2:
            # It may be resumed, and stays a session of the first name.
            await other.echo(server)
        else:
            with pytest.raises(ssl.SSLError):
                await other.echo(server)

        assert not session.has_ticket
        names = {message.tls.server_name for message in mail.of(TCPConnected) if message.tls}
        assert names == {"localhost"}


async def test_a_certificate_that_was_revoked_is_refused(reader: ReaderKind) -> None:
    tls = files(
        "server",
        authorities=AUTHORITY,
        require_certificate=True,
        revoked=CERTIFICATES / "revoked.crl",
    )
    async with wired_node() as node:
        server, mail = await serve(node, reader, tls=tls)

        await ByHand(context=client_context("client", ssl.TLSVersion.TLSv1_3)).echo(server)
        with pytest.raises(ssl.SSLError, match=r"(?i)revoked"):
            await ByHand(context=client_context("revoked", ssl.TLSVersion.TLSv1_3)).echo(server)

        assert len(mail.of(TCPConnected)) == 1


def test_a_list_of_revoked_certificates_is_checked_when_it_is_read() -> None:
    with pytest.raises(BadInputError, match="together with the authorities"):
        files("server", revoked=CERTIFICATES / "revoked.crl")
    for wrong in ("server.key", "server.pem"):
        with pytest.raises(ssl.SSLError, match="no list of revoked certificates in"):
            files("server", authorities=AUTHORITY, revoked=CERTIFICATES / wrong).context(
                server_side=True
            )
    listed = files("server", authorities=AUTHORITY, revoked=CERTIFICATES / "revoked.crl")
    assert CERTIFICATES / "revoked.crl" in listed.paths()


async def test_data_that_arrives_with_the_handshake_is_counted(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader, None)
        client = ByHand()
        stream, last = await client.shake_hands(server)
        record = client.record(b"early!")

        await stream.send_all(last + record)
        await mail.first(TCPData)
        await stream.aclose()
        disconnected = await mail.first(TCPDisconnected)

        assert [message.data for message in mail.of(TCPData)] == [b"early!"]
        assert disconnected.bytes_in == len(record)


@pytest.mark.parametrize("limit", ["idle_timeout", "frame_timeout"])
@pytest.mark.parametrize("framing", [Raw(), Delimiter(b"\n")], ids=["raw", "lines"])
async def test_a_peer_that_sends_a_record_byte_by_byte_times_out(
    reader: ReaderKind, limit: str, framing: Framing, clock: MovableClock
) -> None:
    async with wired_node(limit=9000.0) as node:
        server, mail = await serve(node, reader, None, framing=framing, **{limit: 1000.0})
        client = ByHand()
        stream, last = await client.shake_hands(server)
        await stream.send_all(last)
        await mail.first(TCPConnected)
        (connection,) = connections_of(server)
        whole, slow = client.record(b"whole\n"), client.record(b"slow\n")

        await stream.send_all(whole + slow[:3])
        await mail.first(TCPData)
        for byte in (slow[3:4], slow[4:5], slow[5:6]):
            before = connection.bytes_in
            clock.move(400.0)
            await stream.send_all(byte)
            await until(lambda: connection.bytes_in > before or connection.cause)  # noqa: B023
        disconnected = await mail.first(TCPDisconnected)

        assert disconnected.reason is Cause.TIMEOUT
        await stream.aclose()


async def test_a_complete_record_is_not_taken_for_an_unfinished_record(
    reader: ReaderKind, clock: MovableClock
) -> None:
    async with wired_node(limit=9000.0) as node:
        server, _ = await serve(node, reader)
        mail = Mail()
        owner = await node.spawn(Ear, mail)
        client = TCPConnection.connect(
            *server.local, reader=reader, tls=TRUSTING, server_name="localhost"
        )
        alias = await spawn_meta(node, owner, client)

        # The server's tickets come first: records in which there is nothing for the receiver.
        node.send(alias, TCPSend(b"hello"))
        await mail.first(TCPData)

        assert not has_unfinished_record(client)
        assert client.frame_since is None


@given(
    st.lists(st.binary(max_size=40), max_size=6),
    st.lists(st.integers(0, 300), max_size=6),
    st.integers(0, 300),
)
def test_the_end_of_a_record_is_found_however_records_are_cut(
    bodies: list[bytes], places: list[int], missing: int
) -> None:
    stream = b"".join(b"\x17\x03\x03" + len(body).to_bytes(2, "big") + body for body in bodies)
    ends = {0}
    for body in bodies:
        ends.add(max(ends) + 5 + len(body))
    stream = stream[: len(stream) - missing] if missing <= len(stream) else stream
    cuts = sorted({place % (len(stream) + 1) for place in places} | {0, len(stream)})
    records = _Records()

    for begin, end in pairwise(cuts):
        records.walk(stream[begin:end])

    assert records.unfinished == (len(stream) not in ends)


async def test_garbage_in_the_middle_is_a_protocol_error(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader)

        stream = await dial(server)
        await mail.first(TCPConnected)
        await stream.transport_stream.send_all(b"this is not a record of TLS")
        disconnected = await mail.first(TCPDisconnected)

        assert disconnected.reason is Cause.PROTOCOL_ERROR
        assert disconnected.detail.startswith("TLS: ")
        await stream.aclose()


async def test_closing_says_goodbye_after_all_data_was_sent(reader: ReaderKind) -> None:
    content = bytes(2 * MEBI)

    def react(me: Ear, message: object) -> None:
        if isinstance(message, TCPConnected):
            me.send(message.connection, TCPSend(content))
            me.send(message.connection, TCPClose())

    async with wired_node() as node:
        server, mail = await serve(node, reader, react)

        stream = await dial(server)
        got = bytearray()
        while data := await stream.receive_some():
            got += data
        await stream.aclose()
        disconnected = await mail.first(TCPDisconnected)

        assert got == content
        assert disconnected.reason is Cause.ASKED


async def test_a_request_before_the_goodbye_of_the_peer_is_answered(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, _ = await serve(node, reader, framing=Delimiter(b"\n", keep=True))
        context = ssl.create_default_context(cafile=AUTHORITY)
        secure = TLSSession(context, False, "localhost")
        stream = await trio.open_tcp_stream(*server.local)
        data = b""
        while not secure.handshake(data):
            await stream.send_all(secure.take())
            data = await stream.receive_some()

        secure.encrypt(b"question\n")
        secure.say_goodbye()
        await stream.send_all(secure.take())
        answer = b""
        while not answer:
            answer, _, _ = secure.decrypt(await stream.receive_some())

        assert answer == b"question\n"
        await stream.aclose()


async def test_data_sent_during_the_handshake_is_kept_until_its_end(
    reader: ReaderKind,
) -> None:
    async with wired_node() as node:
        server, _ = await serve(node, reader, None)
        stream = await trio.open_tcp_stream(*server.local)
        await until(lambda: len(node.metas()) == 2)
        connection = next(alias for alias in node.metas() if alias != server.id)

        node.send(connection, TCPSend(b"impatient"))
        assert (await node.inspect_meta(connection))["state"] == "handshake"
        secured = trio.SSLStream(
            stream,
            ssl.create_default_context(cafile=AUTHORITY),
            server_hostname="localhost",
            https_compatible=True,
        )

        assert await secured.receive_some() == b"impatient"
        await secured.aclose()


async def test_actors_get_only_connections_that_finished_the_handshake(
    reader: ReaderKind,
) -> None:
    async with wired_node() as node:
        mail = Mail()
        server, _ = await serve(node, reader, receiver=partial(Ear, mail, echo))
        bad = await trio.open_tcp_stream(*server.local)
        await bad.send_all(b"not TLS at all")
        good = await dial(server)
        await good.send_all(b"x")
        await good.receive_some()
        await good.aclose()

        await until(lambda: server.connections == 0 and len(node.processes()) == 1)

        assert len(mail.of(TCPConnected)) == len(mail.of(TCPDisconnected)) == 1
        await bad.aclose()


async def test_a_client_gives_up_on_a_server_that_does_not_shake_hands(reader: ReaderKind) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with wired_node() as node:
            owner = await node.spawn(Puppet)
            client = TCPConnection.connect(
                *silent.getsockname(), tls=TRUSTING, reader=reader, handshake_timeout=0.1
            )

            with pytest.raises(InitError) as caught:
                await spawn_meta(node, owner, client)

            assert isinstance(caught.value.__cause__, TimeoutError)
            assert node.metas() == []


async def test_missing_files_fail_the_spawn(reader: ReaderKind, tmp_path: Path) -> None:
    async with wired_node() as node:
        owner = await node.spawn(Puppet)

        with pytest.raises(InitError) as caught:
            await spawn_meta(
                node, owner, TCPServer(reader=reader, tls=TLSFiles(tmp_path / "none.pem"))
            )

        assert isinstance(caught.value.__cause__, FileNotFoundError)


async def test_an_ssl_context_of_the_user_is_used_unchanged(reader: ReaderKind) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with wired_node() as node:
        server, mail = await serve(node, reader, tls=context)

        stream = await dial(server)
        await stream.send_all(b"old")

        assert await stream.receive_some() == b"old"
        facts = mail.of(TCPConnected)[0].tls
        assert facts is not None
        assert facts.version == "TLSv1.2"
        await stream.aclose()


async def test_other_timeouts_count_from_the_end_of_the_handshake(
    reader: ReaderKind,
) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader, idle_timeout=0.1, handshake_timeout=1000.0)

        stream = await dial(server)
        disconnected = await mail.first(TCPDisconnected)

        assert disconnected.reason is Cause.TIMEOUT
        await trio.aclose_forcefully(stream)


@pytest.mark.parametrize("words", [b"", b"all I have to say"])
async def test_a_client_that_closes_at_once_ends_normally(reader: ReaderKind, words: bytes) -> None:
    async def speak_and_close(me: Puppet) -> None:
        client = TCPConnection.connect(
            "localhost", server.local.port, reader=reader, tls=TRUSTING, linger=1000.0
        )
        alias = await me.spawn_meta(client)
        if words:
            me.send(alias, TCPSend(words))
        me.send(alias, TCPClose())

    def request(me: Puppet) -> Any:
        return speak_and_close(me)

    async with wired_node() as node:
        server, heard = await serve(node, reader)
        mail = Mail()
        owner = await node.spawn(Ear, mail)

        await node.call(owner, request)
        ours, theirs = await mail.first(TCPDisconnected), await heard.first(TCPDisconnected)

        assert (ours.reason, ours.detail) == (Cause.ASKED, "")
        assert (theirs.reason, theirs.detail) == (Cause.EOF, "")
        assert b"".join(message.data for message in heard.of(TCPData)) == words


async def test_a_close_during_the_handshake_waits_for_its_end(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader, linger=1000.0)
        stream = trio.SSLStream(
            await trio.open_tcp_stream(*server.local),
            ssl.create_default_context(cafile=AUTHORITY),
            server_hostname="localhost",
        )
        await until(lambda: server.accepted)
        (connection,) = connections_of(server)
        node.send(connection.id, TCPSend(b"hello and "))
        node.send(connection.id, TCPSend(b"goodbye"))
        node.send(connection.id, TCPClose())
        await until(lambda: is_closing(connection))

        said = b"".join([part async for part in stream])
        await stream.aclose()
        disconnected = await mail.first(TCPDisconnected)

        assert said == b"hello and goodbye"
        assert disconnected.reason is Cause.ASKED


async def test_a_delayed_goodbye_is_sent(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader, None)
        stream = await dial(server)
        alias = (await mail.first(TCPConnected)).connection
        (connection,) = connections_of(server)

        def take_nothing(_data: bytes, _flags: int) -> int:
            replace_sending(connection, takes)
            raise BlockingIOError

        await node.call(alias, TCPSend(b"last words"))
        # As if those had just filled the last place that the operating system had.
        takes = replace_sending(connection, take_nothing)
        node.send(alias, TCPClose())
        said = b"".join([part async for part in stream])
        await stream.aclose()
        disconnected = await mail.first(TCPDisconnected)

        assert said == b"last words"
        assert (disconnected.reason, disconnected.detail) == (Cause.ASKED, "")


async def test_a_socket_that_is_taken_over_with_tls_needs_a_server_name(
    reader: ReaderKind,
) -> None:
    unchecked = TRUSTING.context(server_side=False)
    unchecked.check_hostname = False
    async with wired_node() as node:
        server, heard = await serve(node, reader)
        owner = await node.spawn(Puppet)
        with (
            socket.create_connection(server.local) as sock,
            pytest.raises(BadInputError, match="server_name"),
        ):
            TCPConnection(sock, tls=TRUSTING, reader=reader)

        named = TCPConnection(
            socket.create_connection(server.local),
            tls=TRUSTING,
            server_name="localhost",
            reader=reader,
        )
        nameless = TCPConnection(
            socket.create_connection(server.local), tls=unchecked, reader=reader
        )
        wrong = TCPConnection(
            socket.create_connection(server.local),
            tls=TRUSTING,
            server_name="x.example",
            reader=reader,
        )
        await spawn_meta(node, owner, named)
        await spawn_meta(node, owner, nameless)
        with pytest.raises(InitError, match=r"not valid for 'x\.example'"):
            await spawn_meta(node, owner, wrong)

        await heard.wait_for(TCPConnected, 2)


async def test_data_before_the_garbage_is_delivered(reader: ReaderKind) -> None:
    context = ssl.create_default_context(cafile=AUTHORITY)
    async with wired_node() as node:
        server, mail = await serve(node, reader, None)
        stream = await trio.open_tcp_stream(*server.local)
        secure = TLSSession(context, False, "localhost")
        data = b""
        while not secure.handshake(data):
            await stream.send_all(secure.take())
            data = await stream.receive_some()
        assert secure.encrypt(b"sense")

        await stream.send_all(secure.take() + b"nonsense" * 10)
        disconnected = await mail.first(TCPDisconnected)

        assert [message.data for message in mail.of(TCPData)] == [b"sense"]
        assert disconnected.reason is Cause.PROTOCOL_ERROR
        await stream.aclose()


# -- files -----------------------------------------------------------------------------------------


def encrypted_key(directory: Path) -> Path:
    """The key of the server, behind the password ``secret``."""
    path = directory / "encrypted.key"
    key = str(CERTIFICATES / "server.key")
    subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-in", key, "-out", path, "-passout", "pass:secret"],
        check=True,
        timeout=60,
    )
    return path


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_an_encrypted_key_never_asks_for_a_password_at_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    certificate, key = CERTIFICATES / "server.pem", encrypted_key(tmp_path)
    capfd.readouterr()

    TLSFiles(certificate, key, "secret").context(server_side=True)
    with pytest.raises(ssl.SSLError, match=r"encrypted.*password.*missing"):
        TLSFiles(certificate, key).context(server_side=True)
    with pytest.raises(ssl.SSLError, match=r"encrypted.*password.*wrong"):
        TLSFiles(certificate, key, "guess").context(server_side=True)

    assert capfd.readouterr() == ("", "")


def test_errors_about_files_contain_their_names(tmp_path: Path) -> None:
    cut = tmp_path / "cut.pem"
    cut.write_bytes((CERTIFICATES / "server.pem").read_bytes()[:300])

    with pytest.raises(
        ssl.SSLError, match=r"no certificate in .*cut\.pem, or no key in .*server\.key"
    ):
        TLSFiles(cut, CERTIFICATES / "server.key").context(server_side=True)
    with pytest.raises(
        ssl.SSLError, match=r"other\.key does not belong to the certificate in .*server\.pem"
    ):
        TLSFiles(CERTIFICATES / "server.pem", CERTIFICATES / "other.key").context(server_side=True)
    with pytest.raises(ssl.SSLError, match=r"no certificates in .*cut\.pem"):
        TLSFiles(authorities=cut).context(server_side=False)
    there, gone = CERTIFICATES / "server.pem", tmp_path / "gone.pem"
    for missing in (
        TLSFiles(there, gone),
        TLSFiles(gone),
        TLSFiles(authorities=gone),
        TLSFiles(authorities=there, revoked=gone),
    ):
        with pytest.raises(FileNotFoundError, match=r"No such file or directory: .*gone\.pem"):
            missing.context(server_side=True)


def test_a_key_that_becomes_readable_later_is_read_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    for path in (certificate, key):
        path.write_bytes((CERTIFICATES / path.name).read_bytes())
    contexts = TLSContexts(TLSFiles(certificate, key), server_side=True)
    complaints: list[str] = []
    load = TLSFiles.context

    def load_readable(files: TLSFiles, server_side: bool) -> ssl.SSLContext:
        # Root may read each file: the test refuses it as the system would for another user.
        if not key.stat().st_mode & 0o400:
            raise PermissionError(13, "Permission denied")
        return load(files, server_side)

    def ask() -> ssl.SSLContext:
        return contexts.current(lambda error: complaints.append(str(error)))

    monkeypatch.setattr(TLSFiles, "context", load_readable)
    old = ask()
    renewed = tmp_path / "renewed"
    renewed.write_bytes(key.read_bytes())
    renewed.chmod(0)
    renewed.rename(key)

    assert ask() is old
    assert ask() is old
    assert len(complaints) == 1
    key.chmod(0o600)
    assert ask() is not old
    assert len(complaints) == 1


def test_unreadable_files_are_logged_once_and_read_again_after_a_change(
    tmp_path: Path,
) -> None:
    mine = tmp_path / "mine.pem"
    whole = (CERTIFICATES / "server.pem").read_bytes()
    mine.write_bytes(whole)
    contexts = TLSContexts(TLSFiles(mine, CERTIFICATES / "server.key"), server_side=True)
    complaints: list[str] = []

    def ask() -> ssl.SSLContext:
        """The certificate that three new connections get, the same for all."""
        first, *others = [
            contexts.current(lambda error: complaints.append(str(error))) for _ in range(3)
        ]
        assert all(one is first for one in others)
        return first

    original = ask()
    mine.write_bytes(whole[:300])
    while_cut = ask()
    mine.unlink()
    while_missing = ask()
    mine.write_bytes(whole + b"\n")
    renewed = ask()

    assert while_cut is while_missing is original
    assert renewed is not original
    assert [("no certificate" in text, "No such file" in text) for text in complaints] == [
        (True, False),
        (False, True),
    ]


async def test_a_name_inherits_unset_options_from_the_server(reader: ReaderKind) -> None:
    whole = files(
        "server",
        authorities=AUTHORITY,
        require_certificate=True,
        alpn=("chat",),
        names={"other.example": files("other")},
    )
    async with wired_node() as node:
        server, mail = await serve(node, reader, tls=whole)

        stream = await dial(server, "other.example", certificate="client", alpn=["chat"])
        await stream.send_all(b"let me in")
        answer = await stream.receive_some()

        facts = mail.of(TCPConnected)[0].tls
        assert answer == b"let me in"
        assert facts is not None
        assert facts.alpn == "chat"
        assert facts.peer_certificate
        await stream.aclose()


def test_a_name_that_needs_certificates_which_its_server_does_not_is_refused() -> None:
    guarded = files("other", authorities=AUTHORITY, require_certificate=True)

    with pytest.raises(BadInputError, match="require_certificate for the whole server"):
        files("server", names={"other.example": guarded})
    with pytest.raises(BadInputError, match="a TLSFiles with a certificate"):
        files("server", names={"other.example": TRUSTING})
    with pytest.raises(BadInputError, match="a TLSFiles with a certificate"):
        files("server", names={"other.example": CERTIFICATES / "other.pem"})
    files(
        "server", names={"other.example": guarded}, authorities=AUTHORITY, require_certificate=True
    )


def test_a_server_without_a_certificate_is_refused() -> None:
    with pytest.raises(BadInputError, match="certificate"):
        TCPServer(tls=TRUSTING)


def test_options_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(BadInputError):
        TLSFiles(require_certificate=True)
    with pytest.raises(BadInputError):
        TLSFiles(key="mine.key")
    with pytest.raises(BadInputError):
        TLSContexts(True, server_side=True)
    assert TLSContexts(True, server_side=False).current(lambda _: None).check_hostname


# -- TLS that begins later -------------------------------------------------------------------------

LINES = Delimiter(b"\n", keep=True)


def upgrade(me: Ear, message: object) -> None:
    """A server: on request it goes on with TLS; everything else comes back."""
    if isinstance(message, TCPData):
        if message.data == b"STARTTLS\n":
            me.send(message.connection, TCPStartTLS(b"220 go\n"))
        else:
            me.send(message.connection, TCPSend(b"you said " + message.data))


def ask_for_tls(me: Ear, message: object) -> None:
    """A client: it asks for TLS, and says a secret then."""
    match message:
        case TCPConnected(connection):
            me.send(connection, TCPSend(b"STARTTLS\n"))
        case TCPData(connection, b"220 go\n"):
            me.send(connection, TCPStartTLS())
        case TCPSecured(connection):
            me.send(connection, TCPSend(b"secret\n"))


async def test_a_server_starts_tls_on_request(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader, upgrade, framing=LINES, start_tls=True)
        clear = await trio.open_tcp_stream(*server.local)
        await clear.send_all(b"hello\n")
        assert await clear.receive_some() == b"you said hello\n"
        await clear.send_all(b"STARTTLS\n")
        assert await clear.receive_some() == b"220 go\n"

        context = ssl.create_default_context(cafile=AUTHORITY)
        stream = trio.SSLStream(clear, context, server_hostname="localhost")
        await stream.send_all(b"secret\nand more\n")
        said = b""
        while said.count(b"\n") < 2:
            said += await stream.receive_some()
        await stream.aclose()
        disconnected = await mail.first(TCPDisconnected)

        assert said == b"you said secret\nyou said and more\n"
        kinds = [TCPConnected, TCPData, TCPData, TCPSecured, TCPData, TCPData, TCPDisconnected]
        assert [type(message) for message in mail.heard] == kinds
        assert mail.of(TCPConnected)[0].tls is None
        assert mail.of(TCPSecured)[0].tls.server_name == "localhost"
        assert disconnected.reason is Cause.EOF


async def test_a_receiver_may_start_tls_before_the_thread_that_sent_its_message_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def put(outbox: Outbox, to: Any, message: object, priority: Any) -> bool:
        sent = before(outbox, to, message, priority)
        if type(message) is TCPData:
            assert continues.wait(30)
        return sent

    before, continues = Outbox.put, threading.Event()
    monkeypatch.setattr(Outbox, "put", put)
    async with wired_node() as node:
        server, mail = await serve(node, "thread", upgrade, framing=LINES, start_tls=True)
        clear = await trio.open_tcp_stream(*server.local)
        await clear.send_all(b"STARTTLS\n")
        said = b""
        with trio.move_on_after(2.0):
            said = await clear.receive_some()
        continues.set()

        assert said == b"220 go\n"
        context = ssl.create_default_context(cafile=AUTHORITY)
        stream = trio.SSLStream(clear, context, server_hostname="localhost")
        await stream.do_handshake()
        await mail.first(TCPSecured)
        await stream.aclose()


async def test_a_client_and_a_server_of_ours_start_tls(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, theirs = await serve(node, reader, upgrade, framing=LINES, start_tls=True)
        mail = Mail()
        owner = await node.spawn(Ear, mail, ask_for_tls)
        options: dict[str, Any] = {
            "framing": LINES,
            "tls": TRUSTING,
            "server_name": "localhost",
            "start_tls": True,
        }
        await spawn_meta(
            node, owner, TCPConnection.connect(*server.local, reader=reader, **options)
        )

        await mail.wait_for(TCPData, 2)

        assert [message.data for message in mail.of(TCPData)] == [b"220 go\n", b"you said secret\n"]
        assert mail.of(TCPSecured)[0].tls.version.startswith("TLSv1")
        assert [type(message) for message in theirs.heard] == [
            TCPConnected,
            TCPData,
            TCPSecured,
            TCPData,
        ]


@pytest.mark.parametrize("more", [b"EVIL\n", b"EV"], ids=["a frame", "a part of one"])
async def test_clear_text_after_the_tls_request_is_never_taken_for_encrypted_data(
    reader: ReaderKind, more: bytes
) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader, upgrade, framing=LINES, start_tls=True)
        stream = await trio.open_tcp_stream(*server.local)
        await stream.send_all(b"STARTTLS\n" + more)
        disconnected = await mail.first(TCPDisconnected)

        assert disconnected.reason is Cause.PROTOCOL_ERROR
        assert disconnected.detail.startswith("something came in clear after TLS was agreed on")
        assert [type(message) for message in mail.heard] == [TCPConnected, TCPData, TCPDisconnected]
        await stream.aclose()


@pytest.mark.parametrize("more", [b"EVIL\n", b"EV"], ids=["a frame", "a part of one"])
async def test_clear_text_after_the_consent_of_a_server_is_never_taken_for_encrypted_data(
    reader: ReaderKind, more: bytes
) -> None:
    async def consent(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"220 go\n" + more)
        with suppress(trio.BrokenResourceError):
            while await stream.receive_some():
                pass

    async with wired_node() as node, trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, consent, [listener])
        mail = Mail()
        owner = await node.spawn(Ear, mail, ask_for_tls)
        options: dict[str, Any] = {
            "framing": LINES,
            "tls": TRUSTING,
            "server_name": "localhost",
            "start_tls": True,
        }
        place = listener.socket.getsockname()
        await spawn_meta(node, owner, TCPConnection.connect(*place, reader=reader, **options))
        disconnected = await mail.first(TCPDisconnected)

        assert disconnected.reason is Cause.PROTOCOL_ERROR
        assert disconnected.detail.startswith("something came in clear after TLS was agreed on")
        assert [type(message) for message in mail.heard] == [TCPConnected, TCPData, TCPDisconnected]
        nursery.cancel_scope.cancel()


async def test_clear_text_instead_of_a_handshake_is_a_protocol_error(
    reader: ReaderKind,
) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader, upgrade, framing=LINES, start_tls=True)
        stream = await trio.open_tcp_stream(*server.local)
        await stream.send_all(b"STARTTLS\n")
        await stream.receive_some()
        await stream.send_all(b"EVIL\nEVIL\nEVIL\n")
        disconnected = await mail.first(TCPDisconnected)

        assert disconnected.reason is Cause.PROTOCOL_ERROR
        assert disconnected.detail.startswith("TLS: ")
        assert [type(message) for message in mail.heard] == [TCPConnected, TCPData, TCPDisconnected]
        await stream.aclose()


async def test_a_peer_that_does_not_begin_with_tls_is_dropped_after_a_time(
    reader: ReaderKind, clock: MovableClock
) -> None:
    async with wired_node(limit=9000.0) as node:
        server, mail = await serve(
            node, reader, upgrade, framing=LINES, start_tls=True, handshake_timeout=1000.0
        )
        stream = await trio.open_tcp_stream(*server.local)
        await mail.first(TCPConnected)
        clock.move(2000.0)
        await stream.send_all(b"STARTTLS\n")
        said = await stream.receive_some()

        clock.move(1001.0)
        disconnected = await mail.first(TCPDisconnected)

        assert said == b"220 go\n"
        assert disconnected.reason is Cause.TIMEOUT
        await stream.aclose()


async def test_start_tls_is_refused_without_the_option(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader, None, framing=LINES, start_tls=True)
        async with await trio.open_tcp_stream(*server.local):
            alias = (await mail.first(TCPConnected)).connection
            with pytest.raises(NotAllowedError, match="start_tls=True"):
                await node.call(alias, TCPStartTLS())
            node.send(alias, TCPStartTLS())
            disconnected = await mail.first(TCPDisconnected)

        assert disconnected.reason is Cause.FAILED


@pytest.mark.parametrize("options", [{"tls": None}, {"framing": Raw()}, {"batch": True}])
def test_tls_that_begins_later_needs_files_and_single_frames(options: dict[str, Any]) -> None:
    chosen: dict[str, Any] = {"tls": SERVER, "framing": LINES, "start_tls": True, **options}

    with pytest.raises(BadInputError, match="together with tls and a framing, and without batch"):
        TCPServer(**chosen)
