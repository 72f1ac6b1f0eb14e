"""A singleton runs on one node of a cluster, and starts on another when that node ends."""

from dataclasses import dataclass

import trio

from ergo_py import Actor, Caller, ChildSpec, Node, Request, open_node
from ergo_py.cluster import Cluster, Singleton, lease_of
from ergo_py.network import Memory


@dataclass(frozen=True)
class NextNumber(Request[int]):
    pass


class Numbers(Actor):
    """Gives out numbers. Two of them would give out the same number twice."""

    def init(self) -> None:
        self.lease = lease_of(self)
        self.last = 100 * self.lease.token

    def handle_call(self, request: object, caller: Caller) -> int:
        self.lease.check()  # raises if another node may run it by now
        self.last += 1
        return self.last


async def start(node: Node) -> None:
    child = ChildSpec("numbers", Numbers, shutdown=1.0, terminate_timeout=1.0)
    await node.supervise([Singleton(child)])


async def main() -> None:
    network = Memory(types=[NextNumber])
    async with open_node("shop@berlin", network=network) as berlin:
        async with open_node("shop@paris", network=network) as paris:
            await start(paris)
            numbers = await Cluster(berlin).wait_for("numbers")
            await start(berlin)  # waits for the lease
            print(numbers, await berlin.call(numbers, NextNumber()))
        numbers = await Cluster(berlin).wait_for("numbers")
        print(numbers, await berlin.call(numbers, NextNumber()) > 200)


if __name__ == "__main__":
    trio.run(main)
