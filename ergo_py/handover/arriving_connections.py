"""`ArrivingConnections`: the connections that a program takes from its predecessor.

The program starts the sessions of a batch, takes the turn of the batch, answers, and serves. Before
its answer it does not touch the sockets, which the predecessor may serve on
(`leaving_connections`): if this program ends without an answer, no byte is lost.
"""

import os
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

import trio

from .._core.kernel import Kernel
from .._core.processes.process import Process
from .._core.tables.pending_calls import Caller
from .._core.vocabulary.envelopes import LOOK, Lane
from .._core.vocabulary.errors import NotAllowedError, SpawnError
from .._core.vocabulary.ids import PID
from .._core.vocabulary.reasons import Shutdown
from .._core.vocabulary.text import text_of
from ..meta.sockets.listener import Listener, listeners_of
from ..meta.sockets.streams.connection import StreamConnection
from .channel import Channel, Line, take_turn
from .collector import without_collections

__all__ = ["ArrivingConnections", "Described", "read_batch"]

_START: Final = 1.0
"""Seconds that the ``init`` of a session has; and again all sessions of a batch for ``take_over``,
from the last of their starts on.
"""
_STARTS: Final = 2.0
"""Seconds for the starts of a batch, one after the other; the connections of later ones stay."""
_LATE_INIT: Final = f"its init did not end within {_START:g} s"
_LATE: Final = f"its take_over did not end within {_START:g} s after the last start of its batch"
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


class Described(NamedTuple):
    """A connection of a batch, as the predecessor describes it."""

    number: int
    server: str
    inode: int
    unread: bytes
    unsent: bytes
    state: bytes
    protocol: list[object]
    """The facts of a connection whose protocol is more than its bytes, such as of a WebSocket."""


def read_batch(line: Line) -> tuple[int, int, list[Described]]:
    """The number of a batch, the inode of its turn, and its connections.

    Raises:
        ValueError: it is no batch, or one of a version that this one does not understand.
    """
    match line:
        case {
            "batch": int(number),
            "turn": int(turn),
            "connections": list(rows),
            "body": bytes(body),
        }:
            found, begin = list[Described](), 0
            for row in rows:
                match row:
                    case [
                        int(connection),
                        str(server),
                        int(inode),
                        int(unread),
                        int(unsent),
                        int(state),
                        *protocol,
                    ] if min(unread, unsent, state) >= 0:
                        middle, last = begin + unread, begin + unread + unsent
                        end = last + state
                        parts = body[begin:middle], body[middle:last], body[last:end]
                        found.append(Described(connection, server, inode, *parts, protocol))
                        begin = end
                    case _:
                        raise ValueError("a connection is not described as this version expects")
            if begin == len(body):
                return number, turn, found
    raise ValueError("a batch of connections is not as this version expects")


class _Answers:
    """Waits for the sessions of a batch, which take their states over at the same time."""

    __slots__ = ("_event", "_open")

    def __init__(self) -> None:
        self._open = 0
        self._event = trio.Event()

    def expect(self) -> None:
        """Wait for a further answer."""
        self._open += 1

    def come(self) -> None:
        """An answer has come, or will not come."""
        self._open -= 1
        if not self._open:
            self._event.set()

    async def wait(self) -> None:
        """Wait for all answers."""
        while self._open:
            self._event = trio.Event()
            await self._event.wait()


class _TakingOver(Caller):
    """A request to a session to take its state over."""

    __slots__ = ("_answers", "session")

    def __init__(self, sender: PID, number: int, session: Process, answers: _Answers) -> None:
        super().__init__(sender, number, session.id, "take_over")
        self.assign(session)
        self.session: Process = session
        self._answers = answers
        answers.expect()

    def awaken(self) -> None:
        """Count the answer."""
        self._answers.come()


class _Arrived(NamedTuple):
    """A connection whose session takes its state over."""

    described: Described
    listener: Listener
    taking: _TakingOver
    sock: int


class ArrivingConnections:
    """The connections that come from the predecessor.

    Args:
        kernel: the kernel of this program.
        give: makes a request that gives a session its encoded state.
    """

    def __init__(self, kernel: Kernel, give: Callable[[Process, bytes], object]) -> None:
        self._kernel = kernel
        self._give = give
        self._takers: dict[str, Listener] = {}
        self._sockets: dict[int, int] = {}
        """The descriptors that have arrived, by inode: some may belong to the next batch, and the
        system may have dropped some that were too many for this program.
        """
        self._sessions: dict[int, Process] = {}
        """The sessions of the connections that this program has said to serve."""
        self._begun: dict[int, StreamConnection] = {}
        """The connections that this program serves."""
        self._late: list[Line] = []
        """Late bytes that came between the answer and the beginning of their connections."""

    def servers(self) -> list[str]:
        """The names of the servers that take connections."""
        return sorted(self._find_takers())

    def _find_takers(self) -> dict[str, Listener]:
        takers = self._takers
        if not takers or any(listener.stopping for listener in takers.values()):
            takers = self._takers = {
                listener.socket_name: listener
                for listener in listeners_of(self._kernel)
                if not listener.why_connections_stay() and self._may_take(listener)
            }
        return takers

    def _may_take(self, listener: Listener) -> bool:
        return any(
            made is None or "take_over" in self._kernel.callbacks_of(made).defined
            for made in listener.session_classes
        )

    def session(self, number: int) -> Process:
        """The session of a connection that has moved.

        Raises:
            KeyError: there is none.
        """
        return self._sessions[number]

    def keep(self, descriptors: Iterable[int]) -> None:
        """Keep descriptors that have arrived until :meth:`take` finds their connections."""
        for descriptor in descriptors:
            self._sockets[os.fstat(descriptor).st_ino] = descriptor

    def forget(self) -> None:
        """The predecessor has ended: close the descriptors that belong to no connection, and keep
        no session.
        """
        self._begun.clear()
        self._sessions.clear()
        while self._sockets:
            os.close(self._sockets.popitem()[1])

    async def take(self, batch: Line, channel: Channel) -> None:
        """Start the sessions of a batch, and serve their connections if the batch is ours. Without
        an answer, the predecessor serves them on.
        """
        try:
            number, inode, described = read_batch(batch)
        except ValueError as error:
            self._kernel.logger.error("connections stay with the program before", error=str(error))
            return
        turn, arrived = self._sockets.pop(inode, None), list[_Arrived]()
        staying = [one.number for one in described]
        with without_collections():
            if turn is not None:
                try:
                    arrived = await self._prepare(described, turn)
                    if not take_turn(turn):  # the predecessor has waited for too long
                        self._discard(arrived)
                        arrived = []
                finally:
                    os.close(turn)
            for one in arrived:
                staying.remove(one.described.number)
                self._sessions[one.described.number] = one.taking.session
            try:
                with suppress(OSError):  # the predecessor has ended
                    await channel.say({"begun": number, "stay": staying})
            except BaseException:  # this program stops, and the predecessor serves on
                self._discard(arrived)
                raise
            for one in arrived:
                self._begin(one)
        late, self._late = self._late, []
        for line in late:
            self.write_late(line)

    async def _prepare(self, described: list[Described], turn: int) -> list[_Arrived]:
        """Start a session for each connection, and give all of them their states. Returns those
        connections that this program can serve.
        """
        starting, takers = list[_Arrived](), self._find_takers()
        answers, end = _Answers(), trio.current_time() + _STARTS
        has_reserve = _has_reserve(turn)
        try:
            for one in described:
                if one.inode not in self._sockets:
                    continue
                listener, taking = takers.get(one.server), None
                if has_reserve and listener is not None and trio.current_time() < end:
                    taking = await self._start(listener, one, answers)
                sock = self._sockets.pop(one.inode)
                if listener is None or taking is None:
                    os.close(sock)
                    has_reserve = has_reserve or _has_reserve(turn)
                    continue
                starting.append(_Arrived(one, listener, taking, sock))
            with trio.move_on_after(_START):
                await answers.wait()
        except BaseException:  # this program stops
            self._discard(starting)
            raise
        return [one for one in starting if self._has_started(one)]

    async def _start(
        self, listener: Listener, one: Described, answers: "_Answers"
    ) -> "_TakingOver | None":
        """Start a session, and ask the session to take its state over; None if it cannot."""
        kernel, session = self._kernel, None
        try:
            session = await listener.make_session(one.protocol, _START)
            if "take_over" not in session.callbacks.defined:
                raise NotAllowedError("its class has no take_over")
            request = self._give(session, one.state)
        except trio.TooSlowError:
            self._warn(_LATE_INIT)
            return None
        except Exception as error:  # the session has not started, or the codec refuses: any error
            self._warn(text_of(error))
            if session is not None:
                session.ask_to_exit(kernel.pid, Shutdown())
            return None
        router = kernel.router
        taking = _TakingOver(kernel.pid, next(router.references), session, answers)
        router.signal(session, Lane.SYSTEM, (LOOK, kernel.pid, taking, request))
        return taking

    def _has_started(self, one: _Arrived) -> bool:
        """Whether a session has taken its state over. If it has not, the predecessor serves on."""
        taking, session = one.taking, one.taking.session
        if taking.settled and taking.error is None:
            return True
        if taking.settled:
            self._warn(text_of(taking.error))
            session.ask_to_exit(self._kernel.pid, Shutdown())
        else:
            taking.abandon()
            self._warn(_LATE)
            session.kill()  # it takes no exit while it hangs
        os.close(one.sock)
        return False

    def _warn(self, error: str) -> None:
        self._kernel.logger.warning(
            "a connection stays with the program before: its session cannot take over",
            error=error,
        )

    def _discard(self, arrived: Iterable[_Arrived]) -> None:
        """Leave connections alone, which the predecessor serves on."""
        for one in arrived:
            os.close(one.sock)
            one.taking.session.ask_to_exit(self._kernel.pid, Shutdown())

    def _begin(self, one: _Arrived) -> None:
        """Serve a connection."""
        sock, given = socket.socket(fileno=one.sock), one.described
        try:
            connection = one.listener.go_on_with(
                one.taking.session, sock, given.unread, given.unsent, given.protocol
            )
        except (SpawnError, OSError) as error:  # such as of a peer that has left meanwhile
            sock.close()
            self._sessions.pop(given.number).ask_to_exit(self._kernel.pid, Shutdown())
            self._kernel.logger.warning("a moved connection has ended", error=text_of(error))
        else:
            self._begun[given.number] = connection

    def write_late(self, line: Line) -> None:
        """Write the bytes that processes of the old program have sent meanwhile."""
        found = self._begun.get(line["late"])
        if found is not None:
            found.write_late(line["body"], bool(line.get("closes")))
        elif line["late"] in self._sessions:
            self._late.append(line)
