"""Cases, and how they are measured: all variants of a case in the same round, in shuffled order,
round after round.

Machines are busy and noisy, so no figure stands alone: it is divided by a reference that ran beside
it, in the same round, and the median of these ratios counts. Nothing here passes or fails.
"""

import gc
import importlib
import pkgutil
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite, nan
from statistics import median, quantiles
from types import ModuleType

import trio

from ergo_py.info import is_fast

from . import workloads

__all__ = [
    "ROUNDS",
    "Case",
    "Figures",
    "Goal",
    "Line",
    "Measurements",
    "Row",
    "by_build",
    "discover",
    "evaluate",
    "measure",
    "on_loop",
    "spread",
]

ROUNDS = 5
"""How often each variant is measured if nothing else is asked for: the whole run takes less than
four minutes then.
"""

Figures = Mapping[str, float]
"""The figures of a measurement of a variant; ``cpu`` and ``wall`` are the usual two."""

Variant = Callable[[int], Figures]
"""Does a piece of work of the given size and returns its costs; less is better, always."""


def on_loop(work: Callable[..., Awaitable[Figures]], *args: object) -> Variant:
    """A variant that runs ``work(*args, size)`` in a trio of its own."""
    return lambda size: trio.run(partial(work, *args, size))


@dataclass(frozen=True)
class Goal:
    """A figure to stay under: ``most`` times the reference ``of``, or ``most`` of the case's unit
    if that is empty.
    """

    name: str
    most: float
    of: str = ""
    is_dream: bool = False
    """Beyond the required goals: where two limits are named for the same work, the harder limit."""


def by_build(fast: float, pure: float) -> float:
    """The limit of a goal, which differs with and without the C extension."""
    return fast if is_fast else pure


@dataclass(frozen=True)
class Line:
    """A line of the table: a figure of a variant, or its cost beyond another variant
    (``minus``).
    """

    name: str
    subject: str
    figure: str = "cpu"
    minus: str = ""
    goals: Sequence[Goal] = ()


@dataclass(frozen=True)
class Case:
    """A workload in several variants: ours, and those it is compared with.

    The variants ``floor``, ``trio`` and ``pykka`` have columns of their own in the table; others
    are shown where a goal names them.
    """

    name: str
    about: str
    unit: str
    size: int
    least: int
    variants: Mapping[str, Variant]
    lines: Sequence[Line]
    rounds: int | None = None
    """So many out of every :data:`ROUNDS`, for slow and steady cases."""
    reference: str = "trio"
    """The variant with the spread that shows how noisy the run was."""
    by_wall: frozenset[str] = frozenset({"pykka", "Erlang", "Go"})
    """Variants with threads of their own: comparisons with them use wall time."""


Measurements = dict[str, list[dict[str, Figures]]]
"""For each case its rounds; for each round the figures of each variant."""


@dataclass(frozen=True)
class Row:
    """A line of the table, with its figures."""

    line: Line
    value: float
    spread: float
    ratios: Mapping[str, float]
    spreads: Mapping[str, float]
    """Of the ratios."""
    verdicts: Sequence[tuple[Goal, float, bool]]


def discover(only: Sequence[str] = (), package: ModuleType = workloads) -> list[Case]:
    """All cases of a package, or the cases with a given word in their names."""
    found: list[Case] = []
    for module in pkgutil.iter_modules(package.__path__):
        found += getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "CASES", [])
    return [case for case in found if not only or any(word in case.name for word in only)]


def measure(
    cases: Iterable[Case],
    rounds: int,
    size: Callable[[Case], int],
    tell: Callable[[str], None],
    choose: random.Random | None = None,
    warm_up: bool = True,
) -> Measurements:
    """Measure every case in every round, as far as the case takes part in so many."""
    choose = choose or random.Random()
    cases = list(cases)
    done: Measurements = {case.name: [] for case in cases}
    for number in range(1, rounds + 1):
        choose.shuffle(cases)
        for case in cases:
            if number <= _share(case, rounds):
                tell(f"round {number} of {rounds}: {case.name}")
                done[case.name].append(_round(case, size(case), choose, warm_up and number == 1))
    return done


def _share(case: Case, rounds: int) -> int:
    """In how many of all rounds a case takes part."""
    return rounds if case.rounds is None else max(1, case.rounds * rounds // ROUNDS)


def _round(case: Case, size: int, choose: random.Random, warm_up: bool) -> dict[str, Figures]:
    names = list(case.variants)
    choose.shuffle(names)
    taken: dict[str, Figures] = {}
    for name in names:
        if warm_up and case.rounds is None:
            case.variants[name](case.least)
        # Remains of earlier work are cleared away, and objects that cannot be cleared are hidden
        # from the collector.
        gc.collect()
        gc.freeze()
        try:
            taken[name] = case.variants[name](size)
        finally:
            gc.unfreeze()
    return taken


def evaluate(case: Case, rounds: Sequence[Mapping[str, Figures]]) -> list[Row]:
    """The rows of a case: medians over the rounds of figures, and of ratios that were formed inside
    a round.
    """
    return [_row(case, line, rounds) for line in case.lines]


def _row(case: Case, line: Line, rounds: Sequence[Mapping[str, Figures]]) -> Row:
    values = [_cost(line, taken, line.figure) for taken in rounds]
    references = [name for name in case.variants if not name.startswith("ergo")]
    formed = {name: _ratios(case, line, rounds, name) for name in references}
    ratios = {name: median(found) if found else nan for name, found in formed.items()}
    spreads = {name: spread(found) if found else nan for name, found in formed.items()}
    value = median(values)
    reached = [(goal, ratios[goal.of] if goal.of else value) for goal in line.goals]
    return Row(
        line,
        value,
        spread(values),
        ratios,
        spreads,
        [(goal, is_, is_ <= goal.most) for goal, is_ in reached],
    )


def _cost(line: Line, taken: Mapping[str, Figures], figure: str) -> float:
    return taken[line.subject][figure] - (taken[line.minus][figure] if line.minus else 0.0)


def _ratios(
    case: Case, line: Line, rounds: Sequence[Mapping[str, Figures]], reference: str
) -> list[float]:
    """A ratio for each round in which the reference gave such a figure at all."""
    return [ratio for taken in rounds if isfinite(ratio := _ratio(case, line, taken, reference))]


def _ratio(case: Case, line: Line, taken: Mapping[str, Figures], reference: str) -> float:
    figure = line.figure.replace("cpu", "wall") if reference in case.by_wall else line.figure
    limit = taken[reference].get(figure, taken[reference].get("cpu", 0.0))
    return _cost(line, taken, figure) / limit if limit else nan


def spread(values: Sequence[float]) -> float:
    """The interquartile range as a share of the median."""
    middle = median(values)
    if len(values) < 2 or not middle:
        return 0.0
    low, _, high = quantiles(values, n=4, method="inclusive")
    return abs((high - low) / middle)
