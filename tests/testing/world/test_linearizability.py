"""`linearizable` accepts the histories of a register that a naive search accepts, and no others."""

from itertools import permutations
from math import inf
from random import Random
from typing import Any

import pytest

from ergo_py.testing import World
from ergo_py.testing.world.history import History, Operation


class Register:
    """A value that is read and written."""

    def start(self) -> int:
        return 0

    def step(self, state: int, request: Any) -> tuple[int, Any]:
        kind, *values = request
        return (values[-1], None) if kind == "write" else (state, state)


def holds(*operations: Operation, **options: Any) -> bool:
    history = History(lambda: 0.0)
    history.operations.extend(operations)
    return not list(World.linearizable(Register(), **options)(history))


def write(value: int, began: float, ended: float = inf, error: Any = None) -> Operation:
    return Operation("a", "r", ("write", value), began, ended, None, error)


def read(value: int, began: float, ended: float) -> Operation:
    return Operation("b", "r", ("read",), began, ended, value)


@pytest.mark.parametrize(
    "operations, is_right",
    [
        ([], True),
        ([write(1, 0, 1), read(1, 2, 3)], True),
        ([write(1, 0, 1), read(0, 2, 3)], False),
        ([write(1, 0, 5), read(0, 1, 2), read(1, 3, 4)], True),
        ([write(1, 0, 5), read(1, 1, 2), read(0, 3, 4)], False),
        ([write(1, 0, 1, TimeoutError()), read(0, 2, 3)], True),
        ([write(1, 0, 1, TimeoutError()), read(1, 8, 9)], True),
        ([write(1, 0), read(0, 2, 3), read(1, 4, 5)], True),
        ([write(1, 0, 1), write(2, 0, 1), read(1, 2, 3), read(2, 4, 5)], False),
    ],
)
def test_short_histories(operations: list[Operation], is_right: bool) -> None:
    assert holds(*operations) is is_right


def test_calls_of_the_same_moment_keep_their_order() -> None:
    """Without delays, all calls of a world take no time: a lost write would go well."""
    history = History(lambda: 0.0)
    history.finish(history.begin("a", "r", ("write", 1)), None, None)
    history.finish(history.begin("b", "r", ("read",)), 0, None)

    assert list(World.linearizable(Register())(history))

    history = History(lambda: 0.0)
    write, read = history.begin("a", "r", ("write", 1)), history.begin("b", "r", ("read",))
    history.finish(write, None, None)
    history.finish(read, 0, None)

    assert not list(World.linearizable(Register())(history))


def is_explained(operations: list[Operation]) -> bool:
    """The naive search: all orders of all operations, with or without those that failed."""
    needed = [each for each in operations if each.is_answered]
    unsure = [each for each in operations if not each.is_answered]
    for chosen in range(1 << len(unsure)):
        some = needed + [each for number, each in enumerate(unsure) if chosen >> number & 1]
        if any(fits(order) for order in permutations(some)):
            return True
    return False


def fits(order: tuple[Operation, ...]) -> bool:
    state = 0
    for number, operation in enumerate(order):
        if any(later.is_answered and later.ended < operation.began for later in order[number:]):
            return False
        state, answer = Register().step(state, operation.request)
        if operation.is_answered and answer != operation.answer:
            return False
    return True


def test_random_histories_are_judged_as_by_a_naive_search() -> None:
    verdicts = []
    for seed in range(300):
        random = Random(seed)
        operations = []
        for _ in range(5):
            began = random.randrange(10)
            ended = began + random.randrange(1, 6)
            if random.random() < 0.5:
                operations.append(read(random.randrange(3), began, ended))
            else:
                error = TimeoutError() if random.random() < 0.3 else None
                operations.append(write(random.randrange(3), began, ended, error))
        verdicts.append(holds(*operations))
        assert verdicts[-1] == is_explained(operations), seed

    assert 30 < sum(verdicts) < 270


def test_parts_with_other_keys_are_checked_alone() -> None:
    operations = []
    for key in range(300):
        operations += [
            Operation("a", "r", ("write", key, 1), 0, 100, None),
            Operation("a", "r", ("read", key), 0, 100, key % 2),
        ]

    assert holds(*operations, key=lambda request: request[1])
    operations.append(Operation("a", "r", ("read", 7), 200, 201, 0))
    assert not holds(*operations, key=lambda request: request[1])
