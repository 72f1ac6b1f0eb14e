"""An echo server for datagrams.

python examples/udp/echo_server.py [PORT]
"""

import sys

import trio

from ergo_py import PID, Actor, Alias, Node, run
from ergo_py.meta import UDP, UDPServer


class Echo(Actor):
    def __init__(self, port: int) -> None:
        self.server = UDPServer("127.0.0.1", port)

    async def init(self) -> None:
        await self.spawn_meta(self.server)
        print(f"listening at {self.server.local}", flush=True)

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case UDP.Data(socket, peer, data):
                self.send(socket, UDP.Send(data, peer))
            case UDP.Failed(_, peer, fault):
                print(f"no answer to {peer}: {fault.value}", flush=True)


async def main(node: Node) -> None:
    await node.spawn(Echo, int(sys.argv[1]) if len(sys.argv) > 1 else 7778, name="echo")
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="echo@localhost")
