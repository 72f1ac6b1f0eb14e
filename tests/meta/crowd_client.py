"""A program that opens many connections to an echo server, has each say something of its own, and
checks every answer.

``python crowd_client.py PORT CONNECTIONS ROUNDS``. Standard library only. It prints ``connected``,
waits for a line, and then prints ``right`` or the first mistake.
"""

import select
import socket
import sys
import time


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(port: int, connections: int, rounds: int) -> str:
    poll = select.epoll()
    socks: dict[int, socket.socket] = {}
    for _ in range(connections):
        sock = socket.socket()
        for attempt in range(100):
            try:
                sock.connect(("127.0.0.1", port))
                break
            except OSError:
                if attempt == 99:
                    raise
                time.sleep(0.05)
        sock.setblocking(False)
        socks[sock.fileno()] = sock
        poll.register(sock, select.EPOLLIN)
    tell("connected")
    sys.stdin.readline()
    for turn in range(rounds):
        waiting = {}
        for fd, sock in socks.items():
            waiting[fd] = b"%d says %d\n" % (fd, turn)
            sock.send(waiting[fd])
        while waiting:
            ready = poll.poll(30)
            if not ready:
                return f"{len(waiting)} were not answered"
            for fd, _ in ready:
                data = socks[fd].recv(4096)
                if not data or not waiting[fd].startswith(data):
                    return f"{data!r} instead of {waiting[fd]!r}"
                waiting[fd] = waiting[fd][len(data) :]
                if not waiting[fd]:
                    del waiting[fd]
    tell("right")
    sys.stdin.readline()
    return ""


if __name__ == "__main__":
    wrong = main(*map(int, sys.argv[1:]))
    if wrong:
        tell(wrong)
