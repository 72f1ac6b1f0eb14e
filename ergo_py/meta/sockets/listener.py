"""`Listener`: a server over a listening socket. Its acceptor accepts sockets, and its births spawn
a connection for each.
"""

import select
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple

import trio
from trio.lowlevel import notify_closing

from ..._core.kernel import Kernel
from ..._core.metas.meta import Meta
from ..._core.processes.process import Process
from ..._core.tables.pending_calls import Caller, Deadline
from ..._core.verbs.meta_process import MetaProcess
from ..._core.vocabulary.errors import BadInputError, NotAllowedError, Reject, UnhandledCallError
from ..._core.vocabulary.messages import NO_REPLY, Drain
from ..._core.vocabulary.options import check_number
from ..._core.vocabulary.reasons import Reason
from ..poller import SocketPoller
from ..readers import ReaderKind, ReaderWait, check_reader, start_beside
from ..receivers import ReceiverOption, Receivers, make_actor, starts_at_once
from ..thread_inbox import ThreadInbox
from .acceptor import Accepted, Acceptor, Births
from .messages import ORDERLY, Address, Cause, Endpoint, WhenFull
from .options import LARGEST, StreamOptions
from .socket_setup import GivenSocket, prepare_listener, reset
from .streams.connection import AcceptedSockets, StreamConnection
from .streams.parser import NewParser
from .tls import TLSContexts, TLSSession

__all__ = ["Listener", "listeners_of"]

_ANY: Final = ("0.0.0.0", "::")
"""Hosts that stand for every address of the machine."""
_WARNINGS: Final = 10.0
"""Seconds between two warnings about failed handshakes. A scan of ports makes hundreds in a second:
the log would hold nothing else.
"""


class _EndedConnections:
    """The sums over the connections of a server that have ended. On the loop."""

    __slots__ = ("_next_warning", "bytes_in", "bytes_out", "failed", "since")

    since: float
    """When the server was spawned, by the node's clock."""

    def __init__(self) -> None:
        self._next_warning = -inf
        """When the next failed handshake is logged as a warning."""
        self.bytes_in = 0
        """Bytes that came from their peers."""
        self.bytes_out = 0
        """Bytes that were written to their peers."""
        self.failed = 0
        """Connections that ended before they were ready, such as by a failed TLS handshake."""

    def begin(self, now: float) -> None:
        """The server begins."""
        self.since = now

    def add(self, bytes_in: int, bytes_out: int) -> None:
        """Add the bytes of a connection."""
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out

    def fail(self, now: float, is_orderly: bool) -> bool:
        """Count a connection that was never ready. Returns whether to warn: from time to time
        only, since peers must not be able to fill the log.
        """
        self.failed += 1
        warns = now >= self._next_warning and not is_orderly
        if warns:
            self._next_warning = now + _WARNINGS
        return warns


class _Closing:
    """How far a server has come with its end. On the loop."""

    __slots__ = ("drains", "is_asked", "is_draining", "is_shut")

    def __init__(self) -> None:
        self.is_draining = False
        """No further connection is accepted; the others go on until they are done."""
        self.is_asked = False
        """A process has asked for the drain: it is not undone."""
        self.is_shut = False
        """The owner is ending: no further connection begins."""
        self.drains: list[Caller] = []
        """The callers that wait for the end of all connections."""


class _Capacity(NamedTuple):
    """How many connections a server takes."""

    most: int | None
    """How many may be open at once; None for no limit."""
    when_full: WhenFull
    """Whether further connections wait in the operating system or are closed at once."""
    queue: int
    """How many may wait in the operating system."""


class Listener(MetaProcess):
    """Accepts connections. The server owns them, or their sessions do; they end with the server."""

    kind = "accept"
    drains = True
    """``node.drain()`` drains the server."""
    makes: type[StreamConnection]
    """The class of its connections."""
    sockets: AcceptedSockets = AcceptedSockets()
    """The common properties of its connections."""
    _contexts: TLSContexts | None = None
    """The certificates; None without TLS."""
    _local: Any = ""
    """The address at which it listens, once the socket is open."""
    _needed = True
    _new_parser: NewParser | None = None
    """Makes the object that turns the bytes of a connection into messages; None to cut them as the
    framing says.
    """
    _socket: socket.socket
    """The listening socket."""

    def __init__(
        self,
        receiver: ReceiverOption,
        options: StreamOptions,
        reader: ReaderKind,
        max_connections: int | None,
        when_full: WhenFull,
        queue: int,
        given: GivenSocket,
        in_turn: int | None = None,
    ) -> None:
        """``in_turn`` is how many connections a task accepts in a turn of the loop, if that is
        fewer than usual.
        """
        if max_connections is not None:
            check_number("max_connections", max_connections, least=1, whole=True)
        if not isinstance(when_full, WhenFull):
            raise BadInputError("when_full", when_full, "TCP.WhenFull.PAUSE or TCP.WhenFull.REFUSE")
        check_number("queue", queue, least=1, whole=True, most=LARGEST)
        self._reads_in_task = check_reader(reader) == "task"
        self._given = given
        """The socket to listen with, if the server does not open its own."""
        self._capacity = _Capacity(max_connections, when_full, queue)
        """How many connections the server takes."""
        self._receivers = Receivers(receiver)
        """Chooses the receiver of each connection."""
        self._options = options
        """The options of the streams of its connections."""
        self._wait = ReaderWait(self)
        """The wait of the acceptor for a place."""
        self._acceptor = Acceptor(self, in_turn)
        """Accepts the connections, in the reader of this meta-process."""
        self._births = Births(self)
        """The connections that are not made yet."""
        self._open: dict[StreamConnection, None] = {}
        """The connections that have not ended, the oldest first."""
        self._ended = _EndedConnections()
        """The sums over the connections that have ended."""
        self._closing = _Closing()
        """How far the server has come with its end."""
        self.poller: SocketPoller | None = (
            SocketPoller(partial(start_beside, self))
            if self._reads_in_task and hasattr(select, "epoll")
            else None
        )
        """Watches the sockets of reader tasks, where the system has epoll."""
        self.inbox = (
            ThreadInbox(partial(start_beside, self))
            if ThreadInbox.is_possible and not self._reads_in_task
            else None
        )
        """Takes the bytes of reader threads, with the C extension."""

    # -- birth -------------------------------------------------------------------------------------

    async def init(self) -> None:
        """Open the socket: if the port is taken, ``spawn_meta`` raises the error."""
        self._ended.begin(self._now())
        if self._options.tls:
            self._contexts = TLSContexts(self._options.tls, server_side=True)
        given = self._given.open()
        self._socket = sock = await self._listen() if given is None else given
        if type(sock) is not socket.socket:
            self.inbox = None  # C code reads from plain sockets only
        if self._is_shared:
            # The bell wakes the thread: a shutdown would end the socket for all that hold it.
            self.opened(sock, unblock=self._meta.resources.bell().ring)
        else:
            self.opened(sock)
        # The options of a shared socket are left as they are, for the others that hold it, or will:
        # the next version of this program perhaps has other options.
        inherit = not self._is_shared and prepare_listener(sock, self._options)
        if given is None:
            # A thread does not block in accept() either: it takes all waiting connections, and
            # there may be fewer than expected.
            sock.setblocking(False)
            sock.listen(self._capacity.queue)
            self._given.keep(sock)
        elif self._given.is_kept:
            self._given.tell_differences(self.log, self._properties(sock))
            if not self._given.is_held:
                self._set_queue()
        self._births.use(replace(self._meta.options, linger=False, needed=False))
        self._local = local = self._address(sock)
        is_single = isinstance(local, Endpoint) and local.host not in _ANY
        options = self._options
        have_limits = not (
            self._contexts is None
            and options.idle_timeout is None
            and options.frame_timeout is None
            and options.keepalive_period is None
        )
        self.sockets = AcceptedSockets(inherit, local if is_single else None, have_limits)
        if self.poller is not None:
            self.poller.open(self._meta.router.turns)
        if self.inbox is not None:
            self.inbox.open(self._meta.router.turns)

    @property
    def _is_shared(self) -> bool:
        """Whether others hold the listening socket, too: it goes on when this server ends."""
        return self._given.is_used

    async def _listen(self) -> socket.socket:
        raise NotImplementedError

    def _address(self, sock: socket.socket) -> Address:
        raise NotImplementedError

    def _properties(self, sock: socket.socket) -> dict[str, tuple[object, object]]:
        """The properties that a socket keeps from the server that has opened it: what this server
        asks for, and found.
        """
        raise NotImplementedError

    def _set_queue(self) -> None:
        """Set the length of the queue, which another version may have set to another."""
        if self._given.is_kept and self._socket.fileno() >= 0:
            self._socket.listen(self._capacity.queue)

    def _make(self, sock: socket.socket, address: object) -> StreamConnection:
        receiver, new_parser = self._receivers.next(), self._new_parser
        return self.makes.accepted_by(
            self, sock, address, receiver, self._options, self.reader, new_parser
        )

    # -- the reader --------------------------------------------------------------------------------

    def start(self) -> Awaitable[None] | None:
        """Accept connections until the end, in a thread or in a task."""
        if self._reads_in_task:
            return self._acceptor.run_in_task()
        self._acceptor.run_in_thread()
        return None

    def look_again(self) -> None:
        """Look whether connections may be accepted: the program has taken over."""
        self._set_queue()
        self._wait.ring()

    def _has_place(self, more: int = 0) -> bool:
        most = self._capacity.most
        return most is None or self.connections + more < most

    def _make_place(self, more: int) -> bool:
        """Whether there is a place for an accepted socket, beside ``more`` others."""
        return self._has_place(more)

    def _adopt(self, accepted: Accepted) -> None:
        """Make a connection of an accepted socket. On the loop."""
        sock, address = accepted
        self._births.begin(self._make(sock, address), sock)

    def new_secure(self) -> TLSSession:
        """The server's side of TLS for a connection."""
        assert self._contexts is not None
        return TLSSession(self._contexts.current(self._cannot_read_certificates), server_side=True)

    def _reload(self) -> str:
        if self._contexts is not None:
            try:
                self._contexts.reload()
            except (OSError, ValueError) as error:
                self._cannot_read_certificates(error)
                return f"the old certificates stay in use: {error}"
        return ""

    def _cannot_read_certificates(self, error: Exception) -> None:
        self.log.error(
            "the certificates have changed and cannot be read; the old certificates stay in use",
            error=str(error),
        )

    def _connection_ended(self, connection: StreamConnection) -> None:
        """Forget a connection that has ended. On the loop."""
        self._open.pop(connection, None)
        self._ended.add(connection.bytes_in, connection.bytes_out)
        if connection.connected is None:
            cause = connection.cause or Cause.ASKED
            warns = self._ended.fail(self._now(), cause in ORDERLY)
            if self._contexts is not None and self._meta.reason is None:
                why = f"{cause.value}: {connection.detail}" if connection.detail else cause.value
                # The level info is off by default.
                log = self.log.warning if warns else self.log.info
                peer = str(connection.peer)
                log("a TLS handshake failed", peer=peer, reason=why, failed=self.failed)
        self._wait.ring()
        if not self.connections:
            self._answer_drains(0)

    # -- the move to the next program --------------------------------------------------------------

    @property
    def socket_name(self) -> str:
        """The name of its socket, by which the next program finds it; empty if there is none."""
        return self._given.name

    @property
    def session_classes(self) -> Sequence[type | None]:
        """The classes of its sessions; None stands for those that a function chooses. Empty if
        there are no sessions.
        """
        receivers = self._receivers
        return (receivers.session_class,) if receivers.makes_actors else ()

    def why_connections_stay(self) -> str:
        """Why no connection of this server can move to the next program; empty if they can."""
        if self._contexts is not None:
            return "TLS"
        if self.poller is None:
            return "reader threads"
        if not self.socket_name:
            return "a server without sock="
        return "" if self.session_classes else "no sessions"

    def open_connections(self) -> Sequence[StreamConnection]:
        """The connections that have not ended, the oldest first."""
        return list(self._open)

    async def make_session(self, protocol: Sequence[object], limit: float) -> Process:
        """Spawn the session of a connection that comes from the program before. Its ``init`` has
        ``limit`` seconds.

        Raises:
            NotAllowedError: this server has no sessions for the protocol of the connection.
            SpawnError: the session could not be started.
            trio.TooSlowError: the time was over.
        """
        plan = self._receivers_of(protocol).plan_actor()
        if starts_at_once(self._meta, plan):
            return await make_actor(self._meta, plan)
        with trio.fail_after(limit):
            return await make_actor(self._meta, plan)

    def _receivers_of(self, protocol: Sequence[object]) -> Receivers:
        if protocol:
            raise NotAllowedError(
                f"the connection is a WebSocket of the route {protocol[0]!r}; "
                f"a {type(self).__name__} takes none"
            )
        return self._receivers

    def go_on_with(
        self,
        session: Process,
        sock: socket.socket,
        unread: bytes,
        unsent: bytes,
        protocol: Sequence[object],
    ) -> StreamConnection:
        """Serve a connection of the program before. The session has its state already.

        Raises:
            SpawnError, OSError: the connection could not be made.
        """
        reset(sock)
        connection = self._make_moved(sock, unread, protocol)
        connection.arrive(session)
        self._births.go_on_with(connection, session, unsent)
        return connection

    def _make_moved(
        self, sock: socket.socket, unread: bytes, protocol: Sequence[object]
    ) -> StreamConnection:
        return self.makes.accepted_by(
            self, sock, None, None, self._options, self.reader, self._new_parser, unread
        )

    # -- the end -----------------------------------------------------------------------------------

    async def handle_call(self, request: object, caller: Caller) -> object:
        """Serve ``Drain``."""
        if not isinstance(request, Drain):
            raise Reject(UnhandledCallError(self.id, request, type(self).__qualname__))
        self._closing.is_asked = True
        end = self._now() + request.timeout
        await self.begin_drain(request.timeout)
        if not self.connections:
            return 0
        self._closing.drains.append(caller)
        self._meta.kernel.clock.arm_call(
            Deadline(partial(self._end_drain, caller)), max(0.0, end - self._now())
        )
        return NO_REPLY

    @property
    def is_draining(self) -> bool:
        """Whether the server ends in order, and accepts no further connections."""
        return self._closing.is_draining

    async def begin_drain(self, seconds: float, *, is_replaced: bool = False) -> None:
        """Accept no further connections; with ``is_replaced``, the next program accepts them. Those
        in the queue of the system are left to the other holders of a shared socket; a server with a
        socket of its own still accepts them, since the system would reset them, even if it has more
        than ``max_connections`` then. That takes at most ``seconds``.
        """
        if self._closing.is_draining or self._closing.is_shut:
            return
        self._acceptor.expect_quiet()
        self._closing.is_draining = True
        if self._is_shared:
            self._wake_acceptor()
        else:
            await self._acceptor.adopt_queue(self._wake_acceptor, seconds)
        self._wait.ring()
        if not self._reads_in_task:
            await self._acceptor.is_quiet.wait()

    @property
    def may_accept_again(self) -> bool:
        """Whether :meth:`accept_again` is possible: the socket is still open."""
        return self._is_shared

    def accept_again(self) -> None:
        """Accept connections as before :meth:`begin_drain`: the next program has ended."""
        closing = self._closing
        if not (self.stopping or closing.is_shut or closing.is_asked):
            self._meta.resources.bell().hush()
            self._set_queue()
            self._closing.is_draining = False
            self._wait.ring()

    def _end_drain(self, caller: Caller) -> None:
        """The time of a drain is over: cut the connections that are left. The drain of a caller
        that has left cuts none for which another caller still waits.
        """
        drains = self._closing.drains
        if not drains or (caller.settled and not all(other.settled for other in drains)):
            return
        cut = len(self._open)
        self._cut_all()
        self._answer_drains(cut)

    def _cut_all(self) -> None:
        self._births.cancel()
        for connection in list(self._open):
            if isinstance(connection._meta, Meta):
                connection.cut(Cause.ASKED, "the server has ended")

    def _answer_drains(self, cut: int) -> None:
        closing = self._closing
        drains, closing.drains = closing.drains, []
        for caller in drains:
            self._meta.kernel.calls.reply(caller, cut, None)

    def _stop_accepting(self) -> Sequence[Process]:
        """Graceful shutdown, first step: refuse new connections and keep the open ones. The owner
        is ending: it ends the returned sessions first, then this server.
        """
        if not self._closing.is_shut:
            self._closing.is_shut = True
            self._wake_acceptor()
            self._births.cancel()
            self._wait.ring()
        return [connection._session for connection in self._open if connection._session is not None]

    def _wake_acceptor(self) -> None:
        """Wake a thread that waits for a connection. Peers that are not accepted yet are left to
        the other holders of a shared socket.
        """
        if self._is_shared:
            self._meta.resources.bell().ring()
            return
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # the socket is closed already
            pass

    def unblock(self) -> None:
        """Wake the reader, and tell all connections at once, so that they end concurrently."""
        self._wait.ring()
        meta = self._meta
        if meta.reason is not None and meta.router.bridge.on_loop():
            for connection in list(self._open):
                if isinstance(connection._meta, Meta):
                    connection._meta.finish_without_blame(meta.reason)
            self._births.cancel()

    async def terminate(self, reason: Reason) -> None:
        """Wait for the connections that sessions own, and close the listening socket."""
        # A reader that has ended by itself was not unblocked.
        self.unblock()
        await self._births.wait()
        for connection in list(self._open):
            if isinstance(connection._meta, Meta):
                await connection._meta.shut(reason)
        if self.poller is not None:
            self.poller.close()
        if self.inbox is not None:
            self.inbox.close()
        if not self._meta.abandoned:
            if self._socket.fileno() >= 0:
                notify_closing(self._socket)
            self._socket.close()

    # -- looking inside ----------------------------------------------------------------------------

    @property
    def reader(self) -> ReaderKind:
        """Where it and its connections read: in a thread or in a task."""
        return "task" if self._reads_in_task else "thread"

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._open)

    @property
    def accepted(self) -> int:
        """How many connections were made."""
        return self._births.made

    @property
    def failed(self) -> int:
        """How many connections ended before they were ready, such as by a failed TLS handshake."""
        return self._ended.failed

    @property
    def errors(self) -> int:
        """How often the operating system refused to accept a connection."""
        return self._acceptor.errors

    @property
    def refused(self) -> int:
        """How many connections were accepted and closed at once: the server was full, or no session
        or connection could be made.
        """
        return self._acceptor.turned_away + self._births.not_made

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """The counters and the state of the server, by name."""
        facts = {
            "local": str(self._local),
            "receiver": str(self._receivers),
            "reader": self.reader,
            "accepted": str(self.accepted),
            "open": str(self.connections),
            "refused": str(self.refused),
            "failed": str(self.failed),
            "errors": str(self.errors),
            "max connections": str(self._capacity.most or ""),
            "bytes in": str(
                self._ended.bytes_in + self._sum(lambda connection: connection.bytes_in)
            ),
            "bytes out": str(
                self._ended.bytes_out + self._sum(lambda connection: connection.bytes_out)
            ),
            "pending": str(self._sum(lambda connection: connection.pending)),
            "age": f"{self._now() - self._ended.since:.3f}",
            "tls": "" if self._contexts is None else "yes",
            "draining": "yes" if self.is_draining else "",
        }
        return {item: facts[item] for item in items if item in facts} if items else facts

    def _sum(self, count: Callable[[StreamConnection], int]) -> int:
        return sum(map(count, self._open))


def listeners_of(kernel: Kernel) -> list[Listener]:
    """The servers of a node that listen at stream sockets."""
    return [
        meta.behaviour
        for meta in kernel.router.registry.aliases.values()
        if isinstance(meta, Meta) and isinstance(meta.behaviour, Listener)
    ]
