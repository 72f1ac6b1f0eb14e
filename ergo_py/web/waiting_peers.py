"""`WaitingPeers`: accepted sockets whose first request has not come.

A connection with its reader, handler and protocol costs a hundred objects and a task. Peers that
begin a request and never end it would cost the server that much each, and all other peers the time
to make them, to end them, and to collect their garbage. So a connection is made when the first head
is there, or when it is clear that it can be none. Until then a peer is a socket in the poller, and
a place in a queue of time limits.
"""

import socket
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Final, Generic, Protocol, TypeVar

from .._core.runtime.time_slices import SLICE
from .._core.tables.pending_calls import Deadline
from .http.exchange import unavailable
from .messages.responses import HTTPError, Response, response_head
from .parsing.http1 import late_head, may_become_head
from .site import Site

__all__ = ["WaitingPeers"]

C = TypeVar("C")
"""The class of connections."""

_PIECE: Final = 4 * 1024
"""Bytes to read of a peer that has sent no whole head: most heads are shorter."""
_AT_ONCE: Final = 8
"""Time limits that may pass in a turn of the loop: thousands of peers that came together are
refused together, and other work must get its turn between them.
"""


class Watcher(Protocol):
    """The poller of the server."""

    def add(self, sock: socket.socket, readable: Callable[[], bool]) -> object:
        """Call ``readable`` whenever the socket is readable, until it returns False."""
        ...

    def drop(self, sock: socket.socket) -> None:
        """Watch a socket no longer."""
        ...


class WaitingPeer:
    """A peer whose first head is not complete, or that was refused."""

    __slots__ = ("address", "data", "queue", "sent", "since", "sock")

    def __init__(self, sock: socket.socket, address: object, since: float) -> None:
        self.sock: Final = sock
        self.address: object = address
        self.data: bytes = b""
        """The beginning of its head."""
        self.since: float = since
        """When the peer came, or its head began."""
        self.sent: int = 0
        """Bytes of its refusal."""
        self.queue: OrderedDict[WaitingPeer, float] | None = None
        """The queue of its time limit."""


class WaitingPeers(Generic[C]):
    """The peers of a server that have no connection yet. Everything here happens on the loop."""

    def __init__(
        self,
        site: Site,
        watcher: Watcher,
        linger: float,
        *,
        make: Callable[[socket.socket, object, bytes, float | None], C],
        begin: Callable[[C, socket.socket], None],
        ended: Callable[[int, int], None],
    ) -> None:
        """``make`` makes a connection of a socket, of the address of its peer and of the bytes that
        were read; the last argument says when a head began that is not complete. ``begin`` begins
        the connection. ``ended`` hears of a peer that has ended without a connection, with the
        bytes received and sent.
        """
        self._site = site
        self._watcher = watcher
        self._linger = linger
        self._make = make
        self._begin = begin
        self._ended = ended
        options = site.options
        self._silent_time = min(options.head_timeout, options.idle_timeout)
        """Seconds for the first byte of the first request."""
        # Each queue has a single duration, so that its first time limit passes first.
        self._silent: OrderedDict[WaitingPeer, float] = OrderedDict()
        self._in_head: OrderedDict[WaitingPeer, float] = OrderedDict()
        self._refused: OrderedDict[WaitingPeer, float] = OrderedDict()
        self._most = self._end_at = inf
        """How long a refused peer may stay, and when each other peer ends: the server drains."""
        self._watch: Deadline | None = None
        self._at = inf
        """When the next time limit is checked."""

    def __len__(self) -> int:
        return len(self._silent) + len(self._in_head) + len(self._refused)

    def admit(self, accepted: tuple[socket.socket, object]) -> None:
        """Wait for the first head of an accepted socket, which comes with the address of its
        peer.
        """
        sock, address = accepted
        sock.setblocking(False)
        peer = WaitingPeer(sock, address, self._site.now())
        self._move(peer, self._silent, self._silent_time)
        # Most peers speak first, and their bytes came with the connection.
        if self._read(peer):
            self._watcher.add(sock, partial(self._read, peer))

    def _read(self, peer: WaitingPeer) -> bool:
        """Read once. Returns whether to keep watching the socket."""
        try:
            data = peer.sock.recv(_PIECE)
        except BlockingIOError:
            return True
        except OSError:  # the peer has left
            data = b""
        if not data:
            self._end(peer)
            return False
        if peer.queue is self._refused:
            return True
        seen, peer.data = len(peer.data), peer.data + data
        if may_become_head(peer.data, seen):
            if not seen:
                peer.since = self._site.now()
                self._move(peer, self._in_head, self._site.options.head_timeout)
            return True
        assert peer.queue is not None
        del peer.queue[peer]
        # The connection goes on with the watch of the socket, or the poller ends the watch.
        since = None if b"\r\n\r\n" in peer.data else peer.since
        self._begin(self._make(peer.sock, peer.address, peer.data, since), peer.sock)
        return False

    def end_within(self, seconds: float) -> None:
        """The server drains: give the peers so many seconds at most, since their first requests may
        be on the way. With infinity, later peers have their usual time.
        """
        self._end_at = latest = self._site.now() + seconds
        self._most = seconds
        for queue in (self._silent, self._in_head):
            for peer, moment in tuple(queue.items()):
                if moment > latest:
                    self._move(peer, queue, seconds)

    def end_all(self) -> None:
        """The server accepts no further requests."""
        for peer in tuple(self._in_head):
            self._refuse(peer, unavailable())
        for queue in (self._silent, self._in_head, self._refused):
            for peer in tuple(queue):
                self._end(peer)
        if self._watch is not None:
            self._watch.abandon()
            self._watch, self._at = None, inf  # the server may accept again later

    @property
    def oldest(self) -> float | None:
        """Since when the peer waits that has to give way first; None if there is no peer."""
        peer = self._find_oldest()
        return None if peer is None else peer.since

    def _find_oldest(self) -> WaitingPeer | None:
        """A refused peer; else the peer that has been without a whole head for longest."""
        if self._refused:
            return next(iter(self._refused))
        first = [next(iter(queue)) for queue in (self._silent, self._in_head) if queue]
        return min(first, key=lambda peer: peer.since, default=None)

    def end_oldest(self) -> None:
        """End the peer that has to give way first. A peer that has begun a head is told that the
        server is full.
        """
        peer = self._find_oldest()
        assert peer is not None
        if peer.queue is self._in_head:
            self._refuse(peer, unavailable())
        if peer.queue is not None:
            self._end(peer)

    # -- the end of a peer -------------------------------------------------------------------------

    def _refuse(self, peer: WaitingPeer, response: Response) -> None:
        site = self._site
        head = response_head(response, True, False)
        site.statuses[response.status // 100] += 1
        if site.options.access_log:
            site.log_access(None, response.status, len(response.body), peer.since)
        try:
            # A few hundred bytes always fit into a buffer that is empty.
            peer.sent = peer.sock.send(head + response.body)
            peer.sock.shutdown(socket.SHUT_WR)
        except OSError:  # the peer has left
            self._end(peer)
            return
        # To close before the peer does may destroy the response on its way.
        self._move(peer, self._refused, min(self._linger, self._most))

    def _end(self, peer: WaitingPeer) -> None:
        self._remove(peer)
        peer.sock.close()
        self._ended(len(peer.data), peer.sent)

    def _remove(self, peer: WaitingPeer) -> None:
        self._watcher.drop(peer.sock)
        if peer.queue is not None:
            del peer.queue[peer]
            peer.queue = None

    # -- time --------------------------------------------------------------------------------------

    def _move(
        self, peer: WaitingPeer, queue: OrderedDict[WaitingPeer, float], seconds: float
    ) -> None:
        if peer.queue is not None:
            del peer.queue[peer]
        peer.queue = queue
        moment = self._site.now() + seconds
        if queue is not self._refused:
            moment = min(moment, self._end_at)
        queue[peer] = moment
        if moment < self._at:
            self._check_by(moment)

    def _check_by(self, moment: float) -> None:
        """Check the time limits at ``moment``, which is earlier than the next check."""
        if self._watch is not None:
            self._watch.abandon()
        self._watch, self._at = Deadline(self._check), moment
        self._site.clock.arm_call(self._watch, max(SLICE, moment - self._site.now()))

    def _check(self) -> None:
        self._watch, self._at = None, inf
        now, left = self._site.now(), _AT_ONCE
        for queue in (self._refused, self._silent, self._in_head):
            while queue:
                peer, moment = next(iter(queue.items()))
                if moment > now or not left:
                    if moment < self._at:
                        self._check_by(moment)
                    break
                left -= 1
                if queue is self._in_head and self._end_at < inf:
                    self._refuse(peer, unavailable())
                elif queue is self._in_head:
                    error = late_head(self._site.options.head_timeout)
                    self._refuse(peer, HTTPError(error.status, error.detail).response)
                else:
                    self._end(peer)
