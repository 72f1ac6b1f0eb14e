"""eventsourcing: an aggregate for each account, whose events SQLite keeps. One thread, so that a
commit is never shared. Its events are kept for good, so it stores more.
"""
# pyright: reportMissingImports=false, reportUntypedBaseClass=false
# pyright: reportUntypedFunctionDecorator=false

import os
import tempfile
from pathlib import Path
from uuid import UUID

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event

from ..clocks import Stopwatch
from ..harness import Figures, Variant

__all__ = ["ADDS"]


class Account(Aggregate):
    """An account, as its events make it."""

    def __init__(self) -> None:
        self.amount = 0

    @event("Deposited")  # type: ignore[untyped-decorator]
    def deposit(self, amount: int) -> None:
        self.amount += amount


class Bank(Application[UUID]):
    """The accounts, and the command."""

    def deposit(self, id: UUID, amount: int) -> int:
        account: Account = self.repository.get(id)
        account.deposit(amount)
        self.save(account)
        return account.amount


def _commands(size: int) -> Figures:
    with tempfile.TemporaryDirectory() as directory:
        settings = {
            "PERSISTENCE_MODULE": "eventsourcing.sqlite",
            "SQLITE_DBNAME": os.fspath(Path(directory) / "accounts.db"),
            "AGGREGATE_CACHE_MAXSIZE": "100",
        }
        with Bank(env=settings) as bank:
            account = Account()
            bank.save(account)
            with Stopwatch() as watch:
                for _ in range(size):
                    bank.deposit(account.id, 1)
    return watch.each(size)


ADDS: dict[str, dict[str, Variant]] = {
    f"entities, {who}": {"eventsourcing": _commands}
    for who in ("1 client", "100 clients", "1,000 clients")
}
