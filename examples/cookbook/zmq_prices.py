"""The last prices of a ZeroMQ publisher. Needs ``ergo_py[zmq]``.

python zmq_prices.py tcp://localhost:5556
"""

import sys
from typing import Any

import trio
import zmq

from ergo_py import Actor, ChildSpec, Node, run
from ergo_py.devices import ZMQ, Device


class Prices(Actor):
    def __init__(self, address: str) -> None:
        self.address = address
        self.last: dict[str, float] = {}

    async def init(self) -> None:
        await self.spawn_meta(ZMQ(zmq.SUB, self.set_up), backlog=1000)

    def set_up(self, socket: Any) -> None:  # in the thread of the bridge
        socket.connect(self.address)
        socket.setsockopt(zmq.SUBSCRIBE, b"price.")

    def handle_message(self, message: object, sender: object) -> None:
        match message:
            case Device.Data(_, [bytes(topic), bytes(price)]):
                self.last[topic.decode()] = float(price)

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {topic: str(price) for topic, price in self.last.items()}


async def main(node: Node) -> None:
    await node.supervise([ChildSpec("prices", Prices, sys.argv[1])])
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="prices@localhost")
