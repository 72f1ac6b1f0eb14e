"""`upgrade`: has a running program start its next version, and follows the hand-over."""

import argparse
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Final

import trio

from ..._core.vocabulary.hints import did_you_mean
from ...handover.channel import Channel, Line, connect, waiting_programs
from ..exit_codes import Leave, Status
from ..output import say

__all__ = ["upgrade"]

_LISTS: Final = {
    "sockets": "listening sockets handed over",
    "states": "states handed over",
    "fresh": "states not taken, since the next version has no process of this name with take_over",
}
"""The lists that a running program sends, and their titles."""


def upgrade(options: argparse.Namespace) -> None:
    """Start the next version of a program, and print the progress of the hand-over."""
    trio.run(_upgrade, options.program)


async def _upgrade(name: str) -> None:
    channel = await connect(name)
    if channel is None:
        hint = did_you_mean(name, [each for each in waiting_programs() if await _runs(each)])
        raise Leave(
            Status.NO_NODE,
            f"no running program has the name {name!r} for its next version"
            f"{hint or f'; start it with run(main, handover={name!r})'}",
        )
    line, began, process = Line(), trio.current_time(), 0
    with closing(channel):
        with suppress(OSError):  # the program has ended
            await channel.say({"upgrade": 1})
        while not line.keys() & {"done", "failed"} and (line := await _hear(channel)):
            process = line.get("started", process)
            for text in _news(line):
                say(f"{trio.current_time() - began:5.1f} s  {text}")
    if "failed" in line:
        goes_on = "" if line.get("ends") else "; the running program goes on"
        raise Leave(Status.FAILED, f"{line['failed']}{goes_on}")
    if "done" not in line and process:
        raise Leave(
            Status.FAILED,
            f"the running program {name!r} has ended without a word; its next version, process "
            f"{process}, goes on with all that it has got",
        )
    if "done" not in line:
        raise Leave(Status.NO_ANSWER, f"the running program {name!r} has ended")
    if hangs := line.get("hangs"):
        raise Leave(
            Status.FAILED,
            f"{hangs}, and the old version finishes its open work; kill the next version if it "
            "still runs, and start the program again when the old version has ended",
        )


async def _runs(name: str) -> bool:
    """Whether a program runs, and was not killed while it waited for a successor."""
    with suppress(OSError):
        channel = await connect(name)
        if channel is not None:
            channel.close()
            return True
    return False


async def _hear(channel: Channel) -> Line:
    """The next line of the running program; empty if the program has ended."""
    with suppress(OSError):
        return await channel.hear()
    return {}


def _news(line: Line) -> Iterator[str]:
    """The news in a line of the running program."""
    if "started" in line:
        yield f"the next version has started: process {line['started']}"
    if "moving" in line:
        yield f"connections under way: {line['moving']} of {line.get('of')} handed over"
    for key, text in _LISTS.items():
        if line.get(key):
            yield f"{text}: {', '.join(line[key])}"
    if line.get("connections"):
        yield f"connections handed over: {line['connections']}"
    if staying := sorted(line.get("staying", {}).items()):
        counts = ", ".join(f"{count} ({why})" for why, count in staying)
        yield f"connections that the old version serves to their end: {counts}"
    if "done" in line and not line.get("hangs"):
        yield "the next version serves, and the old one finishes its open work"
