"""A node in a program of its own, which tests kill and stop."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from ergo_py import Name, Node, TargetDownError
from tests.network.pairs import Total

__all__ = ["COUNTER", "other_program", "running_program", "until_it_answers"]

PROGRAM = """
import json, sys, trio
from ergo_py import open_node
from tests.network.pairs import make_network
from tests.network.test_nodes import Counter

async def main():
    network = make_network(**json.loads(sys.argv[1]))
    async with open_node("b@test", network=network, watchdog=None) as node:
        await node.spawn(Counter, name="counter")
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)

trio.run(main)
"""

COUNTER = Name("counter", "b@test")


def other_program(
    place: str | os.PathLike[str],
    beat: float = 1.0,
    patience: float = 30.0,
    kind: str = "local",
    **settings: Any,
) -> AbstractAsyncContextManager[trio.Process]:
    """The node b@test in a program of its own."""
    settings |= {"kind": kind, "place": os.fspath(place), "beat": beat, "patience": patience}
    return running_program("-c", PROGRAM, json.dumps(settings))


async def until_it_answers(node: Node) -> None:
    """Call the counter, which has counted nothing, until it answers: on a busy machine the patience
    may be over before the answer.
    """
    with trio.fail_after(120):
        while True:
            try:
                assert await node.call(COUNTER, Total(), timeout=30) == 0
                return
            except TargetDownError:
                await trio.sleep(0.01)


@asynccontextmanager
async def running_program(
    *arguments: str, within: Sequence[str] = ()
) -> AsyncIterator[trio.Process]:
    """A Python program that writes ``ready``, and ends with its standard input. The beginning of a
    command (``within``) runs it in a network namespace.
    """
    program = await trio.lowlevel.open_process(
        [*within, sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert program.stdout is not None
        with trio.fail_after(60):
            assert (await program.stdout.receive_some(100)).startswith(b"ready")
        yield program
    finally:
        if program.returncode is None:
            program.send_signal(signal.SIGCONT)
            program.kill()
        await program.wait()
        for pipe in (program.stdin, program.stdout):
            if pipe is not None:
                await pipe.aclose()
