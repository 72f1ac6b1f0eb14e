"""``python -m benchmarks.soak_nodes``: four programs on a NATS server, with seeded kills and stops
of programs and server.

Every 20 seconds all rest, and then the accounts of every pair of nodes must agree. At the end the
journals of all programs are added up. The status is 1 if a sum does not come out.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from tests.network.nats.server import NatsServer

from .journal import Books
from .program import NODES

__all__ = ["main"]

PERIOD = 20.0
"""Seconds between two rests."""
PATIENCE = 60.0
"""Seconds within which all must have come to rest."""


class Program:
    """A start of a node."""

    def __init__(self, name: str, url: str, folder: Path, seed: int) -> None:
        self.name = name
        self._program = subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.soak_nodes.program"),
                *(name, url, str(folder), str(seed)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        self._read()

    def ask(self, command: str) -> dict[str, Any]:
        """Give a command, and return the answer."""
        assert self._program.stdin is not None
        self._program.stdin.write(f"{command}\n".encode())
        self._program.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._program.stdout is not None
        line = self._program.stdout.readline()
        if not line:
            raise SystemExit(f"the program of {self.name} has ended")
        values: dict[str, Any] = json.loads(line)
        return values

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program."""
        self._program.send_signal(number)

    def end(self) -> None:
        """Kill the program."""
        self._program.kill()
        self._program.wait()
        for pipe in (self._program.stdin, self._program.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


class Soak:
    """The server, the programs, and the faults found."""

    def __init__(self, server: NatsServer, folder: Path, seed: int) -> None:
        self.server = server
        self.folder = folder
        self.random = Random(seed)
        self.acts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.killed: set[str] = set()
        self.checked = 0
        self.rests = 0
        self.programs = {name: self._start(name) for name in NODES}
        first = {name: program.ask("tell")["creation"] for name, program in self.programs.items()}
        self.base: dict[tuple[str, str], tuple[tuple[int, int], int]] = {
            (one, other): ((first[one], first[other]), 0)
            for one in NODES
            for other in NODES
            if one != other
        }
        """Of each pair: the starts of both, and how many operations more the first has confirmed
        than the second has received: with earlier starts of the second.
        """

    def _start(self, name: str) -> Program:
        return Program(name, self.server.url, self.folder, self.random.randrange(1 << 30))

    def act(self) -> None:
        """Kill or stop something, and start it again."""
        name = self.random.choice(NODES)
        act = self.random.choices(("kill", "stop", "server", "long server"), (3, 3, 3, 1))[0]
        self.acts[act] += 1
        match act:
            case "kill":
                self.killed.add(f"{name}+{self.programs[name].ask('tell')['creation']}")
                self.programs[name].end()
                time.sleep(self.random.uniform(0.0, 4.0))
                self.programs[name] = self._start(name)
            case "stop":
                self.programs[name].signal(signal.SIGSTOP)
                time.sleep(self.random.choice((0.5, 3.0, 7.0)))
                self.programs[name].signal(signal.SIGCONT)
            case _:
                self.server.kill()
                time.sleep(self.random.uniform(0.1, 2.0) if act == "server" else 8.0)
                self.server.start()

    def rest(self) -> None:
        """Let all rest, and compare the accounts of all pairs."""
        for program in self.programs.values():
            program.ask("rest")
        for program in self.programs.values():
            program.ask("meet")
        end = time.monotonic() + PATIENCE
        told: dict[str, Any] = {}
        while True:
            before, told = told, {name: each.ask("tell") for name, each in self.programs.items()}
            faults = self._compare(told)
            if (before == told and not faults) or time.monotonic() > end:
                break
            time.sleep(3.0)  # some heartbeats, with which nodes tell each other their accounts
        self.faults += faults
        self._keep_base(told)
        self.rests += 1
        sys.stderr.write(f"rest {self.rests}: {dict(self.acts)}, {faults or 'all agree'}\n")
        for program in self.programs.values():
            program.ask("go")

    def _compare(self, told: dict[str, Any]) -> list[str]:
        faults = []
        for one, other in ((one, other) for one in NODES for other in NODES if one != other):
            mine = told[one]["peers"].get(other)
            theirs = told[other]["peers"].get(one)
            if mine is None or theirs is None:
                faults.append(f"{one} and {other} do not know each other")
                continue
            parts = ("confirmed", "on_the_way", "waiting", "unconfirmed", "unsent")
            if mine["sent"] != sum(mine[part] for part in parts):
                faults.append(f"{one} to {other}: {mine} does not add up")
            elif mine["on_the_way"] or mine["waiting"] or mine["state"] != "up":
                faults.append(f"{one} to {other} does not come to rest: {mine}")
            starts = told[one]["creation"], told[other]["creation"]
            base = self.base.get((one, other))
            more = mine["confirmed"] - theirs["received"]
            if base is not None and base[0] == starts and base[1] != more:
                faults.append(f"{one} has confirmed {mine}, and {other} has received {theirs}")
        return faults

    def _keep_base(self, told: dict[str, Any]) -> None:
        for one in NODES:
            for other in NODES:
                if one != other and other in told[one]["peers"] and one in told[other]["peers"]:
                    starts = told[one]["creation"], told[other]["creation"]
                    more = (
                        told[one]["peers"][other]["confirmed"]
                        - told[other]["peers"][one]["received"]
                    )
                    known = self.base.get((one, other))
                    if known is None or known[0] != starts:
                        self.base[one, other] = starts, more
                    else:
                        self.checked += 1

    def end(self) -> Books:
        """End all programs in order, and read their journals."""
        for program in self.programs.values():
            program.ask("rest")
        for program in self.programs.values():
            program.ask("meet")
        time.sleep(2.0)
        for program in self.programs.values():
            program.end()
        books = Books(self.folder)
        nodes_killed = {start.partition("+")[0] for start in self.killed}
        for (start, to), pair in sorted(books.pairs.items()):
            for fault in pair.faults(start in self.killed, to in nodes_killed):
                self.faults.append(f"{start} to {to}: {fault}")
        leases = self.folder / "leases" / "only+0.journal"
        newest = 0
        for line in leases.read_text().splitlines():
            token = int(line.split()[0])
            if token < newest:
                self.faults.append(f"an act under the lease {token} after the lease {newest}")
            newest = max(newest, token)
        return books


def main(arguments: list[str] | None = None) -> int:
    """Run the soak, and print a report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak_nodes", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="soak-", dir="/tmp") as place,
        NatsServer("", "--jetstream", "--store_dir", f"{place}/store") as server,
    ):
        (Path(place) / "leases").mkdir()
        soak = Soak(server, Path(place), options.seed)
        try:
            end = time.monotonic() + 60 * options.minutes
            rest_at = time.monotonic() + PERIOD
            while time.monotonic() < end:
                time.sleep(soak.random.expovariate(0.5))
                soak.act()
                if time.monotonic() > rest_at:
                    soak.rest()
                    rest_at = time.monotonic() + PERIOD
            soak.rest()
            soak.rest()
            books = soak.end()
        finally:
            for program in soak.programs.values():
                program.end()
        leases = (Path(place) / "leases" / "only+0.journal").read_text().splitlines()
    pairs = books.pairs.values()
    lines = {
        "faults": soak.faults[:20] or "none",
        "acts": dict(soak.acts),
        "rests, pairs of which the accounts agreed": f"{soak.rests}, {soak.checked}",
        "starts of senders and their receivers": len(books.pairs),
        "messages sent": sum(pair.sent for pair in pairs),
        "messages received": sum(len(pair.received) for pair in pairs),
        "dead letters that never left": sum(pair.unsent for pair in pairs),
        "dead letters that were not confirmed": sum(pair.unconfirmed for pair in pairs),
        "calls answered, failed": f"{books.answered}, {books.failed}",
        "acts of the singleton, leases": f"{len(leases)}, "
        f"{len({line.split()[0] for line in leases})}",
    }
    for name, value in lines.items():
        print(f"{name}: {value}")
    return 1 if soak.faults else 0


if __name__ == "__main__":
    sys.exit(main())
