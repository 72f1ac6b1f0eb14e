"""A node inside an asyncio program: its verbs are awaited like those of any asyncio library."""

import asyncio

from ergo_py import Actor, Caller, ChildSpec
from ergo_py.aio import open_node


class Counter(Actor):
    def __init__(self, total: int) -> None:
        self.total = total

    def handle_message(self, message: int, sender: object) -> None:
        self.total += message

    def handle_call(self, request: str, caller: Caller) -> int:
        return self.total


async def main() -> None:
    async with open_node("demo@localhost") as node:
        counter = await node.spawn(Counter, 5, name="counter")
        node.send(counter, 3)
        totals = await asyncio.gather(*(node.call("counter", "total") for _ in range(3)))
        print(totals)

        try:
            async with asyncio.timeout(0.01):
                await node.wait_ended(counter)  # cancelled like any other coroutine
        except TimeoutError:
            print("still running")

        # Every verb of a node is there, and its handles are awaited, too.
        supervisor = await node.supervise([ChildSpec("second", Counter, 40)])
        print([child.name for child in await supervisor.children()])
        print(await node.run_task(sum, [1, 2, 3]))
        await node.send_exit(counter)
        print(await node.wait_ended(counter))


if __name__ == "__main__":
    asyncio.run(main())
