"""The sums of ended processes: against a naive model, and read while a process leaves."""

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ergo_py._core.tables.ended_totals import MOST_LABELS, OTHER, BehaviourTotals, EndedTotals

NAMES = st.sampled_from(["Counter", "Store", OTHER])


class TotalsMachine(RuleBasedStateMachine):
    """Living processes and the sums, against counters of everything that ever happened."""

    def __init__(self) -> None:
        super().__init__()
        self.totals = EndedTotals()
        self.living: list[tuple[str, int]] = []
        self.handled: Counter[str] = Counter()
        self.crashed: Counter[str] = Counter()
        self.restarts: Counter[str] = Counter()

    @rule(behaviour=NAMES, handled=st.integers(0, 50))
    def a_process_lives(self, behaviour: str, handled: int) -> None:
        self.living.append((behaviour, handled))
        self.handled[behaviour] += handled

    @rule(which=st.integers(0, 100))
    def a_process_ends(self, which: int) -> None:
        if self.living:
            behaviour, handled = self.living[which % len(self.living)]
            self.totals.begin()
            self.living.remove((behaviour, handled))
            self.totals.add(behaviour, handled, 1, 0.5)

    @rule(behaviour=NAMES)
    def a_process_crashes(self, behaviour: str) -> None:
        self.crashed[behaviour] += 1
        self.totals.count_crash(behaviour)

    @rule(child=NAMES)
    def a_child_restarts(self, child: str) -> None:
        self.restarts[child] += 1
        self.totals.count_restart(child)

    @invariant()
    def living_and_ended_processes_together_have_everything(self) -> None:
        living, ledger = self.totals.read(lambda: list(self.living))
        together = Counter({name: sums.handled for name, sums in ledger.behaviours.items()})
        for behaviour, handled in living:
            together[behaviour] += handled

        assert +together == +self.handled
        assert {
            name: sums.crashed for name, sums in ledger.behaviours.items() if sums.crashed
        } == dict(self.crashed)
        assert ledger.restarts == dict(self.restarts)


TestTotals = TotalsMachine.TestCase


def test_only_so_many_behaviours_have_sums_of_their_own() -> None:
    totals = EndedTotals()
    for number in range(MOST_LABELS + 50):
        totals.begin()
        totals.add(f"Made{number}", 1, 2, 0.0)
        totals.count_restart(f"child{number}")
        totals.begin()
        totals.add_meta(f"Made{number}", 0, 0, (f"Server{number}", 3, 4))

    _, ledger = totals.read(list)

    assert len(ledger.behaviours) == len(ledger.restarts) == len(ledger.traffic) == MOST_LABELS + 1
    assert ledger.behaviours[OTHER] == BehaviourTotals(100, 50, 100, 0.0, 0, True)
    assert ledger.restarts[OTHER] == 50
    assert ledger.traffic[OTHER] == (150, 200)
    assert totals.label("Made3") == "Made3"
    assert totals.label(f"Made{MOST_LABELS}") == OTHER


def test_a_reading_between_two_steps_of_an_end_is_taken_again() -> None:
    totals = EndedTotals()
    living = ["Counter"]
    readings = 0

    def look() -> list[str]:
        nonlocal readings
        readings += 1
        found = list(living)
        if readings == 1:
            # The process leaves the table here, on another thread, and its sums follow later.
            totals.begin()
            living.remove("Counter")
        elif readings == 2:
            totals.add("Counter", 5, 0, 0.0)
        return found

    found, ledger = totals.read(look)

    assert (found, ledger.behaviours["Counter"].handled, readings) == ([], 5, 3)
