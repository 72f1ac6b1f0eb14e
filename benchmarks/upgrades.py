"""``python -m benchmarks upgrades``: peers connect, ask once and leave, while ``ergo upgrade``
replaces their program again and again.

Each answer is the next number of a counter whose state moves with each upgrade. So a peer that is
refused or reset, a lost state and a doubled request are all found: the answers of all peers are
each number once.

With ``--connections 9000``, so many peers stay connected instead, while a single upgrade moves
their connections, and some of them ask again and again: the longest wait of a peer for an answer is
the pause of its connection, and the time from the first such wait to the last is that of the move.
Each answer counts the questions of its connection, so that a lost or doubled byte is found.
"""

import argparse
import contextlib
import multiprocessing
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter, deque
from itertools import cycle
from multiprocessing.synchronize import Event
from pathlib import Path
from time import perf_counter, sleep

import trio

from ergo_py import PID, Actor, Alias, Caller, ChildSpec, Node, run
from ergo_py.meta import TCP, Delimiter, TCPServer
from ergo_py.shell.cli import main as ergo

__all__ = ["main"]

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


class Counting(Actor):
    """Answers a peer that stays with the number of its questions."""

    def __init__(self) -> None:
        self.asked = 0

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        if isinstance(message, TCP.Data):
            self.asked += 1
            self.send(message.connection, TCP.Send(b"%d\n" % self.asked))

    def hand_over(self) -> object:
        return self.asked

    def take_over(self, state: int) -> None:
        self.asked = state


class Session(Actor):
    """Answers a peer with the next number."""

    async def handle_message(self, message: object, sender: PID | Alias) -> None:
        if isinstance(message, TCP.Data):
            number = await self.call("total", "next")
            self.send(message.connection, TCP.Send(b"%d\n" % number))


class Door(Actor):
    """Owns the server."""

    def __init__(self, port: int, session: type[Actor]) -> None:
        self.port, self.session = port, session

    async def init(self) -> None:
        await self.spawn_meta(
            TCPServer(
                "127.0.0.1",
                self.port,
                sock="door",
                receiver=self.session,
                reader="task",
                framing=Delimiter(b"\n"),
                queue=1024,
            )
        )


async def _serve(node: Node, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    session = Counting if "--moving" in sys.argv else Session
    door = ChildSpec("door", Door, int(sys.argv[-1]), session)
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


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def _wait_until_up(address: tuple[str, int]) -> None:
    """Wait until the first program listens, with a question less for the peers."""
    while True:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(address) as peer:
            peer.sendall(b"next\n")
            if peer.recv(100) == b"1\n":
                return


def _upgrade() -> tuple[int, int, int]:
    """Upgrade once. Returns the status, the process of the next version, and how many connections
    have moved.
    """
    with tempfile.TemporaryFile("w+") as out, contextlib.redirect_stdout(out):
        status = ergo(["upgrade", _NAME])
        out.seek(0)
        said = out.read()
    process, moved = (
        int(said.partition(text)[2].partition("\n")[0] or 0)
        for text in ("process ", "connections handed over: ")
    )
    return status, process, moved


# -- peers that stay -------------------------------------------------------------------------------

_ASKING = 100
"""Peers that ask again and again, in equal distances among all."""
_EVERY = 0.05
"""Seconds between two questions of such a peer, which does not wait for the answers: each pause
meets a question within this time.
"""


class _Standing:
    """A peer that stays connected, with the number of its questions and answers."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.sock = socket.create_connection(address, timeout=120)
        self.asked: deque[float] = deque()
        """When each question was asked that has no answer yet."""
        self.answers = 0
        self.wrong = 0
        self.longest = (0.0, 0.0)
        """When the question with the longest wait was asked and answered."""
        self._rest = b""

    def ask(self) -> None:
        """Ask a question."""
        self.asked.append(perf_counter())
        self.sock.sendall(b"next\n")

    def hear(self) -> None:
        """Hear some answers, and note a wrong or missing one."""
        heard = self.sock.recv(65_536)
        *lines, self._rest = (self._rest + heard).split(b"\n")
        now = perf_counter()
        for line in lines:
            self.answers += 1
            self.wrong += line != b"%d" % self.answers
            asked = self.asked.popleft()
            first, last = self.longest
            if now - asked > last - first:
                self.longest = asked, now
        if not heard:
            self.wrong += len(self.asked)
            self.asked.clear()

    def ask_alone(self) -> None:
        """Ask, and wait for all answers."""
        self.ask()
        while self.asked:
            self.hear()


def _ask_often(peers: list[_Standing], stop: threading.Event) -> None:
    """Ask as each of the peers, until ``stop`` and all are answered."""
    with selectors.DefaultSelector() as ready:
        for peer in peers:
            ready.register(peer.sock, selectors.EVENT_READ, peer)
        steps, following = cycle(peers), perf_counter()
        while not stop.is_set() or any(peer.asked for peer in peers):
            while perf_counter() >= following and not stop.is_set():
                next(steps).ask()
                following += _EVERY / len(peers)
            for key, _ in ready.select(max(0.0, min(0.05, following - perf_counter()))):
                key.data.hear()


def _move(address: tuple[str, int], count: int) -> bool:
    """Move the connections of peers that stay with one upgrade. Returns whether all have moved, and
    all answers were right.
    """
    peers = [_Standing(address) for _ in range(count)]
    for peer in peers:
        peer.ask_alone()
        peer.longest = 0.0, 0.0
    often = peers[:: max(1, count // _ASKING)]
    stop = threading.Event()
    asking = threading.Thread(target=_ask_often, args=(often, stop))
    asking.start()
    status, process, moved = _upgrade()
    stop.set()
    asking.join()
    pauses = sorted(last - first for first, last in (peer.longest for peer in often))
    took = max(peer.longest[1] for peer in often) - min(peer.longest[0] for peer in often)
    answers = sum(peer.answers for peer in often)
    for peer in peers:
        peer.ask_alone()
    os.kill(process, signal.SIGTERM)
    wrong = sum(peer.wrong for peer in peers)
    print(
        f"{moved} of {count} connections moved in {took:.2f} s, {wrong} answers wrong or missing, "
        f"load {os.getloadavg()[0]:.1f}; {answers} questions of {len(often)} peers, each every "
        f"{_EVERY * 1000:.0f} ms: half of the peers waited at most "
        f"{pauses[len(pauses) // 2] * 1000:.0f} ms, 99 % at most "
        f"{pauses[len(pauses) * 99 // 100] * 1000:.0f} ms, all at most {pauses[-1] * 1000:.0f} ms"
    )
    for peer in peers:
        peer.sock.close()
    return not status and moved == count and not wrong


def main() -> int:
    """Upgrade until all peers have asked. 1 if a peer was not served, or an answer is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks upgrades", description=__doc__)
    parser.add_argument("--upgrades", type=int, default=1000)
    parser.add_argument("--peers", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=0)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    multiprocessing.set_start_method("spawn")
    address = "127.0.0.1", _free_port()
    told: multiprocessing.Queue[Told] = multiprocessing.Queue()
    stop = multiprocessing.Event()
    began, failed = perf_counter(), 0
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        os.environ["XDG_RUNTIME_DIR"] = place
        command = [sys.executable, "-m", "benchmarks.upgrades", "--program", str(address[1])]
        if options.connections:
            command.insert(-1, "--moving")
        process = subprocess.Popen(command).pid
        _wait_until_up(address)
        if options.connections:
            return 0 if _move(address, options.connections) else 1
        share = options.peers // _CLIENTS
        clients = [
            multiprocessing.Process(target=_ask, args=(address, share, stop, told), daemon=True)
            for _ in range(_CLIENTS)
        ]
        for client in clients:
            client.start()
        for _ in range(options.upgrades):
            status, following, _ = _upgrade()
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
