"""Multicast groups: a socket joins and leaves them."""

import errno
import socket
from struct import pack

from .socket_setup import describe

__all__ = ["interface_of", "set_member"]


def set_member(sock: socket.socket, group: str, interface: str | None, *, join: bool) -> None:
    """Let a socket join or leave a multicast group.

    Raises:
        OSError: the system refuses.
    """
    try:
        _set_member(sock, group, interface, join)
    except OSError as error:
        where = "" if interface is None else f" at {interface}"
        text = f"cannot {'join' if join else 'leave'} {group}{where}: {describe(error)}"
        raise OSError(error.errno or errno.EINVAL, text) from None


def _set_member(sock: socket.socket, group: str, interface: str | None, join: bool) -> None:
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
