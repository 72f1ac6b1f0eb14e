"""A node with a singleton in a program of its own, which tests kill and stop.

The singleton writes a line for its start, each of its acts and its end into a journal: the number
of its lease, its node, and the event.
"""

import fcntl
import json
import os
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import trio

from ergo_py import Actor, ChildSpec, open_node
from ergo_py.cluster import Singleton
from tests.network.pairs import make_network
from tests.network.programs import running_program

__all__ = ["Journal", "singleton_program"]


class Writer(Actor):
    """The singleton."""

    def __init__(self, journal: str) -> None:
        self.journal = journal

    def init(self) -> None:
        self.lease = Singleton.lease_of(self)
        self.write("start")
        self.send_every(0.01, self.pid, "act")

    def handle_message(self, message: Any, sender: Any) -> None:
        # The test stops this program with the lock in its hand: not between check and act, which no
        # lease can prevent.
        with open(f"{self.journal}.lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.lease.check()
            self.write("act")

    def terminate(self, reason: object) -> None:
        self.write("end")

    def write(self, event: str) -> None:
        line = f"{self.lease.token} {self.node.name} {event}\n"
        file = os.open(self.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, line.encode())
        os.close(file)


class Journal:
    """The journal of all programs of a test."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[tuple[int, str, str]]:
        if not self.path.exists():
            return []
        rows = [line.split() for line in self.path.read_text().splitlines()]
        return [(int(token), node, event) for token, node, event in rows]

    def has(self, node: str, event: str) -> bool:
        return any(line[1:] == (node, event) for line in self.lines())

    def check(self) -> None:
        """No act under a lease comes after the first act under a later lease."""
        newest = 0
        for token, _, event in self.lines():
            if event != "end":
                assert token >= newest, self.lines()
                newest = token


async def main() -> None:
    name, journal = sys.argv[1], sys.argv[2]
    settings = json.loads(sys.argv[3])
    lease = settings.pop("lease")
    async with open_node(name, network=make_network(**settings), watchdog=None) as node:
        spec = ChildSpec("writer", Writer, journal, shutdown=0.2, terminate_timeout=0.2)
        await node.supervise([Singleton(spec, lease=lease)], intensity=1000, period=1.0)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)


def singleton_program(
    name: str, journal: Journal, **settings: Any
) -> AbstractAsyncContextManager[trio.Process]:
    """A node with the singleton in a program of its own."""
    return running_program("-m", __name__, name, str(journal.path), json.dumps(settings))


if __name__ == "__main__":
    trio.run(main)
