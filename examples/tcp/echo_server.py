"""An echo server: it sends the bytes of each peer back.

python examples/tcp/echo_server.py [PORT]
"""

import sys

import trio

from ergo_py import PID, Actor, Alias, Node, run
from ergo_py.meta import TCP, TCPServer


class Echo(Actor):
    def __init__(self, port: int) -> None:
        self.server = TCPServer("127.0.0.1", port)

    async def init(self) -> None:
        await self.spawn_meta(self.server)
        print(f"listening at {self.server.local}", flush=True)

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case TCP.Connected(_, peer):
                print(f"{peer} is here", flush=True)
            case TCP.Data(connection, data):
                self.send(connection, TCP.Send(data))
            case TCP.Disconnected(_, reason, bytes_in, bytes_out):
                print(f"{reason.value}: {bytes_in} bytes came, {bytes_out} went", flush=True)


async def main(node: Node) -> None:
    await node.spawn(Echo, int(sys.argv[1]) if len(sys.argv) > 1 else 7777, name="echo")
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="echo@localhost")
