"""`SLICE`: how long work on the loop runs before other tasks do. `in_slices`: runs long work of the
kernel in such slices.
"""

from collections.abc import Iterator
from typing import Final

import trio
from trio.lowlevel import checkpoint

from .. import sources

__all__ = ["SLICE", "at_once", "in_slices"]

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
