"""`upgrade`: has a running program start its next version, and follows the hand-over."""

import argparse
from collections.abc import Sequence

import trio

from ...handover.channel import connect
from ..exit_codes import Leave, Status
from ..output import say

__all__ = ["upgrade"]


def upgrade(options: argparse.Namespace) -> None:
    """Start the next version of a program, and say what was handed over."""
    trio.run(_upgrade, options.program)


async def _upgrade(name: str) -> None:
    channel = await connect(name)
    if channel is None:
        raise Leave(
            Status.NO_NODE,
            f"no running program has the name {name!r} for its next version; start it with "
            f"run(main, handover={name!r})",
        )
    try:
        await channel.say({"upgrade": 1})
        line = await channel.hear()
        if "started" in line:
            say(f"the next version has started: process {line['started']}")
            line = await channel.hear()
    except OSError:
        line = {}
    finally:
        channel.close()
    if "failed" in line:
        raise Leave(Status.FAILED, f"{line['failed']}; the running program goes on")
    if "done" not in line:
        raise Leave(
            Status.NO_ANSWER,
            f"the running program {name!r} has ended, or its version has no `ergo upgrade`",
        )
    _tell("listening sockets handed over", line.get("sockets", ()))
    _tell("states handed over", line.get("states", ()))
    _tell(
        "states not taken, since the next version has no process of this name with take_over",
        line.get("fresh", ()),
    )
    if moved := line.get("connections"):
        say(f"connections handed over: {moved}")
    staying = [f"{count} ({why})" for why, count in sorted(line.get("staying", {}).items())]
    _tell("connections that the old version serves to their end", staying)
    if hangs := line.get("hangs"):
        raise Leave(
            Status.FAILED,
            f"{hangs}, and the old version finishes its open work; kill the next version, and "
            "start the program again",
        )
    say("the next version serves, and the old one finishes its open work")


def _tell(what: str, names: Sequence[str]) -> None:
    if names:
        say(f"{what}: {', '.join(names)}")
