"""Whose turn it is among the children of a supervisor: who is stopped, and who is started next. No
clock and no await.

One start is under way at a time; and in a group that restarts together, one stop.
"""

from collections import deque
from heapq import heapify, heappop, heappush
from itertools import count

from .actions import Action, Start, Stop, Wake
from .child import RUNNING, STARTING, STOPPING, Child
from .specs import Strategy

__all__ = ["Turns"]


class Turns:
    """The children that wait to be started or to be stopped together, in the order in which that is
    done.
    """

    def __init__(self, strategy: Strategy) -> None:
        self.starting: Child | None = None
        """The one whose start is under way; who learns what came of it says so here."""
        self.is_new = True
        """Nothing but the first start of each child has happened."""
        self.is_group = strategy in (Strategy.ALL_FOR_ONE, Strategy.REST_FOR_ONE)
        """Children restart in order, and not each for itself."""
        self._starts_together = strategy is Strategy.ALL_FOR_ONE
        """Nobody starts before everybody may."""
        self._tickets = count()
        self._asked: deque[Child] = deque()
        # Heaps whose outdated entries are skipped when they come up: (due, position) if each child
        # restarts for itself, (position) if they restart in order.
        self._queue: list[tuple[float, int, int, Child]] = []
        self._stops: list[tuple[int, int, Child]] = []
        self._cycling = 0
        """Children of a group that are to be stopped or are being stopped."""
        self._stopping: Child | None = None
        self._hold = 0.0
        """When the group may start, if nobody starts before everybody may."""
        self._wake: float | None = None

    # -- standing in line --------------------------------------------------------------------------

    def wait(self, child: Child, due: float) -> None:
        """Have a child started when it is its turn, and not before ``due``."""
        child.due = due
        child.ticket = next(self._tickets)
        if self.is_group:
            self._hold = max(self._hold, due)
            heappush(self._queue, (0.0, child.position, child.ticket, child))
        else:
            heappush(self._queue, (due, child.position, child.ticket, child))

    def go_first(self, child: Child) -> None:
        """Have a child that somebody waits for started before all others and at once."""
        self._asked.append(child)

    def cycle(self, children: list[Child]) -> None:
        """Have children stopped that come back together: nobody starts until all of them are down."""
        for child in children:
            child.cycles = True
        self._cycling += len(children)
        self._stops += [
            (-child.position, ticket, child)
            for child, ticket in zip(reversed(children), self._tickets, strict=False)
        ]
        heapify(self._stops)

    def leave_cycle(self, child: Child) -> None:
        """A child is down, so that its siblings need not wait for that."""
        if child.cycles:
            child.cycles = False
            self._cycling -= 1
        if self._stopping is child:
            self._stopping = None

    def woken(self) -> None:
        """The time of a :class:`Wake` has come."""
        self._wake = None

    # -- who is next -------------------------------------------------------------------------------

    def take(self, now: float, actions: list[Action]) -> None:
        """Begin what can be begun now, and say until when to wait for the rest."""
        if self._stops:
            self._next_stop(actions)
        if self.starting is None:
            child = self._next_start(now, actions)
            if child is not None:
                self.starting = child
                child.phase = STARTING
                actions.append(Start(child.name, child.reason if child.has_run else None))

    def _next_stop(self, actions: list[Action]) -> None:
        while self._stopping is None and self._stops:
            child = self._stops[0][2]
            if child.cycles and child.phase is STARTING:
                return
            heappop(self._stops)
            if child.cycles and child.phase is RUNNING:
                child.phase = STOPPING
                self._stopping = child
                actions.append(Stop(child.name, returns=child.wanted))

    def _next_start(self, now: float, actions: list[Action]) -> Child | None:
        if self._asked:
            # It still waits: nothing else can be asked of a child that somebody waits for.
            return self._asked.popleft()
        queue = self._queue
        while queue and not (queue[0][3].is_waiting and queue[0][3].ticket == queue[0][2]):
            heappop(queue)
        if not queue:
            self.is_new = False
            return None
        if self._cycling:
            return None
        child = queue[0][3]
        due = self._group_due(now) if self._starts_together else child.due
        if due > now:
            if self._wake != due:
                self._wake = due
                actions.append(Wake(due))
            return None
        return child

    def _group_due(self, now: float) -> float:
        """When the last of those that wait may start."""
        if self._hold > now:
            # All that wait are in the queue: those that somebody asked for have been taken before.
            self._hold = max(child.due for *_, child in self._queue if child.is_waiting)
        return self._hold
