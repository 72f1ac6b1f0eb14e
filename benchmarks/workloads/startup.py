"""Start-up: the time of a whole program that imports the package, opens a node, or asks a running
node with ``ergo ps``, beside programs that only import trio, or trio and structlog.

Each figure is the CPU time of a program of its own, from its start to its end, so the start of
Python itself is part of all of them.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from ergo_py.blocking import open_node

from ..harness import Case, Figures, Goal, Line, Variant

_OPENS = """\
import trio
from ergo_py import Actor, open_node

async def main():
    async with open_node(log_output="none") as node:
        await node.spawn(Actor)

trio.run(main)
"""


def _cost(arguments: list[str]) -> tuple[float, float]:
    """CPU and wall time of a Python program, in milliseconds."""
    # Without bytecode files each program would compile all modules, which takes most of the time.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    command = [sys.executable, *arguments]
    began = perf_counter()
    pid = os.posix_spawn(sys.executable, command, environment, file_actions=silent)
    _, status, used = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"{command} ended with {os.waitstatus_to_exitcode(status)}")
    return (used.ru_utime + used.ru_stime) * 1e3, (perf_counter() - began) * 1e3


def _program(*arguments: str) -> Variant:
    """The cheapest of several runs: noise only ever adds to the time of a program."""

    def run(size: int) -> Figures:
        taken = [_cost([*arguments]) for _ in range(size)]
        return {"cpu": min(cpu for cpu, _ in taken), "wall": min(wall for _, wall in taken)}

    return run


@contextmanager
def _runtime_directory() -> Iterator[None]:
    """A directory for the control socket, where no other node is."""
    before = os.environ.get("XDG_RUNTIME_DIR")
    with tempfile.TemporaryDirectory(prefix="ergo-", dir="/tmp") as directory:
        os.environ["XDG_RUNTIME_DIR"] = directory
        try:
            yield
        finally:
            del os.environ["XDG_RUNTIME_DIR"]
            if before is not None:
                os.environ["XDG_RUNTIME_DIR"] = before


def _ps(size: int) -> Figures:
    """``ergo ps``, which asks a node in this program. The time of the node is not counted."""
    with _runtime_directory(), open_node("bench@localhost", control="look", log_output="none"):
        return _program("-m", "ergo_py", "ps")(size)


CASES = [
    Case(
        name="start-up",
        about="a whole program, from its start to its end",
        unit="ms",
        size=5,
        least=1,
        variants={
            "ergo import": _program("-c", "import ergo_py"),
            "ergo names": _program("-c", "from ergo_py import Actor, ChildSpec, open_node"),
            "ergo node": _program("-c", _OPENS),
            "ergo ps": _ps,
            "trio": _program("-c", "import trio"),
            "its libraries": _program("-c", "import trio, structlog"),
        },
        lines=[
            Line("import ergo_py", "ergo import", goals=(Goal("import", 1.5, "trio"),)),
            Line("import three names", "ergo names", goals=(Goal("names", 1.4, "trio"),)),
            Line("open the first node", "ergo node", goals=(Goal("node", 1.5, "its libraries"),)),
            Line("ergo ps", "ergo ps", goals=(Goal("ps", 1.25, "trio"),)),
        ],
    ),
]
