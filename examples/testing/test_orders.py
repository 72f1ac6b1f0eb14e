"""Confirmed orders survive the crashes of the shop, for each seed."""

import trio

from ergo_py import ErgoError, Name, Node
from ergo_py.testing import World, simulated

from . import orders
from .orders import HastyOrders, Orders, Place, Placed

ORDERS = Name("orders", "shop@world")


async def place_orders(world: World, kind: type[Orders]) -> None:
    async def start(node: Node) -> None:
        if node.name == ORDERS.node:
            await node.spawn(kind, world.nodes[node.name].disk.file("orders"), name="orders")

    _, till = await world.start(["shop@world", "till@world"], start, types=[orders])
    world.faults(seconds=10, nodes=["shop@world"], crash=0.3)
    for number in range(5):
        await trio.sleep(1)
        try:
            await till.call(ORDERS, Place(number), timeout=2)
        except ErgoError:  # the shop is down, and may have taken the order
            pass
    await world.heal()
    placed = await till.call(ORDERS, Placed())
    world.check(World.kept(Place, lambda: [Place(number) for number in placed]))


@simulated(seeds=10)
async def test_confirmed_orders_survive(world: World) -> None:
    await place_orders(world, Orders)


@simulated(seeds=10)
async def hasty_orders_survive(world: World) -> None:
    await place_orders(world, HastyOrders)
