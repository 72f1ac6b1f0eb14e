"""A node with a singleton that writes into a table of SQLite, in a program of its own.

The table is fenced as docs/clusters.md recommends: it takes no write with a smaller number than the
last. `violations` reads it afterwards, and knows nothing of leases and stores.
"""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import trio

from ergo_py import Actor, ChildSpec, open_node
from ergo_py.cluster import Singleton
from ergo_py.network import NATS

__all__ = ["LEASE", "accepted", "last_writer", "make_table", "refused", "violations"]

LEASE: Final = 4.0
"""Seconds of the lease."""
_PACE: Final = 0.05
"""Seconds between two writes."""


def make_table(path: Path) -> None:
    """Make the database."""
    with closing(_connect(path)) as database:
        database.executescript(
            """
            pragma journal_mode = wal;
            create table fence (newest integer not null);
            insert into fence values (0);
            create table starts (number integer, node text, start integer);
            create table writes (number integer, node text, start integer);
            create table refusals (number integer, node text, start integer);
            """
        )


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, timeout=30)


class Writer(Actor):
    """The singleton."""

    def __init__(self, path: str, start: int) -> None:
        self.database = _connect(Path(path))
        self.start = start

    def init(self) -> None:
        self.lease = Singleton.lease_of(self)
        self.row = self.lease.token, self.node.name, self.start
        self.database.execute("insert into starts values (?, ?, ?)", self.row)
        self.send_every(_PACE, self.pid, "write")

    def handle_message(self, message: Any, sender: Any) -> None:
        """Write, without a look at the lease: the table alone decides."""
        number = self.lease.token
        self.database.execute("begin immediate")
        fence = "update fence set newest = ? where newest <= ?"
        taken = self.database.execute(fence, (number, number)).rowcount
        table = "writes" if taken else "refusals"
        self.database.execute(f"insert into {table} values (?, ?, ?)", self.row)
        self.database.execute("commit")

    def terminate(self, reason: object) -> None:
        self.database.close()


# -- the checker -----------------------------------------------------------------------------------


def accepted(path: Path) -> int:
    """How many writes the table has taken."""
    return _count(path, "writes")


def refused(path: Path) -> int:
    """How many writes the table has refused."""
    return _count(path, "refusals")


def last_writer(path: Path) -> str:
    """The node of the last write."""
    with closing(_connect(path)) as database:
        row = database.execute("select node from writes order by rowid desc limit 1").fetchone()
    return str(row[0])


def _count(path: Path, table: str) -> int:
    with closing(_connect(path)) as database:
        return int(database.execute(f"select count(*) from {table}").fetchone()[0])


def violations(path: Path) -> list[str]:
    """The promises that the table shows to be broken."""
    with closing(_connect(path)) as database:
        starts = database.execute("select number, node, start from starts").fetchall()
        writes = database.execute("select number, node, start from writes").fetchall()
    found = []
    owners: dict[int, tuple[str, int]] = {}
    for number, *owner in [*starts, *writes]:
        if owners.setdefault(number, (owner[0], owner[1])) != (owner[0], owner[1]):
            found.append(f"the number {number} belongs to {owners[number]} and to {owner}")
        if not 0 < number < 1 << 63:
            found.append(f"the number {number} does not fit into 64 bits")
    numbers = [number for number, *_ in writes]
    if numbers != sorted(numbers):
        found.append("the table has taken a write with a smaller number")
    return found


# -- the program -----------------------------------------------------------------------------------


async def main() -> None:
    """Run the node until the program is killed."""
    name, path, start, *urls = sys.argv[1:]
    network = NATS(urls, cluster="chaos", patience=3.0)
    async with open_node(name, network=network, log_output="none") as node:
        child = ChildSpec("writer", Writer, path, int(start), shutdown=0.3, terminate_timeout=0.3)
        await node.supervise([Singleton(child, lease=LEASE)], intensity=1000, period=1.0)
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main)
