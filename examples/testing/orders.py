"""A shop that keeps its orders in a file: `Orders` confirms an order when it is on disk, and
`HastyOrders` confirms it too early.
"""

from dataclasses import dataclass
from typing import Protocol

from ergo_py import Actor, Caller


@dataclass(frozen=True, slots=True)
class Place:
    """Places an order."""

    number: int


@dataclass(frozen=True, slots=True)
class Placed:
    """Asks for the orders that were placed."""


class Journal(Protocol):
    """A file: of the disk, or of a world."""

    def read(self) -> bytes: ...
    def write(self, data: bytes) -> None: ...
    def sync(self) -> None: ...


class Orders(Actor):
    """Takes orders."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def handle_call(self, request: Place | Placed, caller: Caller) -> list[int] | bool:
        match request:
            case Place(number):
                self.keep(number)
                return True
            case Placed():
                return [int(line) for line in self.journal.read().strip(b"\0").split()]

    def keep(self, number: int) -> None:
        self.journal.write(b"%d\n" % number)
        self.journal.sync()


class HastyOrders(Orders):
    """Confirms an order before it is on disk."""

    def keep(self, number: int) -> None:
        self.journal.write(b"%d\n" % number)
