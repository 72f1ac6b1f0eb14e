"""The parts of the demonstration that need msgspec: entities, and worker nodes with programs of
their own.
"""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..._core.vocabulary.ids import PID, Alias, Name
from ..._core.vocabulary.messages import Request
from ...actor import Actor
from ...entities.entity import Entity
from ...entities.keeper import Entities
from ...entities.stores.sqlite import SQLite
from ...network.carriers.local import Local
from ...node import Node
from ...supervision.specs import ChildSpec
from ...workers.worker_node import worker_nodes
from .plant import Intake, Reading

__all__ = ["DeviceRecord", "Mean", "children", "make_network", "start", "take"]

_PLACE: Final = "demo"
_WORKERS: Final = 3
_WINDOW: Final = 20
"""Readings of which a mean is computed."""


@dataclass
class Record:
    """The stored state of a device."""

    readings: int = 0
    last: float = 0.0


class DeviceRecord(Entity[Record]):
    """A device, whose state is stored with each reading."""

    def handle_message(self, message: Reading, sender: object) -> None:
        """Store a reading."""
        self.state.readings += 1
        self.state.last = message.value

    def handle_call(self, request: Reading, caller: object) -> None:
        """Store a reading. The answer leaves when it is stored."""
        self.handle_message(request, caller)


@dataclass(frozen=True)
class Mean(Request[float]):
    """The mean of these values."""

    values: tuple[float, ...]


class Calculator(Actor):
    """Computes, on a worker node."""

    def handle_call(self, request: Mean, caller: object) -> float:
        """Compute a mean."""
        return statistics.fmean(request.values)


async def start(node: Node) -> None:
    """Begin a worker node."""
    await node.spawn(Calculator, name="calculator")


class Means(Actor):
    """Collects readings, and lets the worker nodes compute their means in turn."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.computed: int = 0

    async def handle_message(self, message: Reading, sender: PID | Alias) -> None:
        """Collect a reading. If the worker node has been killed, this process fails as well, and
        both come back.
        """
        self.values.append(message.value)
        if len(self.values) >= _WINDOW:
            values, self.values = tuple(self.values), []
            worker = Name("calculator", f"worker-{self.computed % _WORKERS + 1}@{_PLACE}")
            await self.call(worker, Mean(values), timeout=10)
            self.computed += 1


def take(intake: Intake, reading: Reading) -> None:
    """Hand a reading to its device and to the means."""
    intake.entity(DeviceRecord, reading.device).send(reading)
    intake.send("means", reading)


def make_network(folder: Path) -> Local:
    """A network of this demonstration only."""
    return Local(types=[Mean], directory=folder)


def children(network: Local, folder: Path) -> list[ChildSpec]:
    """The entities, the worker nodes, and the process that uses them."""
    entities = Entities.spec(SQLite(folder / "demo.db"), [DeviceRecord], types=[Reading])
    return [
        ChildSpec("entities", entities),
        *worker_nodes(start, network, count=_WORKERS, place=_PLACE),
        ChildSpec("means", Means),
    ]
