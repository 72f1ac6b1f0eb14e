"""Limits that are driven by a clock that the test moves."""

from math import inf

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py._core.runtime.time_limit import TimeLimit, wait_within


async def test_an_event_within_the_limit_ends_the_wait(autojump_clock: MockClock) -> None:
    event = trio.Event()

    async def come() -> None:
        await trio.sleep(4.9)
        event.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(come)
        assert await wait_within(5.0, event.wait)
    assert trio.current_time() == pytest.approx(4.9)


async def test_a_wait_ends_when_its_limit_is_over(
    autojump_clock: MockClock,
) -> None:
    assert not await wait_within(5.0, trio.sleep_forever)
    assert trio.current_time() == pytest.approx(5.0)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
async def test_a_limit_of_zero_still_gives_a_turn(
    seconds: float, autojump_clock: MockClock
) -> None:
    asked: list[float] = []

    assert not await TimeLimit(seconds).wait(
        trio.sleep_forever, lambda: asked.append(trio.current_time())
    )
    assert asked == [0.0]


async def test_a_wait_without_a_limit_sets_no_deadline(mock_clock: MockClock) -> None:
    woken: list[bool] = []
    event = trio.Event()

    async def wait() -> None:
        woken.append(await wait_within(inf, event.wait))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == inf
        mock_clock.jump(1e9)
        await wait_all_tasks_blocked()
        event.set()

    assert woken == [True]


async def test_time_in_which_the_program_did_not_run_does_not_count(mock_clock: MockClock) -> None:
    answers: list[bool] = []

    async def wait() -> None:
        answers.append(await wait_within(5.0, trio.sleep_forever))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        for _ in range(5):
            await wait_all_tasks_blocked()
            mock_clock.jump(1000.0)
        await wait_all_tasks_blocked()
        assert answers == []
        while not answers:
            mock_clock.jump(1.0)
            await wait_all_tasks_blocked()

    assert answers == [False]
    assert trio.current_time() < 5020.0


@pytest.mark.parametrize("limit", [5.0, inf])
async def test_a_limit_can_be_shortened(limit: float, autojump_clock: MockClock) -> None:
    one = TimeLimit(limit)
    answers: list[bool] = []

    async def wait() -> None:
        answers.append(await one.wait(trio.sleep_forever))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(0.3)
        one.hurry(1.0)

    assert answers == [False]
    assert trio.current_time() == pytest.approx(1.3)


@pytest.mark.parametrize(
    "seconds, turns",
    [
        (0.1, [0.0, 0.02, 0.06]),
        (0.8, [0.0, 0.1, 0.3, 0.7]),
        (5.0, [0.0, 0.625, 1.625, 2.625, 3.625, 4.625]),
        (8.5, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]),
    ],
)
async def test_a_wait_wakes_up_a_few_times_within_its_limit(
    seconds: float, turns: list[float], autojump_clock: MockClock
) -> None:
    woken: list[float] = []

    async def wait() -> None:
        woken.append(trio.current_time())
        await trio.sleep_forever()

    assert not await wait_within(seconds, wait)
    assert woken == pytest.approx(turns)


@pytest.mark.parametrize("seconds", [5.0, inf])
async def test_a_wait_that_asks_again_asks_soon(seconds: float, autojump_clock: MockClock) -> None:
    asked: list[float] = []
    event = trio.Event()

    def ask() -> None:
        asked.append(trio.current_time())
        if len(asked) == 9:
            event.set()

    assert await TimeLimit(seconds).wait(event.wait, ask)
    assert asked == pytest.approx([0.0, 0.02, 0.06, 0.14, 0.3, 0.62, 1.26, 2.26, 3.26])
