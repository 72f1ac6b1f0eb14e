"""Messages to be sent later: a heap with lazy deletion, whatever their number.

Timers that are over are taken out when more than half of a table are. A long table is gone through
in steps, a few timers at each cancellation, so that no single turn has to look at all of them.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Any, Final

__all__ = ["Owned", "Timer", "Timers"]

_SHORT: Final = 1024
"""A table of that length is gone through at once."""
_STEP: Final = 8
"""How many entries of a longer table are looked at for each timer that is over."""


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
        if owner.timers is None:
            owner.timers = Owned()
        owner.timers.append(self)

    @property
    def active(self) -> bool:
        """Whether it is still going to fire."""
        return self._table is not None

    def cancel(self) -> bool:
        """Take it back, from any thread. True if it was still going to fire; nothing of it is sent
        afterwards.
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
        owned.one_is_over()

    def __repr__(self) -> str:
        return f"<Timer {'active' if self.active else 'over'}>"


class Owned(list[Timer]):
    """The timers of one owner, which end with it; a set would take five times as much room for
    each.

    Those that are over are forgotten once more than half of them are.
    """

    __slots__ = ("_next", "_over", "_short")

    def __init__(self, short: int = _SHORT) -> None:
        super().__init__()
        self._over = 0
        self._next = 0
        """Where the next step begins."""
        self._short = short

    def one_is_over(self) -> None:
        """Count one that has fired or was cancelled."""
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
            # The last one takes its place.
            last = self.pop()
            if self._next < len(self):
                self[self._next] = last
            self._over -= 1


def _here(function: Callable[[], bool]) -> bool:
    return function()


class Timers:
    """The heap. ``seq`` comes second in its entries, so that timers themselves are never compared.

    ``run`` has a function run in the thread of the table and gives back what it says.
    """

    __slots__ = ("_cancelled", "_heap", "_leaving", "_seq", "_short", "run")

    TRIM = 512
    """How many timers that are over are taken from the heads of the heaps at a time."""

    def __init__(
        self, run: Callable[[Callable[[], bool]], bool] = _here, short: int = _SHORT
    ) -> None:
        self.run = run
        self._heap: list[tuple[float, int, Timer]] = []
        self._leaving: list[tuple[float, int, Timer]] = []
        """A heap half of which was over: those that are not move to the other heap, step by step.
        """
        self._seq = count()
        self._cancelled = 0
        """How many in both heaps are over."""
        self._short = short

    def __len__(self) -> int:
        return len(self._heap) + len(self._leaving) - self._cancelled

    def arm(self, timer: Timer, deadline: float) -> None:
        """Let ``timer`` fire at ``deadline``."""
        heappush(self._heap, (deadline, next(self._seq), timer))

    def cancelled(self) -> None:
        """Count a timer that is dead in the heap; rebuild once more than half of it is."""
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
            # Without its last entry a heap is still one.
            entry = leaving.pop()
            if entry[2]._table is None:
                self._cancelled -= 1
            else:
                heappush(self._heap, entry)

    def clear(self) -> None:
        """End all of them: none will fire."""
        entries = self._heap + self._leaving
        self._heap, self._leaving, self._cancelled = [], [], 0
        for _, _, timer in entries:
            if timer._table is not None:
                timer._finish()

    def next(self) -> float:
        """The deadline of the first living timer, or infinity.

        Where very many were cancelled it may be that of one of these: then more of them are gone
        the next time.
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
        """The heap that has the first entry."""
        heap, leaving = self._heap, self._leaving
        return leaving if leaving and (not heap or leaving[0] < heap[0]) else heap

    def expire(self, now: float, most: int, fire: Callable[[Timer], None]) -> int:
        """Fire at most ``most`` timers that are due at ``now``; return how many. A periodic one is
        armed anew afterwards.
        """
        fired = 0
        while fired < most and self.next() <= now:
            deadline, _, timer = heappop(self._first())
            if timer._table is None:
                # One of very many that were cancelled: the rest of them can wait until others have
                # had a turn.
                self._cancelled -= 1
                break
            fired += 1
            # It is out of the heap now, so one that is cancelled while it fires must not be counted
            # as dead in there.
            timer._queued = False
            fire(timer)
            if timer._table is None:
                continue
            timer._queued = True
            if timer.period:
                # Turns that were missed are not made up for, and the rhythm is kept.
                late = max(0.0, now - deadline)
                self.arm(timer, deadline + timer.period * (1 + late // timer.period))
            else:
                timer._finish()
        return fired
