"""`Timers`: delayed and periodic messages, in a heap with lazy deletion.

Finished timers stay in a table until they are more than half of it, and are removed then. A long
table waits until they are three quarters of it, and is then cleaned up in parts, a part for every
few hundred cancellations, so that no single turn of the loop has to visit all of them.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from operator import call
from typing import Any, ClassVar, Final

from ..vocabulary.public_names import show_public_names

__all__ = ["Owned", "Timer", "TimerHeap", "Timers"]

_SHORT: Final = 1024
"""Tables up to this length are cleaned up at once. A part of a longer table has twice this length.
"""
_FEW_OWNED: Final = 8
"""Finished timers that may stay in any list of an owner."""
_FEW_IN_HEAP: Final = 64
"""Finished timers that may stay in any heap."""
_PER_TIMER: Final = 8
"""Entries of a long table that are checked for each finished timer, on average."""


class Timer:
    """A message that will be sent at ``deadline``, once or then every ``period`` seconds, until
    cancelled or until its owner ends.
    """

    __slots__ = ("_table", "message", "owner", "period", "priority", "to")

    def __init__(
        self,
        table: "Timers",
        deadline: float,
        owner: Any,
        to: Any,
        message: object,
        priority: Any,
        period: float,
    ) -> None:
        self._table: Timers | None = table
        self.owner: Any = owner
        self.to: Any = to
        self.message: Any = message
        self.priority: Final = priority
        self.period: float = period
        owned = owner.timers
        if owned is None:
            owned = owner.begin_timers()
        owned.append(self)
        table._heap.push(deadline, next(table._seq), self)

    @property
    def active(self) -> bool:
        """Whether the timer is still going to fire."""
        return self._table is not None

    def cancel(self) -> bool:
        """Cancel the timer, from any thread. True if it was still going to fire. It sends nothing
        after this returns.
        """
        table = self._table
        if table is None:
            return False
        if table.thread() != table.own_thread:
            return table.run(self.cancel)
        # A function call for each of these counts would take twice as long as all of the rest.
        owned: Owned = self.owner.timers
        self._table = self.owner = self.to = self.message = None
        owned._over = over = owned._over + 1
        if over >= owned._due:
            owned._clean_up()
        if table._firing is not self:
            table._cancelled = over = table._cancelled + 1
            if over >= table._due:
                table._clean_up()
        return True

    def __repr__(self) -> str:
        return f"<Timer {'active' if self.active else 'over'}>"


class Owned(list[Timer]):
    """The timers of an owner, which end with it. A list, since a set takes five times the memory
    per timer.
    """

    __slots__ = ("_due", "_next", "_over", "_short")

    def __init__(self, short: int = _SHORT) -> None:
        super().__init__()
        self._over = 0
        """Timers in it that have fired or were cancelled."""
        self._due = _FEW_OWNED + 1
        """The number of finished timers at which to look whether they are too many."""
        self._next = 0
        """The index at which the next part of a long list begins; 0 if all parts are clean."""
        self._short = short

    def _clean_up(self) -> None:
        size, is_long = len(self), len(self) > self._short
        if self._next or (is_long and self._over * 4 > size * 3):
            part = _part(self._short)
            self._clean_part(part)
            if self._next:
                self._due = self._over + part // _PER_TIMER
                return
        elif not is_long and self._over * 2 > size:
            self[:] = _active(self)
            self._over = 0
        self._due = _too_many(len(self), self._short, _FEW_OWNED)

    def _clean_part(self, length: int) -> None:
        start = self._next
        if len(self) - start <= 2 * length:
            last = self[start:]
            self[start:] = staying = _active(last)
            self._over -= len(last) - len(staying)
            self._next = 0
            return
        end = start + length
        staying = _active(self[start:end])
        # The last timers of the list take the places of the finished timers. They are checked next.
        self._over -= length - len(staying)
        rest = len(self) - (length - len(staying))
        self[start:end] = staying + self[rest:]
        del self[rest:]
        self._next = start + len(staying)


def _active(timers: list[Timer]) -> list[Timer]:
    return [timer for timer in timers if timer._table is not None]


def _part(short: int) -> int:
    """The length of a part of a long table."""
    return max(_PER_TIMER, 2 * short)


def _too_many(size: int, short: int, few: int) -> int:
    """The number of finished timers that are too many for a table of this size."""
    return max(few, size // 2 if size <= short else size * 3 // 4) + 1


class TimerHeap(list[tuple[float, int, Timer]]):
    """Timers by their deadlines. An entry is (deadline, sequence number, timer): the number keeps
    timers from being compared. The C extension has a heap without tuples in its place.
    """

    __slots__ = ()

    def push(self, deadline: float, number: int, timer: Timer) -> None:
        """Add a timer."""
        heappush(self, (deadline, number, timer))

    def take(self) -> tuple[float, int, Timer]:
        """Remove the first entry, and return it."""
        return heappop(self)

    def drop_finished(self) -> None:
        """Remove all timers that have fired or were cancelled."""
        self[:] = _pending(self)
        heapify(self)

    def move_part(self, length: int, to: "TimerHeap") -> int:
        """Remove the last entries, which keeps the heap property, and add the active timers among
        them to another heap. Returns how many have finished.
        """
        last = self[-length:]
        del self[-length:]
        staying = _pending(last)
        for entry in staying:
            to.push(*entry)
        return len(last) - len(staying)


def _pending(entries: list[tuple[float, int, Timer]]) -> list[tuple[float, int, Timer]]:
    return [entry for entry in entries if entry[2]._table is not None]


def _only_thread() -> int:
    return 0


class Timers:
    """All timers of a node, in a heap.

    ``run`` runs a function in the thread of the table and returns its result. ``thread`` returns
    the number of the thread that calls it; the table belongs to the thread that creates it.
    """

    __slots__ = (
        "_cancelled",
        "_due",
        "_firing",
        "_heap",
        "_leaving",
        "_seq",
        "_short",
        "own_thread",
        "run",
        "thread",
    )

    heap_type: ClassVar[type[TimerHeap]] = TimerHeap
    """The class of the heaps, which the C extension replaces."""

    TRIM = 512
    """Maximal number of finished timers that `next` removes from the heaps at a time."""

    def __init__(
        self,
        run: Callable[[Callable[[], bool]], bool] = call,
        thread: Callable[[], int] = _only_thread,
        short: int = _SHORT,
    ) -> None:
        self.run: Final = run
        self.thread: Final = thread
        self.own_thread: int = thread()
        self._heap = self.heap_type()
        self._leaving = self.heap_type()
        """A long heap of mostly finished timers. Its active timers move to ``_heap``, a part at a
        time.
        """
        self._seq = count()
        self._cancelled = 0
        """Number of finished timers in both heaps."""
        self._due = _FEW_IN_HEAP + 1
        """The number at which to look whether they are too many."""
        self._firing: Timer | None = None
        """The timer that `expire` has taken from a heap. If its message makes its owner cancel it,
        it must not count as a finished timer of the heap.
        """
        self._short = short

    def __len__(self) -> int:
        return len(self._heap) + len(self._leaving) - self._cancelled

    def _clean_up(self) -> None:
        size, is_long = len(self._heap), len(self._heap) > self._short
        if not self._leaving:
            if is_long and self._cancelled * 4 > size * 3:
                self._leaving, self._heap = self._heap, self.heap_type()
            elif not is_long and self._cancelled * 2 > size:
                self._heap.drop_finished()
                self._cancelled = 0
        if self._leaving:
            part = _part(self._short)
            self._cancelled -= self._leaving.move_part(part, self._heap)
            if self._leaving:
                self._due = self._cancelled + part // _PER_TIMER
                return
        self._due = _too_many(len(self._heap), self._short, _FEW_IN_HEAP)

    def clear(self) -> None:
        """End all timers: none will fire."""
        for _, _, timer in (*self._heap, *self._leaving):
            timer.cancel()
        self._heap, self._leaving, self._cancelled = self.heap_type(), self.heap_type(), 0

    def next(self) -> float:
        """The deadline of the first active timer, or infinity.

        After very many cancellations it may be the deadline of a cancelled timer: the trimming is
        bounded, and the next time trims more.
        """
        heap = self._first()
        for _ in range(self.TRIM):
            if not heap or heap[0][2]._table is not None:
                break
            heap.take()
            self._cancelled -= 1
            heap = self._first()
        return heap[0][0] if heap else inf

    def _first(self) -> TimerHeap:
        """The heap with the earliest entry."""
        heap, leaving = self._heap, self._leaving
        return leaving if leaving and (not heap or leaving[0] < heap[0]) else heap

    def expire(self, now: float, most: int, fire: Callable[[Timer], None]) -> int:
        """Fire at most ``most`` timers that are due at ``now``; return their number. Periodic
        timers are armed again afterwards.
        """
        fired = 0
        while fired < most and self.next() <= now:
            deadline, _, timer = self._first().take()
            if timer._table is None:
                # next() reached its bound among very many cancelled timers. Continue in the next
                # turn, so that other tasks run first.
                self._cancelled -= 1
                break
            fired += 1
            self._firing = timer
            fire(timer)
            if timer._table is None:
                continue
            if timer.period:
                # Skip missed periods, and keep the phase.
                late = max(0.0, now - deadline)
                again = deadline + timer.period * (1 + late // timer.period)
                self._heap.push(again, next(self._seq), timer)
            else:
                timer.cancel()
        self._firing = None
        if fired and not self._leaving:
            # The heap is shorter now.
            self._due = _too_many(len(self._heap), self._short, _FEW_IN_HEAP)
        return fired


show_public_names(__name__, {"ergo_py.info": "Timer"})
