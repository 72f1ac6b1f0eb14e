"""Where the time of the hot paths goes: how a profiler's samples become a page. The profiler itself
need not be installed.
"""

import json
from pathlib import Path

import pytest

from benchmarks.harness import discover
from benchmarks.pages import profiles
from benchmarks.profiling import PATHS, attribute, main, place

KEPT = Path(__file__).parents[1] / "docs" / "performance" / "profiles.json"


@pytest.mark.parametrize(
    "frame, where",
    [
        (
            "Behaviour.send (ergo_py/_core/verbs/behaviour.py:124)",
            "Behaviour.send (_core/verbs/behaviour.py)",
        ),
        (
            "serve (/somewhere/ergo_py/ergo_py/_core/processes/message_loop.py:80)",
            "serve (_core/processes/message_loop.py)",
        ),
        ("run (ergo_py/program.py:3)", "run (program.py)"),
        ("Sink.handle_message (benchmarks/workloads/tell.py:29)", "the benchmark"),
        ("unrolled_run (trio/_core/_run.py:2738)", "trio"),
        ("Event.wait (threading.py:607)", "Python's library"),
        ("<lambda> (<string>:1)", "Python's library"),
    ],
)
def test_a_function_of_ours_goes_by_its_name_and_others_by_their_package(
    frame: str, where: str
) -> None:
    assert place(frame) == where


def test_own_time_is_that_of_the_last_frame_without_imports() -> None:
    samples = "\n".join(
        [
            "main (x.py:1);serve (ergo_py/_core/processes/message_loop.py:80);"
            "Behaviour.send (ergo_py/_core/verbs/behaviour.py:124) 6",
            "main (x.py:1);serve (ergo_py/_core/processes/message_loop.py:84) 2",
            "main (x.py:1);serve (ergo_py/_core/processes/message_loop.py:90) 2",
            "main (x.py:1);_find_and_load (<frozen importlib._bootstrap>:1176);load "
            "(ergo_py/program.py:1) 90",
            " 5",
        ]
    )

    shares = attribute(samples)

    assert shares == {
        "Behaviour.send (_core/verbs/behaviour.py)": 0.6,
        "serve (_core/processes/message_loop.py)": 0.4,
    }


def test_the_profiled_paths_are_existing_variants_with_their_figures() -> None:
    pytest.importorskip("pykka", reason="needs the package pykka")
    pytest.importorskip("janus", reason="needs the package janus")
    cases = {case.name: case for case in discover()}

    for path in PATHS:
        assert path.variant in cases[path.case].variants
        assert path.figure in {
            line.figure for line in cases[path.case].lines if line.subject == path.variant
        }


def test_the_page_names_functions_with_a_share_and_sums_up_the_rest() -> None:
    about = {
        "at": "2026-01-01T00",
        "machine": "m",
        "processors": 2,
        "load": [0.1],
        "python": "3.11",
        "versions": {},
    }
    before = {
        "cost": 2.0,
        "shares": {"slow (a.py)": 0.5, "serve (s.py)": 0.49, "rare (b.py)": 0.01},
    }
    now = {"cost": 1.0, "shares": {"serve (s.py)": 0.98, "rare (b.py)": 0.02}}

    page = profiles({**about, "before": "x", "cases": {"tell": {"before": before, "now": now}}})[
        "profiles.part"
    ]

    table = page[page.index("| tell") :].splitlines()
    assert table == [
        "| tell, µs | before | now |",
        "|---|---|---|",
        "| **all of it** | 2 | 1 |",
        "| `serve` in s.py | 0.98 | 0.98 |",
        "| `slow` in a.py | 1 |  |",
        "| all others | 0.02 | 0.02 |",
    ]


def test_kept_profiles_are_shown_again_without_profiling(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--from", str(KEPT), "--page", str(tmp_path)])

    assert (tmp_path / "profiles.part").read_text(encoding="utf-8") == KEPT.with_suffix(
        ".part"
    ).read_text(encoding="utf-8")
    printed = capsys.readouterr().out
    assert all(title in printed for title in json.loads(KEPT.read_text(encoding="utf-8"))["cases"])
