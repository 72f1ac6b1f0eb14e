"""Prints the digests of a world: `python -m tests.testing.world.digests MODULE 1 2 3`, a line for
each seed. The world is the function ``busy`` of the module.
"""

import sys
from importlib import import_module

from ergo_py.testing import World
from ergo_py.testing.world.plan import Plan
from ergo_py.testing.world.world import run_world


def main(module: str, *seeds: str) -> None:
    """Print the digest of each seed."""
    busy = import_module(module).busy
    for seed in seeds:
        world = World(Plan(int(seed)))
        failure = run_world(world, busy)
        assert failure is None, failure
        print(world.history.digest)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
