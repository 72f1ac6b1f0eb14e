"""The programs of a test run share its files, and none of their failures is lost."""

import signal
import subprocess
import sys
import tempfile
from itertools import chain
from pathlib import Path

import pytest

from tests.parts import ROOT, SHORT, VARIABLE, Part, Recorder, read_seconds, run, status_of

FILES = [Path(f"test_{number}.py") for number in range(10)]


@pytest.mark.parametrize("parts", [1, 3])
def test_each_file_is_in_a_single_part(parts: int) -> None:
    owners = [Part(number, parts) for number in range(parts)]

    # Pytest comes across a file repeatedly.
    found = [[path for path in FILES + FILES if owner.owns(path)] for owner in owners]

    assert sorted(chain.from_iterable(found)) == sorted(FILES + FILES)
    assert [len(set(mine)) for mine in found] == ([10] if parts == 1 else [4, 3, 3])


def test_long_files_are_dealt_evenly_and_each_other_file_is_in_a_part() -> None:
    seconds = dict(zip(FILES, (2, 30, 1, 10, 9, 8, 7), strict=False))
    owners = [Part(number, 2, seconds) for number in range(2)]

    found = [[path for path in FILES if owner.owns(path)] for owner in owners]

    assert [sum(seconds.get(path, 0) for path in mine) for mine in found] == [33, 34]
    assert sorted(chain.from_iterable(found)) == FILES


def test_a_record_has_the_files_that_take_long(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    table = tmp_path / "seconds"
    table.write_text("7 tests/conftest.py\n9 tests/gone.py\n", encoding="utf-8")
    times = iter([0.0, SHORT / 2, 5.0, 5.0 + SHORT])
    recorder = Recorder(table, lambda: next(times))

    for _ in range(2):
        test = recorder.pytest_runtest_protocol(request.node)
        next(test)
        with pytest.raises(StopIteration):
            test.send(None)
    recorder.pytest_sessionfinish()

    conftest = ROOT / "tests" / "conftest.py"
    assert read_seconds(table) == {conftest: 7, Path(__file__): round(SHORT * 1.5)}


def test_a_program_takes_its_part_from_the_environment_and_does_not_hand_it_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "seconds"
    table.write_text("3 tests/long.py\n1 tests/short.py\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, f"1/2/{table.name}")

    first, then = Part.of_this_program(), Part.of_this_program()

    assert [first.owns(ROOT / "tests" / name) for name in ("long.py", "short.py")] == [False, True]
    assert [first.owns(path) for path in FILES[:3]] == [False, True, False]
    assert all(then.owns(path) for path in FILES)


@pytest.mark.parametrize(
    "statuses, status", [([0, 0], 0), ([0, 5], 0), ([5, 5], 5), ([0, 1, 5], 1), ([2, -6, 0], 2)]
)
def test_a_run_fails_with_any_of_its_parts(statuses: list[int], status: int) -> None:
    assert status_of(statuses) == status


def test_a_run_prints_the_output_of_all_parts_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = f"import os; part = os.environ[{VARIABLE!r}]; print(part); raise SystemExit(part[0])"

    assert run(2, "table", [sys.executable, "-S", "-c", program]) == 1

    printed = capfd.readouterr().out
    announced, _, rest = printed.partition("\n")
    assert announced == "2 programs run the tests; each prints its output at its end"
    assert rest == "-- part 1 of 2\n0/2/table\n0\n-- part 2 of 2\n1/2/table\n1\n"


def test_a_run_that_is_ended_leaves_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    started = list[subprocess.Popen[bytes]]()
    wait = subprocess.Popen[bytes].wait

    def interrupted(program: subprocess.Popen[bytes]) -> int:
        started.append(program)
        if len(started) == 2:
            raise KeyboardInterrupt
        return 0

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)

    with pytest.raises(KeyboardInterrupt):
        run(2, "table", [sys.executable, "-S", "-c", "import time; time.sleep(600)"])

    assert [wait(program, 60) for program in started] == [-signal.SIGTERM] * 2
