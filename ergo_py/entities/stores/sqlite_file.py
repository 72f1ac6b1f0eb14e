"""`SQLiteFile`: the file of a `SQLite`. It makes and checks the file, keeps its lock, and opens a
connection again after an error.
"""

import os
import sqlite3
from pathlib import Path
from typing import Final

from ...meta.file_identity import identity_of
from ...network.stores.file_locks import is_same_file, locked_file
from ..errors import EntityStoreError

__all__ = ["SQLiteFile"]

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


class SQLiteFile:
    """The file, its lock and its connection, in the thread of the store.

    Raises:
        EntityStoreError: another program has the lock, or the directory is missing.
    """

    def __init__(
        self, path: Path, synchronous: str, identity: tuple[int, int] | None = None
    ) -> None:
        self.path = path
        self._file = path.resolve()
        """The file behind symbolic links: its lock and its log are beside it."""
        self._synchronous = synchronous
        self._connection: sqlite3.Connection | None = None
        self._log = f"{self._file}-wal"
        """The write-ahead log, a file beside it."""
        self.identity: tuple[int, int] | None = identity
        """The only file that may be opened; None before this program has opened one."""
        self._log_identity: tuple[int, int] | None = None
        self.is_private = False
        """The connection needs no shared memory, and locks out readers of other programs."""
        self._lock = _lock(self._file)

    def open(self) -> sqlite3.Connection:
        """The connection, which opens unless it is open.

        Raises:
            EntityStoreError: the file cannot be opened, or was replaced.
        """
        connection = self._connection
        try:
            if self.identity is not None:
                self._check_identity()
            if connection is not None:
                if identity_of(self._log) == self._log_identity:
                    return connection
                # The log was removed. SQLite would go on with it, and no later start finds its
                # commits. A connection that closes copies them to the file.
                self.drop()
            self.keep_lock()
            connection = self._set_up()
            self.identity = identity_of(self.path, 1)
            self._log_identity = identity_of(self._log)
            return connection
        except sqlite3.Error as error:
            self.drop()
            raise self.failed("open", error) from error
        except EntityStoreError:
            self.drop()
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
        self.drop()
        return self._begin(is_private=True)

    def _begin(self, *, is_private: bool) -> sqlite3.Connection:
        self.is_private = is_private
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
                f"{self.path} cannot be kept with a write-ahead log there; entities need a "
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
                f"{self.path} has {found.st_nlink} names (hard links), and a lock and a log "
                "belong to a single name: remove the others (`find -samefile` lists them), or copy "
                "the file"
            )
        log = _status(self._log)
        if may_make and log is not None and log.st_size:
            # SQLite would remove the log of a missing file, and with it commits.
            raise EntityStoreError(
                f"{self.path} is missing or empty, and its log {self._log} has commits; put the "
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
                f"{self.path} is the database of another program; entities need a file of their own"
            )
        if layout > _LAYOUT:
            raise EntityStoreError(
                f"{self.path} has the layout {layout}, and this version of ergo_py reads "
                f"{_LAYOUT}; use the version that wrote it, or a later one"
            )
        return bool(layout < _LAYOUT)

    def _check_identity(self) -> None:
        """Check that the file is the one that was opened: SQLite would go on with a file that was
        removed, and no later start finds its commits; and a new file would acknowledge commands
        without the commits of the first, whose place it takes.
        """
        if identity_of(self.path, 1) != self.identity:
            raise EntityStoreError(
                f"{self.path} was removed or replaced, or is empty, after this program has opened "
                "it; put the same file back, or restart the program to begin with the file that is "
                "there"
            )

    def keep_lock(self) -> None:
        """Lock the file again if its lock was removed: another program could take it.

        Raises:
            EntityStoreError: another program has taken it.
        """
        if not is_same_file(self._lock, _lock_path(self._file)):
            lock = _lock(self._file)
            os.close(self._lock)
            self._lock = lock

    def failed(self, what: str, error: Exception) -> EntityStoreError:
        """The error of an operation."""
        return EntityStoreError(f"cannot {what} {self.path}: {error}")

    def drop(self) -> None:
        """Close the connection: after an error it may show rows that are not on the disk."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error:
                pass  # its files are closed all the same

    def close(self) -> None:
        """Close the file, and let other programs open it."""
        self.drop()
        os.close(self._lock)


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
