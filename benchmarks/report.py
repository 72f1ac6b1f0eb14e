"""The measurements, for people and for programs."""

import json
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

from .harness import Case, Figures, Measurements, Row, evaluate, spread

__all__ = ["machine", "save", "table"]

_COLUMNS = ("floor", "trio", "pykka")
_NOISY = 0.10


def table(cases: Sequence[Case], measured: Measurements) -> str:
    """The table: figures, ratios, goals, and how far the figures can be trusted."""
    return "\n".join(_lines(cases, measured))


def _lines(cases: Sequence[Case], measured: Measurements) -> Iterator[str]:
    verdicts: list[tuple[bool, bool]] = []
    noise: list[float] = []
    for case in cases:
        rounds = measured[case.name]
        reference = _reference(case, rounds)
        noise.append(spread(reference))
        yield ""
        yield f"{case.name}: {case.about}"
        yield (
            f"{'':30}{'here':>10}"
            + "".join(f"{f'x {name}':>9}" for name in _COLUMNS)
            + f"{'spread':>8}  goals"
        )
        for row in evaluate(case, rounds):
            verdicts += [(goal.is_dream, reached) for goal, _, reached in row.verdicts]
            yield _line(case, row)
        yield (
            f"  {case.reference} itself: {median(reference):.2f} {case.unit}, "
            f"interquartile range {spread(reference):.0%} of {len(reference)} rounds"
        )
    yield ""
    for what, dreams in (("goals", False), ("dreams", True)):
        some = [reached for is_dream, reached in verdicts if is_dream is dreams]
        yield f"{what} met: {sum(some)} of {len(some)}"
    loud = sum(value > _NOISY for value in noise)
    yield (
        f"noise: the references vary by {max(noise, default=0):.0%} at most; "
        f"{loud} of {len(noise)} by more than {_NOISY:.0%}. Read ratios, not absolutes."
    )


def _line(case: Case, row: Row) -> str:
    ratios = "".join(
        f"{row.ratios[name]:9.2f}" if name in row.ratios else f"{'':9}" for name in _COLUMNS
    )
    goals = "; ".join(
        ("dream: " if goal.is_dream else "")
        + f"{goal.name} <= {goal.most:.3g}{f' {goal.of}' if goal.of else f' {case.unit}'.rstrip()} "
        + ("met" if reached else "NOT MET")
        + ("" if goal.of in _COLUMNS or not goal.of else f" ({is_:.2f})")
        for goal, is_, reached in row.verdicts
    )
    return f"  {row.line.name:28}{row.value:10.2f}{ratios}{row.spread:8.0%}  {goals}".rstrip()


def _reference(case: Case, rounds: Sequence[Mapping[str, Figures]]) -> list[float]:
    return [taken[case.reference][case.lines[0].figure] for taken in rounds]


def save(
    cases: Sequence[Case],
    measured: Measurements,
    directory: Path,
    packages: Sequence[str] = ("ergo_py", "trio", "pykka"),
) -> Path:
    """Write all measurements, and the machine they were made on."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / time.strftime("%Y-%m-%d-%H%M%S.json")
    content = {
        **machine(packages),
        "cases": {
            case.name: {
                "about": case.about,
                "unit": case.unit,
                "rounds": measured[case.name],
                "lines": _summary(case, measured[case.name]),
            }
            for case in cases
        },
    }
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return path


def machine(packages: Sequence[str]) -> dict[str, Any]:
    """The time and the machine of a measurement."""
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "load": os.getloadavg(),
        "versions": {name: version(name) for name in packages},
    }


def _summary(case: Case, rounds: Sequence[Mapping[str, Figures]]) -> dict[str, Any]:
    return {
        row.line.name: {
            "value": row.value,
            "spread": row.spread,
            "ratios": {name: ratio for name, ratio in row.ratios.items() if isfinite(ratio)},
            "spreads": {name: ratio for name, ratio in row.spreads.items() if isfinite(ratio)},
            "goals": [
                {
                    "name": goal.name,
                    "most": goal.most,
                    "of": goal.of,
                    "dream": goal.is_dream,
                    "is": is_,
                    "met": reached,
                }
                for goal, is_, reached in row.verdicts
            ],
        }
        for row in evaluate(case, rounds)
    }
