"""`Budget`: the time and memory that an input may cost, for each of its bytes.

A parser that understands or refuses every input may still be blocked by one: a set of values with
the same hash, a small text that unpacks to a large one, a line that is searched from its beginning
for each byte that arrives. So `Target` runs each decoder within a budget.
"""

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

__all__ = ["Budget", "OverBudgetError", "Spent"]

_TRIES: Final = 3
"""The least time of so many counts: the garbage collector and a busy machine only add to it."""


class OverBudgetError(AssertionError):
    """An input cost more than its size allows."""


@dataclass(frozen=True, slots=True)
class Spent:
    """The outcome of an input, and its cost."""

    outcome: str
    size: int
    """Bytes of the input."""
    seconds: float
    memory: int
    """The most bytes at a time."""


@dataclass(frozen=True)
class Budget:
    """A constant, and a slope over the bytes of an input. The constants are generous, since
    machines and Pythons differ: the budget finds costs that grow with the square of the input, or
    with a number that is written in it.
    """

    seconds: float = 0.5
    seconds_per_byte: float = 20e-6
    memory: int = 8 << 20
    """Bytes."""
    memory_per_byte: int = 400
    clock: Callable[[], float] = time.thread_time
    """The processor time of this thread, so that other programs do not count."""

    def spend(self, function: Callable[[bytes], str], data: bytes) -> Spent:
        """The outcome of a function for an input, and its cost.

        Raises:
            OverBudgetError: it took more time or memory than the size of the input allows.
        """
        seconds = self._count_time(function, data)
        tracemalloc.start()
        try:
            outcome = function(data)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        allowed = self.memory + self.memory_per_byte * len(data)
        if peak > allowed:
            raise OverBudgetError(f"{len(data)} bytes took {peak} bytes; allowed are {allowed}")
        return Spent(outcome, len(data), seconds, peak)

    def _count_time(self, function: Callable[[bytes], str], data: bytes) -> float:
        allowed = self.seconds + self.seconds_per_byte * len(data)
        least = allowed
        for _ in range(_TRIES):
            begin = self.clock()
            function(data)
            least = self.clock() - begin
            if least <= allowed:
                return least
        raise OverBudgetError(f"{len(data)} bytes took {least:.3f} s; allowed are {allowed:.3f} s")
