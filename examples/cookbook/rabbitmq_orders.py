"""Orders of a RabbitMQ queue, handled by an actor. Needs ``ergo_py[amqp]``.

python rabbitmq_orders.py amqp://guest:guest@localhost/
"""

import json
import sys

import trio

from ergo_py import Actor, Caller, ChildSpec, Node, run
from ergo_py.pipelines import AMQP, Item, Pipeline, Stage, ToActor


class Parse(Stage):
    def handle(self, item: Item) -> object:
        return json.loads(item.body)


class Billing(Actor):
    """Its answer acknowledges the order. If it crashes, the order is tried again."""

    def __init__(self) -> None:
        self.total = 0

    def handle_call(self, request: dict[str, int], caller: Caller) -> int:
        self.total += request["amount"]
        return self.total

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"total": str(self.total)}


def orders(url: str) -> list[ChildSpec]:
    pipeline = Pipeline.spec(
        AMQP(url, "orders"), Parse(), ToActor("billing"), poison=AMQP(url, "dead-orders")
    )
    return [ChildSpec("billing", Billing), ChildSpec("orders", pipeline)]


async def main(node: Node) -> None:
    await node.supervise(orders(sys.argv[1]))
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="orders@localhost")
