"""The keeper, or an entity, is killed at each of its checkpoints: all effects happen once.

The order of tasks is seeded, and time is virtual, so the same number means the same checkpoint each
time. `make check` kills each process at its own checkpoints; `python -m benchmarks test-deep` kills
every process of the entities at every step of the program, in several orders.
"""

from collections.abc import Callable
from itertools import product

import pytest
import trio
import trio.testing

from ergo_py._core.processes.process import Process, processes_of
from ergo_py._core.verbs.node_access import kernel_of
from ergo_py.entities import Entities, Entity
from ergo_py.entities.activations.changes import Changes
from ergo_py.entities.activations.commands import Commands
from ergo_py.testing import seeded
from tests.support import THOROUGH

from .bank import Bank
from .test_faults import STEPS, check_bank

SEEDS = range(5) if THOROUGH else range(1)


class Killer(trio.abc.Instrument):
    """Kills the keeper or an entity after a number of steps of the program."""

    def __init__(self, bank: Bank, number: int, victim: int | None) -> None:
        self._bank = bank
        self._number = number
        self._victim = victim
        self.steps = 0
        """The steps that are counted: those of all tasks, or of the victims without a number of the
        victim.
        """
        self.most = 0
        """The most victims at a time: the keeper, and the entities that are awake."""
        self.killed = ""

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count the step, and kill."""
        victims = self._victims()
        self.most = max(self.most, len(victims))
        if self._victim is None:
            victims = [each for each in victims if _made_step(each, task)]
            if not victims:
                return
        self.steps += 1
        chosen = victims[self._victim or 0 : (self._victim or 0) + 1]
        if self.steps == self._number and chosen:
            self.killed = str(chosen[0])
            chosen[0].kill()

    def _victims(self) -> list[Process]:
        if self._bank.node is None:
            return []
        found = processes_of(kernel_of(self._bank.node).router).values()
        return [each for each in list(found) if isinstance(each.behaviour, Entities | Entity)]


def _made_step(process: Process, task: trio.lowlevel.Task) -> bool:
    is_keeper = isinstance(process.behaviour, Entities)
    return process.task is task or (is_keeper and task.name.startswith("Entities: "))


def _run(seed: int, number: int, victim: int | None = None) -> Killer:
    """Run the scenario with a kill after so many steps; 0 for no kill."""
    bank = Bank(max_awake=2, idle=1.0)
    killer = Killer(bank, number, victim)

    async def program() -> None:
        await bank.run(*STEPS)

    with seeded(seed):
        trio.run(program, clock=trio.testing.MockClock(autojump_threshold=0), instruments=[killer])
    check_bank(bank)
    return killer


@pytest.mark.parametrize("seed", SEEDS)
def test_each_effect_happens_once_with_a_kill_at_each_checkpoint(seed: int) -> None:
    steps = _run(seed, 0).steps
    kills = [_run(seed, number).killed for number in range(1, steps + 1)]

    assert steps > 0
    assert all(kills)
    if THOROUGH:
        whole = _run(seed, 0, 0)
        for number, victim in product(range(1, whole.steps + 1), range(whole.most)):
            _run(seed, number, victim)


def _break_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Commands, "answer", lambda *_args: False)


def _break_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Changes, "see", lambda *_args: None)


@pytest.mark.parametrize("break_rule", [_break_ids, _break_marks])
def test_the_kills_find_a_broken_rule(
    break_rule: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = _run(0, 0).steps
    break_rule(monkeypatch)
    for number in range(1, steps + 1):
        try:
            _run(0, number)
        except Exception:
            return
    raise AssertionError("no kill shows that the rule is broken")
