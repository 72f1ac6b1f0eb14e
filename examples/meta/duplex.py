"""Full duplex: the reader reads and the handler writes, on the same connection and at the same
time.
"""

import socket
from dataclasses import dataclass
from typing import Any

import trio

from ergo_py import Actor, MetaProcess, Reason, open_node
from ergo_py.meta import Counter


@dataclass(frozen=True)
class Received:
    data: bytes


@dataclass(frozen=True)
class Write:
    data: bytes


class Connection(MetaProcess):
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.bytes_in = Counter()  # used by both halves
        self.bytes_out = Counter()

    def start(self) -> None:  # the reader's thread
        self.opened(self.sock)
        while data := self.sock.recv(65536):
            self.bytes_in.add(len(data))
            self.send(self.parent, Received(data))

    def handle_message(self, message: object, sender: Any) -> None:  # a worker thread
        match message:
            case Write(data):
                self.sock.sendall(data)
                self.bytes_out.add(len(data))

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"bytes_in": str(self.bytes_in), "bytes_out": str(self.bytes_out)}

    def terminate(self, reason: Reason) -> None:
        print("closed:", reason)


class Owner(Actor):
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    async def init(self) -> None:
        self.connection = await self.spawn_meta(Connection(self.sock))
        # More than the peer takes before it has sent as much: with a single thread for both
        # directions, this would deadlock.
        self.send(self.connection, Write(b"x" * 4_000_000))
        self.received = 0

    async def handle_message(self, message: object, sender: Any) -> None:
        match message:
            case Received(data):
                self.received += len(data)
        if self.received == 4_000_000:
            print(await self.inspect_meta(self.connection))
            self.stop()


def echo(sock: socket.socket) -> None:
    """A peer that knows nothing of actors."""
    with sock:
        while data := sock.recv(65536):
            sock.sendall(data)


async def main() -> None:
    ours, theirs = socket.socketpair()
    async with trio.open_nursery() as nursery, open_node("duplex@localhost") as node:
        nursery.start_soon(trio.to_thread.run_sync, echo, theirs)
        await node.wait_ended(await node.spawn(Owner, ours))


trio.run(main)
