"""Calls in flight: who waits for an answer, and until when.

The reference of a call is its future: one slotted object holds the waiting task and the result, so
that answering is one ``reschedule`` and there is no table to clean. Exactly one of answer, death of
the callee, timeout and cancellation settles it.
"""

from collections import deque
from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from ..vocabulary.ids import PID, Alias, Ref

if TYPE_CHECKING:
    from ..messaging.receiver import Receiver

__all__ = ["Caller", "Deadlines", "ring_of", "waiting_process"]


class Caller:
    """Who asked: ``pid`` of the calling process and the ``ref`` of the call. Keep it to answer
    later with ``reply``.
    """

    __slots__ = (
        "_deferred",
        "callee",
        "error",
        "number",
        "pid",
        "request",
        "settled",
        "to",
        "value",
    )

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
        if self.settled or (self.callee is not callee and present(self.callee) is not callee):
            return
        self.callee = callee
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
        """End the call with an answer or an error. False if it had ended before: nobody waits any
        more.
        """
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
        """The answer, or its error raised; given away, so that a queued deadline keeps neither it
        nor the request alive.
        """
        value, error = self.value, self.error
        self.value = self.error = self.callee = self.request = None
        if error is not None:
            raise error.with_traceback(_given_frames(error))
        return value


def _given_frames(error: BaseException) -> TracebackType | None:
    """The traceback that an error had when it was given as an answer, without what raising it for
    earlier calls has added.

    A callee may give the same exception to every caller; each time it would grow, and keep the
    frames of all of them.
    """
    found = traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code is _RESULT:
            found = traceback.tb_next
        traceback = traceback.tb_next
    return found


_RESULT: Final = Caller.result.__code__


def present(callee: Any) -> Any:
    """The one who has a call that was put into the mailbox of ``callee``: itself, or the successor
    that it left its mailbox to.
    """
    slot = getattr(callee, "left_to", None)
    return callee if slot is None else slot.heir


def ring_of(start: Any, callee: "Receiver | None") -> list[PID | Alias]:
    """The ring that would close if the process ``start`` waited for ``callee``; empty if none
    would.
    """
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
            # Once deferred, the answer may come from anybody; once settled, it only has not been
            # taken yet: those are no edges.
            waits_for = (
                None if waits_for.deferred or waits_for.settled else present(waits_for.callee)
            )
        current = waits_for
    return []


def waiting_process(caller: Caller, processes: Mapping[Any, Any]) -> Any:
    """The process that waits in this very call; None if none does, or does no longer."""
    process = processes.get(caller.pid)
    return process if process is not None and process.waiting is caller else None


class Deadlines:
    """When calls in flight run out of time.

    Most calls have one of a few timeouts and are answered soon. Each such timeout has a queue:
    equal timeouts have growing deadlines, so a deque is a priority queue, and arming is an append.
    Answered calls at its head are trimmed as new ones come. All other calls are in heaps: those
    with a timeout that has no queue, and a slow one at the head of a long queue. Each heap has a
    bounded size, so that looking for the answered calls in it never takes long; for every heap that
    has been filled, two others are looked through.
    """

    __slots__ = ("_heaps", "_queues", "_sequence")

    QUEUES = 16
    """How many timeouts have a queue."""
    LONG = 1024
    """The length at which a queue gives a slow call at its head away."""
    HEAP = 4096
    """The size of a heap."""
    TRIM = 512
    """How many answered calls are taken from the heads of the heaps at a time."""

    def __init__(self) -> None:
        self._queues: dict[float, deque[tuple[float, Caller]]] = {}
        self._heaps: deque[list[tuple[float, int, Caller, float]]] = deque([[]])
        """The last one is being filled. Its entries: deadline, number, call, timeout; so calls are
        never compared.
        """
        self._sequence = count()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values())) + sum(map(len, self._heaps))

    def arm(self, caller: Caller, timeout: float, deadline: float) -> None:
        """Let ``caller`` wait until ``deadline``, which is ``timeout`` from now."""
        queue = self._queues.get(timeout)
        if queue is None:
            queue = self._new_queue(timeout)
            if queue is None:
                self._push(deadline, caller, timeout)
                return
        elif queue:
            if queue[0][1].settled:
                # Two for each one armed, so that the queue shrinks as fast as calls are answered.
                queue.popleft()
                if queue and queue[0][1].settled:
                    queue.popleft()
            elif len(queue) >= self.LONG:
                self._push(*queue.popleft(), timeout)
        queue.append((deadline, caller))

    def next(self) -> float:
        """The first deadline of a call that is still open, or infinity.

        Where very many calls have been answered it may be that of one of these: then more of them
        are gone the next time.
        """
        first = inf
        for timeout, queue in list(self._queues.items()):
            while queue and queue[0][1].settled:
                queue.popleft()
            if not queue:
                del self._queues[timeout]
            elif queue[0][0] < first:
                first = queue[0][0]
        budget = self.TRIM
        for heap in self._heaps:
            while heap and budget and heap[0][2].settled:
                heappop(heap)
                budget -= 1
            if heap and heap[0][0] < first:
                first = heap[0][0]
        return first

    def expire(self, now: float, most: int, give_up: Callable[[Caller, float], None]) -> int:
        """Give up on at most ``most`` calls that are overdue at ``now``; return how many there
        were.
        """
        count = 0
        # First the heaps: the calls in them came before those with the same timeout that are in a
        # queue.
        for _ in range(self.TRIM):
            heap = min(filter(None, self._heaps), default=None)
            if heap is None or count >= most or heap[0][0] > now:
                break
            _, _, caller, timeout = heappop(heap)
            if not caller.settled:
                count += 1
                give_up(caller, timeout)
        for timeout, queue in list(self._queues.items()):
            while queue and count < most and queue[0][0] <= now:
                _, caller = queue.popleft()
                if not caller.settled:
                    count += 1
                    give_up(caller, timeout)
        return count

    def _new_queue(self, timeout: float) -> deque[tuple[float, Caller]] | None:
        """A queue for another timeout; None if there are enough, and the one whose turn it is to be
        looked at is in use.
        """
        queues = self._queues
        if len(queues) >= self.QUEUES:
            oldest = next(iter(queues))
            queue = queues.pop(oldest)
            while queue and queue[0][1].settled:
                queue.popleft()
            if queue:
                queues[oldest] = queue
                return None
        queue = queues[timeout] = deque()
        return queue

    def _push(self, deadline: float, caller: Caller, timeout: float) -> None:
        heap = self._heaps[-1]
        heappush(heap, (deadline, next(self._sequence), caller, timeout))
        if len(heap) >= self.HEAP:
            self._begin_heap()

    def _begin_heap(self) -> None:
        """Have another heap filled, and look for answered calls in the two that were looked at
        longest ago.
        """
        begun: list[tuple[float, int, Caller, float]] = []
        for _ in range(min(2, len(self._heaps))):
            open_ones = [entry for entry in self._heaps.popleft() if not entry[2].settled]
            if len(begun) + len(open_ones) <= self.HEAP // 2:
                begun += open_ones
            else:
                heapify(open_ones)
                self._heaps.append(open_ones)
        heapify(begun)
        self._heaps.append(begun)
