"""A moment for the threads: keeps a loop that is never idle from starving them.

Every pass of a busy loop lets go of the interpreter lock for an instant, and each time starts anew
the interval that a waiting thread has to sit out before it may ask for the lock; so beside a loop
that always has work a thread may wait for seconds. A short real sleep every few milliseconds bounds
that. It is there only while reader threads exist, and does nothing while the loop has pauses of its
own.
"""

import time
from time import perf_counter
from typing import Final

import trio
from trio.abc import Instrument

__all__ = ["ThreadFairness"]

_EVERY: Final = 0.005
_PAUSE: Final = 0.0001


class ThreadFairness(Instrument):
    """Counts the reader threads of a node, and watches the loop while there are threads that must
    not starve.
    """

    def __init__(self) -> None:
        self._places = 0
        self._threads = 0
        self._stopped = False
        self._waited_from = 0.0
        self._rested = 0.0

    @property
    def readers(self) -> int:
        """How many places for reader threads are taken."""
        return self._places

    def take_place(self) -> None:
        """Count a reader."""
        self._places += 1
        self.watch()

    def give_place_back(self) -> None:
        """Count one off."""
        self._places -= 1
        self.unwatch()

    def watch(self) -> None:
        """Count a thread; the first one turns the watch on."""
        self._threads += 1
        if self._threads == 1 and not self._stopped:
            self._waited_from = self._rested = perf_counter()
            trio.lowlevel.add_instrument(self)

    def unwatch(self) -> None:
        """Count one off; the last one turns the watch off."""
        self._threads -= 1
        if self._threads == 0 and not self._stopped:
            trio.lowlevel.remove_instrument(self)

    def stop(self) -> None:
        """Turn the watch off for good, even if a thread was left behind: the loop is the host
        program's again.
        """
        if self._threads and not self._stopped:
            trio.lowlevel.remove_instrument(self)
        self._stopped = True

    def before_io_wait(self, timeout: float) -> None:
        """Called by trio once for each pass, before it looks for I/O."""
        self._waited_from = perf_counter()

    def after_io_wait(self, timeout: float) -> None:
        """Called by trio once for each pass, after that."""
        now = perf_counter()
        if now - self._waited_from > _PAUSE:
            # The loop really waited: that is pause enough. Whether it meant to says little, since
            # I/O may have been ready.
            self._rested = now
        elif now - self._rested > _EVERY:
            time.sleep(_PAUSE)
            self._rested = perf_counter()
