"""A pipeline of calls: actors have their rows stored in batches, and wait for the answer."""

import trio

from ergo_py import Backoff, ChildSpec, open_node
from ergo_py.pipelines import Item, Pipeline, Retry, Sink, Stage


class Parse(Stage):
    def handle(self, item: Item) -> object:
        return float(item.body)


class Store(Sink):
    def __init__(self, rows: list[float]) -> None:
        super().__init__(batch=50, within=0.05)
        self.rows = rows

    def handle_batch(self, items: list[Item]) -> None:
        self.rows += [item.body for item in items]


async def main() -> None:
    rows: list[float] = []
    async with open_node("demo@localhost", log_level="error") as node:
        pipeline = Pipeline.spec(Parse(), Store(rows), retry=Retry(1, Backoff(0.01, 1.0)))
        await node.supervise([ChildSpec("rows", pipeline)])
        print("answer:", await node.call("rows", "21.5"))
        try:
            await node.call("rows", "warm")
        except ValueError as error:
            print("refused:", error)
    print("stored:", rows)


if __name__ == "__main__":
    trio.run(main)
