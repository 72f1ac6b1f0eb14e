"""`ToDatabase`: a table of a database as the end of a pipeline."""

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf
from typing import Any, Final, Protocol

from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.options import check_number
from .._core.vocabulary.public_names import show_public_names
from .._core.vocabulary.text import shown
from .item import Item
from .steps import Sink

__all__ = ["ToDatabase"]

_CONNECT: Final = "ToDatabase(connect)"
_NEEDED: Final = ("cursor", "commit", "close")


class Connection(Protocol):
    """A connection of a library as PEP 249 describes it."""

    def cursor(self) -> Any:
        """Has ``executemany``."""

    def commit(self) -> object:
        """End the transaction."""

    def close(self) -> object:
        """Disconnect. What is not committed is undone."""


class ToDatabase(Sink):
    """Stores the body of each item by a statement. Each batch is a transaction: all of it is
    stored, or nothing. The library is ``sqlite3``, ``psycopg``, or any other of PEP 249.

    An example::

        insert = "insert into row values (?, ?) on conflict do nothing"
        ToDatabase(partial(sqlite3.connect, "rows.db"), insert)

    The body of an item has the values of a row, as a tuple or a dict; a list has several rows. A
    kill between the commit and the acknowledgement executes the statement again for the same
    items: let it skip or replace the rows that are there. ``insert or ignore`` of SQLite would skip
    rows with missing values, too.

    Args:
        connect: connects, and returns the connection, without autocommit. It is called in the
            thread of the sink, again after each error, and may make the table.
        statement: the statement of a row, with the placeholders of the library.
        batch: the most items of a batch.
        within: seconds to wait for a full batch; 0 takes the items that are there.
        stuck_after: seconds that a batch may take. After them the pipeline ends, and its supervisor
            starts it again. Let the library wait less for a lock, by its own ``timeout``.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        statement: str,
        *,
        batch: int = 500,
        within: float = 0.0,
        stuck_after: float = inf,
    ) -> None:
        super().__init__(batch=batch, within=within)
        if not callable(connect):
            wish = 'a function that connects, such as partial(sqlite3.connect, "rows.db")'
            raise BadInputError(_CONNECT, type(connect), wish)  # the value may have a password
        if not isinstance(statement, str) or not statement.strip():
            wish = 'a statement, such as "insert into row values (?, ?)"'
            raise BadInputError("ToDatabase(statement)", statement, wish)
        check_number("ToDatabase(stuck_after)", stuck_after, least=0.001)
        self._connect, self._statement = connect, statement
        self.stuck_after: float = stuck_after
        self._connection: Connection | None = None

    def open(self) -> None:
        """Connect, and commit what ``connect`` has done: another thread or program may wait for
        that table.
        """
        connection = self._connect()
        if not all(callable(getattr(connection, each, None)) for each in _NEEDED):
            wish = f"a function that returns a connection, with {', '.join(_NEEDED)}"
            raise BadInputError(_CONNECT, type(connection), wish)
        self._connection = connection
        if getattr(connection, "autocommit", False) is True:
            wish = "a connection without autocommit: a batch is stored as a whole or not at all"
            raise BadInputError(_CONNECT, connection, wish)
        connection.commit()

    def handle_batch(self, items: list[Item]) -> None:
        """Execute the statement for all rows, and commit."""
        rows: list[object] = []
        for item in items:
            if isinstance(item.body, list):
                rows += item.body
            else:
                rows.append(item.body)
        for row in rows:
            if not isinstance(row, tuple | Mapping):  # a text would be a row of its letters
                raise TypeError(
                    "ToDatabase stores rows: let the stage before return a tuple or a dict, or a "
                    f"list of them for several rows, not {shown(row)}"
                )
        if rows:
            connection = self._connection
            assert connection is not None
            _begin(connection)
            connection.cursor().executemany(self._statement, rows)
            connection.commit()

    def wake(self) -> None:
        """Interrupt a statement of SQLite. Another library may have no function that is quick."""
        if isinstance(connection := self._connection, sqlite3.Connection):
            with suppress(sqlite3.ProgrammingError):  # closed meanwhile
                connection.interrupt()

    def close(self) -> None:
        """Disconnect."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _begin(connection: Connection) -> None:
    """Begin a transaction: the others do so by themselves, and sqlite3 for some statements only."""
    if isinstance(connection, sqlite3.Connection) and not connection.in_transaction:
        connection.execute("begin")


show_public_names(__name__)
