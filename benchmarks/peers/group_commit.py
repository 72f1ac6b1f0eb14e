"""States in a dict, and a thread that writes them to SQLite: the parts of a program by hand that
stores each command before it answers.
"""

import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

__all__ = ["Balance", "ComparingCommit", "GroupCommit", "HandMade"]

W = TypeVar("W")
"""Waits for a command, such as a future."""


@dataclass
class Balance:
    """The state of an account."""

    amount: int = 0


class GroupCommit(Generic[W]):
    """A thread that writes all rows that have gathered while the disk was busy, in a single
    transaction. ``tell`` gets the commands of each, in this thread.
    """

    def __init__(self, path: Path, tell: Callable[[list[tuple[W, int]]], None]) -> None:
        self._path = path
        self._tell = tell
        self._rows: dict[str, bytes] = {}
        self._waiting: list[tuple[W, int]] = []
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def put(self, key: str, row: bytes, waiting: tuple[W, int]) -> None:
        """Write a row, and tell ``waiting`` then."""
        with self._changed:
            self._rows[key] = row
            self._waiting.append(waiting)
            self._changed.notify()

    def close(self) -> None:
        """Write what has gathered, and end."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        connection = sqlite3.connect(self._path, isolation_level=None)
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        self._make(connection)
        while True:
            with self._changed:
                while not (self._rows or self._is_closed):
                    self._changed.wait()
                rows, self._rows = self._rows, {}
                waiting, self._waiting = self._waiting, []
            if not rows:
                break
            connection.execute("begin immediate")
            self._write(connection, rows)
            connection.execute("commit")
            self._tell(waiting)
        connection.close()

    def _make(self, connection: sqlite3.Connection) -> None:
        connection.execute("create table accounts (key text primary key, row blob) without rowid")

    def _write(self, connection: sqlite3.Connection, rows: dict[str, bytes]) -> None:
        connection.executemany("insert or replace into accounts values (?, ?)", rows.items())


class ComparingCommit(GroupCommit[W]):
    """Writes a row only if nobody else has written it, as the store of entities does: with the kind
    of its state, a version that is compared, and the moment at which it is due.
    """

    _versions: dict[str, int]

    def _make(self, connection: sqlite3.Connection) -> None:
        self._versions = {}
        connection.execute("pragma secure_delete = on")
        connection.execute(
            "create table accounts (kind text, key text, version integer, due real, row blob, "
            "primary key (kind, key)) without rowid"
        )
        connection.execute("create index moments on accounts (due) where due is not null")

    def _write(self, connection: sqlite3.Connection, rows: dict[str, bytes]) -> None:
        versions, done = self._versions, 0
        new = [("account", key, row) for key, row in rows.items() if key not in versions]
        changed = [
            (versions[key] + 1, row, "account", key, versions[key])
            for key, row in rows.items()
            if key in versions
        ]
        statement = "insert or ignore into accounts values (?, ?, 1, null, ?)"
        done += connection.executemany(statement, new).rowcount if new else 0
        statement = (
            "update accounts set version = ?, row = ? "
            "where kind = ? and key = ? and version = ? and due is null"
        )
        done += connection.executemany(statement, changed).rowcount if changed else 0
        if done != len(rows):
            raise RuntimeError("another program has written an account")
        versions.update((key, versions.get(key, 0) + 1) for key in rows)


class HandMade(Generic[W]):
    """A dict of states. The answer to a command waits for the disk."""

    def __init__(self, commit: GroupCommit[W]) -> None:
        self._states: dict[str, Balance] = {}
        self._encode = msgspec.msgpack.Encoder().encode
        self._commit = commit

    def deposit(self, key: str, amount: int, waiting: W) -> None:
        """Deposit, and write the new state."""
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = Balance()
        state.amount += amount
        self._commit.put(key, self._encode(state), (waiting, state.amount))
