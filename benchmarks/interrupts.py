"""``python -m benchmarks.interrupts``: a single Ctrl-C, at a random moment, for a busy node under
plain ``trio.run``.

Each trial is a program of its own: it opens a node as the README does, and keeps it busy with
calls, timers, threads, crashes and restarts until SIGINT comes. It must end with
``KeyboardInterrupt`` itself, not with a group around it, soon, after every process has been stopped
in order, and without leaving a thread behind.
"""

import argparse
import gc
import json
import os
import select
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

import trio
import trio.lowlevel

from ergo_py import Actor, Caller, ChildSpec, Node, Supervisor, SupervisorSpec, Threads, open_node

__all__ = ["Trial", "main", "trial"]

SLOW = 4.0
"""Seconds from the signal to the end of ``trio.run`` that are too many: a lost wake-up costs the
five of ``shutdown``.
"""
HANGS = 20.0
"""Seconds after which a program counts as hanging."""
FIRST = 0.12
"""Seconds, from the start of the program, in which the signal comes."""


@dataclass
class Trial:
    """How a program ended."""

    number: int
    after: float
    """Seconds from its start to the signal."""
    how: str
    """``KeyboardInterrupt``, another exception, ``returned`` or ``hangs``."""
    seconds: float
    """From the signal to the end of ``trio.run``."""
    threads: list[str]
    """Those that were left."""
    forced: str
    """The text of the exit report if anything did not stop by itself."""

    def faults(self, slow: float) -> list[str]:
        """The violations. An end that takes longer than ``slow`` seconds is a violation."""
        found = [] if self.how == "KeyboardInterrupt" else [f"ended with {self.how}"]
        if self.seconds > slow:
            found.append("slow")
        if self.threads:
            found.append("left threads")
        if self.forced:
            found.append("not in order")
        return found


# -- the program that is interrupted ---------------------------------------------------------------


class Server(Actor):
    def handle_call(self, request: Any, caller: Caller) -> object:
        return request


class Waiter(Actor):
    async def handle_call(self, request: Any, caller: Caller) -> object:
        await trio.lowlevel.checkpoint()
        return await self.call("server", request)

    async def terminate(self, reason: object) -> None:
        await trio.lowlevel.checkpoint()


class Blocking(Actor):
    def handle_call(self, request: Any, caller: Caller) -> object:
        return request


class Driver(Actor):
    async def post_start(self) -> None:
        self.send(self.pid, 0)
        self.send_every(0.001, self.pid, "tick")

    async def handle_message(self, message: Any, sender: Any) -> None:
        if message == "tick":
            child = await self.spawn(Waiter)
            self.send_exit(child, "enough")
            return
        await self.call("waiter", message)
        if message % 5 == 0:
            self.send("fragile", "crash")
        if message % 7 == 0:
            await self.call("blocking", message)
        self.send(self.pid, message + 1)


class Fragile(Actor):
    def handle_message(self, message: Any, sender: Any) -> None:
        raise ValueError(message)

    def terminate(self, reason: object) -> None:
        pass


async def busy(opened: list[Node]) -> None:
    """The program, in the form of the README."""
    async with open_node("busy@localhost", log_output="none", watchdog=0.5) as node:
        opened.append(node)
        children = [
            ChildSpec("server", Server),
            ChildSpec("waiter", Waiter),
            ChildSpec("blocking", Blocking, dispatcher=Threads()),
            ChildSpec("fragile", Fragile),
            ChildSpec("driver", Driver),
        ]
        await node.spawn(Supervisor, SupervisorSpec(children, intensity=1_000_000))
        while True:
            await node.call("waiter", 1)
            pid = await node.spawn(Server)
            node.kill(pid)


def _program(report: int) -> None:
    opened: list[Node] = []
    how = "returned"
    try:
        os.write(report, b"\n")
        trio.run(busy, opened)
    except KeyboardInterrupt:
        how = "KeyboardInterrupt"
    except BaseException as error:
        how = f"{type(error).__name__}: {error}"
    ended = time.monotonic()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    left = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    for thread in left:
        # A thread of a dispatcher is told to end, and not waited for.
        if not thread.name.startswith("Trio thread"):
            thread.join(2.0)
    names = [one.name for one in left if one.is_alive() and not one.name.startswith("Trio thread")]
    outcome = opened[0].exit_report if opened else None
    forced = (
        str(outcome) if opened and (outcome is None or outcome.killed or outcome.abandoned) else ""
    )
    os.write(
        report,
        json.dumps({"how": how, "ended": ended, "threads": names, "forced": forced}).encode(),
    )


# -- the trials ------------------------------------------------------------------------------------


def trial(number: int, after: float, hangs: float = HANGS) -> Trial:
    """Start the program, interrupt it ``after`` seconds from its start, and say how it ended."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            # The program's own handler, however its parent handles Ctrl-C.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _program(writing)
        finally:
            os._exit(0)
    os.close(writing)
    try:
        os.read(reading, 1)
        time.sleep(after)
        sent = time.monotonic()
        os.kill(child, signal.SIGINT)
        found = b""
        while select.select([reading], [], [], max(0.0, sent + hangs - time.monotonic()))[0]:
            part = os.read(reading, 65536)
            if not part:
                break
            found += part
        if not found:
            return Trial(number, after, "hangs", hangs, [], "")
        told = json.loads(found)
        return Trial(
            number, after, told["how"], told["ended"] - sent, told["threads"], told["forced"]
        )
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.interrupts", description=__doc__)
    parser.add_argument(
        "--trials", type=int, default=500, help="how many programs are interrupted (default: 500)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="decides when the signals come (default: 1)"
    )
    parser.add_argument(
        "--hangs", type=float, default=HANGS, help=f"seconds that count as for ever ({HANGS:g})"
    )
    parser.add_argument(
        "--slow", type=float, default=SLOW, help=f"seconds that an end may take ({SLOW:g})"
    )
    chosen = parser.parse_args(arguments)
    random = Random(chosen.seed)
    gc.freeze()
    counts: Counter[str] = Counter()
    slowest = 0.0
    for number in range(chosen.trials):
        found = trial(number, random.uniform(0.0, FIRST), chosen.hangs)
        slowest = max(slowest, found.seconds)
        faults = found.faults(chosen.slow)
        counts.update(faults or ["good"])
        if faults:
            print(json.dumps(asdict(found)))
    print(
        f"{chosen.trials} interrupted, seed {chosen.seed}: {dict(counts)}; the slowest took "
        f"{slowest:.3f} s"
    )
    return 0 if set(counts) <= {"good"} else 1


if __name__ == "__main__":
    sys.exit(main())
