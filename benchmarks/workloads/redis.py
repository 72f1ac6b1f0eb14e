"""A Redis-compatible server under redis-benchmark: 50 clients that set and get, a single command or
sixteen at a time.

The servers are programs of their own, and the figure is their processor time for each request.
Without redis-benchmark there is no case.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ..harness import Case, Figures, Goal, Line, Variant

__all__ = ["CASES", "KNOWN"]

_BENCHMARK = shutil.which("redis-benchmark")
_CLIENTS = 50


def _processor_time(pid: int) -> float:
    """Seconds that a process has run, with all threads that it has had."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _load(port: str, pipeline: int, requests: int) -> None:
    command: Sequence[object] = (
        _BENCHMARK,
        "-p",
        port,
        "-c",
        _CLIENTS,
        "-P",
        pipeline,
        "-n",
        requests,
        "-t",
        "set,get",
        "-q",
    )
    subprocess.run(
        [*map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True
    )


def _serve(module: str, arguments: Sequence[str], pipeline: int, requests: int) -> Figures:
    """Microseconds of the server's for each request."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            port = server.stdout.readline().rpartition(":")[2].strip()
            _load(port, pipeline, min(requests, 1000))
            began = _processor_time(server.pid)
            _load(port, pipeline, requests)
            return {"cpu": (_processor_time(server.pid) - began) / (2 * requests) * 1e6}
        finally:
            server.kill()


def _variants(pipeline: int) -> dict[str, Variant]:
    ours, theirs = "examples.redis", "benchmarks.peers.redis_servers"
    servers: dict[str, tuple[str, Sequence[str]]] = {
        "ergo task": (ours, ("0", "task")),
        "ergo thread": (ours, ("0", "thread")),
        "asyncio": (theirs, ("asyncio",)),
        "trio": (theirs, ("trio",)),
        "by hand": (theirs, ("hand",)),
    }
    return {
        name: partial(_serve, module, arguments, pipeline)
        for name, (module, arguments) in servers.items()
    }


def _case(pipeline: int, size: int) -> Case:
    goal = Goal("asyncio's streams", 1.2, of="asyncio")
    return Case(
        name=f"redis, pipeline of {pipeline}",
        about=(
            "a Redis-compatible server with "
            f"an actor for each of {_CLIENTS} connections, {pipeline} requests at a time"
        ),
        unit="µs",
        size=size,
        least=100,
        variants=_variants(pipeline),
        lines=[
            Line(f"{pipeline} at a time, reader tasks", "ergo task", goals=[goal]),
            Line(f"{pipeline} at a time, reader threads", "ergo thread"),
            Line(f"{pipeline} at a time, a trio task by hand", "by hand"),
        ],
        rounds=3,
        reference="asyncio",
    )


KNOWN = [_case(1, 10_000), _case(16, 50_000)]
CASES = KNOWN if _BENCHMARK and Path("/proc/self/stat").exists() else []
