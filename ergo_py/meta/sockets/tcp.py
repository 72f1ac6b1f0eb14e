"""`TCPServer` turns connections into messages, and `TCPConnection` does the same for a single
connection.
"""

import os
import socket
import ssl
from functools import partial
from typing import Self, Unpack

import trio

from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.ids import Target
from ..._core.vocabulary.options import check_flag, check_number
from ..._core.vocabulary.public_names import show_public_names
from ..readers import ReaderKind
from ..receivers import ReceiverOption, check_receiver
from .listener import Listener
from .messages import Address, Endpoint, WhenFull
from .options import StreamKeywords, read_stream_options
from .socket_setup import (
    INET,
    GivenSocket,
    check_stream,
    endpoint,
    of_address,
    open_listener,
    unknown_host,
)
from .socket_source import connect
from .streams.connection import StreamConnection
from .tls import TLSContexts, TLSFiles, TLSSession

__all__ = ["TCPConnection", "TCPServer", "check_endpoint"]


class TCPConnection(StreamConnection):
    """A TCP connection. A server makes them of accepted sockets; :meth:`connect` makes a client."""

    kind = "tcp"

    def __init__(
        self,
        sock: socket.socket,
        *,
        receiver: Target | None = None,
        reader: ReaderKind = "thread",
        **options: Unpack[StreamKeywords],
    ) -> None:
        """Take over a connected socket, as a client: with ``tls``, give the ``server_name`` to
        verify.

        The options are those of :meth:`connect`.

        Raises:
            BadInputError: an option has a wrong type or value.
        """
        check_stream("TCPConnection(sock)", sock)
        checked = read_stream_options("TCPConnection", options, TCPConnection)
        tls = checked.tls
        if (
            tls
            and not checked.server_name
            and (not isinstance(tls, ssl.SSLContext) or tls.check_hostname)
        ):
            # Without a name, Python's ssl silently verifies none.
            raise BadInputError(
                "server_name",
                checked.server_name,
                "the name that the certificate of the peer must have",
            )
        super().__init__(check_receiver(receiver), checked, reader, given=sock)

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
        """Make a client. It connects, and does the TLS handshake if there is TLS, before
        ``spawn_meta`` returns.

        If it cannot connect, ``spawn_meta`` raises ``InitError``, with the error as ``__cause__``;
        no process and no socket is left then.

        Args:
            host: the name or address of the server.
            port: the port of the server.
            receiver: the address that gets the messages; None for the owner.
            reader: ``"thread"`` blocks a thread in the socket, ``"task"`` reads in a task of the
                loop.
            connect_timeout: seconds within which the connection must be made.
            framing: how the stream is cut into frames, such as ``LengthHeader()``; raw by default.
            batch: deliver all frames of a read as one ``TCP.Frames`` instead of a ``TCP.Data`` for
                each.
            last_word: after a protocol error, send ``TCP.ProtocolError`` to the receiver, and write
                its answer before the connection ends.
            tls: True trusts the authorities of the system; or ``TLSFiles(authorities=…)``, or an
                ``ssl.SSLContext``; None for no TLS.
            start_tls: begin in clear; TLS begins with ``TCP.StartTLS``.
            server_name: the name to verify in the server's certificate; by default ``host``.
            handshake_timeout: seconds within which the TLS handshake must be done; 10 by default.
            idle_timeout: end the connection after so many seconds without a byte in either
                direction; None for no limit.
            frame_timeout: seconds within which a frame must be complete once it has begun; None for
                no limit.
            write_limit: bytes that may wait for the peer before it counts as slow; 1 MiB by
                default.
            when_slow: ``TCP.WhenSlow.WAIT``: further data for a slow peer waits in the connection's
                mailbox; ``TCP.WhenSlow.DROP``: the connection is dropped.
            linger: how long, in seconds, closing waits for a peer that has stopped reading, or does
                not close its side; 5 by default.
            nodelay: send small pieces at once (``TCP_NODELAY``); True by default.
            keepalive: let the operating system probe a silent peer: True, or
                ``TCP.KeepAlive(idle, interval, count)``.
            keepalive_bytes: a heartbeat to write into the stream after ``keepalive_period`` seconds
                without other output.
            keepalive_period: the seconds for ``keepalive_bytes``; give both, or neither.
            receive_buffer: bytes of unread input that the operating system keeps; None for its
                default.
            send_buffer: bytes of unsent output that the operating system keeps; None for its
                default.

        Raises:
            BadInputError: an option has a wrong type or value.
        """
        check_endpoint("TCPConnection.connect", host, port, least=1)
        checked = read_stream_options("TCPConnection.connect", options, cls.connect)
        return cls._connect_to(Endpoint(host, port), connect_timeout, receiver, checked, reader)

    async def _connect(self, goal: Endpoint) -> socket.socket:
        return await connect(goal, socket.SOCK_STREAM, partial(self._connect_to_goal, goal))

    async def _connect_to_goal(self, goal: Endpoint) -> socket.socket:
        host, port = goal
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

    def _goal_text(self, goal: Endpoint) -> str:
        return f"{goal.host} port {goal.port}"

    def _ends(self, sock: socket.socket) -> tuple[Address, Address]:
        server = self._server
        local = None if server is None else server.sockets.local
        return (
            endpoint(sock.getsockname()) if local is None else local,
            endpoint(self._address or sock.getpeername()),
        )

    def _new_secure(self) -> TLSSession:
        options = self._options
        if self._server is not None or not options.tls:
            return super()._new_secure()
        context = TLSContexts(options.tls, server_side=False).current(lambda _: None)
        address = None if self._goal is None else self._goal.address
        goal = address.host if isinstance(address, Endpoint) else ""
        name = options.server_name or goal or None
        return TLSSession(context, False, name if context.check_hostname or name else None)

    async def _secure_first(self, sock: socket.socket) -> None:
        options = self._options
        if self._server is not None or not options.tls or options.start_tls:
            return
        self._tls.begin(self._new_secure())
        with trio.move_on_after(options.handshake_timeout) as scope:
            if not await self._tls.shake_hands(sock):
                raise ConnectionError("the server closed the connection during the TLS handshake")
        if scope.cancelled_caught:
            raise TimeoutError(f"no TLS handshake within {options.handshake_timeout:g} s")
        self._tls.secure()


class TCPServer(Listener):
    r"""A TCP server: a meta-process that accepts connections and turns their bytes into messages.

    The smallest server is an actor that spawns it, and answers to the alias in each message::

        from ergo_py import PID, Actor, Alias
        from ergo_py.meta import TCP, TCPServer


        class Echo(Actor):
            async def init(self) -> None:
                await self.spawn_meta(TCPServer("127.0.0.1", 7777))

            def handle_message(self, message: object, sender: PID | Alias) -> None:
                match message:
                    case TCP.Connected(connection, peer):
                        self.log.info("connected", peer=str(peer))
                    case TCP.Data(connection, data):
                        self.send(connection, TCP.Send(data))
                    case TCP.Disconnected(connection, reason):
                        self.log.info("disconnected", reason=reason.value)

    Each connection is a meta-process of its own. Its alias is in all its messages; send
    ``TCP.Send``, ``TCP.Close`` and ``TCP.Set`` to that alias. An actor that is behind slows its
    peers down, not the node: the connections stop reading until it catches up (backpressure).

    Most servers keep state for each connection. Give a behaviour as ``receiver``: the server spawns
    an actor for each connection, a session, which owns the connection and ends with it. If a
    session crashes, only its own connection ends::

        from ergo_py.meta import Delimiter


        class Session(Actor):
            def init(self) -> None:
                self.lines = 0

            def handle_message(self, message: object, sender: PID | Alias) -> None:
                match message:
                    case TCP.Data(connection, line):
                        self.lines += 1
                        self.send(connection, TCP.Send(b"%d %s\n" % (self.lines, line)))


        class Door(Actor):
            async def init(self) -> None:
                server = TCPServer(
                    "0.0.0.0",
                    7778,
                    receiver=Session,
                    framing=Delimiter(b"\n", max_frame=4096),
                    max_connections=10_000,
                    idle_timeout=300.0,
                )
                await self.spawn_meta(server)

    The options that most servers need: ``framing``, since TCP keeps no message boundaries;
    ``max_connections``, ``idle_timeout`` and ``frame_timeout`` against peers that hold resources
    without using them; ``tls`` for encryption; and ``reader="task"`` for speed and for thousands of
    connections. Reader threads, the default, do the work of TLS beside the loop, and serve a few
    hundred connections well.

    Args:
        host: the address to listen at; loopback by default. ``"::"`` is every address of both
            versions of IP.
        port: the port; 0, as None, for a free port, which ``local`` of the spawned server tells.
        sock: the socket to listen with, instead of a host and a port: a socket that listens, or the
            name of a socket that systemd has opened for this program (``FileDescriptorName=`` of
            its unit). A name and a port together: the port counts if the program is started without
            sockets. The server uses a copy and leaves the socket open when it ends, with the
            connections that it has not accepted; ``queue``, ``reuse_port`` and ``dual_stack`` are
            for a socket of its own.
        receiver: the receiver of the messages: None for the owner, the address of a process,
            several addresses to take turns, or a behaviour (or ``functools.partial`` of a
            behaviour, or a function that makes one) to spawn for each connection.
        reader: ``"thread"`` or ``"task"``, for the server and its connections.
        max_connections: how many connections may be open at once; None for no limit.
        when_full: ``TCP.WhenFull.PAUSE``: further connections wait in the operating system;
            ``TCP.WhenFull.REFUSE``: the server closes them at once.
        queue: how many connections may wait in the operating system to be accepted.
        reuse_port: let several servers share the port.
        dual_stack: let an IPv6 address serve IPv4, too, where it stands for both.
        framing: how the streams of the connections are cut into frames, such as ``LengthHeader()``;
            raw by default.
        batch: deliver all frames of a read as one ``TCP.Frames``, not as a ``TCP.Data`` for each.
        last_word: after a protocol error, send ``TCP.ProtocolError`` to the receiver, and write its
            answer before the connection ends.
        tls: ``TLSFiles(certificate, key)`` or an ``ssl.SSLContext``; None for no TLS.
        start_tls: begin in clear; TLS begins with ``TCP.StartTLS``.
        handshake_timeout: seconds within which the TLS handshake must be done; 10 by default.
        idle_timeout: end a connection after so many seconds without a byte in either direction;
            None for no limit.
        frame_timeout: seconds within which a frame must be complete once it has begun; None for no
            limit.
        write_limit: bytes that may wait for a peer before it counts as slow; 1 MiB by default.
        when_slow: ``TCP.WhenSlow.WAIT``: further data for a slow peer waits in the mailbox of its
            connection, and the connection stops reading from that peer; ``TCP.WhenSlow.DROP``: its
            connection is dropped. The mailbox is bounded if the server is spawned with
            ``spawn_meta(server, mailbox_size=…)``, which its connections inherit, and unbounded
            otherwise.
        linger: how long, in seconds, closing waits for a peer that has stopped reading the last
            answers, or does not close its side; 5 by default.
        nodelay: send small pieces at once (``TCP_NODELAY``); True by default.
        keepalive: let the operating system probe silent peers: True, or
            ``TCP.KeepAlive(idle, interval, count)``.
        keepalive_bytes: a heartbeat to write into the stream after ``keepalive_period`` seconds
            without other output.
        keepalive_period: the seconds for ``keepalive_bytes``; give both, or neither.
        receive_buffer: bytes of unread input that the operating system keeps; None for its default.
        send_buffer: bytes of unsent output that the operating system keeps; None for its default.
        server_name: for clients only.
    """

    kind = "tcp-accept"
    makes: type[StreamConnection] = TCPConnection

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int | None = None,
        *,
        sock: socket.socket | str | None = None,
        receiver: ReceiverOption = None,
        reader: ReaderKind = "thread",
        max_connections: int | None = None,
        when_full: WhenFull = WhenFull.PAUSE,
        queue: int = 1024,
        reuse_port: bool = False,
        dual_stack: bool = True,
        **options: Unpack[StreamKeywords],
    ) -> None:
        is_placed, port = port is not None, 0 if port is None else port
        check_endpoint("TCPServer", host, port, least=0)
        checked = read_stream_options("TCPServer", options, TCPServer)
        if checked.tls is True or (
            isinstance(checked.tls, TLSFiles) and checked.tls.certificate is None
        ):
            raise BadInputError(
                "tls", checked.tls, "an ssl.SSLContext or TLSFiles(certificate, key) for a server"
            )
        check_flag("reuse_port", reuse_port)
        check_flag("dual_stack", dual_stack)
        given = GivenSocket("TCPServer", sock, socket.SOCK_STREAM, INET, is_placed=is_placed)
        super().__init__(receiver, checked, reader, max_connections, when_full, queue, given)
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
            # A shared socket outlives this server, and its connections get the size one by one.
            buffer=None if self._is_shared else self._options.receive_buffer,
        )

    @property
    def local(self) -> Endpoint:
        """The endpoint at which the server listens; with port 0, read the port here. Known once the
        server is spawned.
        """
        return self._local or Endpoint(self._host, self._port)

    def _address(self, sock: socket.socket) -> Endpoint:
        return endpoint(sock.getsockname())

    def _properties(self, sock: socket.socket) -> dict[str, tuple[object, object]]:
        return of_address(sock, self._host, self._port, self._reuse_port, self._dual_stack)


def _why_not_connected(error: OSError, host: str, port: int) -> OSError | None:
    """The error of the operating system, where trio only reports that no attempt succeeded. Its
    number makes it the right subclass of ``OSError``.
    """
    attempts = (
        error.__cause__.exceptions
        if isinstance(error.__cause__, BaseExceptionGroup)
        else (error.__cause__,)
    )
    numbers = [
        attempt.errno
        for attempt in attempts
        if isinstance(attempt, OSError) and attempt.errno is not None
    ]
    return (
        OSError(numbers[0], f"{os.strerror(numbers[0])}: {Endpoint(host, port)}")
        if numbers
        else None
    )


def check_endpoint(what: str, host: object, port: object, least: int) -> None:
    """Refuse a host or a port that cannot be."""
    if not isinstance(host, str) or (least and not host):
        raise BadInputError(f"{what}(host)", host, "a name or an address, such as '127.0.0.1'")
    check_number(f"{what}(port)", port, least=least, whole=True, most=65535)


show_public_names(__name__)
