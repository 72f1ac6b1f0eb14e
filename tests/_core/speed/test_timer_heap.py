"""`TimerHeap` of the extension beside its Python twin: both hold the same timers, and return them
in the same order, after the same operations.
"""

import gc
import random
import sys
import weakref
from threading import get_ident
from typing import Any

import pytest

from ergo_py._core.speed.installation import is_fast
from ergo_py._core.tables.timers import Owned, Timer, TimerHeap, Timers
from tests.support import timer_heap

_speed = pytest.importorskip("ergo_py._core.speed._speed", reason="the C extension is not built")
pytestmark = pytest.mark.skipif(not is_fast, reason="the C extension is not installed")


class Owner:
    """All that a timer knows of its process. A test can watch its end."""

    def __init__(self) -> None:
        self.timers = Owned()


def made(count: int) -> list[Timer]:
    table, owner = Timers(thread=get_ident), Owner()
    return [Timer(table, 0.0, owner, "to", "message", 0, 0.0) for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_both_heaps_hold_the_same_timers_in_the_same_order(seed: int) -> None:
    chance = random.Random(seed)
    timers = made(400)
    heaps: list[TimerHeap] = [_speed.TimerHeap(), TimerHeap()]

    for number, timer in enumerate(timers):
        for heap in heaps:
            heap.push(float(number * 7 % 13), number, timer)
        chance.choice(timers).cancel()
        if number % 3 == 0:
            assert heaps[0].take() == heaps[1].take()
        if number % 50 == 0:
            for heap in heaps:
                heap.drop_finished()
        assert sorted(heaps[0]) == sorted(heaps[1])

    others: list[TimerHeap] = [_speed.TimerHeap(), TimerHeap()]
    finished = [0, 0]
    while heaps[1]:
        for index, (heap, other) in enumerate(zip(heaps, others, strict=True)):
            finished[index] += heap.move_part(30, other)
        assert len(heaps[0]) == len(heaps[1])
    assert finished[0] == finished[1] > 0
    assert [others[0].take() for _ in range(len(others[0]))] == sorted(others[1])
    assert len(others[0]) == 0


def test_a_heap_that_has_become_short_returns_its_memory() -> None:
    heap = _speed.TimerHeap()
    empty = sys.getsizeof(heap)
    for number, timer in enumerate(made(1000)):
        heap.push(0.0, number, timer)
        timer.cancel()
    full = sys.getsizeof(heap)

    heap.drop_finished()

    assert full - empty >= 1000 * 24
    assert sys.getsizeof(heap) - empty < 1000


def test_a_heap_in_a_cycle_is_collected() -> None:
    table, owner = Timers(), Owner()
    Timer(table, 0.0, owner, owner, table, 0, 0.0)
    witness = weakref.ref(owner)

    del table, owner
    gc.collect()

    assert witness() is None


@pytest.mark.parametrize(
    "wrong", [(0.0, 1, "no timer"), (0.0, 1), ("no time", 1, made(1)[0]), (0.0, "no", made(1)[0])]
)
def test_a_heap_refuses_all_but_timers(wrong: tuple[Any, ...]) -> None:
    heap = _speed.TimerHeap()

    with pytest.raises(TypeError):
        heap.push(*wrong)

    assert len(heap) == 0


@pytest.mark.parametrize("wrong", [(1, []), (1,), ("no length", _speed.TimerHeap())])
def test_a_heap_moves_to_another_heap_only(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        _speed.TimerHeap().move_part(*wrong)


def test_an_empty_heap_has_no_entry() -> None:
    heap = _speed.TimerHeap()

    with pytest.raises(IndexError):
        heap.take()
    with pytest.raises(IndexError):
        heap[0]


@pytest.mark.parametrize("verb", ["take", "item"])
def test_a_finalizer_that_cancels_timers_meets_a_heap_at_rest(verb: str) -> None:
    """Python 3.11 collects inside the allocation of the entry that the heap returns, or before, if
    something else allocates.
    """
    table, owner = Timers(thread=get_ident), Owner()
    timers = [Timer(table, float(i), owner, "to", "message", 0, 0.0) for i in range(100)]

    class Holder:
        def __init__(self, held: list[Timer]) -> None:
            self.held, self.me = held, self

        def __del__(self) -> None:
            for timer in self.held:
                timer.cancel()

    gc.collect()
    thresholds = gc.get_threshold()
    gc.disable()
    try:
        kept = [(str(i), i, i) for i in range(5000)]  # no tuple is left to be used again
        heap = timer_heap(table)
        Holder(timers[:65])
        timers.clear()
        gc.set_threshold(1)
        gc.enable()
        entry = heap.take() if verb == "take" else heap[0]
        gc.disable()
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
    gc.collect()

    assert len(kept) == 5000
    assert isinstance(entry[2], Timer)
    deadlines = {entry[0], *(deadline for deadline, _, _ in heap)}
    assert deadlines >= {float(i) for i in range(65, 100)}
