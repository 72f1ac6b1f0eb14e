"""Erlang/OTP (Debian's ``erlang-base``): its processes, ``gen_server`` calls and active sockets."""

import shutil

from .compiled import adds, build

__all__ = ["ADDS"]

if shutil.which("erlc") is None:
    raise ImportError("no erlc here; on Debian, `apt install erlang-base` brings it")


def _command() -> list[str]:
    made = build("erlc", "-o", "{directory}", "actors.erl")
    return ["erl", "-noshell", "-pa", str(made), "-run", "actors", "main"]


ADDS = adds("Erlang", _command)
