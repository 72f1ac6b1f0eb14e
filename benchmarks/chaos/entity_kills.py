"""``python -m benchmarks.chaos.entity_kills``: kill a program with entities on SQLite at 200 seeded
moments, and check its file after each kill: no acknowledged command is missing, no command took
effect twice or in part, no coin is lost.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.entities.kills import kill_programs

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos.entity_kills", description=__doc__
    )
    parser.add_argument("--kills", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="decides the moments (default: 1)")
    chosen = parser.parse_args(arguments)
    acknowledged = wrong = 0
    with tempfile.TemporaryDirectory() as directory:
        found = kill_programs(Path(directory), chosen.kills, seed=chosen.seed)
        for number, (commands, faults) in enumerate(found, 1):
            acknowledged += commands
            wrong += bool(faults)
            for fault in faults:
                print(f"kill {number}: {fault}")
    print(f"{chosen.kills} kills, {acknowledged} acknowledged commands, {wrong} bad files")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
