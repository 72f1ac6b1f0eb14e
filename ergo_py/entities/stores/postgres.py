"""`Postgres`: a store in a PostgreSQL database."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, LiteralString, TypeAlias, TypeVar

from ..._core.vocabulary.public_names import show_public_names
from ...entity_handles import Address
from ...meta.checks import check_conninfo, check_name
from ..errors import EntityStoreError, FencedError
from .store import Due, Row, Write
from .threaded import ThreadedStore

try:
    import psycopg
    from psycopg import sql
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
except ImportError as error:  # also a psycopg that finds no libpq
    raise ModuleNotFoundError(
        "Postgres needs psycopg, which cannot be imported; install it with: pip install "
        "'ergo_py[postgres]'",
        name="psycopg",
    ) from error

__all__ = ["Postgres"]

R = TypeVar("R")
Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

_LAYOUT: Final = 2
"""The layout of the tables. A later layout is refused."""

# The text of a key sorts by its bytes, as in every store, whatever the database sorts by.
_SCHEMA: Final = """
    create schema if not exists {schema};
    create table {schema}.entities (
        kind text collate "C" not null, key text collate "C" not null,
        version bigint not null, due double precision, record bytea not null,
        primary key (kind, key)
    );
    create index entities_due on {schema}.entities (due) where due is not null;
    create table {schema}.owner (
        id integer primary key check (id = 1),
        layout integer not null, opening bigint not null, is_shared boolean not null
    );
    create table {schema}.shards (shard integer primary key, token bigint not null);
    insert into {schema}.owner values (1, 2, 0, false);
"""

# A single statement, and not a transaction of several: a program that is stopped between two
# statements would hold the locks of its rows for as long as it stands, and no other could write
# them. If a row has another version, a division by zero undoes the whole statement.
#
# The rows of the shards are locked until the end of the commit, and a claim changes them: it waits
# for the commits before it, and refuses all behind it.
_COMMIT: Final = """
    with opened as (
        select 1 from {schema}.owner where opening = %(opening)s for share
    ),
    held as (
        select * from unnest(%(shards)s::int[], %(tokens)s::bigint[]) as held(shard, token)
    ),
    valid as (
        select 1 from {schema}.shards as claimed join held using (shard)
        where claimed.token <= held.token for share of claimed
    ),
    fence as (
        select 1 where exists (select from opened) and (select count(*) from valid)
            = (select count(*) from {schema}.shards join held using (shard))
    ),
    given as (
        select * from unnest(
            %(kinds)s::text[], %(keys)s::text[], %(bases)s::bigint[], %(versions)s::bigint[],
            %(dues)s::float8[], %(records)s::bytea[]
        ) as given(kind, key, base, version, due, record)
        where exists (select from fence)
    ),
    made as (
        insert into {schema}.entities
        select kind, key, version, due, record from given where base = 0 and record is not null
        on conflict do nothing returning 1
    ),
    changed as (
        update {schema}.entities as old
        set version = given.version, due = given.due, record = given.record
        from given
        where old.kind = given.kind and old.key = given.key and old.version = given.base
            and given.base <> 0 and given.record is not null
        returning 1
    ),
    gone as (
        delete from {schema}.entities as old using given
        where old.kind = given.kind and old.key = given.key and old.version = given.base
            and given.base <> 0 and given.record is null
        returning 1
    ),
    never as (  -- a row that was made and deleted within a batch: there must be none
        select 1 from {schema}.entities as old join given using (kind, key)
        where given.base = 0 and given.record is null
    ),
    done as (
        select (select count(*) from made) + (select count(*) from changed)
            + (select count(*) from gone) - (select count(*) from never) as rows
        where exists (select from fence)
        union all select -1 where not exists (select from fence)
    )
    select case when rows = %(expected)s then rows else 1 / (rows - rows) end from done
"""
_LOAD: Final = """
    select kind, key, version, record from {schema}.entities
    where (kind, key) in (select * from unnest(%s::text[], %s::text[]))
"""
_DUE: Final = """
    select due, kind, key from {schema}.entities where due < %s order by due, kind, key limit %s
"""
_KEYS: Final = """
    select key from {schema}.entities
    where kind = %(kind)s and key >= %(start)s and (%(included)s or key > %(start)s)
    order by key limit %(limit)s
"""
_CLAIM: Final = """
    insert into {schema}.shards as claimed
    select %(shard)s, %(token)s::bigint from {schema}.owner where opening = %(opening)s
    on conflict (shard) do update set token = excluded.token where claimed.token <= excluded.token
    returning 1
"""
# From layout 1, whose single token no program has claimed.
_UPGRADE: Final = """
    create table {schema}.shards (shard integer primary key, token bigint not null);
    alter table {schema}.owner drop column token, add is_shared boolean not null default false;
    update {schema}.owner set layout = 2;
"""
_OPEN: Final = """
    update {schema}.owner
    set opening = opening + (not (is_shared and %(shared)s))::int, is_shared = %(shared)s
    where layout = %(layout)s and (%(last)s::bigint is null or opening = %(last)s)
    returning opening
"""
# A number that no other program has, also not one that a pooler gives the same session.
_OWN: Final = """
    select hashtextextended(concat(pg_backend_pid(), ' ', clock_timestamp(), ' ', random()), 0)
"""
# The sessions that hold the lock of this program, and no others: behind a pooler the last session
# of this program may be that of another client by now, or its own again.
_END_SESSIONS: Final = """
    select pg_terminate_backend(pid) from pg_locks
    where locktype = 'advisory' and objsubid = 1 and pid <> pg_backend_pid()
        and database = (select oid from pg_database where datname = current_database())
        and classid = (%(own)s::bigint >> 32 & 4294967295)::oid
        and objid = (%(own)s::bigint & 4294967295)::oid
"""
_SETTINGS: Final = " ".join(
    f"-c {setting}"
    for setting in (
        # The server notices a dead program, and lets its successor begin. The system's own limit
        # is two hours.
        "tcp_keepalives_idle=5",
        "tcp_keepalives_interval=5",
        "tcp_keepalives_count=3",
        "tcp_user_timeout=20000",
        "idle_in_transaction_session_timeout=10000",
    )
)
_LIMITS: Final = {
    # The same for a dead server. A commit under way fails after this time.
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
    "application_name": "ergo_py entities",
}


class Postgres(ThreadedStore):
    """A PostgreSQL database with a row for each entity. One program has it open at a time, or the
    nodes of a cluster share it.

    A commit is confirmed by the server, so it survives as much as the server's own
    ``synchronous_commit`` and ``fsync`` let it; a server with ``synchronous_commit = off`` is
    told to wait for its disk all the same.

    Args:
        conninfo: the database, as libpq takes it: ``"postgresql://user@host/database"`` or
            ``"host=... dbname=..."``. A pooler between must keep sessions.
        schema: the schema of the tables, made if it is missing. Programs with schemas of their own
            share a database.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    def __init__(self, conninfo: str, *, schema: str = "ergo") -> None:
        given = conninfo_to_dict(check_conninfo("Postgres(conninfo)", conninfo))
        # The server cuts longer names off, and psycopg takes % for the beginning of a value.
        wish = "a name of 1 to 63 bytes, without %"
        check_name("Postgres(schema)", schema, rb"[^%\0]{1,63}", wish)
        given["options"] = f"{_SETTINGS} {given.get('options') or ''}"
        full = make_conninfo("", **(_LIMITS | given))
        place = "/".join(str(given[part]) for part in ("host", "dbname") if given.get(part))
        self._place = f"{place or 'postgres'} schema {schema}"
        super().__init__(lambda shared: _Database(full, schema, self._place, shared))

    def __repr__(self) -> str:
        return f"Postgres({self._place})"


class _Database:
    """The open database, in its thread. After an error its connection is not used again."""

    def __init__(self, conninfo: str, schema: str, place: str, shared: bool) -> None:
        self._conninfo = conninfo
        self._is_shared = shared
        self._schema = schema
        self._place = place
        self._connection: Connection | None = None
        self._opening: int | None = None
        """The number of this opening. Another program that opens the database takes the next.
        Programs that share the database have the same.
        """
        self._own: int | None = None
        """The lock of this program, which a single one of its sessions has."""
        self._do("open", lambda connection: None)

    def _sql(self, statement: LiteralString) -> sql.Composed:
        return sql.SQL(statement).format(schema=sql.Identifier(self._schema))

    def _do(self, verb: str, work: Callable[[Connection], R]) -> R:
        """Do work with the connection, opened again if an error has closed it.

        Raises:
            EntityStoreError: the work failed. What it wrote may have been written.
        """
        try:
            connection = self._connection
            if connection is None:
                connection = self._connection = self._connect()
            return work(connection)
        except FencedError:
            raise
        except (psycopg.Error, UnicodeError, EntityStoreError) as error:
            # After an error during a commit, only the server knows whether it was done.
            self.close()
            if isinstance(error, EntityStoreError):
                raise
            text = " ".join(str(error).split())
            raise EntityStoreError(f"cannot {verb} {self._place}: {text}") from error

    def _connect(self) -> Connection:
        connection = psycopg.connect(self._conninfo, autocommit=True)
        try:
            if (
                connection.info.encoding != "utf-8"
                or _show(connection, "server_encoding") != "UTF8"
            ):
                raise EntityStoreError(
                    f"{self._place} has the encoding {_show(connection, 'server_encoding')}, and "
                    "keys may have any characters; use a database with the encoding UTF8"
                )
            if _show(connection, "synchronous_commit") == "off":
                connection.execute("set synchronous_commit = on")
            self._lock(connection)
            self._make_tables(connection)
            self._take(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _make_tables(self, connection: Connection) -> None:
        with connection.transaction():
            # Two programs that share the database must not make them at the same time.
            connection.execute("select pg_advisory_xact_lock(7365, 1)")
            if not self._is_there(connection):
                connection.execute(self._sql(_SCHEMA))
            elif self._layout(connection) == 1:
                connection.execute(self._sql(_UPGRADE))

    def _is_there(self, connection: Connection) -> bool:
        found = connection.execute(
            "select 1 from pg_tables where schemaname = %s and tablename = 'owner'", (self._schema,)
        )
        return found.fetchone() is not None

    def _layout(self, connection: Connection) -> object:
        row = connection.execute(self._sql("select layout from {schema}.owner")).fetchone()
        return None if row is None else row[0]

    def _lock(self, connection: Connection) -> None:
        """Keep other programs away for as long as this connection lives, except those that share
        the database; and wait until the last session of this program has ended. Its commit may be
        under way, and nothing may be read before it.
        """
        own = self._own
        if own is None:
            own = self._own = int(_first(connection, _OWN))
        # The server may not know yet that this program has lost its connection.
        connection.execute(_END_SESSIONS, {"own": own})
        self._wait_for_lock(
            connection,
            "select pg_advisory_lock(%s::bigint)",
            own,
            "has a session of this program that has not ended yet; the next request tries again",
        )
        lock = "pg_advisory_lock_shared" if self._is_shared else "pg_advisory_lock"
        self._wait_for_lock(
            connection,
            sql.SQL("select {}(hashtextextended(%s, 0))").format(sql.Identifier(lock)),
            f"ergo_py entities {self._schema}",
            "is open in another program, or in another Entities of this program; a schema belongs "
            "to a single one, or to nodes that share it",
        )

    def _wait_for_lock(
        self,
        connection: Connection,
        statement: LiteralString | sql.Composed,
        key: int | str,
        problem: str,
    ) -> None:
        try:
            # Wait: a program that has just ended may still have a session for a moment.
            with connection.transaction():
                connection.execute("set local lock_timeout = '3s'")
                connection.execute(statement, (key,))
        except psycopg.errors.LockNotAvailable:
            raise EntityStoreError(f"{self._place} {problem}") from None

    def _take(self, connection: Connection) -> None:
        """Take the next number of an opening, unless another program has had one meanwhile."""
        layout = self._layout(connection)
        given = {"layout": _LAYOUT, "last": self._opening, "shared": self._is_shared}
        row = connection.execute(self._sql(_OPEN), given).fetchone()
        if row is not None:
            self._opening = int(row[0])
            return
        if layout != _LAYOUT:
            raise EntityStoreError(
                f"the tables of {self._place} have the layout {layout}, and this version of "
                f"ergo_py knows {_LAYOUT}; use the version that made them, or a later one"
            )
        raise EntityStoreError(
            f"another program had {self._place} open while this one had lost its connection; "
            "restart the program"
        )

    def close(self) -> None:
        """Close the connection, and let other programs open the database."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def claim(self, shard: int, token: int) -> None:
        """Refuse writes to a shard with lower tokens."""

        def work(connection: Connection) -> None:
            given = {"opening": self._opening, "shard": shard, "token": token}
            if connection.execute(self._sql(_CLAIM), given).fetchone() is None:
                raise FencedError(
                    f"the token {token} is older than the one that {self._place} has for shard "
                    f"{shard}"
                )

        self._do("write to", work)

    def load(self, addresses: Sequence[Address]) -> list[Row | None]:
        """Read rows."""
        kinds, keys = [each.kind for each in addresses], [each.key for each in addresses]
        rows = self._select(_LOAD, (kinds, keys))
        found = {(kind, key): Row(version, record) for kind, key, version, record in rows}
        return [found.get((each.kind, each.key)) for each in addresses]

    def commit(self, writes: Sequence[Write]) -> None:
        """Write rows, by a single statement."""
        tokens: dict[int, int] = {}
        for each in writes:
            tokens[each.shard] = min(each.token, tokens.get(each.shard, each.token))

        def work(connection: Connection) -> None:
            given = {
                "opening": self._opening,
                "shards": list(tokens),
                "tokens": list(tokens.values()),
                "kinds": [each.address.kind for each in writes],
                "keys": [each.address.key for each in writes],
                "bases": [each.base for each in writes],
                "versions": [each.version for each in writes],
                "dues": [each.due for each in writes],
                "records": [each.record for each in writes],
                "expected": sum(1 for each in writes if each.base or each.record is not None),
            }
            try:
                connection.execute(self._sql(_COMMIT), given, binary=True)
            except psycopg.errors.DivisionByZero:
                raise FencedError(
                    f"{self._place} refused {len(writes)} rows: the token is older than the "
                    "claimed one, or another activation has written a row"
                ) from None

        self._do("write to", work)

    def due(self, before: float, limit: int) -> list[Due]:
        """Read which entities have work to do."""
        rows = self._select(_DUE, (before, limit))
        return [Due(moment, Address(kind, key)) for moment, kind, key in rows]

    def keys(self, kind: str, start: str, limit: int) -> list[str]:
        """Read the keys of a kind."""
        # A text of the server has no zeros, and no key has any: the keys from "a\0" on are those
        # behind "a".
        start, zero, _ = start.partition("\0")
        given = {"kind": kind, "start": start, "included": not zero, "limit": limit}
        return [key for (key,) in self._select(_KEYS, given)]

    def _select(
        self, statement: LiteralString, values: Sequence[object] | Mapping[str, object]
    ) -> list[Any]:
        return self._do(
            "read",
            lambda connection: connection.execute(
                self._sql(statement), values, binary=True
            ).fetchall(),
        )


def _show(connection: Connection, setting: str) -> str:
    return _first(connection, "select current_setting(%s)", setting)


def _first(connection: Connection, statement: LiteralString, *values: str) -> str:
    """The first value that a statement finds, as a text."""
    row = connection.execute(statement, values).fetchone()
    assert row is not None
    return str(row[0])


show_public_names(__name__)
