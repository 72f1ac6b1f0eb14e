"""`without_collections`: suspends the garbage collector while connections move."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["without_collections"]

_FROZEN: Final = 1_000
"""A program with so many frozen objects has frozen them on purpose: they stay frozen. Python 3.12
freezes some hundred objects.
"""


@contextmanager
def without_collections() -> Iterator[None]:
    """Suspend the garbage collector, and take the objects that are made meanwhile for old objects.

    A connection and its session are some hundred objects, all of which live on. The collector would
    look at the objects of thousands of connections again and again. In the program that takes them
    this was two fifths of the processor time of a move; and in both programs one collection of the
    objects of 10,000 connections stopped all of them for half a second.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count() < _FROZEN:
            gc.freeze()
            gc.unfreeze()
        if was_on:
            gc.enable()
