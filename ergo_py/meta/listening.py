"""A server over a listening socket: its reader accepts, and spawns one connection for each socket."""

import errno
import select
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import trio
from trio.lowlevel import notify_closing, wait_readable

from .._core.errors import BadInputError, NodeStoppedError, NotAllowedError, SpawnError
from .._core.metalife import Meta
from .._core.options import check_number
from .._core.process import Process
from .._core.reasons import Reason, Shutdown
from .messages import Address
from .options import LARGEST, StreamOptions, WhenFull
from .polling import Poller
from .readers import EitherReader, ReaderKind
from .receivers import ReceiverOption, Receivers
from .sockets import OUT_OF_RESOURCES, describe
from .stream import Stream
from .tls import Contexts, Secure

__all__ = ["Listener"]

_BACK_OFF: Final = (0.05, 1.0)
"""The first and the longest pause, in seconds, when the system has no descriptors to give."""

# The connection was gone before it was accepted, or the network has a fault of its own: nothing to end a server for. Linux hands on
# whatever error the new connection has already; accept(2) names those to try again after. Not every system knows all of them.
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


class Listener(EitherReader):
    """Accepts connections. They belong to it, or to their own actor, and end with it."""

    kind = "accept"
    _local: Any = ""

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
        self._choose_reader(reader)
        self._receivers = Receivers(receiver)
        self._options = options
        self._most = max_connections
        self._when_full = when_full
        self._queue = queue
        self._contexts: Contexts | None = None
        self._open: dict[Stream, None] = {}
        self.poller = Poller(self._start_on_loop) if self.reader == "task" and hasattr(select, "epoll") else None
        # Changed by the reader only.
        self.refused = 0
        self.errors = 0
        self._pause = _BACK_OFF[0]
        # Changed on the loop only.
        self._is_shut = False
        self.accepted = 0
        self._past_in = 0
        self._past_out = 0
        self.failed = 0
        """Connections that ended before they were ready, such as by a TLS handshake that failed."""

    # -- birth -------------------------------------------------------------------------------------------------------

    async def init(self) -> None:
        """Open the socket: a port that is taken is an error of ``spawn_meta``."""
        self._since = self._now()
        if self._options.tls:
            self._contexts = Contexts(self._options.tls, server_side=True)
        self._socket = sock = await self._listen()
        self.opened(sock)
        sock.setblocking(self.reader == "thread")
        sock.listen(self._queue)
        self._local = self._address(sock)

    async def _listen(self) -> socket.socket:
        raise NotImplementedError

    def _address(self, sock: socket.socket) -> Address:
        raise NotImplementedError

    def _make(self, sock: socket.socket, address: object) -> Stream:
        raise NotImplementedError

    # -- the reader --------------------------------------------------------------------------------------------------

    def _read_in_thread(self) -> None:
        while not self.stopping:
            if self._must_wait():
                self._wait_in_thread(self._may_accept)
                continue
            try:
                sock, address = self._socket.accept()
            except OSError as error:
                pause = self._after(error)
                if pause:
                    self._wait_in_thread(lambda: False, pause)
                continue
            if self._admit(sock) and not self._run_in_loop(self._adopt, sock, address):
                return

    async def _read_in_task(self) -> None:
        while True:
            if self._must_wait():
                await self._wait_in_task(self._may_accept)
                continue
            await wait_readable(self._socket)
            try:
                sock, address = self._socket.accept()
            except BlockingIOError:  # another one was faster
                continue
            except OSError as error:
                await trio.sleep(self._after(error))
                continue
            if self._admit(sock) and not await self._adopt(sock, address):
                return

    def _is_full(self) -> bool:
        return self._most is not None and len(self._open) >= self._most

    def _must_wait(self) -> bool:
        """Whether to accept nobody for now; once its owner is ending that is so until the server itself ends."""
        return self._is_shut or (self._when_full is WhenFull.PAUSE and self._is_full())

    def _may_accept(self) -> bool:
        return not self._must_wait()

    def _after(self, error: OSError) -> float:
        """How long to wait after an ``accept`` that failed. Raises what ends the server."""
        if self.stopping or self._is_shut:
            return 0.0
        self.errors += 1
        if error.errno in _PASSING:
            return 0.0
        if error.errno not in OUT_OF_RESOURCES:
            raise error
        # The peer stays in the queue of the operating system; trying at once would only burn the processor.
        if self._pause == _BACK_OFF[0]:
            self.log.warning("cannot accept for now", error=describe(error), open=len(self._open))
        pause, self._pause = self._pause, min(2 * self._pause, _BACK_OFF[1])
        return pause

    def _admit(self, sock: socket.socket) -> bool:
        self._pause = _BACK_OFF[0]
        if self._is_full():
            self.refused += 1
            sock.close()
            return False
        return True

    async def _adopt(self, sock: socket.socket, address: object) -> bool:
        """Make a connection of an accepted socket. On the loop; False if the server is ending."""
        meta = self._meta
        connection = self._make(sock, address)
        connection._server = self
        connection._when_gone = self._gone
        try:
            if self._contexts is not None:
                connection._secure = Secure(self._contexts.current(self._cannot_read_certificates), server_side=True)
                connection._may_write = False
            self._open[connection] = None
            connection._actor = actor = await self._receivers.make_actor(meta)
            if meta.reason is not None or self._is_shut:
                raise NotAllowedError("the server is ending")
            if actor is not None and not actor.accepting:
                # What an actor owns ends with it, and so must be owned before that.
                raise SpawnError("the actor that was made for it has ended already")
            await Meta.spawn(actor or meta, connection, replace(meta.options, linger=False))
        except BaseException as error:
            sock.close()
            self._open.pop(connection, None)
            if connection._actor is not None:
                connection._actor.ask_to_exit(self.id, Shutdown())
            if isinstance(error, NodeStoppedError | NotAllowedError):
                return self._is_shut and meta.reason is None
            if not isinstance(error, SpawnError | OSError):
                raise
            self.refused += 1
            self.log.warning("no connection could be made for a socket that was accepted", error=describe(error))
            return meta.reason is None
        self.accepted += 1
        return True

    def _cannot_read_certificates(self, error: Exception) -> None:
        self.log.error("the certificates have changed and cannot be read; the old ones stay in use", error=str(error))

    def _gone(self, connection: Stream) -> None:
        """A connection has ended. On the loop."""
        self._open.pop(connection, None)
        self._past_in += connection.bytes_in
        self._past_out += connection.bytes_out
        if connection.connected is None:
            self.failed += 1
        self._ring()

    # -- the end -----------------------------------------------------------------------------------------------------

    def _stop_accepting(self) -> Sequence[Process]:
        """Refuse newcomers while the connections go on: the owner ends, and ends the sessions first, then this server."""
        if not self._is_shut:
            self._is_shut = True
            try:
                # Also wakes a thread that is in accept().
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:  # it is closed already
                pass
            self._ring()
        return [one._actor for one in self._open if one._actor is not None]

    def unblock(self) -> None:
        """Wake the reader, and tell all connections at once, so that they end side by side."""
        super().unblock()
        meta = self._meta
        if meta.reason is not None and meta.router.bridge.on_loop():
            for connection in list(self._open):
                if isinstance(connection._meta, Meta):
                    connection._meta.finish(meta.reason)

    async def terminate(self, reason: Reason) -> None:
        """Wait for the connections that belong to actors, and give the address back."""
        for connection in list(self._open):
            if isinstance(connection._meta, Meta):
                await connection._meta.shut(reason)
        if self.poller is not None:
            self.poller.close()
        if not self._meta.abandoned:
            if self._socket.fileno() >= 0:
                notify_closing(self._socket)
            self._socket.close()

    # -- looking inside ----------------------------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open)

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """Say how it is doing."""
        facts = {
            "local": str(self._local),
            "receiver": str(self._receivers),
            "reader": self.reader,
            "accepted": str(self.accepted),
            "open": str(len(self._open)),
            "refused": str(self.refused),
            "failed": str(self.failed),
            "errors": str(self.errors),
            "max connections": "" if self._most is None else str(self._most),
            "bytes in": str(self._past_in + self._sum(lambda one: one.bytes_in)),
            "bytes out": str(self._past_out + self._sum(lambda one: one.bytes_out)),
            "pending": str(self._sum(lambda one: one.pending)),
            "age": f"{self._now() - self._since:.3f}",
            "tls": "" if self._contexts is None else "yes",
        }
        return {item: facts[item] for item in items if item in facts} if items else facts

    def _sum(self, what: Callable[[Stream], int]) -> int:
        return sum(what(one) for one in self._open)
