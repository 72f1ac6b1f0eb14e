"""`QueueFile`: the file of `SQLiteQueue`, and the lock of the pipeline that takes its items."""

import sqlite3
from pathlib import Path
from typing import Final

from ...meta.file_identity import identity_of
from .broker import Broker, Opened

__all__ = ["QueueFile"]

_SCHEMA: Final = """
    create table if not exists items (
        id integer primary key autoincrement, queue text not null, key text, body blob not null,
        error text
    );
    create index if not exists items_of_queue on items (queue, id);
    create table if not exists taken (queue text primary key, highest integer not null);
"""


class QueueFile(Broker[sqlite3.Connection, int]):
    """Opens the file and watches that it stays."""

    places_last = True

    path: Path
    _file: tuple[int, int] | None = None
    _lock: sqlite3.Connection | None = None

    def connect(self) -> Opened[sqlite3.Connection]:
        """Open the file."""
        connection = sqlite3.connect(self.path, isolation_level=None)
        return connection, connection.close

    def prepare(self) -> None:
        """Make the tables."""
        self.link.executescript(f"pragma journal_mode = wal; {_SCHEMA}")
        self._file = identity_of(self.path)

    def close(self) -> None:
        """Close the file. The next pipeline may take items."""
        super().close()
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def lock(self, queue: str) -> None:
        """Take the lock of a queue. The system releases it when the program ends, in any way.

        Raises:
            ConnectionError: another pipeline has it.
        """
        # Not a lock on the file itself, which would keep other programs from putting items.
        self._lock = sqlite3.connect(f"{self.path}.{queue}.taker", timeout=0.0)
        try:
            self._lock.execute("begin exclusive")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            raise ConnectionError("another pipeline takes the items of this queue") from None

    def version(self) -> object:
        """Another value after each commit of another program."""
        self.check_file()
        return self.link.execute("pragma data_version").fetchone()

    def check_file(self) -> None:
        """Check that the file is still at its path. SQLite goes on with a file that was removed,
        and no other program finds the items there.

        Raises:
            ConnectionError: it is not.
        """
        if identity_of(self.path) != self._file:
            raise ConnectionError(f"{self.path} was removed or replaced")
