"""`LeavingConnections`: the connections of a program that move to its successor, each with its
session.

A connection moves whole, or stays: it is paused between two reads, its session serves all that was
read and hands its state over, and then neither program touches the socket until one of them has
the turn of its batch. A connection that stays is served to its end by the old program.

Connections move in batches, after the successor has taken over: each is paused for the time of its
own batch, not of all. The predecessor sends a ``batch`` with its turn, a pipe with a single byte.
The successor (`arriving_connections`) answers which connections have ``begun`` and which ``stay``,
and serves the first from then on. A predecessor that gets no answer takes the byte itself, and
serves on; so the two never serve the same connection. If the successor has ended without an answer,
the predecessor serves on, also without the byte: the successor has not touched the batch. When all
have moved or stay, the successor says that they have ``arrived``: only then is the move over.
"""

import os
import socket
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from itertools import count
from math import inf
from typing import Final, NamedTuple

import trio

from .._core.kernel import Kernel
from .._core.processes.process import Process
from .._core.vocabulary.text import text_of
from ..meta.sockets.listener import Listener, listeners_of
from ..meta.sockets.streams.connection import StreamConnection
from ..meta.sockets.streams.departure import Departure
from .channel import Channel, Line, make_turn, take_turn
from .collector import without_collections

__all__ = ["LeavingConnections"]

_BATCH: Final = 100
"""Connections in a batch. Each waits for the others: of 10,000 connections, the longest pause was
25 ms with 50 and 34 ms with 100, and the move took 2.0 and 1.6 s. A message takes at most 253
descriptors.
"""
_UNDER_WAY: Final = 2
"""Batches that the successor has not answered: it starts the sessions of one while this program
collects the next. With more of them, connections would wait in the channel.
"""
_QUEUE: Final = 3.0
"""Seconds for the handshakes and the queue of a server that has a socket of its own."""
_LOOK: Final = 0.005
"""Seconds between two looks at a connection that is not ready."""
_LOOKS: Final = 50
"""Looks within which a connection has to be between two messages. Looks, not seconds: a program
that gets no processor for a while loses only one.
"""
_GATHER: Final = 0.01
"""Seconds that the connections of a batch which are ready wait for the others, which then go with a
later batch.
"""
_LATE_LOOKS: Final = 500
"""Moved connections that each answer of the successor asks for late bytes, in turn. With a look at
all of 10,000, the move took 0.5 ms more processor time for each.
"""
_MOVE: Final = 60.0
"""Seconds for all batches; later connections stay."""
_ANSWER: Final = 10.0
"""Seconds within which the successor has to answer a batch."""
_BUSY: Final = "busy"
_HTTP: Final = "HTTP"
_LATE: Final = "not moved in time"
_NO_DESCRIPTOR: Final = "no descriptor is left"
_REFUSED: Final = "refused by the next version"
_NO_ANSWER: Final = "not answered by the next version"
_HANGS: Final = (
    f"the next version has taken over, and did not answer within {_ANSWER:g} s: it hangs"
)
_STOPPED: Final = "the next version has taken over, and did not answer before this program stopped"


async def _say(channel: Channel, line: Line, body: bytes | None = None) -> bool:
    """Say a line to the successor, which perhaps reads no more. False if it has ended."""
    with trio.move_on_after(_ANSWER):
        try:
            await channel.say(line, body=body)
        except OSError:
            return channel.is_cut
        return True
    channel.cut()  # in the middle of a line
    return True


async def _cancel_later(scope: trio.CancelScope) -> None:
    for _ in range(_LOOKS):
        await trio.sleep(_LOOK)
    scope.cancel()


class _Candidate(NamedTuple):
    """A connection that may move."""

    number: int
    server: str
    connection: StreamConnection


class _Moving(NamedTuple):
    """A connection that is ready to leave."""

    number: int
    server: str
    connection: StreamConnection
    departure: Departure
    session: Process
    unread: bytes
    unsent: bytes
    state: bytes


async def _forward(channel: Channel, moving: _Moving, late: bytes, closes: bool) -> None:
    """Forward what processes have sent to a connection that the successor serves."""
    if late or closes:
        await _say(channel, {"late": moving.number, "closes": closes}, late)


class _Batch:
    """Connections that are on their way to the successor: the ready ones, or as many of them as
    this program has descriptors for.

    Raises:
        OSError: no descriptor is left.
    """

    def __init__(self, number: int, ready: list[_Moving]) -> None:
        self.number = number
        self.turn = make_turn()
        self._copies: list[int] = []
        """Copies of the descriptors: a connection that ends while the batch waits for the channel
        closes its own, and the number may then mean something else.
        """
        try:
            for moving in ready:
                self._copies.append(os.dup(moving.departure.descriptor))
        except OSError:
            if not self._copies:
                os.close(self.turn)
                raise
        self.members = ready[: len(self._copies)]
        self.is_settled = trio.Event()
        """The successor has answered, or has ended."""
        self.staying: list[object] | None = None
        """The numbers of the connections that stay; None without an answer."""

    async def send(self, channel: Channel) -> None:
        """Send the connections, with their turn.

        Raises:
            OSError: the successor has ended.
        """
        lines, bodies = list[object](), list[bytes]()
        for moving, copy in zip(self.members, self._copies, strict=True):
            parts = moving.unread, moving.unsent, moving.state
            inode, protocol = os.fstat(copy).st_ino, moving.connection.protocol
            lines.append((moving.number, moving.server, inode, *map(len, parts), *protocol))
            bodies += parts
        line = {"batch": self.number, "turn": os.fstat(self.turn).st_ino, "connections": lines}
        try:
            await channel.say(line, (self.turn, *self._copies), b"".join(bodies))
        finally:
            for copy in self._copies:
                os.close(copy)


class LeavingConnections:
    """The connections that move to the successor.

    Args:
        kernel: the kernel of this program.
        give: suspends a session, and returns its encoded state.
        resume: lets a suspended session go on.
        leave: lets a session forward its messages to the successor.
        flush: waits until the messages to moved processes are forwarded.
    """

    def __init__(
        self,
        kernel: Kernel,
        give: Callable[[int, Process], Awaitable[bytes]],
        resume: Callable[[Process], Awaitable[None]],
        leave: Callable[[int, Process], Awaitable[None]],
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        self._kernel = kernel
        self._give = give
        self._resume = resume
        self._leave = leave
        self._flush = flush
        self._drained: list[Listener] = []
        """The servers that accept no more since the successor does."""
        self._ready: list[_Moving] = []
        """The connections that wait for their batch."""
        self._sent: deque[_Batch] = deque()
        """The batches that the successor has not answered, the oldest first."""
        self._batches = count(1)
        self._successor_has_ended = False
        self._is_over = trio.Event()
        """The successor has said that all connections have arrived, or has ended."""
        self._dead_end: tuple[socket.socket, ...] = ()
        """Sockets without a peer: the connections that have moved end with a copy of the first.
        They are made before the move, which must not fail for want of a descriptor.
        """
        self._left: list[_Moving] = []
        """The connections that have moved."""
        self._looked_at = 0
        """The place of the last of them that was asked for late bytes."""
        self.candidates: int = 0
        """How many connections may move."""
        self.staying: Counter[str] = Counter()
        """How many connections stay, by the cause."""
        self.are_lost: bool = False
        """The successor has ended before all connections have arrived, and those that had moved
        with it.
        """
        self.hangs: str = ""
        """How the successor has failed, if it has not ended and does not answer."""

    @property
    def moved(self) -> int:
        """How many connections have moved."""
        return len(self._left)

    async def move(self, channel: Channel, servers: Iterable[object], hangs: str) -> None:
        """Move the connections of the servers that the successor takes, which serves already,
        unless it ``hangs``. The servers of this program accept no more.
        """
        self.hangs = hangs
        with suppress(OSError):  # no descriptor is left: all connections stay
            self._dead_end = socket.socketpair()
        try:
            left = await self._candidates(set(map(str, servers)))
            self.candidates = len(left)
            with without_collections():
                await self._move(channel, left)
            if left:
                self.staying[_LATE] += len(left)
            is_said = await _say(channel, {"moved": self.moved})
            if is_said and not self.hangs:
                with trio.move_on_after(_ANSWER) as scope:
                    await self._is_over.wait()
                self.hangs = _HANGS if scope.cancelled_caught else ""
            self.are_lost = channel.has_ended or not is_said
        except trio.Cancelled:
            self.hangs = self.hangs or _STOPPED
            raise
        finally:
            with trio.CancelScope(shield=True):
                await self._take_back(channel)
            for sock in self._dead_end:
                sock.close()

    def may_accept_again(self) -> bool:
        """Whether the servers of this program can accept connections as before the move."""
        return all(listener.may_accept_again for listener in self._drained)

    def accept_again(self) -> None:
        """Accept connections as before the move: the successor has ended."""
        for listener in self._drained:
            listener.accept_again()

    def hear(self, line: Line) -> None:
        """Hear the answer of the successor to a batch, or that all have arrived."""
        if "arrived" in line:
            self._is_over.set()
            return
        for batch in self._sent:
            if batch.number == line["begun"] and isinstance(line.get("stay"), list):
                batch.staying = line["stay"]
                batch.is_settled.set()

    def end(self) -> None:
        """Hear that the successor has ended."""
        self._successor_has_ended = True
        self._is_over.set()
        for batch in self._sent:
            batch.is_settled.set()

    async def _candidates(self, taken: set[str]) -> deque[_Candidate]:
        found, number = deque[_Candidate](), 0
        for listener in listeners_of(self._kernel):
            if not listener.is_draining:
                self._drained.append(listener)
            await listener.begin_drain(_QUEUE, is_replaced=True)
            why = self._why_all_stay(listener, taken)
            for connection in listener.open_connections():
                number += 1
                if why:
                    self.staying[why] += 1
                else:
                    found.append(_Candidate(number, listener.socket_name, connection))
        return found

    def _why_all_stay(self, listener: Listener, taken: set[str]) -> str:
        if why := listener.why_connections_stay():
            return why
        if not self._dead_end:
            return _NO_DESCRIPTOR
        return "" if listener.socket_name in taken else "not taken by the next version"

    async def _move(self, channel: Channel, left: deque[_Candidate]) -> None:
        """Move connections batch by batch, until all have moved or stay, or the successor does not
        answer. Those that are not ready go with a later batch.
        """
        put, collected = trio.open_memory_channel[None](inf)
        under_way, end, goes_on = 0, trio.current_time() + _MOVE, True
        async with trio.open_nursery() as nursery:
            while goes_on and (under_way or self._ready or (left and trio.current_time() < end)):
                size = min(len(left), _BATCH) if trio.current_time() < end else 0
                group = [left.popleft() for _ in range(size)]
                under_way += len(group)
                if group:
                    nursery.start_soon(self._collect_all, group, put)
                with trio.move_on_after(_GATHER):
                    while under_way:
                        await collected.receive()
                        under_way -= 1
                if self._ready:
                    goes_on = await self._send(channel)
            nursery.cancel_scope.cancel()
        while self._sent and goes_on:
            goes_on = await self._settle(channel)

    async def _collect_all(
        self, group: list[_Candidate], put: "trio.MemorySendChannel[None]"
    ) -> None:
        async with trio.open_nursery() as limit:
            async with trio.open_nursery() as nursery:
                limit.start_soon(_cancel_later, nursery.cancel_scope)
                for candidate in group:
                    nursery.start_soon(self._collect, candidate, put)
            limit.cancel_scope.cancel()

    async def _collect(self, candidate: _Candidate, put: "trio.MemorySendChannel[None]") -> None:
        """Pause a connection and suspend its session, or let it stay."""
        why = _BUSY  # if its time ends
        try:
            why = await self._pause(*candidate)
        finally:
            if why:
                self.staying[why] += 1
            put.send_nowait(None)

    async def _pause(self, number: int, server: str, connection: StreamConnection) -> str:
        """Pause a connection and suspend its session. Returns why it stays; empty if it is
        ready.
        """
        session, departure = connection.session, connection.departure()
        if session is not None and "hand_over" not in session.callbacks.defined:
            return "sessions without hand_over"
        if session is None or departure is None or session.name is not None:
            return _HTTP if session is None and connection.kind == "http" else _BUSY
        is_ready = False
        try:
            departure.pause()
            while not departure.is_paused():  # noqa: ASYNC110 - many parts would have to tell
                await trio.sleep(_LOOK)
            state = await self._give(number, session)
            while (found := departure.collect()) is None:  # noqa: ASYNC110 - as above
                await trio.sleep(_LOOK)
            is_ready = True
        except Exception as error:  # hand_over has raised, or the codec refuses: any error
            return text_of(error)
        finally:
            if not is_ready:
                await self._stay(departure, session)
        moving = _Moving(number, server, connection, departure, session, *found, state)
        self._ready.append(moving)
        return ""

    async def _send(self, channel: Channel) -> bool:
        """Send the ready connections as a batch. False if the successor does not answer, or no
        descriptor is left.
        """
        batch = None
        with trio.move_on_after(_ANSWER) as scope:
            await self._flush()  # what their sessions have sent goes before them
            batch = await self._next_batch()
            if batch is not None:
                with suppress(OSError):  # the successor has ended
                    await batch.send(channel)
        if scope.cancelled_caught:
            channel.cut()  # in the middle of a line
            return False
        # Without a descriptor there is no further batch, and the others still have their answers.
        most = 0 if batch is None else _UNDER_WAY - 1
        while len(self._sent) > most:
            if not await self._settle(channel):
                return False
        return batch is not None

    async def _next_batch(self) -> _Batch | None:
        """The next batch; None if no descriptor is left for it."""
        while ended := [moving for moving in self._ready if moving.departure.descriptor < 0]:
            self._ready.remove(ended[0])
            await self._stay(ended[0].departure, ended[0].session)
        try:
            batch = _Batch(next(self._batches), self._ready[:_BATCH])
        except OSError:
            await self._keep_ready(_NO_DESCRIPTOR)
            return None
        del self._ready[: len(batch.members)]
        self._sent.append(batch)
        if self._successor_has_ended:
            batch.is_settled.set()
        return batch

    async def _settle(self, channel: Channel) -> bool:
        """Wait for the answer to the oldest batch. False if there is none."""
        batch = self._sent[0]
        with trio.move_on_after(_ANSWER):
            await batch.is_settled.wait()
        with trio.CancelScope(shield=True):
            self._sent.popleft()
            await self._forward_late(channel)
            await self._end_batch(batch, channel)
        return batch.staying is not None

    async def _end_batch(self, batch: _Batch, channel: Channel) -> None:
        """Let go of the connections that the successor serves, and serve the others."""
        staying, why = batch.staying, _REFUSED
        if staying is None:
            # A successor that has taken the turn serves, unless it has ended before its answer.
            is_ours, why = take_turn(batch.turn) or channel.has_ended, _NO_ANSWER
            staying = [moving.number for moving in batch.members if is_ours]
        os.close(batch.turn)
        for moving in batch.members:
            if moving.number in staying:
                self.staying[why] += 1
                await self._stay(moving.departure, moving.session)
            else:
                await self._let_go(moving, channel)

    async def _let_go(self, moving: _Moving, channel: Channel) -> None:
        """Let go of a socket, which the successor serves, and forward what processes have sent to
        the connection meanwhile.
        """
        late = moving.departure.take_late(moving.connection)
        moving.departure.leave(moving.connection, self._dead_end[0])
        self._left.append(moving)
        await _forward(channel, moving, *late)

    async def _forward_late(self, channel: Channel) -> None:
        """Forward what processes have sent to connections since they have left."""
        for _ in range(min(len(self._left), _LATE_LOOKS)):
            self._looked_at = (self._looked_at + 1) % len(self._left)
            moving = self._left[self._looked_at]
            await _forward(channel, moving, *moving.departure.take_late(moving.connection))

    async def leave(self, channel: Channel) -> None:
        """End the moved connections, and let their sessions forward their messages. After all have
        moved: the end of a connection takes longer than its move, and the others would wait.
        """
        with trio.CancelScope(shield=True):
            waiting = self._left
            for _ in range(_LOOKS):  # at all connections: the busy connections share the wait
                waiting = await self._end_served(waiting, channel)
                if not waiting:
                    break
                await trio.sleep(_LOOK)
            for moving in waiting:
                await self._end(moving, channel)

    async def _end_served(self, some: list[_Moving], channel: Channel) -> list[_Moving]:
        """End the connections that have served all messages. Returns the busy connections."""
        busy = list[_Moving]()
        for moving in some:
            if moving.departure.has_served():
                await self._end(moving, channel)
            else:
                busy.append(moving)
        return busy

    async def _end(self, moving: _Moving, channel: Channel) -> None:
        await _forward(channel, moving, *moving.departure.end(moving.connection))
        await self._leave(moving.number, moving.session)

    async def _take_back(self, channel: Channel) -> None:
        """Let all connections stay that the successor does not serve yet."""
        while self._sent:
            await self._end_batch(self._sent.popleft(), channel)
        await self._keep_ready(_NO_ANSWER)

    async def _keep_ready(self, why: str) -> None:
        ready, self._ready = self._ready, []
        for moving in ready:
            self.staying[why] += 1
            await self._stay(moving.departure, moving.session)

    async def _stay(self, departure: Departure, session: Process) -> None:
        departure.go_on()
        with trio.CancelScope(shield=True):
            await self._resume(session)
