"""`Connection`: a connection to a single NATS server, from the greeting on."""

import os
import ssl
from collections import deque
from typing import Final
from weakref import WeakSet

import trio
from trio.lowlevel import Task, current_task

from ...._core.runtime.parking import park, wake
from ...._core.runtime.socket_watch import SocketWatch
from . import wire
from .login import Credentials, ServerAddress
from .wire import Pong, ServerError, ServerInfo, ServerOperation, ServerParser

__all__ = ["Connection", "RefusedError"]

# As measured for the sockets of nodes on a machine: larger reads are slower.
_CHUNK: Final = 64 * 1024
# Not measured: twice the buffer of a connection on the machine, since the frames to all nodes wait
# for the same server.
_BUFFER: Final = 8 << 20
"""Bytes that may wait for the server. More are dropped: the sessions send them again."""
_PAYLOAD: Final = 60_000
"""The smallest max_payload of a server: each frame of a node is smaller."""
# Not measured: a write as large as a read. A join copies its parts, so that a long queue is not
# copied as a whole.
_JOIN: Final = 64 * 1024
"""Bytes that a single write takes from the queue."""


class RefusedError(Exception):
    """The server refuses the client, or what it says is not the protocol."""


class Connection:
    """A connection to a server. Created by :meth:`open`."""

    def __init__(self, address: ServerAddress, stream: trio.abc.Stream) -> None:
        self.address = address
        self.info: ServerInfo = ServerInfo()
        self._stream = stream
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None
        self._parser = ServerParser()
        self._early: deque[ServerOperation] = deque()
        """Operations that came together with an awaited one."""
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._writer: Task | None = None
        self._is_writing = False
        self._is_open = True
        self._is_encrypted = False
        # Bytes to a server without TLS are written at once, in the turn of the sender.
        self._fd = -1 if self._socket is None else self._socket.fileno()
        self._may_have_more = True
        self._watched = -1
        """A second descriptor of the socket: the writer waits for the first."""
        self._watch: SocketWatch | None = None
        _connections.add(self)

    @classmethod
    async def open(
        cls,
        address: ServerAddress,
        context: ssl.SSLContext | None,
        tls_first: bool,
        credentials: Credentials | None,
        name: str,
        subscriptions: list[tuple[str, int]],
    ) -> "Connection":
        """Connect, log in and subscribe.

        Raises:
            OSError: the server cannot be reached.
            RefusedError: the server refuses the client.
        """
        stream: trio.abc.Stream = await trio.open_tcp_stream(address.host, address.port)
        try:
            connection = cls(address, stream)
            if tls_first:
                await connection._encrypt(context)
            await connection._greet()
            if not tls_first and (address.is_tls or connection.info.tls_required):
                await connection._encrypt(context)
            await connection._log_in(credentials, name, subscriptions)
        except trio.BrokenResourceError as error:
            await trio.aclose_forcefully(stream)
            raise OSError(str(error.__cause__ or "the connection is broken")) from None
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return connection

    async def _encrypt(self, context: ssl.SSLContext | None) -> None:
        if self._early or not self._parser.is_empty:
            # Anybody between node and server may have added it: it must not count as encrypted.
            raise RefusedError(
                "it sends plain text behind its greeting, where TLS begins; a program between this "
                "node and the server may have added it"
            )
        stream = trio.SSLStream(
            self._stream,
            context or ssl.create_default_context(),
            server_hostname=self.address.tls_name,
        )
        try:
            await stream.do_handshake()
        except trio.BrokenResourceError as error:
            raise RefusedError(f"TLS: {error.__cause__ or error}") from None
        self._stream, self._fd, self._is_encrypted = stream, -1, True

    async def _greet(self) -> None:
        operation = await self._next()
        if not isinstance(operation, ServerInfo):
            raise RefusedError("it does not greet as a NATS server does")
        self.info = operation
        if operation.max_payload < _PAYLOAD:
            raise RefusedError(
                f"its max_payload is {operation.max_payload} bytes; nodes need at least {_PAYLOAD}"
            )
        if not operation.headers:
            raise RefusedError(f"its version {operation.version} is too old: it knows no headers")
        offers_tls = operation.tls_required or operation.tls_available or self._is_encrypted
        if self.address.is_tls and not offers_tls:
            raise RefusedError("it offers no TLS, which the URL tls:// demands")

    async def _log_in(
        self, credentials: Credentials | None, name: str, subscriptions: list[tuple[str, int]]
    ) -> None:
        options: dict[str, object] = {
            # Without a `+OK` for each publication, and without echo of the node's own messages: two
            # nodes of the same name have two connections, and still hear each other.
            "verbose": False,
            "pedantic": False,
            "echo": False,
            "headers": True,
            "no_responders": True,
            "lang": "python-ergo_py",
            "version": "1",
            "protocol": 1,
            "name": name,
        }
        if credentials is not None:
            options.update(credentials.sign(self.info.nonce))
        elif self.address.password:
            options["user"], options["pass"] = self.address.user, self.address.password
        elif self.address.user:
            options["auth_token"] = self.address.user
        await self._ask(wire.connect(options))
        subscribe = b"".join(wire.subscribe(subject, number) for subject, number in subscriptions)
        await self._ask(subscribe)

    async def _ask(self, data: bytes) -> None:
        """Send operations, and wait until the server has carried them out."""
        await self._stream.send_all(data + wire.PING)
        early: list[ServerOperation] = []
        while not isinstance(operation := await self._next(), Pong):
            if isinstance(operation, ServerError):
                raise RefusedError(operation.text)
            early.append(operation)
        # Messages that came before the pong are handed over first, in their order.
        self._early.extendleft(reversed(early))

    async def _next(self) -> ServerOperation:
        while not self._early:
            data = await self._stream.receive_some(_CHUNK)
            if not data:
                raise RefusedError("it has closed the connection")
            try:
                self._early.extend(self._parser.feed(data))
            except wire.WireError as error:
                raise RefusedError(str(error)) from None
        return self._early.popleft()

    # -- operations --------------------------------------------------------------------------------

    async def receive(self, is_alone: bool) -> list[ServerOperation]:
        """The next operations of the server; none at the end of the connection. ``is_alone`` says
        that no other task is ready to run. Always call this in the same task.

        Raises:
            OSError: the connection is broken.
            RefusedError: the server does not speak the protocol.
        """
        if self._early:
            early = list(self._early)
            self._early.clear()
            return early
        try:
            while data := await self._read(is_alone):
                if operations := list(self._parser.feed(data)):
                    return operations
        except trio.BrokenResourceError as error:
            raise OSError(str(error.__cause__ or "the connection is broken")) from None
        except (trio.ClosedResourceError, wire.WireError) as error:
            raise RefusedError(str(error)) from None
        return []

    async def _read(self, is_alone: bool) -> bytes | bytearray:
        """The next bytes; empty at the end of the connection."""
        if self._fd < 0:
            return await self._stream.receive_some(_CHUNK)
        if self._watch is None:
            self._watched = os.dup(self._fd)
            self._watch = SocketWatch(self._watched)
        watch = self._watch
        while True:
            # A read that does not fill its buffer has emptied the socket: another read would only
            # cost a system call.
            if self._may_have_more:
                await trio.lowlevel.checkpoint()
            elif not is_alone or not watch.poll():
                await watch.wait()
            try:
                data = os.read(self._fd, _CHUNK)
            except BlockingIOError:
                self._may_have_more = False
                continue
            self._may_have_more = len(data) == _CHUNK
            return data

    def send(self, data: bytes) -> bool:
        """Write bytes now if the socket takes them, else soon. False if they were dropped."""
        if not self._is_open:
            return False
        # Only if nothing waits: these bytes would otherwise go in the middle of an operation that
        # is partly written.
        if self._fd >= 0 and not self._waiting and not self._is_writing:
            try:
                sent = os.write(self._fd, data)
            except OSError:  # the writing task finds the error, too
                sent = 0
            if sent == len(data):
                return True
            data = data[sent:]
        # Not for the rest of a write: half an operation would break the protocol for all that
        # follows.
        elif self._size + len(data) > _BUFFER:
            return False
        self._waiting.append(data)
        self._size += len(data)
        if self._writer is not None:
            wake(self._writer)
        return True

    async def write(self) -> None:
        """Write the bytes that wait, until cancelled.

        Raises:
            OSError: the connection is broken.
        """
        self._writer = task = current_task()
        try:
            while True:
                while self._waiting:
                    data = self._take()
                    # send_all() may have written a part when it waits. A cancellation there leaves
                    # half an operation, so it ends the connection, too.
                    self._is_writing = True
                    await self._stream.send_all(data)
                    self._is_writing = False
                await park(task)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise OSError(str(error.__cause__ or "the connection is broken")) from None

    def _take(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while self._waiting and size < _JOIN:
            parts.append(part := self._waiting.popleft())
            size += len(part)
        self._size -= size
        return b"".join(parts) if len(parts) > 1 else parts[0]

    async def close(self) -> None:
        """Close the connection. The bytes that wait are dropped: the sessions send them again."""
        # First, so that no sender writes to a descriptor that is closed, and perhaps in use again.
        self._is_open = False
        self._waiting.clear()
        if self._watch is not None:
            self._watch.close()
            os.close(self._watched)
            self._watch = None
        await trio.aclose_forcefully(self._stream)

    def forked(self) -> None:
        """Close the copies of a forked child: the server would take the program for connected, and
        its name for taken, when it has ended.
        """
        self._is_open = False
        # Without a word to the loop, which would forget the socket of the parent.
        fd = -1 if self._socket is None else self._socket.detach()
        for copy in (fd, self._watched if self._watch is not None else -1):
            if copy >= 0:
                os.close(copy)


_connections: Final[WeakSet[Connection]] = WeakSet()


def _close_in_forked_child() -> None:
    for connection in tuple(_connections):
        connection.forked()


if hasattr(os, "register_at_fork"):  # pragma: no branch - Windows has no fork
    os.register_at_fork(after_in_child=_close_in_forked_child)
