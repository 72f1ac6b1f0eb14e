"""`WorldDatagrams`: the UDP sockets of a world. Each datagram travels on its own, so that slow
datagrams overtake each other; faults lose and double them.
"""

import errno
import os
import select
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Final

from trio.lowlevel import spawn_system_task

from ..history import History
from .end_socket import EndSocket

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["WorldDatagrams"]

Peer = tuple[str, int]
"""A host and a port."""
_LONGEST: Final = 65_507
"""Bytes of the longest datagram of UDP."""
_MOST: Final = 1000
"""Datagrams that wait for a reader; further datagrams are lost, as in an operating system."""
_GROUPS: Final = frozenset({socket.IP_ADD_MEMBERSHIP, socket.IPV6_JOIN_GROUP})
_TASK: Final = "world: a datagram"


class _DatagramSocket(EndSocket):
    """A UDP socket of a world. A byte of the socket pair stands for each datagram that waits."""

    def __init__(
        self,
        node: str,
        local: Peer,
        peer: Peer | None,
        send: "Callable[[_DatagramSocket, bytes, Peer], None]",
        give_way: Callable[[Callable[[], bool], float | None], object],
    ) -> None:
        near, far = socket.socketpair()
        super().__init__(near, far, node, local)
        self.peer = peer
        """The only peer of a client."""
        self._send = send
        self._give_way = give_way
        self._arrived: deque[tuple[bytes, Peer] | OSError] = deque()

    def getpeername(self) -> Peer:
        """The address of the only peer."""
        if self.peer is None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return self.peer

    def setsockopt(self, *args: object) -> None:
        """Set an option. There are no multicast groups in a world."""
        if args[0] != socket.SOL_SOCKET and args[1] in _GROUPS:
            raise OSError(errno.EOPNOTSUPP, "a world has no multicast groups")
        super().setsockopt(*args)

    def recvfrom(self, size: int, flags: int = 0, /) -> tuple[bytes, Peer | None]:
        """Take a datagram. A thread gives way until there is one."""
        if self.gettimeout() is None and not flags & socket.MSG_DONTWAIT:
            self._give_way(lambda: self.is_ready(select.POLLIN), None)
        if not super().recv(1, flags):
            return b"", None  # the socket was shut down
        arrived = self._arrived.popleft()
        if isinstance(arrived, OSError):
            raise arrived
        return arrived[0][:size], arrived[1]

    def recvmsg(
        self, _size: int, _facts: int = 0, _flags: int = 0, /
    ) -> tuple[bytes, list[tuple[int, int, bytes]], int, Peer]:
        """No network reports a datagram later: a client hears of it with its next read."""
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def send(self, data: "ReadableBuffer", _flags: int = 0, /) -> int:
        """Send a datagram to the only peer."""
        return self.sendto(data, 0, self.getpeername())

    def sendto(self, data: "ReadableBuffer", _flags: int, peer: Peer, /) -> int:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride] - always with flags here
        """Send a datagram."""
        sent = bytes(data)
        if len(sent) > _LONGEST:
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
        self._send(self, sent, peer)
        return len(sent)

    def arrive(self, arrived: tuple[bytes, Peer] | OSError) -> None:
        """Let a datagram, or the report of a lost one, wait for the reader."""
        if self.far is not None and len(self._arrived) < _MOST:
            self._arrived.append(arrived)
            self.far.send(b"!")

    def close(self) -> None:
        """Close it, with the side of the world."""
        super().close()
        far, self.far = self.far, None
        if far is not None:
            far.close()


class WorldDatagrams:
    """Opens the UDP sockets of a world, and carries their datagrams.

    Args:
        hold: waits as long as the faults of a node hold up what it sends and receives.
        random: the random numbers of a purpose.
    """

    def __init__(
        self,
        history: History,
        hold: Callable[[str, Random], Awaitable[None]],
        random: Callable[[str, int], Random],
        give_way: Callable[[Callable[[], bool], float | None], object],
    ) -> None:
        self._history = history
        self._hold = hold
        self._random = random
        self._give_way = give_way
        self._sockets: dict[Peer, _DatagramSocket] = {}
        self._numbers = count()
        self._lost: dict[str, float] = {}
        """The share of the datagrams of a node that are lost."""
        self._doubled: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._open())

    def _open(self) -> list[_DatagramSocket]:
        return [each for each in self._sockets.values() if each.fileno() >= 0]

    @property
    def names(self) -> list[str]:
        """The sockets that are open, each with its node."""
        return [
            f"a UDP socket of {each.node} at {each.local[0]}:{each.local[1]}"
            for each in self._open()
        ]

    def open(self, node: str, local: Peer, peer: Peer | None = None) -> socket.socket:
        """Open a socket; with a peer that of a client.

        Raises:
            OSError: another socket has the address.
        """
        found = self._sockets.get(local)
        if found is not None and found.fileno() >= 0:
            text = f"{os.strerror(errno.EADDRINUSE)}: {local[0]}:{local[1]}"
            raise OSError(errno.EADDRINUSE, text)
        made = _DatagramSocket(node, local, peer, self._send, self._give_way)
        self._sockets[local] = made
        return made

    def _send(self, source: _DatagramSocket, data: bytes, to: Peer) -> None:
        number = next(self._numbers)
        self._history.mix("datagram", number, source.local, to, data=data)
        spawn_system_task(
            self._carry, source, to, data, self._random("datagram", number), name=_TASK
        )

    async def _carry(self, source: _DatagramSocket, to: Peer, data: bytes, random: Random) -> None:
        target = self._sockets.get(to)
        nodes = [source.node] if target is None else [source.node, target.node]
        if self._is_drawn(self._lost, nodes, random):
            return
        for _ in range(1 + self._is_drawn(self._doubled, nodes, random)):
            for node in nodes:
                await self._hold(node, random)
            self._arrive(source, to, data)

    def _is_drawn(self, shares: dict[str, float], nodes: list[str], random: Random) -> bool:
        return any(random.random() < shares.get(node, 0.0) for node in nodes)

    def _arrive(self, source: _DatagramSocket, to: Peer, data: bytes) -> None:
        target = self._sockets.get(to)
        if target is None or target.fileno() < 0:
            if source.peer is not None and source.fileno() >= 0:
                refused = os.strerror(errno.ECONNREFUSED)
                source.arrive(ConnectionRefusedError(errno.ECONNREFUSED, refused))
        elif target.peer in (None, source.local):
            target.arrive((data, source.local))

    # -- faults ------------------------------------------------------------------------------------

    @contextmanager
    def losing(self, node: str, share: float) -> Iterator[None]:
        """Lose a share of the datagrams from and to a node inside the block."""
        self._lost[node] = share
        try:
            yield
        finally:
            del self._lost[node]

    @contextmanager
    def doubling(self, node: str, share: float) -> Iterator[None]:
        """Let a share of the datagrams from and to a node arrive twice inside the block."""
        self._doubled[node] = share
        try:
            yield
        finally:
            del self._doubled[node]

    def crash(self, node: str) -> None:
        """Close the sockets of a node that has crashed."""
        for each in self._open():
            if each.node == node:
                each.close()

    def bury(self) -> None:
        """Close all that is left, when the run is over."""
        for each in self._open():
            each.close()
        self._sockets.clear()
