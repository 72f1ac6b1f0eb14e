"""`Births`: the connections of a server from their acceptance until their meta-processes and
sessions have started.
"""

import socket
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

from ..._core.metas.meta import Meta
from ..._core.metas.spawn import spawn_meta_beside, spawn_meta_in_passing
from ..._core.processes.process import Process
from ..._core.runtime.detached_task import DetachedTask, is_cut_off
from ..._core.vocabulary.errors import NodeStoppedError, NotAllowedError, SpawnError
from ..._core.vocabulary.options import MetaOptions
from ..._core.vocabulary.reasons import Shutdown
from ..receivers import Plan, make_actor, make_actor_at_once, starts_at_once
from .socket_setup import describe
from .streams.connection import StreamConnection

if TYPE_CHECKING:
    from .listener import Listener

__all__ = ["Births"]

_AT_ONCE: Final = 128
"""How many connections may wait for their sessions to start. With 64, a crowd of a hundred was
accepted in two turns of a busy loop; asyncio accepts it in one.
"""


class Births:
    """Spawns connections, and keeps those that are under way. On the loop."""

    __slots__ = ("_options", "_server", "_under_way", "made", "not_made")

    _options: MetaOptions
    """The options with which connections are spawned."""

    def __init__(self, server: "Listener") -> None:
        self._server = server
        self._under_way: dict[StreamConnection, DetachedTask] = {}
        """Connections whose sessions have not started yet, each with the task that starts it."""
        self.made: int = 0
        """How many connections were made."""
        self.not_made: int = 0
        """How many could not be made, after their sockets were accepted."""

    def use(self, options: MetaOptions) -> None:
        """Spawn connections with these options."""
        self._options = options

    @property
    def places(self) -> int:
        """How many more connections may begin now."""
        return _AT_ONCE - len(self._under_way)

    def count(self) -> None:
        """Count a connection that was made, or a peer that ended before it had any."""
        self.made += 1

    def cancel(self) -> None:
        """Cancel all connections under way."""
        for birth in list(self._under_way.values()):
            birth.cancel()

    async def wait(self) -> None:
        """Wait until none is under way."""
        for birth in list(self._under_way.values()):
            await birth.gone.wait()

    def begin(self, connection: StreamConnection, sock: socket.socket) -> None:
        """Spawn a connection: at once, or in a task of its own if its session may take a while to
        start.
        """
        server, meta = self._server, self._server._meta
        server._open[connection] = None

        async def find_owner() -> Process | Meta:
            if plan is None:
                return meta
            actor = await make_actor(meta, plan)
            self._belongs_to(connection, actor)
            return actor

        def told(error: BaseException | None) -> None:
            self._under_way.pop(connection, None)
            self._ended(connection, sock, error)

        try:
            self._check_open()
            if server._contexts is not None and not server._options.start_tls:
                connection._begin_tls(server.new_secure())
            # Choose the receiver now, in the order of arrival; starting it may take a while.
            receivers = server._receivers
            plan = receivers.plan_actor() if receivers.makes_actors else None
            if (
                server.poller is not None
                and server._contexts is None
                and (plan is None or starts_at_once(meta, plan))
            ):
                # Nothing has to wait, as for most connections: the poller reads them, and there is
                # no handshake.
                meta.handler.context.copy().run(self._begin_at_once, connection, sock, plan)
                return
            context = meta.handler.context
            self._under_way[connection] = spawn_meta_beside(
                meta.kernel, find_owner, connection, self._options, told, context
            )
        except BaseException as error:
            told(error)

    def _begin_at_once(
        self, connection: StreamConnection, sock: socket.socket, plan: Plan | None
    ) -> None:
        """Spawn a connection, and its session if there is a plan for it, without a task."""
        owner: Process | Meta = self._server._meta
        if plan is not None:
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
        born.reader.begin()

    def go_on_with(self, connection: StreamConnection, session: Process, unsent: bytes) -> None:
        """Spawn a connection that comes from the program before, for a session that has started.

        Raises:
            SpawnError, OSError: it could not be made.
        """

        def begin() -> None:
            born = spawn_meta_in_passing(session, connection, self._options)
            self.made += 1
            connection.go_on(unsent)
            born.reader.begin()

        self._server._open[connection] = None
        try:
            self._server._meta.handler.context.copy().run(begin)
        except BaseException:
            self._server._open.pop(connection, None)
            raise

    def _check_open(self) -> None:
        if self._server._meta.ending.reason is not None or self._server._closing.is_shut:
            raise NotAllowedError("the server is ending")

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
            self._under_way.pop(connection, None)
            self._ended(connection, sock, error)

        async def clean_up() -> None:
            await rest

        self._under_way[connection] = birth = DetachedTask(ended)
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
