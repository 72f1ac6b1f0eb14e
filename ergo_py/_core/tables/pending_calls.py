"""`Caller`: a call in flight and its result. `Deadlines`: the timeouts of all calls in flight, and
of other work (`Deadline`).

The reference of a call is its future: a slotted object holds the waiting task and the result. So
an answer costs a single ``reschedule``, and there is no table to clean up. A call is settled
exactly once: by an answer, the end of the callee, a timeout, or a cancellation.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from types import TracebackType
from typing import Any, Final, Protocol

from ..vocabulary.errors import CallTimeoutError, TargetDownError, UnhandledCallError
from ..vocabulary.ids import PID, Alias, Ref
from ..vocabulary.messages import answer_but_not_none
from ..vocabulary.public_names import show_public_names
from ..vocabulary.reasons import Reason

__all__ = [
    "Callee",
    "Caller",
    "Deadline",
    "Deadlines",
    "Expiry",
    "OwedCalls",
    "awaited",
    "ring_of",
    "waiting_process",
]


class Callee(Protocol):
    """A process or a meta-process that is called."""

    deferred: "dict[Caller, None] | None"
    """Calls for which it has returned NO_REPLY, and must reply to later."""
    waiting: Any
    """The call in which it waits, the child whose start it waits for, or the receiver without room;
    None if it can serve.
    """

    @property
    def id(self) -> PID | Alias: ...

    @property
    def reason(self) -> Reason | None:
        """The reason with which it ended or is ending."""
        ...


class Expiry:
    """An entry of the clock. It expires once, unless it is abandoned before."""

    __slots__ = ("settled",)

    settled: bool
    """It has expired or was abandoned: the clock drops it."""

    def expire(self, timeout: float) -> None:
        """Act: the entry was armed ``timeout`` seconds ago."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Let it never expire."""
        raise NotImplementedError


class Deadline(Expiry):
    """Calls a function at a moment of the node's clock, and so follows virtual time."""

    __slots__ = ("_act",)

    def __init__(self, act: Callable[[], object]) -> None:
        self.settled: bool = False
        self._act = act

    def expire(self, timeout: float) -> None:
        """Call the function."""
        self.settled = True
        self._act()

    def abandon(self) -> None:
        """Never call the function, and drop it: the clock may keep the deadline until its moment,
        and must not keep the objects of the function.
        """
        self.settled = True
        self._act = _nothing


def _nothing() -> None:
    """Stand for the function of an abandoned deadline."""


class Caller(Expiry):
    """A call in flight: the ``pid`` of the calling process and the ``ref`` of the call. Keep it to
    answer later with ``reply``.
    """

    __slots__ = (
        "_begun",
        "_deferred",
        "_mark",
        "callee",
        "error",
        "number",
        "pid",
        "request",
        "to",
        "value",
    )

    def __init__(self, pid: PID | Alias, number: int, to: object, request: object) -> None:
        self.settled: bool = False
        self.pid: PID | Alias = pid
        self.number: int = number
        self.to: Any = to
        self.request: object = request
        self.callee: Callee | None = None
        self.value: object = None
        self.error: BaseException | None = None
        self._deferred = False

    @property
    def ref(self) -> Ref:
        """The identity of this call."""
        return Ref(self.pid.node, self.pid.creation, self.number)

    @property
    def deferred(self) -> bool:
        """The callee has returned NO_REPLY: the answer may come from any process."""
        return self._deferred

    def __repr__(self) -> str:
        return f"<Caller {self.pid} ref {self.number}>"

    @property
    def mark(self) -> Any:
        """The mark of a sampled trace; None without such a trace."""
        # Not set by the constructor: calls of other traces and nodes do not pay for it.
        return getattr(self, "_mark", None)

    def carry(self, mark: object) -> None:
        """Carry the mark of a sampled trace."""
        self._mark = mark

    @property
    def begun(self) -> bool:
        """Whether a callee that does not have the request any more has begun to handle it."""
        return hasattr(self, "_begun")

    def note_begun(self) -> None:
        """Note that a callee has begun to handle the request, and puts it back or passes it on."""
        # Not set by the constructor: the other calls do not pay for it.
        self._begun = True

    def assign(self, callee: Callee) -> None:
        """Note which callee has the request now, and so has to answer."""
        self.callee = callee

    def redirect(self, to: object, request: object) -> None:
        """Note that the callee passes the call on: to another address, perhaps with another
        request.
        """
        self.undefer()
        self.to, self.request = to, request

    def defer(self, callee: Callee) -> None:
        """Note that ``callee`` answers later. If it ends first, the caller gets an error."""
        # After forward() the call belongs to another callee: this one owes no answer.
        if self.settled or (self.callee is not callee and present(self.callee) is not callee):
            return
        self.callee = callee
        self._deferred = True
        if callee.deferred is None:
            callee.deferred = {}
        callee.deferred[self] = None

    def undefer(self) -> None:
        """Note that the call is no longer deferred: a callee serves it again, or it is settled."""
        if self._deferred:
            self._deferred = False
            callee = self.callee
            if callee is not None and callee.deferred is not None:
                callee.deferred.pop(self, None)

    def settle(self, value: object, error: BaseException | None) -> bool:
        """End the call with an answer or an error. False if it was settled before: the caller waits
        no longer.
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

    def fail_begun(self, reason: Reason) -> None:
        """End the call: the callee has ended while it had the request."""
        self.settle(None, TargetDownError(self.to, self.request, reason))

    def fail_queued(self, reason: Reason) -> None:
        """End the call: the callee has ended without handling the request."""
        self.settle(None, TargetDownError(self.to, self.request, reason, begun=self.begun))

    def settle_in(self, _turns: Any, value: object, error: BaseException | None) -> bool:
        """The same in the turn of a reader: if it is a root, the waiting task runs in this turn."""
        return self.settle(value, error)

    def awaken(self) -> None:
        """Wake the task or the thread that waits: the call is settled."""
        raise NotImplementedError

    def expire(self, timeout: float) -> None:
        """End the call with a timeout."""
        self.settle(None, CallTimeoutError(self.to, self.request, timeout))

    def abandon(self) -> None:
        """Stop waiting. A later answer is dropped."""
        self.settled = True
        self.undefer()
        self.callee = None

    def result(self) -> Any:
        """Return the answer, or raise the error. This object drops both, so that a queued deadline
        keeps neither them nor the request alive.
        """
        value, error = self.value, self.error
        if value is None and error is None:
            error = self.refusal_of_none()
        self.value = self.error = self.callee = self.request = None
        if error is not None:
            try:
                raise error.with_traceback(_given_frames(error))
            finally:
                # The traceback has this frame, which would keep the error, and all objects of the
                # callee's frames, until a garbage collection.
                del error
        return value

    def refusal_of_none(self) -> BaseException | None:
        """The error, if the callee has answered None to a request that declares another type of
        answer. Mostly no case of its ``handle_call`` matches the request.
        """
        declared = answer_but_not_none(self.request)
        if not declared:
            return None
        callee: Any = self.callee
        return UnhandledCallError(
            self.to,
            self.request,
            "the process" if callee is None else callee.callbacks.behaviour,
            f"answered None to {type(self.request).__name__}, which is a Request[{declared}]: no "
            "case of its handle_call matches it, or a `return` is missing; if None is an answer, "
            f"declare Request[{declared} | None]",
        )


class OwedCalls(dict[Caller, None]):
    """The calls that a callee has to reply to later. Reports each that is settled: it has its
    answer, or its caller waits no longer.
    """

    __slots__ = ("_settled",)

    def __init__(self, settled: Callable[[Caller], None]) -> None:
        super().__init__()
        self._settled = settled

    def pop(self, key: Caller, default: object = None) -> None:
        """Remove a call."""
        super().pop(key, None)
        self._settled(key)


def _given_frames(error: BaseException) -> TracebackType | None:
    """The traceback of an error at the time it became an answer, without the frames that
    `Caller.result` added for earlier calls.

    A callee may answer all its callers with the same exception. Its traceback would grow with each
    call, and keep the frames of all callers alive.
    """
    found = traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code is _RESULT:
            found = traceback.tb_next
        traceback = traceback.tb_next
    return found


_RESULT: Final = Caller.result.__code__


def present(callee: object) -> Any:
    """The process that holds a call put into the mailbox of ``callee``: itself, or the successor
    that inherited its mailbox.
    """
    slot = getattr(callee, "left_to", None)
    return callee if slot is None else slot.successor


def ring_of(start: Any, callee: Callee | None) -> list[PID | Alias]:
    """The deadlock that would arise if the process ``start`` waited for ``callee``: the ring of
    waiting processes, or an empty list.
    """
    if start is None:
        return []
    path: list[PID | Alias] = [start.id]
    current = callee
    seen: set[int] = set()
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        path.append(current.id)
        if current is start:
            return path
        # A deferred call is no edge: any process may answer it.
        current = _awaited_by(current, deferred=False)
    return []


def awaited(process: Callee) -> Iterator[Callee]:
    """The process that a process waits for, the process that this one waits for, and so on; also
    for the answer to a call that the other has deferred.
    """
    seen: set[int] = set()
    current = _awaited_by(process, deferred=True)
    while current is not None and id(current) not in seen:
        yield current
        seen.add(id(current))
        current = _awaited_by(current, deferred=True)


def _awaited_by(process: Callee, *, deferred: bool) -> Callee | None:
    """The process that a process waits for."""
    awaited: Callee | None = process.waiting
    if isinstance(awaited, Caller):
        # A settled call is only waiting for its task to run.
        is_edge = not awaited.settled and (deferred or not awaited.deferred)
        awaited = present(awaited.callee) if is_edge else None
    return awaited


def waiting_process(caller: Caller, processes: Mapping[Any, Any]) -> object:
    """The process that waits in this call; None if it no longer waits, or is no process."""
    process = processes.get(caller.pid)
    return process if process is not None and process.waiting is caller else None


class Deadlines:
    """Timeouts of the calls in flight, and other deadlines, which are treated like calls.

    Most calls use a few common timeouts and are answered soon. Each common timeout has a queue:
    equal timeouts have growing deadlines, so a deque is a priority queue, and `arm` is an append.
    New calls trim the answered calls at its head. All other calls are in heaps: calls with a rare
    timeout, and slow calls from the head of a long queue. Each heap has a bounded size, so that a
    search for answered calls in it never takes long. Whenever a heap is full, two others are
    searched.
    """

    __slots__ = ("_heaps", "_queues", "_sequence")

    QUEUES = 16
    """Maximal number of timeouts with a queue."""
    LONG = 1024
    """The length at which a queue moves a slow call from its head to a heap."""
    HEAP = 4096
    """Maximal size of a heap."""
    TRIM = 512
    """Maximal number of answered calls that `next` removes from the heaps at a time."""

    def __init__(self) -> None:
        self._queues: dict[float, deque[tuple[float, Expiry]]] = {}
        self._heaps: deque[list[tuple[float, int, Expiry, float]]] = deque([[]])
        """New calls go to the last heap. An entry is (deadline, number, call, timeout): the number
        keeps calls from being compared.
        """
        self._sequence = count()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values())) + sum(map(len, self._heaps))

    def arm(self, caller: Expiry, timeout: float, deadline: float) -> None:
        """Let ``caller`` wait until ``deadline``, which is ``timeout`` from now."""
        queue = self._queues.get(timeout)
        if queue is None:
            queue = self._new_queue(timeout)
            if queue is None:
                self._push(deadline, caller, timeout)
                return
        elif queue:
            if queue[0][1].settled:
                # Remove two for each call armed, so that the queue shrinks as fast as calls are
                # answered.
                queue.popleft()
                if queue and queue[0][1].settled:
                    queue.popleft()
            elif len(queue) >= self.LONG:
                self._push(*queue.popleft(), timeout)
        queue.append((deadline, caller))

    def next(self) -> float:
        """The first deadline of a call that is still open, or infinity.

        After very many answers it may be the deadline of an answered call: the trimming is bounded,
        and the next time trims more.
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

    def expire(self, now: float, most: int, give_up: Callable[[Expiry, float], None]) -> int:
        """Time out at most ``most`` calls that are overdue at ``now``; return their number."""
        count = 0
        # Heaps first: their calls are older than the calls with the same timeout in a queue.
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

    def _new_queue(self, timeout: float) -> deque[tuple[float, Expiry]] | None:
        """A queue for another timeout; None if `QUEUES` exist already and the oldest is in use."""
        queues = self._queues
        if len(queues) >= self.QUEUES:
            oldest = next(iter(queues))
            queue = queues.pop(oldest)
            while queue and queue[0][1].settled:
                queue.popleft()
            if queue:
                # Still in use. It goes to the end, so that the next search tries another.
                queues[oldest] = queue
                return None
        queue = queues[timeout] = deque()
        return queue

    def _push(self, deadline: float, caller: Expiry, timeout: float) -> None:
        heap = self._heaps[-1]
        heappush(heap, (deadline, next(self._sequence), caller, timeout))
        if len(heap) >= self.HEAP:
            self._begin_heap()

    def _begin_heap(self) -> None:
        """Add a heap for new calls, and remove answered calls from the two heaps that were searched
        longest ago.
        """
        fresh: list[tuple[float, int, Expiry, float]] = []
        for _ in range(min(2, len(self._heaps))):
            unanswered = [entry for entry in self._heaps.popleft() if not entry[2].settled]
            if len(fresh) + len(unanswered) <= self.HEAP // 2:
                fresh += unanswered
            else:
                heapify(unanswered)
                self._heaps.append(unanswered)
        heapify(fresh)
        self._heaps.append(fresh)


show_public_names(__name__)
