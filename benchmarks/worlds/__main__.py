"""Explore the worlds: `python -m benchmarks worlds --seeds 20000`."""

import argparse
import os
import sys
from time import perf_counter
from typing import Any

from ergo_py.testing.world.simulation import Simulation, SimulationError

from .clusters import groups, leases, names
from .entities import bank, parking
from .networks import messages, watches
from .shards import fleet, lives, moves
from .versions import versions

WORLDS: dict[str, Any] = {
    each.__name__: each
    for each in (
        messages,
        watches,
        leases,
        names,
        groups,
        bank,
        parking,
        versions,
        fleet,
        lives,
        moves,
    )
}


def main() -> int:
    """Run the seeds of each world, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks worlds", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="the seeds of each world")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--only", default="", help="only worlds with this text in their names")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    seeds = range(options.start, options.start + options.seeds)
    failed = 0
    for name, world in WORLDS.items():
        if options.only not in name:
            continue
        began = perf_counter()
        try:
            Simulation(world, len(seeds)).run(seeds, processes=options.processes)
        except SimulationError as error:
            failed += 1
            print(f"{name}: {error}\n", flush=True)
        else:
            speed = len(seeds) / (perf_counter() - began)
            print(f"{name}: {len(seeds)} seeds go well, {speed:.1f} a second", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
