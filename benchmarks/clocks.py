"""Measuring: two clocks, the longest turn, a latch to wait for, percentiles, resident memory."""

import gc
import os
import resource
from collections.abc import Sequence
from time import perf_counter, process_time, thread_time
from typing import Self

import trio

__all__ = ["Latch", "LongestTurn", "Stopwatch", "percentiles", "resident"]


class Stopwatch:
    """Times a block by both clocks: CPU time of the program, which other programs do not disturb,
    and wall time.
    """

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0

    def start(self) -> None:
        self.cpu, self.wall = process_time(), perf_counter()

    def stop(self) -> None:
        self.cpu, self.wall = process_time() - self.cpu, perf_counter() - self.wall

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def each(self, count: int, prefix: str = "") -> dict[str, float]:
        """Microseconds for each of ``count`` pieces of work."""
        return {f"{prefix}cpu": self.cpu / count * 1e6, f"{prefix}wall": self.wall / count * 1e6}


class LongestTurn(trio.abc.Instrument):
    """How long a single step of a task has kept the loop, by CPU time of the loop's thread. It
    counts while entered.
    """

    SLICE = 1e-3
    """Each slice of the node's work takes about so long, so a shorter turn means nothing."""

    def __init__(self) -> None:
        self._began = thread_time()
        self._longest = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._longest = max(self._longest, thread_time() - self._began)

    def __enter__(self) -> Self:
        # A full collection looks at all objects there are, and is no work of the node.
        gc.disable()
        trio.lowlevel.add_instrument(self)
        # The step that enters it is under way, and is not measured.
        self._began = thread_time()
        return self

    def __exit__(self, *_error: object) -> None:
        trio.lowlevel.remove_instrument(self)
        gc.enable()

    @property
    def microseconds(self) -> float:
        """The longest turn, or a slice if that is longer."""
        return max(self._longest, self.SLICE) * 1e6


class Latch:
    """Opens after so many have reported."""

    __slots__ = ("_event", "_left")

    def __init__(self, count: int) -> None:
        self._left = count
        self._event = trio.Event()

    def report(self) -> None:
        """Count a turn; on the loop's thread only."""
        self._left -= 1
        if not self._left:
            self._event.set()

    async def wait(self) -> None:
        """Wait until it is open."""
        await self._event.wait()


def percentiles(seconds: Sequence[float], scale: float = 1e6) -> dict[str, float]:
    """The median and the 99th percentile; by default in microseconds."""
    ordered = sorted(seconds)
    return {
        "p50": ordered[len(ordered) // 2] * scale,
        "p99": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * scale,
    }


def resident() -> float:
    """Resident memory of this program in KiB; where the system does not tell, the most that it ever
    was.
    """
    try:
        with open("/proc/self/statm", encoding="utf-8") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024
    except FileNotFoundError:
        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
