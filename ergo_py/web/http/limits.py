"""`TimeLimits`: the time that a peer has for a head, for a body, and for being idle."""

from collections.abc import Callable
from math import ceil, inf
from typing import Final, Protocol

from ..._core.tables.pending_calls import Deadline
from ..parsing.http1 import RequestError, late_head
from ..site import Site
from .phase import Phase
from .response_stream import ResponseStream

__all__ = ["EVENT_PAUSE", "FIRST", "TimeLimits", "Traffic"]

EVENT_PAUSE: Final = 15.0
"""Seconds after which a silent stream of events gets a comment."""
FIRST: Final = 1.0
"""Seconds for the first request of a connection when the server drains: it may be on its way. A
connection that has had a request is closed at once, as HTTP allows.
"""
_RATE_TIME: Final = 30.0
"""Seconds over which the rate of a body is measured."""


class Traffic(Protocol):
    """The counters of a connection."""

    @property
    def bytes_in(self) -> int:
        """Bytes that came from the peer."""
        ...

    @property
    def last_in(self) -> float:
        """When bytes last came from the peer."""
        ...

    @property
    def last_out(self) -> float:
        """When the operating system last took bytes for the peer."""
        ...


class TimeLimits:
    """The time limits of a connection's peer. They cost nothing while requests come whole: the
    deadline of a connection that is not idle is moved on when it expires.
    """

    __slots__ = (
        "_act",
        "_at",
        "_body_since",
        "_head_since",
        "_idle_time",
        "_paused_at",
        "_rate_from",
        "_site",
        "_traffic",
        "_watch",
        "arm",
        "now",
    )

    def __init__(self, traffic: Traffic, site: Site, act: Callable[[], None]) -> None:
        """``act`` is called when a limit may have passed; it asks :meth:`of_head`, :meth:`of_body`
        or its own limits, and calls :meth:`check_by` again.
        """
        self._traffic = traffic
        self._site = site
        self._act = act
        self._watch: Deadline | None = None
        self._at = inf
        self._head_since: float | None = None
        self._idle_time = min(site.options.head_timeout, site.options.idle_timeout)
        """Seconds after which an idle connection ends. Before the first request, they are those of
        a head: a peer without a request holds a place that others need.
        """
        self._body_since = 0.0
        self._paused_at = 0.0
        self._rate_from = 0.0, 0
        self.now: Callable[[], float] = site.now
        self.arm: Final = site.clock.arm_call

    def check_by(self, moment: float) -> None:
        """Act at ``moment`` at the latest."""
        if self._watch is not None:
            if self._at <= moment:
                return
            self._watch.abandon()
        self._watch = watch = Deadline(self._expired)
        self._at = moment
        # The clock has a queue for each duration: round it, so that connections share them.
        left = ceil((moment - self.now()) * 64) / 64
        self.arm(watch, max(0.0, left))

    def stop(self) -> None:
        """Act no more."""
        if self._watch is not None:
            self._watch.abandon()
            self._watch = None

    def _expired(self) -> None:
        self._watch = None
        self._act()

    def next(
        self, phase: Phase, now: float, *, stream: ResponseStream | None, reads_body: bool
    ) -> float:
        """When the next time limit passes; a time in the past if an idle connection has to end. A
        silent stream of events gets its comment here.

        Raises:
            RequestError: a time limit for the peer has passed.
        """
        if phase is Phase.HEAD:
            return self.of_head(now)
        if phase is Phase.BODY or phase is Phase.SKIPS or reads_body:
            return self.of_body(now)
        if stream is not None and stream.is_events:
            last = self._traffic.last_out
            if now >= last + EVENT_PAUSE and not stream.has_waiting:
                stream.write(b":\n\n")
                last = now
            return max(last + EVENT_PAUSE, now + 1.0)
        return now + self._site.options.idle_timeout

    # -- heads -------------------------------------------------------------------------------------

    def begin(self, head_since: float | None = None) -> None:
        """The connection is ready for its first request: the peer has its time from now on, or from
        the beginning of its head.
        """
        if head_since is None:
            self.check_by(self.now() + self._idle_time)
        else:
            self.begin_head(head_since)

    @property
    def in_head(self) -> bool:
        """Whether a head has begun that is not complete."""
        return self._head_since is not None

    def begin_head(self, since: float | None = None) -> None:
        """The first bytes of a head have come, perhaps at ``since``."""
        if self._head_since is None:
            self._head_since = began = self.now() if since is None else since
            self.check_by(began + self._site.options.head_timeout)

    def hasten(self) -> None:
        """The server drains, and the first request has not begun."""
        self._idle_time = min(self._idle_time, FIRST)
        self.check_by(self.of_head(self.now()))

    def end_head(self) -> None:
        """The head of a request is complete."""
        self._head_since = None
        self._idle_time = self._site.options.idle_timeout

    def of_head(self, now: float) -> float:
        """When the time for the head, or for the idle connection, is over. A time in the past means
        that the connection has to end.

        Raises:
            RequestError: the head took too long.
        """
        options = self._site.options
        if self._head_since is None:
            return max(self._traffic.last_in, self._traffic.last_out) + self._idle_time
        moment = self._head_since + options.head_timeout
        if moment <= now:
            raise late_head(options.head_timeout)
        return moment

    # -- bodies ------------------------------------------------------------------------------------

    def begin_body(self) -> None:
        """The body is wanted from now on."""
        self._body_since = now = self.now()
        self._rate_from = now, self._traffic.bytes_in
        self.check_by(now + min(self._site.options.body_timeout, _RATE_TIME))

    def pause_body(self) -> None:
        """A piece of the body is handed over, and the next is not wanted yet."""
        self._paused_at = self.now()

    def resume_body(self) -> None:
        """The next piece is wanted. The pause is not the peer's, and does not count for its rate;
        short waits add up, so that a peer cannot send single bytes for hours.
        """
        self._body_since = now = self.now()
        begun, size = self._rate_from
        self._rate_from = begun + now - self._paused_at, size
        self.check_by(now + min(self._site.options.body_timeout, _RATE_TIME))

    def of_body(self, now: float) -> float:
        """When the time for the body is over, unless more of it comes.

        Raises:
            RequestError: it paused for too long, or was too slow.
        """
        options, traffic = self._site.options, self._traffic
        pause = max(traffic.last_in, self._body_since) + options.body_timeout
        if pause <= now:
            raise RequestError(408, f"the body paused for {options.body_timeout:g} s")
        begun, size = self._rate_from
        if begun + _RATE_TIME <= now:
            if traffic.bytes_in - size < options.body_rate * _RATE_TIME:
                raise RequestError(
                    408, f"the body is slower than {options.body_rate:g} bytes a second"
                )
            begun = now
            self._rate_from = now, traffic.bytes_in
        return min(pause, begun + _RATE_TIME)
