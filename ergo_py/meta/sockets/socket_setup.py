"""Opening sockets and setting them up."""

import errno
import socket
from fcntl import ioctl
from struct import pack, unpack
from termios import TIOCOUTQ
from typing import Any, Final

import trio

from ..._core.vocabulary.errors import BadInputError
from .messages import Endpoint
from .options import KeepAlive, StreamOptions

__all__ = [
    "OUT_OF_RESOURCES",
    "abort_on_close",
    "check_stream",
    "close_socket",
    "count_unacknowledged",
    "describe",
    "discard_input",
    "endpoint",
    "open_listener",
    "prepare",
    "resolve",
    "unknown_host",
]

OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""What ``accept`` may fail with although nothing is wrong with the listener: no descriptors or no
memory at this moment.
"""


_DISCARDED: Final = 64 * 1024
_DISCARDS: Final = 16
"""How much is thrown away at once, and how often, before others have their turn."""


def endpoint(address: Any) -> Endpoint:
    """What the ``socket`` module calls an address, as an endpoint."""
    host, port = address[0], address[1]
    if host.startswith("::ffff:") and "." in host:
        # A peer of the fourth version at a socket for both.
        host = host[7:]
    elif len(address) == 4 and address[3] and "%" not in host:
        host = f"{host}%{address[3]}"
    return Endpoint(host, port)


def describe(error: BaseException) -> str:
    """An error of the operating system in few words."""
    return (
        error.strerror
        if isinstance(error, OSError) and error.strerror
        else str(error) or type(error).__name__
    )


async def resolve(host: str, port: int, kind: int, flags: int = 0) -> list[tuple[int, Any]]:
    """The addresses of a host, each with its family; names are looked up in a thread.

    Raises:
        OSError: there are none.
    """
    try:
        found = await trio.socket.getaddrinfo(host or None, port, type=kind, flags=flags)
    except (socket.gaierror, UnicodeError) as error:
        raise unknown_host(host, error) from error
    return [(int(family), address) for family, _, _, _, address in found]


def unknown_host(host: str, error: Exception) -> socket.gaierror:
    """The same error, saying which host: the resolver does not."""
    if isinstance(error, socket.gaierror):
        return socket.gaierror(error.errno, f"{describe(error)}: {host}")
    return socket.gaierror(socket.EAI_NONAME, f"no name of a host: {host}")


async def open_listener(
    host: str,
    port: int,
    kind: int,
    *,
    reuse_port: bool = False,
    dual_stack: bool = True,
    buffer: int | None = None,
) -> socket.socket:
    """Make a socket that is bound to the first address of ``host`` that can be had.

    Raises:
        OSError: none can be had; the text says which were tried.
    """
    failure: OSError | None = None
    for family, address in await resolve(host, port, kind, socket.AI_PASSIVE):
        sock = None
        try:
            sock = socket.socket(family, kind)
            if kind == socket.SOCK_STREAM:
                # Connections of an earlier server may linger in the operating system; the port is
                # to be had at once all the same.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not dual_stack)
            if buffer is not None:
                # Before listen(): connections inherit it, and the window they can offer is settled
                # by then.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            sock.bind(address)
            return sock
        except OSError as error:
            if sock is not None:
                sock.close()
            failure = failure or OSError(error.errno, f"{describe(error)}: {endpoint(address)}")
    raise failure or OSError(errno.EADDRNOTAVAIL, f"{host} has no address")


def check_stream(what: str, sock: object) -> None:
    """Refuse what is no stream socket."""
    if (
        not isinstance(sock, socket.socket)
        or sock.type != socket.SOCK_STREAM
        or hasattr(sock, "getpeercert")
    ):
        raise BadInputError(
            what, sock, "a socket.socket of type SOCK_STREAM; TLS is put on top of it by tls=…"
        )


def prepare(sock: socket.socket, options: StreamOptions, *, blocking: bool) -> None:
    """Set up a connected socket."""
    sock.setblocking(blocking)
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, options.nodelay)
        _keep_alive(sock, options.keepalive)
    for name, value in (
        (socket.SO_RCVBUF, options.receive_buffer),
        (socket.SO_SNDBUF, options.send_buffer),
    ):
        if value is not None:
            sock.setsockopt(socket.SOL_SOCKET, name, value)


def _keep_alive(sock: socket.socket, keepalive: KeepAlive | bool) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, bool(keepalive))
    if isinstance(keepalive, KeepAlive):
        for name, value in (
            ("TCP_KEEPIDLE", keepalive.idle),
            ("TCP_KEEPINTVL", keepalive.interval),
            ("TCP_KEEPCNT", keepalive.count),
        ):
            # Not every system knows all of them.
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def close_socket(sock: socket.socket, *, in_use: bool) -> None:
    """Close a connection. One that a reader may still sit in is only shut: it must not find
    somebody else's under its number.

    No task waits for it by now: its reader has ended, and its writer tells the task that writes
    what waits.
    """
    try:
        if in_use:
            sock.shutdown(socket.SHUT_RDWR)
        else:
            sock.close()
    except OSError:
        # The other side was gone first. A close that complains has closed nevertheless.
        pass


def count_unacknowledged(sock: socket.socket) -> int:
    """How many bytes of a TCP connection the peer's system has not acknowledged; 0 where that is
    not known.

    Through a Unix socket, the peer has them at once.
    """
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return 0
    try:
        (count,) = unpack("i", ioctl(sock.fileno(), TIOCOUTQ, bytes(4)))
    except OSError:  # this system does not tell, or the socket is closed
        return 0
    return int(count)


def discard_input(sock: socket.socket) -> None:
    """Throw away what the peer has sent: a close with unread input is a reset, which may cost the
    peer what it has not read.

    Raises:
        OSError: the connection is broken.
    """
    try:
        for _ in range(_DISCARDS):
            if not sock.recv(_DISCARDED, socket.MSG_DONTWAIT):
                return
    except BlockingIOError:  # nothing is left
        return


def abort_on_close(sock: socket.socket) -> None:
    """Have the peer see a reset when the socket is closed, and nothing linger in the operating
    system.
    """
    # A struct linger: on, for no time at all.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
