"""Long work of the kernel's own, in slices: after each millisecond others get a turn."""

from collections.abc import Iterator
from time import perf_counter
from typing import Final

import trio
from trio.lowlevel import checkpoint

__all__ = ["at_once", "in_slices"]

_SLICE: Final = 0.001
"""Seconds after which others run. The work itself says how often the clock is looked at: wherever
it yields.
"""


async def in_slices(work: Iterator[None]) -> None:
    """Go through ``work`` to its end, and let others run in between. Work that is short takes no
    turn at all.

    No cancellation ends it. If its task is cut off in the middle, the rest is done at once: what
    has begun is not left half done.
    """
    end = perf_counter() + _SLICE
    for _ in work:
        if perf_counter() >= end:
            try:
                with trio.CancelScope(shield=True):
                    await checkpoint()
            except BaseException:
                at_once(work)
                raise
            end = perf_counter() + _SLICE


def at_once(work: Iterator[None]) -> None:
    """Go through ``work`` to its end, where nothing can wait."""
    for _ in work:
        pass
