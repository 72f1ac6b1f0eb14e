"""`WorldSockets`: the sockets of a world. The bytes of a stream pass through a task of the world,
which delays, tears, stalls and resets them; `WorldDatagrams` carries datagrams.

Each end of a connection is a real socket, with a descriptor, so that all code of ergo_py reads and
waits as it does in production. Its other side belongs to the world.
"""

import errno
import os
import select
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Final

import trio
from trio.lowlevel import spawn_system_task, wait_readable, wait_writable

from ....meta.sockets.messages import Address, Endpoint
from ..history import History
from ..tasks import TaskOwners
from .datagrams import WorldDatagrams
from .end_socket import EndSocket
from .threads import WorldThreads

__all__ = ["WorldSocket", "WorldSockets"]

_ANY: Final = ("", "0.0.0.0", "::")
_LOOPBACK: Final = {"localhost": "127.0.0.1", "::1": "127.0.0.1"}
_FIRST_PORT: Final = 49_152
_READ: Final = 65_536
_PIECE: Final = 7
"""The longest piece, in bytes, of a torn stream."""
_TEARS: Final = 40
"""Pieces into which a read is torn at most."""
_TASK: Final = "world: bytes of a socket"


class WorldSocket(EndSocket):
    """An end of a connection in a world."""

    def __init__(
        self,
        raw: socket.socket,
        far: socket.socket,
        node: str,
        local: Any,
        peer: Any,
        give_way: Callable[[Callable[[], bool], float | None], object],
    ) -> None:
        super().__init__(raw, far, node, local)
        self._peer = peer
        self._give_way = give_way
        self.is_reset = False
        """The connection was reset: reads and writes raise."""

    def getpeername(self) -> Any:
        """The address of the other end."""
        return self._peer

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Read. A thread gives way until there are bytes."""
        if self.gettimeout() is None and not flags & socket.MSG_DONTWAIT:
            self._give_way(lambda: self.is_ready(select.POLLIN), None)
        self._check()
        return super().recv(size, flags)

    def send(self, data: Any, flags: int = 0, /) -> int:
        """Write. A thread gives way until there is room."""
        if self.gettimeout() is None and not flags & socket.MSG_DONTWAIT:
            self._give_way(lambda: self.is_ready(select.POLLOUT), None)
        self._check()
        return super().send(data, flags)

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        """Write all. A thread gives way until there is room."""
        view = memoryview(data)
        while view:
            view = view[self.send(view, flags) :]

    def _check(self) -> None:
        if self.is_reset:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))


class _ListeningSocket(EndSocket):
    """A socket that listens in a world."""

    def __init__(self, raw: socket.socket, far: socket.socket, node: str, local: Any) -> None:
        super().__init__(raw, far, node, local)
        self._waiting: deque[WorldSocket] = deque()
        self._is_shut = False

    @property
    def is_open(self) -> bool:
        """Whether it takes connections."""
        return not self._is_shut and self.fileno() >= 0

    def offer(self, end: WorldSocket) -> None:
        """Let a connection wait until the server accepts it."""
        assert self.far is not None
        self._waiting.append(end)
        self.far.send(b"!")

    def listen(self, _queue: int = 0, /) -> None:
        """Do nothing: it listens from the beginning."""

    def accept(self) -> tuple[socket.socket, Any]:
        """Take a connection that waits."""
        if not super().recv(1, socket.MSG_DONTWAIT):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        end = self._waiting.popleft()
        return end, end.getpeername()

    def shutdown(self, how: int, /) -> None:
        """Take no further connections."""
        self._is_shut = True
        super().shutdown(how)

    def close(self) -> None:
        """Close it, and all connections that wait."""
        super().close()
        for end in self._waiting:
            end.close()
        self._waiting.clear()
        self.close_far()


class _Faults:
    """The faults of the sockets of a node."""

    def __init__(self) -> None:
        self.stalls = 0
        self.is_flowing = trio.Event()
        self.slow = 0.0
        """The longest time, in seconds, that bytes take."""
        self.torn = False


class _Connection:
    """A connection between two ends."""

    def __init__(self, number: int, ends: tuple[WorldSocket, WorldSocket], random: Random) -> None:
        self.number = number
        self.ends = ends
        self.random = random
        self.over = 0
        """The directions that have ended."""

    @property
    def nodes(self) -> tuple[str, str]:
        """The nodes of both ends."""
        return self.ends[0].node, self.ends[1].node

    def reset(self, *, besides: str | None = None) -> None:
        """Reset it, as a lost route or a killed program does."""
        for end in self.ends:
            if end.node != besides:
                end.is_reset = True
            end.close_far()


class WorldSockets:
    """Opens the sockets of a world, and carries their bytes."""

    def __init__(
        self, seed: int, owners: TaskOwners, history: History, threads: WorldThreads
    ) -> None:
        self._seed = seed
        self._owners = owners
        self._history = history
        self._threads = threads
        self._listeners: dict[Address, _ListeningSocket] = {}
        self._connections: dict[int, _Connection] = {}
        self._faults: dict[str, _Faults] = {}
        self._numbers = 0
        self.datagrams: WorldDatagrams = WorldDatagrams(
            history, self._pass, self._random, threads.give_way
        )

    def __len__(self) -> int:
        return len(self._connections) + len(self._listeners) + len(self.datagrams)

    @property
    def names(self) -> list[str]:
        """The sockets that are open, each with its node."""
        listening = [
            f"a socket of {each.node} that listens at {_text(each.local)}"
            for each in self._listeners.values()
            if each.fileno() >= 0
        ]
        return [*listening, *self.datagrams.names] + [
            f"a socket of {end.node} to {_text(end.getpeername())}"
            for each in self._connections.values()
            for end in each.ends
            if end.fileno() >= 0
        ]

    # -- the source of sockets ---------------------------------------------------------------------

    async def listen(
        self, address: Address, kind: int, _open_socket: Callable[[], Awaitable[socket.socket]]
    ) -> socket.socket:
        """Listen at an address of the world.

        Raises:
            OSError: another socket listens there.
        """
        await trio.lowlevel.checkpoint()
        node = self._owners.of_present_task()
        if isinstance(address, Endpoint):
            host = _LOOPBACK.get(address.host, address.host)
            address = Endpoint(host, address.port or self._next_number(_FIRST_PORT))
            if kind == socket.SOCK_DGRAM:
                return self.datagrams.open(node, _endpoint_key(address))
        found = self._listeners.get(_key(address))
        if found is not None and found.is_open:
            raise OSError(errno.EADDRINUSE, f"{os.strerror(errno.EADDRINUSE)}: {address}")
        near, far = socket.socketpair()
        made = _ListeningSocket(near, far, node, _raw(address))
        self._listeners[_key(address)] = made
        return made

    async def connect(
        self, address: Address, kind: int, _open_socket: Callable[[], Awaitable[socket.socket]]
    ) -> socket.socket:
        """Connect to a socket that listens in the world; for datagrams it need not listen yet.

        Raises:
            OSError: no socket listens there.
        """
        node = self._owners.of_present_task()
        if isinstance(address, Endpoint) and kind == socket.SOCK_DGRAM:
            await trio.lowlevel.checkpoint()
            local = "127.0.0.1", self._next_number(_FIRST_PORT)
            return self.datagrams.open(node, local, _endpoint_key(address))
        await self._pass(node, self._random("connect", self._next_number(0)))
        listener = self._listeners.get(_key(address))
        if listener is None or not listener.is_open:
            raise ConnectionRefusedError(
                errno.ECONNREFUSED, f"{os.strerror(errno.ECONNREFUSED)}: {address}"
            )
        return self._join(node, address, listener)

    def _join(self, node: str, address: Address, listener: _ListeningSocket) -> WorldSocket:
        number = self._next_number(0)
        local: Any = ("127.0.0.1", _FIRST_PORT + number) if isinstance(address, Endpoint) else ""
        remote = _raw(address)
        ends = []
        for owner, here, there in (
            (node, local, remote),
            (listener.node, remote, local),
        ):
            near, far = socket.socketpair()
            ends.append(WorldSocket(near, far, owner, here, there, self._threads.give_way))
        client, server = ends
        made = _Connection(number, (client, server), self._random("bytes", number))
        self._connections[number] = made
        listener.offer(server)
        for source, sink in ((client, server), (server, client)):
            spawn_system_task(self._carry, made, source, sink, name=_TASK)
        return client

    # -- the bytes ---------------------------------------------------------------------------------

    async def _carry(self, made: _Connection, source: WorldSocket, sink: WorldSocket) -> None:
        """Carry the bytes of a direction until its end."""
        try:
            while (far := source.far) is not None:
                await wait_readable(far)
                data = far.recv(_READ)  # raises if it was closed in the same pass
                self._history.mix("bytes", made.number, source is made.ends[0], data=data)
                for piece in self._pieces(made, data):
                    for node in made.nodes:
                        await self._pass(node, made.random)
                    await _send_all(sink, piece)
                if not data:
                    for node in made.nodes:
                        await self._pass(node, made.random)
                    if sink.far is not None:
                        sink.far.shutdown(socket.SHUT_WR)
                    break
        except (OSError, trio.ClosedResourceError):
            # An end was closed with bytes on their way, or the connection was reset.
            made.reset()
        made.over += 1
        if made.over == 2:
            for end in made.ends:
                end.close_far()
            self._connections.pop(made.number, None)

    def _pieces(self, made: _Connection, data: bytes) -> Iterator[bytes]:
        if not any(self._of(node).torn for node in made.nodes):
            if data:
                yield data
            return
        for _ in range(_TEARS):
            size = made.random.randint(1, _PIECE)
            if data:
                yield data[:size]
            data = data[size:]
        if data:
            yield data

    async def _pass(self, node: str, random: Random) -> None:
        """Wait as long as the faults of a node hold bytes up."""
        faults = self._of(node)
        if faults.slow:
            await trio.sleep(random.uniform(0.0, faults.slow))
        elif faults.torn:
            await trio.sleep(random.choice((0.0, 0.001)))
        while faults.stalls:
            await faults.is_flowing.wait()
        await trio.lowlevel.checkpoint()

    # -- faults ------------------------------------------------------------------------------------

    def _of(self, node: str) -> _Faults:
        return self._faults.setdefault(node, _Faults())

    @contextmanager
    def stalled(self, node: str) -> Iterator[None]:
        """Let no byte pass to or from a node inside the block."""
        faults = self._of(node)
        faults.stalls += 1
        try:
            yield
        finally:
            faults.stalls -= 1
            if not faults.stalls:
                faults.is_flowing.set()
                faults.is_flowing = trio.Event()

    @contextmanager
    def slowed(self, node: str, seconds: float) -> Iterator[None]:
        """Let bytes to and from a node take up to some seconds inside the block."""
        self._of(node).slow = seconds
        try:
            yield
        finally:
            self._of(node).slow = 0.0

    @contextmanager
    def torn(self, node: str) -> Iterator[None]:
        """Let bytes to and from a node arrive in small pieces inside the block."""
        self._of(node).torn = True
        try:
            yield
        finally:
            self._of(node).torn = False

    def reset(self, node: str) -> None:
        """Reset all connections of a node."""
        for made in list(self._connections.values()):
            if node in made.nodes:
                made.reset()

    def crash(self, node: str) -> None:
        """Close the sockets of a node that has crashed. Its peers see a reset."""
        self.datagrams.crash(node)
        for address, listener in list(self._listeners.items()):
            if listener.node == node:
                listener.close()
                del self._listeners[address]
        for made in list(self._connections.values()):
            if node in made.nodes:
                made.reset()
                for end in made.ends:
                    if end.node == node:
                        end.close()

    def bury(self) -> None:
        """Close all that is left, when the run is over."""
        self.datagrams.bury()
        for listener in self._listeners.values():
            listener.close()
        for made in self._connections.values():
            for end in made.ends:
                end.close_far()
        self._listeners.clear()
        self._connections.clear()

    def _next_number(self, first: int) -> int:
        self._numbers += 1
        return first + self._numbers

    def _random(self, purpose: str, number: int) -> Random:
        return Random(repr((self._seed, purpose, number)))


async def _send_all(sink: WorldSocket, data: bytes) -> None:
    view = memoryview(data)
    while view:
        if sink.far is None:
            raise trio.ClosedResourceError
        try:
            view = view[sink.far.send(view, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            await wait_writable(sink.far)


def _key(address: Address) -> Address:
    """The address in the table of listeners: the nodes of a world share a machine."""
    return Endpoint(*_endpoint_key(address)) if isinstance(address, Endpoint) else address


def _endpoint_key(address: Endpoint) -> tuple[str, int]:
    host = _LOOPBACK.get(address.host, address.host)
    return "127.0.0.1" if host in _ANY else host, address.port


def _raw(address: Address) -> Any:
    """The address as the module ``socket`` gives it."""
    return (address.host, address.port) if isinstance(address, Endpoint) else address


def _text(address: Any) -> str:
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address)
