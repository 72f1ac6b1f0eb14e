"""`PostgresQueue`: a table of PostgreSQL that is a queue, as a source and as a sink."""

from typing import Any, Final, LiteralString, Unpack

import psycopg
from psycopg import sql

from ..._core import sources
from ..._core.vocabulary.public_names import show_public_names
from ...meta.checks import DATABASE_LIMITS, check_conninfo, check_name
from ..item import Item
from .broker import BatchKeywords, Broker, Opened
from .queue_table import Connection, make_table

__all__ = ["PostgresQueue"]

# By the places of the rows: for ``id in (…)`` the server reads the whole table at each take, once
# it has statistics of it.
_TAKE: Final = """
    update {table} set taken_by = %(me)s, deliveries = deliveries + 1 where ctid = any(array(
        select ctid from {table} where queue = %(queue)s and taken_by is null
        order by id limit %(most)s for update skip locked)) returning id, key, body, deliveries
"""
# Each source holds an advisory lock of its session with its own number. The server releases it when
# the session ends, in any way: then the items of the source belong to no one.
_RELEASE: Final = """
    update {table} set taken_by = null where queue = %(queue)s and (taken_by not in (
        select (classid::bigint << 32) | objid::bigint from pg_locks join pg_database
        on pg_database.oid = database and datname = current_database()
        where locktype = 'advisory' and objsubid = 1) or taken_by = %(old)s and id <> all(%(held)s))
"""
_PUT: Final = "insert into {table} (queue, key, body, error) values (%s, %s, %s, %s)"
# Rows and numbers pass in binary: psycopg needs a third of the time for large bodies, and a half
# for the numbers.
_ACK: Final = "delete from {table} where id = any(%(ids)b)"
_TABLE: Final = (rb"[^.%\0]{1,57}", "a name of 1 to 57 bytes, without a schema and without %")
"""The name of the index is that of the table with six more signs: the server would cut it off. In
a statement, psycopg takes % for the beginning of a value.
"""


class PostgresQueue(Broker[Connection, int]):
    """A table of PostgreSQL that is a queue: a source, a sink, or ``poison``. Bodies are bytes; a
    text becomes its bytes in UTF-8.

    Any number of pipelines take items, each item by one of them. When the session of a pipeline
    ends, also by a kill, the others take its unacknowledged items at once. An item that was given
    up without ``poison`` stays with its pipeline until the session ends.

    Args:
        conninfo: the database, such as ``"host=db dbname=shop"``.
        queue: the name of the queue: a table has any number of them.
        table: the table; made if it is missing.
        options: as a sink, ``batch`` and ``within``, as those of `Sink`.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    places_last = True

    def __init__(
        self,
        conninfo: str,
        queue: str = "items",
        *,
        table: str = "ergo_items",
        **options: Unpack[BatchKeywords],
    ) -> None:
        super().__init__(**options)
        self._conninfo = check_conninfo("PostgresQueue(conninfo)", conninfo, DATABASE_LIMITS)
        [self._queue] = self.named(queue=queue)
        check_name("PostgresQueue(table)", table, *_TABLE)
        self._names = table, f"{table}_ready"
        self._table, self._channel = sql.Identifier(table), sql.Identifier(f"{table}.{queue}"[:60])
        self._me: int | None = None
        """Its number in ``taken_by``; None until it takes items."""

    def connect(self) -> Opened[Connection]:
        """Connect: a new session."""
        session = psycopg.connect(self._conninfo, autocommit=True)
        return session, session.close

    def prepare(self) -> None:
        """Make the table, if it is missing."""
        make_table(self.link, *self._names)

    def begin_to_take(self) -> None:
        """Take the lock of this source, and listen."""
        if self._me is None:
            # A later session of this object has the same number: the items that it has taken stay
            # its own.
            self._me = sources.chance("", "pipelines").bits(62)
        found = self.link.execute("select pg_try_advisory_lock(%s)", (self._me,)).fetchone()
        if found != (True,):
            raise ConnectionError("the server has not noticed the end of the session before")
        self.link.execute(sql.SQL("listen {}").format(self._channel))
        # An answer with items may have been lost behind its commit: they are taken, and not held.
        self._execute(_RELEASE, old=self._me, held=[*self.held])

    def receive(self, most: int, seconds: float = 0.0) -> None:
        """Find the next items. If there are none, look for those of sources that have ended."""
        rows = self._execute(_TAKE, most=most).fetchall()
        if not rows and self._execute(_RELEASE, old=None, held=[]).rowcount:
            rows = self._execute(_TAKE, most=most).fetchall()
        self.find([(body, key, row, count - 1, row) for row, key, body, count in sorted(rows)])

    def wait(self, seconds: float) -> None:
        """Wait until a `PostgresQueue` has put items."""
        next(self.link.notifies(timeout=seconds, stop_after=1), None)

    def confirm(self, places: list[int]) -> None:
        """Delete items."""
        self._execute(_ACK, ids=places)

    def handle_batch(self, items: list[Item]) -> None:
        """Put items, in a transaction, and wake the sources."""
        rows = [(self._queue, *self.row_of(item)) for item in items]
        with self.link.transaction(), self.link.cursor() as cursor:
            cursor.executemany(self._sql(_PUT), rows)
            cursor.execute(sql.SQL("notify {}").format(self._channel))

    def row_of(self, item: Item) -> tuple[str | None, Any, str | None]:
        """The row of an item. The server would read a text as an escaped form of bytes."""
        key, body, error = super().row_of(item)
        return key, body.encode() if isinstance(body, str) else body, error

    def _execute(self, text: LiteralString, **given: object) -> psycopg.Cursor[tuple[Any, ...]]:
        values = {"me": self._me, "queue": self._queue, **given}
        return self.link.execute(self._sql(text), values, binary=True)

    def _sql(self, text: LiteralString) -> sql.Composed:
        return sql.SQL(text).format(table=self._table)


show_public_names(__name__)
