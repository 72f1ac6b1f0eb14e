"""A client for the echo server. Datagrams get lost, so it asks again; and it says so if no server
listens.

python examples/udp/echo_client.py [PORT [WORD ...]]
"""

import sys

from ergo_py import PID, Actor, Alias, Node, run
from ergo_py.meta import UDP, UDPClient


class Client(Actor):
    def __init__(self, port: int, words: list[str]) -> None:
        self.port = port
        self.words = words
        self.tries = 0

    async def init(self) -> None:
        self.socket = await self.spawn_meta(UDPClient("127.0.0.1", self.port))
        self.send_every(0.2, self.pid, "again")
        self.ask()

    def ask(self) -> None:
        self.tries += 1
        if not self.words or self.tries > 10:
            self.stop()
        else:
            self.send(self.socket, UDP.Send(self.words[0].encode()))

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case UDP.Data(_, peer, data) if self.words and data.decode() == self.words[0]:
                print(f"{peer} says {data.decode()}", flush=True)
                self.words.pop(0)
                self.tries = 0
                self.ask()
            case UDP.Failed(_, _, fault):
                print(fault.value, flush=True)
                self.stop()
            case "again":
                self.ask()


async def main(node: Node) -> None:
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 7778
    client = await node.spawn(Client, port, sys.argv[2:] or ["one", "two", "three"])
    await node.wait_ended(client)


if __name__ == "__main__":
    run(main, name="client@localhost")
