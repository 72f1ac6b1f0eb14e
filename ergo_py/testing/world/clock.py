"""`WorldClock`: the time of a world. It jumps to the next deadline when no task is ready."""

import gc
from collections.abc import Callable
from math import inf
from typing import Any, Final

import trio

from ..._core.runtime.bridge import bells_ring
from ..._core.vocabulary.errors import ErgoError

__all__ = ["StandstillError", "WorldClock"]

_COLLECT: Final = 10_000
"""Jumps between two garbage collections. Python's own collections, whose moments depend on the
whole program, are off while a world runs: finalizers send messages.
"""


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


class WorldClock(trio.abc.Clock):
    """Stands still while any task runs. trio asks for the time to wait only when no task is ready:
    then the clock jumps to the next deadline, and no real time passes.
    """

    def __init__(self, stand_still: Callable[[], None]) -> None:
        self._now = 0.0
        self._stand_still = stand_still
        self._runner: Any = None
        self.jumps = 0
        """How often the clock has jumped."""

    def start_clock(self) -> None:
        """Called by trio when a run begins."""
        self._runner = trio._core._run.GLOBAL_RUN_CONTEXT.runner

    def current_time(self) -> float:
        """The time, in seconds since the world began."""
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Called by trio when no task is ready: jump to the next deadline."""
        runner = self._runner
        if deadline <= self._now:
            return 0.0
        if runner.waiting_for_idle or runner.entry_queue.size() or bells_ring():
            # A task waits until all others wait, or work for the loop is queued: both without time.
            return inf
        if deadline == inf:
            self._stand_still()
            return 0.0
        self._now = deadline
        self.jumps += 1
        if not self.jumps % _COLLECT:
            gc.collect()
        return 0.0
