"""A pipeline: orders of a broker, checked by a stage, stored in batches, each acknowledged."""

import json
from collections import deque
from dataclasses import dataclass, field

import trio

from ergo_py import Actor, Backoff, ChildSpec, open_node
from ergo_py.pipelines import Item, Pipeline, Retry, Sink, Source, Stage


@dataclass
class Broker:
    """Stands for a server. It delivers an order until it is acknowledged."""

    orders: deque[bytes] = field(default_factory=deque)
    acknowledged: list[bytes] = field(default_factory=list)


class Orders(Source):
    """Its methods run in a thread of their own, and may block."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def take(self, most: int) -> list[Item]:
        ready = self.broker.orders
        return [Item(ready.popleft()) for _ in range(min(most, len(ready)))]

    def ack(self, items: list[Item]) -> None:
        self.broker.acknowledged += [item.body for item in items]


class Check(Stage):
    def handle(self, item: Item) -> object:
        return int(json.loads(item.body)["amount"])  # an exception fails this order only


class Store(Sink):
    def __init__(self, amounts: list[int]) -> None:
        super().__init__(batch=50, within=0.05)
        self.amounts = amounts

    def handle_batch(self, items: list[Item]) -> None:
        self.amounts += [item.body for item in items]


class Complaints(Actor):
    """Is called with each order that was given up, and answers: then the order is acknowledged."""

    def __init__(self, done: trio.Event) -> None:
        self.done = done

    def handle_call(self, request: Item, caller: object) -> None:
        print("given up:", request.body, type(request.error).__name__)
        self.done.set()


async def main() -> None:
    broker, amounts, complained = Broker(), list[int](), trio.Event()
    broker.orders += [b'{"amount": %d}' % amount for amount in range(1, 5)] + [b"{}"]
    async with open_node("demo@localhost", log_level="error") as node:
        orders = Pipeline.spec(
            Orders(broker),
            Check().times(4),
            Store(amounts),
            most_unacknowledged=100,
            retry=Retry(2, Backoff(0.01, 1.0)),
            poison="complaints",
        )
        await node.supervise(
            [ChildSpec("complaints", Complaints, complained), ChildSpec("orders", orders)]
        )
        await complained.wait()
    # The node has stopped in order: the open orders are stored and acknowledged.
    print("stored:", sorted(amounts))
    print("acknowledged:", len(broker.acknowledged))


trio.run(main)
