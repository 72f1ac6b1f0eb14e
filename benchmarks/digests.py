"""Compare the digests of worlds: `python -m benchmarks digests`.

A seed has the same history in each program: pure and with the C extension, with any
PYTHONHASHSEED, on an idle machine and on a busy one.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product

from benchmarks.worlds.__main__ import WORLDS as EXPLORED_WORLDS

SALTS = ("0", "1", "12345")
SMALL = (
    "tests.testing.world.singletons",
    "tests.testing.world.machine.connected",
    "tests.testing.world.machine.threaded",
    "tests.testing.histories",
)
"""Three nodes with a singleton, sockets, threads, and nodes in a network that is cut, without a
world.
"""
EXPLORED = tuple(f"{world.__module__}:{name}" for name, world in EXPLORED_WORLDS.items())
"""The worlds of networks, clusters and entities whose seeds are explored."""
WORLDS = (*SMALL, *EXPLORED)


@contextmanager
def loaded(is_loaded: bool) -> Iterator[None]:
    """Keep all cores busy inside the block."""
    count = 2 * (os.cpu_count() or 1) if is_loaded else 0
    command = [sys.executable, "-c", "while True: pass"]
    programs = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def digests(worlds: Sequence[str], seeds: int, salt: str, pure: str) -> list[str]:
    """The digests of all seeds of these worlds, by a program of its own."""
    numbers = map(str, range(seeds))
    command = [sys.executable, "-m", "tests.testing.world.digests", ",".join(worlds), *numbers]
    environment = {**os.environ, "PYTHONHASHSEED": salt, "ERGO_PURE": pure}
    done = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=3600
    )
    return done.stdout.split()


def main() -> int:
    """Run all programs, and compare."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks digests", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--runs", type=int, default=5, help="programs of each kind")
    parser.add_argument("--only", default="", help="only worlds with this text in their names")
    options = parser.parse_args()
    worlds = [world for world in WORLDS if options.only in world]
    if not worlds:
        parser.error(f"--only {options.only}: no such world; there are {', '.join(WORLDS)}")
    first: list[str] = []
    different = 0
    for is_loaded, pure, salt in product((False, True), ("", "1"), SALTS):
        with loaded(is_loaded):
            for _ in range(options.runs):
                found = digests(worlds, options.seeds, salt, pure)
                first = first or found
                wrong = [
                    f"{world} {seed}"
                    for (world, seed), one, other in zip(
                        product(worlds, range(options.seeds)), first, found, strict=True
                    )
                    if one != other
                ]
                different += len(wrong)
                kind = f"{'pure' if pure else 'C'}, hash seed {salt}, "
                kind += "under load" if is_loaded else "idle"
                print(f"{kind}: {wrong or 'equal'}", flush=True)
    print(f"{different} digests differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
