"""TCP: a server that turns connections into messages, and a client that does the same for one.

The smallest server is one line in the ``init`` of an actor, ``await
self.spawn_meta(TCPServer("127.0.0.1", 7777))``; the actor then gets ``TCPConnected``, ``TCPData``
and ``TCPDisconnected``, and sends ``TCPSend`` and ``TCPClose`` to the alias that is in them.
"""

import os
import socket
import ssl
from typing import Any, Self, Unpack

import trio

from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.ids import Target
from ..._core.vocabulary.options import check_flag, check_number
from ..readers import ReaderKind
from ..receivers import ReceiverOption, check_receiver
from .connection import Stream
from .connection_reader import shake_hands
from .listener import Listener
from .messages import Address, Endpoint
from .options import StreamKeywords, StreamOptions, WhenFull, read_stream_options
from .socket_setup import check_stream, endpoint, open_listener, unknown_host
from .tls import Contexts, Secure, TLSFiles

__all__ = ["TCPConnection", "TCPServer"]


class TCPConnection(Stream):
    """A TCP connection. A server makes them of what it accepts; :meth:`connect` makes a client."""

    kind = "tcp"

    def __init__(
        self,
        sock: socket.socket,
        *,
        receiver: Target | None = None,
        reader: ReaderKind = "thread",
        **options: Unpack[StreamKeywords],
    ) -> None:
        """Take over a socket that is connected. It is treated as a client's: with ``tls``, say the
        ``server_name`` to verify.

        Raises:
            BadInputError: an option cannot be right.
        """
        check_stream("TCPConnection(sock)", sock)
        checked = read_stream_options("TCPConnection", options, TCPConnection)
        tls = checked.tls
        if (
            tls
            and not checked.server_name
            and (not isinstance(tls, ssl.SSLContext) or tls.check_hostname)
        ):
            # Python checks no name that it was not given, and says nothing about it.
            raise BadInputError(
                "server_name",
                checked.server_name,
                "the name that the certificate of the peer must have",
            )
        self._begin(sock, check_receiver(receiver), checked, reader)

    def _begin(
        self,
        sock: socket.socket | None,
        to: Target | None,
        options: StreamOptions,
        reader: ReaderKind,
    ) -> None:
        super().__init__(to, options, reader)
        self._given = sock
        self._goal = ("", 0)
        self._connect_timeout = 0.0
        self._peer: Any = None

    @classmethod
    def connect(
        cls,
        host: str,
        port: int,
        *,
        receiver: Target | None = None,
        reader: ReaderKind = "thread",
        connect_timeout: float = 4.0,
        **options: Unpack[StreamKeywords],
    ) -> Self:
        """Make a client. It connects, and shakes hands if there is TLS, before ``spawn_meta``
        returns.

        ``spawn_meta`` raises ``InitError`` if it cannot connect, with the cause as ``__cause__``;
        nothing is left then.

        Raises:
            BadInputError: an option cannot be right.
        """
        _check_endpoint("TCPConnection.connect", host, port, least=1)
        check_number("connect_timeout", connect_timeout, least=0.001)
        self = cls.__new__(cls)
        self._begin(
            None,
            check_receiver(receiver),
            read_stream_options("TCPConnection.connect", options, cls.connect),
            reader,
        )
        self._goal = (host, port)
        self._connect_timeout = connect_timeout
        return self

    async def _open(self) -> socket.socket:
        if self._given is not None:
            return self._given
        host, port = self._goal
        with trio.move_on_after(self._connect_timeout) as scope:
            try:
                stream = await trio.open_tcp_stream(host, port)
            except (socket.gaierror, UnicodeError) as error:
                raise unknown_host(host, error) from error
            except OSError as error:
                why = _why_not_connected(error, host, port)
                if why is None:
                    raise
                raise why from error
            return socket.socket(fileno=stream.socket.detach())
        assert scope.cancelled_caught
        raise TimeoutError(
            f"no connection to {host} port {port} within {self._connect_timeout:g} s"
        )

    def _ends(self, sock: socket.socket) -> tuple[Address, Address]:
        return endpoint(sock.getsockname()), endpoint(self._peer or sock.getpeername())

    def _new_secure(self) -> Secure:
        options = self._options
        if self._server is not None or not options.tls:
            return super()._new_secure()
        context = Contexts(options.tls, server_side=False).current(lambda _: None)
        name = options.server_name or self._goal[0] or None
        return Secure(context, False, name if context.check_hostname or name else None)

    async def _secure_first(self, sock: socket.socket) -> None:
        options = self._options
        if self._server is not None or not options.tls or options.start_tls:
            return
        self._secure = self._new_secure()
        with trio.move_on_after(options.handshake_timeout) as scope:
            if not await shake_hands(sock, self._secure):
                raise ConnectionError("the server closed the connection during the TLS handshake")
        if scope.cancelled_caught:
            raise TimeoutError(f"no TLS handshake within {options.handshake_timeout:g} s")


class TCPServer(Listener):
    """A TCP server.

    Args:
        host: the address to listen at; loopback unless said otherwise. ``"::"`` is every address of
            both versions.
        port: 0 for any that is free; ``local`` of the spawned server says which.
        receiver: who gets the messages: None for the owner, the address of a process, several of
            them to take turns, or a behaviour (or ``functools.partial`` of one, or a function that
            makes one) to be spawned for each connection.
        reader: ``"thread"`` or ``"task"``, for the server and its connections.
        max_connections: how many may be open at once.
        when_full: what to do with more.
        queue: how many may wait in the operating system to be accepted.
        reuse_port: let several servers share the port.
        dual_stack: let an IPv6 address serve IPv4, too, where it stands for both.
        framing: how the streams of the connections are cut into frames, such as ``LengthHeader()``;
            raw by default.
        batch: hand over all frames of one read as one ``TCPFrames``, instead of one ``TCPData`` for
            each.
        last_word: after a protocol error, tell the receiver with ``TCPProtocolError``, and send its
            answer before the end.
        tls: ``TLSFiles(certificate, key)`` or an ``ssl.SSLContext``; None for none.
        start_tls: begin in clear, and with TLS only when ``TCPStartTLS`` says so.
        handshake_timeout: seconds within which the TLS handshake must be done; 10 by default.
        idle_timeout: seconds without a byte in either direction after which a connection is
            dropped; None for no limit.
        frame_timeout: seconds within which a frame that was begun must be complete; None for no
            limit.
        write_limit: how many bytes may wait for a peer before it counts as slow; 1 MiB by default.
        when_slow: ``WhenSlow.WAIT``: further sends to a slow peer wait in the mailbox of its
            connection, and nothing more is read from it; ``WhenSlow.DROP``: its connection is
            dropped. The mailbox is bounded if the server is spawned with ``spawn_meta(server,
            mailbox_size=…)``, which its connections take over, and not bounded otherwise.
        linger: how many seconds closing waits for a peer that takes nothing of the last answers, or
            does not close its side.
        nodelay: send small pieces at once (``TCP_NODELAY``); True by default.
        keepalive: have the operating system ask silent peers whether they are there: True, or
            ``KeepAlive(idle, interval, count)``.
        keepalive_bytes: what to send, in the stream, when nothing else was sent for
            ``keepalive_period`` seconds.
        keepalive_period: those seconds; both are given, or neither.
        receive_buffer: bytes that the operating system keeps of what was not read yet; None leaves
            that to it.
        send_buffer: bytes that the operating system keeps of what a peer has not taken yet; None
            leaves that to it.
        server_name: for clients only.
    """

    kind = "tcp-accept"

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        receiver: ReceiverOption = None,
        reader: ReaderKind = "thread",
        max_connections: int | None = None,
        when_full: WhenFull = WhenFull.PAUSE,
        queue: int = 1024,
        reuse_port: bool = False,
        dual_stack: bool = True,
        **options: Unpack[StreamKeywords],
    ) -> None:
        _check_endpoint("TCPServer", host, port, least=0)
        checked = read_stream_options("TCPServer", options, TCPServer)
        if checked.tls is True or (
            isinstance(checked.tls, TLSFiles) and checked.tls.certificate is None
        ):
            raise BadInputError(
                "tls", checked.tls, "an ssl.SSLContext or TLSFiles(certificate, key) for a server"
            )
        check_flag("reuse_port", reuse_port)
        check_flag("dual_stack", dual_stack)
        super().__init__(receiver, checked, reader, max_connections, when_full, queue)
        self._host = host
        self._port = port
        self._reuse_port = reuse_port
        self._dual_stack = dual_stack

    async def _listen(self) -> socket.socket:
        return await open_listener(
            self._host,
            self._port,
            socket.SOCK_STREAM,
            reuse_port=self._reuse_port,
            dual_stack=self._dual_stack,
            buffer=self._options.receive_buffer,
        )

    @property
    def local(self) -> Endpoint:
        """Where it listens; with port 0 this is how to learn the port. Known once it is spawned."""
        return self._local or Endpoint(self._host, self._port)

    def _address(self, sock: socket.socket) -> Endpoint:
        return endpoint(sock.getsockname())

    def _make(self, sock: socket.socket, address: Any) -> Stream:
        connection = TCPConnection.__new__(TCPConnection)
        connection._begin(sock, self._receivers.next(), self._options, self.reader)
        connection._peer = address
        return connection


def _why_not_connected(error: OSError, host: str, port: int) -> OSError | None:
    """What the operating system said, where trio only says that no attempt succeeded; with its
    number, and so of its class.
    """
    attempts = (
        error.__cause__.exceptions
        if isinstance(error.__cause__, BaseExceptionGroup)
        else (error.__cause__,)
    )
    numbers = [one.errno for one in attempts if isinstance(one, OSError) and one.errno is not None]
    return (
        OSError(numbers[0], f"{os.strerror(numbers[0])}: {Endpoint(host, port)}")
        if numbers
        else None
    )


def _check_endpoint(what: str, host: object, port: object, least: int) -> None:
    if not isinstance(host, str) or (least and not host):
        raise BadInputError(f"{what}(host)", host, "a name or an address, such as '127.0.0.1'")
    check_number(f"{what}(port)", port, least=least, whole=True, most=65535)
