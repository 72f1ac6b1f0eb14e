"""`Stream`: a connection over a stream socket. This module has its handler and its shutdown; the
reader is in `connection_reader`.
"""

import socket
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any, Final

import trio

from ..._core.metas.handler import wait_in_callback
from ..._core.processes.process import Process
from ..._core.tables.pending_calls import Caller
from ..._core.tables.timers import Timer
from ..._core.vocabulary.envelopes import CALL, MESSAGE, Envelope, Lane, Priority
from ..._core.vocabulary.errors import NotAllowedError, Reject, UnhandledCallError
from ..._core.vocabulary.ids import PID, Alias, Target
from ..._core.vocabulary.messages import NO_REPLY, Why
from ..._core.vocabulary.reasons import Killed, Normal, Reason
from ..readers import ReaderKind
from .connection_reader import StreamReader
from .messages import (
    ORDERLY,
    Address,
    Cause,
    TCPClose,
    TCPDisconnected,
    TCPSend,
    TCPSet,
    TCPStartTLS,
)
from .options import StreamOptions, WhenSlow
from .sessions import end_session
from .socket_setup import (
    abort_on_close,
    close_socket,
    count_unacknowledged,
    describe,
    discard_input,
    prepare,
)
from .tls import TLSSession

__all__ = ["Stream"]


class _Tick:
    """A connection's message to itself: check the timeouts."""


class _Linger:
    """A connection's message to itself: check whether ``linger`` seconds have passed for a peer
    that has not closed, or has not taken the data that a close waits for.
    """


_TICK, _LINGER = _Tick(), _Linger()
_TOO_LATE: Final = (
    "TCPStartTLS is for a connection with start_tls=True, once; send it while you serve the "
    "message that agrees on it"
)
_TAKES_NOTHING: Final = 1.0
"""Seconds that closing waits for a peer whose system acknowledges nothing."""
_LOOK_FIRST, _LOOK_LAST = 0.001, 0.05
"""Seconds between two checks of the acknowledged bytes: at first, and at most."""


class Stream(StreamReader):
    """A connection: bytes from the peer become messages to the receiver, and messages to its alias
    become bytes to the peer.
    """

    kind = "stream"

    def __init__(self, to: Target | None, options: StreamOptions, reader: ReaderKind) -> None:
        super().__init__(to, options, reader)
        self._given: socket.socket | None = None
        """The socket, if the caller or a server made it."""
        self._actor: Process | None = None
        """The session: the process that was spawned for this connection alone. It owns the
        connection, and ends with it.
        """
        self._when_gone: Callable[[Any], None] | None = None
        self._early: list[tuple[bytes, Caller | None]] = []
        """Data that was sent before the TLS handshake was done, or while TLS had to read first."""
        self._closers: list[Caller] = []
        self._has_said_goodbye = False
        self._half_closed = False
        self._tick: Timer | None = None
        self._look: Timer | None = None
        self._excused = -inf
        """When the receiver was last found to be behind, if ever. The peer is not to blame for its
        silence until then: its bytes were not read.
        """
        self._looked_at: Envelope | None = None
        """The last of the messages behind a slow peer that was checked for a close."""
        self._close_waits: tuple[float, float] | None = None
        """A close that waits behind a slow peer, or is under way: its start, and how long the peer
        may take nothing.
        """
        self.messages_out = 0

    # -- birth -------------------------------------------------------------------------------------

    async def init(self) -> None:
        """Open the socket, unless it was given, and set everything up."""
        self._set_up(await self._open())
        await self._secure_first(self._socket)
        self._arm_tick()

    def _begin_in_passing(self) -> bool:
        """Do the same for an accepted socket, without a task: there is nothing to wait for."""
        if self._server is None:
            return False
        assert self._given is not None
        self._set_up(self._given)
        self._arm_tick()
        return True

    def _set_up(self, sock: socket.socket) -> None:
        self._socket = sock
        self.since = self.last_in = self._handshake_since = self._now()
        if self._actor is not None:
            # Keep a value that the behaviour has set itself.
            vars(self._actor.behaviour).setdefault("connection", self.id)
        self.opened(sock, unblock=self._free_reader)
        prepare(sock, self._options, blocking=self.reader == "thread")
        self.local, self.peer = self._ends(sock)
        self._writer.use(sock, self._now)

    async def _open(self) -> socket.socket:
        raise NotImplementedError

    def _ends(self, sock: socket.socket) -> tuple[Address, Address]:
        raise NotImplementedError

    async def _secure_first(self, sock: socket.socket) -> None:
        """For clients: do the TLS handshake before anything else, so that ``spawn_meta`` raises the
        error of a bad certificate.
        """

    # -- the handler -------------------------------------------------------------------------------

    def _serve_in_passing(self, message: Any, _sender: PID | Alias) -> bool:
        """Write on the spot, in the sender's turn, if that needs no waiting."""
        if type(message) is not TCPSend or self._closing or self._writer.pending:
            return False
        if self._secure is None:
            # The same as _put(), without its call: this is the hot path.
            self.messages_out += 1
            try:
                if self._writer.write(message.data):
                    return True
            except OSError as error:
                self._broken(error)
        elif self._put(message.data, None):
            return True
        self._drop_if_slow()
        return True

    async def handle_message(self, message: Any, sender: PID | Alias) -> None:
        """Serve the messages of the receiver and of other processes."""
        if type(message) is TCPSend:
            if self._closing:
                self._meta.router.dead_letters.add(sender, self.id, message, Why.STOPPING)
                return
            self._put(message.data, None)
            if self._writer.pending > self._options.write_limit:
                await self._peer_is_slow()
        elif type(message) is TCPClose:
            self._close(message)
        elif type(message) is TCPSet:
            self._change(message)
        elif type(message) is TCPStartTLS:
            if self._may_start_tls:
                self._start_tls(message)
            else:
                # End the connection: the sender believes that it is encrypted from now on.
                self._end(Cause.FAILED, _TOO_LATE)
        elif message is _TICK:
            self._look_at_clock()
        elif message is _LINGER:
            # Otherwise the close is still in the mailbox: this message only had to wake the
            # handler.
            if self._closing:
                self._look_at_close()
        else:
            super().handle_message(message, sender)

    async def handle_call(self, request: Any, caller: Caller) -> object:
        """Serve requests: the caller waits until the work is done."""
        if type(request) is TCPSend:
            if self._closing:
                raise Reject(BrokenPipeError("the connection is closing"))
            if self._put(request.data, caller):
                return len(request.data)
            if self._writer.pending > self._options.write_limit:
                await self._peer_is_slow()
            return NO_REPLY
        if type(request) is TCPClose:
            self._closers.append(caller)
            self._close(request)
            return NO_REPLY
        if type(request) is TCPSet:
            self._change(request)
            return None
        if type(request) is TCPStartTLS:
            if not self._may_start_tls:
                raise Reject(NotAllowedError(_TOO_LATE))
            self._start_tls(request)
            return None
        raise Reject(UnhandledCallError(self.id, request, type(self).__qualname__))

    def _put(self, data: bytes, caller: Caller | None) -> bool:
        """Write, or keep for later. True if everything is in the operating system; otherwise the
        caller gets its answer as soon as it is.
        """
        secure = self._secure
        self.messages_out += 1
        try:
            if secure is None:
                done = self._writer.write(data)
            elif not self._may_write or self._early or not secure.encrypt(data):
                self._early.append((bytes(data), caller))
                return False
            else:
                done = self._writer.write(secure.take())
        except OSError as error:
            self._broken(error)
            return False
        if not done and caller is not None:
            self._writer.answer_when_written(caller, len(data))
        return done

    def _secured(self) -> None:
        """The handshake is done: idle and frame timeouts count from now on, and data that was sent
        too early is written. On the loop.
        """
        if not self.stopping:
            self._arm_tick()
        self._write_secured()

    def _write_secured(self) -> None:
        """Write the output of TLS itself, and data that was sent too early. On the loop."""
        if self._secure is None or not self._may_write or self._meta.gone.is_set():
            return
        early, self._early = self._early, []
        try:
            # Skip an empty write: it fails, too, once the socket is shut for writing.
            if said := self._secure.take():
                self._writer.write(said)
        except OSError as error:
            self._broken(error)
        for data, caller in early:
            self.messages_out -= 1
            if self._put(data, caller) and caller is not None:
                self._meta.kernel.calls.reply(caller, len(data), None)
        self._half_close_if_due()

    def _written(self) -> None:
        """Some of the waiting bytes are out."""
        self._half_close_if_due()
        self._ring()
        self._meta.wake()

    # -- slow peers --------------------------------------------------------------------------------

    def _drop_if_slow(self) -> None:
        waiting, limit = self._writer.pending, self._options.write_limit
        if waiting > limit and self._options.when_slow is WhenSlow.DROP:
            self._end(Cause.SLOW_PEER, f"{waiting} bytes are waiting, {limit} may")

    async def _peer_is_slow(self) -> None:
        self._drop_if_slow()
        await wait_in_callback(self._meta, self._waits_for_peer)

    def _waits_for_peer(self) -> bool:
        """Whether the next message has to wait. A close among the waiting messages must not wait
        forever, so look for it.
        """
        box = self._meta.mailbox
        if self._writer.pending <= self._options.write_limit or self.cause is not None:
            if not box.main:
                # Let the message go: it may be large, and no later message needs it as a mark.
                self._looked_at = None
            return False
        for envelope in reversed(box.main):
            if envelope is self._looked_at:
                break
            self._heed_close(envelope)
        self._looked_at = box.main[-1] if box.main else None
        for envelope in box.system:
            self._heed_close(envelope)
        if self._close_waits is not None and (self._look is None or not self._look.active):
            self._look_at_close()
        return self.cause is None

    def _heed_close(self, envelope: Envelope) -> None:
        message = envelope[3]
        if type(message) is TCPClose and envelope[0] in (MESSAGE, CALL):
            if message.abort:
                self._close(message)
            elif self._close_waits is None:
                self._close_waits = self._patience_of(message)

    # -- TLS that begins later ---------------------------------------------------------------------

    def _new_secure(self) -> TLSSession:
        secure: TLSSession = self._server.new_secure()
        return secure

    def _start_tls(self, message: TCPStartTLS) -> None:
        """Let the waiting reader start the handshake once ``say`` is written. Everything after that
        is encrypted.
        """
        self._may_start_tls = False
        try:
            secure = self._new_secure()
        except OSError as error:
            self._end(Cause.FAILED, f"TLS cannot begin: {describe(error)}")
            return
        if message.say:
            self._put(message.say, None)
        self._secure = secure
        self._may_write = False
        self._handshake_since = self._now()
        self._arm_tick()

    # -- settings ----------------------------------------------------------------------------------

    def _change(self, settings: TCPSet) -> None:
        self._options = replace(self._options, **settings.changes())
        self._writer.stall = self._options.idle_timeout
        self._arm_tick()

    # -- time --------------------------------------------------------------------------------------

    def _arm_tick(self) -> None:
        options, now = self._options, self._now()
        times = []
        if self._secure is not None and not self._may_write:
            times.append(self._handshake_since + options.handshake_timeout)
        else:
            if options.idle_timeout is not None:
                times.append(
                    max(self.last_in, self._writer.last, self._excused) + options.idle_timeout
                )
            if options.frame_timeout is not None:
                times.append(
                    max(now if self.frame_since is None else self.frame_since, self._excused)
                    + options.frame_timeout
                )
            if options.keepalive_period is not None and not self._closing:
                # While bytes wait for the peer, a heartbeat behind them would be of no use.
                times.append(
                    (now if self._writer.pending else self._writer.last) + options.keepalive_period
                )
        if self._tick is not None:
            self._tick.cancel()
        if times:
            # With high priority, ahead of the waiting messages: the timeouts exist for slow peers.
            self._tick = self.send_after(
                max(0.001, min(times) - now), self.id, _TICK, priority=Priority.HIGH
            )

    def _look_at_clock(self) -> None:
        options, now = self._options, self._now()
        if self._secure is not None and not self._may_write:
            if now >= self._handshake_since + options.handshake_timeout:
                self._end(Cause.TIMEOUT, f"no TLS handshake within {options.handshake_timeout:g} s")
        else:
            if self._is_held_up():
                self._excused = now
            idle, frame, alive = (
                options.idle_timeout,
                options.frame_timeout,
                options.keepalive_period,
            )
            if (
                idle is not None
                and now >= max(self.last_in, self._writer.last, self._excused) + idle
            ):
                self._end(Cause.TIMEOUT, f"silent for {idle:g} s")
            elif (
                frame is not None
                and self.frame_since is not None
                and now >= max(self.frame_since, self._excused) + frame
            ):
                self._end(Cause.TIMEOUT, f"a frame was not complete after {frame:g} s")
            elif (
                alive is not None
                and now >= self._writer.last + alive
                and not (self._closing or self._writer.pending)
            ):
                self._put(options.keepalive_bytes, None)
                self.messages_out -= 1
        if self.cause is None:
            self._arm_tick()

    # -- closing -----------------------------------------------------------------------------------

    def _close(self, how: TCPClose) -> None:
        if how.abort:
            self._aborting = True
            self._end(Cause.ASKED, "aborted")
        elif not self._closing:
            self._closing = True
            self._close_waits = self._patience_of(how)
            self._half_close_if_due()
            self._look_at_close()

    def _close_after_last_word(self) -> None:
        """The receiver has had its last word: close, so that the peer sees the end. On the loop."""
        if not self._meta.gone.is_set() and not self.stopping:
            self._close(TCPClose())

    def _patience_of(self, how: TCPClose) -> tuple[float, float]:
        return self._now(), self._options.linger if how.linger is None else how.linger

    def _look_at_close(self) -> None:
        """End the connection if ``linger`` has passed since the peer last took a byte; otherwise
        check again when it has.
        """
        assert self._close_waits is not None
        since, patience = self._close_waits
        left = max(since, self._writer.last) + patience - self._now()
        if self._look is not None:
            self._look.cancel()
        if left > 0:
            self._look = self.send_after(left, self.id, _LINGER, priority=Priority.HIGH)
        elif self._writer.pending:
            self._end(Cause.ASKED, f"the peer took nothing for {patience:g} s")
        else:
            self._end(Cause.ASKED, "the peer did not close its side")

    def _half_close_if_due(self) -> None:
        """Half-close: once all is written, tell the peer that no more data follows. TLS writes a
        notice for this, which may have to wait, too.
        """
        if (
            not self._closing
            or self._half_closed
            or not self._may_write
            or self._early
            or self._writer.pending
        ):
            return
        try:
            if self._say_goodbye():
                self._half_closed = True
                self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._broken(error)

    def _say_goodbye(self) -> bool:
        """Write TLS's ``close_notify``, once. Returns whether no bytes wait for the peer."""
        if self._secure is None or not self._may_write or self._has_said_goodbye:
            return True
        self._has_said_goodbye = True
        self._secure.say_goodbye()
        return self._writer.write(self._secure.take())

    async def terminate(self, reason: Reason) -> None:
        """Graceful shutdown: write the data that was sent before the end was requested, as far as
        the peer takes it; close; tell the receiver.
        """
        if self._write_last(reason):
            await self._wait_until_taken()
        message = self._close_for_good()
        if message is not None:
            await self.send_wait(self._receiver(), message)
        self._end_actor()

    def _end_in_passing(self, reason: Reason) -> bool:
        """Do the same without a task, if the peer has closed its half and taken everything, and the
        receiver takes the message at once.
        """
        if self._server is None or self.cause is not Cause.EOF or self._writer.pending:
            return False
        meta, to = self._meta, self._receiver()
        receiver = meta.router.resolve(to)
        if len(meta.outbox) or (
            receiver is not None and meta.outbox.is_behind(receiver, Lane.MAIN)
        ):
            return False
        self._write_last(reason)
        message = self._close_for_good()
        if message is not None:
            self.send(to, message)
        self._end_actor()
        return True

    def _free_reader(self) -> None:
        """Unblock a reader in the socket: shut down the reading half, so that the last answers can
        still be written.

        With both halves shut, Linux answers any further byte from the peer with a reset, and a
        reset destroys the data on its way to the peer. So if this side is half-closed already, a
        reader thread keeps reading until the peer's system has everything. A task needs no
        unblocking: it is cancelled.
        """
        sock = self._socket
        if not self._half_closed or self._is_cut_short() or not count_unacknowledged(sock):
            sock.shutdown(socket.SHUT_RD)
        elif self.reader == "thread" and not self._is_last_read:
            self._is_last_read = True
            self._start_on_loop(self._free_reader_when_taken)

    async def _free_reader_when_taken(self) -> None:
        await self._wait_until_taken()
        try:
            self._socket.shutdown(socket.SHUT_RD)
        except OSError:  # the reader has ended by itself, and the socket is closed
            pass

    def _is_cut_short(self) -> bool:
        """Whether the peer gets no time to take the data on its way."""
        return self._aborting or bool(self._meta.kills)

    def _write_last(self, reason: Reason) -> bool:
        """Write the remaining data, as far as the peer takes it. Returns whether the peer gets time
        to take it.

        A peer that does not get everything sees a reset: it must not mistake a part for the whole.
        """
        self._set_cause(Cause.ASKED, "" if isinstance(reason, Normal) else str(reason))
        orderly = self.cause in ORDERLY and not self._aborting and not isinstance(reason, Killed)
        try:
            is_cut_off = not self._take_rest(orderly)
            if orderly:
                self._say_goodbye()
            if (
                self._aborting
                or is_cut_off
                or self._writer.pending
                or (self._early and self.connected is not None)
            ):
                # The operating system must not keep data for a peer that does not take it.
                abort_on_close(self._socket)
                return False
        except OSError:  # the peer is gone, so there is nothing to wait for
            return False
        if self._peer_is_done or self._is_cut_short() or self._meta.abandoned:
            # A peer that has closed its half sends nothing more that could be answered with a
            # reset.
            return False
        return self._half_closed or self.cause in (Cause.ASKED, Cause.NO_RECEIVER)

    async def _wait_until_taken(self) -> None:
        """Wait until the peer's system has acknowledged everything, and discard the peer's input
        meanwhile.

        If the socket were closed earlier, the system would answer the peer's next byte with a
        reset, and a reset destroys the data on its way to the peer. The wait ends early if the peer
        takes nothing for a while, or if the time limit of this shutdown passes.
        """
        sock, meta = self._socket, self._meta
        now = self._now()
        end = now + min(self._options.linger, meta.options.stop_timeout / 2)
        if self._close_waits is not None:
            since, linger = self._close_waits
            end = min(max(since, self._writer.last) + linger, now + meta.options.stop_timeout / 2)
        patience, pause = now + _TAKES_NOTHING, _LOOK_FIRST
        try:
            discard_input(sock)
            left = count_unacknowledged(sock)
            while left and not self._is_cut_short() and self._now() < min(end, patience):
                await trio.sleep(pause)
                pause = min(2 * pause, _LOOK_LAST)
                discard_input(sock)
                before, left = left, count_unacknowledged(sock)
                if left < before:
                    patience = self._now() + _TAKES_NOTHING
        except OSError:  # the peer is gone
            return

    def _close_for_good(self) -> TCPDisconnected | None:
        """Close the socket and answer the callers. Returns the message for the receiver."""
        pending = self._writer.pending
        self._writer.close()
        close_socket(self._socket, in_use=self._meta.abandoned)
        for caller in self._closers:
            self._meta.kernel.calls.reply(caller, None, None)
        if self._when_gone is not None:
            self._when_gone(self)
        if self.connected is None:
            return None
        lost = f"{pending} bytes were not sent" if pending else ""
        return TCPDisconnected(
            self.id,
            self.cause or Cause.ASKED,
            self.bytes_in,
            self._writer.written,
            self._now() - self.connected,
            "; ".join(filter(None, (self.detail, lost))),
        )

    def _end_actor(self) -> None:
        if self._actor is not None:
            end_session(self._actor, self.id)

    def _take_rest(self, orderly: bool) -> bool:
        """Serve the messages that were in the mailbox when the end was requested. False if some of
        the data is not sent.
        """
        meta, may_send, is_whole, is_closed = (
            self._meta,
            orderly and not self._closing,
            True,
            self._closing,
        )
        for envelope in list(meta.mailbox.drain()):
            kind, _, ref, payload = envelope
            if kind in (MESSAGE, CALL):
                if type(payload) is TCPClose:
                    # A close gets its wish: the connection is ending.
                    may_send, is_closed = False, True
                    if kind == CALL:
                        self._closers.append(ref)
                    continue
                if type(payload) is TCPSend and may_send:
                    done = self._put(payload.data, None)
                    if kind == CALL and done:
                        meta.kernel.calls.reply(ref, len(payload.data), None)
                    if kind == MESSAGE or done:
                        continue
                if type(payload) is TCPSend:
                    # Data that was sent after a close is not part of the stream.
                    is_whole = is_whole and is_closed
                if isinstance(payload, _Tick | _Linger):
                    continue
            meta.router.discard(envelope, meta.id, Why.UNHANDLED_AT_EXIT, meta)
        return is_whole

    # -- looking inside ----------------------------------------------------------------------------

    @property
    def bytes_out(self) -> int:
        """Bytes that the operating system has taken."""
        return self._writer.written

    @property
    def pending(self) -> int:
        """Bytes that wait for the peer to take them."""
        return self._writer.pending

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """The counters and the state of the connection, by name."""
        facts = {
            "local": str(self.local),
            "peer": str(self.peer),
            "receiver": str(self._receiver()),
            "reader": self.reader,
            "state": "handshake"
            if self.connected is None
            else "closing"
            if self._closing
            else "open",
            "bytes in": str(self.bytes_in),
            "bytes out": str(self.bytes_out),
            "messages in": str(self.messages_in),
            "messages out": str(self.messages_out),
            "pending": str(self.pending),
            "unfinished": str(self._decoder.unfinished),
            "drops": str(self._meta.outbox.dropped + self._meta.mailbox.dropped),
            "age": f"{self._now() - self.since:.3f}",
            "tls": "" if self.tls is None else str(self.tls),
        }
        return {item: facts[item] for item in items if item in facts} if items else facts
