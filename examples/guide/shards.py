"""Two nodes share the entities of a store. A node that drains gives its entities to the other."""

from dataclasses import dataclass

import trio

from ergo_py import ChildSpec, Node, ask, exposed, open_node
from ergo_py.entities import Entities, Entity, MemoryStore
from ergo_py.network import Memory


@dataclass
class Basket:
    things: int = 0


class Customer(Entity[Basket]):
    @exposed
    def buy(self, things: int) -> int:
        self.state.things += things
        return self.state.things


async def start(node: Node, store: MemoryStore) -> None:
    entities = Entities.spec(store, [Customer], shards=16)
    await node.supervise([ChildSpec("entities", entities)])


async def main() -> None:
    network, store = Memory(), MemoryStore()  # in production: Postgres("postgresql://…")
    async with (
        open_node("shop@berlin", network=network) as berlin,
        open_node("shop@paris", network=network) as paris,
    ):
        await start(berlin, store)
        await start(paris, store)
        for node in (berlin, paris):
            customer = node.entity(Customer, "ada")
            print(node.name, await customer.call(ask(Customer.buy, 1), timeout=30))
        await berlin.drain()
        customer = berlin.entity(Customer, "ada")
        print("paris has her", await customer.call(ask(Customer.buy, 1), timeout=30))


if __name__ == "__main__":
    trio.run(main)
