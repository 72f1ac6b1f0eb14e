"""``python -m benchmarks``: measure, print the table, keep the figures. With the name of a command
as its first argument, it runs this command.
"""

import argparse
import json
import sys
from pathlib import Path
from time import perf_counter

from .commands import listed, run
from .harness import ROUNDS, Case, discover, measure
from .pages import publish
from .progress import progress
from .report import save, table

_RESULTS = Path(__file__).parent / "results"


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given and not given[0].startswith("-"):
        run(given[0], given[1:])
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=f"commands, each with options of its own:\n{listed()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    rounds = (
        f"how often each variant is measured (default: {ROUNDS}); "
        "slow variants are measured less often, in proportion"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=rounds)
    parser.add_argument(
        "--quick", action="store_true", help="two rounds of a fifth of the work: for a first look"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="cases whose name contains NAME"
    )
    parser.add_argument("--list", action="store_true", help="name the cases and do nothing")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="where the JSON goes")
    parser.add_argument(
        "--page", type=Path, metavar="DIRECTORY", help="write the page about the goals there"
    )
    parser.add_argument(
        "--from", type=Path, metavar="JSON", dest="kept", help="measure nothing: use what was kept"
    )
    chosen = parser.parse_args(given)
    if chosen.kept:
        _publish(chosen.kept, chosen.page)
        return 0
    cases = discover(chosen.only)
    if chosen.list or not cases:
        print("\n".join(case.name for case in cases) or "no case has such a name")
        return 0 if cases else 1

    def size(case: Case) -> int:
        return max(case.least, case.size // 5) if chosen.quick else case.size

    began = perf_counter()
    measured = measure(cases, 2 if chosen.quick else chosen.rounds, size, progress)
    progress("")
    print(table(cases, measured))
    path = save(cases, measured, chosen.results)
    print(f"{perf_counter() - began:.0f} s; everything is in {path}")
    if not (chosen.quick or chosen.only):
        _publish(path, chosen.page)
    return 0


def _publish(path: Path, directory: Path | None) -> None:
    if directory is not None:
        for made in publish("goals", json.loads(path.read_text(encoding="utf-8")), directory):
            print(f"wrote {made}")


if __name__ == "__main__":
    sys.exit(main())
