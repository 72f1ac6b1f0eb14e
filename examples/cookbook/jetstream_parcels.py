"""Parcels of a JetStream stream, priced in several threads. Needs ``ergo_py[jetstream]``.

python jetstream_parcels.py nats://localhost
"""

import json
import sys

import trio

from ergo_py import ChildSpec, Node, run
from ergo_py.pipelines import Item, JetStream, Pipeline, Stage


class Price(Stage):
    def handle(self, item: Item) -> object:
        parcel = json.loads(item.body)
        # The key is the subject: parcels of a town keep their order.
        return json.dumps({"town": item.key, "price": 5 + 2 * parcel["kilos"]}).encode()


def parcels(url: str) -> ChildSpec:
    source = JetStream(url, "parcels", "parcels.>", consumer="pricing")
    pipeline = Pipeline.spec(
        source, Price().times(4), JetStream(url, "prices"), poison=JetStream(url, "dead-parcels")
    )
    return ChildSpec("parcels", pipeline)


async def main(node: Node) -> None:
    await node.supervise([parcels(sys.argv[1])])
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="parcels@localhost")
