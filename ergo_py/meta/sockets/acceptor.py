"""`Acceptor`: the reader of a server. It accepts the connections that wait, in a thread or in a
task.
"""

import errno
import select
import socket
from collections import deque
from collections.abc import Callable, Sized
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final

import trio
from trio.lowlevel import wait_readable

from ..._core import sources
from ..._core.runtime.bridge import Parker
from ..._core.vocabulary.errors import NodeStoppedError
from .messages import Address, Endpoint
from .socket_setup import OUT_OF_RESOURCES, describe, drop_new_peers

if TYPE_CHECKING:
    from .listener import Listener

__all__ = ["Accepted", "Acceptor"]

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
"""Seconds for the handshakes under way when a server drains: most round trips take less."""
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


def _is_loopback(local: Address) -> bool:
    """Whether each handshake is complete at once."""
    return isinstance(local, Endpoint) and (local.host == "::1" or local.host.startswith("127."))


class Acceptor:
    """Accepts connections while the server has room for them, and gives them to the server."""

    __slots__ = ("_in_turn", "_pause", "_rest", "_server", "errors", "is_quiet", "turned_away")

    def __init__(self, server: "Listener", in_turn: int | None) -> None:
        self._server = server
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
            pause = self._accept(taken.append, taken, server._births.places)
            if taken and not self._adopt_on_loop(taken):
                return
            if pause:
                server._wait.in_thread(lambda: False, pause)

    def _may_accept_in_thread(self) -> bool:
        if self._server._closing.is_draining:
            with suppress(NodeStoppedError):
                self._server._meta.router.bridge.post(self.is_quiet.set)
        return self._server._may_accept()

    async def run_in_task(self) -> None:
        """Accept connections until this task is cancelled."""
        server = self._server
        # The poller has no context of its own: whatever makes connections sees the server's.
        accept_some = partial(copy_context().run, self._accept_some)
        while True:
            if not server._may_accept():
                await server._wait.in_task(server._may_accept)
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
        self._rest = self._accept(self._server._adopt, (), self._in_turn, end)
        return not self._rest and self._server._may_accept()

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
        places = server._births.places
        try:
            for number in range(1, most + 1):
                if not server._may_accept(len(taken)):
                    break
                sock, address = server._socket.accept()
                self._pause = _BACK_OFF[0]
                if server._capacity.most is None or server._has_place(len(taken)):
                    take((sock, address))
                    if number >= _SLOW_IN_TURN and (
                        sources.slice_clock() >= end or server._births.places < places
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

    async def adopt_queue(self, shut_down: Callable[[], None]) -> None:
        """Adopt all connections that wait in the system, and shut the socket down.

        A TCP socket that is shut down resets those that wait, and those whose handshake is not
        complete. So new connections are dropped first, then those that wait are accepted. A Unix
        socket keeps those that wait, and refuses others.
        """
        server = self._server
        waiting: deque[Accepted] = deque()
        if server._socket.family == socket.AF_UNIX:
            shut_down()
        else:
            drop_new_peers(server._socket)
            if not _is_loopback(server._local):
                await trio.sleep(_HANDSHAKE)
        try:
            while True:
                waiting.append(server._socket.accept())
        except OSError:  # no more are waiting, or the system is out of descriptors
            shut_down()
        try:
            while waiting:
                for _ in range(min(_SLOW_IN_TURN, len(waiting))):
                    server._adopt(waiting.popleft())
                await trio.lowlevel.checkpoint()
        finally:
            for sock, _ in waiting:
                sock.close()

    def pause_after(self, error: OSError) -> float:
        """Seconds to pause after a failed ``accept``. Raises an error that ends the server."""
        server = self._server
        if server.stopping or server._closing.has_begun:
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
                        server._adopt(waiting.popleft())
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
