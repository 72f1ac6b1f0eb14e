"""The workloads in compiled systems: ``actors.erl`` and ``actors.go``, each built once for a run
and run as a program of its own.
"""

import atexit
import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from ...harness import Figures, Variant
from ...load import Load
from ...workloads.tcp import load_tcp
from ...workloads.udp import BYTES

__all__ = ["MORE", "SOURCES", "adds", "build"]

SOURCES = Path(__file__).parent
MORE = 50
"""How many times the work of a Python variant the compiled program does: else the start of its
threads would take most of the measured time.
"""

Command = Callable[[], Sequence[str]]
"""The beginning of the program's command line; builds the program when it is first called."""


@cache
def build(*command: str) -> Path:
    """Run a compiler, whose last argument is followed by the directory for its output."""
    directory = tempfile.TemporaryDirectory(prefix="peers-")
    atexit.register(directory.cleanup)
    made = Path(directory.name)
    done = subprocess.run(
        [argument.format(directory=made) for argument in command],
        cwd=SOURCES,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return made


def adds(name: str, command: Command) -> dict[str, dict[str, Variant]]:
    """The variants of a compiled system, by the case that they join."""
    work: dict[str, Variant] = {
        "tell, 1 to 1": partial(_work, command, "tell", 1),
        "tell, 100 to 100": partial(_work, command, "tell", 100),
        "ping-pong, 1 pair": partial(_work, command, "pingpong", 1),
        "ping-pong, 100 pairs": partial(_work, command, "pingpong", 100),
        "call, 1 pair": partial(_work, command, "call", 1),
        "call, 100 pairs": partial(_work, command, "call", 100),
        "spawn and stop": partial(_work, command, "life", 1),
        "crowd of 10,000": partial(_crowd, command),
        "crowd of 100,000": partial(_crowd, command),
        "TCP echo, 64 bytes": partial(_echo, command, 64),
        "TCP echo, 64 KiB": partial(_echo, command, 65_536),
        "UDP flood, 64 bytes": partial(_datagrams, command),
    }
    return {case: {name: variant} for case, variant in work.items()}


def _run(command: Command, *arguments: object) -> Figures:
    done = subprocess.run(
        [*command(), *map(str, arguments)], check=True, capture_output=True, text=True, timeout=120
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _work(command: Command, work: str, pairs: int, size: int) -> Figures:
    return _run(command, work, pairs, size * MORE)


def _crowd(command: Command, size: int) -> Figures:
    return _run(command, "crowd", 1, size)


def _echo(command: Command, size: int, count: int) -> Figures:
    """Wall time only: the program's processor time is not told apart from that of its start."""
    with _Server(command, "tcp", 1, 1) as server:
        return {"wall": load_tcp(server.port, size, count)["wall"]}


def _datagrams(command: Command, count: int) -> Figures:
    with _Server(command, "udp", count) as server, Load("udp", server.port, BYTES):
        figures: dict[str, float] = json.loads(server.line())
        return figures


class _Server:
    """A program that prints its port, and ends with its standard input."""

    def __init__(self, command: Command, *arguments: object) -> None:
        self._program = subprocess.Popen(
            [*command(), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "_Server":
        self.port = int(self.line())
        return self

    def __exit__(self, *_error: object) -> None:
        with self._program as program:
            program.kill()

    def line(self) -> str:
        assert self._program.stdout is not None
        return self._program.stdout.readline()
