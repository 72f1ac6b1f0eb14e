"""A node that keeps no entities: its start, processes and messages, beside a program in which the
module that knows of entities is empty.
"""

import json
import os
import subprocess
import sys
from functools import partial

from ..harness import Case, Figures, Goal, Line

__all__ = ["CASES"]

_EMPTY = """\
import sys, types
empty = types.ModuleType("ergo_py.entity_handles")
empty.__getattr__ = lambda name: type(name, (), {})
sys.modules["ergo_py.entity_handles"] = empty
"""
_PROGRAM = """\
import json
from time import process_time
import trio
from trio.testing import wait_all_tasks_blocked

began = process_time()
from ergo_py import Actor, open_node

class Sink(Actor):
    def handle_message(self, message, sender):
        pass

async def main(size):
    async with open_node(log_output="none", watchdog=None) as node:
        opened = process_time()
        for _ in range(size):
            sink = await node.spawn(Sink)
        await wait_all_tasks_blocked()
        spawned = process_time()
        for _ in range(size):
            for _ in range(10):
                node.send(sink, "message")
            await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked()
        sent = process_time()
    print(json.dumps({
        "open": (opened - began) * 1e6,
        "spawn": (spawned - opened) / size * 1e6,
        "send": (sent - spawned) / size / 10 * 1e6,
    }))

trio.run(main, 1000)
"""


def _run(before: str, size: int) -> Figures:
    """The cheapest of several programs: noise only ever adds to the time of a program."""
    taken = [_figures(before) for _ in range(size)]
    return {name: min(each[name] for each in taken) for name in taken[0]}


def _figures(before: str) -> dict[str, float]:
    # Without bytecode files each program would compile all modules, which takes most of the time.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", before + _PROGRAM]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=60, env=environment
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _line(name: str, figure: str) -> Line:
    return Line(name, "ergo", figure=figure, goals=(Goal("durable", 1.02, "without the module"),))


CASES = [
    Case(
        name="entities, none",
        about="a node that keeps none: import and open it, spawn, send",
        unit="µs",
        size=5,
        least=1,
        variants={
            "ergo": partial(_run, ""),
            "without the module": partial(_run, _EMPTY),
        },
        lines=[_line("import and open", "open"), _line("spawn", "spawn"), _line("send", "send")],
        reference="without the module",
    ),
]
