"""`RequestFigures`: how many requests the web servers of a node answer, and in which time. Servers
with ``metrics=True`` count.
"""

from bisect import bisect_left
from typing import Final
from weakref import WeakKeyDictionary

from .._core.kernel import Kernel

__all__ = ["BOUNDS", "RequestFigures", "find_request_figures", "request_figures"]

BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The upper bounds of the classes, in seconds, as OpenTelemetry's convention names them."""
_METHODS: Final = frozenset(
    ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")
)
_MOST: Final = 1000
"""Combinations of method, route and status that are counted separately."""

Key = tuple[str, str, str]
"""The method, the prefix of the route, and the status."""


class RequestFigures:
    """A histogram of durations for each method, route and status. The loop adds; any thread may
    read.
    """

    def __init__(self) -> None:
        self.active: int = 0
        """Requests under way."""
        self._counts: dict[Key, list[int]] = {}
        self._totals: dict[Key, float] = {}

    def begin(self) -> None:
        """A request has begun."""
        self.active += 1

    def give_up(self) -> None:
        """A request has ended without a response."""
        self.active -= 1

    def finish(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request has its response."""
        self.active -= 1
        key = (method if method in _METHODS else "_OTHER", route, str(status))
        counts = self._counts.get(key)
        if counts is None:
            if len(self._counts) >= _MOST:
                key = ("_OTHER", "other", "other")
            counts = self._counts.setdefault(key, [0] * (len(BOUNDS) + 1))
        self._totals[key] = self._totals.get(key, 0.0) + seconds
        counts[bisect_left(BOUNDS, seconds)] += 1

    def read(self) -> dict[Key, tuple[tuple[int, ...], float]]:
        """The count of each class of durations, and the sum of all durations in seconds."""
        return {
            key: (tuple(counts), self._totals.get(key, 0.0))
            for key, counts in list(self._counts.items())
        }


_by_kernel: Final[WeakKeyDictionary[Kernel, RequestFigures]] = WeakKeyDictionary()


def request_figures(kernel: Kernel) -> RequestFigures:
    """The figures of a node, made on first use. On the loop."""
    found = _by_kernel.get(kernel)
    if found is None:
        found = _by_kernel[kernel] = RequestFigures()
    return found


def find_request_figures(kernel: Kernel) -> RequestFigures | None:
    """The figures of a node, if a server of it counts. From any thread."""
    return _by_kernel.get(kernel)
