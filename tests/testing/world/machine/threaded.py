"""Worlds of nodes with threads, for several tests."""

import time
from typing import Any

import trio

from ergo_py import Actor, Caller, ErgoError, MetaProcess, Node, Threads
from ergo_py.meta import BlockingCalls, Invoke
from ergo_py.testing import World
from ergo_py.testing.world.node import WorldNode

__all__ = ["busy", "start"]


class Library:
    """Blocks, and notes the order of its calls."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def work(self, number: int, seconds: float) -> list[int]:
        self.calls.append(number)
        time.sleep(seconds)
        self.calls.append(-number)
        return self.calls[-6:]


class Ticker(MetaProcess):
    """A plain loop in a thread of its own, and a handler in worker threads."""

    def start(self) -> None:
        number = 0
        while self.pause(0.2):
            number += 1
            self.send(self.parent, number)

    def handle_call(self, request: Any, caller: Caller) -> Any:
        time.sleep(request)
        return "served"


class Owner(Actor):
    """Has three threads for calls, and a meta-process that ticks."""

    async def init(self) -> None:
        self.ticks: list[int] = []
        self.library = await self.spawn_meta(BlockingCalls(Library(), threads=3))
        self.ticker = await self.spawn_meta(Ticker())

    def handle_message(self, message: Any, sender: Any) -> None:
        self.ticks.append(message)

    async def handle_call(self, request: Any, caller: Caller) -> Any:
        if request == "ticks":
            return self.ticks[-3:]
        if request == "tick":
            return await self.call(self.ticker, 0.05)
        if request == "back":
            return await trio.to_thread.run_sync(self.look_back)
        return await self.call(self.library, Invoke("work", *request))

    def look_back(self) -> list[int]:
        ticks: list[int] = trio.from_thread.run_sync(lambda: self.ticks[-3:])
        trio.from_thread.run(trio.sleep, 0.01)
        return ticks


class Blocker(Actor):
    """Blocks a thread that it shares, and calls another process from there."""

    def handle_call(self, request: Any, caller: Caller) -> Any:
        time.sleep(0.01)
        answer = self.node.call_from_thread("owner", "ticks")
        return [request, answer]


async def start(node: Node) -> None:
    """Start the processes of a node."""
    await node.spawn(Owner, name="owner")
    for name in ("left", "right", "middle"):
        await node.spawn(Blocker, name=name, dispatcher=Threads("pool", 2))


async def visit(world: World, client: WorldNode, number: int) -> None:
    """Call the processes of a node, as a client of another."""
    for step in range(2):
        await trio.sleep(world.random.uniform(0.0, 0.5))
        name = world.random.choice(("owner", "left", "right", "middle"))
        request: Any = world.random.choice(((number * 10 + step, 0.1), "ticks", "tick", "back"))
        try:
            await client.call(name, request)
        except ErgoError as error:
            world.note(f"{client.name}: {type(error).__name__}")


async def busy(world: World) -> None:
    """Clients call nodes with threads, some of which crash, stop, or have a bad clock."""
    nodes = await world.start(2, start)
    world.faults(seconds=2.0, crash=0.3, pause=0.3, skew=0.3)
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(visit, world, nodes[number % 2], number + 1)
    await world.heal()
