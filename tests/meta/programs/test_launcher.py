"""The script between the fork and the program, run by itself."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from ergo_py.meta.programs import launcher as launcher_module
from tests.support import needs_proc

NOTHING: dict[str, Any] = {
    "env": [],
    "terminal": False,
    "limits": [],
    "uid": None,
    "gid": None,
    "groups": None,
}


def launched(path: str, *argv: str, **orders: Any) -> tuple[int, str, str]:
    """Its status, its output, and its report."""
    ours, theirs = os.pipe()
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            launcher_module.__file__,
            str(theirs),
            path,
            json.dumps({**NOTHING, **orders}),
            *argv,
        ],
        pass_fds=[theirs],
        capture_output=True,
        text=True,
        env={"A": "1", "B": "2"},
        timeout=200,
        check=False,
    )
    os.close(theirs)
    with open(ours, encoding="utf-8") as report:
        return done.returncode, done.stdout, report.read()


def test_the_launcher_runs_the_program_with_only_the_given_environment() -> None:
    assert launched("/usr/bin/env", "env", env=["B"]) == (0, "B=2\n", "")


@needs_proc
def test_the_program_does_not_ignore_the_signals_that_python_ignores() -> None:
    status, printed, _ = launched("/bin/sh", "sh", "-c", "grep SigIgn /proc/self/status")

    ignored = int(printed.split()[1], 16)
    assert status == 0
    assert not [
        number for number in (signal.SIGPIPE, signal.SIGXFSZ) if ignored >> (number - 1) & 1
    ]


def test_the_launcher_reports_errors_with_their_numbers(tmp_path: Path) -> None:
    missing = launched(str(tmp_path / "missing"), "missing")
    limits = launched("/bin/true", "true", limits=[(7, 10, 5)])

    assert (missing[0], json.loads(missing[2])) == (127, [2, "No such file or directory"])
    assert limits[0] == 127
    assert json.loads(limits[2])[0] is None
