"""`UDPServer` turns datagrams into messages, and `UDPClient` does the same for a single peer."""

import errno
import socket
from collections.abc import Sequence
from struct import pack

from ..._core.kernel import Kernel
from ..._core.metas.meta import Meta
from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.ids import Target
from ..._core.vocabulary.options import check_flag, check_number
from ..._core.vocabulary.public_names import show_public_names
from ..._core.vocabulary.reasons import Reason
from ..readers import ReaderKind, ReaderWait
from ..receivers import check_receiver
from .datagrams import check_group
from .messages import Endpoint
from .multicast import interface_of
from .socket_setup import (
    INET,
    GivenSocket,
    describe,
    endpoint,
    of_address,
    open_listener,
    resolve,
)
from .socket_source import connect
from .udp_socket import LONGEST, UDPSocket

__all__ = ["UDPClient", "UDPServer", "udp_servers_of"]


class UDPServer(UDPSocket):
    """A UDP server: a meta-process that turns datagrams into messages.

    The smallest server is an actor that spawns it, and answers to the alias in each message::

        from ergo_py import PID, Actor, Alias
        from ergo_py.meta import UDP, UDPServer


        class Echo(Actor):
            async def init(self) -> None:
                await self.spawn_meta(UDPServer("127.0.0.1", 8125))

            def handle_message(self, message: object, sender: PID | Alias) -> None:
                match message:
                    case UDP.Data(socket, peer, data):
                        self.send(socket, UDP.Send(data, peer))
                    case UDP.Failed(_, peer, fault):
                        self.log.warning("not delivered", peer=str(peer), fault=fault.value)

    Args:
        host: the address to listen at; loopback by default.
        port: the port, or 0 for a free port, which ``local`` of the spawned server tells.
        sock: the socket to receive from, as for :class:`TCPServer`: a bound socket, or the name of
            a socket that systemd has opened for this program. Its unread datagrams are left to the
            next reader; its groups and the sizes of its buffers do not outlive this server.
        receiver: the address that gets the messages; None for the owner.
        reader: ``"thread"`` blocks a thread in the socket, ``"task"`` reads in a task of the loop.
        max_datagram: bytes; a longer datagram is cut, and marked as truncated.
        receive_buffer: bytes that the operating system may keep for a slow receiver; None for the
            system's default.
        send_buffer: bytes of outgoing datagrams that the operating system may keep; None for the
            system's default.
        broadcast: allow sending to broadcast addresses.
        groups: multicast groups to join from the start.
        interface: the interface of those groups, by name or address; multicast is also sent there.
        ttl: how many hops multicast may travel.
        reuse_port: let several sockets share the port.
    """

    _needed = True

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int | None = None,
        *,
        sock: socket.socket | str | None = None,
        receiver: Target | None = None,
        reader: ReaderKind = "thread",
        max_datagram: int = LONGEST,
        receive_buffer: int | None = None,
        send_buffer: int | None = None,
        broadcast: bool = False,
        groups: Sequence[str] = (),
        interface: str | None = None,
        ttl: int = 1,
        reuse_port: bool = False,
    ) -> None:
        if not isinstance(host, str):
            raise BadInputError(
                "UDPServer(host)", host, "a name or an address, such as '127.0.0.1'"
            )
        is_placed, port = port is not None, 0 if port is None else port
        check_number("UDPServer(port)", port, least=0, whole=True, most=65535)
        check_number("ttl", ttl, least=0, whole=True, most=255)
        check_flag("broadcast", broadcast)
        check_flag("reuse_port", reuse_port)
        super().__init__(
            check_receiver(receiver), reader, max_datagram, receive_buffer, send_buffer
        )
        self._wait = ReaderWait(self)
        """The wait of the reader for the turn of this program."""
        self._host, self._port = host, port
        self._given = GivenSocket("UDPServer", sock, socket.SOCK_DGRAM, INET, is_placed=is_placed)
        self._broadcast = broadcast
        if not isinstance(groups, Sequence):
            raise BadInputError(
                "UDPServer(groups)",
                groups,
                "the addresses of multicast groups, such as ['239.1.2.3']",
            )
        self._groups = (groups,) if isinstance(groups, str) else tuple(groups)
        for group in self._groups or ("",):
            check_group("UDPServer", group, interface)
        self._interface = interface
        self._ttl = ttl
        self._reuse_port = reuse_port

    @property
    def _is_shared(self) -> bool:
        return self._given.is_used

    async def _open(self) -> socket.socket:
        given = self._given.open()
        if given is not None:
            if self._given.is_kept:
                self._given.tell_differences(
                    self.log, of_address(given, self._host, self._port, self._reuse_port)
                )
            return given
        sock = await open_listener(
            self._host, self._port, socket.SOCK_DGRAM, reuse_port=self._reuse_port
        )
        self._given.keep(sock)
        return sock

    def _may_read(self) -> bool:
        return not self._given.is_held

    def _read_in_thread(self) -> None:
        if self._may_read() or self._wait.in_thread(self._may_read):
            super()._read_in_thread()

    async def _read_in_task(self) -> None:
        if not self._may_read():
            await self._wait.in_task(self._may_read)
        await super()._read_in_task()

    def unblock(self) -> None:
        """Wake a reader that does not read yet."""
        self._wait.ring()

    def look_again(self) -> None:
        """Look whether to read, with the options of this server: the program has taken over."""
        try:
            self.set_options()
        except OSError as error:  # such as for an interface that is gone by now
            self.log.error("an option of the socket cannot be set", error=str(error))
        self._wait.ring()

    def _prepare(self) -> None:
        own = self._membership.sock
        self._set_sending(own)  # what the system refuses is refused before the program is up
        for group in self._groups:
            self._membership.join(group, self._interface)
        if self._may_read():
            self.set_options()

    def set_options(self) -> None:
        """Set the options of the socket, which another version may have set to others."""
        if self._is_shared:
            self._given.set_buffers(self._socket, self._buffers)
        else:
            super()._prepare()
        self._set_sending(self._socket)

    def _set_sending(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, self._broadcast)
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, self._ttl)
            if self._interface is not None or self._is_shared:
                address, index = interface_of(self._interface)
                chosen = bytes(4) + address + pack("@i", index)
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, chosen)
        else:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, self._ttl)
            if self._interface is not None or self._is_shared:
                index = 0 if self._interface is None else socket.if_nametoindex(self._interface)
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)

    async def terminate(self, reason: Reason) -> None:
        """Close the socket. A shared socket goes on, with the sizes of buffers from before."""
        if self._is_shared and not self._meta.abandoned:
            self._given.reset_buffers(self._socket)
        await super().terminate(reason)


class UDPClient(UDPSocket):
    """A UDP socket with a single peer: it receives datagrams from no other peer, and hears if no
    process listens there.

    Args:
        host: the name or address of the peer.
        port: the port of the peer.
        receiver: the address that gets the messages; None for the owner.
        reader: ``"thread"`` blocks a thread in the socket, ``"task"`` reads in a task of the loop.
        max_datagram: bytes; a longer datagram is cut, and marked as truncated.
        receive_buffer: bytes that the operating system may keep for a slow receiver; None for the
            system's default.
        send_buffer: bytes of outgoing datagrams that the operating system may keep; None for the
            system's default.
        broadcast: allow a broadcast address as the peer.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        receiver: Target | None = None,
        reader: ReaderKind = "thread",
        max_datagram: int = LONGEST,
        receive_buffer: int | None = None,
        send_buffer: int | None = None,
        broadcast: bool = False,
    ) -> None:
        if not isinstance(host, str):
            raise BadInputError(
                "UDPClient(host)", host, "a name or an address, such as '127.0.0.1'"
            )
        check_number("UDPClient(port)", port, least=1, whole=True, most=65535)
        check_flag("broadcast", broadcast)
        super().__init__(
            check_receiver(receiver), reader, max_datagram, receive_buffer, send_buffer
        )
        self._goal = (host, port)
        self._broadcast = broadcast
        self.peer: Endpoint = Endpoint("", 0)

    async def _open(self) -> socket.socket:
        sock = await connect(Endpoint(*self._goal), socket.SOCK_DGRAM, self._connect_to_goal)
        self.peer = endpoint(sock.getpeername())
        return sock

    @property
    def _is_client(self) -> bool:
        return True

    async def _connect_to_goal(self) -> socket.socket:
        failure: OSError | None = None
        for family, address in await resolve(*self._goal, socket.SOCK_DGRAM):
            sock = socket.socket(family, socket.SOCK_DGRAM)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, self._broadcast)
                sock.connect(address)
            except OSError as error:
                sock.close()
                failure = OSError(error.errno, f"{describe(error)}: {endpoint(address)}")
                continue
            return sock
        raise failure or OSError(errno.EADDRNOTAVAIL, f"{self._goal[0]} has no address")

    def _peer_text(self) -> str:
        return str(self.peer)


def udp_servers_of(kernel: Kernel) -> list[UDPServer]:
    """The servers of a node that get datagrams."""
    return [
        meta.behaviour
        for meta in kernel.router.registry.aliases.values()
        if isinstance(meta, Meta) and isinstance(meta.behaviour, UDPServer)
    ]


show_public_names(__name__)
