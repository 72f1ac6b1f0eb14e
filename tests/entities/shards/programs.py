"""A node of a fleet in a program of its own, which tests kill and stop."""

import sys
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from ergo_py import Caller, ChildSpec, Node, Request, open_node
from ergo_py.entities import Entities, Entity, Store
from tests.network.pairs import make_network
from tests.network.programs import running_program

__all__ = ["Ledger", "Note", "Pass", "fleet_network", "fleet_program", "start_fleet"]

SHARDS = 8
LEASE = 3.0


@dataclass
class Notes:
    """The state of a ledger: all ids, in order."""

    ids: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Note(Request[list[str]]):
    """Note an id, unless it is empty, and tell all ids."""

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
                if id:
                    self.state.ids.append(id)
                return list(self.state.ids)
            case Pass(id, to):
                self.state.ids.append(id)
                self.send(self.entity(Ledger, to), Passed(id))
        return None

    def handle_message(self, message: Any, sender: Any) -> None:
        self.state.ids.append(f"got {message.id}")


TYPES = [Note, Pass, Passed]


def fleet_network(place: Path) -> Any:
    """The network of the fleet, with short patience for lost nodes."""
    return make_network("local", str(place), types=TYPES, beat=0.3, patience=2.0)


async def start_fleet(node: Node, store: Store) -> None:
    """Let a node host ledgers."""
    spec = Entities.spec(store, [Ledger], types=TYPES, shards=SHARDS, lease=LEASE, attempts=1000)
    await node.supervise([ChildSpec("entities", spec, init_timeout=60.0)], intensity=1000)


def fleet_program(
    name: str, place: Path, conninfo: str
) -> AbstractAsyncContextManager[trio.Process]:
    """A node of the fleet in a program of its own."""
    return running_program("-m", __name__, name, str(place), conninfo)


async def main() -> None:
    from ergo_py.entities import Postgres

    name, place, conninfo = sys.argv[1:]
    network = fleet_network(Path(place))
    async with open_node(name, network=network, watchdog=None, log_level="critical") as node:
        await start_fleet(node, Postgres(conninfo))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)


if __name__ == "__main__":
    trio.run(main)
