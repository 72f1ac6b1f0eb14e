"""What servers set at a socket that they share with others, and what of it outlives them: groups,
buffers, queues and the options of sent datagrams.
"""

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from ergo_py import Actor, ChildSpec, InitError, Node, Shutdown
from ergo_py.meta.inherited_sockets import InheritedSockets
from ergo_py.meta.readers import ReaderKind
from ergo_py.meta.sockets.datagrams import UDPData, UDPJoin, UDPLeave
from ergo_py.meta.sockets.multicast import Membership
from ergo_py.meta.sockets.tcp import TCPServer
from ergo_py.meta.sockets.udp import UDPServer
from ergo_py.meta.sockets.unix import UnixServer
from ergo_py.web import WebServer
from tests.actors import LogKeeper
from tests.meta.support import socket_of
from tests.meta.wires import Ear, Mail, spawn_meta, until, wired_node
from tests.support import loopback_of_this_program

IPV4, IPV6 = socket.AF_INET, socket.AF_INET6
ALL_GROUPS: dict[int, tuple[int, int]] = {
    IPV4: (socket.IPPROTO_IP, 49),
    IPV6: (socket.IPPROTO_IPV6, 29),
}
"""``IP_MULTICAST_ALL`` and ``IPV6_MULTICAST_ALL`` of Linux."""


class Net:
    """Groups of a version of IP at an interface of this machine, on which nothing leaves it."""

    def __init__(self, family: int, interface: str) -> None:
        self.family, self.interface = family, interface
        # Of this test program: a socket gets the groups that any program has joined.
        high, low = divmod(os.getpid() % 2**16, 256)
        self.groups = [f"239.{high}.{low}.{last}" for last in (11, 12, 13)]
        if family == IPV6:
            self.groups = [f"ff11::{os.getpid() % 2**16:x}:{last}" for last in (11, 12, 13)]
        self._talker = socket.socket(family, socket.SOCK_DGRAM)
        if family == IPV4:
            index = pack("@i", socket.if_nametoindex(interface))
            option = bytes(8) + index
            self._talker.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, option)
        else:
            number = socket.if_nametoindex(interface)
            self._talker.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, number)

    def say(self, word: bytes, group: str, to: socket.socket) -> None:
        """Send a datagram to a group."""
        self._talker.sendto(word, (group, to.getsockname()[1]))

    def bound(self) -> socket.socket:
        """A socket for the datagrams of all groups."""
        sock = socket.socket(self.family, socket.SOCK_DGRAM)
        sock.bind(("0.0.0.0" if self.family == IPV4 else "::", 0))
        return sock

    def close(self) -> None:
        self._talker.close()


def net_of(family: int) -> Net | None:
    """An interface of this machine on which groups work; None if there is none."""
    for _, interface in socket.if_nameindex():
        try:
            net = Net(family, interface)
        except OSError:
            continue
        with closing(net.bound()) as sock:
            sock.settimeout(1)
            try:
                if family == IPV4:
                    index = pack("@i", socket.if_nametoindex(interface))
                    option = socket.inet_aton(net.groups[0]) + bytes(4) + index
                    sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, option)
                else:
                    option = socket.inet_pton(IPV6, net.groups[0])
                    option += pack("@I", socket.if_nametoindex(interface))
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, option)
                net.say(b"x", net.groups[0], sock)
                sock.recv(10)
                return net
            except OSError:
                net.close()
    return None


@pytest.fixture(params=[IPV4, IPV6], ids=["IPv4", "IPv6"])
def net(request: pytest.FixtureRequest) -> Iterator[Net]:
    found = net_of(request.param)
    if found is None:
        pytest.skip("this machine has no multicast of this version of IP")
    with closing(found):
        yield found


@pytest.fixture
def sock(net: Net) -> Iterator[socket.socket]:
    """A socket that is passed to servers."""
    with net.bound() as made:
        yield made


@pytest.fixture(params=["thread", "task"])
def reader(request: pytest.FixtureRequest) -> ReaderKind:
    kind: ReaderKind = request.param
    return kind


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Iterator[InheritedSockets]:
    """The named sockets of this program, which has a successor."""
    made = InheritedSockets({})
    made.begin_to_keep()
    monkeypatch.setattr("ergo_py.meta.sockets.socket_setup.inherited_sockets", lambda: made)
    yield made
    for number in made.to_hand_over().values():
        os.close(number)


async def serve(node: Node, server: UDPServer) -> Mail:
    mail = Mail()
    await spawn_meta(node, await node.spawn(Ear, mail), server)
    return mail


async def stop_all(node: Node) -> None:
    for owner in node.processes():
        node.send_exit(owner, Shutdown())
    await until(lambda: node.metas() == [])


async def heard(net: Net, mail: Mail, sock: socket.socket, plain: tuple[str, int]) -> list[str]:
    """The groups of which a server gets the datagrams. A datagram to the server itself is behind
    them.
    """
    before = len(mail.of(UDPData))
    for group in net.groups:
        net.say(group.encode(), group, sock)
    with socket.socket(net.family, socket.SOCK_DGRAM) as peer:
        peer.sendto(b"end", plain)
    await until(lambda: any(each.data == b"end" for each in mail.of(UDPData)[before:]))
    return [each.data.decode() for each in mail.of(UDPData)[before:-1]]


def plain_address(net: Net, sock: socket.socket) -> tuple[str, int]:
    host = loopback_of_this_program() if net.family == IPV4 else "::1"
    return host, sock.getsockname()[1]


async def test_a_server_with_groups_starts_again_with_the_same_socket(
    net: Net, sock: socket.socket, reader: ReaderKind
) -> None:
    to = plain_address(net, sock)
    async with wired_node() as node:
        for groups in (net.groups[:2], net.groups[:2], net.groups[1:], []):
            server = UDPServer(sock=sock, reader=reader, groups=groups, interface=net.interface)
            mail = await serve(node, server)
            # Neither those of the server before, nor fewer than its own.
            assert await heard(net, mail, sock, to) == groups
            await stop_all(node)


class Owner(Actor):
    """Owns a server, and crashes when a datagram says so."""

    def __init__(self, make: Callable[[], UDPServer], starts: list[int], mail: Mail) -> None:
        self.make, self.starts, self.mail = make, starts, mail

    async def init(self) -> None:
        await self.spawn_meta(self.make())
        self.starts.append(len(self.starts))

    def handle_message(self, message: Any, sender: Any) -> None:
        self.mail.add(message)
        if isinstance(message, UDPData) and message.data == b"crash":
            raise RuntimeError("as the test wants it")


@pytest.mark.parametrize("is_named", [False, True], ids=["socket", "name"])
async def test_a_supervisor_starts_a_server_with_groups_again_each_time(
    net: Net, sock: socket.socket, is_named: bool, named: InheritedSockets, reader: ReaderKind
) -> None:
    if is_named:
        named.take_over({"news": os.dup(sock.fileno())}, {})
        named.release()
    given: Any = "news" if is_named else sock
    options: Any = {"reader": reader, "groups": net.groups[:1], "interface": net.interface}
    starts, mail = list[int](), Mail()
    child = ChildSpec("owner", Owner, partial(UDPServer, sock=given, **options), starts, mail)

    async with wired_node() as node:
        await node.supervise([child], intensity=10)
        for number in range(1, 4):
            net.say(b"crash", net.groups[0], sock)
            await until(lambda: len(starts) == number + 1)  # noqa: B023
        net.say(b"still here", net.groups[0], sock)
        await until(lambda: mail.of(UDPData)[-1].data == b"still here")


async def test_servers_of_a_socket_join_and_leave_groups_each_for_itself(
    net: Net, sock: socket.socket
) -> None:
    group, to = net.groups[0], plain_address(net, sock)
    async with wired_node() as node:
        first = UDPServer(sock=sock, groups=[group], interface=net.interface, reader="task")
        mail = await serve(node, first)
        other = UDPServer(sock=sock, reader="task")
        await spawn_meta(node, await node.spawn(Ear, mail), other)

        await node.call(other.id, UDPJoin(group, net.interface))
        with pytest.raises(OSError, match="already in use"):
            await node.call(other.id, UDPJoin(group, net.interface))
        await node.call(first.id, UDPLeave(group, net.interface))
        assert await heard(net, mail, sock, to) == [group]

        await node.call(other.id, UDPLeave(group, net.interface))
        with pytest.raises(OSError, match="cannot leave"):
            await node.call(other.id, UDPLeave(group, net.interface))
        assert await heard(net, mail, sock, to) == []


async def test_the_groups_of_a_socket_that_hears_its_own_groups_only_stay_with_it(
    net: Net, sock: socket.socket
) -> None:
    try:
        sock.setsockopt(*ALL_GROUPS[net.family], 0)
    except OSError:
        pytest.skip("sockets of this system hear all groups, or their own only")
    to = plain_address(net, sock)
    async with wired_node() as node:
        for groups in (net.groups[:2], net.groups[1:]):
            server = UDPServer(sock=sock, groups=groups, interface=net.interface)
            mail = await serve(node, server)
            found = await heard(net, mail, sock, to)
            await stop_all(node)
    assert found == net.groups


async def test_a_server_with_a_refused_group_closes_its_sockets(
    sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[Membership]()

    def make(sock: socket.socket, *, is_shared: bool) -> Membership:
        made.append(Membership(sock, is_shared=is_shared))
        return made[-1]

    monkeypatch.setattr("ergo_py.meta.sockets.udp_socket.Membership", make)
    async with wired_node() as node:
        owner = await node.spawn(Ear, Mail())
        with pytest.raises(InitError, match="cannot join nonsense"):
            await spawn_meta(node, owner, UDPServer(sock=sock, groups=["nonsense"]))
    assert [membership.sock.fileno() for membership in made] == [-1]
    assert sock.fileno() != -1


# -- buffers and other options ---------------------------------------------------------------------


def sizes(sock: socket.socket) -> tuple[int, int]:
    """The sizes of the buffers for received and for sent datagrams."""
    return (
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF),
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF),
    )


@pytest.fixture
def udp() -> Iterator[socket.socket]:
    with socket.socket(IPV4, socket.SOCK_DGRAM) as made:
        made.bind((loopback_of_this_program(), 0))
        yield made


@pytest.mark.parametrize("is_named", [False, True], ids=["socket", "name"])
@pytest.mark.parametrize("is_set", [False, True], ids=["default", "set"])
async def test_the_buffers_of_a_server_do_not_outlive_it(
    udp: socket.socket, is_named: bool, is_set: bool, named: InheritedSockets
) -> None:
    if is_set:  # as ReceiveBuffer= of a unit does
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 30_000)
    if is_named:
        named.take_over({"news": os.dup(udp.fileno())}, {})
        named.release()
    given: Any = "news" if is_named else udp
    before = sizes(udp)
    async with wired_node() as node:
        for receive, send in ((40_000, None), (None, 50_000), (60_000, 70_000), (None, None)):
            server = UDPServer(sock=given, receive_buffer=receive, send_buffer=send)
            await serve(node, server)
            found = sizes(udp)
            assert found == (
                before[0] if receive is None else 2 * receive,
                before[1] if send is None else 2 * send,
            )
            await stop_all(node)
            assert sizes(udp) == before
    locked = udp.getsockopt(socket.SOL_SOCKET, 72)  # SO_BUF_LOCK: the size that was set stays
    assert locked == (2 if is_set else 0)


async def test_a_server_sets_all_options_of_sent_datagrams(udp: socket.socket) -> None:
    def found() -> list[int]:
        """Broadcasts, hops and interface."""
        return [
            udp.getsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST),
            udp.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL),
            udp.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF),
        ]

    default = found()
    async with wired_node() as node:
        options: Any = {"broadcast": True, "ttl": 7, "interface": "127.0.0.1"}
        await serve(node, UDPServer(sock=udp, **options))
        assert [*map(bool, found())] == [True, True, True]
        assert found()[1] == 7
        await stop_all(node)
        await serve(node, UDPServer(sock=udp))
        assert found() == default


def waiting(sock: socket.socket) -> int:
    """How many connections may wait at a socket (``tcpi_sacked`` of a socket that listens)."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return int.from_bytes(info[28:32], sys.byteorder)


async def test_the_next_server_of_a_kept_socket_sets_its_queue_and_warns_of_differences(
    named: InheritedSockets, short_path: Path
) -> None:
    host, log = loopback_of_this_program(), list[Any]()
    path, other = short_path / "one", short_path / "other"
    async with wired_node() as node:
        node.add_logger(await node.spawn(LogKeeper, log, name="log"), "warning")
        owner = await node.spawn(Ear, Mail())
        first = TCPServer(host, 7797, sock="tcp", queue=33)
        unix, udp = UnixServer(path, sock="unix"), UDPServer(host, 7797, sock="udp")
        for server in (first, unix, udp):
            await spawn_meta(node, owner, server)
        assert waiting(socket_of(first)) == 33
        node.kill(owner)
        await until(lambda: node.metas() == [])

        owner = await node.spawn(Ear, Mail())
        second = TCPServer(host, 7797, sock="tcp", queue=44)
        for again in (second, UnixServer(path, sock="unix"), UDPServer(host, 7797, sock="udp")):
            await spawn_meta(node, owner, again)
        assert waiting(socket_of(second)) == 44
        assert log == []
        node.kill(owner)
        await until(lambda: node.metas() == [])

        owner = await node.spawn(Ear, Mail())
        tcp = TCPServer("127.0.0.9", 7798, sock="tcp", reuse_port=True)
        for changed in (
            tcp,
            WebServer("localhost", 7798, sock="tcp"),
            UnixServer(other, sock="unix", mode=0o660),
            UDPServer("127.0.0.9", 7797, sock="udp"),
        ):
            await spawn_meta(node, owner, changed)
        await until(lambda: len(log) == 4)
        assert [record.event for record in log] == [
            "the socket stays as a former server has opened it"
        ] * 4
        port, address = "7797, not 7798", f"{host}, not 127.0.0.9"
        assert [told(record) for record in log] == [
            {"port": port, "host": address, "reuse_port": "False, not True"},
            {"port": port},
            {"path": f"{path}, not {other}", "mode": "0o600, not 0o660"},
            {"host": address},
        ]
        assert tcp.local == first.local


def told(record: Any) -> dict[str, Any]:
    names = ("port", "host", "reuse_port", "dual_stack", "path", "mode")
    return {name: record.fields[name] for name in names if name in record.fields}


async def test_a_kept_socket_for_both_versions_of_ip_says_so(named: InheritedSockets) -> None:
    log = list[Any]()
    async with wired_node() as node:
        node.add_logger(await node.spawn(LogKeeper, log, name="log"), "warning")
        for dual_stack in (True, False):
            owner = await node.spawn(Ear, Mail())
            server = TCPServer("::", 0, sock="tcp", dual_stack=dual_stack)
            try:
                await spawn_meta(node, owner, server)
            except InitError:
                pytest.skip("this machine has no IPv6")
            node.kill(owner)
            await until(lambda: node.metas() == [])
        await until(lambda: log)
    assert [told(record) for record in log] == [{"dual_stack": "True, not False"}]
