"""The other side of the network benchmarks: a program of its own, so that a server's processor time
is the server's.

``python load.py tcp PORT CONNECTIONS BYTES ROUNDTRIPS`` keeps a message going round on each
connection; ``python load.py udp PORT BYTES`` sends as fast as it can until it is ended; ``python
load.py short PORT CONNECTIONS`` connects, asks, has its answer and closes, for each connection in
sequence; ``python load.py newcomers PORT BUSY REQUESTS NEWCOMERS`` keeps BUSY connections busy,
each with so many requests at a time, and prints how many seconds pass until each of the newcomers,
which come all at once, has an answer.
"""

import os
import select
import socket
import subprocess
import sys
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Load"]

_WARM_UP = 5
_PING = b"PING\r\n"


class Load:
    """Runs the other side for as long as the block lasts."""

    def __init__(self, *arguments: object) -> None:
        # Standard library only, and no site packages: it is there in a moment.
        command = [sys.executable, "-I", "-S", __file__, *map(str, arguments)]
        self._program = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_error: object) -> None:
        with self._program as program:
            program.kill()

    def wait(self, word: str) -> float:
        """Block until it says ``go`` or ``done``. Returns the number that it says with it, if it
        does.
        """
        stdout = self._program.stdout
        assert stdout is not None
        line = stdout.readline().strip()
        said, _, number = line.partition(" ")
        if said != word:
            raise RuntimeError(f"the load said {line!r} instead of {word!r}")
        return float(number or 0)


def _tell(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


def _tcp(port: int, connections: int, size: int, roundtrips: int) -> None:
    message = b"x" * size
    # A single buffer for everything: with a new buffer for each read, this side would take longer
    # than most servers.
    buffer = bytearray(65536)
    poll = select.epoll()
    socks: dict[int, socket.socket] = {}
    missing: dict[int, int] = {}
    for _ in range(connections):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        socks[sock.fileno()] = sock
        poll.register(sock, select.EPOLLIN)

    def go_round(total: int) -> None:
        left = total
        for fd, sock in socks.items():
            missing[fd] = size
            sock.sendall(message)
            left -= 1
        open_ = connections
        while open_:
            for fd, _ in poll.poll():
                sock = socks[fd]
                got = sock.recv_into(buffer)
                if not got:
                    raise SystemExit("the server closed a connection")
                missing[fd] -= got
                if missing[fd]:
                    continue
                if left > 0:
                    left -= 1
                    missing[fd] = size
                    sock.sendall(message)
                else:
                    open_ -= 1

    go_round(connections * _WARM_UP)
    _tell("go")
    go_round(max(connections, roundtrips))
    _tell("done")
    sys.stdin.read()


def _short(port: int, connections: int) -> None:
    def one() -> None:
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(_PING)
            if not sock.recv(4096):
                raise SystemExit("the server closed a connection")

    for _ in range(20):
        one()
    _tell("go")
    for _ in range(connections):
        one()
    _tell("done")
    sys.stdin.read()


def _newcomers(port: int, busy: int, requests: int, newcomers: int) -> None:
    poll = select.epoll()
    batch = _PING * requests
    socks: dict[int, socket.socket] = {}
    missing: dict[int, int] = {}
    waiting: set[int] = set()

    def dial() -> int:
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", port))
        socks[fd := sock.fileno()] = sock
        poll.register(sock, select.EPOLLOUT)
        waiting.add(fd)
        return fd

    def serve(until: float) -> None:
        """Ask again whenever all is answered, until every newcomer has its first answer and the
        time is over.
        """
        while waiting or perf_counter() < until:
            for fd, event in poll.poll():
                sock = socks[fd]
                if event & select.EPOLLOUT:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    poll.modify(sock, select.EPOLLIN)
                else:
                    got = len(sock.recv(65536))
                    if not got:
                        raise SystemExit("the server closed a connection")
                    waiting.discard(fd)
                    missing[fd] -= got
                    if missing[fd] or fd in fresh:
                        continue
                message = _PING if fd in fresh else batch
                missing[fd] = len(message)
                sock.sendall(message)

    fresh: set[int] = set()
    for _ in range(busy):
        dial()
    serve(perf_counter() + 0.2)
    _tell("go")
    began = perf_counter()
    fresh.update(dial() for _ in range(newcomers))
    serve(0.0)
    _tell(f"done {perf_counter() - began}")
    sys.stdin.read()


def _udp(port: int, size: int) -> None:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect(("127.0.0.1", port))
    message = b"x" * size
    send = sock.send
    try:
        while True:
            send(message)
    except ConnectionRefusedError:
        return


if __name__ == "__main__":
    kind, *numbers = sys.argv[1:]
    if hasattr(os, "sched_setaffinity"):
        # The parent program may be keeping to a single processor.
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    kinds: dict[str, Any] = {"tcp": _tcp, "udp": _udp, "short": _short, "newcomers": _newcomers}
    kinds[kind](*map(int, numbers))
