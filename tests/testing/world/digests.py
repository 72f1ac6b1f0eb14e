"""Prints the digests of worlds: `python -m tests.testing.world.digests MODULE,MODULE 1 2 3`, a
line for each module and seed. The world is the function ``busy`` of the module, or the function
that ``MODULE:FUNCTION`` names; a module without a world has a function ``digest_of``.
"""

import sys
from functools import partial
from importlib import import_module
from typing import Any

from ergo_py.testing import World
from ergo_py.testing.world.plan import Plan
from ergo_py.testing.world.world import run_world


def digest_of(busy: Any, seed: int) -> str:
    """The digest of a world."""
    world = World(Plan(seed))
    failure = run_world(world, busy)
    assert failure is None, failure
    return world.history.digest


def main(modules: str, *seeds: str) -> None:
    """Print the digest of each module and seed."""
    for name in modules.split(","):
        module_name, _, function = name.partition(":")
        module = import_module(module_name)
        if function or hasattr(module, "busy"):
            digest = partial(digest_of, getattr(module, function or "busy"))
        else:
            digest = module.digest_of
        for seed in seeds:
            print(digest(int(seed)))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
