"""The short form of ``make chaos``, and that it would find the losses it looks for."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from itertools import islice, permutations
from pathlib import Path
from random import Random

import pytest

from benchmarks.chaos import __main__ as program
from benchmarks.chaos import fenced_writer, servers
from benchmarks.chaos.ordeals import ORDEALS
from benchmarks.chaos.parts import MAIN, PARTS
from benchmarks.chaos.programme import brief, endless, whole
from benchmarks.chaos.report import as_json, summary
from benchmarks.chaos.rig import Findings, Rig, suffer
from tests.support import THOROUGH

ROOT = Path(__file__).parent.parent


@pytest.mark.skipif(
    not THOROUGH, reason="starts a gateway many times: python -m benchmarks test-deep"
)
def test_no_reading_is_lost_beyond_the_documented_losses(tmp_path: Path) -> None:
    report = tmp_path / "chaos.json"

    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-m",
            "benchmarks.chaos",
            "--brief",
            "--seed",
            "3",
            "--json",
            str(report),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing was violated" in done.stdout
    scenarios = json.loads(report.read_text(encoding="utf-8"))["scenarios"]
    assert [scenario["name"] for scenario in scenarios] == [
        scenario.name for scenario in brief(Random(3))
    ]
    assert all(scenario["struck"] for scenario in scenarios)


def test_missing_changed_and_foreign_readings_are_violations(tmp_path: Path) -> None:
    async def tamper(rig: Rig) -> None:
        await rig.progress()
        with closing(sqlite3.connect(rig.database, timeout=60)) as database, database:
            database.execute("delete from reading where source = 0 and number = 3")
            database.execute("update reading set value = value + 1 where source = 1 and number = 3")
            database.execute("insert into reading values (77, 0, 'temperature', 20.0)")

    findings = suffer("tampering", tamper, tmp_path, Random(1))

    assert sorted(findings.violations) == [
        "1 acknowledged readings of device 0 are not there",
        "readings of nobody: [77]",
        "readings of source 1 that were never sent",
    ]


def test_an_ordeal_that_fails_is_a_violation(tmp_path: Path) -> None:
    async def fail(rig: Rig) -> None:
        raise RuntimeError("on purpose")

    findings = suffer("failing", fail, tmp_path, Random(1))

    assert len(findings.violations) == 1
    assert not findings.is_good


def test_every_part_is_struck_alone_in_pairs_and_the_main_parts_in_every_order() -> None:
    names = [scenario.name for scenario in whole()]

    orders = [*permutations(PARTS, 1), *permutations(PARTS, 2), *permutations(MAIN)]

    assert names == [*ORDEALS, *(", ".join(parts) for parts in orders)]


def test_the_seed_decides_the_scenarios() -> None:
    def chosen(seed: int) -> list[str]:
        random = Random(seed)
        return [scenario.name for scenario in (*brief(random), *islice(endless(random), 10))]

    assert chosen(5) == chosen(5)
    assert chosen(5) != chosen(6)


@pytest.mark.parametrize("violations, status", [([], 0), (["something is lost"], 1)])
def test_the_exit_status_shows_whether_a_promise_was_violated(
    violations: list[str],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(program, "suffer", lambda name, *_: Findings(name, violations=violations))

    left_with = program.main(["--only", "a clock that jumps"])

    assert left_with == status
    assert ("VIOLATED: something is lost" in capsys.readouterr().out) == bool(violations)


def test_the_report_shows_strikes_losses_and_violations() -> None:
    found = [
        Findings(
            "one", struck=["store", "(udp)"], tcp_sent=10, udp_sent=5, udp_lost=2, udp_allowed=3
        ),
        Findings("two", violations=["something is lost"], notes={"disk": "there is none"}),
    ]

    text, document = summary(7, found), json.loads(as_json(7, found))

    assert "seed 7: 2 scenarios, 1 strikes (1 more found nobody)" in text
    assert "5 datagrams sent, 2 lost, of which the documentation gives up 3 at most" in text
    assert "two: there is none" in text
    assert text.splitlines()[-2] == "1 scenarios violated what is promised"
    assert document["good"] is False
    assert [scenario["name"] for scenario in document["scenarios"]] == ["one", "two"]


@pytest.mark.skipif(
    not THOROUGH, reason="three servers take two minutes: python -m benchmarks test-deep"
)
def test_singletons_on_three_servers_write_into_a_fenced_table() -> None:
    assert servers.main([]) == 0


def _table(path: Path, starts: list[tuple[int, str, int]], writes: list[int]) -> Path:
    fenced_writer.make_table(path)
    owners = {number: (number, node, start) for number, node, start in starts}
    with closing(sqlite3.connect(path)) as database, database:
        database.executemany("insert into starts values (?, ?, ?)", starts)
        database.executemany("insert into writes values (?, ?, ?)", [owners[n] for n in writes])
    return path


@pytest.mark.parametrize(
    "starts, writes, text",
    [
        ([(1, "a", 1), (2, "b", 1)], [1, 1, 2, 2], ""),
        ([(1, "a", 1), (2, "a", 1), (3, "a", 2)], [1, 3], ""),
        ([(1, "a", 1), (1, "b", 1)], [1], "the number 1 belongs to ('a', 1) and to ['b', 1]"),
        ([(1, "a", 1), (1, "a", 2)], [], "belongs to ('a', 1) and to ['a', 2]"),
        ([(1, "a", 1), (2, "b", 1)], [2, 1], "a write with a smaller number"),
        ([(0, "a", 1)], [], "does not fit into 64 bits"),
    ],
)
def test_the_checker_of_the_fenced_table_finds_broken_promises(
    tmp_path: Path, starts: list[tuple[int, str, int]], writes: list[int], text: str
) -> None:
    path = _table(tmp_path / "table.db", starts, writes)

    found = fenced_writer.violations(path)

    assert bool(found) == bool(text)
    assert text in " ".join(found)
    assert fenced_writer.accepted(path) == len(writes)
    assert fenced_writer.refused(path) == 0
