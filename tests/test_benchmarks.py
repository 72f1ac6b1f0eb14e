"""The benchmarks, with hardly any work: that each still runs and gives the figures of its lines. No
time is judged.
"""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("pykka", reason="needs the package pykka")
pytest.importorskip("janus", reason="needs the package janus")

from benchmarks import harness
from benchmarks.__main__ import main
from benchmarks.before import above, least, rows
from benchmarks.harness import (
    ROUNDS,
    Case,
    Figures,
    Goal,
    Line,
    discover,
    evaluate,
    measure,
    spread,
)
from benchmarks.report import table
from tests.support import THOROUGH

CASES = discover()
LIKE_ANOTHER = {
    *("crowd of 100,000", "redis, pipeline of 16", "TCP echo, 64 KiB"),
    *("entities, 100 clients", "entities, 1,000 clients"),
}
"""Cases that differ from another case only in how much they do, which here is next to nothing."""
SOME = {"tell, 1 to 1", "call, 1 pair", "restart", "spawn and stop"}
"""All others are run by `python -m benchmarks test-deep tests/test_benchmarks.py`."""
RUN = [each for each in CASES if each.name not in LIKE_ANOTHER and (THOROUGH or each.name in SOME)]


@pytest.fixture(autouse=True)
def garbage_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # Between two measurements all of it is collected, for the sake of the times.
    monkeypatch.setattr(harness, "gc", SimpleNamespace(collect=int, freeze=int, unfreeze=int))


@pytest.mark.parametrize("case", RUN, ids=lambda case: case.name)
@pytest.mark.no_cover
def test_a_case_returns_all_figures_of_its_lines_and_goals(case: Case) -> None:
    measured = measure([case], 1, lambda case: case.least, lambda _: None, warm_up=False)

    rows = evaluate(case, measured[case.name])

    assert [row.line for row in rows] == list(case.lines)
    assert all(math.isfinite(row.value) for row in rows)
    assert all(goal.of in case.variants for line in case.lines for goal in line.goals if goal.of)
    assert case.reference in case.variants


def test_no_two_cases_have_the_same_name() -> None:
    names = [case.name for case in CASES]

    distinct = set(names)

    assert len(distinct) == len(names)


def made_up(ours: list[float], reference: list[float]) -> tuple[Case, list[dict[str, Figures]]]:
    """A case with rounds that gave these figures."""
    case = Case(
        name="made up",
        about="nothing",
        unit="µs",
        size=1,
        least=1,
        variants={"ergo": lambda _: {}, "trio": lambda _: {}},
        lines=[
            Line(
                "line",
                "ergo",
                goals=(
                    Goal("near", 0.5, "trio"),
                    Goal("far", 0.1, "trio", is_dream=True),
                    Goal("cheap", 9.0),
                ),
            )
        ],
    )
    rounds: list[dict[str, Figures]] = [
        {"ergo": {"cpu": x}, "trio": {"cpu": y}} for x, y in zip(ours, reference, strict=True)
    ]
    return case, rounds


def test_a_ratio_is_formed_inside_each_round_before_the_median_is_taken() -> None:
    case, rounds = made_up([1.0, 10.0, 4.0], [4.0, 40.0, 8.0])

    (row,) = evaluate(case, rounds)

    assert row.value == 4.0
    assert row.ratios == {"trio": 0.25}
    assert [(goal.name, reached) for goal, _, reached in row.verdicts] == [
        ("near", True),
        ("far", False),
        ("cheap", True),
    ]


def test_a_threaded_reference_is_compared_by_wall_time() -> None:
    variants = {
        "ergo": lambda _: {"cpu": 1.0, "wall": 2.0},
        "pykka": lambda _: {"cpu": 3.0, "wall": 8.0},
    }
    case = Case("walls", "", "µs", 1, 1, variants, [Line("line", "ergo")], reference="pykka")

    measured = measure([case], 1, lambda _: 1, lambda _: None)
    (row,) = evaluate(case, measured["walls"])

    assert row.value == 1.0
    assert row.ratios == {"pykka": 0.25}


@pytest.mark.parametrize("asked,takes_part", [(1, 1), (ROUNDS, 2), (3 * ROUNDS, 6)])
def test_a_case_that_is_slow_takes_part_in_fewer_rounds(asked: int, takes_part: int) -> None:
    sizes: list[int] = []

    def slow(size: int) -> dict[str, float]:
        sizes.append(size)
        return {"cpu": 1.0}

    case = Case("slow", "", "µs", 7, 1, {"trio": slow}, [], rounds=2)

    measure([case], asked, lambda case: case.size, lambda _: None)

    assert len(sizes) == takes_part


def test_the_spread_is_the_interquartile_range_over_the_median() -> None:
    assert spread([10.0, 10.0, 10.0]) == 0.0
    assert spread([5.0]) == 0.0
    assert spread([8.0, 9.0, 10.0, 11.0, 12.0]) == pytest.approx(0.2)


def test_the_table_shows_whether_each_goal_is_met_and_the_noise() -> None:
    case, rounds = made_up([1.0, 1.0, 1.0, 1.0, 1.0], [8.0, 9.0, 10.0, 11.0, 12.0])

    text = table([case], {"made up": rounds})

    assert "near <= 0.5 trio met" in text
    assert "dream: far <= 0.1 trio met" in text
    assert "goals met: 2 of 2" in text
    assert "dreams met: 1 of 1" in text
    assert "interquartile range 20%" in text


def test_the_command_runs_the_chosen_cases_and_keeps_the_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["--only", "fairness, empty", "--rounds", "1", "--results", str(tmp_path)])

    (path,) = tmp_path.glob("*.json")
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert status == 0
    assert list(kept["cases"]) == ["fairness, empty handler"]
    assert "fairness, empty handler" in capsys.readouterr().out


def test_the_command_reports_an_unknown_case(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--only", "no such thing"])

    assert status == 1
    assert "no case has such a name" in capsys.readouterr().out


def test_costs_are_compared_with_those_of_an_earlier_commit_by_their_least() -> None:
    before = least([{"ergo, cpu": 2.0, "gone, cpu": 1.0}, {"ergo, cpu": 3.0}])
    now = least([{"ergo, cpu": 2.5, "new, cpu": 1.0}, {"ergo, cpu": 2.2}])

    found = rows(before, now)

    assert found == [("ergo, cpu", 2.0, 2.2, 1.1)]
    assert above(found, 1.05) == ["ergo, cpu"]
    assert above(found, 1.2) == []
