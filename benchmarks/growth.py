"""A case with variants of the same work, once, ten times and a hundred times as much of it."""

from collections.abc import Awaitable, Callable, Mapping

from .clocks import Stopwatch
from .harness import Case, Figures, Goal, Line, Variant, on_loop

__all__ = ["LIMIT", "growing", "timed"]

LIMIT = 4.0
"""A piece of work may cost so many times as much when there is a hundred times as much: caches
miss, heaps get deeper, the collector has more to look at. Work that looked at all others would cost
a hundred times as much.
"""

_REPEATED = {1: 8, 10: 2, 100: 1}
"""A little work is done more often, so that it can be measured at all."""


def growing(
    name: str,
    about: str,
    work: Callable[[int], Awaitable[Figures]],
    size: int,
    figures: Mapping[str, str],
) -> Case:
    """A case in which ``work(size)``, ``work(10 * size)`` and ``work(100 * size)`` give these
    figures (line → figure).
    """
    return Case(
        name=name,
        about=about,
        unit="µs",
        size=size,
        least=1,
        variants={"1×": _times(work, 1), "10×": _times(work, 10), "ergo 100×": _times(work, 100)},
        lines=[
            Line(line, "ergo 100×", figure=figure, goals=(Goal("linear", LIMIT, "1×"),))
            for line, figure in figures.items()
        ],
        rounds=5,
        reference="1×",
    )


def _times(work: Callable[[int], Awaitable[Figures]], factor: int) -> Variant:
    run = on_loop(work)

    def variant(size: int) -> Figures:
        taken = [run(size * factor) for _ in range(_REPEATED[factor])]
        return {figure: sum(one[figure] for one in taken) / len(taken) for figure in taken[0]}

    return variant


def timed(watches: Mapping[str, Stopwatch], size: int) -> Figures:
    """The CPU time of a single piece of work out of ``size``, in microseconds, by each
    stopwatch.
    """
    return {figure: watch.cpu / size * 1e6 for figure, watch in watches.items()}
