"""The targets of strikes: each part of the gateway, from a program of the operating system to the
supervisor.
"""

import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from .rig import Rig

__all__ = ["MAIN", "PARTS", "decoders", "strike"]

Strike = Callable[[Rig], Awaitable[bool]]
"""Returns whether the part was there to be struck."""


def _process(name: str, *, asked: bool = False) -> Strike:
    async def strike(rig: Rig) -> bool:
        return rig.node.send_exit(name) if asked else rig.node.kill(name)

    return strike


def _one_of(kind: str, behaviour: str, owner: str = "") -> Strike:
    async def strike(rig: Rig) -> bool:
        found: Sequence[object] = (
            rig.metas(behaviour, owner) if kind == "meta" else rig.processes(behaviour)
        )
        return bool(found) and rig.node.kill(rig.random.choice(found))  # type: ignore[arg-type]

    return strike


def _with_udp(strike: Strike) -> Strike:
    async def costly(rig: Rig) -> bool:
        rig.udp_dies()
        hit = await strike(rig)
        if not hit:
            rig.udp_lives()
        return hit

    return costly


async def _program(rig: Rig) -> bool:
    programs = decoders()
    for number in programs:
        try:
            os.kill(number, signal.SIGKILL)
        except ProcessLookupError:  # it is gone, and its device has not noticed
            return False
    return bool(programs)


def decoders() -> list[int]:
    """The programs that decode, of this program."""
    found = []
    for thread in Path("/proc/self/task").glob("*/children"):
        for number in thread.read_text(encoding="utf-8").split():
            command = Path(f"/proc/{number}/cmdline")
            if command.exists() and b"decode.py" in command.read_bytes():
                found.append(int(number))
    return found


async def _client(rig: Rig) -> bool:
    rig.random.choice(rig.devices).break_off()
    return True


async def _gateway(rig: Rig) -> bool:
    hit = rig.node.kill("gateway")
    rig.expected["gateway"] = rig.expected.get("gateway", 0) + hit
    return hit


PARTS: Final[dict[str, Strike]] = {
    "pipeline": _process("readings"),
    "pipeline (asked)": _process("readings", asked=True),
    "database": _one_of("meta", "BlockingCalls", "readings"),
    "database thread": _one_of("meta", "_Worker", "readings"),
    "decoder": _process("decoder"),
    "device": _one_of("meta", "Program", "decoder"),
    "device thread": _one_of("meta", "Opening", "decoder"),
    "program": _program,
    "udp": _with_udp(_process("udp")),
    "udp socket": _with_udp(_one_of("meta", "UDPServer")),
    "tcp": _process("tcp"),
    "listener": _one_of("meta", "TCPServer"),
    "session": _one_of("process", "Session"),
    "connection": _one_of("meta", "TCPConnection"),
    "client": _client,
    "supervisor": _with_udp(_gateway),
}
"""By name, for the report."""
MAIN: Final = ("pipeline", "decoder", "udp", "tcp")


async def strike(rig: Rig, name: str) -> None:
    """Strike a part, and note it."""
    hit = await PARTS[name](rig)
    rig.findings.struck.append(name if hit else f"({name})")
