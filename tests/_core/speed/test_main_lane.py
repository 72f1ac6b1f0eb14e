"""`MainLane` beside its Python twin: a mailbox finds the same in both after the same operations."""

import gc
import random
import sys
import weakref
from collections import deque
from itertools import count
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ergo_py._core.vocabulary.envelopes import CALL, MESSAGE, Envelope

_speed = pytest.importorskip("ergo_py._core.speed._speed", reason="the C extension is not built")
MainLane = _speed.MainLane

ENVELOPES = st.tuples(
    st.integers(0, 18), st.sampled_from("ab"), st.none() | st.integers(), st.integers(0, 3)
)


class LaneBesideDeque(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.lane: deque[Envelope] = MainLane()
        self.twin: deque[Envelope] = deque()

    @rule(envelope=ENVELOPES)
    def append(self, envelope: Envelope) -> None:
        self.lane.append(envelope)
        self.twin.append(envelope)

    @rule(envelope=ENVELOPES)
    def append_left(self, envelope: Envelope) -> None:
        self.lane.appendleft(envelope)
        self.twin.appendleft(envelope)

    @rule(envelopes=st.lists(ENVELOPES, max_size=40))
    def extend(self, envelopes: list[Envelope]) -> None:
        self.lane.extend(envelopes)
        self.twin.extend(envelopes)

    @rule(envelopes=st.lists(ENVELOPES, max_size=40))
    def extend_left(self, envelopes: list[Envelope]) -> None:
        self.lane.extendleft(iter(envelopes))
        self.twin.extendleft(iter(envelopes))

    @precondition(lambda self: self.twin)
    @rule(most=st.integers(1, 50))
    def pop_left(self, most: int) -> None:
        for _ in range(min(most, len(self.twin))):
            assert self.lane.popleft() == self.twin.popleft()

    @precondition(lambda self: not self.twin)
    @rule()
    def pop_left_of_nothing(self) -> None:
        with pytest.raises(IndexError):
            self.lane.popleft()

    @precondition(lambda self: self.twin)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(-len(self.twin), len(self.twin) - 1))
        del self.lane[index]
        del self.twin[index]

    @precondition(lambda self: self.twin)
    @rule(data=st.data(), envelope=ENVELOPES)
    def replace(self, data: st.DataObject, envelope: Envelope) -> None:
        index = data.draw(st.integers(-len(self.twin), len(self.twin) - 1))
        self.lane[index] = envelope
        self.twin[index] = envelope

    @rule(envelope=ENVELOPES)
    def remove(self, envelope: Envelope) -> None:
        found = [lane.count(envelope) for lane in (self.lane, self.twin)]
        assert found[0] == found[1]
        for lane in (self.lane, self.twin):
            if found[0]:
                lane.remove(envelope)
            else:
                with pytest.raises(ValueError, match="not in"):
                    lane.remove(envelope)

    @rule()
    def clear(self) -> None:
        self.lane.clear()
        self.twin.clear()

    @rule()
    def go_on_with_a_copy(self) -> None:
        copy = self.lane.copy()
        self.lane.clear()
        self.lane = copy

    @rule(index=st.integers(-60, 60))
    def look_at(self, index: int) -> None:
        if -len(self.twin) <= index < len(self.twin):
            assert self.lane[index] == self.twin[index]
        else:
            with pytest.raises(IndexError):
                self.lane[index]

    @invariant()
    def holds_the_same(self) -> None:
        assert list(self.lane) == list(self.twin)
        assert list(reversed(self.lane)) == list(reversed(self.twin))
        assert len(self.lane) == len(self.twin)
        assert bool(self.lane) == bool(self.twin)


TestLaneBesideDeque = LaneBesideDeque.TestCase


def lane_of(*payloads: object) -> Any:
    lane = MainLane()
    lane.extend((MESSAGE, "sender", None, payload) for payload in payloads)
    return lane


@pytest.mark.parametrize(
    "change",
    [
        lambda lane: lane.append((MESSAGE, "a", None, 9)),
        lambda lane: lane.appendleft((MESSAGE, "a", None, 9)),
        lambda lane: lane.popleft(),
        lambda lane: lane.clear(),
        lambda lane: lane.__delitem__(1),
    ],
)
def test_an_iterator_raises_after_a_change_of_the_lane_as_that_of_a_deque(change: Any) -> None:
    for lane in (lane_of(1, 2, 3), deque(lane_of(1, 2, 3))):
        iterator = iter(lane)
        next(iterator)
        change(lane)

        with pytest.raises(RuntimeError):
            next(iterator)


def test_an_iterator_at_its_end_stays_there() -> None:
    lane = lane_of(1)
    iterator = iter(lane)
    next(iterator)
    assert next(iterator, None) is None

    lane.append((MESSAGE, "a", None, 2))

    assert next(iterator, None) is None


@pytest.mark.parametrize("wrong", [None, [0, 1, 2, 3], (0, 1, 2), ("0", 1, 2, 3), (2**80, 1, 2, 3)])
def test_a_lane_refuses_everything_but_envelopes(wrong: object) -> None:
    lane = lane_of(1)

    for add in (lane.append, lane.appendleft, lambda given: lane.extend([given])):
        with pytest.raises((TypeError, OverflowError)):
            add(wrong)
    with pytest.raises((TypeError, OverflowError)):
        lane[0] = wrong

    assert list(lane) == [(MESSAGE, "sender", None, 1)]


class Payload:
    """A payload with an end that a test sees."""


def test_a_lane_holds_a_reference_to_each_part_of_an_envelope_and_no_more() -> None:
    parts = [Payload(), Payload(), Payload()]
    lane, numbers = MainLane(), random.Random(1)

    def held() -> list[int]:
        return [sys.getrefcount(part) - before for part in parts]

    before = 0
    before = held()[0]
    envelope = (CALL, *parts)
    for _ in range(3_000):
        match numbers.randrange(9):
            case 0 | 1:
                lane.append(envelope)
            case 2:
                lane.appendleft(envelope)
            case 3:
                lane.extend([envelope, envelope])
            case 4 if lane:
                lane.popleft()
            case 5 if lane:
                del lane[numbers.randrange(len(lane))]
            case 6 if lane:
                lane[numbers.randrange(len(lane))] = envelope
            case 7:
                assert len(list(lane.copy())) == lane.count(envelope)
            case 8 if lane and numbers.random() < 0.02:
                lane.clear()
        assert held() == [len(lane) + 1] * 3
    del envelope
    assert held() == [len(lane)] * 3
    del lane

    assert held() == [0, 0, 0]


def test_a_lane_in_a_cycle_of_references_is_collected() -> None:
    lane, payload = MainLane(), Payload()
    lane.append((MESSAGE, "a", None, lane))
    lane.append((MESSAGE, "a", iter(lane), payload))
    end = weakref.ref(payload)

    del lane, payload
    gc.collect()

    assert end() is None


def test_nothing_of_a_lane_is_left_after_many_rounds() -> None:
    blocks = []
    for _ in range(5):
        lane = MainLane()
        for number in range(10_000):
            lane.append((MESSAGE, "a", None, number))
        list(lane)
        while len(lane) > 100:
            lane.popleft()
        del lane
        gc.collect()
        blocks.append(sys.getallocatedblocks())

    assert blocks[-1] - blocks[1] < 100


@pytest.mark.parametrize("served", range(9))
def test_a_lane_grows_from_any_position_of_its_first_envelope(served: int) -> None:
    lane, twin = MainLane(), deque[Any]()
    for number in range(100):
        envelope = (MESSAGE, "a", None, number)
        lane.append(envelope)
        twin.append(envelope)
        if 7 <= number < 7 + served:
            assert lane.popleft() == twin.popleft()

    assert list(lane) == list(twin)


def test_an_empty_lane_returns_the_memory_of_a_flood() -> None:
    lane = MainLane()
    least = sys.getsizeof(lane)
    lane.extend((MESSAGE, "a", None, None) for _ in range(5_000))
    most = sys.getsizeof(lane)

    while lane:
        lane.popleft()

    assert most > 32 * 5_000
    assert sys.getsizeof(lane) == least < 100


class Mischief:
    """A payload that changes the lane at its end."""

    def __init__(self, lane: Any, done: list[int], numbers: Any) -> None:
        self.lane, self.done, self.numbers = lane, done, numbers

    def __del__(self) -> None:
        self.done.append(len(self.lane))
        self.lane.append((MESSAGE, "a", None, next(self.numbers)))


@pytest.mark.parametrize(
    "act",
    [
        lambda lane: lane.clear(),
        lambda lane: lane.popleft(),
        lambda lane: lane.__delitem__(3),
        lambda lane: lane.__setitem__(3, (MESSAGE, "a", None, None)),
    ],
)
def test_a_payload_may_change_the_lane_that_drops_it(act: Any) -> None:
    lane, numbers = MainLane(), count()
    done: list[int] = []
    for _ in range(8):
        lane.append((MESSAGE, "a", None, Mischief(lane, done, numbers)))

    act(lane)

    assert len(done) in (1, 8)
    assert [envelope[3] for envelope in list(lane)[-len(done) :]] == list(range(len(done)))
    while any(isinstance(envelope[3], Mischief) for envelope in lane):
        lane.popleft()


class EqualToAll:
    """Equals everything, and changes the lane when it is compared."""

    def __init__(self, lane: Any) -> None:
        self.lane = lane

    def __eq__(self, other: object) -> bool:
        self.lane.clear()
        return True

    def __hash__(self) -> int:
        return 0


def test_a_comparison_that_changes_the_lane_ends_a_search() -> None:
    lane = lane_of(1, 2)

    for search in (lane.count, lane.remove):
        lane.extend(lane_of(1, 2))
        with pytest.raises(RuntimeError, match="changed"):
            search((MESSAGE, "sender", None, EqualToAll(lane)))
