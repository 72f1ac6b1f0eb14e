from collections.abc import Sequence

import trio

from ergo_py import Actor, Caller, open_node
from ergo_py.pipelines import Batch


class Rows(Actor[str]):
    batch = Batch(100, within=0.01)

    def init(self) -> None:
        self.total = 0

    def handle_batch(self, messages: Sequence[str]) -> None:
        print("rows in a transaction:", len(messages))
        self.total += len(messages)

    def handle_call(self, request: object, caller: Caller) -> int:
        return self.total


async def main() -> None:
    async with open_node() as node:
        rows = await node.spawn(Rows)
        for number in range(250):
            node.send(rows, f"row {number}")
        print(await node.call(rows, "total"), "rows are stored")


if __name__ == "__main__":
    trio.run(main)
