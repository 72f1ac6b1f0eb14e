"""`seeded` and `explore`: a seeded task order in trio, so that a race condition can be reproduced.

trio shuffles the runnable tasks on purpose. With a seed the shuffle is the same each time, and so
are the random numbers of the nodes and the ends of their time slices. The same program, with the
same messages and virtual time, behaves the same. Threads and sockets stay nondeterministic: the
operating system decides their timing.
"""

import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import trio

from .._core.sources import SeededSources, replace_sources
from .._core.vocabulary.errors import ErgoError
from .._core.vocabulary.options import check_number

__all__ = ["RaceError", "explore", "ordered_by", "seeded"]


class RaceError(ErgoError, AssertionError):
    """A program failed in a certain task order. The failure is the cause, and ``seed`` reproduces
    it.
    """

    def __init__(self, seed: int, passed: int) -> None:
        self.seed = seed
        self.passed = passed
        """The number of orders that succeeded before."""
        super().__init__(
            f"failed with seed {seed}, after {passed} that went well; `with seeded({seed}):` does "
            "it again"
        )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Choose the task order by a seed inside the block, and with it the random numbers of nodes and
    the ends of their time slices: around a ``trio.run``, or from here on in a running loop.

    With a ``VirtualClock``, and without threads, sockets and other programs, the same seed gives
    the same history: also that of several nodes in a `Memory`, in another program, and without the
    C extension. Times of day, as in ``Published.at``, are those of the system.

    Raises:
        RuntimeError: this release of trio chooses the order in an unknown way.
    """
    check_number("seed", seed, least=0, whole=True)
    with ordered_by(random.Random(seed)), replace_sources(SeededSources(seed)):
        yield


@contextmanager
def ordered_by(order: random.Random) -> Iterator[None]:
    """Let ``order.shuffle`` choose the order of the tasks of each pass of trio's loop, inside the
    block. trio runs the last task of the list first.

    Raises:
        RuntimeError: this release of trio chooses the order in an unknown way.
    """
    # The two switches that trio itself uses for Hypothesis. Neither is public.
    run: Any = trio._core._run
    if not isinstance(getattr(run, "_r", None), random.Random) or not hasattr(
        run, "_ALLOW_DETERMINISTIC_SCHEDULING"
    ):
        raise RuntimeError(
            f"trio {trio.__version__} no longer chooses the order of its tasks as it did in 0.30 "
            "to 0.35"
        )
    before, allowed = run._r, run._ALLOW_DETERMINISTIC_SCHEDULING
    run._r, run._ALLOW_DETERMINISTIC_SCHEDULING = order, True
    try:
        yield
    finally:
        run._r, run._ALLOW_DETERMINISTIC_SCHEDULING = before, allowed


def explore(
    program: Callable[[], Awaitable[object]],
    seeds: Iterable[int] = range(100),
    *,
    clock: Callable[[], trio.abc.Clock] | None = None,
) -> int:
    """Run an async function for each seed, each time in a new event loop. Returns the number of
    orders tried.

    Args:
        program: opens a node, acts on it, and asserts the conditions that must hold in every order.
        seeds: the orders to try.
        clock: makes the clock of each run, such as ``VirtualClock``.

    Raises:
        RaceError: a run failed; it contains the seed.
    """
    __tracebackhide__ = True
    passed = 0
    for seed in seeds:
        with seeded(seed):
            try:
                trio.run(program, clock=None if clock is None else clock())
            except Exception as failure:
                raise RaceError(seed, passed) from failure
        passed += 1
    return passed
