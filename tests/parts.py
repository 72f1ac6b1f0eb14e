"""The tests in several programs at once: ``python -m tests.parts 4 TABLE -m "not counted"``.

Each program imports and runs the test files of its own part. A worker of pytest-xdist imports all
files, and sends six messages for each test: some 40 seconds of processor time in `make check`. The
programs cannot take tests from each other: a table tells how long a file takes, so that they end at
about the same time. ``python -m tests.parts record TABLE -m "not counted"`` writes it again.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

__all__ = ["Part", "status_of"]

ROOT: Final = Path(__file__).parent.parent
VARIABLE: Final = "ERGO_TEST_PART"
"""Names the part, the number of parts and the table, as in ``0/4/.ci/seconds-counted``."""
SHORT: Final = 1.0
"""Files that take fewer seconds are not in a table: they are many, and balance each other."""
NO_TESTS: Final = 5
"""The exit status of pytest if it has found no test."""
COUNTED: Final = Path(".coverage-parts").absolute()
"""Has a directory with the counted lines of each part: pytest-cov removes all data in the directory
of its own.
"""


class Part:
    """One of several parts of the test files. Of the files in the table, the longest are dealt
    first, each to the part with the least to do. The others are dealt in the order in which pytest
    comes across them: neighbours, which are alike, are in different parts. A table that is wrong
    costs balance only.
    """

    def __init__(
        self, number: int, parts: int, seconds: Mapping[Path, float] | None = None
    ) -> None:
        self._number = number
        self.parts = parts
        self._owners: dict[Path, int] = {}
        self._dealt = 0
        sums = [0.0] * parts
        for path, length in sorted((seconds or {}).items(), key=lambda row: (-row[1], row[0])):
            owner = self._owners[path] = sums.index(min(sums))
            sums[owner] += length

    @classmethod
    def of_this_program(cls) -> "Part":
        """The part that the environment names; all files if it names none. Programs of the tests do
        not inherit the name: some run tests of their own.
        """
        number, parts, *table = os.environ.pop(VARIABLE, "0/1").split("/", 2)
        return cls(int(number), int(parts), read_seconds(Path(*table)) if table else None)

    def owns(self, path: Path) -> bool:
        """Whether a file is in this part; exactly one of the parts says so."""
        if path not in self._owners:
            self._owners[path] = self._dealt % self.parts
            self._dealt += 1
        return self._owners[path] == self._number


def read_seconds(table: Path) -> dict[Path, float]:
    """How long the files in a table take."""
    rows = (line.split() for line in table.read_text(encoding="utf-8").splitlines())
    return {ROOT / path: float(length) for length, path in rows}


class Recorder:
    """A plugin of pytest that writes a table: the processor time of each file, with the programs
    that its tests start. Other work on the machine does not count.
    """

    def __init__(self, table: Path, clock: Callable[[], float]) -> None:
        self._table = table
        self._clock = clock
        self._seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Add the time of a test to its file."""
        path = item.path.relative_to(ROOT).as_posix()
        begin = self._clock()
        result = yield
        self._seconds[path] = self._seconds.get(path, 0.0) + self._clock() - begin
        return result

    def pytest_sessionfinish(self) -> None:
        """Write the table. The rows of other files stay, as long as the files exist."""
        before = read_seconds(self._table) if self._table.exists() else {}
        after = before | {ROOT / path: length for path, length in self._seconds.items()}
        rows = [
            f"{length:.0f} {path.relative_to(ROOT).as_posix()}\n"
            for path, length in sorted(after.items())
            if length >= SHORT and path.exists()
        ]
        self._table.write_text("".join(rows), encoding="utf-8")


def status_of(statuses: Sequence[int]) -> int:
    """The exit status of a run with these statuses of its parts. A part may have no tests."""
    failures = [status for status in statuses if status not in (0, NO_TESTS)]
    return max(failures, default=min(statuses))


def run(parts: int, table: str, command: Sequence[str]) -> int:
    """Run a command for each part of a table, print the output of each part at its end, and return
    the exit status of all.
    """
    # Parents of `tmp_path`: what a part makes for all parts is in the common parent.
    common = Path(tempfile.mkdtemp(prefix="tests-"))
    started: list[subprocess.Popen[bytes]] = []
    for number in range(parts):
        environment = {
            VARIABLE: f"{number}/{parts}/{table}",
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
    _, _parts, _table, *_options = sys.argv
    # Without a cache: the parts would overwrite each other's list of failures.
    _options = ["-p", "no:cacheprovider", *_options]
    if _parts == "record":
        sys.exit(
            pytest.main(_options, plugins=[Recorder(Path(_table), lambda: sum(os.times()[:4]))])
        )
    # By default the signal would end this program alone, and leave those that it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(run(int(_parts), _table, [sys.executable, "-m", "pytest", *_options]))
