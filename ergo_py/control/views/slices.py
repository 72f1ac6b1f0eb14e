"""`in_slices`: read many objects a few at a time, with pauses in which the loop may run."""

from collections.abc import Callable, Iterator, Sequence
from time import sleep
from typing import Final, TypeVar

from ..protocol import ControlError

__all__ = ["SLICE", "in_slices", "read_again"]

T = TypeVar("T")

SLICE: Final = 250
"""Objects that are read at a time."""
_PAUSE: Final = 0.0002
"""Seconds between two slices: the loop's thread takes over meanwhile, if it waits for its turn."""
_TRIES: Final = 20


def in_slices(items: Sequence[T], size: int = SLICE) -> Iterator[Sequence[T]]:
    """The items, ``size`` at a time. This thread sleeps for a moment between two slices, so that
    the loop never waits for longer than a slice takes.
    """
    for begin in range(0, len(items), size):
        if begin:
            sleep(_PAUSE)
        yield items[begin : begin + size]


def read_again(read: Callable[[], T]) -> T:
    """The result of ``read``, which iterates over tables of the loop; tried again if the loop
    changes a table meanwhile.

    Raises:
        ControlError: the tables change all the time.
    """
    for _ in range(_TRIES):
        try:
            return read()
        except RuntimeError:  # a table changed its size while it was read
            sleep(_PAUSE)
    raise ControlError("busy", "the tables change faster than they can be read; try again")
