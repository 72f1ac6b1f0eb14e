"""Calls in flight: who waits for an answer, and until when.

The reference of a call is its future: one slotted object holds the waiting task and the result, so that answering is one
``reschedule`` and there is no table to clean. Exactly one of answer, death of the callee, timeout and cancellation settles it.
"""

from collections import deque
from collections.abc import Callable, Mapping
from math import inf
from typing import TYPE_CHECKING, Any

from .ids import PID, Alias, Ref

if TYPE_CHECKING:
    from .receiver import Receiver

__all__ = ["Caller", "Deadlines", "ring_of", "waiting_process"]


class Caller:
    """Who asked: ``pid`` of the calling process and the ``ref`` of the call. Keep it to answer later with ``reply``."""

    __slots__ = ("_deferred", "callee", "error", "number", "pid", "request", "settled", "to", "value")

    def __init__(self, pid: PID | Alias, number: int, to: Any, request: Any) -> None:
        self.pid = pid
        self.number = number
        self.to = to
        self.request = request
        self.callee: Receiver | None = None
        self.settled = False
        self.value: Any = None
        self.error: BaseException | None = None
        self._deferred = False

    @property
    def ref(self) -> Ref:
        """The identity of this call."""
        return Ref(self.pid.node, self.pid.creation, self.number)

    @property
    def deferred(self) -> bool:
        """The callee has returned NO_REPLY: the answer may come from anybody."""
        return self._deferred

    def __repr__(self) -> str:
        return f"<Caller {self.pid} ref {self.number}>"

    def defer(self, callee: "Receiver") -> None:
        """Note that ``callee`` answers later; if it dies first, its end answers."""
        # One that has handed the call on, as forward() does, has nothing left to promise.
        if self.settled or self.callee is not callee:
            return
        self._deferred = True
        if callee.deferred is None:
            callee.deferred = set()
        callee.deferred.add(self)

    def undefer(self) -> None:
        """Note that the call is in somebody's hands again, or over."""
        if self._deferred:
            self._deferred = False
            callee = self.callee
            if callee is not None and callee.deferred is not None:
                callee.deferred.discard(self)

    def settle(self, value: Any, error: BaseException | None) -> bool:
        """End the call with an answer or an error. False if it had ended before: nobody waits any more."""
        if self.settled:
            return False
        self.settled = True
        if self._deferred:
            self.undefer()
        self.value = value
        self.error = error
        self.awaken()
        return True

    def awaken(self) -> None:
        """Tell whoever waits that the call is settled."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Stop waiting. A later answer is dropped."""
        self.settled = True
        self.undefer()
        self.callee = None

    def result(self) -> Any:
        """The answer, or its error raised; given away, so that a queued deadline keeps neither it nor the request alive."""
        value, error = self.value, self.error
        self.value = self.error = self.callee = self.request = None
        if error is not None:
            raise error
        return value


def ring_of(start: Any, callee: "Receiver | None") -> list[PID | Alias]:
    """The ring that would close if the process ``start`` waited for ``callee``; empty if none would."""
    if start is None:
        return []
    path: list[PID | Alias] = [start.id]
    current: Any = callee
    seen: set[int] = set()
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        path.append(current.id)
        if current is start:
            return path
        waits_for = current.waiting
        if isinstance(waits_for, Caller):
            # Once deferred, the answer may come from anybody; once settled, it only has not been taken yet: those are no edges.
            waits_for = None if waits_for.deferred or waits_for.settled else waits_for.callee
        current = waits_for
    return []


def waiting_process(caller: Caller, processes: Mapping[Any, Any]) -> Any:
    """The process that waits in this very call; None if none does, or does no longer."""
    process = processes.get(caller.pid)
    return process if process is not None and process.waiting is caller else None


class Deadlines:
    """When calls in flight run out of time.

    One queue for each distinct timeout: equal timeouts have growing deadlines, so a deque is a priority queue, and arming is an
    append. Answered calls at the head are trimmed as new ones come; a slow head that lets a queue grow has it swept.
    """

    __slots__ = ("_queues", "_sweep_at")

    SWEEP = 1024

    def __init__(self) -> None:
        self._queues: dict[float, deque[tuple[float, Caller]]] = {}
        self._sweep_at: dict[float, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def arm(self, caller: Caller, timeout: float, deadline: float) -> None:
        """Let ``caller`` wait until ``deadline``, which is ``timeout`` from now."""
        queue = self._queues.get(timeout)
        if queue is None:
            queue = self._queues[timeout] = deque()
        else:
            # Two for each one armed, so that the queue shrinks as fast as calls are answered.
            if queue and queue[0][1].settled:
                queue.popleft()
                if queue and queue[0][1].settled:
                    queue.popleft()
            if len(queue) >= self.SWEEP and len(queue) >= self._sweep_at.get(timeout, self.SWEEP):
                self._sweep(timeout, queue)
        queue.append((deadline, caller))

    def next(self) -> float:
        """The first deadline of a call that is still open, or infinity."""
        first = inf
        for timeout, queue in list(self._queues.items()):
            while queue and queue[0][1].settled:
                queue.popleft()
            if not queue:
                del self._queues[timeout]
                self._sweep_at.pop(timeout, None)
            elif queue[0][0] < first:
                first = queue[0][0]
        return first

    def expire(self, now: float, most: int, give_up: Callable[[Caller, float], None]) -> int:
        """Give up on at most ``most`` calls that are overdue at ``now``; return how many there were."""
        count = 0
        for timeout, queue in list(self._queues.items()):
            while queue and count < most and queue[0][0] <= now:
                _, caller = queue.popleft()
                if not caller.settled:
                    count += 1
                    give_up(caller, timeout)
        return count

    def _sweep(self, timeout: float, queue: deque[tuple[float, Caller]]) -> None:
        alive = [entry for entry in queue if not entry[1].settled]
        queue.clear()
        queue.extend(alive)
        self._sweep_at[timeout] = max(self.SWEEP, 2 * len(alive))
