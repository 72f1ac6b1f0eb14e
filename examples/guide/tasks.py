import trio

from ergo_py import Actor, Caller, Reason, open_node


class Feed(Actor):
    def __init__(self, prices: trio.MemoryReceiveChannel[int]) -> None:
        self.prices = prices
        self.last = 0

    async def post_start(self) -> None:
        self.start_task(self.follow, "ACME")

    async def follow(self, symbol: str) -> None:
        try:
            async for price in self.prices:
                if price < 0:
                    raise ValueError(f"{symbol} costs {price}")
                self.last = price
        finally:
            print("the task has ended")

    def handle_call(self, request: object, caller: Caller) -> int:
        return self.last

    def terminate(self, reason: Reason) -> None:
        print("feed:", reason)


async def main() -> None:
    into, prices = trio.open_memory_channel[int](0)
    async with open_node(log_level="off") as node:
        feed = await node.spawn(Feed, prices)
        await into.send(7)
        await into.send(8)
        print("price:", await node.call(feed, "price"))
        await into.send(-1)
        await node.wait_ended(feed)


if __name__ == "__main__":
    trio.run(main)
