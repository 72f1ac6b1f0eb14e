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

__all__ = ["Balance", "GroupCommit", "HandMade"]

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
        connection.execute("create table accounts (key text primary key, row blob) without rowid")
        while True:
            with self._changed:
                while not (self._rows or self._is_closed):
                    self._changed.wait()
                rows, self._rows = self._rows, {}
                waiting, self._waiting = self._waiting, []
            if not rows:
                break
            connection.execute("begin immediate")
            connection.executemany("insert or replace into accounts values (?, ?)", rows.items())
            connection.execute("commit")
            self._tell(waiting)
        connection.close()


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
