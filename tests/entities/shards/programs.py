"""A node of a fleet in a program of its own, which tests kill, stop and cut off."""

import json
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import trio

from ergo_py import Caller, ChildSpec, ErgoError, Node, Request, open_node
from ergo_py.entities import Entities, Entity, Store
from tests.network.pairs import make_network
from tests.network.programs import running_program

__all__ = [
    "KEYS",
    "LEASE",
    "SHARDS",
    "Clients",
    "Ledger",
    "Note",
    "Notes",
    "Pass",
    "fleet_network",
    "fleet_program",
    "start_fleet",
]

SHARDS = 8
LEASE = 3.0
KEYS = [f"ledger {number}" for number in range(10)]


@dataclass
class Notes:
    """The state of a ledger: all ids, in order."""

    ids: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Note(Request[list[str]]):
    """Note an id, or tell all ids if it is empty."""

    id: str = ""


@dataclass(frozen=True)
class Pass(Request[None]):
    """Note an id, and pass it on to another ledger."""

    id: str
    to: str


@dataclass(frozen=True)
class Passed:
    """An id that another ledger passes on."""

    id: str


class Ledger(Entity[Notes]):
    """Notes ids."""

    def handle_call(self, request: Any, caller: Caller) -> object:
        match request:
            case Note(id):
                if not id:
                    return list(self.state.ids)
                self.state.ids.append(id)
                return []
            case Pass(id, to):
                self.state.ids.append(id)
                self.send(self.entity(Ledger, to), Passed(id))
        return None

    def handle_message(self, message: Any, sender: Any) -> None:
        self.state.ids.append(f"got {message.id}")


TYPES = [Note, Pass, Passed]


class Clients:
    """Clients that note ids, and repeat each until it is acknowledged."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.noted: dict[str, str] = {}
        """The ledgers of acknowledged ids."""
        self.passed: dict[str, str] = {}
        """The ledgers that acknowledged ids were passed to."""
        self.is_over = False

    async def work(self, number: int, pause: float = 0.01) -> None:
        """Note ids until it is over."""
        step = 0
        while not self.is_over:
            step += 1
            id = f"{self.node.name}.{number}.{step}"
            key, other = KEYS[(number + step) % 10], KEYS[(number + 3 * step + 1) % 10]
            request = Pass(id, other) if step % 3 == 0 else Note(id)
            await self.until_done(key, request, id)
            self.noted[id] = key
            if isinstance(request, Pass):
                self.passed[id] = other
            await trio.sleep(pause)

    async def until_done(self, key: str, request: Note | Pass, id: str | None) -> list[str] | None:
        """Repeat a command until it is acknowledged."""
        while True:
            try:
                entity = self.node.entity(Ledger, key)
                return await entity.call(request, once=id, timeout=2.0)
            except ErgoError:
                await trio.sleep(0.05)


def fleet_network(place: str) -> Any:
    """The network of the fleet, with short patience for lost nodes: at a NATS server, or at a
    directory.
    """
    settings: dict[str, Any] = {"types": TYPES, "beat": 0.3, "patience": 2.0}
    if place.startswith("nats:"):
        return make_network("nats", place, cluster="fleet", **settings)
    return make_network("local", place, **settings)


async def start_fleet(node: Node, store: Store) -> None:
    """Let a node host ledgers."""
    spec = Entities.spec(store, [Ledger], types=TYPES, shards=SHARDS, lease=LEASE, attempts=1000)
    await node.supervise([ChildSpec("entities", spec, init_timeout=60.0)], intensity=1000)


def fleet_program(
    name: str, place: str, conninfo: str, clients: int = 0, within: Sequence[str] = ()
) -> AbstractAsyncContextManager[trio.Process]:
    """A node of the fleet in a program of its own, with clients. The beginning of a command
    (``within``) runs it in a network namespace.
    """
    arguments = ("-m", __name__, name, place, conninfo, str(clients))
    return running_program(*arguments, within=within)


async def main() -> None:
    from ergo_py.entities import Postgres

    name, place, conninfo, count = sys.argv[1:]
    network = fleet_network(place)
    async with open_node(name, network=network, watchdog=None, log_level="critical") as node:
        await start_fleet(node, Postgres(conninfo))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        clients = Clients(node)
        async with trio.open_nursery() as nursery:
            for number in range(int(count)):
                nursery.start_soon(clients.work, number, 0.1)
            await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
            clients.is_over = True
        sys.stdout.write(f"{json.dumps([clients.noted, clients.passed])}\n")
        sys.stdout.flush()
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)


if __name__ == "__main__":
    trio.run(main)
