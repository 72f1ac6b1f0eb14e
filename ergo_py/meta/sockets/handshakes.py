"""The handshakes of a listening TCP socket that is about to leave its port, as Linux knows them."""

import ctypes
import socket
import sys
from collections.abc import Iterator
from struct import Struct, pack
from typing import Final

from .socket_setup import INET

__all__ = ["drop_new_peers", "handshakes_at"]

_ON_LINUX: Final = sys.platform == "linux"

_NO_SYN: Final = (
    (0x30, 0, 0, 13),  # the flags of the segment
    (0x54, 0, 0, 0x12),  # SYN and ACK
    (0x15, 0, 1, 0x02),  # SYN alone: a new connection
    (0x06, 0, 0, 0),  # drop it
    (0x06, 0, 0, 2**32 - 1),  # keep any other
)
"""A filter of Linux (classic BPF) that drops the first segment of each new connection."""
_ATTACH_FILTER: Final = 26
"""``SO_ATTACH_FILTER`` of Linux, which the module ``socket`` lacks."""

_SOCK_DIAG: Final = 4
"""``NETLINK_SOCK_DIAG``: the part of Linux that lists sockets."""
_HEADER: Final = Struct("=IHHII")
"""``nlmsghdr``: length, type, flags, number, port."""
_BY_FAMILY: Final = 20
"""``SOCK_DIAG_BY_FAMILY``: the type of the question, and of an answer."""
_DUMP: Final = 0x301
"""``NLM_F_REQUEST`` and ``NLM_F_DUMP``."""
_ERROR, _DONE = 2, 3
"""The types of messages that end a list."""
_SYN_RECV: Final = 1 << 3
"""The state from the SYN until the connection is in the queue."""
_ANY: Final = 2**32 - 1
_REPEATS: Final = 3
"""The byte of ``inet_diag_msg`` that counts how often the system has repeated its answer."""
_COOKIE: Final = slice(44, 52)
"""The bytes of ``inet_diag_msg`` that no other handshake has."""
_GIVEN_UP: Final = 2
"""A peer that has not answered when the system has repeated its answer so often, after three
seconds, is gone, or only looks for open ports.
"""


def drop_new_peers(sock: socket.socket) -> None:
    """Let a listening TCP socket drop the first segment of new connections, where the system can:
    they try again a second later, and reach another server at the port if this one is gone.
    Connections that have begun become complete.
    """
    if not _ON_LINUX or sock.family not in INET:
        return
    steps = ctypes.create_string_buffer(b"".join(pack("HBBI", *step) for step in _NO_SYN))
    program = pack("HP", len(_NO_SYN), ctypes.addressof(steps))
    try:
        sock.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
    except OSError:  # the system does not allow it
        pass


def handshakes_at(sock: socket.socket) -> frozenset[bytes] | None:
    """The handshakes under way at the port of a listening TCP socket, those of other sockets at
    this port among them. None if the system does not tell.

    A handshake that has begun belongs to the socket that got its SYN, also at a port that several
    sockets share. If this socket is shut down, the last ACK is answered with a reset.
    """
    if not _ON_LINUX or sock.family not in INET:
        return None
    try:
        port = sock.getsockname()[1]
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as netlink:
            netlink.setblocking(False)  # the system answers at once
            return frozenset(_ask(netlink, sock.family, port))
    except OSError:  # no such part, or it is not allowed
        return None


def _ask(netlink: socket.socket, family: int, port: int) -> Iterator[bytes]:
    # inet_diag_req_v2 and inet_diag_sockid: every peer of this port, of any device and cookie.
    question = pack("=BBBxI", family, socket.IPPROTO_TCP, 0, _SYN_RECV)
    question += pack("!HH", port, 0) + bytes(32) + pack("=III", 0, _ANY, _ANY)
    size = _HEADER.size
    netlink.send(_HEADER.pack(size + len(question), _BY_FAMILY, _DUMP, 1, 0) + question)
    while True:
        answers = netlink.recv(64 * 1024)
        while answers:
            length, kind, _, _, _ = _HEADER.unpack_from(answers)
            answer = answers[size:length]
            if kind == _DONE:
                return
            if kind == _ERROR:
                raise OSError(-int.from_bytes(answer[:4], sys.byteorder, signed=True), "sock_diag")
            if answer[_REPEATS] < _GIVEN_UP:
                yield answer[_COOKIE]
            answers = answers[length + 3 & ~3 :]
