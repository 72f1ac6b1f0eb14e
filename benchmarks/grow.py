"""``python -m benchmarks.grow``: measure how costs change as the work grows, and write the page
about it.
"""

import argparse
import json
import sys
from pathlib import Path
from time import perf_counter

from . import growing
from .harness import discover, measure
from .pages import publish
from .progress import progress
from .report import save, table

_ROUNDS = 3


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grow", description=__doc__)
    parser.add_argument(
        "--rounds",
        type=int,
        default=_ROUNDS,
        help=f"how often each is measured (default: {_ROUNDS})",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="cases with NAME; writes no page",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=Path(__file__).parent / "results",
        help="where the JSON goes",
    )
    parser.add_argument(
        "--page", type=Path, metavar="DIRECTORY", help="where the page and its drawing go"
    )
    parser.add_argument(
        "--from", type=Path, metavar="JSON", dest="kept", help="measure nothing: use what was kept"
    )
    chosen = parser.parse_args(arguments)
    path = chosen.kept or _measure(chosen)
    if chosen.page and (chosen.kept or not chosen.only):
        for made in publish("growth", json.loads(path.read_text(encoding="utf-8")), chosen.page):
            print(f"wrote {made}")
    return 0


def _measure(chosen: argparse.Namespace) -> Path:
    cases = discover(chosen.only, growing)
    began = perf_counter()
    measured = measure(cases, chosen.rounds, lambda case: case.size, progress)
    progress("")
    print(table(cases, measured))
    path: Path = save(cases, measured, chosen.results, ("ergo_py", "trio"))
    print(f"{perf_counter() - began:.0f} s; everything is in {path}")
    return path


if __name__ == "__main__":
    sys.exit(main())
