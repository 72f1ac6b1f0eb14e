"""Two programs that talk to each other, on a machine or over a NATS server, beside two programs of
trio that exchange the same bytes by hand; a node with a network and without; a function on all
cores.

By hand there are no nodes, processes, sessions, acknowledgements and timeouts: it is the limit.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from ..harness import Case, Figures, Goal, Line, Variant
from ..nodes import cores
from ..nodes.local import local_ratios
from ..nodes.ours import BYTES, PARALLEL

__all__ = ["CASES", "KNOWN", "asked", "serving"]


@contextmanager
def serving(
    command: Sequence[str], env: dict[str, str] | None = None, *, stderr: int | None = None
) -> Iterator[str]:
    """A program that serves, until the block ends. Gives the rest of its first line."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        stderr=stderr,
        text=True,
        env=env,
    ) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().removeprefix("ready").strip()
        finally:
            server.kill()


def asked(command: Sequence[str], env: dict[str, str] | None = None) -> Figures:
    """The costs that a program has measured, in microseconds."""
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, timeout=150, env=env
    )
    found: dict[str, float] = json.loads(done.stdout)
    return {
        "p50": found["p50"] * 1e3,
        "calls": 1e6 / found["calls"],
        "messages": 1e6 / found["messages"],
        "cpu": found.get("cpu", 0.0),
    }


def _in_directory(module: str, size: int) -> Figures:
    """Two programs that meet at a directory."""
    with tempfile.TemporaryDirectory(prefix="ergo-", dir="/tmp") as directory:
        os.chmod(directory, 0o700)
        program = [sys.executable, "-m", f"benchmarks.nodes.{module}"]
        with serving([*program, "serve", directory]):
            return asked([*program, "ask", directory, str(size)])


def _at_a_server(module: str, size: int) -> Figures:
    """Two programs that meet at a NATS server of their own."""
    from tests.network.nats.server import NatsServer  # noqa: PLC0415 - tests are not always here

    program = [sys.executable, "-m", f"benchmarks.nodes.{module}"]
    with NatsServer() as server, serving([*program, "serve", server.url]):
        return asked([*program, "ask", server.url, str(size)])


def _lines(goals: dict[str, Sequence[Goal]]) -> list[Line]:
    titles = {
        "p50": "a call, p50",
        "calls": f"a call of {PARALLEL} at once",
        "messages": "a message, one way",
        "cpu": "a message, processor time of both",
    }
    ours = [
        Line(title, "ergo", figure=figure, goals=goals.get(figure, ()))
        for figure, title in titles.items()
    ]
    by_hand = [
        Line(f"{title}, by hand", "by hand", figure=figure) for figure, title in titles.items()
    ]
    return ours + by_hand


def _talking(
    name: str,
    where: str,
    run: Callable[[str, int], Figures],
    others: dict[str, str],
    goals: dict[str, Sequence[Goal]],
) -> Case:
    programs = {"ergo": "ours", "by hand": "by_hand", **others}
    variants: dict[str, Variant] = {
        title: partial(run, module) for title, module in programs.items()
    }
    return Case(
        name=name,
        about=f"calls and messages of {BYTES} bytes between two programs{where}, wall time",
        unit="µs",
        size=20_000,
        least=200,
        variants=variants,
        lines=_lines(goals),
        rounds=3,
        reference="by hand",
        by_wall=frozenset(),
    )


_LOCAL = _talking(
    "two programs",
    "",
    _in_directory,
    {},
    {
        "p50": [Goal("reach", 65.0)],
        "calls": [Goal("reach", 1e6 / 130_000)],
        "messages": [Goal("reach", 1e6 / 450_000)],
    },
)
_NATS = _talking(
    "two programs, a NATS server",
    " over a NATS server",
    _at_a_server,
    {"nats-py": "with_nats_py"},
    {
        "p50": [Goal("reach", 0.68, of="nats-py")],
        "calls": [Goal("reach", 1 / 3, of="nats-py")],
        "messages": [Goal("reach", 1 / 3, of="nats-py")],
    },
)
_INSIDE = Case(
    name="a node with a network",
    about="a message and a call inside a node that has a network, as multiples of those without",
    unit="times",
    size=20_000,
    least=100,
    variants={"ergo": local_ratios},
    lines=[
        Line("a message", "ergo", figure="tell", goals=[Goal("free", 1.01)]),
        Line("a call", "ergo", figure="call", goals=[Goal("free", 1.03)]),
    ],
    rounds=1,
    reference="ergo",
)
_CORES = Case(
    name="a function on all cores",
    about="the same work in programs for all processors, and in this program alone, wall time",
    unit="ms",
    size=16,
    least=1,
    variants={
        "ergo": cores.with_process_calls,
        "ProcessPoolExecutor": cores.with_executor,
        "a single program": cores.alone,
    },
    lines=[
        Line("ProcessCalls", "ergo", figure="wall"),
        Line("ProcessPoolExecutor", "ProcessPoolExecutor", figure="wall"),
    ],
    rounds=2,
    reference="a single program",
)
KNOWN = [_LOCAL, _NATS, _INSIDE, _CORES]
_has_server = (
    find_spec("nats") is not None and Path(sys.executable).with_name("nats-server").exists()
)
CASES = [case for case in KNOWN if case is not _NATS or _has_server]
