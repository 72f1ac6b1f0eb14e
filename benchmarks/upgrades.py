"""``python -m benchmarks upgrades``: peers connect, ask once and leave, while ``ergo upgrade``
replaces their program again and again.

Each answer is the next number of a counter whose state moves with each upgrade. So a peer that is
refused or reset, a lost state and a doubled request are all found: the answers of all peers are
each number once.
"""

import argparse
import contextlib
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from multiprocessing.synchronize import Event
from pathlib import Path
from time import perf_counter, sleep

import trio

from ergo_py import PID, Actor, Alias, Caller, ChildSpec, Node, run
from ergo_py.meta import TCP, Delimiter, TCPServer
from ergo_py.shell.cli import main as ergo

__all__ = ["free_port", "main", "upgrade"]

_NAME = "upgrades"
_CLIENTS = 2
"""Programs of peers, each with a single peer at a time."""


# -- the program -----------------------------------------------------------------------------------


class Total(Actor):
    """Counts, and moves."""

    def __init__(self) -> None:
        self.total = 0

    def handle_call(self, request: str, caller: Caller) -> int:
        self.total += 1
        return self.total

    def hand_over(self) -> object:
        return self.total

    def take_over(self, state: int) -> None:
        self.total = state


class Session(Actor):
    """Answers a peer with the next number."""

    async def handle_message(self, message: object, sender: PID | Alias) -> None:
        if isinstance(message, TCP.Data):
            number = await self.call("total", "next")
            self.send(message.connection, TCP.Send(b"%d\n" % number))


class Door(Actor):
    """Owns the server."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def init(self) -> None:
        await self.spawn_meta(
            TCPServer(
                "127.0.0.1",
                self.port,
                sock="door",
                receiver=Session,
                reader="task",
                framing=Delimiter(b"\n"),
                queue=1024,
            )
        )


async def _serve(node: Node, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    door = ChildSpec("door", Door, int(sys.argv[-1]))
    await node.supervise([ChildSpec("total", Total), door])
    task_status.started()
    await trio.sleep_forever()


# -- the peers -------------------------------------------------------------------------------------

Told = tuple[Counter[str], list[int], list[float]]


def _ask(
    address: tuple[str, int], count: int, stop: Event, told: "multiprocessing.Queue[Told]"
) -> None:
    """Ask as peers, one after another: ``count`` of them at least, and until ``stop``."""
    seen: Counter[str] = Counter()
    numbers, times = list[int](), list[float]()
    while sum(seen.values()) < count or not stop.is_set():
        began = perf_counter()
        try:
            with socket.create_connection(address, timeout=60) as peer:
                peer.sendall(b"next\n")
                answer = peer.recv(100)
        except OSError as error:
            seen[type(error).__name__] += 1
            continue
        times.append(perf_counter() - began)
        if answer.endswith(b"\n"):
            seen["served"] += 1
            numbers.append(int(answer))
        else:
            seen["closed"] += 1
    told.put((seen, numbers, times))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def _wait_until_up(address: tuple[str, int]) -> None:
    """Wait until the first program listens, with a question less for the peers."""
    while True:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(address) as peer:
            peer.sendall(b"next\n")
            if peer.recv(100) == b"1\n":
                return


def upgrade(name: str) -> tuple[int, int, int]:
    """Upgrade a program. Returns the status, the process of the next version, and how many
    connections have moved.
    """
    with tempfile.TemporaryFile("w+") as out, contextlib.redirect_stdout(out):
        status = ergo(["upgrade", name])
        out.seek(0)
        said = out.read()
    process, moved = (
        int(said.partition(text)[2].partition("\n")[0] or 0)
        for text in ("process ", "connections handed over: ")
    )
    return status, process, moved


def main() -> int:
    """Upgrade until all peers have asked. 1 if a peer was not served, or an answer is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks upgrades", description=__doc__)
    parser.add_argument("--upgrades", type=int, default=1000)
    parser.add_argument("--peers", type=int, default=100_000)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    multiprocessing.set_start_method("spawn")
    address = "127.0.0.1", free_port()
    told: multiprocessing.Queue[Told] = multiprocessing.Queue()
    stop = multiprocessing.Event()
    began, failed = perf_counter(), 0
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        os.environ["XDG_RUNTIME_DIR"] = place
        command = [sys.executable, "-m", "benchmarks.upgrades", "--program", str(address[1])]
        process = subprocess.Popen(command).pid
        _wait_until_up(address)
        share = options.peers // _CLIENTS
        clients = [
            multiprocessing.Process(target=_ask, args=(address, share, stop, told), daemon=True)
            for _ in range(_CLIENTS)
        ]
        for client in clients:
            client.start()
        for _ in range(options.upgrades):
            status, following, _ = upgrade(_NAME)
            failed, process = failed + bool(status), process if status else following
        stop.set()
        results = [told.get() for _ in clients]
        os.kill(process, signal.SIGTERM)
        while Path(place, "ergo", f"{_NAME}.handover").exists():
            sleep(0.05)
    seen: Counter[str] = sum((each for each, _, _ in results), Counter())
    numbers = sorted(number for _, each, _ in results for number in each)
    times = sorted(time for _, _, each in results for time in each)
    is_right = numbers == list(range(2, len(numbers) + 2))
    print(
        f"{options.upgrades} upgrades, {failed} of them failed; {sum(seen.values())} peers in "
        f"{perf_counter() - began:.0f} s, load {os.getloadavg()[0]:.1f}: {dict(seen)}; answers "
        f"{'each number once' if is_right else 'LOST OR DOUBLED'}; half of the peers within "
        f"{times[len(times) // 2] * 1000:.1f} ms, 99 % within "
        f"{times[len(times) * 99 // 100] * 1000:.0f} ms, all within {times[-1] * 1000:.0f} ms"
    )
    return 0 if is_right and not failed and set(seen) == {"served"} else 1


if __name__ == "__main__":
    if "--program" in sys.argv:
        run(_serve, handover=_NAME, log_output="none")
    else:
        sys.exit(main())
