"""Histories of three nodes in a network that is cut, as digests.

The nodes compete for a singleton, whose child crashes and is restarted after a random delay. They
share a group, send each other messages in bursts, and call processes that answer late, or end
first. A digest covers all frames, all that the observers of the nodes see, and all answers, each
with its time.
"""

import re
from contextlib import AsyncExitStack
from hashlib import sha256
from random import Random
from typing import Any, Final

import trio

from ergo_py import NO_REPLY, Actor, Backoff, Caller, ChildSpec, ErgoError, Node
from ergo_py.cluster import Cluster, Singleton
from ergo_py.network import Memory
from ergo_py.testing import VirtualClock, seeded
from tests.support import running_node

__all__ = ["digest_of", "history_of"]

NAMES: Final = ("a@test", "b@test", "c@test")
"""The nodes of a history."""
CLIENTS: Final = 3
"""Tasks of each node that send and call."""


class Noting(Memory):
    """A network that notes its frames."""

    def __init__(self, history: list[str]) -> None:
        super().__init__(beat=0.3, patience=1.0)
        self.history = history

    def carry(self, sender: str, to: str, frame: bytes) -> None:
        self.history.append(f"{trio.current_time()} {sender} {to} {frame.hex()}")
        super().carry(sender, to, frame)


class Only(Actor):
    """A singleton that crashes on each message."""

    def handle_message(self, message: Any, sender: Any) -> None:
        raise RuntimeError(message)

    def handle_call(self, request: Any, caller: Caller) -> object:
        return self.node.name


class Counter(Actor):
    """Counts messages. Never answers ``"later"``, and ends on ``"end"``."""

    def __init__(self) -> None:
        self.count = 0

    async def init(self) -> None:
        group = await Cluster(self.node).group("counters")
        group.join(self.pid)

    def handle_message(self, message: Any, sender: Any) -> None:
        self.count += 1
        if message == "end":
            self.stop()

    def handle_call(self, request: Any, caller: Caller) -> object:
        return NO_REPLY if request == "later" else self.count


async def act(node: Node, chance: Random, note: Any) -> None:
    """Send and call, as a client of a node."""
    cluster = Cluster(node)
    counters = await cluster.group("counters")
    while True:
        await trio.sleep(chance.choice((0.0, 0.01, 0.5, 2.0)))
        members = sorted(counters.members())
        target = chance.choice(members) if members else None
        request: Any = chance.choice(("burst", "count", "later", "end", "crash", "who"))
        try:
            only = await cluster.whereis("only")
            if request == "who" and only is not None:
                note(await node.call(only, request, timeout=1.0))
            elif request == "crash" and only is not None:
                node.send(only, request)
            elif request == "burst" and target is not None:
                for number in range(40):
                    node.send(target, number)
            elif request == "end" and target is not None:
                node.send(target, request)
            elif target is not None:
                note(await node.call(target, request, timeout=5.0))
        except (ErgoError, trio.TooSlowError) as error:
            note(repr(error))


async def start(node: Node) -> None:
    """Start a singleton and two counters."""
    backoff = Backoff(0.1, 2.0, jitter=0.5)
    only = ChildSpec("only", Only, shutdown=0.2, terminate_timeout=0.2, backoff=backoff)
    await node.supervise([Singleton(only, lease=2.0)], intensity=1000)
    counters = [ChildSpec(f"counter {number}", Counter, backoff=backoff) for number in range(2)]
    await node.supervise(counters, intensity=1000)


async def run(seed: int, seconds: float, history: list[str]) -> None:
    """Run the nodes through partitions."""
    chance = Random(seed)

    def note(seen: object) -> None:
        # A publication has its time of day, which differs.
        history.append(re.sub(r"\bat=[\d.]+", "", f"{trio.current_time()} {seen!r}"))

    network = Noting(history)
    async with AsyncExitStack() as stack:
        nodes = []
        for name in NAMES:
            opening = running_node(name, network=network, observer=note, limit=1000)
            nodes.append(await stack.enter_async_context(opening))
        clients = await stack.enter_async_context(trio.open_nursery())
        for node in nodes:
            await start(node)
            for _ in range(CLIENTS):
                clients.start_soon(act, node, Random(chance.random()), note)
        end = trio.current_time() + seconds
        while trio.current_time() < end:
            await trio.sleep(chance.expovariate(2.0))
            match chance.choice(("cut", "cut", "cut", "store", "freeze", "heal", "heal")):
                case "cut":
                    network.cut(*chance.sample(NAMES, 2))
                case "store":
                    network.cut_store(chance.choice(NAMES))
                case "freeze":
                    network.freeze(chance.choice(NAMES))
                case _:
                    network.heal()
                    for name in NAMES:
                        network.thaw(name)
        clients.cancel_scope.cancel()


def history_of(seed: int, seconds: float = 3.0) -> list[str]:
    """The history of a seed."""
    history: list[str] = []
    with seeded(seed):
        trio.run(run, seed, seconds, history, clock=VirtualClock())
    return history


def digest_of(seed: int, seconds: float = 3.0) -> str:
    """The digest of a history."""
    return sha256("\n".join(history_of(seed, seconds)).encode()).hexdigest()
