"""``python -m benchmarks.chaos.servers``: singletons on three NATS servers that are killed, retired
and restored from a backup, in about a minute.

Three programs compete for a singleton that writes into a fenced table. After each fault the table
must take writes again; at the end an independent checker reads the table.
"""

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Final

from tests.network.nats.server import NatsServer, ThreeServers

from .fenced_writer import LEASE, accepted, last_writer, make_table, refused, violations

__all__ = ["main"]

NODES: Final = ("a@chaos", "b@chaos", "c@chaos")
RECOVERY: Final = 60.0
"""Seconds within which the table must take writes again."""
STOPPED: Final = 2 * LEASE
"""Seconds for which a program is stopped: longer than its lease."""
RETIRED: Final = 5.0
"""Seconds that a server in lame duck mode gets before it is killed."""


class Cluster:
    """The servers, the programs and the table."""

    def __init__(self, place: Path, servers: list[NatsServer], random: Random) -> None:
        self.place = place
        self.servers = servers
        self.random = random
        self.table = place / "table.db"
        make_table(self.table)
        self.violations: list[str] = []
        self._starts = 0
        self._programs = {name: self._start(name) for name in NODES}

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        self._starts += 1
        urls = [server.url for server in self.servers]
        module = f"{__package__}.fenced_writer"
        return subprocess.Popen(
            [sys.executable, "-m", module, name, str(self.table), str(self._starts), *urls]
        )

    def close(self) -> None:
        for program in self._programs.values():
            program.kill()
            program.wait()

    def progress(self, fault: str) -> float:
        """Wait until the table has taken some more writes. Returns how long it took."""
        began, goal = time.monotonic(), accepted(self.table) + 5
        while accepted(self.table) < goal:
            if time.monotonic() > began + RECOVERY:
                self.violations.append(f"{fault}: no write within {RECOVERY:g} s")
                break
            time.sleep(0.05)
        return time.monotonic() - began

    # -- faults ------------------------------------------------------------------------------------

    def kill_server(self) -> None:
        """A server is lost, and comes back."""
        server = self.random.choice(self.servers)
        server.kill()
        self.progress("a server is lost")
        server.start()

    def retire_server(self) -> None:
        """A server hands its clients over (lame duck mode), and ends."""
        server = self.random.choice(self.servers)
        server.signal(signal.SIGUSR2)
        self.progress("a server in lame duck mode")
        time.sleep(RETIRED)
        server.kill()
        self.progress("a server that was retired")
        server.start()

    def kill_holder(self) -> None:
        """The program of the singleton is killed, and starts again."""
        name = last_writer(self.table)
        self._programs[name].kill()
        self._programs[name].wait()
        self._programs[name] = self._start(name)

    def stop_holder(self) -> None:
        """The program of the singleton is stopped for longer than its lease."""
        program = self._programs[last_writer(self.table)]
        program.send_signal(signal.SIGSTOP)
        time.sleep(STOPPED)
        self.progress("a stopped program")
        program.send_signal(signal.SIGCONT)

    def back_up(self) -> None:
        """All servers go down for a copy of their directories."""
        self._restart_servers(lambda server: self._copy("jetstream", "backup", server))

    def restore(self) -> None:
        """All servers go down, and start with the copy."""
        self._restart_servers(lambda server: self._copy("backup", "jetstream", server))
        time.sleep(2 * LEASE)  # the holder notices the loss, and all wait for a lease

    def restore_and_restart(self) -> None:
        """The same, and all programs start at the same time: none has seen the lost entries."""
        self.close()
        self.restore()
        self._programs = {name: self._start(name) for name in NODES}

    def _restart_servers(self, change: Callable[[int], None]) -> None:
        for server in self.servers:
            server.kill()
        for number, server in enumerate(self.servers):
            change(number)
            server.start()

    def _copy(self, source: str, target: str, number: int) -> None:
        shutil.rmtree(self.place / target / str(number), ignore_errors=True)
        shutil.copytree(self.place / source / str(number), self.place / target / str(number))


def run(seed: int) -> int:
    """Inflict all faults. Returns the exit status."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ergo-", dir="/tmp")))
        (place / "jetstream").mkdir()
        servers = stack.enter_context(ThreeServers(place / "jetstream"))
        cluster = Cluster(place, servers, Random(seed))
        stack.callback(cluster.close)
        print(f"{cluster.progress('the start'):6.1f} s until the first writes", flush=True)
        for fault in (
            cluster.kill_server,
            cluster.back_up,
            cluster.kill_holder,
            cluster.stop_holder,
            cluster.restore,
            cluster.retire_server,
            cluster.restore_and_restart,
        ):
            text = (fault.__doc__ or "").partition(".")[0].partition(":")[0]
            fault()
            print(f"{cluster.progress(text):6.1f} s until further writes: {text}", flush=True)
        found = [*cluster.violations, *violations(cluster.table)]
        print(
            f"{accepted(cluster.table)} writes, and {refused(cluster.table)} refused, with seed "
            f"{seed}: {'; '.join(found) or 'nothing was violated'}"
        )
        return 1 if found else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos.servers", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="chooses the servers (default: 1)")
    return run(parser.parse_args(arguments).seed)


if __name__ == "__main__":
    sys.exit(main())
