"""Two nodes over a NATS server. The guide is docs/network.md.

Start a server, then ``python -m examples.guide.nats_nodes nats://127.0.0.1:4222``.
"""

import sys

import trio

from ergo_py import Name, open_node
from ergo_py.network import NATS
from examples.guide.nodes import Left, Sold, Stock


async def open_shop(url: str) -> None:
    network = NATS(url, cluster="shop", types=[Sold, Left])
    async with open_node("stock@paris", network=network) as paris:
        await paris.spawn(Stock, name="stock")
        async with open_node("orders@berlin", network=network) as berlin:
            stock = Name("stock", "stock@paris")
            berlin.send(stock, Sold("tea", 3))
            print("left:", await berlin.call(stock, Left("tea")))


if __name__ == "__main__":
    trio.run(open_shop, sys.argv[1])
