"""A seed decides the order of tasks; the order can be reproduced."""

import random
from typing import Any

import pytest
import trio

from ergo_py import Actor
from ergo_py.testing import VirtualClock, explore, seeded
from ergo_py.testing.task_order import RaceError
from tests.support import running_node


async def order(tasks: int = 8) -> tuple[int, ...]:
    ran: list[int] = []

    async def run(number: int) -> None:
        await trio.lowlevel.checkpoint()
        ran.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(tasks):
            nursery.start_soon(run, number)
    return tuple(ran)


def in_order_of(seed: int) -> tuple[int, ...]:
    with seeded(seed):
        return trio.run(order)


def test_trio_still_takes_its_task_order_from_the_seeded_generator() -> None:
    run: Any = trio._core._run

    assert isinstance(run._r, random.Random)
    assert isinstance(run._ALLOW_DETERMINISTIC_SCHEDULING, bool)
    assert len({in_order_of(seed) for seed in range(10)}) > 5


def test_the_same_seed_gives_the_same_order() -> None:
    first = [in_order_of(seed) for seed in range(10)]
    second = [in_order_of(seed) for seed in range(10)]

    assert first == second


async def test_a_seed_may_be_given_in_the_middle_of_a_run() -> None:
    found = []
    for _ in range(2):
        with seeded(7):
            found.append(await order())

    assert found[0] == found[1]


def test_seeded_restores_the_random_state_of_trio() -> None:
    run: Any = trio._core._run
    before = run._r.getstate(), run._ALLOW_DETERMINISTIC_SCHEDULING

    with pytest.raises(ZeroDivisionError), seeded(3):
        trio.run(order)
        raise ZeroDivisionError

    assert (run._r.getstate(), run._ALLOW_DETERMINISTIC_SCHEDULING) == before


class Register(Actor):
    """Two writers read, wait and write: the classic."""

    def __init__(self) -> None:
        self.total = 0

    def handle_call(self, request: Any, caller: Any) -> object:
        if request is None:
            return self.total
        self.total = request
        return None


async def race() -> None:
    async def add(pid: Any) -> None:
        await trio.sleep(1)
        total = await node.call(pid, None)
        await trio.lowlevel.checkpoint()
        await node.call(pid, total + 1)
        finished.append(total)

    finished: list[int] = []
    async with running_node() as node:
        pid = await node.spawn(Register)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(add, pid)
            nursery.start_soon(add, pid)
            nursery.start_soon(order, 3)
        winner = await order(2)
        assert winner == (0, 1), "the second came first"


def test_a_race_is_found_and_its_seed_reproduces_it() -> None:
    with pytest.raises(RaceError) as found:
        explore(race, clock=VirtualClock)

    seed = found.value.seed
    with pytest.raises(RaceError, match=f"seed {seed}, after 0"):
        explore(race, [seed], clock=VirtualClock)
    assert isinstance(found.value.__cause__, AssertionError)
    assert found.value.passed == seed


class Listed(Actor):
    """Lists what it gets, in an async `handle_call` that does not wait."""

    def __init__(self) -> None:
        self.got: list[str] = []

    async def handle_call(self, request: str, caller: Any) -> list[str]:
        self.got.append(request)
        return self.got

    def handle_message(self, message: str, sender: Any) -> None:
        self.got.append(message)


def test_seeds_put_a_message_between_any_two_calls_of_another_task() -> None:
    async def program() -> None:
        async def send(after: int) -> None:
            for _ in range(after):
                await trio.lowlevel.checkpoint()
            node.send(pid, "message")

        async with running_node() as node:
            for after in range(12):
                pid = await node.spawn(Listed)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(send, after)
                    for _ in range(5):
                        await node.call(pid, "call")
                places.add((await node.call(pid, "end")).index("message"))

    places: set[int] = set()
    explore(program, range(10), clock=VirtualClock)

    assert places == {1, 2, 3, 4, 5}  # the first call is made before the other task runs


def test_a_program_that_is_correct_in_every_order_passes() -> None:
    async def right() -> None:
        assert set(await order()) == set(range(8))

    assert explore(right, range(20)) == 20


def test_an_incompatible_release_of_trio_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trio._core._run, "_r", object())

    with pytest.raises(RuntimeError, match=trio.__version__), seeded(1):
        pass
