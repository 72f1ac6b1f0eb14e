"""A moment for the threads: keeps a loop that is never idle from starving them.

Every pass of a busy loop lets go of the interpreter lock for an instant, and each time starts anew the interval that a
waiting thread has to sit out before it may ask for the lock; so beside a loop that always has work a thread may wait for
seconds. A short real sleep every few milliseconds bounds that. It is there only while reader threads exist, and does
nothing while the loop has pauses of its own.
"""

import time
from time import perf_counter
from typing import Final

import trio
from trio.abc import Instrument

__all__ = ["Breather"]

_EVERY: Final = 0.005
_PAUSE: Final = 0.0001


class Breather(Instrument):
    """Watches the loop while there are reader threads."""

    def __init__(self) -> None:
        self._readers = 0
        self._rested = 0.0

    def reader_started(self) -> None:
        """Count a thread; the first one turns the watch on."""
        self._readers += 1
        if self._readers == 1:
            self._rested = perf_counter()
            trio.lowlevel.add_instrument(self)

    def reader_ended(self) -> None:
        """Count one off; the last one turns it off."""
        self._readers -= 1
        if self._readers == 0:
            trio.lowlevel.remove_instrument(self)

    @property
    def readers(self) -> int:
        """How many reader threads there are."""
        return self._readers

    def before_io_wait(self, timeout: float) -> None:
        """Called by trio once for each pass."""
        now = perf_counter()
        if timeout > 0:
            # The loop is about to wait: that is pause enough.
            self._rested = now
        elif now - self._rested > _EVERY:
            time.sleep(_PAUSE)
            self._rested = perf_counter()
