"""The sources that make two runs of a program differ: the clock of time slices, random numbers, the
numbers of started nodes, and threads. `replace_sources` makes them follow from a seed.

Not among them are the order of tasks, which trio chooses, and sockets and other programs.
"""

import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from time import perf_counter
from typing import Final, NamedTuple, Protocol

__all__ = [
    "Chance",
    "SeededSources",
    "Sources",
    "ThreadSource",
    "chance",
    "replace_sources",
    "seeded_creation",
]


class Chance(NamedTuple):
    """The random numbers of a node for a purpose."""

    fraction: Callable[[], float]
    """Returns a number from 0 up to 1, which is excluded. Not for secrets."""
    bits: Callable[[int], int]
    """Returns a number of so many bits that nobody can guess, unless it follows from a seed."""


class ThreadSource(Protocol):
    """The threads of a program."""

    def start(self, thread: threading.Thread, /) -> None:
        """Start a thread.

        Raises:
            RuntimeError: the system cannot start another thread.
        """
        ...

    def give_way(self, is_ready: Callable[[], bool], timeout: float | None, /) -> float | None:
        """Called by a thread before it blocks, for at most ``timeout`` seconds, until
        ``is_ready()`` holds. Returns the seconds for which to block; None for any time.
        """
        ...

    def rest(self, seconds: float, /) -> None:
        """Block the loop for a moment, so that other threads get the GIL."""
        ...


class _SystemThreads:
    """Threads that the operating system schedules."""

    def start(self, thread: threading.Thread) -> None:
        thread.start()

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)

    def give_way(self, _is_ready: Callable[[], bool], timeout: float | None) -> float | None:
        return timeout


class Sources(Protocol):
    """The sources of a program."""

    @property
    def is_seeded(self) -> bool:
        """Whether a seed chooses the order of tasks."""
        ...

    @property
    def threads(self) -> ThreadSource:
        """Starts and schedules threads."""
        ...

    def slice_clock(self) -> float:
        """The time in seconds by which work on the loop measures its time slices."""
        ...

    def chance(self, node: str, purpose: str, /) -> Chance:
        """The random numbers of a node for a purpose."""
        ...

    def creation(self) -> int | None:
        """The number of a node that starts; None for the time."""
        ...


class _SystemSources:
    """The sources of a program outside of a test."""

    is_seeded = False

    def __init__(self) -> None:
        self.threads = _SystemThreads()
        # Not a method: it would cost a Python frame at each look.
        self.slice_clock = perf_counter
        self._chance = Chance(random.random, secrets.randbits)

    def chance(self, _node: str, _purpose: str) -> Chance:
        return self._chance

    def creation(self) -> None:
        return None


class SeededSources:
    """Sources that follow from a seed.

    Each node has its own random numbers for each purpose, so that a number that is not drawn any
    more changes no others. The clock of time slices advances at each look, by a step that the seed
    chooses: so different seeds end time slices, and collect operations of the network, at different
    places. Threads are those of the operating system, unless others are given.
    """

    is_seeded = True

    def __init__(self, seed: int, threads: ThreadSource | None = None) -> None:
        self.threads: ThreadSource = _SystemThreads() if threads is None else threads
        self._seed = seed
        fraction = self._generator("time slices").random()
        self._step: float = _STEPS[0] * (_STEPS[1] / _STEPS[0]) ** fraction
        self._looks = count()
        self._chances: dict[tuple[str, str], Chance] = {}
        self._creations = count(_FIRST_CREATION)

    def slice_clock(self) -> float:
        """The number of looks, as a time."""
        return next(self._looks) * self._step

    def chance(self, node: str, purpose: str) -> Chance:
        """The random numbers of a node for a purpose. They go on where an earlier start of the node
        has ended.
        """
        found = self._chances.get((node, purpose))
        if found is None:
            generator = self._generator(node, purpose)
            found = Chance(generator.random, generator.getrandbits)
            self._chances[node, purpose] = found
        return found

    def creation(self) -> int:
        """The number of a node that starts: the nodes of this seed are counted."""
        return next(self._creations)

    def _generator(self, *names: str) -> random.Random:
        return random.Random(repr((self._seed, *names)))  # does not depend on PYTHONHASHSEED


_STEPS: Final = (0.000002, 0.0005)
"""The shortest and the longest step of a seeded clock of time slices: a slice lasts for two looks,
or for five hundred, and the network collects operations for no look, or for 25.
"""
_FIRST_CREATION: Final = 1 << 62
"""Larger than the numbers of nodes that were started without a seed, which are times."""

_sources: Sources = _SystemSources()
slice_clock: Callable[[], float] = _sources.slice_clock
"""The clock of time slices. Call it as ``sources.slice_clock()``: it may be replaced. The C
extension finds it here, too.
"""
is_seeded: bool = _sources.is_seeded
"""Whether a seed chooses the order of tasks. Read it as ``sources.is_seeded``, as the clock."""
threads: ThreadSource = _sources.threads
"""The threads. Call them as ``sources.threads.start(…)``: they may be replaced."""


def chance(node: str, purpose: str) -> Chance:
    """The random numbers of a node for a purpose. Do not keep them: they may be replaced."""
    return _sources.chance(node, purpose)


def seeded_creation() -> int | None:
    """The number of a node that starts, if it follows from a seed."""
    return _sources.creation()


@contextmanager
def replace_sources(sources: Sources) -> Iterator[None]:
    """Use other sources inside the block, in the whole program."""
    before = _sources
    _use(sources)
    try:
        yield
    finally:
        _use(before)


def _use(sources: Sources) -> None:
    global _sources, is_seeded, slice_clock, threads
    _sources, is_seeded = sources, sources.is_seeded
    slice_clock, threads = sources.slice_clock, sources.threads
