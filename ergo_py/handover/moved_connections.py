"""`LeavingConnections`: the connections of a program that move to its successor, each with its
session. `ArrivingConnections`: the servers of the successor that take them.

A connection moves whole, or stays: it is paused between two reads, its session serves all that was
read and hands its state over, and then neither program touches the socket until the successor has
its turn. A connection that stays is served to its end by the old program.
"""

import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from .._core.kernel import Kernel
from .._core.metas.meta import Meta
from .._core.processes.process import Process
from .._core.vocabulary.envelopes import Priority
from .._core.vocabulary.errors import NotAllowedError, SpawnError
from .._core.vocabulary.ids import Alias
from .._core.vocabulary.reasons import Shutdown
from .._core.vocabulary.text import text_of
from ..meta.sockets.listener import Listener
from ..meta.sockets.messages import TCPClose, TCPSend
from ..meta.sockets.streams.connection import StreamConnection
from ..meta.sockets.streams.departure import Departure
from .channel import Line, Part

if TYPE_CHECKING:
    pass

__all__ = ["ArrivingConnections", "LeavingConnections"]

_LOOK: Final = 0.005
"""Seconds between two looks at a connection that is not ready."""
_LOOKS: Final = 50
"""Looks within which a connection has to be between two messages: all that are ready wait so long
for the others. Looks, not seconds: a program that gets no processor for a while loses only one.
"""
_START: Final = 1.0
"""Seconds within which a session has to take its state over: all connections wait so long."""
_STARTS: Final = 10.0
"""Seconds within which all sessions have to do so; later ones stay."""
_BUSY: Final = "busy"
_NO_DESCRIPTOR: Final = "no descriptor is left"
_RESERVE: Final = 16
"""Descriptors that a program keeps for the rest of its work: moved connections use no more."""


def _has_reserve(descriptor: int) -> bool:
    """Whether this program may open some more descriptors. Only a try tells."""
    copies = list[int]()
    try:
        for _ in range(_RESERVE):
            copies.append(os.dup(descriptor))
    except OSError:
        return False
    else:
        return True
    finally:
        for copy in copies:
            os.close(copy)


def _listeners(kernel: Kernel) -> list[Listener]:
    return [
        meta.behaviour
        for meta in kernel.router.registry.aliases.values()
        if isinstance(meta, Meta) and isinstance(meta.behaviour, Listener)
    ]


async def _cancel_later(scope: trio.CancelScope) -> None:
    for _ in range(_LOOKS):
        await trio.sleep(_LOOK)
    scope.cancel()


class _Moving(NamedTuple):
    """A connection that is ready to leave."""

    connection: StreamConnection
    departure: Departure
    session: Process
    copy: int
    """A copy of the descriptor, which stays valid if the connection ends meanwhile."""
    part: Part


class LeavingConnections:
    """The connections that move to the successor.

    Args:
        kernel: the kernel of this program.
        give: suspends a session, and returns its encoded state.
        resume: lets a suspended session go on.
    """

    def __init__(
        self,
        kernel: Kernel,
        give: Callable[[int, Process], Awaitable[bytes]],
        resume: Callable[[Process], Awaitable[None]],
    ) -> None:
        self._kernel = kernel
        self._give = give
        self._resume = resume
        self._moving: dict[int, _Moving] = {}
        self._dead_end: tuple[socket.socket, ...] = ()
        """Sockets without a peer: the connections that have moved end with a copy of the first.
        They are made before the move, which must not fail for want of a descriptor.
        """
        self.staying: Counter[str] = Counter()
        """How many connections stay, by the cause."""

    @property
    def moved(self) -> int:
        """How many connections are ready to move, or have moved."""
        return len(self._moving)

    async def suspend(self, servers: Iterable[object]) -> list[Part]:
        """Suspend the connections of the servers that the successor takes. Returns the parts of the
        conversation that hand them over.
        """
        taken, number = set(map(str, servers)), 0
        with suppress(OSError):  # no descriptor is left: all connections stay
            self._dead_end = socket.socketpair()
        async with trio.open_nursery() as limit:
            async with trio.open_nursery() as nursery:
                limit.start_soon(_cancel_later, nursery.cancel_scope)
                for listener in _listeners(self._kernel):
                    why = self._why_all_stay(listener, taken)
                    for connection in listener.open_connections():
                        number += 1
                        if why:
                            self.staying[why] += 1
                        else:
                            nursery.start_soon(self._collect, number, listener, connection)
            limit.cancel_scope.cancel()
        return [moving.part for moving in self._moving.values()]

    def _why_all_stay(self, listener: Listener, taken: set[str]) -> str:
        if why := listener.why_connections_stay():
            return why
        if not self._dead_end:
            return _NO_DESCRIPTOR
        return "" if listener.socket_name in taken else "not taken by the next version"

    async def _collect(self, number: int, listener: Listener, connection: StreamConnection) -> None:
        """Pause a connection and suspend its session, or let it stay."""
        session, departure = connection.session, connection.departure()
        if session is not None and "hand_over" not in session.callbacks.defined:
            self.staying["sessions without hand_over"] += 1
            return
        if session is None or departure is None or session.name is not None:
            self.staying[_BUSY] += 1
            return
        why = _BUSY
        try:
            departure.pause()
            while not departure.is_paused():  # noqa: ASYNC110 - many parts would have to tell
                await trio.sleep(_LOOK)
            try:
                state = await self._give(number, session)
            except Exception as error:  # hand_over has raised, or the codec refuses: any error
                why = text_of(error)
                return
            while (found := departure.collect()) is None:  # noqa: ASYNC110 - as above
                await trio.sleep(_LOOK)
            unread, unsent = found
            if not _has_reserve(departure.descriptor):
                why = _NO_DESCRIPTOR
                return
            copy = os.dup(departure.descriptor)
            line = {
                "connection": number,
                "server": listener.socket_name,
                "socket": os.fstat(copy).st_ino,
                "unread": len(unread),
                "unsent": len(unsent),
            }
            part = Part(line, unread + unsent + state, (copy,))
            self._moving[number] = _Moving(connection, departure, session, copy, part)
        finally:
            if number not in self._moving:
                self.staying[why] += 1
                await self._stay(departure, session)

    async def _stay(self, departure: Departure, session: Process) -> None:
        departure.go_on()
        with trio.CancelScope(shield=True):
            await self._resume(session)

    async def keep(self, numbers: Iterable[object]) -> None:
        """Let these connections stay: the successor cannot serve them."""
        for number in numbers:
            if isinstance(number, int) and number in self._moving:
                self.staying["refused by the next version"] += 1
                await self._go_on(number)

    async def resume(self) -> None:
        """Let all connections stay: the successor has not taken over."""
        for number in list(self._moving):
            await self._go_on(number)
        self._close_dead_end()

    def _close_dead_end(self) -> None:
        for sock in self._dead_end:
            sock.close()

    async def _go_on(self, number: int) -> None:
        moving = self._moving.pop(number)
        os.close(moving.copy)
        await self._stay(moving.departure, moving.session)

    def leave(self) -> list[Part]:
        """Let go of the sockets: the successor serves them. Returns the parts of the conversation
        that forward what processes have sent to the connections meanwhile.
        """
        parts: list[Part] = []
        for number, moving in self._moving.items():
            late, is_closing = moving.departure.leave(moving.connection, self._dead_end[0])
            os.close(moving.copy)
            if late or is_closing:
                parts.append(Part({"late": number, "closes": is_closing}, late))
        self._close_dead_end()
        return parts

    def sessions(self) -> dict[str | int, Process]:
        """The sessions by the numbers of their connections."""
        return {number: moving.session for number, moving in self._moving.items()}


class _Arrived(NamedTuple):
    """A connection whose session has its state."""

    listener: Listener
    session: Process
    sock: int
    unread: bytes
    unsent: bytes


class ArrivingConnections:
    """The connections that come from the predecessor.

    Args:
        kernel: the kernel of this program.
        take: gives a session its encoded state.
    """

    def __init__(self, kernel: Kernel, take: Callable[[Process, bytes], Awaitable[object]]) -> None:
        self._kernel = kernel
        self._take = take
        self._arrived: dict[int, _Arrived] = {}
        self._begun: dict[int, Alias] = {}
        """The connections that this program serves."""

    def servers(self) -> list[str]:
        """The names of the servers that take connections."""
        return sorted(self._takers())

    def _takers(self) -> dict[str, Listener]:
        return {
            listener.socket_name: listener
            for listener in _listeners(self._kernel)
            if not listener.why_connections_stay() and self._may_take(listener)
        }

    def _may_take(self, listener: Listener) -> bool:
        made = listener.session_class
        return made is None or "take_over" in self._kernel.callbacks_of(made).defined

    async def prepare(self, lines: Iterable[Line], descriptors: Iterable[int]) -> list[int]:
        """Start a session for each connection, and give it its state. Returns the numbers of the
        connections that this program cannot serve.
        """
        takers, staying, end = self._takers(), list[int](), trio.current_time() + _STARTS
        # By inode: the system may have dropped descriptors that were too many for this program.
        sockets = {os.fstat(descriptor).st_ino: descriptor for descriptor in descriptors}
        for line in lines:
            number = int(line["connection"])
            sock = sockets.pop(line["socket"], None)
            listener = takers.get(str(line["server"]))
            if sock is None:
                staying.append(number)
            elif (
                listener is None
                or trio.current_time() >= end
                or not _has_reserve(sock)
                or not await self._make(number, listener, sock, line)
            ):
                os.close(sock)
                staying.append(number)
        for sock in sockets.values():
            os.close(sock)
        return staying

    async def _make(self, number: int, listener: Listener, sock: int, line: Line) -> bool:
        body, read = line["body"], line["unread"]
        sent = read + line["unsent"]
        session: Process | None = None
        try:
            with trio.fail_after(_START):
                session = await listener.make_session()
                if "take_over" not in session.callbacks.defined:
                    raise NotAllowedError("its class has no take_over")
                await self._take(session, body[sent:])
        except trio.TooSlowError:
            self._warn(f"it was not ready within {_START:g} s")
            if session is not None:
                session.kill()  # it takes no exit while it hangs
            return False
        except Exception as error:  # the session has ended, or take_over has raised: any error
            self._warn(text_of(error))
            if session is not None:
                session.ask_to_exit(self._kernel.pid, Shutdown())
            return False
        self._arrived[number] = _Arrived(listener, session, sock, body[:read], body[read:sent])
        return True

    def _warn(self, error: str) -> None:
        self._kernel.logger.warning(
            "a connection stays with the program before: its session cannot take over",
            error=error,
        )

    def begin(self) -> None:
        """Serve the connections: this program has its turn."""
        for number, arrived in self._arrived.items():
            sock = socket.socket(fileno=arrived.sock)
            try:
                self._begun[number] = arrived.listener.go_on_with(
                    arrived.session, sock, arrived.unread, arrived.unsent
                )
            except (SpawnError, OSError) as error:  # such as of a peer that has left meanwhile
                sock.close()
                arrived.session.ask_to_exit(self._kernel.pid, Shutdown())
                self._kernel.logger.warning("a moved connection has ended", error=text_of(error))

    def forget(self) -> None:
        """Close the sockets, which the predecessor serves on."""
        arrived, self._arrived = self._arrived, {}
        for one in arrived.values():
            os.close(one.sock)

    def write_late(self, line: Line) -> None:
        """Write the bytes that processes of the old program have sent meanwhile."""
        alias = self._begun.get(line["late"])
        if alias is not None:
            send = self._kernel.router.send
            if line["body"]:
                send(self._kernel.pid, alias, TCPSend(line["body"]), Priority.NORMAL)
            if line.get("closes"):
                send(self._kernel.pid, alias, TCPClose(), Priority.NORMAL)

    def sessions(self) -> Mapping[int, Process]:
        """The sessions by the numbers of their connections."""
        return {number: arrived.session for number, arrived in self._arrived.items()}
