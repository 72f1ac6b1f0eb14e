"""`Client`: a client of NATS that connects again whenever its connection breaks."""

import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import trio
from trio.lowlevel import Task, current_task

from ...._core import sources
from ...._core.runtime.time_slices import SLICE
from ...._core.vocabulary.options import Rereadable, read_now
from ...errors import NetworkError
from . import wire
from .connection import Connection, RefusedError
from .login import Credentials, ServerAddress
from .wire import Message, Ping, Pong, ServerError, ServerInfo, ServerOperation

__all__ = ["Client", "ClientHandler"]

# Not measured: less than half of the default patience, so that a second server is tried while other
# nodes still wait for this node.
_ATTEMPT: Final = 2.0
"""Seconds for connecting to a single server."""
# A server that is silent for two seconds leaves three of the default patience to reach another.
_PING: Final = 1.0
"""Seconds between our pings. A server that answers none for twice as long is lost."""
_FIRST_PAUSE: Final = 0.05
_PAUSE: Final = 0.5
"""The longest pause between attempts while other nodes still have patience."""
# Not measured: the other nodes have told this node as lost by now, and a server that is away for
# hours must not be asked twice a second by all of its nodes.
_LONG_PAUSE: Final = 5.0
"""The longest pause after that."""


class ClientHandler(Protocol):
    """The user of a client. Its methods run on the loop and never wait."""

    def connected(self, info: ServerInfo, /) -> None:
        """Note that the client is connected, perhaps again, and subscribed."""

    def message(self, message: Message, /) -> None:
        """Take a message."""

    def begin_pass(self, reader: Task, /) -> None:
        """Note that the reader hands over all messages that have arrived together."""

    def end_pass(self, reader: Task, /) -> bool:
        """Note that it has handed them over, or that its time slice is over. True if no other task
        is ready to run.
        """
        ...

    def disconnected(self, why: str, /) -> None:
        """Note that the connection is lost. The client connects again."""

    def refused(self, text: str, /) -> None:
        """Note that the server has refused an operation."""


class Client:
    """A client of a server, or of a cluster of servers."""

    def __init__(
        self,
        servers: Sequence[ServerAddress],
        handler: ClientHandler,
        *,
        name: str,
        subscriptions: Sequence[str],
        credentials: Credentials | None,
        context: Rereadable[ssl.SSLContext | None],
        tls_first: bool,
        patience: float,
    ) -> None:
        self._servers = list(servers)
        self._named: list[ServerAddress] = []
        """Further servers, which the connected server has named."""
        self._handler = handler
        self._name = name
        self._subscriptions = [(subject, n) for n, subject in enumerate(subscriptions, 1)]
        self._credentials = credentials
        self._context = context
        self._tls_first = tls_first
        self._patience = patience
        self._connection: Connection | None = None
        self._pings = 0
        self._pongs = 0
        """How many pings the server has answered, of the current connection."""
        self._pinged: deque[float] = deque()
        """The moments of the pings that are not answered yet."""
        self.heard_at: float = 0.0
        """The moment of the last ping that a server has answered, or of the last connection."""
        self._answered = trio.Event()
        self._is_silent = False
        self._is_alone = False
        """No other task was ready to run after the last messages."""
        self.connected: int = 0
        """How often the client has connected."""

    @property
    def server(self) -> ServerAddress | None:
        """The connected server."""
        return None if self._connection is None else self._connection.address

    def publish(
        self, subject: str, reply: str, payload: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        """Publish a message, or drop it if the client is not connected."""
        if self._connection is not None:
            self._connection.send(wire.publish(subject, reply, payload, headers))

    def send(self, data: bytes) -> None:
        """Send the bytes of a publication, or drop them if the client is not connected."""
        if self._connection is not None:
            self._connection.send(data)

    async def flush(self) -> None:
        """Wait until the server has got everything that was published, or is lost."""
        connection = self._connection
        if connection is None:
            return
        # The server reads and answers in order, so the pong says that it has everything before the
        # ping.
        self._send_ping(connection)
        last = self._pings
        while self._connection is connection and self._pongs < last:
            await self._answered.wait()

    async def run(self) -> None:
        """Stay connected until cancelled.

        Raises:
            NetworkError: no server could be reached at the start.
        """
        connection = await self._connect_first()
        while True:
            server = connection.address
            why = await self._use(connection)
            self._handler.disconnected(f"{server}: {why}")
            connection = await self._connect_again(server)

    # -- connecting --------------------------------------------------------------------------------

    async def _connect_first(self) -> Connection:
        errors: list[str] = []
        for server in self._servers:
            try:
                return await self._open(server)
            except (OSError, RefusedError) as error:
                errors.append(f"{server}: {_shown(error)}")
        raise NetworkError("no NATS server accepts this node: " + "; ".join(errors))

    async def _connect_again(self, lost: ServerAddress) -> Connection:
        began, pause = trio.current_time(), _FIRST_PAUSE
        while True:
            known = dict.fromkeys([*self._servers, *self._named])
            # The lost server comes last: another may take over at once.
            for server in sorted(known, key=lambda server: server == lost):
                try:
                    return await self._open(server)
                except (OSError, RefusedError) as error:
                    self._handler.disconnected(f"{server}: {_shown(error)}")
            has_patience = trio.current_time() - began < self._patience
            # Half of the pause is random, so that not all nodes come back in the same moment.
            fraction = sources.chance(self._name, "connections").fraction()
            await trio.sleep(pause * (0.5 + fraction / 2))
            pause = min(2 * pause, _PAUSE if has_patience else _LONG_PAUSE)

    async def _open(self, server: ServerAddress) -> Connection:
        try:
            with trio.fail_after(_ATTEMPT):
                return await Connection.open(
                    server,
                    read_now(self._context),
                    self._tls_first,
                    self._credentials,
                    self._name,
                    self._subscriptions,
                )
        except trio.TooSlowError:
            raise RefusedError(f"it does not answer within {_ATTEMPT:g} s") from None

    # -- connected ---------------------------------------------------------------------------------

    async def _use(self, connection: Connection) -> str:
        """Use a connection until it is lost. Returns why."""
        self._learn(connection, connection.info)
        self._connection = connection
        self.connected += 1
        self._pings = self._pongs = 0
        self._pinged.clear()
        self._is_silent = False
        why = "it has closed the connection"
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.write)
                nursery.start_soon(self._ping, connection, nursery.cancel_scope)
                # Before `heard_at` is set: the carrier compares it with the time, to tell for how
                # long this node was away.
                self._handler.connected(connection.info)
                self.heard_at = trio.current_time()
                why = await self._read(connection)
                nursery.cancel_scope.cancel()
            if self._is_silent:
                why = "it is silent"
        except* (OSError, RefusedError) as group:
            why = _shown(group.exceptions[0])
        finally:
            self._connection = None
            self._note_answered()
            # The descriptors have to be closed, also if the node is cancelled; closing by force
            # does not wait for the server.
            with trio.CancelScope(shield=True):
                await connection.close()
        return why

    async def _read(self, connection: Connection) -> str:
        why = "it has closed the connection"
        self._is_alone = False
        while operations := await connection.receive(self._is_alone):
            self._is_alone = False
            done = 0
            while done < len(operations):
                match operations[done]:
                    case Message():
                        done = self._hand_over(operations, done)
                        if done < len(operations):
                            await trio.lowlevel.checkpoint()  # a time slice may be over
                        continue
                    case Ping():
                        connection.send(wire.PONG)
                    case Pong():
                        self._pongs += 1
                        if self._pinged:
                            # Not the moment of the answer: it may have waited for a program that
                            # was stopped.
                            self.heard_at = self._pinged.popleft()
                        self._note_answered()
                    case ServerInfo() as info:
                        self._learn(connection, info)
                        if info.is_lame_duck and self._has_another(connection):
                            return "it goes down"
                    case ServerError() as error:
                        why = error.text
                        if error.is_permission:
                            # The connection stays open after a refusal of a permission; `why` is
                            # only told if the server closes it.
                            self._handler.refused(error.text)
                done += 1
        return why

    def _hand_over(self, operations: list[ServerOperation], done: int) -> int:
        """Hand over the messages after the first ``done`` operations, for a time slice. Returns how
        many operations are done.
        """
        task, handler, end = current_task(), self._handler, sources.slice_clock() + SLICE
        handler.begin_pass(task)
        try:
            while done < len(operations) and type(operation := operations[done]) is Message:
                handler.message(operation)
                done += 1
                if sources.slice_clock() >= end:
                    break
        finally:
            self._is_alone = handler.end_pass(task)
        return done

    async def _ping(self, connection: Connection, scope: trio.CancelScope) -> None:
        while not self._is_silent:
            self._send_ping(connection)
            answered = self._pongs
            await trio.sleep(_PING)
            # A second wait before the verdict: the pong may stand behind messages that this program
            # has not read yet.
            if self._pongs == answered:
                await trio.sleep(_PING)
                self._is_silent = self._pongs == answered
        scope.cancel()

    def _send_ping(self, connection: Connection) -> None:
        self._pings += 1
        self._pinged.append(trio.current_time())
        connection.send(wire.PING)

    def _note_answered(self) -> None:
        self._answered.set()
        self._answered = trio.Event()

    def _learn(self, connection: Connection, info: ServerInfo) -> None:
        places = [connection.address.at(place) for place in info.connect_urls]
        self._named = [place for place in places if place is not None]

    def _has_another(self, connection: Connection) -> bool:
        return any(server != connection.address for server in (*self._servers, *self._named))


def _shown(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
