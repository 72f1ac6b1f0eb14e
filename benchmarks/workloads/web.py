"""Web servers: ``GET /hello`` with 13 bytes back, over 50 connections that stay open, an echo over
WebSockets, and files.

The servers are programs of their own, and the figure is their processor time for each request.
Without uvicorn, httptools and uvloop there are only the cases of files.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from ..harness import Case, Figures, Goal, Line, Variant
from ..load import Load

__all__ = ["CASES", "KNOWN", "serve"]

_CONNECTIONS = 50
_SERVERS = "benchmarks.peers.web_servers"
_go = Path(sys.executable).with_name("go")
_GO = str(_go) if _go.exists() else shutil.which("go")


def _processor_time(pid: int) -> float:
    """Seconds that a process has run, with all threads that it has had."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serve(command: Sequence[str], load: Sequence[object], requests: int) -> Figures:
    """Microseconds of a server's processor time for each request of a load."""
    environment = {**os.environ, "GOMAXPROCS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        try:
            port = server.stdout.readline().rpartition(":")[2].strip()
            kind, *numbers = load
            with Load(kind, port, _CONNECTIONS, *numbers, requests) as peers:
                peers.wait("go")
                began = _processor_time(server.pid)
                peers.wait("done")
                return {"cpu": (_processor_time(server.pid) - began) / requests * 1e6}
        finally:
            server.kill()


def _python(name: str, load: Sequence[object]) -> Variant:
    return partial(serve, [sys.executable, "-m", _SERVERS, name], load)


def _go_server(requests: int) -> Figures:
    from ..peers.compiled import build  # noqa: PLC0415 - it imports workloads

    assert _GO is not None
    made = build(_GO, "build", "-o", "{directory}/web", "web.go")
    return serve([str(made / "web")], ["http"], requests)


def _requests() -> Mapping[str, Variant]:
    names = {
        "plain": "plain",
        "async": "async",
        "pool": "pool",
        "mounted": "mounted",
        "by hand": "hand",
        "uvicorn": "uvicorn",
    }
    found = {name: _python(server, ["http"]) for name, server in names.items()}
    for package in ("hypercorn", "aiohttp"):
        if find_spec(package) is not None:
            found[package] = _python(package, ["http"])
    if _GO is not None:
        found["Go net/http"] = _go_server
    return found


def _present(name: str, line: str, figures: Mapping[str, Variant]) -> list[Line]:
    return [Line(line, name)] if name in figures else []


def _request_case() -> Case:
    variants = _requests()
    return Case(
        name="web requests",
        about=f"GET /hello, 13 bytes back, {_CONNECTIONS} connections that stay open",
        unit="µs",
        size=20_000,
        least=500,
        variants=variants,
        lines=[
            Line("a plain actor", "plain", goals=[Goal("uvicorn", 0.85, of="uvicorn")]),
            Line("an async actor", "async", goals=[Goal("uvicorn", 1.0, of="uvicorn")]),
            Line("a pool of 8 actors", "pool", goals=[Goal("uvicorn", 1.0, of="uvicorn")]),
            Line(
                "a mounted ASGI application",
                "mounted",
                goals=[Goal("uvicorn", 1.2, of="uvicorn")],
            ),
            Line("by hand: sockets, poller and parser", "by hand"),
            Line("uvicorn with httptools and uvloop", "uvicorn"),
            *_present("hypercorn", "hypercorn on trio", variants),
            *_present("aiohttp", "aiohttp on uvloop", variants),
            *_present("Go net/http", "Go net/http", variants),
        ],
        rounds=3,
        reference="uvicorn",
    )


def _echo_case(size: int) -> Case:
    most = 0.8 if size < 1024 else 1.3
    return Case(
        name=f"web sockets, {size} bytes",
        about=f"a WebSocket echo of {size} bytes, {_CONNECTIONS} connections",
        unit="µs",
        size=20_000 if size < 1024 else 5_000,
        least=500,
        variants={
            "echo": _python("echo", ["websocket", size]),
            "websockets": _python("websockets", ["websocket", size]),
        },
        lines=[
            Line(
                f"echo of {size} bytes, an actor for each connection",
                "echo",
                goals=[Goal("websockets", most, of="websockets")],
            ),
            Line(f"echo of {size} bytes, websockets on asyncio", "websockets"),
        ],
        rounds=3,
        reference="websockets",
    )


def _file_case(name: str, size: int, requests: int) -> Case:
    return Case(
        name=f"web files, {name}",
        about=f"GET of a file of {name}, {_CONNECTIONS} connections that stay open",
        unit="µs",
        size=requests,
        least=100,
        variants={
            "files": _python("files", ["file", size]),
            "by hand": _python("files by hand", ["file", size]),
        },
        lines=[
            Line(f"a file of {name}", "files", goals=[Goal("by hand", 2.0, of="by hand")]),
            Line(f"a file of {name}, by hand: a look at the file, and its bytes", "by hand"),
        ],
        rounds=3,
        reference="by hand",
    )


_FILES = [_file_case("10 KB", 10_000, 20_000), _file_case("1 MB", 1_000_000, 1_000)]
_PEERS = [_request_case(), _echo_case(64), _echo_case(16 * 1024)]
KNOWN = [*_FILES, *_PEERS]
_has_peers = all(map(find_spec, ("uvicorn", "httptools", "uvloop", "websockets")))
_has_clock = Path("/proc/self/stat").exists()
CASES = [*(_FILES if _has_clock else ()), *(_PEERS if _has_clock and _has_peers else ())]
