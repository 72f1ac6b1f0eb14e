"""`Schedule`: the moments at which entities have work to do. `Bell`: wakes their keeper."""

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Final

import trio
from trio.lowlevel import Task, checkpoint, current_task

from .._core.messaging.clock import Clock
from .._core.messaging.waiters import NoMailbox
from .._core.runtime.parking import TrioTurns, park_as, wake_with
from .._core.tables.pending_calls import Deadline
from ..entity_handles import Address
from .stores.store import Store

__all__ = ["Bell", "Schedule"]

_BATCH: Final = 256
"""Moments that are read from the store at once. Twice as many if most of them are known: they may
belong to entities whose messages cannot be delivered for a while.
"""
_HORIZON: Final = 30.0
"""Seconds after which the store is asked again which entities have work to do. Earlier moments are
kept in memory.
"""


class Bell:
    """Wakes the task of the keeper: when it is rung, and at a moment.

    If no other task is ready to run, the keeper takes its step in the turn of the task that rings
    (`Handoff`): a lone command would wait for a turn of the loop that nothing else needs. If others
    are ready, the keeper waits for the next turn, so that their commands join the commit.

    An alarm that is earlier than the next moment stays: the next moment becomes later with each use
    of an entity, and a cancel scope for each wait was an eighth of the time of a lone command.
    """

    __slots__ = ("_alarm", "_alarm_at", "_clock", "_is_rung", "_turns", "_waiting")

    def __init__(self, clock: Clock, turns: TrioTurns) -> None:
        self._clock = clock
        self._turns = turns
        self._waiting: _Waiting | None = None
        """The task that waits."""
        self._is_rung = False
        self._alarm: Deadline | None = None
        self._alarm_at = inf
        """The moment of the alarm, of trio's clock."""

    def ring(self) -> None:
        """End the wait of the task, or its next one."""
        self._is_rung = True
        waiting = self._waiting
        if waiting is not None:
            if self._turns.is_last():
                self._turns.wake_caller(waiting)
            else:
                wake_with(waiting.task, waiting)

    async def wait_until(self, moment: float) -> None:
        """Wait until it rings, at this moment at the latest."""
        if moment < self._alarm_at:
            self.close()
            self._alarm, self._alarm_at = Deadline(self._end_alarm), moment
            self._clock.arm_call(self._alarm, max(0.0, moment - trio.current_time()))
        if self._is_rung:
            await checkpoint()
        else:
            waiting = self._waiting = _Waiting(current_task())
            try:
                await park_as(waiting.task, waiting)
            finally:
                # Also if the wait is cancelled: nothing waits any more.
                self._waiting = None
        self._is_rung = False

    def _end_alarm(self) -> None:
        self._alarm_at = inf
        self.ring()

    def close(self) -> None:
        """Let the alarm never ring."""
        if self._alarm is not None:
            self._alarm.abandon()


class _Waiting:
    """A wait of the keeper's task."""

    __slots__ = ("task",)

    mailbox: NoMailbox = NoMailbox()

    def __init__(self, task: Task) -> None:
        self.task: Task = task


class Schedule:
    """The next moments, in memory, and the moment of the next look into the store.

    Moments are of the wall clock, and are kept as moments of trio's clock: when the wall clock is
    set, the store is asked again at the same intervals.
    """

    __slots__ = ("_is_put_off", "_limit", "_moments", "_next", "_now", "_poll_at")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._moments: list[tuple[float, Address]] = []
        self._next: dict[Address, float] = {}
        """The next moment of each entity. Later moments in the heap are void."""
        self._poll_at = -inf
        self._limit = _BATCH
        self._is_put_off = False

    def __len__(self) -> int:
        return len(self._next)

    def count(self, kind: str) -> int:
        """How many entities of a kind have work to do before the store is asked again."""
        return sum(address.kind == kind for address in self._next)

    def add(self, moment: float, address: Address) -> bool:
        """Note the moment of an entity. True if it is the next of all. The store keeps later
        moments.
        """
        delay = moment - self._now()
        if delay >= _HORIZON:
            return False
        at = trio.current_time() + max(delay, 0.0)
        if self._next.get(address, inf) <= at:
            return False
        self._next[address] = at
        heappush(self._moments, (at, address))
        return self._moments[0] == (at, address)

    def next(self) -> float:
        """The next moment, of trio's clock."""
        return min(self._moments[0][0] if self._moments else inf, self._poll_at)

    def take_due(self) -> list[Address]:
        """The entities that have work to do now, at most a batch."""
        if not self._moments:
            return []
        now, found = trio.current_time(), list[Address]()
        while self._moments and self._moments[0][0] <= now and len(found) < _BATCH:
            at, address = heappop(self._moments)
            if self._next.get(address) == at:
                del self._next[address]
                found.append(address)
        return found

    def has_due(self) -> bool:
        """Whether an entity has work to do now."""
        return bool(self._moments) and self._moments[0][0] <= trio.current_time()

    def is_poll_due(self, *, is_room: bool) -> bool:
        """Whether the store is to be asked now. Without room it is asked when there is room."""
        now = trio.current_time()
        is_due = self._is_put_off or self._poll_at <= now
        self._is_put_off = is_due and not is_room
        if self._is_put_off:
            self._poll_at = now + 1.0
        return is_due and is_room

    def poll_soon(self) -> None:
        """Ask the store at the next look."""
        self._poll_at = -inf

    async def poll(
        self,
        store: Store,
        is_here: Callable[[Address], bool],
        is_known: Callable[[Address], bool],
    ) -> None:
        """Ask the store for the next moments, and note those of entities that are here. More at
        once are read only if most of these were known: they cannot be handled for a while.

        Raises:
            EntityStoreError: it cannot be read. It is asked again in a second.
        """
        self._poll_at = trio.current_time() + 1.0
        found = await store.due(self._now() + _HORIZON, self._limit)
        new = 0
        for number, (moment, address) in enumerate(found, 1):
            if not number % _BATCH:
                await checkpoint()
            if is_here(address):
                new += address not in self._next and not is_known(address)
                self.add(moment, address)
        pause = _HORIZON
        if len(found) < self._limit:
            self._limit = _BATCH
        else:
            # All moments are known until the last of these.
            later = found[-1].moment - self._now()
            pause = min(max(later, 0.01 if new else 0.1), _HORIZON)
            if new * 2 < len(found):
                self._limit *= 2
        self._poll_at = trio.current_time() + pause
