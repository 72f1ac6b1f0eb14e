"""`StartOrder`: decides which child of a supervisor stops next and which starts next. No clock, no
await.

A single start is under way at a time; in a group that restarts together, also a single stop.
"""

from collections import deque
from heapq import heapify, heappop, heappush
from itertools import count

from .actions import Action, End, Start, Stop, Wake
from .child import RUNNING, STARTING, WAITING, Child
from .specs import Strategy

__all__ = ["StartOrder"]


class StartOrder:
    """The children that wait to start or to be stopped together, in order."""

    def __init__(self, strategy: Strategy) -> None:
        self.actions: list[Action] = []
        """The actions of the present event so far. The next stop and the next start follow them."""
        self._is_over = False
        """The supervisor ends: no child is started or stopped any more."""
        self._started: Child | None = None
        """The child that was started last. The next start waits until this one has succeeded or
        failed.
        """
        self.is_new: bool = True
        """True until each child has had its first start, or the first try of it."""
        self.is_group: bool = strategy in (Strategy.ALL_FOR_ONE, Strategy.REST_FOR_ONE)
        """Children restart as a group, in order, and not independently."""
        self._starts_together = strategy is Strategy.ALL_FOR_ONE
        """No child of the group starts before the back-off of every child is over."""
        self._tickets = count()
        self._asked: deque[Child] = deque()
        # Heaps with lazy deletion: `take` skips outdated entries. Ordered by (due, position)
        # if children restart independently, by (position) if they restart as a group.
        self._queue: list[tuple[float, int, int, float, Child]] = []
        self._stops: list[tuple[int, int, Child]] = []
        self._cycling = 0
        """Children of a group that are to be stopped or are being stopped."""
        self._stopping: Child | None = None
        self._hold = 0.0
        """With ``_starts_together``: the earliest time at which the group may start."""
        self._wake: float | None = None

    # -- the queue ---------------------------------------------------------------------------------

    def wait(self, child: Child) -> None:
        """Queue a child for its start, not before it is due."""
        due = child.due
        if self.is_group:
            self._hold = max(self._hold, due)
        first = 0.0 if self.is_group else due
        heappush(self._queue, (first, child.position, next(self._tickets), due, child))

    def go_first(self, child: Child) -> None:
        """Start a child before all others and at once, because a caller waits for it."""
        self._asked.append(child)

    def cycle(self, children: list[Child]) -> None:
        """Stop children that restart together: no child starts until all of them are down."""
        for child in children:
            child.joins_cycle()
        self._cycling += len(children)
        self._stops += [
            (-child.position, ticket, child)
            for child, ticket in zip(reversed(children), self._tickets, strict=False)
        ]
        heapify(self._stops)

    def leave_cycle(self, child: Child) -> None:
        """Note that a child is down, so that its siblings no longer wait for its stop."""
        if child.cycles:
            child.leaves_cycle()
            self._cycling -= 1
        if self._stopping is child:
            self._stopping = None

    def woken(self) -> None:
        """Note that the time of a :class:`Wake` has come."""
        self._wake = None

    # -- the next child ----------------------------------------------------------------------------

    def end(self, action: End) -> None:
        """Begin nothing any more: ``action`` is the last."""
        self._is_over = True
        self.actions.append(action)

    def take(self, now: float) -> list[Action]:
        """Begin the next stop and the next start if they are due; otherwise request a `Wake`.
        Return all actions of the present event.
        """
        actions, self.actions = self.actions, []
        if self._is_over:
            return actions
        if self._stops:
            self._next_stop(actions)
        if self._started is not None and self._started.phase is STARTING:
            return actions
        child, queue = None, self._queue
        if self._asked:
            # The child is still waiting: a child with a caller refuses all other operations.
            child = self._asked.popleft()
        while queue and child is None:
            _, _, _, due, first = queue[0]
            if first.due == due and first.wanted and first.phase in WAITING:
                if self._cycling:
                    break
                if self._starts_together:
                    due = self._group_due(now)
                if due > now:
                    if self._wake != due:
                        self._wake = due
                        actions.append(Wake(due))
                    break
                child = first
            heappop(queue)
        if child is not None:
            self._started = child
            actions.append(Start(child.name, child.begins_start()))
        elif self.is_new:
            self.is_new = any(each.is_waiting and not each.in_a_row for *_, each in queue)
        return actions

    def _next_stop(self, actions: list[Action]) -> None:
        while self._stopping is None and self._stops:
            child = self._stops[0][2]
            if child.cycles and child.phase is STARTING:
                return
            heappop(self._stops)
            if child.cycles and child.phase is RUNNING:
                child.stops()
                self._stopping = child
                actions.append(Stop(child.name, returns=child.wanted))

    def _group_due(self, now: float) -> float:
        """When the last of the waiting children may start."""
        if self._hold > now:
            # Every waiting child is in the queue: `take` takes requested starts before it comes
            # here.
            self._hold = max(child.due for *_, child in self._queue if child.is_waiting)
        return self._hold
