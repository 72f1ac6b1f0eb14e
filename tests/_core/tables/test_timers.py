import gc
import weakref
from collections.abc import Callable
from itertools import count, pairwise
from math import inf
from operator import gt
from threading import get_ident

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
)

from ergo_py._core.tables.timers import Owned, Timer, Timers
from tests.support import timers_kept


class FakeOwner:
    """All that a timer knows of its process: a place for the timers that end with it."""

    def __init__(self, timers: Owned | None = None) -> None:
        self.timers = timers or Owned()


def armed(
    table: Timers, owner: FakeOwner, message: object, deadline: float, period: float = 0.0
) -> Timer:
    return Timer(table, deadline, owner, "counter", message, 0, period)


class TimersMachine(RuleBasedStateMachine):
    """The heap of timers against a list that is sorted each time. All times are whole, so that sums
    are exact.
    """

    timers = Bundle[Timer]("timers")
    short = 1024
    """Up to which length a table is gone through at once."""
    most_over = 1
    """How many timers that are over there may be for each that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Timers(thread=get_ident, short=self.short)
        self.owners = [FakeOwner(Owned(self.short)), FakeOwner(Owned(self.short))]
        self.now = 0.0
        self.waiting: list[tuple[float, int, Timer]] = []
        self.periods: dict[Timer, float] = {}
        self.owned: dict[Timer, FakeOwner] = {}
        self.ends_itself: set[Timer] = set()
        self.turns = count()
        self.fired: list[Timer] = []

    def arm(self, owner: int, deadline: float, period: float) -> Timer:
        timer = armed(self.table, self.owners[owner], object(), deadline, period)
        self.waiting.append((deadline, next(self.turns), timer))
        self.periods[timer] = period
        self.owned[timer] = self.owners[owner]
        return timer

    def is_waiting(self, timer: Timer) -> bool:
        return any(one is timer for _, _, one in self.waiting)

    def forget(self, timer: Timer) -> None:
        self.waiting = [entry for entry in self.waiting if entry[2] is not timer]

    def fire(self, timer: Timer) -> None:
        assert timer.active
        assert timer.owner is self.owned[timer]
        self.fired.append(timer)
        if timer in self.ends_itself:
            assert timer.cancel() is True
            assert timer.cancel() is False

    @rule(target=timers, owner=st.integers(0, 1), delay=st.integers(0, 5))
    def somebody_sends_later(self, owner: int, delay: int) -> Timer:
        return self.arm(owner, self.now + delay, 0.0)

    @rule(
        target=timers, owner=st.integers(0, 1), period=st.integers(1, 5), ends_itself=st.booleans()
    )
    def somebody_sends_again_and_again(self, owner: int, period: int, ends_itself: bool) -> Timer:
        timer = self.arm(owner, self.now + period, float(period))
        if ends_itself:
            self.ends_itself.add(timer)
        return timer

    @rule(target=timers, delay=st.integers(0, 5), times=st.integers(60, 90))
    def a_crowd_sends_later(self, delay: int, times: int) -> MultipleResults[Timer]:
        return multiple(*(self.arm(0, self.now + delay, 0.0) for _ in range(times)))

    @rule(timer=timers)
    def somebody_cancels(self, timer: Timer) -> None:
        was_waiting = self.is_waiting(timer)
        self.forget(timer)

        assert timer.cancel() is was_waiting

    @rule(owner=st.integers(0, 1))
    def a_process_ends(self, owner: int) -> None:
        for timer in tuple(self.owners[owner].timers or ()):
            was_waiting = self.is_waiting(timer)
            self.forget(timer)
            assert timer.cancel() is was_waiting

        # More than half of the heap is never dead, beyond a few.
        over = timers_kept(self.table) - len(self.table)
        assert over <= max(64, self.most_over * len(self.table))

    @rule(seconds=st.integers(0, 12), most=st.sampled_from([1, 3, 1000]))
    def time_passes(self, seconds: int, most: int) -> None:
        self.now += seconds
        expected: list[Timer] = []
        while len(expected) < most and (
            due := [entry for entry in self.waiting if entry[0] <= self.now]
        ):
            deadline, _, timer = min(due, key=lambda entry: entry[:2])
            expected.append(timer)
            self.forget(timer)
            if self.periods[timer] and timer not in self.ends_itself:
                # The rhythm is kept, and turns that were missed are not made up for.
                while deadline <= self.now:
                    deadline += self.periods[timer]
                self.waiting.append((deadline, next(self.turns), timer))
        self.fired.clear()

        count = self.table.expire(self.now, most, self.fire)

        assert self.fired == expected
        assert count == len(expected)

    @rule()
    def the_clock_asks_when_to_wake(self) -> None:
        assert self.table.next() == min((deadline for deadline, _, _ in self.waiting), default=inf)

    @invariant()
    def there_are_as_many_as_there_should_be(self) -> None:
        assert len(self.table) == len(self.waiting)

    @invariant()
    def a_timer_knows_whether_it_will_fire(self) -> None:
        alive = {timer for _, _, timer in self.waiting}
        assert {timer for timer in self.periods if timer.active} == alive

    @invariant()
    def an_owner_knows_its_timers_and_no_others(self) -> None:
        for owner in self.owners:
            known: list[Timer] = owner.timers or []
            waiting = {timer for _, _, timer in self.waiting if self.owned[timer] is owner}
            assert {timer for timer in known if timer.active} == waiting
            # More than half of them are never over, beyond a few.
            assert len(known) - len(waiting) <= max(8, self.most_over * len(waiting))


class LongTimersMachine(TimersMachine):
    """Every table counts as a long table, and is gone through in steps. Meanwhile more timers may
    end.
    """

    short = 0
    most_over = 4


TestTimers = TimersMachine.TestCase
TestLongTimers = LongTimersMachine.TestCase


class Order:
    """A message."""


def test_a_timer_that_is_over_does_not_keep_its_message_alive() -> None:
    table, owner = Timers(), FakeOwner()
    orders = [Order(), Order()]
    witnesses = [weakref.ref(order) for order in orders]
    fired, cancelled = (armed(table, owner, order, 1.0) for order in orders)

    cancelled.cancel()
    table.expire(1.0, 10, lambda _: None)
    orders.clear()
    gc.collect()

    assert [witness() for witness in witnesses] == [None, None]
    assert repr(fired) == "<Timer over>"


def test_cancelling_a_crowd_shrinks_the_heap() -> None:
    table, owner = Timers(), FakeOwner()
    crowd = [armed(table, owner, "message", 100.0) for _ in range(1000)]

    for timer in crowd[:990]:
        timer.cancel()

    assert len(table) == 10
    assert timers_kept(table) < 100


def test_cancelling_a_crowd_takes_a_few_steps_each_time() -> None:
    table, owner = Timers(short=0), FakeOwner(Owned(short=0))
    crowd = [armed(table, owner, "message", float(number)) for number in range(4000)]

    looked, before = [], 4000
    for timer in crowd[:3990]:
        timer.cancel()
        left = timers_kept(table)
        looked.append(before - left)
        before = left

    assert max(looked) <= 8
    assert len(table) == 10
    assert before < 200
    assert owner.timers is not None
    assert len(owner.timers) < 50
    fired: list[Timer] = []
    assert table.expire(5000.0, 100, fired.append) == 10
    assert fired == crowd[3990:]


def test_a_long_table_is_cleaned_up_in_parts_while_a_crowd_is_cancelled_in_any_order() -> None:
    table, owner = Timers(), FakeOwner()
    crowd = [armed(table, owner, "message", float(number % 997)) for number in range(20_000)]
    active, kept, owned = 20_000, [20_000], [20_000]

    for number in range(20_000 - 10):
        # 7,919 has no factor in common with 20,000: each timer is cancelled once.
        crowd[number * 7_919 % 20_000].cancel()
        active -= 1
        kept.append(timers_kept(table))
        owned.append(len(owner.timers))
        assert max(kept[-1], owned[-1]) <= max(1_300, 5 * active)

    assert max(before - after for before, after in pairwise(kept)) <= 2_048
    assert max(before - after for before, after in pairwise(owned)) <= 4_096
    assert sum(map(gt, kept, kept[1:])) < 100
    assert len(table) == 10
    assert sum(timer.active for timer in owner.timers) == 10
    assert table.expire(1_000.0, 100, lambda _: None) == 10


def test_many_cancelled_timers_in_front_are_skipped_in_steps() -> None:
    table, owner = Timers(), FakeOwner()
    crowd = [armed(table, owner, "message", float(number)) for number in range(4000)]
    for timer in crowd[:1900]:
        timer.cancel()

    assert [table.next() for _ in range(4)] == [512.0, 1024.0, 1536.0, 1900.0]
    assert len(table) == 2100


def test_a_due_timer_behind_many_cancelled_timers_fires_after_a_few_turns() -> None:
    table, owner = Timers(), FakeOwner()
    crowd = [armed(table, owner, "message", float(number)) for number in range(4000)]
    for timer in crowd[:1900]:
        timer.cancel()

    assert [table.expire(1900.0, 10, lambda _: None) for _ in range(5)] == [0, 0, 0, 1, 0]


def test_a_periodic_timer_that_was_late_keeps_its_rhythm_and_fires_once() -> None:
    table = Timers()
    armed(table, FakeOwner(), "message", 10.0, period=10.0)

    turns = {now: table.expire(now, 10, lambda _: None) for now in (10.0, 57.0, 59.0, 60.0)}

    assert turns == {10.0: 1, 57.0: 1, 59.0: 0, 60.0: 1}
    assert table.next() == 70.0


def test_a_timer_that_cancels_itself_while_it_fires_is_counted_once() -> None:
    table = Timers()
    armed(table, FakeOwner(), "message", 1.0, period=1.0)

    def end(timer: Timer) -> None:
        timer.cancel()

    table.expire(1.0, 10, end)

    assert len(table) == 0
    assert table.next() == inf


def test_a_timer_shows_whether_it_will_fire() -> None:
    timer = armed(Timers(), FakeOwner(), "message", 1.0)

    assert repr(timer) == "<Timer active>"


def test_a_timer_is_cancelled_on_the_loop_of_its_table() -> None:
    handed_over: list[Callable[[], bool]] = []
    here = ["loop"]

    def run(function: Callable[[], bool]) -> bool:
        handed_over.append(function)
        return True

    timer = armed(Timers(run, lambda: hash(here[0])), FakeOwner(), "message", 1.0)

    here[0] = "another thread"
    said = timer.cancel()

    assert said is True
    assert timer.active
    here[0] = "loop"
    assert [function() for function in handed_over] == [True]
    assert not timer.active
    assert timer.cancel() is False


def test_a_timer_that_ends_before_its_cancellation_reaches_the_loop_is_not_cancelled() -> None:
    here = ["loop"]

    def run(function: Callable[[], bool]) -> bool:
        # In the time that a thread needs to reach the loop.
        here[0] = "loop"
        table.clear()
        return function()

    table = Timers(run, lambda: hash(here[0]))
    timer = armed(table, FakeOwner(), "message", 1.0)

    here[0] = "another thread"
    assert timer.cancel() is False
