"""`PostgresQueue`: a table of PostgreSQL that is a queue, as a source and as a sink."""

from typing import Any, Final, LiteralString, TypeAlias, Unpack

from ..._core import sources
from ..._core.vocabulary.public_names import show_public_names
from ..item import Item
from .broker import BatchKeywords, Broker, missing

try:
    import psycopg
    from psycopg import sql
    from psycopg.conninfo import make_conninfo
except ImportError as error:  # also a psycopg that finds no libpq
    raise missing("PostgresQueue", "psycopg", "postgres") from error

__all__ = ["PostgresQueue"]

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

_SCHEMA: Final = """
    create table if not exists {table} (
        id bigint generated always as identity primary key, queue text not null, key text,
        body bytea not null, error text, taken_by bigint, deliveries integer not null default 0
    );
    create index if not exists {index} on {table} (queue, id) where taken_by is null;
"""
_TAKE: Final = """
    update {table} set taken_by = %(me)s, deliveries = deliveries + 1
    where id in (
        select id from {table} where queue = %(queue)s and taken_by is null
        order by id limit %(most)s for update skip locked
    )
    returning id, key, body, deliveries
"""
# Each source holds an advisory lock of its session with its own number. The server releases it when
# the session ends, in any way: then the items of the source belong to no one.
_RELEASE: Final = """
    update {table} set taken_by = null
    where queue = %s and taken_by is not null and taken_by not in (
        select (classid::bigint << 32) | objid::bigint from pg_locks
        where locktype = 'advisory' and objsubid = 1
            and database = (select oid from pg_database where datname = current_database())
    )
"""
_PUT: Final = "insert into {table} (queue, key, body, error) values (%s, %s, %s, %s)"
_ACK: Final = "delete from {table} where id = any(%s)"
_LIMITS: Final[dict[str, str]] = {
    # A dead server is noticed.
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
    "application_name": "ergo_py pipelines",
}


class PostgresQueue(Broker[Connection]):
    """A table of PostgreSQL that is a queue: a source, a sink, or ``poison``. Bodies are bytes.

    Any number of pipelines take items, each item by one of them. When the session of a pipeline
    ends, also by a kill, the others take its unacknowledged items at once. An item that was given
    up without ``poison`` stays with its pipeline until that ends.

    Args:
        conninfo: the database, such as ``"host=db dbname=shop"``.
        queue: the name of the queue: a table has any number of them.
        table: the table; made if it is missing.
        options: as a sink, ``batch`` and ``within``, as those of `Sink`.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    def __init__(
        self,
        conninfo: str,
        queue: str = "items",
        *,
        table: str = "ergo_items",
        **options: Unpack[BatchKeywords],
    ) -> None:
        super().__init__(**options)
        self._conninfo, self._queue, self._table = conninfo, queue, table
        self._channel = sql.Identifier(f"{table}.{queue}"[:60])
        self._me: int | None = None
        """Its number in ``taken_by``; None until it takes items."""
        self._is_locked = False

    def connect(self) -> Connection:
        """Connect: a new session."""
        self._is_locked = False
        return psycopg.connect(make_conninfo(self._conninfo, **_LIMITS), autocommit=True)

    def open(self) -> None:
        """Connect, and make the table."""
        super().open()
        self.link.execute(self._statement(_SCHEMA))

    def take(self, most: int) -> list[Item]:
        """Return the next items. If there are none, look for those of sources that have ended."""
        if not self._is_locked:
            self._begin_to_take()
        items = self._take(most)
        if not items and self._release():
            items = self._take(most)
        return items

    def _begin_to_take(self) -> None:
        if self._me is None:
            # A later session of this object has the same number: the items that it has taken stay
            # its own.
            self._me = sources.chance("", "pipelines").bits(62)
        found = self.link.execute("select pg_try_advisory_lock(%s)", (self._me,)).fetchone()
        if found != (True,):
            raise ConnectionError("the server has not noticed the end of the session before")
        self._is_locked = True
        self.link.execute(sql.SQL("listen {}").format(self._channel))
        self._release()

    def _release(self) -> int:
        return self.link.execute(self._statement(_RELEASE), (self._queue,)).rowcount

    def _take(self, most: int) -> list[Item]:
        given = {"me": self._me, "queue": self._queue, "most": most}
        rows = sorted(self.link.execute(self._statement(_TAKE), given).fetchall())
        return [Item(body, key, number, count > 1) for number, key, body, count in rows]

    def wait(self, seconds: float) -> None:
        """Wait until a `PostgresQueue` has put items."""
        for _ in self.link.notifies(timeout=seconds, stop_after=1):
            pass

    def ack(self, items: list[Item]) -> None:
        """Delete items."""
        numbers = [item.receipt for item in items]
        self.link.execute(self._statement(_ACK), (numbers,))

    def handle_batch(self, items: list[Item]) -> None:
        """Put items, in a transaction, and wake the sources."""
        rows = [(self._queue, item.key, item.body, self.error_of(item)) for item in items]
        with self.link.transaction(), self.link.cursor() as cursor:
            cursor.executemany(self._statement(_PUT), rows)
            cursor.execute(sql.SQL("notify {}").format(self._channel))

    def _statement(self, text: LiteralString) -> sql.Composed:
        return sql.SQL(text).format(
            table=sql.Identifier(self._table), index=sql.Identifier(f"{self._table}_ready")
        )


show_public_names(__name__)
