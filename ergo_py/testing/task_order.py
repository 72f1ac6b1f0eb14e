"""The order in which trio lets tasks run, made by a seed: a race that was found once can be had
again.

trio shuffles the tasks that can run, on purpose. With a seed the shuffle is the same each time, so
that the same program, with the same messages and virtual time, does the same. What threads and
sockets do is as it was: their moments are the operating system's.
"""

import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import trio

from .._core.vocabulary.errors import ErgoError
from .._core.vocabulary.options import check_number

__all__ = ["RaceError", "explore", "seeded"]


class RaceError(ErgoError, AssertionError):
    """A program failed in one order of its tasks. The failure is the cause, and ``seed`` brings it
    back.
    """

    def __init__(self, seed: int, passed: int) -> None:
        self.seed = seed
        self.passed = passed
        """How many other orders were tried before, and went well."""
        super().__init__(
            f"failed with seed {seed}, after {passed} that went well; `with seeded({seed}):` does "
            "it again"
        )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Have trio choose the order of tasks by a seed inside the block: around a ``trio.run``, or
    from here on in a running one.

    Raises:
        RuntimeError: this release of trio chooses it in a way that is not known here.
    """
    check_number("seed", seed, least=0, whole=True)
    # Where trio itself, for Hypothesis, has put the two switches that this needs. Neither is
    # public.
    run: Any = trio._core._run
    if not isinstance(getattr(run, "_r", None), random.Random) or not hasattr(
        run, "_ALLOW_DETERMINISTIC_SCHEDULING"
    ):
        raise RuntimeError(
            f"trio {trio.__version__} no longer chooses the order of its tasks as it did in 0.30 "
            "to 0.35"
        )
    state, allowed = run._r.getstate(), run._ALLOW_DETERMINISTIC_SCHEDULING
    run._r.seed(seed)
    run._ALLOW_DETERMINISTIC_SCHEDULING = True
    try:
        yield
    finally:
        run._r.setstate(state)
        run._ALLOW_DETERMINISTIC_SCHEDULING = allowed


def explore(
    program: Callable[[], Awaitable[object]],
    seeds: Iterable[int] = range(100),
    *,
    clock: Callable[[], trio.abc.Clock] | None = None,
) -> int:
    """Run an async function once for each seed, each time in an event loop of its own. Returns how
    many orders were tried.

    Args:
        program: opens a node, does something, and asserts what must hold in every order.
        seeds: which orders to try.
        clock: makes the clock of each run, such as ``VirtualClock``.

    Raises:
        RaceError: one of the runs failed; it says with which seed.
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
