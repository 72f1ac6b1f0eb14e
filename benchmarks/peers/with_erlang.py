"""Erlang/OTP (Debian's ``erlang-base``): its processes, ``gen_server`` calls, active sockets, and
its distribution between two programs.
"""

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

from ..harness import Figures
from ..nodes.ours import BYTES, PARALLEL
from ..workloads.nodes import asked, serving
from .compiled import adds, build

__all__ = ["ADDS"]

if shutil.which("erlc") is None:
    raise ImportError("no erlc here; on Debian, `apt install erlang-base` brings it")


def _command() -> list[str]:
    made = build("erlc", "-o", "{directory}", "actors.erl")
    return ["erl", "-noshell", "-pa", str(made), "-run", "actors", "main"]


def _two_programs(size: int) -> Figures:
    with tempfile.TemporaryDirectory(prefix="erlang-") as directory, socket.socket() as probe:
        source = Path(__file__).parents[1] / "nodes" / "distribution.erl"
        made = build("erlc", "-o", "{directory}", str(source))
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
        probe.close()
        # A name server of its own, on loopback, that ends with the measurement.
        env = {**os.environ, "ERL_EPMD_PORT": port, "ERL_EPMD_ADDRESS": "127.0.0.1"}
        env["HOME"] = directory  # the cookie of the user stays as it is
        begin = ["erl", "-noshell", "-pa", str(made), "-setcookie", secrets.token_hex(16)]
        begin += ["-kernel", "inet_dist_use_interface", "{127,0,0,1}"]
        with serving(["epmd", "-port", port, "-d"], env, stderr=subprocess.STDOUT):
            serve = [*begin, "-sname", "b@localhost", "-run", "distribution", "serve", "x"]
            ask = [*begin, "-sname", "a@localhost", "-run", "distribution", "ask", "b@localhost"]
            with serving(serve, env):
                return asked([*ask, str(size), str(BYTES), str(PARALLEL)], env)


ADDS = {**adds("Erlang", _command), "two programs": {"Erlang": _two_programs}}
