"""`SQLite`: a store in a file."""

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

from ..._core.vocabulary.errors import BadInputError
from ..._core.vocabulary.public_names import show_public_names
from ...actor import Actor
from ...entity_handles import Address
from ...network.stores.file_locks import is_same_file, locked_file
from ..errors import EntityStoreError, FencedError, WriteRefusedError
from .file_systems import check_local_disk
from .store import Due, Row, Write
from .threaded import ThreadedStore

__all__ = ["SQLite"]

_SCHEMA: Final = """
    begin immediate;
    create table if not exists entities (
        kind text not null, key text not null,
        version integer not null, due real, record blob not null,
        primary key (kind, key)
    ) without rowid;
    create index if not exists entities_due on entities (due) where due is not null;
    create table if not exists shards (shard integer primary key, token integer not null);
    drop table if exists tokens;
    pragma application_id = {mark};
    pragma user_version = {layout};
    commit;
"""
_APPLICATION: Final = 0x6572676F
"""The mark of such a file: SQLite's ``application_id``."""
_LAYOUT: Final = 2
"""The version of the tables: SQLite's ``user_version``. Layout 1 had a single token for all shards,
which no program has claimed.
"""
_BESIDE: Final = 10_000
"""Bytes of a row beside its record, at most: a key of 1,000 characters, the kind, and numbers."""
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
        self.path: Path = Path(path)
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

    def _open_file(self, shared: bool) -> "_File":
        if shared:
            raise EntityStoreError(
                f"{self.path} belongs to a single program, and several nodes are to share it; use "
                "Postgres for entities on several nodes"
            )
        self._warning = check_local_disk(self.path)
        file = _File(self.path, self._synchronous, self._identity)
        self._identity = file.identity
        return file

    def __repr__(self) -> str:
        return f"SQLite({str(self.path)!r})"


class _File:
    """The open file, in its thread. After an error its connection is not used again."""

    def __init__(
        self, path: Path, synchronous: str, identity: tuple[int, int] | None = None
    ) -> None:
        self._path = path
        self._file = path.resolve()
        """The file behind symbolic links: its lock and its log are beside it."""
        self._synchronous = synchronous
        self._connection: sqlite3.Connection | None = None
        self._log = f"{self._file}-wal"
        """The write-ahead log, a file beside it."""
        self.identity: tuple[int, int] | None = identity
        """The only file that may be opened; None before this program has opened one."""
        self._log_identity: tuple[int, int] | None = None
        self._tokens: dict[int, int] = {}
        """The highest token that was claimed for each shard. No other program writes to the
        file, so that a commit need not read them.
        """
        self._is_private = False
        """The connection needs no shared memory, and locks out readers of other programs."""
        self._lock = _lock(self._file)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> sqlite3.Connection:
        """Open the connection, unless it is open.

        Raises:
            EntityStoreError: the file cannot be opened, or was replaced.
        """
        connection = self._connection
        try:
            if self.identity is not None:
                self._check_identity()
            if connection is not None:
                if _identity(self._log) == self._log_identity:
                    return connection
                # The log was removed. SQLite would go on with it, and no later start finds its
                # commits. A connection that closes copies them to the file.
                self._drop()
            self._keep_lock()
            connection = self._set_up()
            self._tokens = dict(connection.execute("select shard, token from shards"))
            self.identity = _identity(self._path, 1)
            self._log_identity = _identity(self._log)
            return connection
        except sqlite3.Error as error:
            self._drop()
            raise self._failed("open", error) from error
        except EntityStoreError:
            self._drop()
            raise

    def _set_up(self) -> sqlite3.Connection:
        """Connect to the file, with its settings and tables.

        Raises:
            EntityStoreError: it is missing, or of another program, or was just replaced.
            sqlite3.Error: it cannot be opened.
        """
        try:
            return self._begin(is_private=False)
        except sqlite3.Error as error:
            # A full disk has no room for the shared memory of readers: the file is read without.
            if not getattr(error, "sqlite_errorname", "").startswith("SQLITE_IOERR_SHM"):
                raise
        self._drop()
        return self._begin(is_private=True)

    def _begin(self, *, is_private: bool) -> sqlite3.Connection:
        self._is_private = is_private
        connection = self._connection = self._connect()
        if is_private:
            connection.execute("pragma locking_mode = exclusive")
        self._prepare(connection)
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Check the file, and make its tables if it is new.

        Raises:
            EntityStoreError: it is of another program, or cannot have a log.
        """
        is_new = self._is_new(connection)
        if connection.execute("pragma journal_mode = wal").fetchone()[0] != "wal":
            raise EntityStoreError(
                f"{self._path} cannot be kept with a write-ahead log there; entities need a "
                "local disk"
            )
        connection.execute(f"pragma synchronous = {self._synchronous}")
        connection.execute("pragma secure_delete = on")
        if is_new:  # and no write otherwise
            connection.executescript(_SCHEMA.format(mark=_APPLICATION, layout=_LAYOUT))

    def _connect(self) -> sqlite3.Connection:
        """Connect to the file, and make it only if this program has opened none before.

        Raises:
            EntityStoreError: it is missing, and its log is there; or it has a second name; or it
                was just replaced.
            sqlite3.Error: it cannot be opened.
        """
        found = _status(self._file)
        may_make = found is None or not found.st_size
        if self.identity is None and found is not None and found.st_nlink > 1:
            raise EntityStoreError(
                f"{self._path} has {found.st_nlink} names (hard links), and a lock and a log "
                "belong to a single name: remove the others (`find -samefile` lists them), or copy "
                "the file"
            )
        log = _status(self._log)
        if may_make and log is not None and log.st_size:
            # SQLite would remove the log of a missing file, and with it commits.
            raise EntityStoreError(
                f"{self._path} is missing or empty, and its log {self._log} has commits; put the "
                "file back, or remove the log to begin with a new file"
            )
        connection = sqlite3.connect(
            f"{self._file.as_uri()}?mode={'rwc' if may_make else 'rw'}",
            uri=True,
            isolation_level=None,
            timeout=5.0,
        )
        if self.identity is not None:
            try:
                self._check_identity()
            except EntityStoreError:
                connection.close()
                raise
        return connection

    def _is_new(self, connection: sqlite3.Connection) -> bool:
        """Whether the file has no tables yet.

        Raises:
            EntityStoreError: it is the file of another program, or of a later version.
        """
        (mark,) = connection.execute("pragma application_id").fetchone()
        (layout,) = connection.execute("pragma user_version").fetchone()
        (tables,) = connection.execute("select count(*) from sqlite_master").fetchone()
        if mark != _APPLICATION and (mark or tables):
            raise EntityStoreError(
                f"{self._path} is the database of another program; entities need a file of their "
                "own"
            )
        if layout > _LAYOUT:
            raise EntityStoreError(
                f"{self._path} has the layout {layout}, and this version of ergo_py reads "
                f"{_LAYOUT}; use the version that wrote it, or a later one"
            )
        return bool(layout < _LAYOUT)

    def _check_identity(self) -> None:
        """Check that the file is the one that was opened: SQLite would go on with a file that was
        removed, and no later start finds its commits; and a new file would acknowledge commands
        without the commits of the first, whose place it takes.
        """
        if _identity(self._path, 1) != self.identity:
            raise EntityStoreError(
                f"{self._path} was removed or replaced, or is empty, after this program has opened "
                "it; put the same file back, or restart the program to begin with the file that is "
                "there"
            )

    def _keep_lock(self) -> None:
        """Lock the file again if its lock was removed: another program could take it.

        Raises:
            EntityStoreError: another program has taken it.
        """
        if not is_same_file(self._lock, _lock_path(self._file)):
            lock = _lock(self._file)
            os.close(self._lock)
            self._lock = lock

    def _failed(self, what: str, error: Exception) -> EntityStoreError:
        return EntityStoreError(f"cannot {what} {self._path}: {error}")

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error:
                pass  # its files are closed all the same

    def close(self) -> None:
        """Close the file, and let other programs open it."""
        self._drop()
        os.close(self._lock)

    def claim(self, shard: int, token: int) -> None:
        """Refuse writes to a shard with lower tokens."""
        connection = self._open()
        try:
            done = connection.execute(_CLAIM, (shard, token)).rowcount
        except sqlite3.Error as error:
            self._drop()
            raise self._failed("write to", error) from error
        if not done:
            raise self._fenced(shard, token)
        self._tokens[shard] = token

    def _fenced(self, shard: int, token: int) -> FencedError:
        return FencedError(
            f"the token {token} is older than the token {self._tokens[shard]} that {self._path} "
            f"has for shard {shard}"
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
            self._drop()
            raise self._failed("read", error) from error
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
            too_large = self._too_large(connection, error, writes)
            if too_large:
                self._roll_back(connection)
                most = connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH)
                raise WriteRefusedError(
                    f"{', '.join(map(str, too_large))} would have a record above the {most:,} "
                    f"bytes of a row of {self._path}",
                    too_large,
                ) from error
            # Whatever it was, the transaction must not stay open; and after a failed commit, the
            # connection may show rows that are not on the disk.
            self._drop()
            raise self._failed("write to", error) from error

    def _too_large(
        self, connection: sqlite3.Connection, error: Exception, writes: Sequence[Write]
    ) -> list[Address]:
        """The entities whose rows are larger than a row may be, if that is the error."""
        if not isinstance(error, sqlite3.DataError | OverflowError):
            return []
        room = connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH) - _BESIDE
        return [
            each.address for each in writes if each.record is not None and len(each.record) > room
        ]

    def _count(self, connection: sqlite3.Connection, addresses: Sequence[Address]) -> int:
        statement = "select count(*) from entities where kind = ? and key = ?"
        return sum(connection.execute(statement, each).fetchone()[0] for each in addresses)

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("rollback")
        except sqlite3.Error:
            self._drop()

    def due(self, before: float, limit: int) -> list[Due]:
        """Read which entities have work to do. The keeper asks twice in a minute at least: a lock
        that was removed is noticed, and a connection without shared memory ends.
        """
        try:
            self._keep_lock()
        except EntityStoreError:
            self._drop()
            raise
        if self._is_private:
            self._drop()
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
            self._drop()
            raise self._failed("read", error) from error


def _identity(path: Path | str, least: int = 0) -> tuple[int, int] | None:
    """The device and number of a file; None for none, and for one with fewer bytes."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if status.st_size >= least else None


def _status(path: Path | str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _lock_path(file: Path) -> Path:
    return file.with_name(file.name + ".lock")


def _lock(path: Path) -> int:
    """Lock the file for this program, and return the descriptor that holds the lock.

    A file beside it is locked: SQLite itself locks parts of the file.

    Raises:
        EntityStoreError: another program has the lock, or the directory is missing.
    """
    try:
        return locked_file(_lock_path(path))
    except BlockingIOError as error:
        raise EntityStoreError(
            f"{path} is open in another program, or in another Entities of this program; a file "
            "belongs to a single one"
        ) from error
    except OSError as error:
        raise EntityStoreError(f"cannot open {path}: {error}") from error


show_public_names(__name__)
