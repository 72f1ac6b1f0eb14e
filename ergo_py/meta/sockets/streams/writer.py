"""`Writer`: output of a stream socket. It writes on the loop: at once if the operating system takes
the bytes, otherwise as it does.
"""

import socket
from collections import deque
from collections.abc import Awaitable, Callable
from enum import Enum
from itertools import islice
from math import inf
from typing import Final, NamedTuple

import trio
from trio.lowlevel import notify_closing, wait_writable

from ...._core.runtime.parking import TrioTurns
from ...._core.tables.pending_calls import Caller
from ...._core.vocabulary.ids import PID, Alias
from ..messages import TCPSend
from ..options import StreamOptions
from .tls_layer import TLSLayer, TLSPhase

__all__ = ["Output", "Writer", "WriterReports"]

_DONT_WAIT: Final = socket.MSG_DONTWAIT
_PIECES: Final = 64
"""Pieces to pass to the operating system in a call."""
_SMALL: Final = 16 * 1024
"""Bytes of a message that may be held until the end of the root's turn."""


class Output(Enum):
    """The state of the writing half."""

    OPEN = "open"
    CLOSING = "closing"
    """No further data is accepted; the waiting bytes are still written."""
    HALF_CLOSED = "half-closed"
    """All is written, and the peer was told that no more follows."""
    CLOSED = "closed"
    """The waiting bytes are dropped, or writing has failed."""


class _FrozenQueue(deque[memoryview]):
    """The queue of a connection that moves to the next program. Its first piece, which may be
    empty, moves; no piece is written, and further data waits behind the first. The bytes wait for
    the next program, not for the peer: they are not ``pending``, or a message would have to wait.
    """


class WriterReports(NamedTuple):
    """The functions of a connection that its writer calls when waiting bytes are out, and for
    callers. The functions for each message, ``failed`` and ``slow``, are the writer's own.
    """

    start: Callable[[Callable[[], Awaitable[None]]], None]
    """Run the task that drains the waiting bytes."""
    changed: Callable[[], None]
    """Waiting bytes are out."""
    answer: Callable[[Caller, int], object]
    """Answer a caller whose bytes are out, with their number."""


_OPEN, _CLOSED = Output.OPEN, Output.CLOSED
"""Constants of the module are read faster than members of an enum."""


class Writer:
    """The output of a socket. Everything here happens on the loop.

    A thread may be blocked reading the same socket: a write with ``MSG_DONTWAIT`` never blocks.
    Bytes that do not fit wait in a queue, which a task drains; the task exists only while bytes
    wait.
    """

    __slots__ = (
        "_callers",
        "_failed",
        "_held",
        "_limit",
        "_now",
        "_queue",
        "_reports",
        "_scope",
        "_send",
        "_slow",
        "_stall",
        "_tls",
        "_turns",
        "last",
        "messages",
        "pending",
        "sock",
        "state",
        "written",
    )

    _send: Callable[[bytes, int], int]
    _turns: TrioTurns
    _now: Callable[[], float]
    sock: socket.socket
    last: float
    """When the operating system last took some bytes; at first, when the writer got its socket."""

    def __init__(
        self,
        tls: TLSLayer,
        options: StreamOptions,
        reports: WriterReports,
        *,
        failed: Callable[[OSError], None],
        slow: Callable[[], None],
    ) -> None:
        """``slow`` is called when more than ``write_limit`` bytes wait after a message."""
        self._tls = tls
        self._limit = options.write_limit
        self._reports = reports
        self._failed = failed
        self._slow = slow
        self._held: list[bytes] = []
        """Data of messages that is written at the end of the root's turn."""
        self._queue: deque[memoryview] = deque()
        self._callers: deque[tuple[int, Caller, int]] = deque()
        self._scope: trio.CancelScope | None = None
        self.state: Output = _OPEN
        self.pending: int = 0
        """Bytes that wait for the peer."""
        self.written: int = 0
        """Bytes that the operating system has taken."""
        self.messages: int = 0
        """Messages whose data was accepted."""
        self._stall = options.idle_timeout
        """Seconds for which the peer may take nothing of the waiting bytes; None for no limit."""

    def change(self, options: StreamOptions) -> None:
        """Follow these time limits from now on."""
        self._stall = options.idle_timeout

    def use(
        self,
        sock: socket.socket,
        now: Callable[[], float],
        turns: TrioTurns,
        since: float | None = None,
    ) -> None:
        """Write to this socket from now on. ``now`` tells the time; ``since`` is the present time,
        if the caller knows it.
        """
        self.sock = sock
        self._turns = turns
        self._now = now
        self._send = sock.send
        self.last = now() if since is None else since

    @property
    def is_closing(self) -> bool:
        """Whether a close was requested: further data is not part of the stream."""
        return self.state is Output.CLOSING or self.state is Output.HALF_CLOSED

    @property
    def is_slow(self) -> bool:
        """Whether more than ``write_limit`` bytes wait for the peer."""
        return self.pending > self._limit

    # -- messages ----------------------------------------------------------------------------------

    def serve(self, message: object, _sender: PID | Alias) -> bool:
        """Write on the spot, in the sender's turn, if that needs no waiting. False for a message
        that the handler must serve.
        """
        if type(message) is not TCPSend or self.state is not _OPEN or self.pending:
            return False
        data, held = message.data, self._held
        if self._turns.defers:
            if not held and type(data) is bytes and len(data) <= _SMALL:
                # Inlined _hold(), for most messages.
                self._turns.defer(self.flush)
                held.append(data)
                return True
            if self._hold(data):
                return True
        if held:
            self.flush()
        self._serve(data)
        return True

    def _hold(self, data: bytes) -> bool:
        """Hold the data of a message until the end of the root's turn. False if it must not wait.

        Each write may wake the peer, which takes the processor from this program. So the writes of
        many connections follow each other, after all callbacks.
        """
        if len(data) > _SMALL or len(self._held) >= _PIECES:
            return False
        if not self._held:
            self._turns.defer(self.flush)
        self._held.append(data if type(data) is bytes else bytes(data))
        return True

    def flush(self) -> None:
        """Write the data that was held until the end of the root's turn. All other output comes
        after it: TLS numbers its records in the order in which they are made.
        """
        held = self._held
        if held:
            self._held = []
            self.messages += len(held) - 1
            self._serve(held[0] if len(held) == 1 else b"".join(held))

    def _serve(self, data: bytes) -> None:
        if self._tls.session is None:
            # The same as put(), without its call: this is the hot path.
            self.messages += 1
            try:
                if not self.write(data) and self.pending > self._limit:
                    self._slow()
            except OSError as error:
                self._failed(error)
        else:
            self.put(data)

    def put(self, data: bytes, caller: Caller | None = None, *, in_turn: bool = False) -> bool:
        """Write the data of a message, or keep it for later. True if everything is in the operating
        system; otherwise the caller gets its answer as soon as it is. With ``in_turn``, write at
        the end of the root's turn if there is a root, and no caller waits.
        """
        if (
            in_turn
            and caller is None
            and self._turns.defers
            and self.state is _OPEN
            and not self.pending
            and self._hold(data)
        ):
            return True
        if self._held:
            self.flush()
        self.messages += 1
        try:
            if self._tls.session is None:
                done = self.write(data)
            else:
                records = self._tls.encrypt(data, caller)
                if records is None:
                    return False
                done = self.write(records)
        except OSError as error:
            self._failed(error)
            return False
        if not done:
            if caller is not None:
                waiting = sum(map(len, self._queue)) if self.is_frozen else self.pending
                self._callers.append((self.written + waiting, caller, len(data)))
            if self.pending > self._limit:
                self._slow()
        return done

    def beat(self, data: bytes) -> None:
        """Write a heartbeat, which is not counted as a message."""
        self.put(data, None)
        self.messages -= 1

    def write_tls(self) -> None:
        """Write the output of TLS itself, and data that was sent too early."""
        tls = self._tls
        if tls.session is None or tls.phase is TLSPhase.HANDSHAKE:
            return
        self.flush()
        early = tls.take_early()
        try:
            # Skip an empty write: it fails, too, once the socket is shut for writing.
            if said := tls.session.take():
                self.write(said)
        except OSError as error:
            self._failed(error)
        for data, caller in early:
            self.messages -= 1
            if self.put(data, caller) and caller is not None:
                self._reports.answer(caller, len(data))
        self.half_close_if_due()

    # -- bytes -------------------------------------------------------------------------------------

    def write(self, data: bytes) -> bool:
        """Write as much as possible, and keep the rest. True if no bytes wait.

        Raises:
            OSError: the connection is broken.
        """
        if self.state is _CLOSED:
            return True
        sent = 0
        if not self._queue:
            try:
                sent = self._send(data, _DONT_WAIT)
            except BlockingIOError:  # no room: all of the data waits
                pass
            self.written += sent
            if sent == len(data):
                self.last = self._now()
                return True
        return self._keep_rest(data, sent)

    def _keep_rest(self, data: bytes, sent: int) -> bool:
        if not data:
            # Never queue an empty piece: sending it makes no progress, so it would stay in the
            # queue.
            return False
        # Copy a mutable buffer: the sender could still change it.
        self._queue.append(memoryview(data if type(data) is bytes else bytes(data))[sent:])
        if not self.is_frozen:
            self.pending += len(data) - sent
            self._begin_to_drain()
        return False

    def _begin_to_drain(self) -> None:
        if self._queue and self._scope is None:
            self._scope = trio.CancelScope()
            self._reports.start(self._drain)

    # -- the move to the next program --------------------------------------------------------------

    def freeze(self) -> bytes:
        """Write nothing until :meth:`thaw`, and return the waiting bytes. Data that comes meanwhile
        waits behind them.
        """
        self.flush()
        waiting = b"".join(self._queue)
        self._queue = _FrozenQueue([memoryview(waiting)])
        self.pending = 0
        return waiting

    @property
    def is_frozen(self) -> bool:
        """Whether the connection is on its way to the next program."""
        return type(self._queue) is _FrozenQueue

    @property
    def has_callers(self) -> bool:
        """Whether callers wait until their bytes are out."""
        return bool(self._callers)

    def take_late(self) -> bytes:
        """Take the bytes that came since :meth:`freeze`, or since the last call. Their callers get
        their answers: the next program writes the bytes.
        """
        self.flush()
        while self._callers:
            _, caller, size = self._callers.popleft()
            self._reports.answer(caller, size)
        late = b"".join(islice(self._queue, 1, None))
        self._queue = _FrozenQueue([memoryview(b"")])
        return late

    def thaw(self) -> None:
        """Write again."""
        if self.is_frozen:
            is_closed = self.state is _CLOSED
            self._queue = deque(() if is_closed else filter(len, self._queue))
            self.pending = sum(map(len, self._queue))
            self._begin_to_drain()
            self.half_close_if_due()

    # -- the waiting bytes -------------------------------------------------------------------------

    async def _drain(self) -> None:
        assert self._scope is not None
        try:
            with self._scope:
                while self._queue:
                    stall = self._stall
                    with trio.move_on_after(inf if stall is None else stall) as patience:
                        await wait_writable(self.sock)
                    if self.is_frozen:
                        return
                    if patience.cancelled_caught:
                        raise TimeoutError(f"the peer took nothing for {stall:g} s")
                    self._write_some()
        except (OSError, trio.ClosedResourceError) as error:
            if self.state is not Output.CLOSED:
                self.state = Output.CLOSED
                self._failed(error if isinstance(error, OSError) else OSError(str(error)))
        finally:
            self._scope = None

    def _write_some(self) -> None:
        queue = self._queue
        try:
            sent = self.sock.sendmsg(list(islice(queue, _PIECES)), (), _DONT_WAIT)
        except BlockingIOError:  # no room after all: the task waits again
            return
        self.last = self._now()
        self.written += sent
        self.pending -= sent
        while sent:
            first = queue[0]
            if sent < len(first):
                queue[0] = first[sent:]
                break
            sent -= len(first)
            queue.popleft()
        callers = self._callers
        while callers and callers[0][0] <= self.written:
            _, caller, size = callers.popleft()
            self._reports.answer(caller, size)
        self.half_close_if_due()
        self._reports.changed()

    # -- the end -----------------------------------------------------------------------------------

    def stop_accepting(self) -> None:
        """Accept no further data, and half-close once all is written."""
        self.flush()
        self.state = Output.CLOSING
        self.half_close_if_due()

    def half_close_if_due(self) -> None:
        """Half-close: once all is written, tell the peer that no more data follows. TLS writes a
        notice for this, which may have to wait, too.
        """
        if self.state is not Output.CLOSING or self._tls.holds_data or self.pending:
            return
        if self.is_frozen:
            return  # the next program may serve the socket already
        try:
            if self.say_goodbye():
                self.state = Output.HALF_CLOSED
                self.sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._failed(error)

    def say_goodbye(self) -> bool:
        """Write TLS's ``close_notify``, once. Returns whether no bytes wait for the peer.

        Raises:
            OSError: the connection is broken.
        """
        self.flush()
        notice = self._tls.goodbye()
        return not notice or self.write(notice)

    def close(self) -> None:
        """Drop the waiting bytes, but those for the next program, and wake the task that waits for
        the socket, so that it can be closed.
        """
        self.flush()
        self.state = Output.CLOSED
        if not self.is_frozen:
            self._queue.clear()
            self.pending = 0
        self.let_go()

    def let_go(self) -> None:
        """Wake the task that waits for the socket."""
        if self._scope is not None:
            self._scope.cancel()
            if self.sock.fileno() >= 0:
                notify_closing(self.sock)
