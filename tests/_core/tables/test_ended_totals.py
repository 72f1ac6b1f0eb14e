"""The sums of ended processes: against a naive model, and read while a process leaves."""

from collections import Counter
from itertools import count
from threading import Event, Thread
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ergo_py._core.tables.ended_totals import MOST_LABELS, OTHER, BehaviourTotals, EndedTotals

NAMES = st.sampled_from(["Counter", "Store", OTHER])


class TotalsMachine(RuleBasedStateMachine):
    """Living processes and the sums, against counters of everything that ever happened."""

    def __init__(self) -> None:
        super().__init__()
        self.totals = EndedTotals()
        self.numbers = count()
        self.living: dict[int, tuple[str, int]] = {}
        self.handled: Counter[str] = Counter()
        self.crashed: Counter[str] = Counter()
        self.restarts: Counter[str] = Counter()

    @rule(behaviour=NAMES, handled=st.integers(0, 50))
    def a_process_lives(self, behaviour: str, handled: int) -> None:
        self.living[next(self.numbers)] = (behaviour, handled)
        self.handled[behaviour] += handled

    @rule(which=st.integers(0, 100))
    def a_process_ends(self, which: int) -> None:
        if self.living:
            number = list(self.living)[which % len(self.living)]
            behaviour, handled = self.living[number]
            for _ in range(2):  # the second time it is no longer there
                self.totals.take(self.living, number, behaviour, handled, 1, 0.5)

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
        living, ledger = self.totals.read(lambda: list(self.living.values()))
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
        behaviour = f"Made{number}"
        totals.take({1: "process"}, 1, behaviour, 1, 2, 0.0)
        totals.count_restart(f"child{number}")
        traffic = (f"Server{number}", 3, 4)
        totals.take({1: "meta"}, 1, behaviour, 0, 0, is_meta=True, traffic=traffic)

    _, ledger = totals.read(list)

    assert len(ledger.behaviours) == len(ledger.restarts) == len(ledger.traffic) == MOST_LABELS + 1
    assert ledger.behaviours[OTHER] == BehaviourTotals(100, 50, 100, 0.0, 0, True)
    assert ledger.restarts[OTHER] == 50
    assert ledger.traffic[OTHER] == (150, 200)
    assert totals.label("Made3") == "Made3"
    assert totals.label(f"Made{MOST_LABELS}") == OTHER


def test_a_reading_between_two_steps_of_an_end_is_taken_again() -> None:
    totals = EndedTotals()
    has_left, may_continue = Event(), Event()

    class Table(dict[int, str]):
        """Interrupts the end of a process after it has left the table."""

        def pop(self, key: int, default: Any = None) -> Any:
            found = super().pop(key, default)
            has_left.set()
            may_continue.wait()
            return found

    living = Table({1: "Counter"})
    loop = Thread(target=totals.take, args=(living, 1, "Counter", 5, 0, 0.0))
    readings = 0

    def look() -> list[str]:
        nonlocal readings
        readings += 1
        found = list(living.values())
        if readings == 1:
            loop.start()
            has_left.wait()
        elif readings == 2:
            may_continue.set()
            loop.join()
        return found

    found, ledger = totals.read(look)

    assert (found, ledger.behaviours["Counter"].handled, readings) == ([], 5, 3)
