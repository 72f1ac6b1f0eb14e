"""Sums the numbers that clients send: python examples/tcp/sum_server.py [PORT]"""

import sys

import trio

from ergo_py import PID, Actor, Alias, ChildSpec, Node, run
from ergo_py.meta import TCP, Delimiter, TCPServer


class Door(Actor):
    def __init__(self, port: int) -> None:
        self.server = TCPServer(port=port, framing=Delimiter(b"\n"))

    async def init(self) -> None:
        await self.spawn_meta(self.server)  # it waits at the socket, so that no actor has to
        print(f"listening at {self.server.local}", flush=True)

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case TCP.Data():
                self.send("sum", message)


class Sum(Actor):
    total = 0

    def handle_message(self, message: TCP.Data, sender: PID | Alias) -> None:
        self.total += int(message.data)  # a line that is no number crashes this process
        self.send(message.connection, TCP.Send(f"= {self.total}\n".encode()))


async def main(node: Node) -> None:
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 7777
    await node.supervise([ChildSpec("sum", Sum), ChildSpec("door", Door, port)], name="root")
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="sums@localhost")
