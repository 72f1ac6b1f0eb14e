"""`TimeLimit`: a timeout for shutdown that does not count the time in which the loop stood still.

After SIGSTOP and SIGCONT, or on a machine that was paused, all deadlines expire at once. That says
nothing about the tasks they were set for: these stood still as well. So a limit is measured in
short turns, and a turn that ends late extends the limit.
"""

from collections.abc import Awaitable, Callable
from math import inf
from typing import Final

import trio

__all__ = ["TimeLimit", "wait_within"]

# Not measured. A pause of the program is noticed at the end of a turn, so a short limit needs a
# short first turn.
_FIRST: Final = 0.02
"""Least seconds of the first turn. Each turn is twice as long as the turn before, up to `_LONGEST`.
"""
_LONGEST: Final = 1.0
# With a first turn of 20 ms for all, 4,000 generations that stop took 38,000 steps and 2.8 s; with
# an eighth of the limit, 17,500 steps and 0.9 s.
_PART: Final = 8
"""The first turn takes the limit divided by this number, unless there is ``again`` to call. In a
deep tree that stops, each process waits for its child: all of them would wake up for short turns.
"""


class TimeLimit:
    """A limit for a wait. It allows at least a single turn in any case."""

    __slots__ = ("_end", "_scope")

    def __init__(self, seconds: float) -> None:
        self._end = trio.current_time() + seconds
        self._scope = trio.CancelScope()

    def hurry(self, seconds: float) -> None:
        """Shorten the limit to ``seconds`` from now."""
        self._end = min(self._end, trio.current_time() + seconds)
        self._scope.deadline = min(self._scope.deadline, self._end)

    async def wait(
        self, wait: Callable[[], Awaitable[object]], again: Callable[[], None] | None = None
    ) -> bool:
        """Await ``wait()`` until it returns. False if the limit expires first.

        Each turn calls ``wait()`` again, so it must wait for a state (level-triggered) and not for
        an event. ``again`` is called before each turn.
        """
        pause = _FIRST
        if again is None:
            left = self._end - trio.current_time()
            pause = inf if left == inf else max(_FIRST, min(left / _PART, _LONGEST))
        is_over = False
        while not is_over:
            if again is not None:
                again()
            self._scope = trio.CancelScope(deadline=min(trio.current_time() + pause, self._end))
            with self._scope:
                await wait()
                return True
            now = trio.current_time()
            # The time by which the turn ended late is time in which the loop stood still.
            self._end += max(0.0, now - self._scope.deadline)
            is_over = now >= self._end
            pause = min(2 * pause, _LONGEST)
        return False


async def wait_within(seconds: float, wait: Callable[[], Awaitable[object]]) -> bool:
    """Wait for a state, for at most ``seconds``. False if the limit expires first."""
    return await TimeLimit(seconds).wait(wait)
