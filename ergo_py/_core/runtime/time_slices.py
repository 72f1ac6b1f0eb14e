"""`SLICE`: how long work on the loop runs before other tasks do. `in_slices`: runs long work of the
kernel in such slices. `RequestTurns`: requests from outside begin in turns of their own.
"""

from collections.abc import Iterator
from typing import Final

import trio
from trio.lowlevel import checkpoint, checkpoint_if_cancelled

from .. import sources

__all__ = ["SLICE", "RequestTurns", "at_once", "in_slices"]

# Not measured. Poller, processes and readers share it: seven modules had a number of their own
# before.
SLICE: Final = 0.001
"""The length of a time slice: seconds after which work on the loop lets other tasks run."""


async def in_slices(work: Iterator[None]) -> None:
    """Run ``work`` to its end, and let other tasks run in between. Short work does not yield to the
    scheduler at all.

    Cancellation does not end the work. If its task is abandoned in the middle, the rest is done at
    once, so that no work is left half done.
    """
    end = sources.slice_clock() + SLICE
    for _ in work:
        if sources.slice_clock() >= end:
            try:
                with trio.CancelScope(shield=True):
                    await checkpoint()
            except BaseException:
                at_once(work)
                raise
            end = sources.slice_clock() + SLICE


def at_once(work: Iterator[None]) -> None:
    """Run ``work`` to its end without a pause, where no task can wait."""
    for _ in work:
        pass


class RequestTurns:
    """The turns of the loop in which requests of other nodes and of the control socket begin. On a
    large node a single request may take tenths of a second, and clients send hundreds at once.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = trio.Lock()

    async def take(self) -> None:
        """Wait for a turn in which no other request begins."""
        async with self._lock:
            # The lock is also given to a task that is cancelled before it runs.
            await checkpoint_if_cancelled()
