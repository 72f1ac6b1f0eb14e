"""A client for the echo server: sends lines, and prints the answers.

python examples/tcp/echo_client.py [PORT [LINE ...]]
"""

import sys

from ergo_py import Actor, Alias, Node, run
from ergo_py.meta import TCP, Delimiter, TCPConnection


class Client(Actor):
    def __init__(self, port: int, lines: list[str]) -> None:
        self.port = port
        self.lines = lines

    async def init(self) -> None:
        # If no server listens, this raises InitError, and so does the spawn of this client.
        connection = TCPConnection.connect("127.0.0.1", self.port, framing=Delimiter(b"\n"))
        self.connection = await self.spawn_meta(connection)
        self.send_next()

    def send_next(self) -> None:
        if self.lines:
            self.send(self.connection, TCP.Send(self.lines.pop(0).encode() + b"\n"))
        else:
            self.send(self.connection, TCP.Close())

    def handle_message(self, message: object, sender: Alias) -> None:
        match message:
            case TCP.Data(_, data):
                print(data.decode(), flush=True)
                self.send_next()
            case TCP.Disconnected():
                self.stop()


async def main(node: Node) -> None:
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 7777
    client = await node.spawn(
        Client, port, sys.argv[2:] or ["hello", "is there anybody?", "goodbye"]
    )
    await node.wait_ended(client)


if __name__ == "__main__":
    run(main, name="client@localhost")
