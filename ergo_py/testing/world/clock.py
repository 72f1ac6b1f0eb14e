"""`WorldClock`: the time of a world. It jumps to the next deadline when no task is ready."""

import gc
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, Final

import trio

from ..._core.runtime.bridge import bells_ring
from ..._core.vocabulary.errors import ErgoError
from .tasks import TaskOwners

__all__ = ["PASSES", "EndlessWaitError", "LivelockError", "StandstillError", "WorldClock"]

PASSES: Final = 100_000
"""Passes of the loop with tasks, without a jump of the clock, after which a world stands still. The
busiest worlds of the tests take some thousands.
"""

CHECK_SECONDS: Final = 3600.0
CHECK_JUMPS: Final = 1_000
"""Seconds of a world, and jumps of its clock, after which its test has to have made a step, or to
have a deadline. Both: hourly timers jump for days, and a busy node jumps a thousand times a second.
"""
_COLLECT: Final = 10_000
"""Jumps between two garbage collections. Python's own collections, whose moments depend on the
whole program, are off while a world runs: finalizers send messages.
"""


_DEADLINE: Final[Any] = (
    trio._core._run.CancelReason(source="deadline")
    if hasattr(trio._core._run, "CancelReason")
    else None
)
"""Why an expired scope is cancelled; None before trio 0.31."""
_LATER: Final = 1e-9
_LOOKS: Final = 600
"""Seconds of a world that are watched at most: ten minutes, as a page shows of a node."""


class StandstillError(ErgoError, AssertionError):
    """The world stands still: all tasks wait, and none of them for a moment in time."""

    def __init__(self, tasks: list[str]) -> None:
        self.tasks = tasks
        """The tasks that wait, each with the line of its code."""
        listed = "".join(f"\n  {task}" for task in tasks)
        super().__init__(
            "the world stands still: all tasks wait, and none of them has a deadline; give the "
            f"calls of the test a timeout. The tasks that wait:{listed}"
        )


class LivelockError(StandstillError):
    """The tasks of the world run, and no time passes."""

    def __init__(self, tasks: list[str]) -> None:
        super().__init__(tasks)
        listed = "".join(f"\n  {task}" for task in tasks)
        self.args: tuple[object, ...] = (
            f"the world stands still: its tasks have run for {PASSES:,} passes of the loop, and no "
            "time has passed; let a task that repeats sleep or wait between its turns. The tasks "
            f"that run:{listed}",
        )


class EndlessWaitError(StandstillError):
    """The test waits, its nodes work on, and nothing ends the wait."""

    def __init__(self, tasks: list[str]) -> None:
        super().__init__(tasks)
        listed = "".join(f"\n  {task}" for task in tasks)
        self.args: tuple[object, ...] = (
            "the world stands still: its nodes run on, and its test has waited for an hour of the "
            "world or longer, without a deadline; give the calls of the test a timeout, and its "
            f"waits a `trio.fail_after(…)`. The tasks that wait:{listed}",
        )


class _NodeTime:
    """The clock of a node, which runs faster or slower than the time of the world."""

    def __init__(self) -> None:
        self._world = self._local = 0.0
        self._rate = 1.0

    def at(self, world: float) -> float:
        """The time of the node at a moment of the world."""
        return self._local + (world - self._world) * self._rate

    def moment_of(self, local: float) -> float:
        """The moment of the world at which the node has this time; a little later, so that the
        node sees its deadline pass.
        """
        return self._world + (local - self._local) / self._rate + _LATER

    def change(self, world: float, rate: float) -> None:
        """Run at another rate from now on."""
        self._world, self._local, self._rate = world, self.at(world), rate


class _Deadlines:
    """The table of deadlines of a run, in place of trio's: each deadline is a time of the node that
    its cancel scope belongs to. Those of the same moment expire in the order of their numbers, not
    of their addresses.
    """

    def __init__(self, moment_of: Callable[[str, float], float], owners: TaskOwners) -> None:
        self._moment_of = moment_of
        self._owners = owners
        self._entries: dict[Any, tuple[float, int, str, float]] = {}
        """For each cancel scope: the moment, its number, its node, and its deadline."""
        self._heap: list[tuple[float, int, Any]] = []
        self._numbers = count()

    def add(self, deadline: float, cancel_scope: Any) -> None:
        """Called by trio."""
        # A caller may set the deadline of a scope of another node: the clock of its kernel.
        tasks = cancel_scope._cancel_status._tasks
        owner = self._owners.of(next(iter(tasks))) if tasks else self._owners.of_present_task()
        self._push(cancel_scope, next(self._numbers), owner, deadline)

    def _push(self, scope: object, number: int, owner: str, deadline: float) -> None:
        moment = self._moment_of(owner, deadline)
        self._entries[scope] = moment, number, owner, deadline
        heappush(self._heap, (moment, number, scope))

    def remove(self, _deadline: float, cancel_scope: object) -> None:
        """Called by trio."""
        self._entries.pop(cancel_scope, None)

    def next_deadline(self) -> float:
        """Called by trio: the next moment."""
        while self._heap:
            moment, number, scope = self._heap[0]
            entry = self._entries.get(scope)
            if entry is not None and entry[1] == number and entry[0] == moment:
                return moment
            heappop(self._heap)
        return inf

    def expire(self, now: float) -> bool:
        """Called by trio: cancel the scopes whose moment has come."""
        is_any = False
        heap = self._heap
        while heap and heap[0][0] <= now:
            moment, number, scope = heappop(heap)
            entry = self._entries.get(scope)
            if entry is not None and entry[1] == number and entry[0] == moment:
                _expire(scope)
                self._entries.pop(scope, None)
                is_any = True
        return is_any

    def owners(self) -> list[str]:
        """The nodes of all deadlines, but those of the world itself."""
        return [owner for _, _, owner, _ in self._entries.values() if owner]

    def convert(self, node: str) -> None:
        """Compute the moments of a node again: its clock runs at another rate."""
        for scope, (_, number, owner, deadline) in list(self._entries.items()):
            if owner == node:
                self._push(scope, number, owner, deadline)


def _expire(scope: Any) -> None:
    if _DEADLINE is None:
        scope.cancel()
    else:
        scope._cancel(_DEADLINE)


class WorldClock(trio.abc.Clock):
    """Stands still while any task runs. trio asks for the time to wait only when no task is ready:
    then the clock jumps to the next deadline, and no real time passes.
    """

    def __init__(
        self,
        stand_still: Callable[[], None],
        owners: TaskOwners,
        poll: Callable[[], bool],
        has_sockets: Callable[[], bool],
        check_test: Callable[[], None],
    ) -> None:
        self._now = 0.0
        self._check_test = check_test
        """Called now and then: whether the test still goes on."""
        self._check_at, self._check_after = CHECK_SECONDS, CHECK_JUMPS
        """The time and the jumps of the next check."""
        self._poll = poll
        """Wakes the tasks of threads that are ready, and says whether there are any."""
        self._has_sockets = has_sockets
        """Whether bytes may wait in sockets, which trio finds when it looks for I/O."""
        self._has_looked = False
        """trio has looked for I/O since the last pass with a task."""
        self._stand_still = stand_still
        self._owners = owners
        self._times: dict[str, _NodeTime] = {}
        """The clocks of nodes that have run at another rate."""
        self._deadlines = _Deadlines(self._moment_of, owners)
        self._runner: Any = None
        self._watch: Callable[[float], None] | None = None
        self._next_look = 0.0
        self._passes = 0
        """Passes of the loop with tasks since the last jump."""
        self.jumps: int = 0
        """How often the clock has jumped."""

    def start_clock(self) -> None:
        """Called by trio when a run begins."""
        self._runner = trio._core._run.GLOBAL_RUN_CONTEXT.runner
        self._runner.deadlines = self._deadlines

    def current_time(self) -> float:
        """The time on the clock of the node that asks, in seconds since the world began."""
        if self._times:
            time = self._times.get(self._owners.of_present_task())
            if time is not None:
                return time.at(self._now)
        return self._now

    def world_time(self) -> float:
        """The time of the world."""
        return self._now

    def set_rate(self, node: str, rate: float) -> None:
        """Let the clock of a node run at another rate from now on."""
        self._times.setdefault(node, _NodeTime()).change(self._now, rate)
        self._deadlines.convert(node)

    def _moment_of(self, node: str, deadline: float) -> float:
        time = self._times.get(node)
        return deadline if time is None else time.moment_of(deadline)

    def watch(self, look: Callable[[float], None]) -> None:
        """Call a function for each of the first `_LOOKS` seconds, when no task is ready: it sees
        the state of the world at that second, and changes nothing.
        """
        self._watch = look

    def _look_until(self, deadline: float) -> None:
        if self._watch is None:
            return
        while self._next_look < min(deadline, _LOOKS):
            self._watch(self._next_look)
            self._next_look += 1.0

    def deadlines_of_nodes(self) -> list[str]:
        """The nodes that have deadlines, once for each deadline."""
        return self._deadlines.owners()

    def begin_pass(self) -> bool:
        """Note that tasks run. Returns whether they run on and on, and no time passes."""
        self._has_looked = False
        self._passes = (self._passes + 1) % PASSES
        return not self._passes

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Called by trio when no task is ready: jump to the next deadline."""
        runner = self._runner
        if deadline <= self._now:
            return 0.0
        if self._poll():
            return 0.0
        if not self._has_looked and (
            runner.entry_queue.size() or bells_ring() or self._has_sockets()
        ):
            # Work for the loop is queued: it arrives without time, when trio looks for I/O. Looked
            # for once: the task that takes it may belong to a program that is stopped.
            self._has_looked = True
            return 0.0
        if runner.waiting_for_idle:  # a task waits until all others wait, without time
            return inf
        if deadline == inf:
            self._stand_still()
            return 0.0
        self._look_until(deadline)
        self._now = deadline
        self._passes = 0
        self.jumps += 1
        if not self.jumps % _COLLECT:
            gc.collect()
        if deadline >= self._check_at and self.jumps >= self._check_after:
            self._check_at, self._check_after = deadline + CHECK_SECONDS, self.jumps + CHECK_JUMPS
            self._check_test()
        return 0.0
