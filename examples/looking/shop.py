"""A shop to inspect: a stock that crashes if it is asked for an unknown item, and a door for
customers over TCP.

ergo shell examples/looking/shop.py
ergo run --control look,act,attach examples/looking/shop.py
"""

from dataclasses import dataclass

import trio

from ergo_py import PID, Actor, Alias, Caller, ChildSpec, Node
from ergo_py.meta import TCP, Delimiter, TCPServer


@dataclass(frozen=True)
class Sell:
    item: str


class Stock(Actor):
    def __init__(self) -> None:
        self.pieces = {"tea": 10, "cups": 4}
        self.sold = 0

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case Sell(item) | str(item):
                self.pieces[item] -= 1
                self.sold += 1

    def handle_call(self, request: object, caller: Caller) -> int:
        return self.pieces[str(request)]

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {**{item: str(left) for item, left in self.pieces.items()}, "sold": str(self.sold)}


class Door(Actor):
    """Every line of a customer is an item to sell."""

    async def init(self) -> None:
        self.server = TCPServer("127.0.0.1", 0, framing=Delimiter(b"\n"))
        await self.spawn_meta(self.server)

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case TCP.Data(connection, line):
                self.send("stock", Sell(line.decode()))
                self.send(connection, TCP.Send(b"sold\n"))

    def handle_call(self, request: object, caller: Caller) -> str:
        return str(self.server.local)


async def main(node: Node) -> None:
    await node.supervise([ChildSpec("stock", Stock), ChildSpec("door", Door)], name="shop")
    host, _, port = (await node.call("door", "where?")).rpartition(":")
    # A customer buys an item, and stays.
    async with await trio.open_tcp_stream(host, int(port)) as customer:
        await customer.send_all(b"tea\ncups\n")
        await customer.receive_some()
        await trio.sleep_forever()
