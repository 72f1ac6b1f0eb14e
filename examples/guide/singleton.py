"""A singleton runs on one node of a cluster, and starts on another when that node ends."""

from dataclasses import dataclass

import trio

from ergo_py import Actor, Caller, ChildSpec, Node, Request, open_node
from ergo_py.cluster import Cluster, Singleton
from ergo_py.network import Memory


@dataclass(frozen=True)
class NextNumber(Request[tuple[int, int]]):
    pass


class Numbers(Actor):
    """Gives out numbers: that of the lease, and a count, which begins again with each lease."""

    def init(self) -> None:
        self.lease = Singleton.lease_of(self)
        self.count = 0

    def handle_call(self, request: object, caller: Caller) -> tuple[int, int]:
        self.lease.check()  # raises if another node may run it by now
        self.count += 1
        return self.lease.token, self.count


async def start(node: Node) -> None:
    child = ChildSpec("numbers", Numbers, shutdown=1.0, terminate_timeout=1.0)
    await node.supervise([Singleton(child)])


async def main() -> None:
    network = Memory(types=[NextNumber])
    first = (0, 0)
    async with open_node("shop@berlin", network=network) as berlin:
        async with open_node("shop@paris", network=network) as paris:
            await start(paris)
            numbers = await Cluster(berlin).wait_for("numbers")
            await start(berlin)  # waits for the lease
            first = await berlin.call(numbers, NextNumber())
            print(numbers, first < await berlin.call(numbers, NextNumber()))
        numbers = await Cluster(berlin).wait_for("numbers")
        print(numbers, first < await berlin.call(numbers, NextNumber()))


if __name__ == "__main__":
    trio.run(main)
