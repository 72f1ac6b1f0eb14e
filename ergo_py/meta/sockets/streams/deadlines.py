"""`Deadlines`: the time limits of a connection for the handshake, for silence and for incomplete
frames, and its heartbeat.
"""

from math import inf
from typing import Final

from ...._core.tables.timers import Timer
from ...._core.verbs.meta_process import MetaProcess
from ...._core.vocabulary.envelopes import Priority
from ..messages import Cause
from ..options import StreamOptions
from .input import StreamInput
from .reader import StreamReader
from .shutdown import Reminder, Shutdown
from .tls_layer import TLSLayer, TLSPhase
from .writer import Writer

__all__ = ["TICK", "Deadlines"]

TICK: Final = Reminder()
"""Check the time limits."""


class Deadlines:
    """The time limits of a connection. Everything here happens on the loop."""

    __slots__ = (
        "_connection",
        "_excused",
        "_input",
        "_options",
        "_reader",
        "_shutdown",
        "_tick",
        "_tls",
        "_writer",
    )

    _options: StreamOptions

    def __init__(
        self,
        connection: MetaProcess,
        tls: TLSLayer,
        writer: Writer,
        shutdown: Shutdown,
        incoming: StreamInput,
        reader: StreamReader,
    ) -> None:
        self._connection = connection
        self._tls = tls
        self._writer = writer
        self._shutdown = shutdown
        self._input = incoming
        self._reader = reader
        self._tick: Timer | None = None
        self._excused = -inf
        """When the receiver was last found to be behind, if ever. The peer is not to blame for its
        silence until then: its bytes were not read.
        """

    def arm(self, options: StreamOptions) -> None:
        """Follow these time limits from now on: check when the next passes."""
        self._options = options
        now, writer = self._connection._now(), self._writer
        times = []
        if self._tls.phase is TLSPhase.HANDSHAKE:
            times.append(self._tls.handshake_since + options.handshake_timeout)
        else:
            if options.idle_timeout is not None:
                times.append(self._last_byte() + options.idle_timeout)
            if options.frame_timeout is not None:
                frame_since = self._input.frame_since
                times.append(
                    max(now if frame_since is None else frame_since, self._excused)
                    + options.frame_timeout
                )
            if options.keepalive_period is not None and not writer.is_closing:
                # While bytes wait for the peer, a heartbeat behind them would be of no use.
                times.append((now if writer.pending else writer.last) + options.keepalive_period)
        if self._tick is not None:
            self._tick.cancel()
        if times:
            # With high priority, ahead of the waiting messages: the timeouts exist for slow peers.
            self._tick = self._connection.send_after(
                max(0.001, min(times) - now), self._connection.id, TICK, priority=Priority.HIGH
            )

    def check(self) -> None:
        """End the connection if a time limit has passed; otherwise check again later."""
        options, now, writer = self._options, self._connection._now(), self._writer
        if self._tls.phase is TLSPhase.HANDSHAKE:
            if now >= self._tls.handshake_since + options.handshake_timeout:
                self._end(f"no TLS handshake within {options.handshake_timeout:g} s")
        else:
            if self._reader.is_held_up():
                self._excused = now
            idle, frame, alive = (
                options.idle_timeout,
                options.frame_timeout,
                options.keepalive_period,
            )
            frame_since = self._input.frame_since
            if idle is not None and now >= self._last_byte() + idle:
                self._end(f"silent for {idle:g} s")
            elif (
                frame is not None
                and frame_since is not None
                and now >= max(frame_since, self._excused) + frame
            ):
                self._end(f"a frame was not complete after {frame:g} s")
            elif (
                alive is not None
                and now >= writer.last + alive
                and not (writer.is_closing or writer.pending)
            ):
                writer.beat(options.keepalive_bytes)
        if self._shutdown.cause is None:
            self.arm(options)

    def _last_byte(self) -> float:
        return max(self._input.last, self._writer.last, self._excused)

    def _end(self, detail: str) -> None:
        self._shutdown.end(Cause.TIMEOUT, detail)
