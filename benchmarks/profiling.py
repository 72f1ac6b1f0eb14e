"""``python -m benchmarks.profiling``: where the time of the hot paths goes, and where it went
before.

Each path is run by itself under py-spy, which looks at the program from outside several hundred
times a second and so leaves it as it is. The page shows own time in microseconds for a piece of
work: the share of the samples that fell into a function, of the cost of the work without a
profiler. With ``--before COMMIT`` the package as it was then is measured in turns with it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from .before import as_it_was
from .harness import Case, discover
from .pages import publish
from .progress import progress
from .report import machine

__all__ = ["PATHS", "HotPath", "attribute", "place"]

ROOT = Path(__file__).resolve().parent.parent
_RATE = 500
"""Samples a second."""
_TURNS = 5
"""How often the cost of a path is measured."""


_SAYS = "each costs"


@dataclass(frozen=True)
class HotPath:
    """A variant of a case, as the page calls it."""

    title: str
    case: str
    variant: str
    figure: str = "cpu"


PATHS = (
    HotPath("tell, plain handler", "tell, 1 to 1", "ergo plain"),
    HotPath("tell, async handler", "tell, 1 to 1", "ergo async"),
    HotPath("call, plain callee", "call, 1 pair", "ergo plain"),
    HotPath("call, async callee", "call, 1 pair", "ergo async"),
    HotPath("crash to successor", "restart", "ergo"),
    HotPath("flood from a thread", "thread to process, flood", "ergo", "wall"),
    HotPath("flood from a reader", "reader to process, flood", "ergo", "wall"),
    HotPath("TCP echo 64 B, reader task", "TCP echo, 64 bytes", "ergo task", "wall"),
    HotPath("TCP echo 64 B, reader thread", "TCP echo, 64 bytes", "ergo thread", "wall"),
    HotPath("UDP flood, reader task", "UDP flood, 64 bytes", "ergo task"),
)


# -- the samples -----------------------------------------------------------------------------------


def place(frame: str) -> str:
    """The owner of the time of a sample: a function of ours by its name, all others by the package
    they belong to.

    A frame is ``function (file:line)``, as py-spy writes it.
    """
    function, _, where = frame.rpartition(" (")
    path = where.rstrip(")").rpartition(":")[0] or where.rstrip(")")
    parts = Path(path).parts
    if "benchmarks" in parts:
        return "the benchmark"
    if "ergo_py" in parts:
        inside = parts[len(parts) - parts[::-1].index("ergo_py") :]
        return f"{function} ({'/'.join(inside)})"
    for package in ("trio", "outcome", "structlog"):
        if package in parts:
            return package
    return "Python's library"


def attribute(samples: str) -> dict[str, float]:
    """The share of each place, from the lines ``frame;frame;frame count``; the last frame is where
    the program was.
    """
    counts: Counter[str] = Counter()
    for line in samples.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        # To start the program, to import and to end it is not the work.
        if not stack or any("importlib" in frame for frame in frames):
            continue
        counts[place(frames[-1])] += int(count)
    total = counts.total()
    return {where: count / total for where, count in counts.most_common()}


# -- taking them -----------------------------------------------------------------------------------


def _case(path: HotPath) -> Case:
    return next(case for case in discover([path.case]) if case.name == path.case)


def _work(path: HotPath, seconds: float) -> None:
    """In a program of its own: do the work again and again, and print the cost of a piece of it."""
    case = _case(path)
    work, costs, end = case.variants[path.variant], list[float](), perf_counter() + seconds
    work(case.least)
    while not costs or perf_counter() < end:
        costs.append(work(case.size)[path.figure])
    print(f"{_SAYS} {min(costs)}")


def _run(path: HotPath, package: Path, seconds: float, *profiler: str) -> float:
    command = [
        sys.executable,
        "-P",
        "-m",
        "benchmarks.profiling",
        "--work",
        path.title,
        "--seconds",
        str(seconds),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{package}{os.pathsep}{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with tempfile.TemporaryDirectory() as elsewhere:
        done = subprocess.run(
            [*profiler, *command],
            cwd=elsewhere,
            env=environment,
            stdout=subprocess.PIPE,
            check=True,
            text=True,
            timeout=300 + 10 * seconds,
        )
    # The profiler has its own words to say on the same stream.
    return next(
        float(line.removeprefix(_SAYS))
        for line in done.stdout.splitlines()
        if line.startswith(_SAYS)
    )


def _shares(path: HotPath, package: Path, seconds: float) -> dict[str, float]:
    with tempfile.NamedTemporaryFile() as kept:
        spy = Path(sys.executable).with_name("py-spy")
        _run(
            path,
            package,
            seconds,
            str(spy),
            "record",
            "-f",
            "raw",
            "-r",
            str(_RATE),
            "-o",
            kept.name,
            "--",
        )
        return attribute(Path(kept.name).read_text(encoding="utf-8"))


def _profile(path: HotPath, packages: Mapping[str, Path], seconds: float) -> dict[str, Any]:
    """The cheapest of several turns, in which all packages are tried: a disturbance of a package
    then disturbs the others, too.
    """
    costs: dict[str, list[float]] = {label: [] for label in packages}
    for _ in range(_TURNS):
        for label, package in packages.items():
            costs[label].append(_run(path, package, seconds / _TURNS))
    return {
        label: {"cost": min(costs[label]), "shares": _shares(path, package, seconds)}
        for label, package in packages.items()
    }


def _profiles(chosen: argparse.Namespace) -> Mapping[str, Any]:
    found: dict[str, dict[str, Any]] = {}
    packages = {"now": ROOT}
    paths = [
        path for path in PATHS if not chosen.only or any(word in path.title for word in chosen.only)
    ]

    with as_it_was(chosen.before, "ergo_py") if chosen.before else nullcontext() as before:
        if before is not None:
            packages = {"before": before, **packages}
        for path in paths:
            progress(path.title)
            found[path.title] = _profile(path, packages, chosen.seconds)
    progress("")
    return {**machine(("ergo_py", "trio", "py-spy")), "before": chosen.before or "", "cases": found}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiling", description=__doc__)
    parser.add_argument(
        "--before", metavar="COMMIT", help="also profile the package as it was then"
    )
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="how long each path is looked at (default: 4)"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="paths with NAME; writes no page",
    )
    parser.add_argument("--page", type=Path, metavar="DIRECTORY", help="where the page goes")
    parser.add_argument(
        "--from", type=Path, metavar="JSON", dest="kept", help="profile nothing: use what was kept"
    )
    parser.add_argument("--work", metavar="NAME", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.work:
        _work(next(path for path in PATHS if path.title == chosen.work), chosen.seconds)
        return 0
    content = (
        json.loads(chosen.kept.read_text(encoding="utf-8")) if chosen.kept else _profiles(chosen)
    )
    for title, taken in content["cases"].items():
        print(f"\n{title}")
        for label, profile in taken.items():
            print(f"  {label}: {profile['cost']:.3g} µs")
            for where, share in profile["shares"].items():
                if share >= 0.02:
                    print(f"    {share * profile['cost']:8.3f} µs {share:5.1%}  {where}")
    if chosen.page and (chosen.kept or not chosen.only):
        for made in publish("profiles", content, chosen.page):
            print(f"wrote {made}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
