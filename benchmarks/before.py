"""``python -m benchmarks before COMMIT``: the costs of all work of ours, beside those of an earlier
commit, in turns.

Each commit has its own workloads, in programs of their own: only work that both have is compared. A
machine makes work slower and never faster, so the least cost of each counts. Rows above the limit
are measured again, with more turns, before they are told.
"""

import argparse
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path

from .progress import progress

__all__ = ["Costs", "above", "as_it_was", "least", "rows"]

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 1.03
"""Two runs of the same commit differ by this much on a quiet machine."""
_AGAIN = 3
"""How many times the turns are measured again of rows above the limit."""

Costs = Mapping[str, float]
"""By the names of a variant and its figure."""

# It runs in the checkout of either commit, with what the harness of both has.
_WORK = """
import gc, json, sys
from benchmarks.harness import discover
name = sys.argv[1]
if not name:
    print(json.dumps([case.name for case in discover()]))
    sys.exit()
case = next(case for case in discover([name]) if case.name == name)
lines = [line for line in case.lines if line.subject.startswith("ergo")] or case.lines[:1]
costs = {}
for subject in dict.fromkeys(line.subject for line in lines):
    if case.rounds is None:
        case.variants[subject](case.least)
    gc.collect()
    gc.freeze()
    taken = case.variants[subject](case.size)
    gc.unfreeze()
    for line in lines:
        if line.subject == subject and line.figure in taken:
            costs[f"{subject}, {line.figure}"] = taken[line.figure]
print(json.dumps(costs))
"""


@contextmanager
def as_it_was(commit: str, *paths: str) -> Iterator[Path]:
    """The files of an earlier commit, in a directory that is removed afterwards."""
    kept = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit, *paths], check=True, capture_output=True
    ).stdout
    with (
        tempfile.TemporaryDirectory() as directory,
        tarfile.open(fileobj=io.BytesIO(kept)) as archive,
    ):
        archive.extractall(directory, filter="data")
        yield Path(directory)


def least(turns: Iterable[Costs]) -> dict[str, float]:
    """The least of each cost."""
    found: dict[str, float] = {}
    for costs in turns:
        for name, cost in costs.items():
            found[name] = min(cost, found.get(name, inf))
    return found


def rows(before: Costs, now: Costs) -> list[tuple[str, float, float, float]]:
    """Name, cost before, cost now and ratio of all work that both have."""
    return [
        (name, before[name], now[name], now[name] / before[name])
        for name in before
        if before[name] > 0 and name in now
    ]


def above(found: Iterable[tuple[str, float, float, float]], limit: float = LIMIT) -> list[str]:
    """The names of the rows above the limit."""
    return [name for name, _, _, ratio in found if ratio > limit]


def _run(folder: Path, case: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _WORK, case],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        timeout=600,
    )
    return done.stdout.splitlines()[-1]


class _Case:
    """The turns of a case in both versions."""

    def __init__(self, name: str, folders: Sequence[Path]) -> None:
        self.name = name
        self._folders = folders
        self._turns: list[list[Costs]] = [[] for _ in folders]

    def measure(self, turns: int) -> None:
        for _ in range(turns):
            # Which comes first changes: a machine becomes slower and faster.
            for number in random.sample(range(len(self._folders)), len(self._folders)):
                self._turns[number].append(json.loads(_run(self._folders[number], self.name)))

    def rows(self) -> list[tuple[str, float, float, float]]:
        before, now = map(least, self._turns)
        return rows(before, now)


def main() -> int:
    """Measure, and print a row for each cost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks before", description=__doc__)
    parser.add_argument("commit", help="the earlier commit")
    parser.add_argument("--turns", type=int, default=5, help="how often each is measured")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--skip", action="append", default=[], metavar="NAME")
    chosen = parser.parse_args()
    with as_it_was(chosen.commit) as before:
        built = subprocess.run(
            [sys.executable, "hatch_build.py"], cwd=before, capture_output=True, check=False
        )
        if built.returncode:
            print("the earlier commit is measured in pure Python")
        folders = [before, ROOT]
        common = set.intersection(*(set(json.loads(_run(each, ""))) for each in folders))
        names = [
            name
            for name in sorted(common)
            if (not chosen.only or any(word in name for word in chosen.only))
            and not any(word in name for word in chosen.skip)
        ]
        over: list[str] = []
        for name in names:
            progress(name)
            case = _Case(name, folders)
            case.measure(chosen.turns)
            if above(case.rows()):
                case.measure(chosen.turns * _AGAIN)
            over += [f"{name}: {each}" for each in above(case.rows())]
            progress("")
            for row, was, now, ratio in case.rows():
                mark = "*" if ratio > LIMIT else " "
                print(f"{ratio:7.3f} {mark}{was:11.4g}{now:11.4g}  {name}: {row}", flush=True)
    print(f"\n{len(over)} rows above {LIMIT}" + "".join(f"\n  {each}" for each in over))
    return 0


if __name__ == "__main__":
    sys.exit(main())
