"""Payments of a Kafka topic, checked and put into another. Needs ``ergo_py[kafka]``.

python kafka_payments.py localhost:9092
"""

import json
import sys

import trio

from ergo_py import ChildSpec, Node, run
from ergo_py.pipelines import Item, Kafka, Pipeline, Stage


class Check(Stage):
    def handle(self, item: Item) -> object:
        payment = json.loads(item.body)
        if payment["amount"] <= 0:
            raise ValueError("no amount")
        return json.dumps({"account": payment["account"], "checked": True}).encode()


def payments(servers: str) -> ChildSpec:
    pipeline = Pipeline.spec(
        Kafka(servers, "payments", group="checks"),
        Check().times(4),  # payments with the same key keep their order
        Kafka(servers, "checked-payments"),
        poison=Kafka(servers, "dead-payments"),
    )
    return ChildSpec("payments", pipeline)


async def main(node: Node) -> None:
    await node.supervise([payments(sys.argv[1])])
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="payments@localhost")
