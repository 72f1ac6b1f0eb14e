"""Worlds of three nodes with a singleton, for several tests."""

import trio

from ergo_py import Actor, Caller, ChildSpec, ErgoError, Node
from ergo_py.cluster import Cluster, Singleton
from ergo_py.testing import World
from ergo_py.testing.world.node import WorldNode

__all__ = ["Only", "busy", "quiet", "start", "visit"]


class Only(Actor):
    """The singleton."""

    def handle_call(self, request: object, caller: Caller) -> object:
        return self.node.name


async def start(node: Node) -> None:
    """Let a node compete for the singleton."""
    only = ChildSpec("only", Only, shutdown=0.5, terminate_timeout=0.5)
    await node.supervise([Singleton(only, lease=4.0)], intensity=1000)


async def visit(world: World, client: WorldNode, times: int) -> None:
    """Call the singleton, as a client of a node."""
    for _ in range(times):
        await trio.sleep(world.random.uniform(0.0, 2.0))
        try:
            only = await Cluster(await client.wait_up()).whereis("only")
            if only is not None:
                await client.call(only, "who")
        except ErgoError as error:
            world.note(f"{client.name}: {type(error).__name__}")


async def busy(world: World) -> None:
    """All kinds of faults, while clients call the singleton."""
    nodes = await world.start(3, start)
    world.faults(
        seconds=10.0,
        cut=0.2,
        one_way=0.2,
        lose=0.05,
        double=0.1,
        delay=0.2,
        cut_store=0.1,
        slow_store=0.1,
        pause=0.1,
        crash=0.1,
        skew=0.1,
    )
    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(visit, world, node, 6)
    await world.heal()
    world.check(World.at_most_one("only"))


async def quiet(world: World) -> None:
    """A store that is late or lost, and no clients."""
    await world.start(3, start)
    world.faults(cut_store=0.2, slow_store=0.2)
    await trio.sleep(40)
    await world.heal()
    world.check(World.at_most_one("only"))
