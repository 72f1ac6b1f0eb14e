import sys
from collections import deque
from itertools import count
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from ergo_py._core.tables import mailbox
from ergo_py._core.tables.mailbox import LOG_LIMIT, Mailbox, OrderedMailbox, Verdict
from ergo_py._core.vocabulary.envelopes import (
    CALL,
    CHILD_EXIT,
    DOWN,
    EVENT,
    EXIT,
    FAILED,
    INSPECT,
    KILL,
    LOG,
    MESSAGE,
    STOP,
    TRACED,
    TRACED_CALL,
    Divert,
    Envelope,
    Lane,
    Overflow,
    kind_name,
)
from ergo_py._core.vocabulary.errors import BadInputError
from ergo_py._core.vocabulary.ids import EventName
from ergo_py._core.vocabulary.messages import Published

USER_KINDS = [MESSAGE, CALL, TRACED, TRACED_CALL, EVENT]
USER_LANES = [Lane.URGENT, Lane.SYSTEM, Lane.MAIN]
SIGNAL_KINDS = [EXIT, DOWN, CHILD_EXIT, INSPECT]
LAST_WORDS = [STOP, KILL, FAILED]

user_lanes = st.sampled_from(USER_LANES)
user_kinds = st.sampled_from(USER_KINDS)


class FakeWaiter:
    """A sender that waits for room, and notes its answers: at most a single answer may come."""

    def __init__(self, envelope: Envelope | None, depth: int = 0) -> None:
        self.envelope = envelope
        self.depth = depth
        self.answers: list[bool] = []

    def settle(self, admitted: bool, /) -> None:
        self.answers.append(admitted)


class MailboxMachine(RuleBasedStateMachine):
    """A mailbox against four plain lists and a list of waiters for each."""

    waiters = Bundle[FakeWaiter]("waiters")

    def __init__(self) -> None:
        super().__init__()
        self.box = Mailbox()
        self.lanes: dict[Lane, list[Envelope]] = {lane: [] for lane in Lane}
        self.waiting: dict[Lane, list[FakeWaiter]] = {lane: [] for lane in Lane}
        self.answers: dict[FakeWaiter, list[bool]] = {}
        self.promised = dict.fromkeys(USER_LANES, 0)
        self.dropped = 0
        self.numbers = count()

    @initialize(
        limit=st.sampled_from([0, 1, 2, 3, 18]),
        overflow=st.sampled_from([*Overflow, Divert("spill", "tag")]),
    )
    def begin(self, limit: int, overflow: Overflow | Divert) -> None:
        self.box = Mailbox(limit, overflow)

    # -- the model ---------------------------------------------------------------------------------

    def envelope(self, kind: int) -> Envelope:
        return (kind, "sender", None, next(self.numbers))

    def users(self, lane: Lane) -> list[Envelope]:
        return [envelope for envelope in self.lanes[lane] if envelope[0] in USER_KINDS]

    def has_space(self, lane: Lane) -> bool:
        return (
            lane is Lane.LOG
            or not self.box.limit
            or len(self.users(lane)) + self.promised[lane] < self.box.limit
        )

    def has_room(self, lane: Lane) -> bool:
        queues_up = self.box.limit and self.box.overflow is Overflow.WAIT
        return self.has_space(lane) and not (queues_up and self.waiting[lane])

    def lets_one_too_many_in(self, lane: Lane) -> bool:
        """Where senders wait, a sender that found room is not refused because a thread was promised
        it in the same moment.
        """
        is_full = len(self.users(lane)) >= self.box.limit
        return self.box.overflow is Overflow.WAIT and not is_full and not self.waiting[lane]

    def next_envelope(self) -> Envelope | None:
        for lane in (Lane.URGENT, Lane.SYSTEM, Lane.MAIN, Lane.LOG):
            if self.lanes[lane]:
                return self.lanes[lane].pop(0)
        return None

    # -- the rules, applied to both ----------------------------------------------------------------

    @rule(lane=user_lanes, kind=user_kinds)
    def a_user_sends(self, lane: Lane, kind: int) -> None:
        envelope = self.envelope(kind)
        expected: tuple[Verdict, Envelope | None]
        if self.has_room(lane) or self.lets_one_too_many_in(lane):
            expected = Verdict.ACCEPTED, None
            self.lanes[lane].append(envelope)
        elif self.box.overflow is Overflow.DROP_OLDEST:
            oldest = self.users(lane)[0]
            self.lanes[lane].remove(oldest)
            self.lanes[lane].append(envelope)
            expected = Verdict.DISPLACED, oldest
            self.dropped += 1
        elif isinstance(self.box.overflow, Divert):
            # Whether it can be delivered elsewhere is for the router to find out, and to count.
            expected = Verdict.DIVERTED, None
        else:
            is_silent = self.box.overflow is Overflow.DROP_NEWEST
            expected = Verdict.DROPPED if is_silent else Verdict.REFUSED, None
            self.dropped += 1

        assert self.box.admit(lane, envelope) == expected

    @precondition(
        lambda self: self.box.limit and self.box.overflow in (Overflow.RAISE, Overflow.WAIT)
    )
    @rule(lane=user_lanes)
    def a_thread_is_promised_room(self, lane: Lane) -> None:
        expected = self.has_room(lane)
        self.promised[lane] += expected

        assert self.box.promise(lane) is expected

    @precondition(lambda self: any(self.promised.values()))
    @rule(data=st.data(), kind=user_kinds)
    def a_message_arrives_that_was_promised_room(self, data: st.DataObject, kind: int) -> None:
        lane = data.draw(st.sampled_from([lane for lane in USER_LANES if self.promised[lane]]))
        envelope = self.envelope(kind)
        self.promised[lane] -= 1
        self.lanes[lane].append(envelope)

        self.box.push(lane, envelope)
        self.box.redeem(lane)

    @precondition(
        lambda self: self.box.limit and self.box.overflow in (Overflow.RAISE, Overflow.WAIT)
    )
    @rule(kind=user_kinds)
    def a_thread_puts_a_message(self, kind: int) -> None:
        envelope = self.envelope(kind)
        overtakes = any(self.waiting.values()) or any(self.promised.values())
        fits = not overtakes and len(self.lanes[Lane.MAIN]) < self.box.limit - 1
        if fits:
            self.lanes[Lane.MAIN].append(envelope)

        assert self.box.take_in(envelope) is fits

    @rule(lane=st.sampled_from([Lane.URGENT, Lane.SYSTEM]), kind=st.sampled_from(SIGNAL_KINDS))
    def the_kernel_signals(self, lane: Lane, kind: int) -> None:
        envelope = self.envelope(kind)
        self.lanes[lane].append(envelope)

        self.box.push(lane, envelope)

    @rule(kind=st.sampled_from(LAST_WORDS))
    def the_process_is_to_end(self, kind: int) -> None:
        envelope = self.envelope(kind)
        self.lanes[Lane.URGENT].insert(0, envelope)

        self.box.push_first(envelope)

    @rule()
    def a_record_is_logged(self) -> None:
        envelope = self.envelope(LOG)
        self.lanes[Lane.LOG].append(envelope)

        assert self.box.admit(Lane.LOG, envelope) == (Verdict.ACCEPTED, None)

    @rule(times=st.integers(1, 4))
    def the_process_takes(self, times: int) -> None:
        for _ in range(times):
            assert self.box.pop() == self.next_envelope()

    @rule()
    def the_process_takes_everything(self) -> None:
        expected = [envelope for lane in Lane for envelope in self.lanes[lane]]
        self.lanes = {lane: [] for lane in Lane}

        assert list(self.box.drain()) == expected

    @rule()
    def everything_is_left_to_a_successor(self) -> None:
        expected = [(lane, envelope) for lane in Lane for envelope in self.lanes[lane]]
        self.lanes = {lane: [] for lane in Lane}

        assert list(self.box.leave()) == expected

    @precondition(lambda self: self.box.limit and self.box.overflow is Overflow.WAIT)
    @rule(target=waiters, lane=user_lanes, kind=user_kinds)
    def a_sender_waits_for_room(self, lane: Lane, kind: int) -> FakeWaiter:
        while self.has_room(lane):
            self.a_user_sends(lane, kind)
        waiter = FakeWaiter(self.envelope(kind))
        self.waiting[lane].append(waiter)
        self.answers[waiter] = []

        self.box.wait_for_room(lane, waiter.envelope, waiter)
        return waiter

    @rule(target=waiters, lane=user_lanes, depth=st.integers(1, 3))
    def a_sender_waits_to_be_told(self, lane: Lane, depth: int) -> FakeWaiter:
        while self.has_room(lane) and len(self.lanes[lane]) < depth:
            self.a_user_sends(lane, MESSAGE)
        waiter = FakeWaiter(None, depth)
        self.waiting[lane].append(waiter)
        self.answers[waiter] = []

        self.box.wait_for_room(lane, None, waiter, depth)
        return waiter

    @rule(waiter=consumes(waiters))
    def a_sender_gives_up(self, waiter: FakeWaiter) -> None:
        # Also a waiter with its envelope already in, or that was refused: nothing happens to it
        # then.
        for lane in USER_LANES:
            if waiter in self.waiting[lane]:
                self.waiting[lane].remove(waiter)
            self.box.stop_waiting(lane, waiter)

    @rule()
    def those_who_wait_are_let_in(self) -> None:
        before = sum(map(len, self.waiting.values()))
        for lane, queue in self.waiting.items():
            while queue and self.has_space(lane):
                if queue[0].depth and len(self.lanes[lane]) >= queue[0].depth:
                    break
                waiter = queue.pop(0)
                if waiter.envelope is not None:
                    self.lanes[lane].append(waiter.envelope)
                self.answers[waiter].append(True)
        after = sum(map(len, self.waiting.values()))

        assert self.box.admit_waiters() is (after < before)

    @rule()
    def those_who_wait_are_sent_away(self) -> None:
        for queue in self.waiting.values():
            for waiter in queue:
                self.answers[waiter].append(False)
            queue.clear()

        self.box.refuse_waiters()

    # -- invariants --------------------------------------------------------------------------------

    @invariant()
    def the_lanes_are_as_long_as_they_should_be(self) -> None:
        assert self.box.depths() == {lane.value: len(queue) for lane, queue in self.lanes.items()}
        assert {lane: self.box.depth(lane) for lane in Lane} == {
            lane: len(self.lanes[lane]) for lane in Lane
        }
        assert len(self.box) == sum(map(len, self.lanes.values()))
        assert self.box.ahead == bool(self.lanes[Lane.URGENT] or self.lanes[Lane.SYSTEM])

    @invariant()
    def there_is_room_where_there_should_be(self) -> None:
        assert {lane: self.box.has_room(lane) for lane in Lane} == {
            lane: self.has_room(lane) for lane in Lane
        }

    @invariant()
    def what_is_not_delivered_is_counted(self) -> None:
        assert self.box.dropped == self.dropped

    @invariant()
    def nobody_who_waits_is_forgotten_or_answered_twice(self) -> None:
        assert {waiter: waiter.answers for waiter in self.answers} == self.answers
        assert all(len(answers) <= 1 for answers in self.answers.values())
        # The loop of a process tests this before it goes to sleep.
        assert bool(self.box.waiters) == any(self.waiting.values())

    @invariant()
    def another_mailbox_has_nothing_to_do_with_it(self) -> None:
        assert len(Mailbox()) == 0


TestMailbox = MailboxMachine.TestCase


def full(overflow: Overflow | Divert) -> Mailbox:
    """A mailbox of size 1 with full MAIN and SYSTEM lanes, and a signal in the latter."""
    box = Mailbox(1, overflow)
    box.push(Lane.SYSTEM, (DOWN, "kernel", None, "first signal"))
    box.admit(Lane.SYSTEM, (MESSAGE, "a", None, "old urgent"))
    box.admit(Lane.MAIN, (MESSAGE, "a", None, "old"))
    return box


def contents(box: Mailbox) -> list[Any]:
    return [envelope[3] for envelope in box.drain()]


@pytest.mark.parametrize("overflow", [*Overflow, Divert("spill")])
def test_a_signal_is_taken_by_a_full_mailbox_under_every_rule(overflow: Overflow | Divert) -> None:
    box = full(overflow)

    for lane in (Lane.URGENT, Lane.SYSTEM):
        box.push(lane, (EXIT, "kernel", None, f"signal in {lane.value}"))

    assert contents(box) == [
        "signal in urgent",
        "first signal",
        "old urgent",
        "signal in system",
        "old",
    ]
    assert box.dropped == 0


@pytest.mark.parametrize(
    "overflow, verdict, kept, dropped",
    [
        (Overflow.RAISE, Verdict.REFUSED, ["first signal", "old urgent", "old"], 2),
        (Overflow.WAIT, Verdict.REFUSED, ["first signal", "old urgent", "old"], 2),
        (Overflow.DROP_NEWEST, Verdict.DROPPED, ["first signal", "old urgent", "old"], 2),
        (Overflow.DROP_OLDEST, Verdict.DISPLACED, ["first signal", "new urgent", "new"], 2),
        (Divert("spill"), Verdict.DIVERTED, ["first signal", "old urgent", "old"], 0),
    ],
)
def test_a_full_lane_follows_the_rule_of_its_owner(
    overflow: Overflow | Divert, verdict: Verdict, kept: list[str], dropped: int
) -> None:
    box = full(overflow)

    verdicts = [
        box.admit(Lane.SYSTEM, (MESSAGE, "b", None, "new urgent"))[0],
        box.admit(Lane.MAIN, (MESSAGE, "b", None, "new"))[0],
    ]

    assert verdicts == [verdict, verdict]
    assert contents(box) == kept
    assert box.dropped == dropped


def test_each_lane_has_its_own_bound() -> None:
    box = Mailbox(1)

    verdicts = [box.admit(lane, (MESSAGE, "a", None, lane))[0] for lane in USER_LANES]

    assert verdicts == [Verdict.ACCEPTED] * 3


def test_a_sender_does_not_overtake_waiting_senders() -> None:
    box = full(Overflow.WAIT)
    waiter = FakeWaiter((MESSAGE, "b", None, "waiting"))
    box.wait_for_room(Lane.MAIN, waiter.envelope, waiter)
    box.pop()
    box.pop()
    box.pop()

    verdict, _ = box.admit(Lane.MAIN, (MESSAGE, "c", None, "overtaking"))
    box.admit_waiters()

    assert verdict is Verdict.REFUSED
    assert waiter.answers == [True]
    assert [envelope[3] for envelope in box.main] == ["waiting"]


def test_a_reserved_place_is_taken_until_its_message_has_come() -> None:
    box = Mailbox(2)
    box.redeem(Lane.MAIN)

    promises = [box.promise(Lane.MAIN) for _ in range(3)]
    verdict, _ = box.admit(Lane.MAIN, (MESSAGE, "a", None, "overtaking"))
    elsewhere, _ = box.admit(Lane.SYSTEM, (MESSAGE, "a", None, "urgent"))
    box.redeem(Lane.MAIN)
    box.push(Lane.MAIN, (MESSAGE, "thread", None, "promised"))

    assert promises == [True, True, False]
    assert (verdict, elsewhere) == (Verdict.REFUSED, Verdict.ACCEPTED)
    assert not box.has_room(Lane.MAIN)
    box.redeem(Lane.MAIN)
    assert box.has_room(Lane.MAIN)


def test_threads_take_the_last_places_singly_and_leave_the_very_last_to_the_loop() -> None:
    box = Mailbox(20, Overflow.WAIT)

    free = 0
    while box.has_plenty():
        box.push(Lane.MAIN, (MESSAGE, "thread", None, free))
        free += 1
    one_at_a_time = 0
    while box.take_in((MESSAGE, "thread", None, free + one_at_a_time)):
        one_at_a_time += 1

    assert (free, one_at_a_time) == (4, 15)
    assert box.has_room(Lane.MAIN)
    assert [envelope[3] for envelope in box.main] == list(range(19))


@pytest.mark.parametrize("lane", [Lane.MAIN, Lane.SYSTEM])
def test_a_thread_overtakes_neither_waiters_nor_reserved_messages(lane: Lane) -> None:
    waited_for, promised = Mailbox(20, Overflow.WAIT), Mailbox(20, Overflow.WAIT)
    waiter = FakeWaiter((MESSAGE, "first", None, 1), depth=1)

    waited_for.wait_for_room(lane, waiter.envelope, waiter, waiter.depth)
    promised.promise(lane)
    before = [
        (box.has_plenty(), box.take_in((MESSAGE, "second", None, 2)))
        for box in (waited_for, promised)
    ]
    waited_for.stop_waiting(lane, waiter)
    promised.redeem(lane)
    after = [
        (box.has_plenty(), box.take_in((MESSAGE, "second", None, 2)))
        for box in (waited_for, promised)
    ]

    assert before == [(False, False)] * 2
    assert after == [(True, True)] * 2


def test_a_sender_that_found_room_is_not_refused_because_of_a_threads_reservation() -> None:
    box = Mailbox(1, Overflow.WAIT)
    box.promise(Lane.MAIN)

    verdicts = [box.admit(Lane.MAIN, (MESSAGE, "a", None, number))[0] for number in range(2)]

    assert verdicts == [Verdict.ACCEPTED, Verdict.REFUSED]


def test_a_waiter_gives_up_without_a_look_at_the_other_waiters() -> None:
    box = full(Overflow.WAIT)
    waiters = [FakeWaiter((MESSAGE, "b", None, number)) for number in range(200)]
    for waiter in waiters:
        box.wait_for_room(Lane.MAIN, waiter.envelope, waiter)
    events: list[str] = []

    sys.setprofile(lambda frame, event, argument: events.append(event))
    for waiter in waiters[100:]:
        box.stop_waiting(Lane.MAIN, waiter)
    sys.setprofile(None)

    assert len(events) < 100 * 20
    box.refuse_waiters()
    assert [waiter.answers for waiter in waiters] == [[False]] * 100 + [[]] * 100


def test_waiters_are_refused_when_the_receiver_ends() -> None:
    box = full(Overflow.WAIT)
    waiters = [FakeWaiter((MESSAGE, "b", None, number)) for number in range(4)]
    for waiter, lane in zip(waiters, [Lane.MAIN, Lane.SYSTEM] * 2, strict=True):
        box.wait_for_room(lane, waiter.envelope, waiter)
    box.stop_waiting(Lane.MAIN, waiters[0])

    box.refuse_waiters()

    assert [waiter.answers for waiter in waiters] == [[], [False], [False], [False]]
    assert box.waiters is None


class Comeback:
    """A sender with many messages that only learns that there is room, and sends then as many as
    fit.
    """

    def __init__(self, box: Mailbox, label: str, count: int, depth: int) -> None:
        self.box = box
        self.left = [(MESSAGE, label, None, f"{label}{number}") for number in range(count)]
        self.depth = depth
        self.times_told = 0

    def settle(self, admitted: bool, /) -> None:
        self.times_told += 1
        assert self.times_told < 100, "told for ever"
        while self.left:
            if not self.box.has_room(Lane.MAIN) or len(self.box.main) >= self.depth:
                self.box.wait_for_room(Lane.MAIN, None, self, self.depth)
                return
            self.box.push(Lane.MAIN, self.left.pop(0))


@pytest.mark.parametrize(
    "overflow", [Overflow.RAISE, Overflow.DROP_NEWEST, Overflow.DROP_OLDEST, Divert("spill")]
)
def test_a_waiter_without_a_message_does_not_block_others_unless_senders_wait(
    overflow: Overflow | Divert,
) -> None:
    box = Mailbox(2, overflow)
    box.admit(Lane.MAIN, (MESSAGE, "a", None, "first"))
    box.wait_for_room(Lane.MAIN, None, FakeWaiter(None), depth=1)
    box.pop()

    verdict, _ = box.admit(Lane.MAIN, (MESSAGE, "b", None, "second"))

    assert verdict is Verdict.ACCEPTED
    assert box.dropped == 0


@pytest.mark.parametrize(
    "limit, overflow", [(2, Overflow.WAIT), (2, Overflow.RAISE), (0, Overflow.RAISE)]
)
def test_waiters_that_return_by_themselves_are_admitted_in_turn(
    limit: int, overflow: Overflow
) -> None:
    box = Mailbox(limit, overflow)
    for label in ("a", "b"):
        Comeback(box, label, count=3, depth=2).settle(True)

    served = []
    for _ in range(10):
        served.append(contents(box))
        box.admit_waiters()

    assert served[:5] == [["a0", "a1"], ["a2", "b0"], ["b1", "b2"], [], []]
    assert box.waiters is None


def test_the_log_lane_has_a_bound_even_in_an_unbounded_mailbox() -> None:
    box = Mailbox()
    for number in range(LOG_LIMIT):
        box.admit(Lane.LOG, (LOG, "node", None, number))

    verdict, displaced = box.admit(Lane.LOG, (LOG, "node", None, "one too many"))

    assert (verdict, displaced) == (Verdict.DROPPED, None)
    assert box.dropped == 1
    assert contents(box) == list(range(LOG_LIMIT))


def test_admitting_and_refusing_without_waiters_has_no_effect() -> None:
    box = Mailbox(1, Overflow.WAIT)

    box.admit_waiters()
    box.refuse_waiters()
    box.stop_waiting(Lane.MAIN, FakeWaiter((MESSAGE, "a", None, "never came")))

    assert len(box) == 0
    assert box.waiters is None


@pytest.mark.parametrize("to", ["", None, 5, b"spill"])
def test_a_message_can_be_diverted_to_a_name_only(to: Any) -> None:
    with pytest.raises(BadInputError, match="registered name") as caught:
        Divert(to)

    assert caught.value.given == to


def test_every_kind_of_envelope_names_its_callback() -> None:
    kinds = {
        name: value
        for name, value in vars(mailbox).items()
        if name.isupper() and type(value) is int
    }
    kinds = {name: kinds[name] for name in kinds if name in mailbox.__all__}

    assert sorted(kinds.values()) == list(range(len(kinds)))
    assert all(kind_name(kind) for kind in kinds.values())
    assert [kind_name(kind) for kind in USER_KINDS] == [
        "handle_message",
        "handle_call",
        "handle_message",
        "handle_call",
        "handle_event",
    ]
    # A bound counts users' envelopes only, and a single comparison distinguishes them from signals.
    assert max(USER_KINDS) < min(*SIGNAL_KINDS, *LAST_WORDS, LOG)


def test_a_waiter_that_is_admitted_may_remove_other_waiters() -> None:
    box = Mailbox(2, Overflow.WAIT)
    other = FakeWaiter((MESSAGE, "b", None, "sent away"))

    class Jealous:
        def settle(self, admitted: bool, /) -> None:
            box.stop_waiting(Lane.MAIN, other)

    box.wait_for_room(Lane.MAIN, (MESSAGE, "a", None, "let in"), Jealous())
    box.wait_for_room(Lane.MAIN, other.envelope, other)

    box.admit_waiters()

    assert contents(box) == ["let in"]
    assert other.answers == []
    assert box.waiters is None


def test_events_count_against_the_bound_of_every_lane_and_can_be_displaced() -> None:
    box = Mailbox(2, Overflow.DROP_OLDEST)
    for number in range(2):
        box.push(Lane.SYSTEM, (EVENT, "a", None, number))

    full = box.has_room(Lane.SYSTEM)
    verdict, displaced = box.admit(Lane.SYSTEM, (MESSAGE, "a", None, "new"))
    box.pop()
    room = box.has_room(Lane.SYSTEM)

    assert not full
    assert (verdict, displaced) == (Verdict.DISPLACED, (EVENT, "a", None, 0))
    assert room


def test_a_displaced_message_takes_no_place() -> None:
    box = Mailbox(2, Overflow.DROP_OLDEST)
    for number in range(5):
        box.admit(Lane.SYSTEM, (MESSAGE, "a", None, number))
    served = contents(box)

    verdicts = [box.admit(Lane.SYSTEM, (MESSAGE, "a", None, number))[0] for number in range(2)]

    assert served == [3, 4]
    assert verdicts == [Verdict.ACCEPTED] * 2


def test_a_waiter_for_an_empty_lane_is_not_notified_before() -> None:
    box = Mailbox()
    box.push(Lane.MAIN, (MESSAGE, "a", None, "first"))
    waiter = FakeWaiter((MESSAGE, "b", None, "second"), depth=1)
    box.wait_for_room(Lane.MAIN, waiter.envelope, waiter, depth=1)

    box.admit_waiters()
    before = list(waiter.answers)
    box.pop()
    box.admit_waiters()

    assert (before, waiter.answers) == ([], [True])


def test_a_waiter_without_a_message_overtakes_waiters_only_while_it_is_notified() -> None:
    box = Mailbox(1, Overflow.WAIT)
    rooms: list[bool] = []

    class Told:
        def settle(self, admitted: bool, /) -> None:
            rooms.append(box.has_room(Lane.MAIN))

    box.wait_for_room(Lane.MAIN, None, Told())
    box.admit_waiters()
    box.wait_for_room(Lane.MAIN, (MESSAGE, "b", None, "waits"), FakeWaiter(None))

    rooms.append(box.has_room(Lane.MAIN))

    assert rooms == [True, False]


def test_no_message_is_displaced_where_the_only_place_is_reserved_for_a_thread() -> None:
    box = Mailbox(1, Overflow.DROP_OLDEST)
    box.promise(Lane.SYSTEM)

    verdict, displaced = box.admit(Lane.SYSTEM, (MESSAGE, "a", None, "new"))

    assert (verdict, displaced) == (Verdict.DISPLACED, None)
    assert contents(box) == ["new"]


def test_the_request_of_a_call_is_withdrawn_and_no_other_envelope() -> None:
    box, first, second = Mailbox(), object(), object()
    envelopes: list[Any] = [
        (CALL, None, first, "same"),
        (MESSAGE, None, None, "same"),
        (CALL, None, second, "same"),
    ]
    for envelope in envelopes:
        box.push(Lane.MAIN, envelope)

    assert box.withdraw(second)
    assert not box.withdraw(second)
    assert list(box.drain()) == envelopes[:2]


def test_a_request_that_a_worker_thread_takes_meanwhile_is_not_withdrawn() -> None:
    class Racing(deque[Any]):
        def copy(self) -> "Racing":
            found = Racing(self)
            self.clear()
            return found

    box, caller = Mailbox(), object()
    box.main = Racing([(CALL, None, caller, "x")])

    assert not box.withdraw(caller)


# -- an order of the user --------------------------------------------------------------------------


def ordered(*messages: str, limit: int = 10, overflow: Overflow = Overflow.RAISE) -> OrderedMailbox:
    """A mailbox that serves short texts first, with some messages."""
    box = OrderedMailbox(limit, overflow, len, lambda envelope, error: None, lambda: 0)
    for message in messages:
        box.admit(Lane.MAIN, (MESSAGE, "sender", None, message))
    return box


def test_an_order_sorts_messages_and_keeps_those_of_a_key_in_sending_order() -> None:
    box = ordered("ccc", "b", "aa", "ddd", "", "a")

    box.push(Lane.MAIN, (EVENT, "sender", None, Published(EventName("tick"), "ee", 0.0)))

    assert [getattr(each, "message", each) for each in contents(box)] == [
        "",
        "b",
        "a",
        "aa",
        "ee",
        "ccc",
        "ddd",
    ]


def test_an_order_sorts_no_other_lane() -> None:
    box = ordered()

    for message in ("long", "a"):
        box.admit(Lane.SYSTEM, (MESSAGE, "sender", None, message))

    assert contents(box) == ["long", "a"]


def test_a_signal_waits_only_for_the_messages_before_it_in_any_order() -> None:
    box = ordered("long", "longer")
    box.push_signal(Lane.MAIN, (STOP, "kernel", None, "s"))

    for message in ("bb", "a"):
        box.admit(Lane.MAIN, (MESSAGE, "sender", None, message))

    assert contents(box) == ["long", "longer", "s", "a", "bb"]
    for message in ("bb", "a"):
        box.admit(Lane.MAIN, (MESSAGE, "sender", None, message))
    assert contents(box) == ["a", "bb"]


def test_a_message_with_a_wrong_key_is_refused_and_counted() -> None:
    refused: list[tuple[object, type]] = []
    box = OrderedMailbox(
        10,
        Overflow.RAISE,
        lambda message: message[0],
        lambda envelope, error: refused.append((envelope[3], type(error))),
        lambda: 0,
    )

    for message in ([2], 5, ["text"], [1]):
        box.admit(Lane.MAIN, (MESSAGE, "sender", None, message))

    assert contents(box) == [[1], [2]]
    assert refused == [(5, TypeError), (["text"], TypeError)]
    assert box.dropped == 2


def test_an_ordered_mailbox_that_is_full_displaces_the_message_that_would_come_last() -> None:
    box = ordered("ccc", "a", limit=2, overflow=Overflow.DROP_OLDEST)

    verdict, displaced = box.admit(Lane.MAIN, (MESSAGE, "sender", None, "bb"))

    assert verdict is Verdict.DISPLACED
    assert displaced is not None
    assert displaced[3] == "ccc"
    assert contents(box) == ["a", "bb"]


def test_an_ordered_mailbox_displaces_no_signal() -> None:
    box = ordered(overflow=Overflow.DROP_OLDEST)
    box.push_signal(Lane.MAIN, (STOP, "kernel", None, "signal"))
    box.push_signal(Lane.SYSTEM, (DOWN, "kernel", None, "down"))

    assert box.take_oldest_user_message(Lane.MAIN) is None
    assert box.take_oldest_user_message(Lane.SYSTEM) is None


class OtherLane(deque[Envelope]):
    """A lane of another kind, as that of the C extension is."""


@pytest.mark.parametrize("lane", [deque, OtherLane, Mailbox.main_type])
def test_an_ordered_mailbox_inherits_a_lane_of_any_kind_and_leaves_no_message_there(
    lane: type[deque[Envelope]],
) -> None:
    box = ordered()
    left = lane()
    left.append((MESSAGE, "sender", None, "bb"))

    box.inherit({Lane.MAIN: left})
    box.admit(Lane.MAIN, (MESSAGE, "sender", None, "a"))

    assert left is box.main or not left
    assert contents(box) == ["a", "bb"]
