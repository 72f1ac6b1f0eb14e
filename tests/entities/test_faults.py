"""Each write of a scenario may fail: before it, after it, or as the end of the program."""

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from ergo_py import Node, TargetDownError, ask
from ergo_py.entities import EntityStoreError
from ergo_py.entities.activations.commands import Commands
from ergo_py.entities.activations.held_output import HeldOutput
from ergo_py.entities.record import Record
from ergo_py.entities.stores.store import Write

from .bank import Account, Bank, Credit, Life, Pay, open_bank, records, run_virtual

FAULTS = ("fails before", "fails after", "stops before", "stops after")


async def _deposit(node: Node) -> Any:
    return await node.entity(Account, "ada").call(ask(Account.deposit, 100), once="deposit")


async def _pay_bob(node: Node) -> Any:
    return await node.entity(Account, "ada").call(Pay("bob", 30), once="to bob")


async def _pay_eve(node: Node) -> Any:
    return await node.entity(Account, "ada").call(Pay("eve", 5), once="to eve")


async def _pay_on(node: Node) -> Any:
    return await node.entity(Account, "bob").call(Pay("eve", 0), once="nothing to eve")


async def _earn(node: Node) -> Any:
    return await node.entity(Account, "eve").call(ask(Account.earn_later, 2.0), once="earn")


async def _post(node: Node) -> Any:
    return await node.entity(Account, "bob").post(Credit(7), once="post")


__all__ = ["STEPS", "check_bank"]

STEPS = (_deposit, _pay_bob, _pay_eve, _pay_on, _earn, _post)


def _run(number: int, fault: str) -> Bank:
    bank = Bank(max_awake=2, idle=1.0)

    async def before(commit: int, _writes: Sequence[Write]) -> None:
        if commit == number and fault == "stops before":
            bank.life.stop()
        if commit == number and fault in ("fails before", "stops before"):
            raise EntityStoreError("a fault before the write")

    async def after(commit: int, _writes: Sequence[Write]) -> None:
        if commit == number and fault == "stops after":
            bank.life.stop()
        if commit == number and fault in ("fails after", "stops after"):
            raise EntityStoreError("a fault after the write")

    async def program() -> None:
        bank.life.before_commit, bank.life.after_commit = before, after
        answers = await bank.run(*STEPS)
        assert answers == [100, 70, 65, answers[3], None, None]

    run_virtual(program)
    return bank


def check_bank(bank: Bank) -> None:
    """Check that each step of the scenario has taken effect once, and that no message is owed."""
    found = {key: record.state for key, record in records(bank.life).items()}
    amounts = {
        key: Account.__state_type__.load(state) for key, state in found.items() if state is not None
    }
    assert {key: state.amount for key, state in amounts.items()} == {
        "ada": 65,
        "bob": 37,
        "eve": 6,
    }
    assert sorted(amounts["eve"].entries) == ["0 from bob", "5 from ada", "interest"]
    assert sorted(amounts["bob"].entries) == ["30 from ada", "7 from bob"]
    assert not any(record.owed for record in records(bank.life).values())


def _writes() -> int:
    bank = _run(0, "")
    check_bank(bank)
    assert bank.refused == 0
    return bank.life.commits


def test_the_scenario_without_a_fault() -> None:
    # Each step returns after its own commit; how many other commits share a batch depends on the
    # order of tasks.
    assert _writes() >= len(STEPS)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_effect_happens_once_with_a_fault_at_every_write(fault: str) -> None:
    for number in range(1, _writes() + 1):
        check_bank(_run(number, fault))


def test_each_effect_happens_once_with_a_fault_at_every_third_write() -> None:
    for first in range(3):
        bank = Bank(max_awake=2, idle=1.0)

        async def fail(commit: int, _writes: Sequence[Write], first: int = first) -> None:
            if commit % 3 == first:
                raise EntityStoreError("a fault after the write")

        async def program(bank: Bank = bank, fail: Any = fail) -> None:
            bank.life.after_commit = fail
            await bank.run(*STEPS)

        run_virtual(program)
        check_bank(bank)


def _break_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeldOutput, "is_stored", lambda _self: True)


def _break_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Commands, "answer", lambda *_args: False)


def _break_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(self: Record) -> bytes | None:
        for origin in list(self.seen):
            self.forget_seen(origin)
        return encode(self)

    encode = Record.encode
    monkeypatch.setattr(Record, "encode", forgets)


@pytest.mark.parametrize(
    "break_rule, fault",
    [
        (_break_replies, "stops before"),
        (_break_ids, "fails after"),
        (_break_numbers, "stops after"),
    ],
)
def test_the_check_finds_a_broken_rule(
    break_rule: Any, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = _writes()
    break_rule(monkeypatch)
    # Several times: the order of tasks decides which write has a number.
    for number in [*range(1, writes + 1)] * 5:
        try:
            check_bank(_run(number, fault))
        except Exception:
            return
    raise AssertionError("no fault shows that the rule is broken")


def test_work_of_a_write_that_failed_after_it_is_done_without_a_further_message() -> None:
    async def program() -> None:
        life = Life()

        async def fail(commit: int, _writes: Sequence[Write]) -> None:
            if commit == 1:
                raise EntityStoreError("a fault after the write")

        life.after_commit = fail
        async with open_bank(life) as node:
            with pytest.raises(TargetDownError):
                await node.entity(Account, "bob").post(Credit(7))
            # Less than the pause after which the keeper asks the store: it wakes the entity itself.
            await trio.sleep(5)
            assert not any(record.owed for record in records(life).values())
            assert (await node.entity(Account, "bob").call(ask(Account.look)))[0] == 7

    run_virtual(program)
