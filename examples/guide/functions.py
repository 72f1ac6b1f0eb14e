"""Functions in programs of their own, on all cores."""

import trio

from ergo_py import Node, open_node
from ergo_py.workers import Compute, ProcessCalls
from examples.cores import primes


async def main() -> None:
    async with open_node("cores@example") as node:
        await node.spawn(ProcessCalls.spec(count=2), name="cores")
        totals: dict[int, int] = {}
        async with trio.open_nursery() as nursery:
            for first in range(0, 8000, 2000):
                nursery.start_soon(count, node, first, totals)
        print(f"{sum(totals.values())} primes below 8000")


async def count(node: Node, first: int, totals: dict[int, int]) -> None:
    request = Compute(primes.count, first, first + 2000)
    totals[first] = await node.call("cores", request, timeout=60)  # inferred: int


if __name__ == "__main__":
    trio.run(main)
