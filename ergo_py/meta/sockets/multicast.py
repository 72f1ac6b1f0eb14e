"""`Membership`: the multicast groups of a socket, which joins and leaves them."""

import errno
import socket
import sys
from struct import pack
from typing import Final

from .socket_setup import describe

__all__ = ["Membership", "interface_of"]

_ALL_GROUPS: Final = {
    socket.AF_INET: (socket.IPPROTO_IP, 49),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 29),
}
"""``IP_MULTICAST_ALL`` and ``IPV6_MULTICAST_ALL`` of Linux, which Python does not name: a socket
gets the datagrams of all groups that any socket of the machine has joined.
"""


class Membership:
    """The multicast groups of a socket.

    The groups of a shared socket would outlive the server that has joined them: the system counts
    each group once for a socket, whoever holds it, and tells nobody which there are. So a server
    joins with a socket of its own: the groups end with the server, also if its program is killed,
    and those of the next server, or of the next version of the program, are others. The shared
    socket gets their datagrams all the same, where the system delivers by group and port.

    Args:
        sock: the socket that gets the datagrams.
        is_shared: others hold the socket, too.
    """

    __slots__ = ("_is_joined_by_others", "_own", "sock")

    def __init__(self, sock: socket.socket, *, is_shared: bool) -> None:
        has_own = is_shared and _hears_all_groups(sock)
        self._own = socket.socket(sock.family, sock.type) if has_own else None
        self._is_joined_by_others = is_shared and not has_own
        """A former server may have joined with the same socket."""
        self.sock: socket.socket = self._own or sock
        """The socket that joins."""

    def join(self, group: str, interface: str | None) -> None:
        """Join a group.

        Raises:
            OSError: the system refuses.
        """
        try:
            _set_member(self.sock, group, interface, join=True)
        except OSError as error:
            if not (self._is_joined_by_others and error.errno == errno.EADDRINUSE):
                raise

    def leave(self, group: str, interface: str | None) -> None:
        """Leave a group.

        Raises:
            OSError: the system refuses, such as for a group that was not joined.
        """
        _set_member(self.sock, group, interface, join=False)

    def end(self) -> None:
        """Leave the groups of a shared socket; those of another end when it is closed."""
        if self._own is not None:
            self._own.close()


def _hears_all_groups(sock: socket.socket) -> bool:
    if sys.platform != "linux":
        return False
    try:
        return bool(sock.getsockopt(*_ALL_GROUPS[sock.family]))
    except OSError:  # of an older Linux, whose IPv6 sockets have no choice
        return sock.family == socket.AF_INET6


def _set_member(sock: socket.socket, group: str, interface: str | None, *, join: bool) -> None:
    try:
        _set_option(sock, group, interface, join)
    except OSError as error:
        where = "" if interface is None else f" at {interface}"
        text = f"cannot {'join' if join else 'leave'} {group}{where}: {describe(error)}"
        raise OSError(error.errno or errno.EINVAL, text) from None


def _set_option(sock: socket.socket, group: str, interface: str | None, join: bool) -> None:
    if sock.family == socket.AF_INET6:
        index = 0 if interface is None else socket.if_nametoindex(interface)
        option = socket.IPV6_JOIN_GROUP if join else socket.IPV6_LEAVE_GROUP
        sock.setsockopt(
            socket.IPPROTO_IPV6,
            option,
            socket.inet_pton(socket.AF_INET6, group) + pack("@I", index),
        )
        return
    address, index = interface_of(interface)
    option = socket.IP_ADD_MEMBERSHIP if join else socket.IP_DROP_MEMBERSHIP
    sock.setsockopt(
        socket.IPPROTO_IP, option, socket.inet_aton(group) + address + pack("@i", index)
    )


def interface_of(interface: str | None) -> tuple[bytes, int]:
    """Address and number of an IPv4 interface, given as either name or address."""
    if interface is None:
        return bytes(4), 0
    try:
        return socket.inet_aton(interface), 0
    except OSError:
        return bytes(4), socket.if_nametoindex(interface)
