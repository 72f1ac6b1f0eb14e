"""`Shutdown`: why a connection ends, and how it closes: half-close, patience with the peer, and the
last data.
"""

import ssl
from typing import Final

import trio

from ...._core.tables.pending_calls import Caller
from ...._core.tables.timers import Timer
from ...._core.verbs.meta_process import MetaProcess
from ...._core.vocabulary.envelopes import CALL, MESSAGE, Envelope, Priority
from ...._core.vocabulary.messages import Why
from ...._core.vocabulary.reasons import Custom, Killed, Normal, Reason
from ..messages import ORDERLY, Cause, TCPClose, TCPSend
from ..options import StreamOptions
from ..socket_setup import (
    abort_on_close,
    close_socket,
    count_unacknowledged,
    describe,
    discard_input,
)
from .tls_layer import TLSLayer
from .writer import Output, Writer

__all__ = ["LINGER", "Reminder", "Shutdown"]

_TAKES_NOTHING: Final = 1.0
"""Seconds that closing waits for a peer whose system acknowledges nothing."""
_LOOK_FIRST, _LOOK_LAST = 0.001, 0.05
"""Seconds between two checks of the acknowledged bytes: at first, and at most."""


class Reminder:
    """A connection's message to itself: check the time."""


LINGER: Final = Reminder()
"""Check whether ``linger`` seconds have passed for a peer that has not closed, or has not taken the
data that a close waits for.
"""


class Shutdown:
    """The end of a connection. Either half may set the cause; the rest happens on the loop."""

    __slots__ = (
        "_close_waits",
        "_closers",
        "_connection",
        "_is_aborted",
        "_linger",
        "_look",
        "_looked_at",
        "_tls",
        "_writer",
        "cause",
        "detail",
        "is_silent",
        "mistake",
    )

    def __init__(
        self, connection: MetaProcess, tls: TLSLayer, writer: Writer, options: StreamOptions
    ) -> None:
        self._connection = connection
        self._tls = tls
        self._writer = writer
        self._is_aborted = False
        """The peer is to see a reset."""
        self._closers: list[Caller] = []
        self._close_waits: tuple[float, float] | None = None
        """A close that waits behind a slow peer, or is under way: its start, and how long the peer
        may take nothing.
        """
        self._look: Timer | None = None
        self._looked_at: Envelope | None = None
        """The last of the messages behind a slow peer that was checked for a close."""
        self.cause: Cause | None = None
        """Why the connection is ending."""
        self.detail: str = ""
        self.is_silent: bool = False
        """The receiver is not told of the end: the connection goes on in the next program."""
        self.mistake: str | None = None
        """The protocol error of the peer, if the peer is to hear of it."""
        self._linger = options.linger
        """Seconds that closing waits for a peer that takes nothing, or does not close its side."""

    def change(self, options: StreamOptions) -> None:
        """Follow these time limits from now on."""
        self._linger = options.linger

    @property
    def is_requested(self) -> bool:
        """Whether a process has closed the connection."""
        return self._close_waits is not None or self._is_aborted

    def be_silent(self) -> None:
        """Do not tell the receiver of the end."""
        self.is_silent = True

    # -- causes ------------------------------------------------------------------------------------

    def note_mistake(self, mistake: str) -> None:
        """Note a protocol error of the peer. It is the cause of the end, even if a close is
        requested later.
        """
        self.mistake = mistake

    def set_cause(self, cause: Cause, detail: str = "") -> None:
        """Note why the connection ends. The first cause counts."""
        if self.cause is not None:
            return
        if self.mistake is not None and cause in ORDERLY:
            cause, detail = Cause.PROTOCOL_ERROR, self.mistake
        # The detail first: the other half may read both as soon as there is a cause.
        self.detail = detail
        self.cause = cause

    def end(self, cause: Cause, detail: str = "") -> None:
        """End the connection, from either half. The first cause counts, also while only the last
        answers are still to be written.
        """
        self.set_cause(cause, detail)
        if self._connection.stopping:
            return
        cause, detail = self.cause or cause, self.detail
        reason = (
            Normal()
            if cause in ORDERLY
            else Custom(f"{cause.value}: {detail}" if detail else cause.value)
        )
        # Keep these ends out of the node's record of crashes, or peers could push real crashes out
        # of it.
        meta = self._connection._meta
        meta.router.bridge.do(meta.finish_without_blame, reason)

    def end_after(self, error: BaseException) -> None:
        """End the connection because of a socket error. Ignored while the connection is stopping,
        since stopping causes such errors.
        """
        if self._connection.stopping:
            return
        if isinstance(error, TimeoutError):
            self.end(Cause.TIMEOUT, describe(error))
        elif isinstance(error, ssl.SSLError):
            self.end(Cause.PROTOCOL_ERROR, f"TLS: {error.reason or error}")
        else:
            self.end(Cause.RESET, describe(error))

    def abort(self, cause: Cause, detail: str) -> None:
        """Note the cause, and let the peer see a reset."""
        self._is_aborted = True
        self.set_cause(cause, detail)

    def is_cut_short(self) -> bool:
        """Whether the peer gets no time to take the data on its way."""
        return self._is_aborted or bool(self._connection._meta.ending.kills)

    # -- a close that was requested ----------------------------------------------------------------

    def close(self, how: TCPClose, caller: Caller | None = None) -> None:
        """Close, as the message says. The caller gets its answer when the connection is closed."""
        if caller is not None:
            self._closers.append(caller)
        if how.abort:
            self._is_aborted = True
            self.end(Cause.ASKED, "aborted")
        elif not self._writer.is_closing:
            self._close_waits = self._patience_of(how)
            self._writer.stop_accepting()
            self.look()

    def _patience_of(self, how: TCPClose) -> tuple[float, float]:
        return self._connection._now(), self._linger if how.linger is None else how.linger

    def look(self) -> None:
        """End the connection if ``linger`` has passed since the peer last took a byte; otherwise
        check again when it has.
        """
        assert self._close_waits is not None
        since, patience = self._close_waits
        connection, writer = self._connection, self._writer
        left = max(since, writer.last) + patience - connection._now()
        if self._look is not None:
            self._look.cancel()
        if left > 0:
            self._look = connection.send_after(left, connection.id, LINGER, priority=Priority.HIGH)
        elif writer.pending:
            self.end(Cause.ASKED, f"the peer took nothing for {patience:g} s")
        else:
            self.end(Cause.ASKED, "the peer did not close its side")

    def waits_for_peer(self) -> bool:
        """Whether the next message has to wait, since the peer is slow. A close among the waiting
        messages must not wait forever, so look for it.
        """
        box = self._connection._meta.mailbox
        if not self._writer.is_slow or self.cause is not None:
            if not box.main:
                # Let the message go: it may be large, and no later message needs it as a mark.
                self._looked_at = None
            return False
        for envelope in reversed(box.main):
            if envelope is self._looked_at:
                break
            self._heed(envelope)
        self._looked_at = box.main[-1] if box.main else None
        for envelope in box.system:
            self._heed(envelope)
        if self._close_waits is not None and (self._look is None or not self._look.active):
            self.look()
        return self.cause is None

    def _heed(self, envelope: Envelope) -> None:
        message = envelope[3]
        if type(message) is TCPClose and envelope[0] in (MESSAGE, CALL):
            if message.abort:
                self.close(message)
            elif self._close_waits is None:
                self._close_waits = self._patience_of(message)

    # -- time for the last answers -----------------------------------------------------------------

    def patience(self, last_in: float) -> float | None:
        """Seconds left for writing the last answers to a peer that was heard at ``last_in``. None
        while closing: a close has its own time limit.
        """
        return (
            None
            if self._writer.is_closing
            else max(last_in, self._writer.last) + self._linger - self._connection._now()
        )

    # -- the end -----------------------------------------------------------------------------------

    def write_last(self, reason: Reason, is_connected: bool, peer_is_done: bool) -> bool:
        """Write the remaining data, as far as the peer takes it. Returns whether the peer gets time
        to take it.

        A peer that does not get everything sees a reset: it must not mistake a part for the whole.
        """
        self.set_cause(Cause.ASKED, "" if isinstance(reason, Normal) else str(reason))
        writer = self._writer
        orderly = self.cause in ORDERLY and not self._is_aborted and not isinstance(reason, Killed)
        try:
            is_cut_off = not self._take_rest(orderly)
            if orderly:
                writer.say_goodbye()
            if (
                self._is_aborted
                or is_cut_off
                or writer.pending
                or (is_connected and self._tls.has_early_data)
            ):
                # The operating system must not keep data for a peer that does not take it.
                abort_on_close(writer.sock)
                return False
        except OSError:  # the peer is gone, so there is nothing to wait for
            return False
        if peer_is_done or self.is_cut_short() or self._connection._meta.abandoned:
            # A peer that has closed its half sends nothing more that could be answered with a
            # reset.
            return False
        return writer.state is Output.HALF_CLOSED or self.cause in (Cause.ASKED, Cause.NO_RECEIVER)

    def _take_rest(self, orderly: bool) -> bool:
        """Serve the messages that were in the mailbox when the end was requested. False if some of
        the data is not sent. A connection that has moved sends none: it is too late.
        """
        meta, writer = self._connection._meta, self._writer
        is_whole, is_closed = True, writer.is_closing
        may_send = orderly and not is_closed and not self.is_silent
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
                    done = writer.put(payload.data, None)
                    if kind == CALL and done:
                        meta.kernel.calls.reply(ref, len(payload.data), None)
                    if kind == MESSAGE or done:
                        continue
                if type(payload) is TCPSend:
                    # Data that was sent after a close is not part of the stream.
                    is_whole = is_whole and is_closed
                if isinstance(payload, Reminder):
                    continue
            meta.router.discard(envelope, meta.id, Why.UNHANDLED_AT_EXIT, meta)
        return is_whole

    async def wait_until_taken(self) -> None:
        """Wait until the peer's system has acknowledged everything, and discard the peer's input
        meanwhile.

        If the socket were closed earlier, the system would answer the peer's next byte with a
        reset, and a reset destroys the data on its way to the peer. The wait ends early if the peer
        takes nothing for a while, or if the time limit of this shutdown passes.
        """
        sock, tell_time = self._writer.sock, self._connection._now
        most = self._connection._meta.options.stop_timeout / 2
        now = tell_time()
        end = now + min(self._linger, most)
        if self._close_waits is not None:
            since, linger = self._close_waits
            end = min(max(since, self._writer.last) + linger, now + most)
        patience, pause = now + _TAKES_NOTHING, _LOOK_FIRST
        try:
            discard_input(sock)
            left = count_unacknowledged(sock)
            while left and not self.is_cut_short() and tell_time() < min(end, patience):
                await trio.sleep(pause)
                pause = min(2 * pause, _LOOK_LAST)
                discard_input(sock)
                before, left = left, count_unacknowledged(sock)
                if left < before:
                    patience = tell_time() + _TAKES_NOTHING
        except OSError:  # the peer is gone
            return

    def close_socket(self) -> str:
        """Close the socket and answer the callers. Returns the detail of the end."""
        meta, writer = self._connection._meta, self._writer
        lost = f"{writer.pending} bytes were not sent" if writer.pending else ""
        writer.close()
        close_socket(writer.sock, in_use=meta.abandoned)
        for caller in self._closers:
            meta.kernel.calls.reply(caller, None, None)
        return "; ".join(filter(None, (self.detail, lost)))
