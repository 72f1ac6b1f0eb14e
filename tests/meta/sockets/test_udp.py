"""UDP: datagrams become messages, and none that fails ends a socket; with reader threads and with
reader tasks.
"""

import errno
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio

from ergo_py import BadInputError, Behind, Crashed, Down, InitError, Node
from ergo_py.errors import UnhandledCallError
from ergo_py.meta.readers import ReaderKind
from ergo_py.meta.sockets.datagrams import UDPData, UDPFailed, UDPFault, UDPJoin, UDPLeave, UDPSend
from ergo_py.meta.sockets.messages import Endpoint
from ergo_py.meta.sockets.udp import UDPClient, UDPServer
from tests.actors import Puppet
from tests.meta.support import socket_of
from tests.meta.wires import Ear, Mail, needs_ipv6, spawn_meta, until, wired_node


@pytest.fixture(params=["thread", "task"])
def reader(request: pytest.FixtureRequest) -> ReaderKind:
    kind: ReaderKind = request.param
    return kind


def echo(me: Ear, message: object) -> None:
    if isinstance(message, UDPData):
        me.send(message.socket, UDPSend(message.data, message.peer))


async def serve(
    node: Node,
    reader: ReaderKind,
    react: Callable[[Ear, Any], object] | None = echo,
    spawn: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[UDPServer, Mail]:
    mail = Mail()
    owner = await node.spawn(Ear, mail, react)
    server = UDPServer(reader=reader, **options)
    await spawn_meta(node, owner, server, **(spawn or {}))
    return server, mail


async def client_of(
    node: Node, server: Any, reader: ReaderKind, **options: Any
) -> tuple[UDPClient, Mail]:
    mail = Mail()
    owner = await node.spawn(Ear, mail)
    client = UDPClient(*server, reader=reader, **options)
    await spawn_meta(node, owner, client)
    return client, mail


def plain(to: Any = None, family: int = socket.AF_INET) -> socket.socket:
    """A socket that is not ours."""
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.settimeout(10)
    sock.bind(("127.0.0.1", 0) if family == socket.AF_INET else ("::1", 0))
    if to is not None:
        sock.connect(to)
    return sock


async def receive(sock: socket.socket) -> bytes:
    data: bytes = await trio.to_thread.run_sync(sock.recv, 65536)
    return data


def nobody() -> Endpoint:
    """An address without a listener."""
    with plain() as sock:
        return Endpoint(*sock.getsockname())


# -- talking ---------------------------------------------------------------------------------------


async def test_a_datagram_becomes_a_message_and_is_answered(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader)
        with plain(server.local) as sock:
            sock.send(b"hello")
            sock.send(b"")
            answers = [await receive(sock), await receive(sock)]
            peer = Endpoint(*sock.getsockname())

        assert answers == [b"hello", b""]
        assert mail.heard == [UDPData(server.id, peer, b"hello"), UDPData(server.id, peer, b"")]


async def test_a_client_and_a_server_of_ours_talk(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, _ = await serve(node, reader)
        client, mail = await client_of(node, server.local, reader)

        for number in range(100):
            node.send(client.id, UDPSend(b"%d" % number))
            await mail.wait_for(UDPData, number + 1)

        assert [message.data for message in mail.of(UDPData)] == [
            b"%d" % number for number in range(100)
        ]
        assert {message.peer for message in mail.of(UDPData)} == {server.local}
        assert {message.socket for message in mail.of(UDPData)} == {client.id}


async def test_a_client_receives_only_from_its_peer(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, _ = await serve(node, reader)
        client, mail = await client_of(node, server.local, reader)
        with plain() as stranger:
            stranger.sendto(b"psst", client.local)
            node.send(client.id, UDPSend(b"hello"))

            await mail.first(UDPData)

        assert [message.data for message in mail.heard] == [b"hello"]


async def test_datagrams_from_many_peers_keep_their_addresses(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader)
        socks = [plain(server.local) for _ in range(20)]

        for number, sock in enumerate(socks):
            sock.send(b"%d" % number)
        answers = [await receive(sock) for sock in socks]

        assert answers == [b"%d" % number for number in range(20)]
        assert {message.peer: message.data for message in mail.of(UDPData)} == {
            Endpoint(*sock.getsockname()): b"%d" % number for number, sock in enumerate(socks)
        }
        for sock in socks:
            sock.close()


@needs_ipv6
async def test_ipv6_works_too(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader, host="::1")
        with plain(server.local, socket.AF_INET6) as sock:
            sock.send(b"six")

            assert await receive(sock) == b"six"

        assert str(mail.of(UDPData)[0].peer).startswith("[::1]:")


@needs_ipv6
async def test_a_socket_answers_peers_with_ipv4_and_ipv6(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader, host="::")
        with plain() as fourth, plain(family=socket.AF_INET6) as sixth:
            fourth.sendto(b"four", ("127.0.0.1", server.local.port))
            sixth.sendto(b"six", ("::1", server.local.port))

            answers = [await receive(fourth), await receive(sixth)]
            by_name = await node.call(
                server.id, UDPSend(b"by name", ("localhost", fourth.getsockname()[1]))
            )

            assert answers == [b"four", b"six"]
            assert sorted(message.peer for message in mail.of(UDPData)) == sorted(
                (fourth.getsockname(), sixth.getsockname()[:2])
            )
            assert by_name == 7
            assert mail.of(UDPFailed) == []


async def test_a_name_is_looked_up_without_blocking_the_loop(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, _ = await serve(node, reader, None)
        with plain() as sock:
            answer = await node.call(
                server.id, UDPSend(b"by name", ("localhost", sock.getsockname()[1]))
            )

            assert answer == 7
            assert await receive(sock) == b"by name"


async def test_a_named_process_may_receive(reader: ReaderKind) -> None:
    async with wired_node() as node:
        mail = Mail()
        await node.spawn(Ear, mail, echo, name="clerk")
        server, owners = await serve(node, reader, receiver="clerk")
        with plain(server.local) as sock:
            sock.send(b"x")

            assert await receive(sock) == b"x"
        assert owners.heard == []


async def test_a_datagram_for_an_ended_receiver_is_a_dead_letter_and_the_server_lives(
    reader: ReaderKind,
) -> None:
    async with wired_node() as node:
        server, _ = await serve(node, reader, receiver="clerk")
        with plain(server.local) as sock:
            sock.send(b"anybody?")
            await until(node.dead_letters)
            mail = Mail()
            await node.spawn(Ear, mail, echo, name="clerk")
            sock.send(b"now?")

            assert await receive(sock) == b"now?"


# -- errors ----------------------------------------------------------------------------------------


async def test_the_sender_of_a_too_long_datagram_gets_an_error_and_the_server_lives(
    reader: ReaderKind,
) -> None:
    async with wired_node() as node:
        server, _ = await serve(node, reader)
        mail = Mail()
        sender = await node.spawn(Ear, mail)
        with plain() as sock:
            peer = Endpoint(*sock.getsockname())

            await node.call(sender, lambda me: me.send(server.id, UDPSend(bytes(65_535), peer)))
            failed = await mail.first(UDPFailed)
            await node.call(sender, lambda me: me.send(server.id, UDPSend(b"short", peer)))

            assert await receive(sock) == b"short"
        assert (failed.socket, failed.peer, failed.fault) == (server.id, peer, UDPFault.TOO_LONG)
        assert len(failed.data) == 65_535
        assert (await node.inspect_meta(server.id))["errors: too long"] == "1"


async def test_the_sender_to_an_unreachable_peer_gets_an_error_and_the_server_lives(
    reader: ReaderKind,
) -> None:
    async with wired_node() as node:
        server, owners = await serve(node, reader)
        mail = Mail()
        sender = await node.spawn(Ear, mail)
        gone = nobody()

        for _ in range(5):
            await node.call(sender, lambda me: me.send(server.id, UDPSend(b"anybody?", gone)))
            await trio.sleep(0.01)
        failed = await mail.first(UDPFailed)
        with plain(server.local) as sock:
            sock.send(b"still there?")

            assert await receive(sock) == b"still there?"
        assert failed.fault is UDPFault.UNREACHABLE
        assert failed.peer == gone
        assert failed.data == b"anybody?"
        assert "refused" in failed.detail.lower()
        assert owners.of(UDPFailed) == []
        assert int((await node.inspect_meta(server.id))["errors: unreachable"]) >= 1


class Unlucky(socket.socket):
    """A socket with reads and writes that fail with the errors that are to come, as ICMP packets
    make them fail.
    """

    reading: list[int]
    writing: list[int]

    def recvfrom(self, *args: Any) -> Any:
        if self.reading:
            raise OSError(number := self.reading.pop(), os.strerror(number))
        return super().recvfrom(*args)

    def sendto(self, *args: Any) -> int:
        if self.writing:
            raise OSError(number := self.writing.pop(), os.strerror(number))
        return super().sendto(*args)


class UnluckyServer(UDPServer):
    reading: tuple[int, ...] = ()
    writing: tuple[int, ...] = ()

    async def _open(self) -> socket.socket:
        sock = Unlucky(fileno=(await super()._open()).detach())
        sock.reading, sock.writing = list(self.reading), list(self.writing)
        return sock


OF_THE_SOCKET = {errno.EBADF, errno.EFAULT, errno.EINVAL, errno.ENOTCONN, errno.ENOTSOCK}


async def test_no_error_caused_by_a_packet_ends_a_server(reader: ReaderKind) -> None:
    class Server(UnluckyServer):
        reading = tuple(set(errno.errorcode) - OF_THE_SOCKET)

    async with wired_node() as node:
        owner = await node.spawn(Ear, Mail(), echo)
        server = Server(reader=reader)
        await spawn_meta(node, owner, server)

        with plain(server.local) as sock:
            sock.send(b"still there?")

            assert await receive(sock) == b"still there?"


@pytest.mark.parametrize("number", sorted(OF_THE_SOCKET), ids=errno.errorcode.get)
async def test_a_socket_that_is_broken_ends_its_server(reader: ReaderKind, number: int) -> None:
    class Server(UnluckyServer):
        reading = (number,)

    async with wired_node() as node:
        mail = Mail()
        owner = await node.spawn(Ear, mail)
        server = Server(reader=reader)
        with plain() as sock:
            alias = await spawn_meta(node, owner, server, needed=False)
            await node.call(owner, lambda me: me.monitor(alias))
            # It wakes a reader that is a task.
            sock.sendto(b"x", server.local)

            reason = (await mail.first(Down)).reason

        assert isinstance(reason, Crashed)
        assert isinstance(reason.error, OSError)
        assert reason.error.errno == number


async def test_the_owner_of_a_udp_server_that_fails_ends_and_that_of_a_client_does_not(
    reader: ReaderKind,
) -> None:
    async with wired_node() as node:
        first, second = await node.spawn(Ear, Mail()), await node.spawn(Ear, Mail())
        server = UDPServer(reader=reader)
        await spawn_meta(node, first, server)
        client = await spawn_meta(node, second, UDPClient(*server.local, reader=reader))

        node.kill(client)
        node.kill(server.id)
        await node.wait_ended(first)
        await until(lambda: node.metas() == [])

        assert node.processes() == [second]


async def test_an_error_of_an_earlier_datagram_does_not_lose_the_next_datagram(
    reader: ReaderKind,
) -> None:
    class Server(UnluckyServer):
        writing = (
            errno.ENOPROTOOPT,
            errno.EOPNOTSUPP,
            errno.EACCES,
            errno.EPROTO,
            getattr(errno, "ENONET", 64),
        )

    async with wired_node() as node:
        owner = await node.spawn(Ear, Mail())
        server = Server(reader=reader)
        await spawn_meta(node, owner, server)
        with plain() as sock:
            node.send(server.id, UDPSend(b"this one", Endpoint(*sock.getsockname())))

            assert await receive(sock) == b"this one"
        assert server.faults.total() == 0


async def test_a_client_gets_the_error_of_an_unreachable_peer_and_continues(
    reader: ReaderKind,
) -> None:
    async with wired_node() as node:
        gone = nobody()
        client, mail = await client_of(node, gone, reader)

        for _ in range(3):
            await node.call(
                mail_owner(node, client), lambda me: me.send(client.id, UDPSend(b"anybody?"))
            )
            await trio.sleep(0.01)
        failed = await mail.first(UDPFailed)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind(gone)
            sock.settimeout(10)
            assert await node.call(client.id, UDPSend(b"now?")) == 4
            got = await receive(sock)

        assert failed.fault is UDPFault.UNREACHABLE
        assert got == b"now?"


def mail_owner(node: Node, client: UDPClient) -> Any:
    return node.meta_info(client.id).process


async def test_the_datagram_after_an_unreachable_peer_is_sent(
    reader: ReaderKind,
) -> None:
    async with wired_node() as node:
        server, _ = await serve(node, reader, None)
        gone = nobody()
        with plain() as sock:
            peer = Endpoint(*sock.getsockname())

            for number in range(200):
                node.send(server.id, UDPSend(b"lost", gone))
                node.send(server.id, UDPSend(b"%d" % number, peer))

            assert [await receive(sock) for _ in range(200)] == [
                b"%d" % number for number in range(200)
            ]


@pytest.mark.parametrize(
    "peer,fault",
    [
        (("no-such-host.invalid", 9), UDPFault.NO_ADDRESS),
        (("127.0.0.1", 70_000), UDPFault.OTHER),
        (("::1", 9), UDPFault.NO_ADDRESS),
        (None, UDPFault.NO_ADDRESS),
        (("255.255.255.255", 9), UDPFault.NOT_ALLOWED),
    ],
    ids=str,
)
async def test_the_sender_of_an_invalid_datagram_gets_an_error(
    reader: ReaderKind, peer: tuple[str, int] | None, fault: UDPFault
) -> None:
    async with wired_node() as node:
        server, _ = await serve(node, reader)
        mail = Mail()
        sender = await node.spawn(Ear, mail)

        await node.call(sender, lambda me: me.send(server.id, UDPSend(b"x", peer)))
        failed = await mail.first(UDPFailed)
        with pytest.raises((OSError, OverflowError)):
            await node.call(server.id, UDPSend(b"x", peer), timeout=20)

        assert failed.fault in (fault, UDPFault.UNREACHABLE)
        assert server.faults.total() == 2
        assert server.id in node.metas()


async def test_a_client_sends_only_to_its_peer(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, _ = await serve(node, reader)
        client, _ = await client_of(node, server.local, reader)

        with pytest.raises(OSError, match="own peer only"):
            await node.call(client.id, UDPSend(b"x", nobody()))


async def test_a_datagram_longer_than_expected_is_marked_as_truncated(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader, None, max_datagram=10)
        with plain(server.local) as sock:
            sock.send(b"0123456789")
            sock.send(b"0123456789!")
            await mail.wait_for(UDPData, 2)

        assert [(message.data, message.truncated) for message in mail.of(UDPData)] == [
            (b"0123456789", False),
            (b"0123456789", True),
        ]
        assert (await node.inspect_meta(server.id))["truncated"] == "1"


async def test_an_unknown_request_is_refused_and_an_unknown_message_ignored(
    reader: ReaderKind,
) -> None:
    async with wired_node() as node:
        server, _ = await serve(node, reader)

        node.send(server.id, "what?")
        with pytest.raises(UnhandledCallError):
            await node.call(server.id, "what?")

        assert server.id in node.metas()


async def test_a_taken_port_fails_the_spawn(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, _ = await serve(node, reader)
        owner = await node.spawn(Puppet)

        with pytest.raises(InitError) as caught:
            await spawn_meta(node, owner, UDPServer(port=server.local.port, reader=reader))

        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.__cause__.errno == errno.EADDRINUSE
        assert node.metas() == [server.id]


# -- floods ----------------------------------------------------------------------------------------


async def test_a_flood_is_received_in_order_and_drops_are_counted(reader: ReaderKind) -> None:
    count = 20_000
    async with wired_node() as node:
        server, mail = await serve(node, reader, None, receive_buffer=200_000)

        with plain(server.local) as sock:

            def flood() -> None:
                for number in range(count):
                    sock.send(b"%d" % number)

            await trio.to_thread.run_sync(flood)
            while not (mail.heard and mail.heard[-1].data == b"end"):
                sock.send(b"end")
                await trio.sleep(0.01)
        facts = await node.inspect_meta(server.id)
        with trio.fail_after(30):
            # Another b"end" may still be on its way from the reader.
            while int(facts["messages in"]) != len(mail.heard):
                await trio.sleep(0.001)
                facts = await node.inspect_meta(server.id)

        numbers = [int(message.data) for message in mail.of(UDPData) if message.data != b"end"]
        assert numbers == sorted(set(numbers))
        assert len(numbers) + int(facts["drops"]) >= count


async def test_a_slow_receiver_makes_the_operating_system_drop_and_that_is_counted(
    reader: ReaderKind,
) -> None:
    go_on = trio.Event()

    class Slow(Ear):
        async def handle_message(self, message: Any, sender: Any) -> None:
            await super().handle_message(message, sender)
            await go_on.wait()

    async with wired_node() as node:
        mail = Mail()
        owner = await node.spawn(Slow, mail)
        server = UDPServer(reader=reader, receive_buffer=50_000)
        await spawn_meta(node, owner, server, backlog=10)
        with plain(server.local) as sock:
            for _ in range(3000):
                sock.send(bytes(100))
                await trio.lowlevel.checkpoint()

        facts = await node.inspect_meta(server.id)
        depth = node.process_info(owner).lanes["main"]
        go_on.set()

        assert int(facts["drops"]) > 1000
        assert int(facts["pending"]) > 0
        assert depth <= 10 + 1


@pytest.mark.parametrize("when_behind", [Behind.DROP_NEWEST, Behind.DROP_OLDEST])
async def test_a_reader_that_may_drop_counts_its_drops(
    reader: ReaderKind, when_behind: Behind
) -> None:
    go_on = trio.Event()

    class Slow(Ear):
        async def handle_message(self, message: Any, sender: Any) -> None:
            await super().handle_message(message, sender)
            await go_on.wait()

    async with wired_node() as node:
        mail = Mail()
        owner = await node.spawn(Slow, mail)
        server = UDPServer(reader=reader)
        await spawn_meta(node, owner, server, backlog=10, when_behind=when_behind)

        def has_read(count: int) -> bool:
            return server.messages_in == count

        with plain(server.local) as sock:
            for number in range(1, 501):
                sock.send(b"%d" % number)
                if number % 50 == 0:
                    # So that it is the reader that drops, and not the operating system.
                    await until(partial(has_read, number))

        facts = await node.inspect_meta(server.id)
        go_on.set()
        await until(lambda: len(mail.heard) + int(facts["drops"]) >= 500)

        assert int(facts["drops"]) > 400
        last = b"500" if when_behind is Behind.DROP_OLDEST else mail.of(UDPData)[-1].data
        assert mail.of(UDPData)[-1].data == last


# -- groups ----------------------------------------------------------------------------------------


def multicast_works() -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.setsockopt(
                socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1")
            )
            sock.setsockopt(
                socket.IPPROTO_IP,
                socket.IP_ADD_MEMBERSHIP,
                socket.inet_aton("239.255.7.7") + socket.inet_aton("127.0.0.1"),
            )
            sock.sendto(b"", ("239.255.7.7", 9))
        except OSError:
            return False
    return True


@pytest.mark.skipif(
    not multicast_works(), reason="this machine has no multicast on its loopback interface"
)
async def test_groups_are_joined_and_left(reader: ReaderKind) -> None:
    group = "239.255.7.7"
    async with wired_node() as node:
        server, mail = await serve(node, reader, None, host="0.0.0.0", interface="127.0.0.1")
        talker, _ = await serve(node, reader, None, interface="127.0.0.1")
        to = (group, server.local.port)

        await node.call(talker.id, UDPSend(b"too early", to))
        await node.call(server.id, UDPJoin(group, "127.0.0.1"))
        await node.call(talker.id, UDPSend(b"in time", to))
        await mail.first(UDPData)
        await node.call(server.id, UDPLeave(group, "127.0.0.1"))
        await node.call(talker.id, UDPSend(b"too late", to))
        await node.call(talker.id, UDPSend(b"to you alone", ("127.0.0.1", server.local.port)))
        await mail.wait_for(UDPData, 2)
        with pytest.raises(OSError, match="assign"):
            await node.call(server.id, UDPLeave(group, "127.0.0.1"))

        assert [message.data for message in mail.of(UDPData)] == [b"in time", b"to you alone"]


@pytest.mark.skipif(
    not multicast_works(), reason="this machine has no multicast on its loopback interface"
)
async def test_groups_may_be_joined_from_the_beginning(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, mail = await serve(
            node,
            reader,
            None,
            host="239.255.7.8",
            groups=["239.255.7.8"],
            interface="lo",
            reuse_port=True,
        )
        talker, _ = await serve(node, reader, None, interface="lo")

        await node.call(talker.id, UDPSend(b"all of you", ("239.255.7.8", server.local.port)))

        assert (await mail.first(UDPData)).data == b"all of you"


async def test_broadcasting_is_allowed_on_request(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, _ = await serve(node, reader, None, host="0.0.0.0", broadcast=True)

        # 127.255.255.255 is the broadcast address of loopback: nothing leaves the machine.
        assert (
            await node.call(server.id, UDPSend(b"hello", ("127.255.255.255", server.local.port)))
            == 5
        )


async def test_broadcasting_is_refused_by_default(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, _ = await serve(node, reader, None, host="0.0.0.0")

        with pytest.raises(PermissionError):
            await node.call(server.id, UDPSend(b"hello", ("127.255.255.255", server.local.port)))

        assert (await node.inspect_meta(server.id, "errors")) == {"errors": "1"}


async def test_options_reach_the_socket(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, _ = await serve(
            node,
            reader,
            receive_buffer=30_000,
            send_buffer=40_000,
            ttl=7,
            interface="127.0.0.1",
            reuse_port=True,
        )
        client, _ = await client_of(
            node, server.local, reader, receive_buffer=50_000, send_buffer=60_000
        )
        facts = await node.inspect_meta(server.id)

        # Linux doubles the requested size.
        sizes = [
            socket_of(one).getsockopt(socket.SOL_SOCKET, name)
            for one in (server, client)
            for name in (socket.SO_RCVBUF, socket.SO_SNDBUF)
        ]
        assert sizes == [60_000, 80_000, 100_000, 120_000]
        assert facts["receive buffer"] == "60000"
        assert socket_of(server).getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL) == 7
        assert socket_of(server).getsockopt(
            socket.IPPROTO_IP, socket.IP_MULTICAST_IF, 4
        ) == socket.inet_aton("127.0.0.1")
        assert socket_of(server).getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) == 1


async def test_the_number_of_remembered_peers_is_limited(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader)
        me = node.pid

        for number in range(3 * 1024):
            address = (f"127.1.{number >> 8}.{number & 255}", 9)
            server._remember(address)
            server._write(b"", address, me)
            server._is_numeric(address[0])
        remembered = [len(server._endpoints), len(server._senders), len(server._numeric)]
        with plain(server.local) as sock:
            sock.send(b"still there?")
            answer = await receive(sock)

        assert all(0 < count <= 1024 for count in remembered)
        assert answer == b"still there?"
        assert [message.data for message in mail.of(UDPData)] == [b"still there?"]


# -- looking inside --------------------------------------------------------------------------------


async def test_a_udp_socket_can_be_inspected(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, mail = await serve(node, reader, receive_buffer=100_000)
        client, heard = await client_of(node, server.local, reader)
        node.send(client.id, UDPSend(b"12345"))
        await heard.first(UDPData)

        facts = await node.inspect_meta(server.id)
        other = await node.inspect_meta(client.id)
        some = await node.inspect_meta(client.id, "peer", "nothing of the kind")

        assert facts["local"] == str(server.local)
        assert facts["peer"] == ""
        assert facts["reader"] == reader
        assert [facts[key] for key in ("bytes in", "bytes out", "messages in", "messages out")] == [
            "5",
            "5",
            "1",
            "1",
        ]
        assert [facts[key] for key in ("drops", "truncated", "errors", "pending")] == [
            "0",
            "0",
            "0",
            "0",
        ]
        assert int(facts["receive buffer"]) >= 100_000
        assert float(facts["age"]) > 0
        assert some == {"peer": str(server.local)} == {"peer": other["peer"]}
        assert len(mail.heard) == 1


async def test_stopping_frees_the_port_at_once(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, _ = await serve(node, reader)
        port = server.local.port
        for _ in range(5):
            node.send_exit(node.processes()[0])
            await until(lambda: node.processes() == [])

            server, _ = await serve(node, reader, port=port)

        with plain(server.local) as sock:
            sock.send(b"x")
            assert await receive(sock) == b"x"


@pytest.mark.parametrize(
    "options",
    [
        {"host": 5},
        {"port": -1},
        {"port": 65536},
        {"max_datagram": 0},
        {"max_datagram": 65536},
        {"receive_buffer": 0},
        {"send_buffer": -1},
        {"send_buffer": 2**31},
        {"groups": 5},
        {"groups": [5]},
        {"interface": 5},
        {"ttl": 256},
        {"broadcast": "no"},
        {"reuse_port": 1},
        {"receiver": 5},
        {"reader": "fibre"},
    ],
    ids=str,
)
def test_invalid_options_are_refused_when_the_server_is_created(options: dict[str, Any]) -> None:
    with pytest.raises(BadInputError):
        UDPServer(**options)


async def test_a_group_that_cannot_be_joined_is_named(reader: ReaderKind) -> None:
    async with wired_node() as node:
        server, _ = await serve(node, reader)

        with pytest.raises(OSError, match=r"cannot join 127\.0\.0\.1: Invalid argument"):
            await node.call(server.id, UDPJoin("127.0.0.1"))
        with pytest.raises(OSError, match="cannot join nonsense"):
            await node.call(server.id, UDPJoin("nonsense"))
        with pytest.raises(OSError, match=r"cannot leave 239\.1\.2\.3 at nowhere0"):
            await node.call(server.id, UDPLeave("239.1.2.3", "nowhere0"))
        with pytest.raises(InitError, match="cannot join nonsense"):
            await serve(node, reader, groups=["nonsense"])

        assert await node.inspect_meta(server.id)


@pytest.mark.parametrize("make", [UDPJoin, UDPLeave])
def test_an_invalid_group_is_refused_when_it_is_created(make: Any) -> None:
    with pytest.raises(BadInputError):
        make(5)
    with pytest.raises(BadInputError):
        make("239.1.2.3", 5)


def test_an_invalid_send_is_refused_when_it_is_created() -> None:
    with pytest.raises(BadInputError):
        UDPSend("text")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadInputError):
        UDPSend(b"x", "127.0.0.1:9")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadInputError):
        UDPClient("127.0.0.1", 0)
