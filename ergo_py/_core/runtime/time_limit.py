"""Time limits of an ending, of which the time does not count in which the loop itself stood still.

After SIGSTOP and SIGCONT, or on a machine that was paused, every deadline is over at once, and that
says nothing about those it was set for: they stood still as well. So a limit is counted in turns,
and a turn that ends late moves it.
"""

from collections.abc import Awaitable, Callable
from math import inf
from typing import Final

import trio

__all__ = ["TimeLimit", "wait_within"]

_FIRST: Final = 0.02
"""Seconds of the first turn; each takes twice as long as the one before, up to one second."""


class TimeLimit:
    """How long somebody waits. At least one turn is waited in any case."""

    __slots__ = ("_end", "_scope")

    def __init__(self, seconds: float) -> None:
        self._end = trio.current_time() + seconds
        self._scope = trio.CancelScope()

    def hurry(self, seconds: float) -> None:
        """Let it take no longer than this from now on."""
        self._end = min(self._end, trio.current_time() + seconds)
        self._scope.deadline = min(self._scope.deadline, self._end)

    async def wait(
        self, wait: Callable[[], Awaitable[object]], again: Callable[[], None] | None = None
    ) -> bool:
        """Have ``wait()`` awaited until it returns; False if the time is over first.

        It is begun anew in each turn, so it must wait for a state and not for a moment. ``again``
        is called before each turn.
        """
        pause = _FIRST if self._end < inf or again is not None else inf
        is_over = False
        while not is_over:
            if again is not None:
                again()
            self._scope = trio.CancelScope(deadline=min(trio.current_time() + pause, self._end))
            with self._scope:
                await wait()
                return True
            now = trio.current_time()
            self._end += max(0.0, now - self._scope.deadline)
            is_over = now >= self._end
            pause = min(2 * pause, 1.0)
        return False


async def wait_within(seconds: float, wait: Callable[[], Awaitable[object]]) -> bool:
    """Wait for a state, for no longer than ``seconds``; False if that was not enough."""
    return await TimeLimit(seconds).wait(wait)
