"""`Acceptor`: the reader of a server. It accepts the connections that wait, in a thread or in a
task. `Births`: the connections from their acceptance until their meta-processes and sessions have
started.
"""

import errno
import select
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sized
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final

import trio
from trio.lowlevel import wait_readable

from ..._core import sources
from ..._core.metas.meta import Meta
from ..._core.metas.spawn import spawn_meta_beside, spawn_meta_in_passing
from ..._core.processes.process import Process
from ..._core.runtime.bridge import Parker
from ..._core.runtime.detached_task import DetachedTask, is_cut_off
from ..._core.vocabulary.errors import NodeStoppedError, NotAllowedError, SpawnError
from ..._core.vocabulary.options import MetaOptions
from ..._core.vocabulary.reasons import Shutdown
from ..receivers import Plan, make_actor, make_actor_at_once, starts_at_once
from .handshakes import drop_new_peers, handshakes_at
from .messages import WhenFull
from .socket_setup import OUT_OF_RESOURCES, describe
from .streams.connection import StreamConnection

if TYPE_CHECKING:
    from .listener import Listener

__all__ = ["Accepted", "Acceptor", "Births"]

_IN_TURN: Final = 64
"""How many connections are made in a turn of the loop, at most. With 12, newcomers waited for more
turns: after each turn, a busy server serves all the peers that it has.
"""
_SLOW_IN_TURN: Final = 12
"""How many if connections take a task each, or more time than the turn has. With 40, passes of the
loop took 30 ms and more while 10,000 peers came, and all other peers waited.
"""
_THREADS_IN_TURN: Final = 6
"""How many if connections take a thread each, which costs the loop about twice as much as a task.
With 20, passes took as long as above.
"""
_TURN: Final = 0.004
"""The seconds of a turn after which `_SLOW_IN_TURN` counts: about the time for 64 connections
without tasks.
"""
_HANDSHAKE: Final = 0.25
"""Seconds for the handshakes under way when a server drains, if the system does not tell whether
there are any: most round trips take less.
"""
_LOOKS: Final = (0.002, 0.05)
"""The first and the longest pause, in seconds, between two looks at handshakes. A look takes about
half a millisecond.
"""
_AT_ONCE: Final = 128
"""How many connections may wait for their sessions to start. With 64, a crowd of a hundred was
accepted in two turns of a busy loop; asyncio accepts it in one.
"""
_ENDING: Final = "the server is ending"
_BACK_OFF: Final = (0.05, 1.0)
"""The first and the longest pause, in seconds, while the system is out of descriptors. Without a
pause, the server would use a whole processor: the peers stay in the queue of the system.
"""

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


class Acceptor:
    """Accepts connections while the server has room for them, and gives them to the server."""

    __slots__ = (
        *("_adopt", "_in_turn", "_pause", "_rest", "_server"),
        *("errors", "is_quiet", "turned_away"),
    )

    def __init__(self, server: "Listener", in_turn: int | None) -> None:
        self._server = server
        self._adopt: Callable[[Accepted], None] = server._adopt
        """Takes the accepted sockets, on the loop."""
        self._in_turn = _IN_TURN if in_turn is None else in_turn
        """How many connections a task accepts in a turn of the loop."""
        self._pause = _BACK_OFF[0]
        """Seconds to pause the next time that the system is out of descriptors."""
        self._rest = 0.0
        """Seconds to pause before the next attempt of a task, after an error."""
        self.is_quiet: trio.Event = trio.Event()
        """Set when the thread of a draining server has no accepted socket in its hands."""
        self.errors: int = 0
        """How often ``accept`` failed."""
        self.turned_away: int = 0
        """How many connections were closed at once, since the server was full."""

    def give_to(self, adopt: Callable[[Accepted], None]) -> None:
        """Give the accepted sockets to this function, on the loop."""
        self._adopt = adopt

    def run_in_thread(self) -> None:
        """Accept connections until the server stops."""
        server = self._server
        poll = select.poll()
        poll.register(server._socket, select.POLLIN)
        if server._is_shared:
            poll.register(server._meta.resources.bell(), select.POLLIN)
        while not server.stopping:
            if not self._may_accept_in_thread():
                server._wait.in_thread(self._may_accept_in_thread)
                continue
            sources.threads.give_way(lambda: bool(poll.poll(0)), None)
            poll.poll()
            taken: list[Accepted] = []
            pause = self._accept(taken.append, taken, _AT_ONCE)
            if taken and not self._adopt_on_loop(taken):
                return
            if pause:
                server._wait.in_thread(lambda: False, pause)

    def expect_quiet(self) -> None:
        """The server begins to drain: `is_quiet` tells of this drain, not of an earlier one."""
        self.is_quiet = trio.Event()

    def _may_accept_in_thread(self) -> bool:
        if self._server._closing.is_draining:
            with suppress(NodeStoppedError):
                self._server._meta.router.bridge.post(self.is_quiet.set)
        return self._may_accept()

    def _may_accept(self, more: int = 0) -> bool:
        """Whether another connection may be accepted now, with ``more`` accepted already in this
        step. Never once the server drains, or its owner is ending.
        """
        server, closing, given = self._server, self._server._closing, self._server._given
        if (
            closing.is_draining
            or closing.is_shut
            or more + len(server._births.under_way) >= _AT_ONCE
            or (given.is_used and given.is_held)
        ):
            return False
        most, when_full, _ = server._capacity
        return most is None or when_full is WhenFull.REFUSE or server._has_place(more)

    async def run_in_task(self) -> None:
        """Accept connections until this task is cancelled."""
        server = self._server
        # The poller has no context of its own: whatever makes connections sees the server's.
        accept_some = partial(copy_context().run, self._accept_some)
        while True:
            if not self._may_accept():
                await server._wait.in_task(self._may_accept)
                continue
            if server.poller is None:
                await wait_readable(server._socket)
                self._accept_some()
            else:
                await server.poller.watch(server._socket, accept_some)
            if self._rest:
                await trio.sleep(self._rest)

    def _accept_some(self) -> bool:
        """Accept and adopt a few connections. Returns whether to go on when there are more."""
        end = sources.slice_clock() + _TURN
        self._rest = self._accept(self._adopt, (), self._in_turn, end)
        return not self._rest and self._may_accept()

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
        server = self._server
        under_way = server._births.under_way
        before = len(under_way)
        try:
            for number in range(1, most + 1):
                if not self._may_accept(len(taken)):
                    break
                sock, address = server._socket.accept()
                self._pause = _BACK_OFF[0]
                if server._capacity.most is None or server._make_place(len(taken)):
                    take((sock, address))
                    if number >= _SLOW_IN_TURN and (
                        sources.slice_clock() >= end or len(under_way) > before
                    ):
                        break
                else:
                    self.turned_away += 1
                    sock.close()
        except BlockingIOError:  # no more are waiting
            return 0.0
        except OSError as error:
            # Serve the accepted sockets first. A permanent error comes again at the next attempt.
            return 0.0 if taken else self.pause_after(error)
        return 0.0

    async def adopt_queue(self, shut_down: Callable[[], None], seconds: float) -> None:
        """Adopt all connections that wait in the system, and shut the socket down: after at most so
        many seconds, or as soon as the server ends.

        A TCP socket that is shut down resets those that wait, and those whose handshake is not
        complete. So new connections are dropped first, then the handshakes that have begun become
        complete, then those that wait are accepted. A Unix socket has no handshakes, keeps those
        that wait, and refuses others.
        """
        server, sock = self._server, self._server._socket
        waiting: deque[Accepted] = deque()
        under_way: frozenset[bytes] | None = frozenset()
        if sock.family == socket.AF_UNIX:
            shut_down()
        else:
            drop_new_peers(sock)
            under_way = handshakes_at(sock)
            if under_way is None:
                await trio.sleep(min(_HANDSHAKE, seconds))
        end, pause = trio.current_time() + seconds, _LOOKS[0]
        try:
            # Accept after the look: a handshake that is not under way any more is in the queue.
            while not self._empty_queue(waiting) or under_way:
                if server._closing.is_shut or trio.current_time() >= end:
                    break
                await self._adopt_all(waiting)
                await trio.sleep(pause)
                pause = min(2 * pause, _LOOKS[1])
                if under_way:
                    under_way &= handshakes_at(sock) or frozenset()
            shut_down()
            await self._adopt_all(waiting)
        finally:
            for accepted, _ in waiting:
                accepted.close()

    def _empty_queue(self, waiting: deque[Accepted]) -> bool:
        """Accept all connections that wait in the system. False if there may be more."""
        try:
            while True:
                waiting.append(self._server._socket.accept())
        except BlockingIOError:
            return True
        except OSError as error:
            # A socket that is shut down, and empty, has another error.
            return error.errno not in OUT_OF_RESOURCES | _PASSING

    async def _adopt_all(self, waiting: deque[Accepted]) -> None:
        while waiting:
            for _ in range(min(_SLOW_IN_TURN, len(waiting))):
                self._adopt(waiting.popleft())
            await trio.lowlevel.checkpoint()

    def pause_after(self, error: OSError) -> float:
        """Seconds to pause after a failed ``accept``. Raises an error that ends the server."""
        server = self._server
        if server.stopping or server._closing.is_draining or server._closing.is_shut:
            return 0.0
        self.errors += 1
        if error.errno in _PASSING:
            return 0.0
        if error.errno not in OUT_OF_RESOURCES:
            raise error
        # The peer stays in the queue of the operating system; trying again at once would only burn
        # the processor.
        if self._pause == _BACK_OFF[0]:
            open_now = server.connections
            server.log.warning("cannot accept for now", error=describe(error), open=open_now)
        pause, self._pause = self._pause, min(2 * self._pause, _BACK_OFF[1])
        return pause

    def _adopt_on_loop(self, taken: list[Accepted]) -> bool:
        """From the reader's thread: have the loop adopt the sockets, some in each turn, and wait
        for that. False if the server is ending.
        """
        server = self._server
        parker: Parker[bool] = Parker()
        bridge = server._meta.router.bridge
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
                parker.settle(server._meta.reason is None)
            except BaseException:
                parker.settle(False)
                raise

        bridge.post(adopt)
        parker.wait(None)
        return bool(parker.value)


class Births:
    """Spawns connections, and keeps those that are under way. On the loop."""

    __slots__ = ("_options", "_server", "made", "not_made", "under_way")

    _options: MetaOptions
    """The options with which connections are spawned."""

    def __init__(self, server: "Listener") -> None:
        self._server = server
        self.under_way: dict[StreamConnection, DetachedTask] = {}
        """Connections whose sessions have not started yet, each with the task that starts it: at
        most 128.
        """
        self.made: int = 0
        """How many connections were made."""
        self.not_made: int = 0
        """How many could not be made, after their sockets were accepted."""

    def use(self, options: MetaOptions) -> None:
        """Spawn connections with these options."""
        self._options = options

    def count(self) -> None:
        """Count a connection that was made, or a peer that ended before it had any."""
        self.made += 1

    def cancel(self) -> None:
        """Cancel all connections under way."""
        for birth in list(self.under_way.values()):
            birth.cancel()

    async def wait(self) -> None:
        """Wait until none is under way."""
        for birth in list(self.under_way.values()):
            await birth.gone.wait()

    def begin(self, connection: StreamConnection, sock: socket.socket) -> None:
        """Spawn a connection: at once, or in a task of its own if its session may take a while to
        start.
        """
        server, meta = self._server, self._server._meta
        server._open[connection] = None
        try:
            if server._closing.is_shut:
                raise NotAllowedError(_ENDING)
            if server._contexts is not None and not server._options.start_tls:
                connection._begin_tls(server.new_secure())
            # Choose the receiver now, in the order of arrival; starting it may take a while.
            receivers = server._receivers
            plan = receivers.plan_actor() if receivers.makes_actors else None
            if (
                (server.poller is not None or meta.reader.has_thread)
                and server._contexts is None
                and (plan is None or starts_at_once(meta, plan))
            ):
                # Nothing has to wait, as for most connections: the poller or a thread reads them,
                # and there is no handshake.
                meta.handler.context.copy().run(self._begin_at_once, connection, sock, plan)
            else:
                self._begin_in_task(connection, sock, plan)
        except BaseException as error:
            self._ended(connection, sock, error)

    def _begin_in_task(
        self, connection: StreamConnection, sock: socket.socket, plan: Plan | None
    ) -> None:
        meta = self._server._meta

        async def find_owner() -> Process | Meta:
            if plan is None:
                return meta
            self._check_open()
            actor = await make_actor(meta, plan)
            self._belongs_to(connection, actor)
            return actor

        def told(error: BaseException | None) -> None:
            self.under_way.pop(connection, None)
            self._ended(connection, sock, error)

        self.under_way[connection] = spawn_meta_beside(
            meta.kernel, find_owner, connection, self._options, told, meta.handler.context
        )

    def _begin_at_once(
        self, connection: StreamConnection, sock: socket.socket, plan: Plan | None
    ) -> None:
        """Spawn a connection, and its session if there is a plan for it, without a task."""
        owner: Process | Meta = self._server._meta
        if plan is not None:
            self._check_open()
            left: list[Awaitable[None]] = []
            try:
                owner = actor = make_actor_at_once(self._server._meta, plan, left.append)
            except BaseException as error:
                if not left:
                    raise
                self._clean_up(connection, sock, left[0], error)
                return
            self._belongs_to(connection, actor)
        born = spawn_meta_in_passing(owner, connection, self._options)
        # Without a ring for the acceptor: the connection took no place among those under way.
        self.made += 1
        if not born.reader.has_thread:
            born.reader.begin(partial(connection._reader.read_in_passing, self._server.poller))

    def go_on_with(self, connection: StreamConnection, session: Process, unsent: bytes) -> None:
        """Spawn a connection that comes from the program before, for a session that has started.

        Raises:
            SpawnError, OSError: it could not be made.
        """

        def begin() -> None:
            born = spawn_meta_in_passing(session, connection, self._options)
            self.made += 1
            connection.go_on(unsent)
            born.reader.begin(partial(connection._reader.read_in_passing, self._server.poller))

        self._server._open[connection] = None
        try:
            self._server._meta.handler.context.copy().run(begin)
        except BaseException:
            self._server._open.pop(connection, None)
            raise

    def _check_open(self) -> None:
        if self._server._meta.ending.reason is not None or self._server._closing.is_shut:
            raise NotAllowedError(_ENDING)

    def _belongs_to(self, connection: StreamConnection, actor: Process) -> None:
        connection._belong_to(actor)
        self._check_open()
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
            self.under_way.pop(connection, None)
            self._ended(connection, sock, error)

        async def clean_up() -> None:
            await rest

        self.under_way[connection] = birth = DetachedTask(ended)
        name = f"{type(self._server).__qualname__}: cleanup"
        birth.start(self._server._meta.kernel, clean_up, name)

    def _ended(
        self, connection: StreamConnection, sock: socket.socket, error: BaseException | None
    ) -> None:
        """A connection is made, or cannot be made: there is a place for another."""
        if error is None:
            self.made += 1
        else:
            self._failed(connection, sock, error)
        self._server._wait.ring()

    def _failed(
        self, connection: StreamConnection, sock: socket.socket, error: BaseException
    ) -> None:
        server, meta = self._server, self._server._meta
        sock.close()
        server._open.pop(connection, None)
        if connection._session is not None:
            connection._session.ask_to_exit(server.id, Shutdown())
        if isinstance(error, SpawnError | OSError) and not isinstance(error, NodeStoppedError):
            self.not_made += 1
            server.log.warning(
                "no connection could be made for a socket that was accepted", error=describe(error)
            )
        elif not isinstance(error, NodeStoppedError | NotAllowedError) and not is_cut_off(error):
            meta.finish(meta.failed("start", error))
            if meta.reader.has_thread:
                meta.pass_on(error)
