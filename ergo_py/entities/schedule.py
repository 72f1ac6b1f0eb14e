"""`Schedule`: the moments at which entities have work to do."""

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Final

import trio

from ..entity_handles import Address
from .stores.store import Store

__all__ = ["Schedule"]

_BATCH: Final = 256
"""Moments that are read from the store at once. Twice as many if there are more: the first of them
may belong to entities whose messages cannot be delivered for a while.
"""
_HORIZON: Final = 30.0
"""Seconds after which the store is asked again which entities have work to do. Earlier moments are
kept in memory.
"""


class Schedule:
    """The next moments, in memory, and the moment of the next look into the store.

    Moments are of the wall clock, and are kept as moments of trio's clock: when the wall clock is
    set, the store is asked again at the same intervals.
    """

    __slots__ = ("_limit", "_moments", "_next", "_now", "_poll_at")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._moments: list[tuple[float, Address]] = []
        self._next: dict[Address, float] = {}
        """The next moment of each entity. Later moments in the heap are void."""
        self._poll_at = -inf
        self._limit = _BATCH

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
        """The entities that have work to do now."""
        if not self._moments:
            return []
        now, found = trio.current_time(), list[Address]()
        while self._moments and self._moments[0][0] <= now:
            at, address = heappop(self._moments)
            if self._next.get(address) == at:
                del self._next[address]
                found.append(address)
        return found

    def is_poll_due(self) -> bool:
        """Whether the store is to be asked now."""
        return self._poll_at <= trio.current_time()

    async def poll(self, store: Store) -> None:
        """Ask the store for the next moments.

        Raises:
            EntityStoreError: it cannot be read. It is asked again in a second.
        """
        self._poll_at = trio.current_time() + 1.0
        found = await store.due(self._now() + _HORIZON, self._limit)
        for moment, address in found:
            self.add(moment, address)
        is_all = len(found) < self._limit
        self._limit = _BATCH if is_all else self._limit * 2
        self._poll_at = trio.current_time() + (_HORIZON if is_all else 0.1)
