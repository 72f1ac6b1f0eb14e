"""The shrinker keeps the faults that a failure needs, and few runs are enough."""

from collections.abc import Callable
from dataclasses import replace

from ergo_py.testing.world.plan import FaultRates, Plan, PlannedFault
from ergo_py.testing.world.shrinker import RUNS, shrink

NODES = ("a@world", "b@world", "c@world")


def long_plan(seed: int) -> Plan:
    rates = FaultRates({"cut": 0.7, "pause": 0.7}, 30.0, {}, NODES)
    return Plan(seed, rates.draw(seed))


def needs(*kept: PlannedFault) -> tuple[list[Plan], Callable[[Plan], bool]]:
    tried: list[Plan] = []

    def fails(plan: Plan) -> bool:
        tried.append(plan)
        return all(
            any(each.kind == one.kind and each.nodes == one.nodes for each in plan.faults)
            for one in kept
        )

    return tried, fails


def test_a_plan_shrinks_to_the_faults_that_the_failure_needs() -> None:
    sizes = []
    for seed in range(20):
        plan = long_plan(seed)
        kept = plan.faults[3], plan.faults[-2]
        tried, fails = needs(*kept)
        small = shrink(plan, fails)

        assert len(tried) <= RUNS
        assert fails(small)
        sizes.append(len(small.faults))
    assert max(sizes) == 2


def test_a_failure_that_needs_no_fault_keeps_none() -> None:
    tried: list[Plan] = []

    def fails(plan: Plan) -> bool:
        tried.append(plan)
        return True

    assert shrink(long_plan(1), fails) == Plan(1, (), False)
    assert len(tried) == 2


def test_the_order_of_tasks_stays_shuffled_if_the_failure_needs_it() -> None:
    plan = long_plan(1)

    assert shrink(plan, lambda plan: plan.is_shuffled).is_shuffled
    assert not shrink(plan, lambda plan: bool(plan.faults)).is_shuffled


def test_numbers_become_round() -> None:
    fault = PlannedFault(1.37, "cut", NODES[:2], 4.21)
    plan = Plan(1, (fault,))

    small = shrink(plan, lambda plan: bool(plan.faults))

    assert small.faults[0].at == 1.0
    assert small.faults[0].seconds < 4.21


def test_a_short_fault_becomes_no_longer_when_it_is_shortened() -> None:
    plan = Plan(1, (PlannedFault(1.0, "cut", NODES[:2], 0.1),))

    small = shrink(plan, lambda plan: bool(plan.faults) and plan.faults[0].seconds < 1.0)

    assert small.faults[0].seconds == 0.1


def test_a_failure_that_does_not_come_again_keeps_its_plan() -> None:
    plan = long_plan(1)

    assert shrink(plan, lambda plan: False) == plan


def test_no_plan_runs_twice_and_the_runs_are_bounded() -> None:
    plan = long_plan(2)
    tried: list[str] = []

    def fails(plan: Plan) -> bool:
        tried.append(str(plan))
        return False

    shrink(replace(plan, seed=3), fails, runs=10)

    assert len(tried) == 10
    assert len(set(tried)) == 10
