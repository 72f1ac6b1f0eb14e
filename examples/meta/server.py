"""A server that accepts and spawns: its reader accepts, and each connection is a meta-process of
its own.

For real servers there is `ergo_py.meta.TCPServer`, with limits, timeouts and encryption; this shows
the pattern.
"""

import socket
from dataclasses import dataclass
from typing import Any

import trio

from ergo_py import Actor, Alias, MetaProcess, SpawnError, open_node


@dataclass(frozen=True)
class Asked:
    connection: Alias
    question: bytes


@dataclass(frozen=True)
class Answer:
    text: bytes


class Connection(MetaProcess):
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def start(self) -> None:
        with self.opened(self.sock):
            while data := self.sock.recv(65536):
                self.send(self.parent, Asked(self.id, data))

    def handle_message(self, message: object, sender: Any) -> None:
        match message:
            case Answer(text):
                self.sock.sendall(text)


class Server(MetaProcess):
    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))

    def start(self) -> None:
        self.opened(self.listener)
        while True:
            sock, _ = self.listener.accept()
            try:
                # Blocks this thread until the connection is spawned, or refused.
                self.spawn(Connection(sock))
            except SpawnError as error:
                sock.close()
                self.log.error("no connection", error=str(error))


class Owner(Actor):
    def __init__(self, server: Server) -> None:
        self.server = server

    async def init(self) -> None:
        await self.spawn_meta(self.server)

    def handle_message(self, message: object, sender: Any) -> None:
        match message:
            case Asked(connection, question):
                self.send(connection, Answer(question.upper()))


def ask(port: int, question: bytes) -> bytes:
    """A client that knows nothing of actors."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(question)
        return sock.recv(100)


async def main() -> None:
    server = Server()
    port = server.listener.getsockname()[1]
    async with open_node("server@localhost") as node:
        await node.spawn(Owner, server)
        for question in (b"hello", b"anybody there?"):
            answer = await trio.to_thread.run_sync(ask, port, question)
            print(question.decode(), "->", answer.decode())
    # The server ends with its owner, and its connections with the server.
    print("meta-processes left:", len(node.metas()))


trio.run(main)
