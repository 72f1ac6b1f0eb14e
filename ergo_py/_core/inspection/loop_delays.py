"""`LoopDelays`: a histogram of the seconds that the event loop took to answer."""

from bisect import bisect_left
from typing import Final

__all__ = ["BOUNDS", "LoopDelays"]

BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper bounds of the classes, in seconds. The last class has none."""


class LoopDelays:
    """Counts delays by class. A single thread adds; any thread may read."""

    __slots__ = ("_counts", "_total")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._total = 0.0

    def add(self, seconds: float) -> None:
        """Count a delay."""
        self._total += seconds
        self._counts[bisect_left(BOUNDS, seconds)] += 1

    def read(self) -> tuple[tuple[int, ...], float]:
        """The count of each class, and the sum of all delays in seconds."""
        return tuple(self._counts), self._total
