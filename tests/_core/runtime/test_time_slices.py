"""Long work of the kernel's own lets others run, and one request begins in a turn of the loop."""

from collections.abc import Iterator
from itertools import count

import pytest
import trio
from trio.lowlevel import add_instrument, checkpoint, remove_instrument

from ergo_py._core.runtime.time_slices import RequestTurns, at_once, in_slices
from tests.support import Passes, replace_private


def steps(done: list[int], size: int) -> Iterator[None]:
    for number in range(size):
        done.append(number)
        yield


async def turns_during(done: list[int], size: int) -> list[int]:
    """How far the work was at each turn that another task got meanwhile."""
    seen: list[int] = []

    async def others() -> None:
        while len(done) < size:
            await trio.lowlevel.checkpoint()
            seen.append(len(done))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        await trio.lowlevel.checkpoint()
        await in_slices(steps(done, size))
    return seen


async def test_other_tasks_run_after_each_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two looks at the clock are half a millisecond apart: so a slice is two steps.
    time = count()
    replace_private(monkeypatch, "clock of time slices", lambda: next(time) * 0.0005)
    done: list[int] = []

    seen = await turns_during(done, 20)

    assert done == list(range(20))
    # A slice is three steps at most.
    assert len(seen) >= 20 // 3


async def test_short_work_takes_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_private(monkeypatch, "clock of time slices", lambda: 0.0)
    replace_private(monkeypatch, "checkpoint of time slices", lambda: pytest.fail("a turn"))
    done: list[int] = []

    await in_slices(steps(done, 1_000))

    assert len(done) == 1_000


async def test_work_continues_when_its_task_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    time = count()
    replace_private(monkeypatch, "clock of time slices", lambda: float(next(time)))
    done: list[int] = []

    with trio.CancelScope() as scope:
        scope.cancel()
        await in_slices(steps(done, 10))

    assert len(done) == 10


async def test_work_is_finished_when_its_task_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cut_off() -> None:
        raise GeneratorExit

    time = count()
    replace_private(monkeypatch, "clock of time slices", lambda: float(next(time)))
    replace_private(monkeypatch, "checkpoint of time slices", cut_off)
    done: list[int] = []

    with pytest.raises(GeneratorExit):
        await in_slices(steps(done, 10))

    assert len(done) == 10


def test_work_can_be_done_at_once() -> None:
    done: list[int] = []

    at_once(steps(done, 10))

    assert len(done) == 10


async def test_each_request_begins_in_a_turn_of_its_own() -> None:
    turns, passes, begun = RequestTurns(), Passes(), list[int]()

    async def request() -> None:
        await turns.take()
        begun.append(passes.number)

    add_instrument(passes)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(request)
        await checkpoint()
        for _ in range(5):
            nursery.start_soon(request)
    remove_instrument(passes)

    assert len(begun) == len(set(begun)) == 10


@pytest.mark.parametrize("waiting", [0, 1, 2])
async def test_no_request_begins_that_was_cancelled(waiting: int) -> None:
    """Also while it gets its turn; those behind it begin."""
    for passes in range(waiting + 3):
        turns, begun, scope = RequestTurns(), list[str](), trio.CancelScope()

        async def request(
            name: str,
            scope: trio.CancelScope,
            turns: RequestTurns = turns,
            begun: list[str] = begun,
        ) -> None:
            with scope:
                await turns.take()
                assert not scope.cancel_called
                begun.append(name)

        async with trio.open_nursery() as nursery:
            for _ in range(waiting):
                nursery.start_soon(request, "before", trio.CancelScope())
            await checkpoint()
            nursery.start_soon(request, "cancelled", scope)
            for _ in range(passes):
                await checkpoint()
            is_late = "cancelled" in begun
            scope.cancel()
            nursery.start_soon(request, "behind", trio.CancelScope())

        assert begun.count("before") == waiting
        assert ("cancelled" in begun) == is_late
        assert begun.count("behind") == 1
