"""`shrink`: make the plan of a failing world smaller, as long as the world still fails."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from .plan import Plan, PlannedFault

__all__ = ["RUNS", "shrink"]

RUNS: Final = 100
"""The most worlds that a shrinker runs."""
_SHORTEST: Final = 0.5


class _Shrinker:
    def __init__(self, plan: Plan, fails: Callable[[Plan], bool], runs: int) -> None:
        self.plan = plan
        self._fails = fails
        self._left = runs
        self._tried: set[str] = {str(plan)}

    def try_plan(self, plan: Plan) -> bool:
        """Keep a plan if its world fails."""
        if not self._left or str(plan) in self._tried:
            return False
        self._left -= 1
        self._tried.add(str(plan))
        if not self._fails(plan):
            return False
        self.plan = plan
        return True

    def remove_faults(self) -> None:
        """Remove halves of the plan, then quarters, and so on down to single faults."""
        size = len(self.plan.faults) // 2
        while size:
            start = 0
            while start < len(self.plan.faults):
                faults = self.plan.faults
                if not self.try_plan(
                    self.plan.with_faults(faults[:start] + faults[start + size :])
                ):
                    start += size
            size //= 2

    def lower_numbers(self) -> None:
        """Make faults shorter, smaller and rounder."""
        for position in range(len(self.plan.faults)):
            for simplify in (_round, _shorten, _weaken):
                simpler = simplify(self.plan.faults[position])
                self.try_plan(self.plan.with_faults(_put(self.plan.faults, position, simpler)))


def shrink(plan: Plan, fails: Callable[[Plan], bool], *, runs: int = RUNS) -> Plan:
    """The smallest plan found that still fails.

    Args:
        plan: fails.
        fails: runs the world of a plan, and says whether it fails in the same way.
        runs: the most worlds to run.
    """
    shrinker = _Shrinker(plan, fails, runs)
    shrinker.try_plan(plan.with_faults(()))
    shrinker.remove_faults()
    shrinker.try_plan(replace(shrinker.plan, is_shuffled=False))
    shrinker.remove_faults()
    shrinker.lower_numbers()
    return shrinker.plan


def _put(
    faults: Sequence[PlannedFault], position: int, fault: PlannedFault
) -> tuple[PlannedFault, ...]:
    return (*faults[:position], fault, *faults[position + 1 :])


def _round(fault: PlannedFault) -> PlannedFault:
    return replace(fault, at=float(round(fault.at)), seconds=float(max(1, round(fault.seconds))))


def _shorten(fault: PlannedFault) -> PlannedFault:
    return replace(fault, seconds=min(fault.seconds, round(max(_SHORTEST, fault.seconds / 2), 2)))


def _weaken(fault: PlannedFault) -> PlannedFault:
    return replace(fault, amount=round(fault.amount / 2, 3))
