"""Traders: entities that send each other coins, clients that note each command, and a check of the
stored rows against these notes. Any program and any loss of power must leave rows that pass it.
"""

import shutil
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from ergo_py import Caller, CallError, ChildSpec, Node, Reject, Request
from ergo_py.entities import Entities, Entity, EntityStoreError, Store
from ergo_py.entities.record import Origin, Record
from ergo_py.entity_handles import Address
from ergo_py.errors import ServiceError

__all__ = [
    "TRADERS",
    "Purse",
    "Told",
    "Trader",
    "copy_file",
    "faults_of",
    "keep_traders",
    "read_rows",
    "trade",
]

TRADERS: Final = 6


@dataclass
class Purse:
    """The state of a trader."""

    amount: int = 0
    last: int = 0
    """The number of the last command that took effect."""
    applied: int = 0
    """How many commands took effect."""
    received: int = 0
    """Coins of other traders."""


@dataclass(frozen=True)
class Trade(Request[int]):
    """The command with this number: of each three, the first brings ten coins, the second pays one
    to the next trader, and the third is refused.
    """

    number: int


@dataclass(frozen=True)
class Coin:
    """A coin of another trader."""


class Trader(Entity[Purse]):
    """Carries out the commands of its client."""

    def handle_call(self, request: Any, caller: Caller) -> object:
        """Trade."""
        match request:
            case Trade(number):
                purse = self.state
                purse.last, purse.applied = number, purse.applied + 1
                if number % 3 == 1:
                    purse.amount += 10
                elif number % 3 == 2:
                    purse.amount -= 1
                    neighbour = str((int(self.key) + 1) % TRADERS)
                    self.send(self.entity(Trader, neighbour), Coin())
                else:
                    purse.amount -= 1_000_000
                    raise Reject(ValueError("refused"))
                return number
        raise Reject(LookupError(request))

    def handle_message(self, message: Any, sender: Any) -> None:
        """Take a coin."""
        match message:
            case Coin():
                self.state.amount += 1
                self.state.received += 1


async def keep_traders(node: Node, store: Store, **options: Any) -> None:
    """Start the keeper of the traders. Not all of them can be awake."""
    keywords: dict[str, Any] = {"max_awake": TRADERS - 2, "max_remembered": 20, **options}
    await node.supervise(
        [ChildSpec("entities", Entities.spec(store, [Trader], types=[Coin], **keywords))],
        intensity=1000,
    )


async def trade(
    node: Node,
    trader: int,
    numbers: Iterable[int],
    tell: Callable[[str], object],
    *,
    gives_up: bool = False,
) -> None:
    """Carry out commands in order, each until it is answered, and tell of each. With ``gives_up``
    a command that fails is not repeated.
    """
    handle = node.entity(Trader, str(trader))
    for number in numbers:
        tell(f"try {trader} {number}")
        while True:
            try:
                await handle.call(Trade(number), once=str(number), timeout=None)
                tell(f"done {trader} {number}")
            except ValueError:
                tell(f"refused {trader} {number}")
            except (CallError, ServiceError, EntityStoreError):
                if not gives_up:
                    await trio.sleep(0.001)
                    continue
            break


@dataclass
class Told:
    """The notes of clients."""

    tried: dict[str, int] = field(default_factory=dict)
    """The last command that each has tried."""
    done: dict[str, int] = field(default_factory=dict)
    """The last command of each that was acknowledged."""
    answered: dict[str, int] = field(default_factory=dict)
    """The last command of each that was acknowledged or refused."""

    def take(self, lines: Iterable[str]) -> "Told":
        """Take notes, the first first."""
        for line in lines:
            verb, trader, number = line.split()
            notes = {"try": self.tried, "done": self.done}.get(verb)
            # A later program repeats commands of an earlier program.
            if notes is not None:
                notes[trader] = max(notes.get(trader, 0), int(number))
            if verb != "try":
                self.answered[trader] = max(self.answered.get(trader, 0), int(number))
        return self


def copy_file(path: Path, directory: Path) -> Path:
    """Copy a file of SQLite that no program has open, with its log: reading changes both."""
    directory.mkdir(exist_ok=True)
    for name in (path.name, f"{path.name}-wal"):
        (directory / name).unlink(missing_ok=True)
        if (path.parent / name).exists():
            shutil.copy(path.parent / name, directory / name)
    return directory / path.name


def read_rows(path: Path) -> dict[str, Record]:
    """The records of traders in a file that no program has open."""
    connection = sqlite3.connect(path)
    try:
        connection.execute("pragma synchronous = off")
        ((sound,),) = connection.execute("pragma integrity_check").fetchall()
        assert sound == "ok", sound
        if not connection.execute("select count(*) from sqlite_master").fetchone()[0]:
            return {}
        rows = connection.execute("select key, record from entities").fetchall()
    finally:
        connection.close()
    return {key: Record.decode(record) for key, record in rows}


def faults_of(records: dict[str, Record], told: Told, *, is_settled: bool = False) -> list[str]:
    """What is wrong with stored records: an acknowledged command that is missing, a command that
    took effect twice or in part, a refused command that took effect, a coin too many or too few;
    and if all has settled, a coin that is still under way.
    """
    faults: list[str] = []
    paid = received = 0
    for key in sorted(told.tried | dict.fromkeys(records, 0)):
        record = records.get(key)
        state = None if record is None else record.state
        purse = Purse() if state is None else Trader.__state_type__.load(state)
        if purse.last < told.done.get(key, 0):
            faults.append(f"{key}: acknowledged {told.done[key]}, stored {purse.last}")
        if purse.last > told.tried.get(key, 0):
            faults.append(f"{key}: tried {told.tried.get(key, 0)}, stored {purse.last}")
        if purse.last and purse.last % 3 == 0:
            faults.append(f"{key}: the refused command {purse.last} took effect")
        deposits, payments = (purse.last + 2) // 3, (purse.last + 1) // 3
        if purse.applied != deposits + payments:
            faults.append(f"{key}: {purse.applied} of {deposits + payments} commands took effect")
        if purse.amount != 10 * deposits - payments + purse.received:
            faults.append(f"{key}: has {purse.amount} coins")
        paid += payments
        received += purse.received
    under_way = sum(_coins_under_way(records, key) for key in records)
    if paid != received + under_way:
        faults.append(f"{paid} coins paid, {received} received, {under_way} under way")
    if is_settled and under_way:
        faults.append(f"{under_way} coins do not arrive")
    return faults


def _coins_under_way(records: dict[str, Record], key: str) -> int:
    """The coins that a trader owes and that have not taken effect."""
    record = records[key]
    origin = Origin(*Address(Trader.kind, key), record.birth)
    return sum(
        each.key not in records or records[each.key].seen.get(origin, 0) < each.number
        for each in record.owed.values()
    )
