"""A library that needs an asyncio loop, behind calls."""

import asyncio
from collections.abc import AsyncIterator

import trio

from ergo_py import Actor, Caller, CallTimeoutError, open_node
from ergo_py.meta import Apply, AsyncioCalls, Invoke


class Exchange:
    """Stands for asyncpg, redis.asyncio or the SDK of a cloud."""

    async def price(self, article: str) -> int:
        await asyncio.sleep(0.001)
        return len(article)

    async def prices(self, article: str) -> AsyncIterator[int]:
        try:
            for number in range(1_000_000):
                await asyncio.sleep(0)
                yield len(article) + number
        finally:
            print("asyncio: closed", article)

    async def slow(self) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            print("asyncio: cancelled")
            raise

    async def close(self) -> None:
        print("asyncio: closed the exchange")


async def both(exchange: Exchange, *articles: str) -> list[int]:
    return await asyncio.gather(*map(exchange.price, articles))


class Shop(Actor):
    async def init(self) -> None:
        self.exchange = await self.spawn_meta(AsyncioCalls(factory=Exchange))

    async def handle_call(self, request: str, caller: Caller) -> list[int]:
        found = [await self.call(self.exchange, Invoke("price", request))]
        found += await self.call(self.exchange, Apply(both, request, "pear"))
        async with self.call_stream(self.exchange, Invoke("prices", request)) as prices:
            async for price in prices:
                found.append(price)
                if len(found) == 5:
                    break
        try:
            await self.call(self.exchange, Invoke("slow"), timeout=0.01)
        except CallTimeoutError:
            print("price of a plum:", await self.call(self.exchange, Invoke("price", "plum")))
        return found


async def main() -> None:
    async with open_node() as node:
        shop = await node.spawn(Shop)
        print(await node.call(shop, "apple"))


if __name__ == "__main__":
    trio.run(main)
