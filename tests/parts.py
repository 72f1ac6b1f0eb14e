"""The tests in several programs at once: ``python -m tests.parts 4 -m "not counted"``.

Each program imports and runs the test files of its own part. A worker of pytest-xdist imports all
files, and sends six messages for each test: some 40 seconds of processor time in `make check`. The
programs cannot take tests from each other, so that the last may end some seconds after the others.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["Part", "status_of"]

VARIABLE: Final = "ERGO_TEST_PART"
"""Names the part and the number of parts, as in ``0/4``."""
NO_TESTS: Final = 5
"""The exit status of pytest if it has found no test."""
COUNTED: Final = Path(".coverage-parts").absolute()
"""Has a directory with the counted lines of each part: pytest-cov removes all data in the directory
of its own.
"""


class Part:
    """One of several parts of the test files, in the order in which pytest comes across the files:
    neighbours, which are alike, are in different parts.
    """

    def __init__(self, number: int, parts: int) -> None:
        self._number = number
        self.parts = parts
        self._places: dict[Path, int] = {}

    @classmethod
    def of_this_program(cls) -> "Part":
        """The part that the environment names; all files if it names none. Programs of the tests do
        not inherit the name: some run tests of their own.
        """
        number, _, parts = os.environ.pop(VARIABLE, "0/1").partition("/")
        return cls(int(number), int(parts))

    def owns(self, path: Path) -> bool:
        """Whether a file is in this part; exactly one of the parts says so."""
        return self._places.setdefault(path, len(self._places)) % self.parts == self._number


def status_of(statuses: Sequence[int]) -> int:
    """The exit status of a run with these statuses of its parts. A part may have no tests."""
    failures = [status for status in statuses if status not in (0, NO_TESTS)]
    return max(failures, default=min(statuses))


def run(parts: int, command: Sequence[str]) -> int:
    """Run a command for each part, print the output of each part at its end, and return the exit
    status of all.
    """
    # Parents of `tmp_path`: what a part makes for all parts is in the common parent.
    common = Path(tempfile.mkdtemp(prefix="tests-"))
    started: list[subprocess.Popen[bytes]] = []
    for number in range(parts):
        environment = {
            VARIABLE: f"{number}/{parts}",
            "COVERAGE_FILE": str(COUNTED / str(number) / "data"),
        }
        with (common / f"{number}.log").open("wb") as log:
            started.append(
                subprocess.Popen(
                    [*command, f"--basetemp={common / str(number)}"],
                    env=os.environ | environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    sys.stdout.write(f"{parts} programs run the tests; each prints its output at its end\n")
    sys.stdout.flush()
    statuses: list[int] = []
    try:
        for number, program in enumerate(started):
            statuses.append(program.wait())
            output = (common / f"{number}.log").read_text(encoding="utf-8", errors="replace")
            sys.stdout.write(f"-- part {number + 1} of {parts}\n{output}")
            sys.stdout.flush()
    finally:
        for program in started:
            program.terminate()  # nothing happens to those that have ended
    if (status := status_of(statuses)) in (0, NO_TESTS):
        shutil.rmtree(common, ignore_errors=True)
    return status


if __name__ == "__main__":
    _, _parts, *_options = sys.argv
    # By default the signal would end this program alone, and leave those that it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # Without a cache: the parts would overwrite each other's list of failures.
    _command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *_options]
    sys.exit(run(int(_parts), _command))
