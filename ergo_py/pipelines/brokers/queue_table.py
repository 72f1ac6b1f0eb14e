"""`make_table`: the table of queues in PostgreSQL."""

from typing import Any, Final, TypeAlias

import psycopg
from psycopg import sql

__all__ = ["Connection", "make_table"]

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

# No index has a column that a take changes, and each page has room for its rows as the take writes
# them: so a take writes to no index, and needs half of the time.
_SCHEMA: Final = """
    create table if not exists {table} (id bigint generated always as identity primary key,
        queue text not null, key text, body bytea not null, error text, taken_by bigint,
        deliveries integer not null default 0) with (fillfactor = 50);
    create index if not exists {index} on {table} (queue, id);
"""
_EXISTS: Final = "select to_regclass(quote_ident(%s)) is not null"
# Of two numbers: the sources have the locks of one.
_LOCK: Final = "select pg_advisory_xact_lock(0, hashtext(%s))"


def make_table(link: Connection, table: str, index: str) -> None:
    """Make the table and its index, if they are missing."""
    # To make an index waits for all transactions that have written to the table, and all others
    # wait behind it, also if the index exists.
    if all(link.execute(_EXISTS, (name,)).fetchone() == (True,) for name in (table, index)):
        return
    with link.transaction():
        # Of two programs that make the same table at once, one would fail.
        link.execute(_LOCK, (table,))
        names = {"table": sql.Identifier(table), "index": sql.Identifier(index)}
        link.execute(sql.SQL(_SCHEMA).format(**names))
