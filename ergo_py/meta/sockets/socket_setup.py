"""Functions that open sockets and set them up."""

import errno
import ipaddress
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from fcntl import ioctl
from functools import cache, partial
from struct import pack, unpack
from termios import TIOCOUTQ
from typing import TYPE_CHECKING, Any, Final

import trio

from ..._core.vocabulary.errors import BadInputError
from ..inherited_sockets import InheritedSockets, inherited_sockets
from .messages import Endpoint, KeepAlive
from .options import StreamOptions
from .socket_source import listen

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

__all__ = [
    "INET",
    "OUT_OF_RESOURCES",
    "GivenSocket",
    "abort_on_close",
    "check_stream",
    "close_socket",
    "count_unacknowledged",
    "describe",
    "discard_input",
    "endpoint",
    "of_address",
    "open_listener",
    "prepare",
    "prepare_listener",
    "reset",
    "resolve",
    "unknown_host",
]

OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of ``accept`` that are no fault of the listener: the system has no descriptors or no
memory at this moment.
"""


_DISCARDED: Final = 64 * 1024
"""Bytes to throw away in a read before a close, so that the peer gets no reset."""
_DISCARDS: Final = 16
"""Bytes to discard in a read, and the number of reads, before other work gets its turn."""


def endpoint(address: Any) -> Endpoint:
    """Turn an address of the ``socket`` module into an endpoint."""
    host, port = address[0], address[1]
    if host.startswith("::ffff:") and "." in host:
        # An IPv4 peer at a socket for both versions.
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
    """The addresses of a host, each with its family; a thread looks names up.

    Raises:
        OSError: the host has no addresses.
    """
    try:
        found = await trio.socket.getaddrinfo(host or None, port, type=kind, flags=flags)
    except (socket.gaierror, UnicodeError) as error:
        raise unknown_host(host, error) from error
    return [(int(family), address) for family, _, _, _, address in found]


def unknown_host(host: str, error: Exception) -> socket.gaierror:
    """The same error with the host in its text, which the resolver leaves out."""
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
    """Make a socket and bind it to the first usable address of ``host``.

    Raises:
        OSError: no address could be used; the text names the first.
    """
    opens = partial(_open_listener, host, port, kind, reuse_port, dual_stack, buffer)
    return await listen(Endpoint(host, port), kind, opens)


async def _open_listener(
    host: str, port: int, kind: int, reuse_port: bool, dual_stack: bool, buffer: int | None
) -> socket.socket:
    failure: OSError | None = None
    for family, address in await resolve(host, port, kind, socket.AI_PASSIVE):
        sock = None
        try:
            sock = socket.socket(family, kind)
            if kind == socket.SOCK_STREAM:
                # The system may still keep connections of an earlier server. Bind to the port all
                # the same.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not dual_stack)
            if buffer is not None:
                # Before listen(): connections inherit the size, and it limits the window that they
                # can offer.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            sock.bind(address)
            return sock
        except OSError as error:
            if sock is not None:
                sock.close()
            failure = failure or OSError(error.errno, f"{describe(error)}: {endpoint(address)}")
    raise failure or OSError(errno.EADDRNOTAVAIL, f"{host} has no address")


def check_stream(what: str, sock: object) -> None:
    """Refuse anything but a stream socket."""
    if (
        not isinstance(sock, socket.socket)
        or sock.type != socket.SOCK_STREAM
        or hasattr(sock, "getpeercert")
    ):
        raise BadInputError(
            what, sock, "a socket.socket of type SOCK_STREAM; TLS is put on top of it by tls=…"
        )


INET: Final = (int(socket.AF_INET), int(socket.AF_INET6))
_NAMES: Final = {
    INET: "IPv4 or IPv6",
    (int(socket.AF_UNIX),): "AF_UNIX",
    socket.SOCK_STREAM: "SOCK_STREAM",
    socket.SOCK_DGRAM: "SOCK_DGRAM",
}


class GivenSocket:
    """The option ``sock`` of a server: an open socket, or the name of an inherited socket.

    The server listens with a copy. The socket itself stays open, so that a restarted server, or the
    next version of the program, goes on with the connections that wait in its queue.

    Args:
        server: the name of the server, for errors.
        sock: the value of the option; None for a server that opens its own socket.
        kind: the type of socket that the server needs.
        families: the address families that the server knows.
        is_placed: the server was given an address of its own, too.

    Raises:
        BadInputError: the server cannot use the socket.
    """

    __slots__ = (
        *("_families", "_former_sizes", "_inherited", "_is_placed", "_kind", "_server", "_sock"),
        "is_used",
    )

    _inherited: InheritedSockets
    """The named sockets of the program, once the server has started with one of them."""

    def __init__(
        self, server: str, sock: object, kind: int, families: tuple[int, ...], *, is_placed: bool
    ) -> None:
        self._server = server
        self._kind = kind
        self._families = families
        self._is_placed = is_placed
        self.is_used: bool = False
        """Whether the server listens with a copy: others hold the socket, too."""
        if not isinstance(sock, socket.socket | str | None) or sock == "":
            raise BadInputError(
                f"{server}(sock)",
                sock,
                "an open socket.socket, or the name of an inherited socket, such as 'http'",
            )
        self._sock = sock
        self._former_sizes: dict[int, int] = {}
        """The sizes of buffers from before this server; of a named socket, of all its servers."""
        if isinstance(sock, socket.socket):
            if is_placed:
                raise BadInputError(
                    f"{server}(sock)", sock, "a socket or an address, not both: it has its address"
                )
            self._check(sock)

    def open(self) -> socket.socket | None:
        """A copy of the socket; None if the server opens its own: it has neither a socket nor a
        name, or an address for a program without inherited sockets.

        Raises:
            BadInputError: the server cannot use the socket.
            OSError: there is no inherited socket with this name.
        """
        if self._sock is None:
            return None
        if isinstance(self._sock, socket.socket):
            self._check(self._sock)
            # Not its dup(), which would let all copies block for a moment.
            sock = socket.socket(fileno=os.dup(self._sock.fileno()))
        else:
            inherited = self._inherited = inherited_sockets()
            is_alone = not len(inherited) and not inherited.is_for_another
            if self._is_placed and is_alone and not inherited.has(self._sock):
                self.is_used = inherited.keeps
                return None
            sock = inherited.open(self._sock)
            try:
                self._check(sock)
            except BadInputError:
                sock.close()
                raise
        # The copies of a socket share this setting. A server that blocks in accept() would wait for
        # the next connection if the holder of another copy has accepted this one.
        sock.setblocking(False)
        self.is_used = True
        return sock

    def keep(self, sock: socket.socket) -> None:
        """Keep the socket that the server has opened, if the program keeps its sockets for a
        successor.
        """
        if self.is_used and isinstance(self._sock, str):
            sock.setblocking(False)  # as in open()
            self._inherited.keep(self._sock, sock)

    @property
    def name(self) -> str:
        """The name of the inherited socket; empty if there is none."""
        return self._sock if isinstance(self._sock, str) else ""

    @property
    def is_held(self) -> bool:
        """Whether the server accepts no connection yet, since a predecessor still serves."""
        return isinstance(self._sock, str) and self._inherited.is_held

    @property
    def is_kept(self) -> bool:
        """Whether this program, or a former version, has opened the socket under the name."""
        return self.is_used and bool(self.name) and self._inherited.has(self.name)

    def tell_differences(
        self, log: "FilteringBoundLogger", properties: Mapping[str, tuple[object, object]]
    ) -> None:
        """Warn of the properties of a socket that a server asks for, and that are those of the
        version which has opened the socket: each is asked for, and found.
        """
        if self._is_placed and (
            others := {
                name: f"{found}, not {asked}"
                for name, (asked, found) in properties.items()
                if asked != found
            }
        ):
            log.warning("the socket stays as a former server has opened it", **others)

    def set_buffers(self, sock: socket.socket, sizes: Mapping[int, int | None]) -> None:
        """Set the buffers of a shared socket. A buffer without a size gets back the size from
        before the first server of the socket.
        """
        if self.name:
            known = self._inherited.former_sizes
            self._former_sizes = known.setdefault(self.name, self._former_sizes)
        for name, size in sizes.items():
            former = self._former_sizes.setdefault(name, _size_set(sock, name))
            if size is not None:
                sock.setsockopt(socket.SOL_SOCKET, name, size)
            elif _size_set(sock, name) != former:  # else leave more than a program may set
                _set_back(sock, name, former)

    def reset_buffers(self, sock: socket.socket) -> None:
        """Give the buffers the sizes from before the first server, at the end of this server."""
        if self._former_sizes and not (self.name and self._inherited.is_left):
            self.set_buffers(sock, dict.fromkeys(list(self._former_sizes)))

    def _check(self, sock: socket.socket) -> None:
        if sock.fileno() < 0:
            raise self._wrong(sock, "an open socket; this one is closed")
        if (
            sock.type != self._kind
            or sock.family not in self._families
            or hasattr(sock, "getpeercert")
        ):
            kind, family = _NAMES[self._kind], _NAMES[self._families]
            raise self._wrong(
                sock,
                f"a socket of type {kind} for {family}; this one is {sock.type!r} for "
                f"{sock.family!r}, and TLS is put on top of a plain socket by tls=…",
            )
        if self._kind == socket.SOCK_STREAM:
            if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                raise self._wrong(
                    sock,
                    "a socket that listens: call its listen(), or write Accept=no in its unit",
                )
        elif not sock.getsockname()[1]:
            raise self._wrong(sock, "a socket with a port: call its bind()")
        elif _has_peer(sock):
            raise self._wrong(sock, "a socket for all peers; this one is connected to one of them")

    def _wrong(self, sock: socket.socket, right: str) -> BadInputError:
        given = self._sock if isinstance(self._sock, str) else sock
        return BadInputError(f"{self._server}(sock)", given, right)


def of_address(
    sock: socket.socket, host: str, port: int, reuse_port: bool, dual_stack: bool | None = None
) -> dict[str, tuple[object, object]]:
    """The properties of a socket of an address: what is asked for, and found."""
    local = endpoint(sock.getsockname())
    found: dict[str, tuple[object, object]] = {"port": (port or local.port, local.port)}
    with suppress(ValueError):  # a name, which may have many addresses
        found["host"] = str(ipaddress.ip_address(host)), local.host
    shares = sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT)
    found["reuse_port"] = reuse_port, bool(shares)
    if dual_stack is not None and local.host == "::":  # no other address has both versions
        is_alone = sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
        found["dual_stack"] = dual_stack, not is_alone
    return found


def _has_peer(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


_ON_LINUX: Final = sys.platform == "linux"


def prepare_listener(sock: socket.socket, options: StreamOptions) -> bool:
    """Set up a listening socket, so that its connections need not be: on Linux, they inherit the
    options of TCP and the sizes of the buffers. Returns whether they do.
    """
    if not _ON_LINUX or sock.family not in INET:
        return False
    _set_tcp_options(sock, options)
    _set_buffers(sock, options)
    return True


def prepare(sock: socket.socket, options: StreamOptions, *, blocking: bool) -> None:
    """Set up a connected socket whose listener was not prepared."""
    sock.setblocking(blocking)
    # The number itself: `sock.family` would look up the member of an enumeration.
    if super(socket.socket, sock).family in INET:
        _set_tcp_options(sock, options)
    _set_buffers(sock, options)


def _set_buffers(sock: socket.socket, options: StreamOptions) -> None:
    for name, value in (
        (socket.SO_RCVBUF, options.receive_buffer),
        (socket.SO_SNDBUF, options.send_buffer),
    ):
        if value is not None:
            sock.setsockopt(socket.SOL_SOCKET, name, value)


_BUFFER_LOCK: Final = 72
"""``SO_BUF_LOCK`` of Linux 5.14 and later, which Python does not name: the buffers whose size a
program has set.
"""
_BUFFERS: Final = {socket.SO_SNDBUF: 1, socket.SO_RCVBUF: 2}
"""Its bits."""
_FACTOR: Final = 2 if _ON_LINUX else 1
"""Linux doubles the size that it is given."""
_KEEPALIVE_TIMES: Final = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")


def reset(sock: socket.socket) -> None:
    """Give a connection of the program before the options of a new socket where :func:`prepare`
    leaves them alone: the options of that program do not outlive it.
    """
    family = super(socket.socket, sock).family
    for name in _BUFFERS:
        if _is_set(sock, name):  # unless the system does not tell
            _set_back(sock, name, 0)
    for text in _KEEPALIVE_TIMES if family in INET else ():
        if hasattr(socket, text):
            option = socket.IPPROTO_TCP, getattr(socket, text)
            sock.setsockopt(*option, _default(family, socket.SOCK_STREAM, *option))


def _is_set(sock: socket.socket, name: int) -> bool | None:
    """Whether a program has set the size of a buffer; None on a system that does not tell."""
    try:
        locked = sock.getsockopt(socket.SOL_SOCKET, _BUFFER_LOCK) if _ON_LINUX else None
    except OSError:  # an older Linux
        return None
    return None if locked is None else bool(locked & _BUFFERS[name])


def _size_set(sock: socket.socket, name: int) -> int:
    """The size that a program has set for a buffer; 0 for the system's default."""
    size, is_set = sock.getsockopt(socket.SOL_SOCKET, name), _is_set(sock, name)
    if is_set is None:
        is_set = size != _default_size(sock, name)
    return size // _FACTOR if is_set else 0


def _set_back(sock: socket.socket, name: int, size: int) -> None:
    """Set a buffer back to a size; 0 for the system's default."""
    sock.setsockopt(socket.SOL_SOCKET, name, size or _default_size(sock, name) // _FACTOR)
    if not size:
        with suppress(OSError):  # another system, or an older Linux
            locked = sock.getsockopt(socket.SOL_SOCKET, _BUFFER_LOCK)
            sock.setsockopt(socket.SOL_SOCKET, _BUFFER_LOCK, locked & ~_BUFFERS[name])


def _default_size(sock: socket.socket, name: int) -> int:
    kind = super(socket.socket, sock).type
    return _default(super(socket.socket, sock).family, kind, socket.SOL_SOCKET, name)


@cache
def _default(family: int, kind: int, level: int, name: int) -> int:
    """The value of an option of a new socket."""
    with socket.socket(family, kind) as fresh:
        return fresh.getsockopt(level, name)


def _set_tcp_options(sock: socket.socket, options: StreamOptions) -> None:
    keepalive: KeepAlive | bool = options.keepalive
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, options.nodelay)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, bool(keepalive))
    if isinstance(keepalive, KeepAlive):
        times = keepalive.idle, keepalive.interval, keepalive.count
        for name, value in zip(_KEEPALIVE_TIMES, times, strict=True):
            # Not every system knows all of them.
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def close_socket(sock: socket.socket, *, in_use: bool) -> None:
    """Close a connection. While a reader may still be blocked in the socket, only shut it down: the
    system could give the same descriptor to another file, and the reader would read from that.

    No task waits for the socket by now: its reader has ended, and the writer wakes the task that
    writes the waiting data.
    """
    try:
        if in_use:
            sock.shutdown(socket.SHUT_RDWR)
        else:
            sock.close()
    except OSError:
        # The other side was gone first. A close that raises has closed nevertheless.
        pass


def count_unacknowledged(sock: socket.socket) -> int:
    """Bytes of a TCP connection that the peer's system has not acknowledged; 0 where that is
    unknown.

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
    """Discard the peer's input: closing a socket with unread input sends a reset, which may destroy
    data that the peer has not read.

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
    """Make a later close send a reset to the peer, and drop the data that the operating system
    holds.
    """
    # A struct linger: on, with a timeout of zero.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
