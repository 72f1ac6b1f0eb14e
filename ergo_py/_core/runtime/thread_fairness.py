"""`ThreadFairness`: keeps a busy event loop from starving other threads of the GIL.

Each pass of a busy loop releases the GIL for an instant. That restarts the switch interval, which a
waiting thread must sit out before it may request the GIL. So beside a loop that is never idle a
thread may wait for seconds. A short real sleep every few milliseconds bounds that. It is active
only while reader threads exist, and does nothing while the loop pauses by itself.
"""

from time import perf_counter
from typing import Final

import trio
from trio.abc import Instrument

from .. import sources

__all__ = ["ThreadFairness"]

_EVERY: Final = 0.005
"""Seconds that a busy loop may run before it sleeps: Python's switch interval, after which a thread
would get the GIL from a program without a loop.
"""
_PAUSE: Final = 0.0001
"""Seconds of that sleep. A waiting thread takes the GIL as soon as the sleep begins, and keeps it
for as long as it needs; so the length matters to the loop only, which loses 2 % of its time.
"""


class ThreadFairness(Instrument):
    """Counts the reader threads of a node, and watches the loop while threads exist that must not
    starve.
    """

    def __init__(self) -> None:
        self._places = 0
        self._threads = 0
        self._stopped = False
        self._waited_from = 0.0
        self._rested = 0.0

    @property
    def readers(self) -> int:
        """The number of reader threads, including reserved places."""
        return self._places

    def take_place(self) -> None:
        """Count a reader thread."""
        self._places += 1
        self.watch()

    def give_place_back(self) -> None:
        """Discount a reader thread."""
        self._places -= 1
        self.unwatch()

    def watch(self) -> None:
        """Count a thread. The first thread turns the watch on."""
        self._threads += 1
        if self._threads == 1 and not self._stopped:
            # From now: the instrument begins in the middle of a pass, and must not take the time
            # before for work.
            self._waited_from = self._rested = perf_counter()
            trio.lowlevel.add_instrument(self)

    def unwatch(self) -> None:
        """Discount a thread. The last thread turns the watch off."""
        self._threads -= 1
        if self._threads == 0 and not self._stopped:
            trio.lowlevel.remove_instrument(self)

    def stop(self) -> None:
        """Turn the watch off for good, even if a thread was abandoned: the loop belongs to the host
        program again.
        """
        if self._threads and not self._stopped:
            trio.lowlevel.remove_instrument(self)
        self._stopped = True

    def before_io_wait(self, timeout: float) -> None:
        """Called by trio once per pass, before it polls for I/O."""
        self._waited_from = perf_counter()

    def after_io_wait(self, timeout: float) -> None:
        """Called by trio once per pass, after it has polled for I/O."""
        now = perf_counter()
        if now - self._waited_from > _PAUSE:
            # The loop really waited, which is pause enough. Measure it instead of reading
            # `timeout`: with I/O ready, a long timeout means no pause at all.
            self._rested = now
        elif now - self._rested > _EVERY:
            sources.threads.rest(_PAUSE)
            self._rested = perf_counter()
