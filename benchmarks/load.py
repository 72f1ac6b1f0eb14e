"""The other side of the network benchmarks: a program of its own, so that a server's processor time
is the server's.

``python load.py tcp PORT CONNECTIONS BYTES ROUNDTRIPS`` keeps a message going round on each
connection; ``python load.py http PORT CONNECTIONS REQUESTS`` and ``python load.py websocket PORT
CONNECTIONS BYTES ROUNDTRIPS`` do the same with requests and WebSocket messages; ``python load.py
file PORT CONNECTIONS BYTES REQUESTS`` with requests for a file of so many bytes; ``python load.py
udp PORT BYTES`` sends as fast as it can until it is ended; ``python
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
    _keep_asking([_dial(port) for _ in range(connections)], message, size, roundtrips)


def _http(port: int, connections: int, requests: int) -> None:
    request = b"GET /hello HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    socks = [_dial(port) for _ in range(connections)]
    # All responses are as long as the first.
    socks[0].sendall(request)
    answer = b""
    while b"world!" not in answer:
        answer += _receive(socks[0])
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise SystemExit(f"the server answered {answer!r}")
    _keep_asking(socks, request, len(answer), requests)


def _file(port: int, connections: int, size: int, requests: int) -> None:
    request = b"GET /%d HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % size
    socks = [_dial(port) for _ in range(connections)]
    # All responses are as long as the first.
    socks[0].sendall(request)
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += _receive(socks[0])
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise SystemExit(f"the server answered {answer!r}")
    whole = answer.index(b"\r\n\r\n") + 4 + size
    got = len(answer)
    while got < whole:
        got += len(_receive(socks[0]))
    _keep_asking(socks, request, whole, requests)


def _websocket(port: int, connections: int, size: int, roundtrips: int) -> None:
    socks = []
    for _ in range(connections):
        sock = _dial(port)
        sock.sendall(
            b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += _receive(sock)
        if not answer.startswith(b"HTTP/1.1 101 "):
            raise SystemExit(f"the server answered {answer!r}")
        socks.append(sock)
    length = bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2, "big")
    masked = bytes([length[0] | 0x80]) + length[1:] + b"\1\2\3\4"
    payload = bytes(ord("x") ^ b"\1\2\3\4"[number % 4] for number in range(size))
    _keep_asking(socks, b"\x82" + masked + payload, 1 + len(length) + size, roundtrips)


def _dial(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _receive(sock: socket.socket) -> bytes:
    data = sock.recv(65536)
    if not data:
        raise SystemExit("the server closed a connection")
    return data


def _keep_asking(
    connected: "list[socket.socket]", message: bytes, size: int, roundtrips: int
) -> None:
    """Send a message on each connection, and again whenever ``size`` bytes have come back."""
    # A single buffer for everything: with a new buffer for each read, this side would take longer
    # than most servers.
    buffer = bytearray(65536)
    poll = select.epoll()
    socks: dict[int, socket.socket] = {}
    missing: dict[int, int] = {}
    for sock in connected:
        socks[sock.fileno()] = sock
        poll.register(sock, select.EPOLLIN)

    def go_round(total: int) -> None:
        left = total
        for fd, sock in socks.items():
            missing[fd] = size
            sock.sendall(message)
            left -= 1
        open_ = len(socks)
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

    go_round(len(socks) * _WARM_UP)
    _tell("go")
    go_round(max(len(socks), roundtrips))
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
    kinds: dict[str, Any] = {
        "tcp": _tcp,
        "http": _http,
        "file": _file,
        "websocket": _websocket,
        "udp": _udp,
        "short": _short,
        "newcomers": _newcomers,
    }
    kinds[kind](*map(int, numbers))
