"""Two nodes of a network in a single test."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import Any

import trio

from ergo_py import Node, Request
from ergo_py.network import NATS, Local, Memory
from ergo_py.network.stores.store import Entry
from tests.support import kernel_of, running_node

__all__ = [
    "TYPES",
    "Add",
    "Colour",
    "Echo",
    "Order",
    "SlowStore",
    "Total",
    "carrier_of",
    "make_network",
    "network_of",
    "two_nodes",
    "until",
]


class Colour(Enum):
    """A listed Enum."""

    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Add:
    """A message."""

    number: int


@dataclass(frozen=True)
class Total(Request[int]):
    """A request."""


@dataclass(frozen=True)
class Echo(Request[object]):
    """A request that is answered with its value."""

    value: object


@dataclass(frozen=True)
class Order:
    """A message with other listed classes in it."""

    lines: list[Add]
    colour: Colour
    note: str = ""


_clusters = count()
TYPES = [Add, Total, Echo, Order, Colour]


def make_network(kind: str, place: Any = None, **settings: Any) -> Any:
    """A network for the nodes of a test, which meet at a directory or at a server."""
    settings = {"types": TYPES, **settings}
    if kind == "memory":
        return Memory(**settings)
    if kind == "nats":
        # Each network has a cluster of its own, so that tests can share a server.
        return NATS(place, **{"cluster": f"test-{next(_clusters)}-{os.getpid()}", **settings})
    return Local(directory=place, **settings)


@asynccontextmanager
async def two_nodes(network: Any, **options: Any) -> AsyncIterator[tuple[Node, Node]]:
    """The nodes a@test and b@test."""
    async with (
        running_node("a@test", network=network, **options) as a,
        running_node("b@test", network=network, **options) as b,
    ):
        yield a, b


def network_of(node: Node) -> Any:
    """The network of a running node."""
    return kernel_of(node).router.remote


def carrier_of(node: Node) -> Any:
    """The carrier of the network of a node."""
    return network_of(node).carrier


async def until(condition: Any) -> None:
    """Wait until a condition holds."""
    with trio.fail_after(120):
        while not condition():  # noqa: ASYNC110 - the condition may hold in another thread
            await trio.sleep(0.001)


class SlowStore:
    """A store that confirms writes late."""

    def __init__(self, store: Any, delay: float) -> None:
        self._store = store
        self._delay = delay
        self.get, self.delete, self.age = store.get, store.delete, store.age
        self.is_gone = store.is_gone

    async def put(self, key: str, value: bytes, revision: int) -> Entry:
        fresh: Entry = await self._store.put(key, value, revision)
        await trio.sleep(self._delay)
        return fresh
