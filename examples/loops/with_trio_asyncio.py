"""trio-asyncio: coroutines of asyncio in a callback of an actor, on trio's own loop."""

import asyncio
from typing import Any

import trio
import trio_asyncio

from ergo_py import Actor, Caller, open_node

aio_as_trio: Any = trio_asyncio.aio_as_trio


async def of_asyncio(left: int, right: int) -> int:
    await asyncio.sleep(0.001)
    return left + right


class Adder(Actor):
    async def handle_call(self, request: int, caller: Caller) -> int:
        async with trio_asyncio.open_loop():
            found: int = await aio_as_trio(of_asyncio)(request, 1)
        return found


async def main() -> None:
    async with open_node() as node:
        print(await node.call(await node.spawn(Adder), 41))


if __name__ == "__main__":
    trio.run(main)
