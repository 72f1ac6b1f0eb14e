"""`Clock`: the task that enforces all deadlines of a node, of timers and of calls in flight."""

from collections.abc import Callable
from math import inf

import trio
from trio.lowlevel import current_task

from ..runtime.bridge import get_ident
from ..runtime.parking import park, wake, yield_turn
from ..tables.pending_calls import Deadlines, Expiry
from ..tables.timers import Timer, Timers

__all__ = ["Clock"]

# Thousands of peers that began a request together time out together. With all expiries in a single
# turn, the loop stood still for as long as their ends took.
_TURN = 64
"""Most expiries in a single turn of the scheduler, so that a flood of them starves no other task.
"""


class Clock:
    """Sleeps until the first deadline. Arming an earlier deadline shortens the sleep. Cancelling a
    timer does not prolong it: the clock wakes up, finds nothing due and sleeps again.
    """

    __slots__ = ("_fire", "_next", "_scope", "_stopped", "_task", "deadlines", "now", "timers")

    def __init__(
        self,
        fire: Callable[[Timer], None],
        run: Callable[[Callable[[], bool]], bool],
        now: Callable[[], float] = trio.current_time,
    ) -> None:
        self.timers: Timers = Timers(run, get_ident)
        self.deadlines: Deadlines = Deadlines()
        self._fire = fire
        self.now: Callable[[], float] = now
        """The current time, on the scale of all deadlines of the node. Callable from any thread;
        virtual in tests that use a virtual clock.
        """
        self._next = inf
        self._scope: trio.CancelScope | None = None
        self._task: trio.lowlevel.Task | None = None
        self._stopped = False

    def arm_call(self, caller: Expiry, timeout: float) -> None:
        """Let a call in flight, or another deadline, expire in ``timeout`` seconds."""
        deadline = self.now() + timeout
        self.deadlines.arm(caller, timeout, deadline)
        # Mostly false: most deadlines are later than the next, so arming changes no sleep.
        if deadline < self._next:
            self._earlier(deadline)

    def arm_timer(
        self,
        delay: float,
        owner: object,
        to: object,
        message: object,
        priority: object,
        period: float = 0.0,
    ) -> Timer:
        """Make a timer that fires in ``delay`` seconds, and belongs to ``owner``."""
        deadline = self.now() + delay
        timer = Timer(self.timers, deadline, owner, to, message, priority, period)
        if deadline < self._next:
            self._earlier(deadline)
        return timer

    def stop(self) -> None:
        """End the clock's task. No timer fires after this."""
        self._stopped = True
        self.timers.clear()
        if self._task is not None:
            wake(self._task)

    async def run(self) -> None:
        """Expire deadlines and fire timers until :meth:`stop`."""
        self._task = current_task()
        while not self._stopped:
            now = self.now()
            # Both, without a short circuit: a flood of deadlines must not keep timers from firing,
            # nor timers deadlines.
            worked = self.deadlines.expire(now, _TURN, _expire) + self.timers.expire(
                now, _TURN, self._fire
            )
            if worked:
                await yield_turn(self._task)
                continue
            # No checkpoint between this look and the sleep: a deadline that is armed in between
            # would be missed.
            self._next = min(self.deadlines.next(), self.timers.next())
            with trio.CancelScope(deadline=self._next) as self._scope:
                await park(self._task)
            self._scope = None

    def _earlier(self, deadline: float) -> None:
        self._next = deadline
        if self._scope is not None:
            # The sleep is shortened without a wake-up: the clock has nothing to do before that
            # moment.
            self._scope.deadline = deadline


def _expire(deadline: Expiry, timeout: float) -> None:
    deadline.expire(timeout)
