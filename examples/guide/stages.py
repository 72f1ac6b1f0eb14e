from collections.abc import AsyncIterator
from itertools import count

import trio
import trio.testing

from ergo_py import Actor, Caller, Request, open_node
from ergo_py.streams import PartStream


class Take(Request[PartStream[int]]):
    pass


class Numbers(Actor):
    """A producer."""

    def __init__(self) -> None:
        self.produced = 0

    def handle_call(self, request: object, caller: Caller) -> object:
        return self.stream(self.numbers(), credit=2) if isinstance(request, Take) else self.produced

    async def numbers(self) -> AsyncIterator[int]:
        for number in count(1):
            self.produced = number
            yield number


class Squares(Actor):
    """A consumer of the numbers, and a producer itself."""

    def handle_call(self, request: Take, caller: Caller) -> PartStream[int]:
        return self.stream(self.squares(), credit=2)

    async def squares(self) -> AsyncIterator[int]:
        async for number in self.call_stream("numbers", Take()):
            yield number * number


async def main() -> None:
    async with open_node() as node:
        await node.spawn(Numbers, name="numbers")
        await node.spawn(Squares, name="squares")
        async with node.call_stream("squares", Take()) as squares:
            print("a batch:", [await anext(squares) for _ in range(3)])
            await trio.testing.wait_all_tasks_blocked()
            print("produced:", await node.call("numbers", "how many"))


if __name__ == "__main__":
    trio.run(main)
