"""``python -m benchmarks.compare``: measure beside the peers, and write the page about it."""

import argparse
import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter

from .harness import ROUNDS, discover, measure
from .joining import join
from .pages import GROUPS, publish
from .progress import progress
from .report import save, table

_PACKAGES = (
    "ergo_py",
    "trio",
    "pykka",
    "thespian",
    "xoscar",
    "pyctor",
    "actorio",
    "eventsourcing",
    "dbos",
    "anyio",
    "janus",
    "uvloop",
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help=f"how often each is measured (default: {ROUNDS})"
    )
    parser.add_argument(
        "--quick", action="store_true", help="two rounds of a fifth of the work; writes no page"
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
        "--page", type=Path, metavar="DIRECTORY", help="where the page and its drawings go"
    )
    parser.add_argument(
        "--from", type=Path, metavar="JSON", dest="kept", help="measure nothing: use what was kept"
    )
    chosen = parser.parse_args(arguments)
    path = chosen.kept or _measure(chosen)
    if chosen.page and (chosen.kept or not (chosen.quick or chosen.only)):
        for made in publish("peers", json.loads(path.read_text(encoding="utf-8")), chosen.page):
            print(f"wrote {made}")
    return 0


def _measure(chosen: argparse.Namespace) -> Path:
    joined = join(discover(chosen.only), {shown.case for group in GROUPS for shown in group.rows})
    for module, reason in joined.absent.items():
        print(f"left out: {module} ({reason})")
    began = perf_counter()
    measured = measure(
        joined.cases,
        2 if chosen.quick else chosen.rounds,
        lambda case: max(case.least, case.size // 5) if chosen.quick else case.size,
        progress,
    )
    progress("")
    print(table(joined.cases, measured))
    for title, reason in joined.failed.items():
        print(f"no figures: {title} ({reason})")
    path = save(
        joined.cases, measured, chosen.results, [name for name in _PACKAGES if _installed(name)]
    )
    content = json.loads(path.read_text(encoding="utf-8")) | {
        "absent": joined.absent,
        "failed": joined.failed,
    }
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    print(f"{perf_counter() - began:.0f} s; everything is in {path}")
    return path


def _installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


if __name__ == "__main__":
    sys.exit(main())
