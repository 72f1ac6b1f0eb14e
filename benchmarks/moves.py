"""``python -m benchmarks moves``: an upgrade moves open connections, of TCP and of WebSockets; and
beside it the same by hand, with trio and ``SCM_RIGHTS`` alone.

Some peers ask again and again: the longest wait of a peer for an answer is the pause of its
connection, and the time from the first such wait to the last is that of the move. Each answer
counts the questions of its connection, so that a lost or doubled byte is found. A second upgrade,
while no peer asks, tells the processor time: of the old program during the whole upgrade, and of
the new program from the first connection that it takes.

By hand, a connection is a task, which is cancelled between two reads. The old program sends 100
sockets in a message, with their counts and unread bytes; the new program starts their tasks. There
is no answer, no turn, and nothing for bytes that wait to be written: a program that fails loses
connections.
"""

import argparse
import array
import contextlib
import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from time import perf_counter, process_time
from typing import NamedTuple

import trio

from benchmarks.upgrades import free_port, upgrade
from ergo_py import PID, Actor, Alias, ChildSpec, Node, run
from ergo_py.meta import TCP, Delimiter, TCPServer
from ergo_py.web import WS, Route, WebServer

__all__ = ["main"]

_NAME = "moves"
_KINDS = ("tcp", "websocket", "hand")
_ASKING = 100
"""Peers that ask again and again, in equal distances among all."""
_EVERY = 0.05
"""Seconds between two questions of such a peer, which does not wait for the answers: each pause
meets a question within this time.
"""
_BATCH = 100
"""Sockets in a message, as in a hand-over."""
_TICKS = os.sysconf("SC_CLK_TCK")


# -- the programs ----------------------------------------------------------------------------------


class _Used:
    """The processor time of this program since its first move."""

    first: float | None = None

    @classmethod
    def begin(cls) -> None:
        """Count from now on, unless it counts already."""
        cls.first = process_time() if cls.first is None else cls.first

    @classmethod
    def answer(cls, question: bytes | str, count: int) -> str:
        """The answer to a question: the number of the question, or the processor time."""
        if question in (b"cpu", "cpu"):
            return f"{process_time() - (cls.first or 0.0):.4f}"
        return str(count)


class Counting(Actor):
    """Answers a peer with the number of its questions."""

    def __init__(self) -> None:
        self.asked = 0

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case TCP.Data(connection, data):
                self.asked += data != b"cpu"
                answer = _Used.answer(data, self.asked)
                self.send(connection, TCP.Send(f"{answer}\n".encode()))
            case WS.Text(connection, text):
                self.asked += text != "cpu"
                self.send(connection, WS.Send(_Used.answer(text, self.asked)))

    def hand_over(self) -> object:
        return self.asked

    def take_over(self, state: int) -> None:
        _Used.begin()
        self.asked = state


class Door(Actor):
    """Owns the server."""

    def __init__(self, port: int, is_web: bool) -> None:
        self.port, self.is_web = port, is_web

    async def init(self) -> None:
        # Most peers do not read until the end, and answer no pings.
        host, routes = "127.0.0.1", [Route("/", websocket=Counting, ping_interval=3600)]
        await self.spawn_meta(
            WebServer(host, self.port, sock="door", routes=routes)
            if self.is_web
            else TCPServer(
                *(host, self.port),
                sock="door",
                receiver=Counting,
                reader="task",
                framing=Delimiter(b"\n"),
                queue=1024,
            )
        )


async def _serve(node: Node, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    *_, kind, port = sys.argv
    await node.supervise([ChildSpec("door", Door, int(port), kind == "websocket")])
    task_status.started()
    await trio.sleep_forever()


class _ByHand:
    """The program by hand, with all its connections."""

    def __init__(self, place: Path, port: int) -> None:
        self._path = place / "by-hand"
        self._port = port
        self._open: dict[int, _Connection] = {}
        self._stop = trio.CancelScope()

    async def serve(self) -> None:
        """Take the connections of the program before, or listen; and serve until a further program
        takes them.
        """
        async with trio.open_nursery() as nursery:
            listening = await self._take(nursery)
            if listening is None:
                listening = trio.socket.socket()
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                await listening.bind(("127.0.0.1", self._port))
                listening.listen(1024)
            nursery.start_soon(self._accept, nursery, listening)
            with trio.socket.socket(socket.AF_UNIX) as successors:
                self._path.unlink(missing_ok=True)
                await successors.bind(str(self._path))
                successors.listen(1)
                successor, _ = await successors.accept()
            await self._give(successor, listening)
            nursery.cancel_scope.cancel()

    async def _accept(self, nursery: trio.Nursery, listening: trio.socket.SocketType) -> None:
        with self._stop:
            while True:
                sock, _ = await listening.accept()
                self._begin(nursery, _Connection(sock, 0, b""))

    def _begin(self, nursery: trio.Nursery, connection: "_Connection") -> None:
        self._open[connection.sock.fileno()] = connection
        nursery.start_soon(connection.serve)

    async def _give(
        self, successor: trio.socket.SocketType, listening: trio.socket.SocketType
    ) -> None:
        self._stop.cancel()
        await _send(successor, [listening.fileno()], [])
        left = list(self._open.values())
        while left:
            batch, left = left[:_BATCH], left[_BATCH:]
            for connection in batch:
                connection.scope.cancel()
            for connection in batch:
                await connection.is_paused.wait()
            facts = [[connection.asked, connection.rest.decode()] for connection in batch]
            await _send(successor, [connection.sock.fileno() for connection in batch], facts)
            for connection in batch:
                connection.sock.close()

    async def _take(self, nursery: trio.Nursery) -> trio.socket.SocketType | None:
        with trio.socket.socket(socket.AF_UNIX) as predecessor:
            try:
                await predecessor.connect(str(self._path))
            except OSError:
                return None
            (listening,), _ = await _receive(predecessor)
            while True:
                sockets, facts = await _receive(predecessor)
                if not sockets:
                    return _socket(listening)
                _Used.begin()
                for sock, (asked, rest) in zip(sockets, facts, strict=True):
                    self._begin(nursery, _Connection(_socket(sock), asked, rest.encode()))


class _Connection:
    """A connection of the program by hand."""

    def __init__(self, sock: trio.socket.SocketType, asked: int, rest: bytes) -> None:
        self.sock, self.asked, self.rest = sock, asked, rest
        self.scope, self.is_paused = trio.CancelScope(), trio.Event()

    async def serve(self) -> None:
        """Answer each line, until the peer leaves or the connection moves."""
        with self.scope:
            while data := await self.sock.recv(4096):
                *lines, self.rest = (self.rest + data).split(b"\n")
                for line in lines:
                    self.asked += line != b"cpu"
                    answer = _Used.answer(line, self.asked)
                    # A move cancels reads only: else it would lose the answer to a line.
                    with trio.CancelScope(shield=True):
                        await self.sock.send(f"{answer}\n".encode())
        self.is_paused.set()


def _socket(descriptor: int) -> trio.socket.SocketType:
    return trio.socket.from_stdlib_socket(socket.socket(fileno=descriptor))


async def _send(to: trio.socket.SocketType, sockets: list[int], facts: Sequence[object]) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", sockets))]
    body = json.dumps(facts).encode()
    await to.sendmsg([len(body).to_bytes(4, "big") + body], rights)


async def _receive(
    sender: trio.socket.SocketType,
) -> tuple[list[int], list[tuple[int, str]]]:
    """The next sockets, and their facts. Without sockets at the end."""
    head, rights, _, _ = await sender.recvmsg(4, socket.CMSG_SPACE(_BATCH * 4))
    size, body, found = int.from_bytes(head, "big"), b"", array.array("i")
    while len(body) < size:
        body += await sender.recv(size - len(body))
    for _, _, given in rights:
        found.frombytes(given)
    return found.tolist(), json.loads(body or b"[]")


# -- peers that stay -------------------------------------------------------------------------------


class _Standing:
    """A peer that stays connected, with the number of its questions and answers."""

    def __init__(self, address: tuple[str, int], is_web: bool) -> None:
        self.sock = socket.create_connection(address, timeout=120)
        self._is_web = is_web
        self.asked: deque[float] = deque()
        """When each question was asked that has no answer yet."""
        self.answers = 0
        self.wrong = 0
        self.longest = (0.0, 0.0)
        """When the question with the longest wait was asked and answered."""
        self._rest = b""
        if is_web:
            self.sock.sendall(_UPGRADE)
            while b"\r\n\r\n" not in self._rest:
                self._rest += self.sock.recv(4096)
            self._rest = b""

    def _send(self, text: bytes) -> None:
        # With an empty mask; the payload is short.
        head = bytes((0x81, 0x80 | len(text), 0, 0, 0, 0))
        self.sock.sendall(head + text if self._is_web else text + b"\n")

    def _cut(self, heard: bytes) -> list[bytes]:
        self._rest += heard
        if not self._is_web:
            *lines, self._rest = self._rest.split(b"\n")
            return lines
        found = list[bytes]()
        while len(self._rest) > 1 and len(self._rest) >= 2 + self._rest[1]:
            end = 2 + self._rest[1]
            if self._rest[0] == 0x81:  # else a ping
                found.append(self._rest[2:end])
            self._rest = self._rest[end:]
        return found

    def ask(self) -> None:
        """Ask a question."""
        self.asked.append(perf_counter())
        self._send(b"next")

    def hear(self) -> None:
        """Hear some answers, and note a wrong or missing one."""
        heard = self.sock.recv(65_536)
        now = perf_counter()
        for line in self._cut(heard):
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

    def ask_for_time(self) -> float:
        """The processor time of the program that has taken this connection."""
        self._send(b"cpu")
        found = list[bytes]()
        while not found:
            heard = self.sock.recv(65_536)
            if not heard:
                raise ConnectionError("a moved connection has ended")
            found = self._cut(heard)
        return float(found[0])


_UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


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


class _Clock:
    """The processor time of a program, which may end at any time."""

    def __init__(self, process: int) -> None:
        self._path = Path(f"/proc/{process}/stat")
        self._first = self.last = self._read() or 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _read(self) -> float | None:
        try:
            fields = self._path.read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def _look(self) -> None:
        while not self._stop.wait(0.02) and (now := self._read()) is not None:
            self.last = max(self.last, now)

    def stop(self) -> float:
        """The seconds since the beginning."""
        self._stop.set()
        self._thread.join()
        return self.last - self._first


class _Result(NamedTuple):
    """How a move went."""

    kind: str
    moved: int
    wrong: int
    seconds: float
    pauses: list[float]
    """Of the peers that ask, in order."""
    old: float
    """Processor time of the old program."""
    new: float
    """Processor time of the new program."""

    def __str__(self) -> str:
        each, pauses = 1e6 / max(1, self.moved), self.pauses
        return (
            f"{self.kind:>10}: {self.moved} moved in {self.seconds:.2f} s, {self.wrong} answers "
            f"wrong or missing; pauses: half {pauses[len(pauses) // 2] * 1000:.0f} ms, 99 % "
            f"{pauses[len(pauses) * 99 // 100] * 1000:.0f} ms, longest {pauses[-1] * 1000:.0f} ms; "
            f"processor time of each: {self.old * each:.0f} µs in the old program, "
            f"{self.new * each:.0f} µs in the new"
        )


def _move(kind: str, address: tuple[str, int], count: int, replace: "Replace") -> _Result:
    """Move the connections of peers that stay."""
    peers = [_Standing(address, kind == "websocket") for _ in range(count)]
    for peer in peers:
        peer.ask_alone()
        peer.longest = 0.0, 0.0
    often = peers[:: max(1, count // _ASKING)]
    stop = threading.Event()
    asking = threading.Thread(target=_ask_often, args=(often, stop))
    asking.start()
    process, moved = replace()
    stop.set()
    asking.join()
    pauses = sorted(last - first for first, last in (peer.longest for peer in often))
    took = max(peer.longest[1] for peer in often) - min(peer.longest[0] for peer in often)
    for peer in peers:
        peer.ask_alone()
    clock = _Clock(process)
    process, _ = replace()
    used = clock.stop(), peers[0].ask_for_time()
    for peer in peers:
        peer.ask_alone()
    os.kill(process, signal.SIGTERM)
    for peer in peers:
        peer.sock.close()
    return _Result(kind, moved, sum(peer.wrong for peer in peers), took, pauses, *used)


Replace = Callable[[], tuple[int, int]]
"""Replaces the program. Returns the process of the next, and how many connections have moved."""


def _measure(kind: str, count: int) -> _Result:
    address = "127.0.0.1", free_port()
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        os.environ["XDG_RUNTIME_DIR"] = place
        command = [sys.executable, "-m", "benchmarks.moves", "--program", kind, str(address[1])]
        old = subprocess.Popen(command)

        def replace() -> tuple[int, int]:
            nonlocal old
            if kind == "hand":
                before, old = old, subprocess.Popen(command)
                before.wait()  # it ends when all have moved
                return old.pid, count
            _, process, moved = upgrade(_NAME)
            return process, moved

        while True:
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(address):
                break
        return _move(kind, address, count, replace)


def main() -> int:
    """Move connections in each way. 1 if one was lost, or an answer is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks moves", description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--only", choices=_KINDS, default=None)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    results = list[_Result]()
    for kind in _KINDS if options.only is None else (options.only,):
        results.append(_measure(kind, options.connections))
        print(results[-1], flush=True)
    *ours, by_hand = results
    for result in ours:
        old, new = result.old / max(1e-9, by_hand.old), result.new / max(1e-9, by_hand.new)
        print(
            f"{result.kind:>10}: {old:.1f} times the processor time of the old program by hand, "
            f"which includes its end, and {new:.1f} times that of the new"
        )
    print(f"load {os.getloadavg()[0]:.1f}")
    return int(any(each.wrong or each.moved != options.connections for each in results))


if __name__ == "__main__":
    if "--program" not in sys.argv:
        sys.exit(main())
    if "hand" in sys.argv:
        trio.run(_ByHand(Path(os.environ["XDG_RUNTIME_DIR"]), int(sys.argv[-1])).serve)
    else:
        run(_serve, handover=_NAME, log_output="none")
