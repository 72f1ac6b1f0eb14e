"""`Timers`: delayed and periodic messages, in a heap with lazy deletion.

Finished timers stay in a table until they are more than half of it, and are removed then. A long
table is cleaned up in steps, a few timers at each cancellation, so that no single turn of the loop
has to visit all of them.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Any, Final

from ..vocabulary.public_names import show_public_names

__all__ = ["Owned", "Timer", "Timers"]

_SHORT: Final = 1024
"""Tables up to this length are cleaned up at once."""
_STEP: Final = 8
"""Entries of a longer table that are checked for each finished timer."""


class Timer:
    """A message that will be sent once, or every ``period`` seconds, until cancelled or until its
    owner ends.
    """

    __slots__ = ("_queued", "_table", "message", "owner", "period", "priority", "to")

    def __init__(
        self, table: "Timers", owner: Any, to: Any, message: Any, priority: Any, period: float
    ) -> None:
        self._table: Timers | None = table
        self._queued = True
        self.owner: Any = owner
        self.to: Any = to
        self.message: Any = message
        self.priority = priority
        self.period = period
        owner.add_timer(self)

    @property
    def active(self) -> bool:
        """Whether the timer is still going to fire."""
        return self._table is not None

    def cancel(self) -> bool:
        """Cancel the timer, from any thread. True if it was still going to fire. It sends nothing
        after this returns.
        """
        table = self._table
        return False if table is None else table.run(self._cancel)

    def _cancel(self) -> bool:
        table = self._table
        if table is None:
            return False
        self._finish()
        if self._queued:
            table.cancelled()
        return True

    def _finish(self) -> None:
        owned = self.owner.timers
        self._table = self.owner = self.to = self.message = None
        owned.count_finished()

    def __repr__(self) -> str:
        return f"<Timer {'active' if self.active else 'over'}>"


class Owned(list[Timer]):
    """The timers of an owner, which end with it. A list, since a set takes five times the memory
    per timer.

    Finished timers are removed once they are more than half of the list.
    """

    __slots__ = ("_next", "_over", "_short")

    def __init__(self, short: int = _SHORT) -> None:
        super().__init__()
        self._over = 0
        self._next = 0
        """The index at which the next cleanup step begins."""
        self._short = short

    def count_finished(self) -> None:
        """Count a timer that has fired or was cancelled."""
        self._over += 1
        if self._over > 8 and self._over * 2 > len(self):
            if len(self) > self._short:
                self._step()
            else:
                self[:] = [timer for timer in self if timer._table is not None]
                self._over = 0

    def _step(self) -> None:
        for _ in range(min(_STEP, len(self))):
            if self._next >= len(self):
                self._next = 0
            if self[self._next]._table is not None:
                self._next += 1
                continue
            # Swap-remove: the last timer takes the place of the finished timer.
            last = self.pop()
            if self._next < len(self):
                self[self._next] = last
            self._over -= 1


def _here(function: Callable[[], bool]) -> bool:
    return function()


class Timers:
    """The heap of all timers. Its entries are (deadline, sequence number, timer): the number keeps
    timers from being compared.

    ``run`` runs a function in the thread of the table and returns its result.
    """

    __slots__ = ("_cancelled", "_heap", "_leaving", "_seq", "_short", "run")

    TRIM = 512
    """Maximal number of finished timers that `next` removes from the heaps at a time."""

    def __init__(
        self, run: Callable[[Callable[[], bool]], bool] = _here, short: int = _SHORT
    ) -> None:
        self.run = run
        self._heap: list[tuple[float, int, Timer]] = []
        self._leaving: list[tuple[float, int, Timer]] = []
        """A long heap that was half finished. Its active timers move to ``_heap``, step by step."""
        self._seq = count()
        self._cancelled = 0
        """Number of finished timers in both heaps."""
        self._short = short

    def __len__(self) -> int:
        return len(self._heap) + len(self._leaving) - self._cancelled

    def arm(self, timer: Timer, deadline: float) -> None:
        """Let ``timer`` fire at ``deadline``."""
        heappush(self._heap, (deadline, next(self._seq), timer))

    def cancelled(self) -> None:
        """Count a cancelled timer that is still in the heap. Rebuild the heap once more than half
        of it is cancelled.
        """
        self._cancelled += 1
        if self._leaving:
            self._step()
        elif self._cancelled > 64 and self._cancelled * 2 > len(self._heap):
            if len(self._heap) > self._short:
                self._leaving, self._heap = self._heap, []
                self._step()
            else:
                self._heap = [entry for entry in self._heap if entry[2]._table is not None]
                heapify(self._heap)
                self._cancelled = 0

    def _step(self) -> None:
        leaving = self._leaving
        for _ in range(min(_STEP, len(leaving))):
            # Removing the last entry keeps the heap property.
            entry = leaving.pop()
            if entry[2]._table is None:
                self._cancelled -= 1
            else:
                heappush(self._heap, entry)

    def clear(self) -> None:
        """End all timers: none will fire."""
        entries = self._heap + self._leaving
        self._heap, self._leaving, self._cancelled = [], [], 0
        for _, _, timer in entries:
            if timer._table is not None:
                timer._finish()

    def next(self) -> float:
        """The deadline of the first active timer, or infinity.

        After very many cancellations it may be the deadline of a cancelled timer: the trimming is
        bounded, and the next time trims more.
        """
        heap = self._first()
        for _ in range(self.TRIM):
            if not heap or heap[0][2]._table is not None:
                break
            heappop(heap)
            self._cancelled -= 1
            heap = self._first()
        return heap[0][0] if heap else inf

    def _first(self) -> list[tuple[float, int, Timer]]:
        """The heap with the earliest entry."""
        heap, leaving = self._heap, self._leaving
        return leaving if leaving and (not heap or leaving[0] < heap[0]) else heap

    def expire(self, now: float, most: int, fire: Callable[[Timer], None]) -> int:
        """Fire at most ``most`` timers that are due at ``now``; return their number. Periodic
        timers are armed again afterwards.
        """
        fired = 0
        while fired < most and self.next() <= now:
            deadline, _, timer = heappop(self._first())
            if timer._table is None:
                # next() reached its bound among very many cancelled timers. Continue in the next
                # turn, so that other tasks run first.
                self._cancelled -= 1
                break
            fired += 1
            # The timer has left the heap. If `fire` cancels it, `_cancel` must not count it as a
            # cancelled entry of the heap.
            timer._queued = False
            fire(timer)
            if timer._table is None:
                continue
            timer._queued = True
            if timer.period:
                # Skip missed periods, and keep the phase.
                late = max(0.0, now - deadline)
                self.arm(timer, deadline + timer.period * (1 + late // timer.period))
            else:
                timer._finish()
        return fired


show_public_names(__name__)
