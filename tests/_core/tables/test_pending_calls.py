import gc
import weakref
from itertools import count, pairwise
from math import inf
from typing import Any, cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from ergo_py._core.messaging.receiver import Receiver
from ergo_py._core.tables.pending_calls import (
    Caller,
    Deadline,
    Deadlines,
    Expiry,
    ring_of,
    waiting_process,
)
from ergo_py._core.vocabulary.ids import PID, Ref

ME = PID("demo@localhost", 7, 1)
NUMBERS = count(1)


class FakeCaller(Caller):
    """A call with a caller that only counts how often it was woken."""

    __slots__ = ("__weakref__", "wakeups")

    def __init__(self) -> None:
        super().__init__(ME, next(NUMBERS), "counter", "request")
        self.wakeups = 0

    def awaken(self) -> None:
        # A caller that is woken looks at the result at once.
        assert self.settled
        self.wakeups += 1


class FakeCallee:
    """All that this table knows of a receiver: a place for the calls it has promised to answer."""

    def __init__(self) -> None:
        self.deferred: dict[Caller, None] | None = None


def receiver(callee: FakeCallee) -> Receiver:
    return cast(Receiver, callee)


# -- a single call ---------------------------------------------------------------------------------

CALLEES = st.sampled_from([0, 1, 2])


class CallerMachine(RuleBasedStateMachine):
    """Calls that are forwarded, deferred, answered and abandoned, against the expected outcome of
    each.
    """

    callers = Bundle[FakeCaller]("callers")

    def __init__(self) -> None:
        super().__init__()
        self.callees = [FakeCallee() for _ in range(3)]
        self.open: dict[FakeCaller, FakeCallee] = {}
        """Open calls, and the callee of each."""
        self.promised: dict[FakeCaller, FakeCallee] = {}
        self.answers: dict[FakeCaller, tuple[Any, BaseException | None]] = {}
        self.abandoned: set[FakeCaller] = set()

    def end(self, caller: FakeCaller) -> None:
        self.open.pop(caller, None)
        self.promised.pop(caller, None)

    @rule(target=callers, callee=CALLEES)
    def somebody_calls(self, callee: int) -> FakeCaller:
        caller = FakeCaller()
        caller.callee = receiver(self.callees[callee])
        self.open[caller] = self.callees[callee]
        return caller

    @rule(caller=callers, callee=CALLEES)
    def a_callee_returns_no_reply(self, caller: FakeCaller, callee: int) -> None:
        # Also a callee that has forwarded the call before, and a callee that comes too late.
        if self.open.get(caller) is self.callees[callee]:
            self.promised[caller] = self.callees[callee]

        caller.defer(receiver(self.callees[callee]))

    @rule(caller=callers, callee=CALLEES)
    def the_call_is_handed_on(self, caller: FakeCaller, callee: int) -> None:
        self.promised.pop(caller, None)
        caller.undefer()
        if caller in self.open:
            self.open[caller] = self.callees[callee]
            caller.callee = receiver(self.callees[callee])

    @rule(caller=callers, value=st.none() | st.integers())
    def somebody_answers(self, caller: FakeCaller, value: object) -> None:
        is_first = caller in self.open
        if is_first:
            self.answers[caller] = value, None
        self.end(caller)

        assert caller.settle(value, None) is is_first

    @rule(caller=callers)
    def somebody_answers_with_an_error(self, caller: FakeCaller) -> None:
        error = LookupError("no such key")
        is_first = caller in self.open
        if is_first:
            self.answers[caller] = None, error
        self.end(caller)

        assert caller.settle(None, error) is is_first

    @rule(callee=CALLEES)
    def a_callee_dies(self, callee: int) -> None:
        error = RuntimeError("it died")
        for caller in tuple(self.callees[callee].deferred or ()):
            assert isinstance(caller, FakeCaller)
            assert self.promised[caller] is self.callees[callee]
            self.answers[caller] = None, error
            self.end(caller)
            assert caller.settle(None, error) is True

    @rule(caller=callers)
    def the_caller_gives_up(self, caller: FakeCaller) -> None:
        if caller in self.open:
            self.abandoned.add(caller)
        self.end(caller)

        caller.abandon()

    @rule(caller=callers)
    def the_caller_looks_at_the_result(self, caller: FakeCaller) -> None:
        if caller not in self.answers:
            return
        value, error = self.answers[caller]
        self.answers[caller] = None, None
        if error is None:
            assert caller.result() == value
        else:
            with pytest.raises(type(error)) as caught:
                caller.result()

            assert caught.value is error

        assert (caller.value, caller.error, caller.callee, caller.request) == (
            None,
            None,
            None,
            None,
        )

    @invariant()
    def a_call_ends_exactly_once(self) -> None:
        for caller in self.open:
            assert not caller.settled
            assert caller.wakeups == 0
        for caller in self.answers:
            assert caller.settled
            assert caller.wakeups == 1
        for caller in self.abandoned:
            assert caller.settled
            assert caller.wakeups == 0

    @invariant()
    def a_callee_knows_the_calls_it_has_promised_to_answer_and_no_others(self) -> None:
        for callee in self.callees:
            assert set(callee.deferred or ()) == {
                one for one, whose in self.promised.items() if whose is callee
            }

    @invariant()
    def a_call_knows_whether_it_is_deferred(self) -> None:
        for caller in (*self.open, *self.answers, *self.abandoned):
            assert caller.deferred == (caller in self.promised)


TestCaller = CallerMachine.TestCase


def test_a_process_that_forwarded_a_call_no_longer_answers_for_it() -> None:
    first, second = FakeCallee(), FakeCallee()
    caller = FakeCaller()
    caller.callee = receiver(second)

    caller.defer(receiver(first))
    caller.defer(receiver(second))
    caller.settle("answer", None)

    assert not first.deferred
    assert not second.deferred


def test_an_answer_is_not_kept_alive_by_a_call_that_was_inspected() -> None:
    class Answer:
        pass

    caller = FakeCaller()
    answer = Answer()
    witness = weakref.ref(answer)
    caller.settle(answer, None)

    caller.result()
    del answer
    gc.collect()

    assert witness() is None


def test_a_call_has_an_identity_and_a_text() -> None:
    caller = FakeCaller()

    assert caller.ref == Ref(ME.node, ME.creation, caller.number)
    assert repr(caller) == f"<Caller {ME} ref {caller.number}>"


def test_the_base_class_of_calls_cannot_be_settled() -> None:
    caller = Caller(ME, 1, "counter", "request")

    with pytest.raises(NotImplementedError):
        caller.settle(5, None)


# -- rings -----------------------------------------------------------------------------------------


class FakeProcess(FakeCallee):
    """A process, as far as it waits for others."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.id = PID("demo@localhost", 7, number)
        self.waiting: Caller | FakeProcess | None = None

    def call(self, callee: "FakeProcess") -> FakeCaller:
        self.waiting = caller = FakeCaller()
        caller.pid = self.id
        caller.callee = receiver(callee)
        return caller


def test_a_call_of_a_process_to_itself_is_a_ring() -> None:
    process = FakeProcess(1)

    assert ring_of(process, receiver(process)) == [process.id, process.id]


def test_a_call_to_a_process_that_waits_indirectly_for_the_caller_is_a_named_ring() -> None:
    first, second, third = (FakeProcess(number) for number in (1, 2, 3))
    second.call(third)
    # The parent of a process that is in its init waits, too.
    third.waiting = first

    ring = ring_of(first, receiver(second))

    assert ring == [first.id, second.id, third.id, first.id]


def test_a_deferred_call_closes_no_ring() -> None:
    first, second = FakeProcess(1), FakeProcess(2)
    caller = second.call(first)

    caller.defer(receiver(first))

    assert ring_of(first, receiver(second)) == []


def test_a_ring_without_the_caller_is_not_reported() -> None:
    first, second, third = (FakeProcess(number) for number in (1, 2, 3))
    second.call(third)
    third.call(second)

    assert ring_of(first, receiver(second)) == []
    assert ring_of(first, None) == []
    assert ring_of(None, receiver(second)) == []


def test_the_process_that_waits_in_a_call_is_found_while_it_does() -> None:
    first, second = FakeProcess(1), FakeProcess(2)
    processes = {first.id: first, second.id: second}
    over = first.call(second)
    current = first.call(second)

    assert waiting_process(current, processes) is first
    assert waiting_process(over, processes) is None
    assert waiting_process(FakeCaller(), {}) is None


# -- a deadline that is no call --------------------------------------------------------------------


class Thing:
    """An object with a function for a deadline."""

    def __init__(self) -> None:
        self.times = 0

    def act(self) -> None:
        self.times += 1


def test_a_deadline_calls_its_function() -> None:
    thing = Thing()
    deadline = Deadline(thing.act)

    deadline.expire(1.0)

    assert deadline.settled
    assert thing.times == 1


def test_an_abandoned_deadline_drops_its_function() -> None:
    thing = Thing()
    deadline, alive = Deadline(thing.act), weakref.ref(thing)
    del thing

    deadline.abandon()

    assert deadline.settled
    assert alive() is None


def test_an_abandoned_deadline_calls_nothing() -> None:
    thing = Thing()
    deadline = Deadline(thing.act)

    deadline.abandon()
    deadline.expire(1.0)

    assert thing.times == 0


# -- all deadlines ---------------------------------------------------------------------------------


class EagerDeadlines(Deadlines):
    """So small in everything that a short run gets to see it."""

    QUEUES = 3
    LONG = 4
    HEAP = 4


class DeadlinesMachine(RuleBasedStateMachine):
    """Deadlines of calls against a list of all calls ever armed."""

    callers = Bundle[FakeCaller]("callers")

    def __init__(self) -> None:
        super().__init__()
        self.deadlines = EagerDeadlines()
        self.now = 0.0
        self.armed: list[tuple[float, float, FakeCaller]] = []
        self.gave_up: list[tuple[Expiry, float]] = []

    def open(self) -> list[tuple[float, float, FakeCaller]]:
        return [one for one in self.armed if not one[2].settled]

    def give_up(self, caller: Expiry, timeout: float) -> None:
        caller.expire(timeout)
        self.gave_up.append((caller, timeout))

    def arm(self, timeout: float) -> FakeCaller:
        caller = FakeCaller()
        self.armed.append((self.now + timeout, timeout, caller))
        self.deadlines.arm(caller, timeout, self.now + timeout)
        return caller

    @rule(target=callers, timeout=st.sampled_from([0, 1, 1.0, 2.5, 3.5, 4.5, inf]))
    def somebody_calls(self, timeout: float) -> FakeCaller:
        return self.arm(timeout)

    @rule(count=st.integers(5, 12))
    def many_call_and_are_answered(self, count: int) -> None:
        for _ in range(count):
            self.arm(2.5).settle("answer", None)

    @rule(caller=callers)
    def a_call_is_answered(self, caller: FakeCaller) -> None:
        caller.settle("answer", None)

    @rule(caller=callers)
    def a_caller_gives_up(self, caller: FakeCaller) -> None:
        caller.abandon()

    @rule(seconds=st.sampled_from([0, 0.5, 1, 3]), most=st.integers(1, 3))
    def time_passes(self, seconds: float, most: int) -> None:
        self.now += seconds
        overdue = [one for one in self.open() if one[0] <= self.now]
        self.gave_up.clear()

        count = self.deadlines.expire(self.now, most, self.give_up)

        assert count == len(self.gave_up) == min(most, len(overdue))
        for timeout in {one[1] for one in overdue}:
            # Among equal timeouts the first caller gives up first.
            mine = [one[2] for one in overdue if one[1] == timeout]
            given_up = [caller for caller, limit in self.gave_up if limit == timeout]
            assert given_up == mine[: len(given_up)]

    @rule()
    def the_clock_asks_when_to_wake(self) -> None:
        assert self.deadlines.next() == min((one[0] for one in self.open()), default=inf)

    @invariant()
    def no_open_call_is_forgotten(self) -> None:
        assert len(self.deadlines) >= len(self.open())

    def teardown(self) -> None:
        for _, _, caller in self.open():
            caller.settle("answer", None)

        assert self.deadlines.next() == inf
        assert len(self.deadlines) == 0
        assert self.deadlines._queues == {}


TestDeadlines = DeadlinesMachine.TestCase


def test_answered_calls_do_not_pile_up_behind_a_slow_call() -> None:
    deadlines = Deadlines()
    slow = FakeCaller()
    deadlines.arm(slow, 5.0, 5.0)

    for number in range(10 * Deadlines.LONG):
        caller = FakeCaller()
        deadlines.arm(caller, 5.0, 5.0 + number)
        caller.settle("answer", None)

    assert len(deadlines) <= Deadlines.LONG + 1
    assert deadlines.next() == 5.0


def test_answered_calls_with_distinct_timeouts_do_not_pile_up() -> None:
    deadlines = Deadlines()

    for number in range(10 * Deadlines.HEAP):
        caller = FakeCaller()
        deadlines.arm(caller, 5.0 + number, 5.0 + number)
        caller.settle("answer", None)

    assert len(deadlines) <= 2 * Deadlines.HEAP + Deadlines.QUEUES


def test_open_calls_with_distinct_timeouts_are_kept_among_many_answered_calls() -> None:
    deadlines = Deadlines()
    callers = [FakeCaller() for _ in range(6 * Deadlines.HEAP)]
    for number, caller in enumerate(callers):
        deadlines.arm(caller, 1.0 + number, 1.0 + number)
        if number % 3:
            caller.settle("answer", None)
    gave_up: list[Expiry] = []

    while deadlines.next() < inf:
        deadlines.expire(inf, 100, lambda caller, _: gave_up.append(caller))

    assert sorted(gave_up, key=lambda one: cast(FakeCaller, one).number) == callers[::3]
    assert len(deadlines) == 0


class CountingTime(float):
    """A time that counts how often it is compared with another time."""

    comparisons = 0

    def __lt__(self, other: float) -> bool:
        CountingTime.comparisons += 1
        return float(self) < other

    def __le__(self, other: float) -> bool:
        CountingTime.comparisons += 1
        return float(self) <= other

    def __gt__(self, other: float) -> bool:
        CountingTime.comparisons += 1
        return float(self) > other


@pytest.mark.parametrize("is_distinct", [True, False], ids=["distinct timeouts", "equal timeouts"])
def test_the_clock_gets_its_next_deadline_without_a_look_at_every_call(is_distinct: bool) -> None:
    deadlines = Deadlines()
    callers = [FakeCaller() for _ in range(5_000)]
    for number, caller in enumerate(callers):
        deadlines.arm(caller, 5.0 + number * is_distinct, CountingTime(5.0 + number))

    CountingTime.comparisons = 0
    expired = deadlines.expire(1.0, 100, lambda caller, timeout: None)
    first = deadlines.next()

    assert (expired, first) == (0, 5.0)
    assert CountingTime.comparisons < 100


def test_a_wake_up_removes_a_bounded_number_of_answered_calls() -> None:
    deadlines = Deadlines()
    callers = [FakeCaller() for _ in range(Deadlines.HEAP)]
    for number, caller in enumerate(callers):
        deadlines.arm(caller, 5.0 + number, 5.0 + number)
    for caller in callers:
        caller.settle("answer", None)
    lengths = [len(deadlines)]

    while deadlines.next() < inf:
        lengths.append(len(deadlines))

    assert (
        max(before - after for before, after in pairwise(lengths))
        <= Deadlines.TRIM + Deadlines.QUEUES
    )


def test_an_expiry_removes_a_bounded_number_of_answered_calls() -> None:
    deadlines = Deadlines()
    callers = [FakeCaller() for _ in range(2 * Deadlines.TRIM)]
    for number, caller in enumerate(callers):
        deadlines.arm(caller, 5.0 + number, 5.0 + number)
    for caller in callers:
        caller.settle("answer", None)
    before = len(deadlines)

    expired = deadlines.expire(inf, 100, lambda caller, timeout: None)

    assert expired == 0
    assert before - len(deadlines) <= Deadlines.TRIM + Deadlines.QUEUES


def test_answered_calls_are_removed_as_fast_as_new_calls_come() -> None:
    deadlines = Deadlines()

    for number in range(100):
        caller = FakeCaller()
        deadlines.arm(caller, 5.0, 5.0 + number)
        caller.settle("answer", None)

    assert len(deadlines) == 1


def test_calls_that_time_out_at_once_leave_the_rest_for_the_next_turn() -> None:
    deadlines = Deadlines()
    callers = [FakeCaller() for _ in range(5)]
    for caller in callers:
        deadlines.arm(caller, 1.0, 1.0)

    turns = [
        deadlines.expire(1.0, 2, lambda caller, timeout: caller.expire(timeout)) for _ in range(4)
    ]

    assert turns == [2, 2, 1, 0]
    assert all(caller.settled for caller in callers)


def test_a_deferral_is_forgotten_though_the_call_was_forwarded() -> None:
    first, second = FakeCallee(), FakeCallee()
    caller = Caller(PID("test@localhost", 1, 1), 2, "somebody", "request")
    caller.callee = receiver(first)
    caller.defer(receiver(first))
    caller.callee = receiver(second)

    caller.undefer()

    assert not caller.deferred
    assert second.deferred is None


def test_a_callee_may_defer_several_calls_and_keeps_their_order() -> None:
    callee, callers = FakeCallee(), [FakeCaller() for _ in range(10)]

    for caller in callers:
        caller.callee = receiver(callee)
        caller.defer(receiver(callee))

    assert list(callee.deferred or ()) == callers
