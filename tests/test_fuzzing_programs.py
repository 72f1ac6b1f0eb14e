"""Random small programs have the same history with the C extension and in pure Python."""

import pytest

import ergo_py
import ergo_py.info
from benchmarks import fuzzing_programs
from benchmarks.fuzzing_programs import History, history, main


def test_a_program_with_a_task_order_has_a_single_history() -> None:
    first = history(3, 1)

    assert history(3, 1) == first
    assert any(history(3, order) != first for order in range(2, 6))
    assert len(first) > 20


@pytest.mark.skipif(not ergo_py.info.is_fast, reason="the run with the C extension compares them")
def test_both_builds_have_the_same_histories() -> None:
    assert list(fuzzing_programs.differences(range(4), 2)) == []


def test_the_first_difference_of_a_program_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_build(pure: bool, seeds: range, orders: int) -> dict[str, History]:
        return {
            "seed 0, order 0": ["same", "pure" if pure else "C"],
            "seed 0, order 1": ["same", "longer"] if pure else ["same"],
            "seed 1, order 0": ["same"],
        }

    monkeypatch.setattr(fuzzing_programs, "in_build", in_build)

    assert list(fuzzing_programs.differences(range(2), 2)) == [
        "seed 0, order 0, line 1: ['C'] in C, ['pure'] in pure Python",
        "seed 0, order 1, line 1: [] in C, ['longer'] in pure Python",
    ]
    assert main(["--count", "2"]) == 1
