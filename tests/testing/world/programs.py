"""The digests of worlds in two programs: with another salt of hashes, with and without the C
extension.
"""

import os
import subprocess
import sys
from collections.abc import Iterable

__all__ = ["digests_of_programs"]


def digests_of_programs(modules: Iterable[str], seeds: Iterable[int]) -> list[list[str]]:
    """The digests of the worlds of some modules, by several programs."""
    worlds = ["-m", "tests.testing.world.digests", ",".join(modules)]
    command = [sys.executable, *worlds, *map(str, seeds)]
    programs = [
        subprocess.Popen(
            command,
            env={**os.environ, "PYTHONHASHSEED": salt, "ERGO_PURE": pure},
            stdout=subprocess.PIPE,
            text=True,
        )
        for salt, pure in (("1", ""), ("2", "1"))
    ]
    try:
        return [program.communicate(timeout=600)[0].split() for program in programs]
    finally:
        for program in programs:
            program.kill()
            program.wait()
