"""`Listener`: a server over a listening socket. Its reader accepts sockets, and spawns a connection
for each.
"""

import errno
import select
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence, Sized
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, Final

import trio
from trio.lowlevel import notify_closing, wait_readable

from ..._core import sources
from ..._core.metas.meta import Meta
from ..._core.metas.spawn import spawn_meta_beside, spawn_meta_in_passing
from ..._core.processes.process import Process
from ..._core.runtime.bridge import Parker
from ..._core.runtime.detached_task import DetachedTask, is_cut_off
from ..._core.verbs.meta_process import MetaProcess
from ..._core.vocabulary.errors import BadInputError, NodeStoppedError, NotAllowedError, SpawnError
from ..._core.vocabulary.options import check_number
from ..._core.vocabulary.reasons import Reason, Shutdown
from ..poller import SocketPoller
from ..readers import ReaderKind, ReaderWait, check_reader, start_beside
from ..receivers import (
    Plan,
    ReceiverOption,
    Receivers,
    make_actor,
    make_actor_at_once,
    starts_at_once,
)
from ..thread_inbox import ThreadInbox
from .messages import ORDERLY, Address, Cause, Endpoint
from .options import LARGEST, StreamOptions, WhenFull
from .socket_setup import OUT_OF_RESOURCES, describe, prepare_listener
from .streams.connection import StreamConnection
from .streams.parser import NewParser
from .tls import TLSContexts, TLSSession

__all__ = ["Listener"]

_AT_ONCE: Final = 128
"""How many connections may wait for their sessions to start."""
_IN_TURN: Final = 64
"""How many connections are made in a turn of the loop, at most. With fewer, newcomers would wait
for longer: after each turn, a busy server serves all the peers that it has.
"""
_SLOW_IN_TURN: Final = 12
_THREADS_IN_TURN: Final = 6
"""How many if they take a task or a thread each, or more time than the turn has."""
_TURN: Final = 0.004
"""The seconds of such a turn, so that other work gets its turn."""
_ANY: Final = ("0.0.0.0", "::")
"""Hosts that stand for every address of the machine."""
_BACK_OFF: Final = (0.05, 1.0)
"""The first and the longest pause, in seconds, while the system is out of descriptors."""

_WARNINGS: Final = 10.0
"""Seconds between two warnings about failed handshakes."""

# The connection was gone before it was accepted, or the network has a fault: no reason to end a
# server. On Linux, accept() also returns errors that the new connection already has; accept(2)
# lists those after which to try again. Not every system knows all of them.
_PASSING: Final = frozenset(
    getattr(errno, name)
    for name in (
        "ECONNABORTED",
        "ECONNRESET",
        "EHOSTDOWN",
        "EHOSTUNREACH",
        "ENETDOWN",
        "ENETUNREACH",
        "ENONET",
        "ENOPROTOOPT",
        "ENOSR",
        "EOPNOTSUPP",
        "EPERM",
        "EPROTO",
        "EPROTONOSUPPORT",
        "ESOCKTNOSUPPORT",
        "ETIMEDOUT",
    )
    if hasattr(errno, name)
)

Accepted = tuple[socket.socket, object]
"""A socket, and the address of its peer."""


class Listener(MetaProcess):
    """Accepts connections. The server owns them, or their sessions do; they end with the server."""

    kind = "accept"
    makes: type[StreamConnection]
    """The class of its connections."""
    _needed = True
    _local: Any = ""
    prepares_connections = False
    local_of_connections: Address | None = None
    _new_parser: NewParser | None = None
    """Makes the object that turns the bytes of a connection into messages; None to cut them as the
    framing says.
    """

    def __init__(
        self,
        receiver: ReceiverOption,
        options: StreamOptions,
        reader: ReaderKind,
        max_connections: int | None,
        when_full: WhenFull,
        queue: int,
    ) -> None:
        if max_connections is not None:
            check_number("max_connections", max_connections, least=1, whole=True)
        if not isinstance(when_full, WhenFull):
            raise BadInputError("when_full", when_full, "WhenFull.PAUSE or WhenFull.REFUSE")
        check_number("queue", queue, least=1, whole=True, most=LARGEST)
        self.reader: ReaderKind = check_reader(reader)
        """Where it and its connections read: in a thread or in a task."""
        self._reads_in_task = reader == "task"
        self._in_turn = _IN_TURN
        self._wait = ReaderWait(self)
        self._receivers = Receivers(receiver)
        self._options = options
        self._most = max_connections
        self._when_full = when_full
        self._queue = queue
        self._contexts: TLSContexts | None = None
        self._open: dict[StreamConnection, None] = {}
        self._births: dict[StreamConnection, DetachedTask] = {}
        """Connections whose sessions have not started yet, each with the task that starts it."""
        self.poller = (
            SocketPoller(partial(start_beside, self))
            if self._reads_in_task and hasattr(select, "epoll")
            else None
        )
        self.inbox = (
            ThreadInbox(partial(start_beside, self))
            if ThreadInbox.is_possible and not self._reads_in_task
            else None
        )
        # Changed by the reader only.
        self.errors = 0
        self._turned_away = 0
        self._pause = _BACK_OFF[0]
        self._rest = 0.0
        """Seconds to pause before the next attempt, after an error."""
        # Changed on the loop only.
        self._is_shut = False
        self.accepted = 0
        self._not_made = 0
        self._past_in = 0
        self._past_out = 0
        self._next_warning = -inf
        self.failed = 0
        """Connections that ended before they were ready, such as by a failed TLS handshake."""

    # -- birth -------------------------------------------------------------------------------------

    async def init(self) -> None:
        """Open the socket: if the port is taken, ``spawn_meta`` raises the error."""
        self._since = self._now()
        if self._options.tls:
            self._contexts = TLSContexts(self._options.tls, server_side=True)
        self._socket = sock = await self._listen()
        self.opened(sock)
        self.prepares_connections = prepare_listener(sock, self._options)
        # A thread does not block in accept() either: it takes all waiting connections, and there
        # may be fewer than expected.
        sock.setblocking(False)
        sock.listen(self._queue)
        self._options_of_connections = replace(self._meta.options, linger=False, needed=False)
        self._local = local = self._address(sock)
        if isinstance(local, Endpoint) and local.host not in _ANY:
            self.local_of_connections = local
        if self.poller is not None:
            self.poller.open(self._meta.router.turns)
        if self.inbox is not None:
            self.inbox.open(self._meta.router.turns)

    async def _listen(self) -> socket.socket:
        raise NotImplementedError

    def _address(self, sock: socket.socket) -> Address:
        raise NotImplementedError

    def _make(self, sock: socket.socket, address: object) -> StreamConnection:
        receiver, new_parser = self._receivers.next(), self._new_parser
        return self.makes.accepted_by(
            self, sock, address, receiver, self._options, self.reader, new_parser
        )

    # -- the reader --------------------------------------------------------------------------------

    def start(self) -> Awaitable[None] | None:
        """Accept connections until the end, in a thread or in a task."""
        if self._reads_in_task:
            return self._accept_in_task()
        self._accept_in_thread()
        return None

    def _accept_in_thread(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while not self.stopping:
            if not self._may_accept():
                self._wait.in_thread(self._may_accept)
                continue
            poll.poll()
            taken: list[Accepted] = []
            pause = self._accept(taken.append, taken, _AT_ONCE)
            if taken and not self._adopt_on_loop(taken):
                return
            if pause:
                self._wait.in_thread(lambda: False, pause)

    async def _accept_in_task(self) -> None:
        # The poller has no context of its own: whatever makes connections sees the server's.
        accept_some = partial(copy_context().run, self._accept_some)
        while True:
            if not self._may_accept():
                await self._wait.in_task(self._may_accept)
                continue
            if self.poller is None:
                await wait_readable(self._socket)
                self._accept_some()
            else:
                await self.poller.watch(self._socket, accept_some)
            if self._rest:
                await trio.sleep(self._rest)

    def _accept_some(self) -> bool:
        """Accept and adopt a few connections. Returns whether to go on when there are more."""
        self._rest = self._accept(self._adopt, (), self._in_turn, sources.slice_clock() + _TURN)
        return not self._rest and self._may_accept()

    def _may_accept(self, more: int = 0) -> bool:
        """Whether another connection may be accepted now, with ``more`` accepted already in this
        step. Never once the owner is ending.
        """
        if self._is_shut or len(self._births) + more >= _AT_ONCE:
            return False
        most = self._most
        return most is None or self._when_full is WhenFull.REFUSE or self._has_place(more)

    def _has_place(self, more: int = 0) -> bool:
        return self._most is None or self.connections + more < self._most

    def _accept(
        self,
        take: Callable[[Accepted], object],
        taken: Sized,
        most: int,
        end: float = inf,
    ) -> float:
        """Accept the waiting connections, as far as there is room for them, at most ``most``, and
        few after ``end``. Returns the seconds to pause before the next attempt.

        A busy loop calls this once in each pass. If it accepted a single connection each time, new
        peers would queue up behind each other.
        """
        births = len(self._births)
        try:
            for number in range(1, most + 1):
                if not self._may_accept(len(taken)):
                    break
                sock, address = self._socket.accept()
                self._pause = _BACK_OFF[0]
                if self._most is None or self._has_place(len(taken)):
                    take((sock, address))
                    if number >= _SLOW_IN_TURN and (
                        sources.slice_clock() >= end or len(self._births) > births
                    ):
                        break
                else:
                    self._turned_away += 1
                    sock.close()
        except BlockingIOError:  # no more are waiting
            return 0.0
        except OSError as error:
            # Serve the accepted sockets first. A permanent error comes again at the next attempt.
            return 0.0 if taken else self._after(error)
        return 0.0

    def _after(self, error: OSError) -> float:
        """Seconds to pause after a failed ``accept``. Raises an error that ends the server."""
        if self.stopping or self._is_shut:
            return 0.0
        self.errors += 1
        if error.errno in _PASSING:
            return 0.0
        if error.errno not in OUT_OF_RESOURCES:
            raise error
        # The peer stays in the queue of the operating system; trying again at once would only burn
        # the processor.
        if self._pause == _BACK_OFF[0]:
            self.log.warning("cannot accept for now", error=describe(error), open=self.connections)
        pause, self._pause = self._pause, min(2 * self._pause, _BACK_OFF[1])
        return pause

    def _adopt_on_loop(self, taken: list[Accepted]) -> bool:
        """From the reader's thread: have the loop adopt the sockets, some in each turn, and wait
        for that. False if the server is ending.
        """
        parker: Parker[bool] = Parker()
        bridge = self._meta.router.bridge
        waiting = deque(taken)

        def adopt() -> None:
            try:
                while waiting:
                    for _ in range(min(_THREADS_IN_TURN, len(waiting))):
                        self._adopt(waiting.popleft())
                    if waiting:
                        try:
                            bridge.post(adopt)
                            return
                        except NodeStoppedError:  # no other turn: adopt all of them now
                            continue
                parker.settle(self._meta.reason is None)
            except BaseException:
                parker.settle(False)
                raise

        bridge.post(adopt)
        parker.wait(None)
        return bool(parker.value)

    def _adopt(self, accepted: Accepted) -> None:
        """Make a connection of an accepted socket. On the loop."""
        sock, address = accepted
        self._spawn(self._make(sock, address), sock)

    def _spawn(self, connection: StreamConnection, sock: socket.socket) -> None:
        """Spawn a connection in a task of its own, since its session may take a while to start. On
        the loop.
        """
        meta = self._meta

        async def find_owner() -> Process | Meta:
            if plan is None:
                return meta
            actor = await make_actor(meta, plan)
            self._belongs_to(connection, actor)
            return actor

        def told(error: BaseException | None) -> None:
            self._births.pop(connection, None)
            self._was_born(connection, sock, error)

        self._open[connection] = None
        try:
            if meta.reason is not None or self._is_shut:
                raise NotAllowedError("the server is ending")
            if self._contexts is not None and not self._options.start_tls:
                connection._begin_tls(self.new_secure())
            # Choose the receiver now, in the order of arrival; starting it may take a while.
            plan = self._receivers.plan_actor()
            if (
                self.poller is not None
                and self._contexts is None
                and (plan is None or starts_at_once(meta, plan))
            ):
                # Nothing has to wait, as for most connections.
                meta.handler.context.copy().run(self._spawn_at_once, connection, sock, plan)
                return
            self._births[connection] = spawn_meta_beside(
                meta.kernel,
                find_owner,
                connection,
                self._options_of_connections,
                told,
                meta.handler.context,
            )
        except BaseException as error:
            told(error)

    def _spawn_at_once(
        self, connection: StreamConnection, sock: socket.socket, plan: Plan | None
    ) -> None:
        """Spawn a connection, and its session if there is a plan for it, without a task."""
        owner: Process | Meta = self._meta
        if plan is not None:
            left: list[Awaitable[None]] = []
            try:
                owner = actor = make_actor_at_once(self._meta, plan, left.append)
            except BaseException as error:
                if not left:
                    raise
                self._clean_up(connection, sock, left[0], error)
                return
            self._belongs_to(connection, actor)
        born = spawn_meta_in_passing(owner, connection, self._options_of_connections)
        self._was_born(connection, sock, None)
        born.reader.begin()

    def _belongs_to(self, connection: StreamConnection, actor: Process) -> None:
        connection._belong_to(actor)
        if self._meta.reason is not None or self._is_shut:
            raise NotAllowedError("the server is ending")
        if not actor.accepting:
            # An actor ends its meta-processes when it ends. A connection that it gets later would
            # never end.
            raise SpawnError("the actor that was made for it has ended already")

    def _clean_up(
        self,
        connection: StreamConnection,
        sock: socket.socket,
        rest: Awaitable[None],
        error: BaseException,
    ) -> None:
        """Let a task clean up after the ``init`` of a session, which has failed."""

        def ended() -> None:
            self._births.pop(connection, None)
            self._was_born(connection, sock, error)

        async def clean_up() -> None:
            await rest

        self._births[connection] = birth = DetachedTask(ended)
        birth.start(self._meta.kernel, clean_up, f"{type(self).__qualname__}: cleanup")

    def _was_born(
        self, connection: StreamConnection, sock: socket.socket, error: BaseException | None
    ) -> None:
        if error is None:
            self.accepted += 1
        else:
            self._not_born(connection, sock, error)
        self._wait.ring()

    def _not_born(
        self, connection: StreamConnection, sock: socket.socket, error: BaseException
    ) -> None:
        sock.close()
        self._open.pop(connection, None)
        meta = self._meta
        if connection._session is not None:
            connection._session.ask_to_exit(self.id, Shutdown())
        if isinstance(error, SpawnError | OSError) and not isinstance(error, NodeStoppedError):
            self._not_made += 1
            self.log.warning(
                "no connection could be made for a socket that was accepted", error=describe(error)
            )
        elif not isinstance(error, NodeStoppedError | NotAllowedError) and not is_cut_off(error):
            meta.finish(meta.failed("start", error))
            if meta.reader.has_thread:
                meta.pass_on(error)

    def new_secure(self) -> TLSSession:
        """The server's side of TLS for a connection."""
        assert self._contexts is not None
        return TLSSession(self._contexts.current(self._cannot_read_certificates), server_side=True)

    def _cannot_read_certificates(self, error: Exception) -> None:
        self.log.error(
            "the certificates have changed and cannot be read; the old certificates stay in use",
            error=str(error),
        )

    def _connection_ended(self, connection: StreamConnection) -> None:
        """Forget a connection that has ended. On the loop."""
        self._open.pop(connection, None)
        self._past_in += connection.bytes_in
        self._past_out += connection.bytes_out
        if connection.connected is None:
            self.failed += 1
            if self._contexts is not None and self._meta.reason is None:
                self._log_failed_handshake(connection)
        self._wait.ring()

    def _log_failed_handshake(self, connection: StreamConnection) -> None:
        """Warn from time to time, and log the other failures at level info, which is off by
        default: peers must not be able to fill the log.
        """
        now, cause = self._now(), connection.cause or Cause.ASKED
        log = self.log.info
        if now >= self._next_warning and cause not in ORDERLY:
            self._next_warning = now + _WARNINGS
            log = self.log.warning
        why = f"{cause.value}: {connection.detail}" if connection.detail else cause.value
        log("a TLS handshake failed", peer=str(connection.peer), reason=why, failed=self.failed)

    # -- the end -----------------------------------------------------------------------------------

    def _stop_accepting(self) -> Sequence[Process]:
        """Graceful shutdown, first step: refuse new connections and keep the open ones. The owner
        is ending: it ends the returned sessions first, then this server.
        """
        if not self._is_shut:
            self._is_shut = True
            try:
                # This also wakes a thread in accept().
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:  # the socket is closed already
                pass
            self._end_births()
            self._wait.ring()
        return [connection._session for connection in self._open if connection._session is not None]

    def unblock(self) -> None:
        """Wake the reader, and tell all connections at once, so that they end concurrently."""
        self._wait.ring()
        meta = self._meta
        if meta.reason is not None and meta.router.bridge.on_loop():
            for connection in list(self._open):
                if isinstance(connection._meta, Meta):
                    connection._meta.finish_without_blame(meta.reason)
            self._end_births()

    def _end_births(self) -> None:
        for birth in list(self._births.values()):
            birth.cancel()

    async def terminate(self, reason: Reason) -> None:
        """Wait for the connections that sessions own, and close the listening socket."""
        # A reader that has ended by itself was not unblocked.
        self.unblock()
        for birth in list(self._births.values()):
            await birth.gone.wait()
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
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._open)

    @property
    def refused(self) -> int:
        """How many connections were accepted and closed at once: the server was full, or no session
        or connection could be made.
        """
        return self._turned_away + self._not_made

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
            "max connections": "" if self._most is None else str(self._most),
            "bytes in": str(self._past_in + self._sum(lambda connection: connection.bytes_in)),
            "bytes out": str(self._past_out + self._sum(lambda connection: connection.bytes_out)),
            "pending": str(self._sum(lambda connection: connection.pending)),
            "age": f"{self._now() - self._since:.3f}",
            "tls": "" if self._contexts is None else "yes",
        }
        return {item: facts[item] for item in items if item in facts} if items else facts

    def _sum(self, count: Callable[[StreamConnection], int]) -> int:
        return sum(map(count, self._open))
