import trio

from ergo_py import Actor, Reason, open_node


class Feed(Actor):
    def __init__(self, prices: trio.MemoryReceiveChannel[int]) -> None:
        self.prices = prices

    async def post_start(self) -> None:
        self.start_task(self.follow, "ACME")

    async def follow(self, symbol: str) -> None:
        try:
            async for price in self.prices:
                if price < 0:
                    raise ValueError(f"{symbol} costs {price}")
                print(symbol, price)
        finally:
            print("the task has ended")

    def terminate(self, reason: Reason) -> None:
        print("feed:", reason)


async def main() -> None:
    into, prices = trio.open_memory_channel[int](0)
    async with open_node(log_level="off") as node:
        feed = await node.spawn(Feed, prices)
        for price in (7, 8, -1):
            await into.send(price)
        await node.wait_ended(feed)


if __name__ == "__main__":
    trio.run(main)
