"""Count primes on all cores: a worker node for each, in a program of its own."""

import trio

from ergo_py import Name, Node, open_node
from ergo_py.network import Local
from ergo_py.workers import worker_nodes
from examples.cores import primes
from examples.cores.primes import Count

WORKERS = 2
PART = 2_000


async def main() -> None:
    network = Local(types=[primes])
    async with open_node("cores@example", network=network) as node:
        specs = worker_nodes(primes.start, network, count=WORKERS, name="core", place="example")
        await node.supervise(specs)
        print("nodes:", *await node.discover())

        totals: dict[int, int] = {}
        async with trio.open_nursery() as nursery:
            for part in range(2 * WORKERS):
                nursery.start_soon(count, node, part, totals)
        print(f"{sum(totals.values())} primes below {2 * WORKERS * PART}")


async def count(node: Node, part: int, totals: dict[int, int]) -> None:
    worker = Name("primes", f"core-{part % WORKERS + 1}@example")
    request = Count(part * PART, (part + 1) * PART)
    totals[part] = await node.call(worker, request, timeout=60)


if __name__ == "__main__":
    trio.run(main)
