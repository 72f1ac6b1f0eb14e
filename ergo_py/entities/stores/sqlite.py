"""`SQLite`: a store in a file."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.public_names import show_public_names
from ...actor import Actor
from ...entity_handles import Address
from ..errors import EntityStoreError, FencedError
from .file_systems import check_local_disk
from .sqlite_file import SQLiteFile
from .store import Due, Row, Write
from .threaded import ThreadedStore

__all__ = ["SQLite"]

_MANY: Final = 200
"""Rows that a statement reads."""
_INSERT: Final = "insert or ignore into entities values (?, ?, ?, ?, ?)"
_KEEP: Final = (
    "update entities set version = ?, record = ? "
    "where kind = ? and key = ? and version = ? and due is null"
)
"""For rows that are not due, before and after: without a look at the index of moments, which took a
fifth of an update.
"""
_UPDATE: Final = (
    "update entities set version = ?, due = ?, record = ? "
    "where kind = ? and key = ? and version = ?"
)
_DELETE: Final = "delete from entities where kind = ? and key = ? and version = ?"
_CLAIM: Final = (
    "insert into shards values (?, ?) "
    "on conflict do update set token = excluded.token where token <= excluded.token"
)


class SQLite(ThreadedStore):
    """A file with a row for each entity. One program has it open at a time.

    Args:
        path: the file; made if it is missing when the program opens it first. Its directory must
            exist, on a local disk.
        synchronous: ``"FULL"``: a commit survives the loss of power, as far as the disk keeps what
            it has confirmed. ``"NORMAL"``: it survives the end of the program, and the loss of
            power may take the last commits.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    def __init__(
        self, path: str | Path, *, synchronous: Literal["FULL", "NORMAL"] = "FULL"
    ) -> None:
        if not isinstance(path, str | Path) or not str(path) or str(path) == ":memory:":
            raise BadInputError(
                "SQLite(path)",
                path,
                'the path of a file, such as "state.db"; for a test, MemoryStore()',
            )
        if synchronous not in ("FULL", "NORMAL"):
            raise BadInputError("SQLite(synchronous)", synchronous, '"FULL" or "NORMAL"')
        # Also for a program that changes its directory later.
        self.path: Path = Path(path).absolute()
        self._synchronous = synchronous
        self._warning = ""
        self._identity: tuple[int, int] | None = None
        """The file that this program has opened: a restarted keeper opens no other."""
        super().__init__(self._open_file)

    async def open(self, owner: "Actor", *, shared: bool = False) -> None:
        """Open the file, in a thread that belongs to ``owner``.

        Raises:
            EntityStoreError: it cannot be opened, or another program has it open.
        """
        await super().open(owner, shared=shared)
        if self._warning:
            owner.log.warning("the file of entities may not be on a local disk", why=self._warning)

    def _open_file(self, shared: bool) -> "_Rows":
        if shared:
            raise EntityStoreError(
                f"{self.path} belongs to a single program, and several nodes are to share it; use "
                "Postgres for entities on several nodes"
            )
        self._warning = check_local_disk(self.path)
        file = SQLiteFile(self.path, self._synchronous, self._identity)
        rows = _Rows(file)
        self._identity = file.identity
        return rows

    def __repr__(self) -> str:
        return f"SQLite({str(self.path)!r})"


class _Rows:
    """The rows of the file, in its thread."""

    def __init__(self, file: SQLiteFile) -> None:
        self._file = file
        self._connection: sqlite3.Connection | None = None
        """The connection whose tokens are known."""
        self._tokens: dict[int, int] = {}
        """The highest token that was claimed for each shard. No other program writes to the
        file, so that a commit need not read them.
        """
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> sqlite3.Connection:
        connection = self._file.open()
        if connection is not self._connection:
            try:
                self._tokens = dict(connection.execute("select shard, token from shards"))
            except sqlite3.Error as error:
                self._file.drop()
                raise self._file.failed("open", error) from error
            self._connection = connection
        return connection

    def close(self) -> None:
        """Close the file, and let other programs open it."""
        self._file.close()

    def claim(self, shard: int, token: int) -> None:
        """Refuse writes to a shard with lower tokens."""
        connection = self._open()
        try:
            done = connection.execute(_CLAIM, (shard, token)).rowcount
        except sqlite3.Error as error:
            self._file.drop()
            raise self._file.failed("write to", error) from error
        if not done:
            raise self._fenced(shard, token)
        self._tokens[shard] = token

    def _fenced(self, shard: int, token: int) -> FencedError:
        return FencedError(
            f"the token {token} is older than the token {self._tokens[shard]} that "
            f"{self._file.path} has for shard {shard}"
        )

    def load(self, addresses: Sequence[Address]) -> list[Row | None]:
        """Read rows."""
        connection = self._open()
        keys: dict[str, list[str]] = {}
        for kind, key in addresses:
            keys.setdefault(kind, []).append(key)
        found: dict[tuple[str, str], Row] = {}
        try:
            for kind, all_keys in keys.items():
                for start in range(0, len(all_keys), _MANY):
                    part = all_keys[start : start + _MANY]
                    # Not `(kind, key) in (values …)`: SQLite reads the whole table for it.
                    for key, version, record in connection.execute(
                        "select key, version, record from entities where kind = ? and key in "
                        f"({','.join('?' * len(part))})",
                        (kind, *part),
                    ):
                        found[kind, key] = Row(version, record)
        except sqlite3.Error as error:
            self._file.drop()
            raise self._file.failed("read", error) from error
        return [found.get(address) for address in addresses]

    def commit(self, writes: Sequence[Write]) -> None:
        """Write rows in a transaction."""
        connection = self._open()
        kept: list[tuple[object, ...]] = []
        changed: list[tuple[object, ...]] = []
        new: list[tuple[object, ...]] = []
        gone: list[tuple[object, ...]] = []
        never: list[Address] = []
        tokens = self._tokens
        for (kind, key), base, version, token, due, record, shard in writes:
            if shard in tokens and token < tokens[shard]:
                raise self._fenced(shard, token)
            if record is None:
                if base:
                    gone.append((kind, key, base))
                else:
                    never.append(Address(kind, key))
            elif base:
                if due is None:
                    kept.append((version, record, kind, key, base))
                else:
                    changed.append((version, due, record, kind, key, base))
            else:
                new.append((kind, key, version, due, record))
        try:
            connection.execute("begin immediate")
            # A row that was made and deleted within a batch: there must be none.
            done = -self._count(connection, never)
            if kept:
                done += connection.executemany(_KEEP, kept).rowcount
                if done < len(kept):
                    # Some were due. Rows that are written have another version now.
                    changed += [(version, None, *rest) for version, *rest in kept]
            for rows, statement in ((changed, _UPDATE), (new, _INSERT), (gone, _DELETE)):
                if rows:
                    done += connection.executemany(statement, rows).rowcount
            expected = len(writes) - len(never)
            if done != expected:
                raise FencedError(
                    f"{expected - done} of {len(writes)} rows have other versions than expected: "
                    "another activation has written them"
                )
            connection.execute("commit")
        except FencedError:
            self._roll_back(connection)
            raise
        except Exception as error:
            # Whatever it was, the transaction must not stay open.
            self._file.drop()
            raise self._file.failed("write to", error) from error

    def _count(self, connection: sqlite3.Connection, addresses: Sequence[Address]) -> int:
        statement = "select count(*) from entities where kind = ? and key = ?"
        return sum(connection.execute(statement, each).fetchone()[0] for each in addresses)

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("rollback")
        except sqlite3.Error:
            self._file.drop()

    def due(self, before: float, limit: int) -> list[Due]:
        """Read which entities have work to do. The keeper asks twice in a minute at least: a lock
        that was removed is noticed, and a connection without shared memory ends.
        """
        try:
            self._file.keep_lock()
        except EntityStoreError:
            self._file.drop()
            raise
        if self._file.is_private:
            self._file.drop()
        rows = self._select(
            "select due, kind, key from entities where due < ? order by due limit ?",
            (before, limit),
        )
        return [Due(moment, Address(kind, key)) for moment, kind, key in rows]

    def keys(self, kind: str, start: str, limit: int) -> list[str]:
        """Read the keys of a kind."""
        rows = self._select(
            "select key from entities where kind = ? and key >= ? order by key limit ?",
            (kind, start, limit),
        )
        return [key for (key,) in rows]

    def _select(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        connection = self._open()
        try:
            return connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            self._file.drop()
            raise self._file.failed("read", error) from error


show_public_names(__name__)
