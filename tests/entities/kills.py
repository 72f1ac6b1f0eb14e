"""Kills programs with traders, and checks their file after each kill."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

from .traders import Told, copy_file, faults_of, read_rows

__all__ = ["kill_programs"]

ROOT = Path(__file__).parent.parent.parent


def _first(told: Told) -> dict[str, int]:
    """The number with which each client goes on: the command that was tried and not answered is
    repeated under its id.
    """
    return {
        trader: told.answered.get(trader, 0) + (told.answered.get(trader, 0) == tried)
        for trader, tried in told.tried.items()
    }


def _lines(
    path: Path,
    told: Told,
    broken: str,
    *,
    lines: int = 0,
    limit: float = 0.0,
    synchronous: str = "FULL",
) -> list[str]:
    """Run a program, and kill it after some lines; without lines it ends. Returns its lines."""
    given = {
        "path": str(path),
        "first": _first(told),
        "limit": limit,
        "broken": broken,
        "synchronous": synchronous,
    }
    command = [sys.executable, "-m", "tests.entities.program", json.dumps(given)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as program:
        assert program.stdout is not None
        heard = []
        for line in program.stdout:
            heard.append(line)
            if len(heard) == lines:
                break
        if lines:
            program.kill()
            heard += program.stdout.readlines()
    return [line for line in heard if line.endswith("\n")]


def kill_programs(
    directory: Path, kills: int, *, seed: int = 1, broken: str = "", limit: float = 300.0
) -> Iterator[tuple[int, list[str]]]:
    """Kill programs at seeded moments. Yields after each kill how many commands the program has
    acknowledged, and the faults of the file; at last the faults of a file whose coins have had
    ``limit`` seconds to arrive. Every second program has a store that does not wait for the disk:
    what it has acknowledged survives its end, too.
    """
    path, told = directory / "state.db", Told()
    chance = Random(seed)
    for number in range(kills):
        synchronous = ("FULL", "NORMAL")[number % 2]
        lines = chance.randint(20, 200)
        heard = _lines(path, told, broken, lines=lines, synchronous=synchronous)
        told.take(heard)
        copy = copy_file(path, directory / "copy")
        yield sum(line.startswith("done") for line in heard), faults_of(read_rows(copy), told)
    told.take(_lines(path, told, broken, limit=limit))
    copy = copy_file(path, directory / "copy")
    yield 0, faults_of(read_rows(copy), told, is_settled=True)
