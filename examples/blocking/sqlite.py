"""SQLite behind calls: the connection lives in a thread of its own, and actors use it without
blocking.
"""

import sqlite3
from collections.abc import Sequence

import trio

from ergo_py import Actor, Alias, Caller, Reject, open_node
from ergo_py.meta import Apply, BlockingCalls


def connect() -> sqlite3.Connection:
    """Runs in the thread that will use the connection; SQLite insists on that."""
    database = sqlite3.connect(":memory:")
    database.execute("create table fruit (name text primary key, price integer not null)")
    return database


def add(database: sqlite3.Connection, rows: Sequence[tuple[str, int]]) -> None:
    """Add all rows or none: the transaction is a single call, so no other call comes in between."""
    with database:
        database.executemany("insert into fruit values (?, ?)", rows)


def cheapest(database: sqlite3.Connection) -> tuple[str, int]:
    # A cursor must not leave its thread, so return the row it found.
    row: tuple[str, int] = database.execute(
        "select name, price from fruit order by price"
    ).fetchone()
    return row


def rows(database: sqlite3.Connection) -> list[tuple[str, int]]:
    return list(database.execute("select name, price from fruit"))


class Shop(Actor):
    async def init(self) -> None:
        self.database = await self.spawn_meta(
            BlockingCalls(factory=connect, interrupt=sqlite3.Connection.interrupt)
        )

    async def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case "database":
                return self.database
        raise Reject(LookupError("nothing else is known here"))


async def main() -> None:
    async with open_node("sqlite@localhost") as node:
        database: Alias = await node.call(await node.spawn(Shop), "database")
        await node.call(database, Apply(add, [("apple", 3), ("fig", 7)]))
        print("cheapest:", *await node.call(database, Apply(cheapest)))
        try:
            await node.call(database, Apply(add, [("pear", 2), ("apple", 1)]))
        except sqlite3.IntegrityError as error:
            print("refused:", error)
        print("rows:", len(await node.call(database, Apply(rows))))


trio.run(main)
