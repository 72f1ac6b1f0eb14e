"""The private parts of entities and their stores that tests look at."""

from typing import Any

from ergo_py import Actor, Node
from ergo_py.entities import SQLite, Store
from ergo_py.entities.active_entities import Keeping
from ergo_py.entities.schedule import Schedule
from ergo_py.entities.stores.threaded import ThreadedStore

__all__ = [
    "checkpoint_often",
    "database_setting",
    "fill_file",
    "keeping_of",
    "set_synchronous",
    "table_sizes",
]


def keeping_of(node: Node, kind: type[Actor]) -> Keeping:
    """The work of the keeper of a class of entities."""
    keeping = node._entities[kind].keeping
    assert isinstance(keeping, Keeping)
    return keeping


async def database_setting(store: Store, name: str) -> str:
    """A setting of the session of a PostgreSQL database."""

    def read(database: Any) -> str:
        row = database._connection.execute("select current_setting(%s)", (name,)).fetchone()
        return str(row[0])

    assert isinstance(store, ThreadedStore)
    return await store.run(read)


def table_sizes(keeping: Keeping) -> dict[str, int]:
    """How many entries each table of a keeper has."""
    tables = {**vars(keeping), "slots": keeping.table.slots}
    return {name: len(each) for name, each in tables.items() if isinstance(each, dict | Schedule)}


async def fill_file(store: SQLite) -> None:
    """Let no page be added to the file, by the connection that is open now."""

    def limit(file: Any) -> None:
        connection = file._open()
        pages = connection.execute("pragma page_count").fetchone()[0]
        connection.execute(f"pragma max_page_count = {pages}")

    await store.run(limit)


async def checkpoint_often(store: SQLite, pages: int) -> None:
    """Let the log be copied to the file after so many pages."""

    def limit(file: Any) -> None:
        file._open().execute(f"pragma wal_autocheckpoint = {pages}")

    await store.run(limit)


def set_synchronous(store: SQLite, value: str) -> None:
    """Let the file be opened with another ``pragma synchronous``, also one that is not allowed."""
    unchecked: Any = store
    unchecked._synchronous = value
