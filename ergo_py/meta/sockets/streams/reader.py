"""`StreamReader`: the steps that read a connection until the peer closes its half.

The rule of this module: a step is written once, for threads and tasks. A step that may have to wait
awaits a method of `_InThread` or of `_InTask`, which blocks or suspends; no other line here
waits. Steps decide only the order of things. Bytes become messages in `input`, records of TLS in
`tls_layer`; answers are counted in `writer`, and causes of the end in `shutdown`.

A connection in a task skips these steps while there is nothing to wait for: its poller calls
`_read_once` for each read, a function without a task, whose twin in C is in `streams.c`. It takes
the fast path of `_hand_over` and leaves everything else to the steps, so a new rule belongs into
the steps, and into `_read_once` at most the check that such a case has come.
"""

import socket
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any, Final

import trio

from ...._core.verbs.meta_process import MetaProcess
from ...._core.vocabulary.envelopes import Lane
from ...._core.vocabulary.ids import Target
from ...._core.vocabulary.reasons import Normal
from ...poller import SocketPoller, watch_alone
from ...readers import (
    ReaderWait,
    hand_over,
    has_receiver,
    has_served,
    is_asleep,
    run_at_once,
    start_beside,
    when_served,
)
from ...thread_inbox import ThreadInbox
from ..messages import Cause, TCPClose, TCPDisconnected, TCPSecured
from ..options import StreamOptions
from ..socket_setup import count_unacknowledged
from .buffered_reads import BufferedReads
from .input import Input, StreamInput
from .shutdown import Shutdown
from .tls_layer import TLSLayer, TLSPhase
from .writer import Output, Writer

__all__ = ["StreamReader"]

_OPEN, _POSSIBLE, _CLEAR = Input.OPEN, TLSPhase.POSSIBLE, TLSPhase.CLEAR
_NOTICES: Final = 32
"""Messages of a receiver to look through at most."""


class _Then:
    """Calls a function when an outbox is empty."""

    __slots__ = ("_then",)

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def settle(self, _admitted: bool, /) -> None:
        self._then()


def _no_greeting() -> None:
    """The receiver knows its peer from the program before."""


class StreamReader:
    """The half of a connection that reads, in a thread or in a task."""

    __slots__ = (
        "_answered",
        "_buffered",
        "_connection",
        "_early",
        "_greet",
        "_had_last_word",
        "_held",
        "_input",
        "_is_last_read",
        "_read_limit",
        "_secured",
        "_shutdown",
        "_socket",
        "_speaks_first",
        "_target",
        "_tls",
        "_wait",
        "_writer",
        "connected",
    )

    _socket: socket.socket
    _target: Target

    def __init__(
        self,
        connection: MetaProcess,
        tls: TLSLayer,
        writer: Writer,
        shutdown: Shutdown,
        incoming: StreamInput,
        options: StreamOptions,
        *,
        is_accepted: bool,
        early: bytes,
        greet: Callable[[], object],
        secured: Callable[[], None],
    ) -> None:
        """The server has read the bytes ``early`` before there was a connection. ``greet`` makes
        the first message, if there is any; ``secured`` is called on the loop after a TLS handshake.
        """
        self._connection = connection
        self._tls = tls
        self._writer = writer
        self._shutdown = shutdown
        self._input = incoming
        self._read_limit = options.write_limit if is_accepted else inf
        """Backpressure: with more bytes than this waiting for the peer, the reader stops reading.

        Only the side that was called ever stops reading. If both sides did, each could wait forever
        for the other to take something (deadlock).
        """
        self._speaks_first = is_accepted and not early
        """Most peers speak first, and their bytes came with the connection: read at once, without
        waiting for the poller.
        """
        self._early = early
        """Bytes that the server has read, before all others."""
        self._greet = greet
        self._secured = secured
        self._wait: ReaderWait | None = None
        """The waits of a thread or a task for the loop; None before the first of them."""
        self._is_last_read = False
        """The connection is told to end while its reader thread still reads: the thread discards
        its next read, and ends.
        """
        self._had_last_word = False
        """The receiver had time to answer a protocol error."""
        self._answered = False
        self._buffered: BufferedReads | None = None
        """Reads without the GIL, if the thread has nothing to parse or to decrypt."""
        self._held: Sequence[Any] = ()
        """Messages that the poller has read, and that a receiver which is behind has not taken yet.
        """
        self.connected: float | None = None
        """When the connection was ready, by the node's clock."""

    def use(self, sock: socket.socket, to: Target) -> None:
        """Read from this socket, and send the messages to ``to``."""
        self._socket = sock
        self._target = to

    def use_inbox(self, inbox: ThreadInbox) -> None:
        """Read without the GIL. Not for input that is parsed or decrypted."""
        self._buffered = BufferedReads(
            self._connection,
            self._input,
            self._writer,
            self._shutdown,
            self._read_limit,
            self._target,
        )
        self._buffered.open(inbox)

    def skip_greeting(self) -> None:
        """Do not tell the receiver that the connection begins."""
        self._greet = _no_greeting

    # -- the steps ---------------------------------------------------------------------------------

    def read_in_thread(self) -> None:
        """Read until the end of the stream, in a thread."""
        run_at_once(self._read(_InThread(self)))

    def read_in_task(self, poller: SocketPoller | None) -> Coroutine[Any, Any, None]:
        """Read until the end of the stream, in a task. ``poller`` watches the socket, if there is
        any.
        """
        return self._read(_InTask(self, poller))

    async def _read(self, waits: "_InThread | _InTask") -> None:
        incoming, shutdown, writer = self._input, self._shutdown, self._writer
        try:
            if self._tls.phase is TLSPhase.HANDSHAKE and not await self._shake_hands(waits):
                return
            if self.connected is None:
                greeting = self._connect()
                if greeting is not None and not await self._put(waits, greeting):
                    return
                self._held = incoming.take(self._first_bytes())
            while await self._hand_over(waits):
                if incoming.state is not _OPEN and not incoming.has_more:
                    break
                if writer.pending > self._read_limit and shutdown.mistake is None:
                    await waits.until(self._may_read)
                self._held = await self._next_messages(waits)
            else:
                return
        except OSError as error:
            shutdown.end_after(error)
            return
        if self._heard_last():
            await self._let_answer(waits)
        if shutdown.mistake is not None:
            # A peer's protocol error is the cause of the end, even if a close was requested later.
            shutdown.end(Cause.PROTOCOL_ERROR, shutdown.mistake)

    async def _next_messages(self, waits: "_InThread | _InTask") -> Sequence[Any]:
        incoming, tls = self._input, self._tls
        if incoming.has_more:
            if incoming.is_paused:
                await waits.until(self._may_parse)
            await waits.turn()
            return incoming.take(b"")
        if tls.session is not None and (rest := tls.session.take_rest()):
            return incoming.take(rest)
        return await waits.read()

    async def _hand_over(self, waits: "_InThread | _InTask") -> bool:
        """Send the messages of the last read. False if the connection ends."""
        shutdown, meta, to = self._shutdown, self._connection._meta, self._target
        if self._tls.phase is _POSSIBLE:
            if not await self._hand_over_in_lockstep(waits):
                return False
        else:
            deliver = meta.outbox.deliver
            for message in self._held:
                # The fast path, which is nearly always enough.
                if not deliver(to, message, meta.priority) and not await self._put(waits, message):
                    return False
        self._held = ()
        if shutdown.cause is not None:
            return False
        if shutdown.mistake is not None and not self._had_last_word:
            self._had_last_word = True
            await self._let_answer(waits)
            meta.router.bridge.do(self._close_after_last_word)
        return True

    async def _hand_over_in_lockstep(self, waits: "_InThread | _InTask") -> bool:
        """Send messages while TLS may begin after each. False if the connection ends."""
        bridge = self._connection._meta.router.bridge
        for number, message in enumerate(self._held, 1):
            self._tls.offer()
            if not await self._put(waits, message):
                return False
            bridge.do(self._ask_whether_answered)
            await waits.until(self._has_decided)
            if self._starts_tls(number == len(self._held)):
                if not await self._shake_hands(waits):
                    return False
                await self._put(waits, self._upgrade())
            if self._shutdown.cause is not None:
                return False
        return True

    async def _put(self, waits: "_InThread | _InTask", message: object) -> bool:
        """Send a message. False if there is no receiver: then the connection ends."""
        if await waits.put(message) or has_receiver(self._connection._meta, self._target):
            return True
        self._shutdown.end(Cause.NO_RECEIVER)
        return False

    async def _shake_hands(self, waits: "_InThread | _InTask") -> bool:
        """Do the handshake of TLS. False if the peer has closed meanwhile: the connection ends."""
        if await waits.shake_hands(self._tls):
            return True
        self._shutdown.end(Cause.EOF, "during the TLS handshake")
        return False

    async def _let_answer(self, waits: "_InThread | _InTask") -> None:
        """Wait until the receiver has answered everything and the peer has taken the answers, or
        until the peer takes nothing for ``linger`` seconds.
        """
        if not waits.has_asked:
            self._connection._meta.router.bridge.do(self._ask_whether_answered)
        while not (
            await waits.until(self._nothing_is_open, self.patience()) or self.is_impatient()
        ):
            pass

    # -- without a thread or a task ----------------------------------------------------------------

    def read_in_passing(self, poller: SocketPoller | None) -> bool:
        """Begin to read without a task: greet the receiver, read the bytes that came with the
        connection, and let the poller read the rest. False if there is something to wait for:
        :meth:`read_in_task` goes on.
        """
        incoming, meta = self._input, self._connection._meta
        if (
            poller is None
            or not poller.is_open
            or self._tls.phase is not _CLEAR
            or incoming.has_more
        ):
            return False
        self.connected = incoming.last
        greeting = self._greet()
        early, self._early = self._early, b""
        if greeting is not None and not meta.outbox.forward(self._target, greeting, meta.priority):
            self._held = (greeting, *incoming.take(early))
            return False
        try:
            if early:
                self._held = incoming.take(early)
                if self._held or not self._reads_on():
                    return False
            else:
                self._speaks_first = False
                if not self._read_once():
                    return self._ends_in_passing()
            poller.add(self._socket, self._read_once, self._watch_ended)
        except OSError as error:
            self._shutdown.end_after(error)
        return True

    def _watch_ended(self, failure: Exception | None) -> None:
        """The poller reads no further, and there is no task. On the loop."""
        reader = self._connection._meta.reader
        if isinstance(failure, OSError):
            self._shutdown.end_after(failure)
        elif failure is not None:
            reader.fail(failure)
        elif not self._ends_in_passing():
            reader.go_on()

    def _ends_in_passing(self) -> bool:
        """End the connection without a task, if the peer has closed its half, and all its messages
        are answered and the answers written. Otherwise nothing happens.
        """
        meta, incoming, shutdown = self._connection._meta, self._input, self._shutdown
        if incoming.state is not Input.ENDED:
            return False
        # Data that is held until the end of the root's turn may have to wait for the peer.
        self._writer.flush()
        if (
            incoming.has_more
            or incoming.unfinished
            or self._held
            or self._writer.pending
            or shutdown.cause is not None
            or shutdown.mistake is not None
            or not self._has_answers()
            or not meta.ending.can_run_in_passing()
        ):
            return False
        incoming.note_last()
        meta.ending.run_in_passing(Normal())
        return True

    def _has_answers(self) -> bool:
        """Whether the receiver has answered everything that the peer has sent. Notices of other
        connections that ended in the same turn may wait for it.
        """
        receiver = self._connection._meta.router.resolve(self._target)
        if has_served(receiver):
            return True
        box = None if receiver is None or not is_asleep(receiver) else receiver.mailbox
        return (
            box is not None
            and len(box) == len(box.main) <= _NOTICES
            and all(type(envelope[3]) is TCPDisconnected for envelope in box.main)
        )

    def _read_once(self) -> bool:
        """Read once and hand over, on the loop. Returns whether to keep watching the socket. False
        if the stream has ended or failed, or if the task has more to do or to wait for.
        """
        self._held = ()
        incoming, shutdown = self._input, self._shutdown
        try:
            data = self._socket.recv(incoming.size)
        except BlockingIOError:
            return True
        except OSError as error:
            shutdown.end_after(error)
            return False
        if not data:
            incoming.end()
            return False
        messages, to, meta = incoming.take(data), self._target, self._connection._meta
        if self._tls.phase is _POSSIBLE:
            self._held = messages
            return False
        outbox = meta.outbox
        for number, message in enumerate(messages):
            # `deliver` is the fast path and nearly always enough; `forward` does the same with more
            # checks.
            if not (
                outbox.deliver(to, message, meta.priority)
                or outbox.forward(to, message, meta.priority)
            ):
                self._held = messages[number:]
                return False
        return self._reads_on()

    def _reads_on(self) -> bool:
        """Whether the next step is to read again, without a wait for anything but bytes."""
        shutdown, incoming = self._shutdown, self._input
        return (
            shutdown.cause is None
            and incoming.state is _OPEN
            and not incoming.has_more
            and (
                self._writer.pending <= self._read_limit
                if shutdown.mistake is None
                else self._had_last_word
            )
        )

    # -- TLS ---------------------------------------------------------------------------------------

    def _connect(self) -> object:
        if self._tls.session is not None:
            self._finish_handshake()
            self._input.restart_clock()
        self.connected = self._input.last
        return self._greet()

    def _upgrade(self) -> TCPSecured:
        self._finish_handshake()
        assert self._tls.facts is not None
        return TCPSecured(self._connection._meta.id, self._tls.facts)

    def _finish_handshake(self) -> None:
        self._tls.secure()
        self._connection._meta.router.bridge.post(self._secured)

    def _first_bytes(self) -> bytes:
        """Bytes that the server has read, or that came together with the end of a handshake."""
        early, self._early = self._early, b""
        return early if self._tls.session is None else self._tls.session.take_rest()

    def _has_decided(self) -> bool:
        """Whether the receiver is done with the last message and all its answers are written, or
        the connection is ending.
        """
        return self._nothing_is_open() or self._shutdown.cause is not None

    def _starts_tls(self, was_last: bool) -> bool:
        """Whether TLS begins after the last message. ``was_last`` says that no other message came
        with it.
        """
        self._answered = False
        if (
            self._tls.phase is not TLSPhase.HANDSHAKE
            or self._shutdown.cause is not None
            or self._connection.stopping
        ):
            return False
        if not was_last or self._input.unfinished:
            self._shutdown.end(
                Cause.PROTOCOL_ERROR, "something came in clear after TLS was agreed on"
            )
            return False
        return True

    # -- the end of the stream ---------------------------------------------------------------------

    def _heard_last(self) -> bool:
        """Note that the peer has closed its half. Returns whether data may be left to write."""
        if self._connection.stopping:
            return False
        self._input.note_last()
        if self._writer.is_closing:
            # Data that was sent before the close is still to be written; do not wait for further
            # answers.
            self._answered = True
            return bool(self._writer.pending)
        return True

    def _close_after_last_word(self) -> None:
        """The receiver has had its last word: close, so that the peer sees the end. On the loop."""
        if not self._connection._meta.ending.over and not self._connection.stopping:
            self._shutdown.close(TCPClose())

    # -- waiting -----------------------------------------------------------------------------------

    def _may_read(self) -> bool:
        return self._writer.pending <= self._read_limit or self._shutdown.cause is not None

    def _may_parse(self) -> bool:
        return not self._input.is_paused or self._shutdown.cause is not None

    def _nothing_is_open(self) -> bool:
        return self._answered and not self._writer.pending

    def patience(self) -> float | None:
        """Seconds left for writing the last answers; None for no limit."""
        return self._shutdown.patience(self._input.last)

    def is_impatient(self) -> bool:
        """Whether the wait is over: the peer took nothing in all that time, or the connection is
        stopping.
        """
        patience = self.patience()
        return self._connection.stopping or (patience is not None and patience <= 0)

    def _ask_whether_answered(self) -> None:
        """Find out when everything is answered, on the loop: the receiver has served all messages,
        and then this handler has served the receiver's answers.
        """

        def answered() -> None:
            self._tls.withdraw()
            self._answered = True
            self.wake()

        def ask() -> None:
            receiver = meta.router.resolve(self._target)
            when_served(meta, receiver, lambda: when_served(meta, meta, answered))

        meta = self._connection._meta
        if len(meta.outbox):
            # The receiver is behind, and has not even got the last messages.
            meta.outbox.when_empty(_Then(ask))
        else:
            ask()

    @property
    def is_between_reads(self) -> bool:
        """Whether the connection is ready, and all messages of the last read are sent."""
        return self.connected is not None and not self._held and not self._early

    def is_held_up(self) -> bool:
        """Whether this side holds up the reading, and not the peer: the receiver has a backlog, or
        this handler has. On the loop.
        """
        meta = self._connection._meta
        outbox = meta.outbox
        if outbox.reader_waits or self._held or (self._wait is not None and self._wait.is_waiting):
            return True
        if self._buffered is not None and self._buffered.is_held_up:
            return True
        receiver = meta.router.resolve(self._target)
        return receiver is not None and receiver.mailbox.depth(Lane.MAIN) * 2 >= outbox.backlog

    @property
    def wait(self) -> ReaderWait:
        """The waits of its thread or its task for the loop. Only the reader waits."""
        if self._wait is None:
            self._wait = ReaderWait(self._connection)
        return self._wait

    def wake(self) -> None:
        """Let a reader that waits check its condition again. On the loop."""
        if self._wait is not None:
            self._wait.ring()

    def ring(self) -> None:
        """Some of the waiting bytes are out: the reader may go on. On the loop."""
        self.wake()
        if self._buffered is not None:
            self._buffered.resume()

    def release(self) -> None:
        """The connection is stopping: the reader must not wait for the loop. On the loop."""
        self.wake()
        if self._buffered is not None:
            self._buffered.release()

    def free(self) -> None:
        """Unblock a reader in the socket: shut down the reading half, so that the last answers can
        still be written.

        With both halves shut, Linux answers any further byte from the peer with a reset, and a
        reset destroys the data on its way to the peer. So if this side is half-closed already, a
        reader thread keeps reading until the peer's system has everything. A task needs no
        unblocking: it is cancelled.
        """
        sock = self._socket
        if (
            self._writer.state is not Output.HALF_CLOSED
            or self._shutdown.is_cut_short()
            or not count_unacknowledged(sock)
        ):
            sock.shutdown(socket.SHUT_RD)
        elif not self._connection._reads_in_task and not self._is_last_read:
            self._is_last_read = True
            if self._buffered is not None:
                self._buffered.end()
            start_beside(self._connection, self._free_when_taken)

    async def _free_when_taken(self) -> None:
        await self._shutdown.wait_until_taken()
        try:
            self._socket.shutdown(socket.SHUT_RD)
        except OSError:  # the reader has ended by itself, and the socket is closed
            pass


class _InThread:
    """The waits of a reader thread. They block, so their coroutines never suspend."""

    __slots__ = ("_reader", "has_asked")

    def __init__(self, reader: StreamReader) -> None:
        self._reader = reader
        self.has_asked: bool = False
        """The last read has asked whether everything is answered."""

    async def put(self, message: object) -> bool:
        """Send a message to the receiver, and wait for room. False if the message is lost."""
        meta = self._reader._connection._meta
        return meta.outbox.put(self._reader._target, message, meta.priority)

    async def until(self, holds: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until the condition holds. False if the time is over or the stop has come."""
        return self._reader.wait.in_thread(holds, timeout)

    async def shake_hands(self, tls: TLSLayer) -> bool:
        """Do the handshake of TLS. False if the peer closed in the middle of it."""
        return tls.shake_hands_in_thread(self._reader._socket)

    async def read(self) -> Sequence[Any]:
        """Wait for bytes, and make messages of them; at the end of the stream, end the input."""
        reader = self._reader
        incoming, sock, buffered = reader._input, reader._socket, reader._buffered
        if buffered is not None:
            if buffered.read(sock, reader._ask_whether_answered):
                incoming.grow()
                return ()
            self.has_asked = True
        else:
            data = sock.recv(incoming.size)
            if data and not reader._is_last_read:
                return incoming.take(data)
        incoming.end()
        return ()

    async def turn(self) -> None:
        """Do nothing: the system gives turns to threads."""


class _InTask:
    """The same waits of a reader task, which suspend it."""

    __slots__ = ("_poller", "_reader")

    has_asked: Final = False

    def __init__(self, reader: StreamReader, poller: SocketPoller | None) -> None:
        self._reader = reader
        self._poller = poller

    async def put(self, message: object) -> bool:
        return await hand_over(self._reader._connection._meta, self._reader._target, message)

    async def until(self, holds: Callable[[], bool], timeout: float | None = None) -> bool:
        return await self._reader.wait.in_task(holds, timeout)

    async def shake_hands(self, tls: TLSLayer) -> bool:
        return await tls.shake_hands(self._reader._socket)

    async def read(self) -> Sequence[Any]:
        reader = self._reader
        speaks_first, reader._speaks_first = reader._speaks_first, False
        if not speaks_first or reader._read_once():
            if self._poller is None:
                turns = reader._connection._meta.router.turns
                await watch_alone(reader._socket, reader._read_once, turns)
            else:
                await self._poller.watch(reader._socket, reader._read_once)
        return reader._held

    async def turn(self) -> None:
        """Let other tasks run before more messages are made of the same bytes."""
        await trio.lowlevel.checkpoint()
