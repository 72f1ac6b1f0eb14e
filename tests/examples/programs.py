"""Running the examples, as programs or in the program of the tests."""

import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from unittest import mock

import trio

__all__ = ["EXAMPLES", "ROOT", "Program", "promised", "promises", "run_here", "running"]

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"


def promises(folder: str) -> list[tuple[str, str]]:
    """The commands in the README of an example that are followed by their output, each with
    that.
    """
    blocks = re.findall(
        r"^```(\w*)\n(.*?)^```$",
        (EXAMPLES / folder / "README.md").read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    return [
        (command.strip(), printed)
        for (kind, command), (next_kind, printed) in pairwise(blocks)
        if (kind, next_kind) == ("", "text")
    ]


def promised(folder: str) -> str:
    """The promised output of the only command of this kind."""
    ((_, printed),) = promises(folder)
    return printed


def run_here(path: Path, *arguments: object, clock: trio.abc.Clock | None = None) -> None:
    """Run an example in this program, which has its imports already: most of the time of a short
    program is that of its imports.
    """
    with (
        mock.patch.object(sys, "argv", [str(path), *map(str, arguments)]),
        mock.patch.object(trio, "run", partial(trio.run, clock=clock)) if clock else nullcontext(),
    ):
        runpy.run_path(str(path), run_name="__main__")


class Program:
    """A program that was started, line by line."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def line(self) -> str:
        """The next line it prints; the time limit of the test bounds the wait."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def port(self) -> int:
        """The port at the end of the line in which it says where it listens. On a busy machine, log
        lines of the watchdog may come before.
        """
        while line := self.line():
            port = line.rpartition(":")[2]
            if port.isdigit():
                return int(port)
        raise EOFError("the program has ended")

    def interrupt(self) -> int:
        """Press Ctrl-C, and return the status."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=100)


@contextmanager
def running(*arguments: object) -> Iterator[Program]:
    """A program, until the end of the block at the latest."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            yield Program(process)
        finally:
            process.kill()
