"""`in_slices`: a thread reads many objects of the node, some at a time, and pauses in between. So
it does not hold up the loop.
"""

from collections.abc import Iterator, Sequence
from time import sleep, thread_time
from typing import Final, TypeVar

__all__ = ["in_slices", "pause"]

T = TypeVar("T")

_PAUSE: Final = 0.0002
"""Seconds between two slices: the loop's thread takes over meanwhile, if it waits for its turn."""
_SLICE: Final = 200
"""Objects that are read between two pauses, at most."""
_LONGEST: Final = 0.0005
"""Seconds of processor time after which a pause comes as soon as a piece ends."""
_PIECE: Final = 100
"""Objects that are read without a look at the clock."""


def pause() -> None:
    """Let the loop run, if it waits for its turn: between two parts of a longer work."""
    sleep(_PAUSE)


def in_slices(items: Sequence[T], size: int = _SLICE, piece: int = _PIECE) -> Iterator[Sequence[T]]:
    """The items, at most ``piece`` at a time. The thread sleeps for a moment after ``size`` of
    them, and earlier if they have taken half a millisecond: so the loop never waits for longer
    than that and a piece take.
    """
    piece = min(piece, size)
    read, began = 0, thread_time()
    for begin in range(0, len(items), piece):
        if read >= size or thread_time() - began > _LONGEST:
            pause()
            read, began = 0, thread_time()
        yield items[begin : begin + piece]
        read += piece
