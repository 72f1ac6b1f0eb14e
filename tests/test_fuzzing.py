"""Any input from outside is understood or refused: the findings of fuzzing are tried again, and a
few new inputs are made up.
"""

import runpy
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings

from benchmarks import fuzzing
from benchmarks.budgets import Budget, OverBudgetError, Spent
from benchmarks.fuzzing import CORPUS, MISSING, TARGETS, Tally, corpus_of, made_up
from benchmarks.targets.network import grown
from benchmarks.targets.target import Target


@pytest.mark.parametrize("target", TARGETS)
def test_inputs_of_the_corpus_do_not_fail(target: str) -> None:
    for path in corpus_of(target):
        try:
            spent = TARGETS[target].attempt(path.read_bytes())
        except BaseException as error:
            error.add_note(f"the input is {path}")
            raise

        assert spent.outcome, path


@pytest.mark.parametrize("target", TARGETS)
def test_generated_inputs_do_not_fail(target: str) -> None:
    outcomes: set[str] = set()

    @settings(max_examples=30)
    @given(made_up(target, longest=1 << 12))
    def attempt(data: bytes) -> None:
        outcomes.add(TARGETS[target].attempt(data).outcome)

    attempt()

    assert outcomes


def test_every_target_has_a_corpus() -> None:
    kept = {target for target in TARGETS if corpus_of(target)}

    assert kept == set(TARGETS)
    assert all(path.stat().st_size <= 64 * 1024 for path in CORPUS.rglob("*.bin"))


@pytest.mark.skipif(bool(MISSING), reason=f"the target of broker messages needs {MISSING}")
def test_only_the_target_of_broker_messages_needs_the_packages_of_brokers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pika", None)
    monkeypatch.delitem(sys.modules, "benchmarks.targets.brokers")
    without = runpy.run_path(fuzzing.__file__)

    assert without["MISSING"] == "pika"
    assert set(TARGETS) - set(without["TARGETS"]) == {"broker message"}


def test_failures_are_printed_and_new_inputs_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fragile(data: bytes) -> str:
        assert b"\x00" not in data, "it broke"
        return "short" if len(data) < 3 else "long"

    monkeypatch.setattr(fuzzing, "CORPUS", tmp_path / "a" / "corpus")
    monkeypatch.setattr(fuzzing, "TARGETS", {"fragile": Target(fragile)})

    status = fuzzing.main(["--minutes", "5"])  # ends with the first failure

    assert status == 1
    assert "it broke" in capsys.readouterr().out
    assert len(list((tmp_path / "a" / "corpus" / "fragile").glob("*.bin"))) in (1, 2)


def test_the_minutes_are_for_all_targets_or_for_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds: list[float] = []

    def fuzz(_target: str, given: float) -> Tally:
        seconds.append(given)
        return Tally()

    monkeypatch.setattr(fuzzing, "fuzz", fuzz)

    assert fuzzing.main(["--minutes", "4", "--only", "observer"]) == 0
    assert fuzzing.main(["--minutes", "4", "--each", "10", "--only", "observer"]) == 0
    with pytest.raises(SystemExit):
        fuzzing.main(["--only", "nothing"])

    assert seconds == [120.0, 120.0, 600.0, 600.0]
    assert "no target has 'nothing' in its name; there are framing raw" in capsys.readouterr().err


def test_every_target_runs_within_a_budget_of_the_input_that_a_seed_stands_for() -> None:
    budget = Budget(0.0, 1.0, clock=iter(range(0, 99, 3)).__next__)

    assert Target(lambda _: "read", None, lambda seed: seed * 3, budget).attempt(b"x").size == 3
    with pytest.raises(OverBudgetError, match=r"1 bytes took 3.000 s; allowed are 1.000 s"):
        Target(lambda _: "read", budget=budget).attempt(b"x")


def test_the_cost_for_a_byte_is_told_of_inputs_that_are_not_small() -> None:
    tally = Tally()

    tally.add(Spent("read", 1000, 1.0, 1 << 20))
    tally.add(Spent("read", 20_000, 1.0, 40_000))

    assert str(tally) == "2 tried, 0 new outcomes, at most 50.00 µs and 2 bytes for a byte"


@pytest.mark.parametrize(
    "whole, at, long",
    [
        (b"a: b\r\n", 3, b"a: " + b"b\r" * 509 + b"b\r\n"),
        (b"x", 50, b"x" * 1024),
        (b"", 0, b""),
        (b"x" * 2000, 0, b"x" * 2000),
    ],
)
def test_a_long_input_repeats_a_part_of_a_short_input(whole: bytes, at: int, long: bytes) -> None:
    assert fuzzing.stretched(whole, at, 2, 1024) == long


def test_an_input_that_costs_more_time_than_its_size_allows_fails() -> None:
    now = [0.0]
    budget = Budget(1.0, 0.1, clock=lambda: now[0])

    def slow(data: bytes) -> str:
        now[0] += len(data) ** 2 / 10
        return "read"

    assert budget.spend(slow, bytes(3)).outcome == "read"
    with pytest.raises(OverBudgetError, match=r"10 bytes took 10.000 s; allowed are 2.000 s"):
        budget.spend(slow, bytes(10))


def test_a_single_slow_try_is_no_failure() -> None:
    steps = iter([0.0, 9.0, 9.0, 9.5])

    spent = Budget(1.0, 0.0, clock=lambda: next(steps)).spend(lambda _: "read", b"x")

    assert spent.outcome == "read"
    assert spent.seconds == 0.5


def test_an_input_that_takes_more_memory_than_its_size_allows_fails() -> None:
    budget = Budget(memory=1 << 16, memory_per_byte=2)

    assert budget.spend(lambda data: str(len(bytes(len(data)))), bytes(1000)).outcome == "1000"
    with pytest.raises(OverBudgetError, match="10 bytes took"):
        budget.spend(lambda _: str(len(bytes(1 << 20))), bytes(10))


def test_a_seed_that_blocked_a_node_grows_to_a_message_that_is_refused() -> None:
    """Thousands of UUIDs with the same hash; a decoder without limits takes seconds."""
    seed = bytes((2 + 8, 13))

    assert len(grown(seed)) > 100_000
    assert TARGETS["network value"].attempt(seed).outcome.startswith("refused: a set with")
