"""Messages and calls inside a node: with a network open, and without."""

from math import inf
from time import process_time
from typing import Any

import trio

from ergo_py import Actor, Caller, open_node
from ergo_py.network import Memory

__all__ = ["local_ratios"]

_ROUNDS = 40


class Server(Actor):
    """Takes messages, and answers."""

    def handle_message(self, message: object, sender: object) -> None:
        pass

    def handle_call(self, request: object, caller: Caller) -> object:
        return request


class Client(Actor):
    """Sends and calls, as often as it is asked to."""

    async def handle_call(self, request: Any, caller: Caller) -> float:
        server, verb, size = request
        began = process_time()
        if verb == "tell":
            for _ in range(size // 100):
                for _ in range(100):
                    self.send(server, "x")
                await self.call(server, "x")
        else:
            for _ in range(size):
                await self.call(server, "x")
        return process_time() - began


def local_ratios(size: int) -> dict[str, float]:
    """The least cost with a network, as a multiple of the least cost without."""
    return trio.run(_measure, size)


async def _measure(size: int) -> dict[str, float]:
    costs: dict[tuple[str, bool], float] = {}
    quiet: dict[str, Any] = {"log_output": "none", "watchdog": None}
    async with (
        open_node("a@bench", network=Memory(), **quiet) as joined,
        open_node("alone", **quiet) as alone,
    ):
        pairs = [
            (node, await node.spawn(Client), await node.spawn(Server)) for node in (joined, alone)
        ]
        for number in range(_ROUNDS):
            for verb in ("tell", "call"):
                # Alternate which node comes first: a machine becomes slower and faster.
                for node, client, server in pairs if number % 2 else pairs[::-1]:
                    taken = await node.call(client, (server, verb, size), timeout=None)
                    key = verb, node is joined
                    costs[key] = min(taken, costs.get(key, inf))
    return {verb: costs[verb, True] / costs[verb, False] for verb in ("tell", "call")}
