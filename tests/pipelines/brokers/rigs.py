"""The brokers of the package for the rules of sources."""

import sqlite3
from collections.abc import Hashable, Sequence
from pathlib import Path

from ergo_py.pipelines import Item, Sink, Source, SQLiteQueue
from ergo_py.testing.bridges import SourceRig

__all__ = ["KEYS_IN_ROWS", "ODD_KEYS", "SQLiteRig", "put"]

ODD_KEYS = ["k1", "", " ", "a b", "a  b", "a%20b", "100%", "a\r\nb: c", "Zoë 🐙", "\x00\x7f\x85"]
"""Keys with signs that a header cannot hold."""

KEYS_IN_ROWS: dict[Hashable, str | None] = {
    **{key: key for key in ODD_KEYS[:-1]},
    ODD_KEYS[-1]: "%00%7F%C2%85",
    "a\ud83d": "a%ED%A0%BD",
    b"k2": "k2",
    b"\xff": "%FF",
    7: "7",
    (1, "a"): "(1, 'a')",
    None: None,
}
"""Keys, and what a database has of them."""


def put(sink: Sink, bodies: Sequence[bytes]) -> None:
    """Put items by the sink of a broker."""
    sink.open()
    try:
        for start in range(0, len(bodies), 1000):
            sink.handle_batch([Item(body) for body in bodies[start : start + 1000]])
    finally:
        sink.close()


class SQLiteRig(SourceRig):
    def __init__(self, path: Path) -> None:
        self.path = path

    def source(self) -> Source:
        return SQLiteQueue(self.path, "jobs")

    def put(self, bodies: Sequence[bytes]) -> None:
        put(SQLiteQueue(self.path, "jobs"), bodies)

    def left(self) -> int:
        connection = sqlite3.connect(self.path)
        try:
            [count] = connection.execute(
                "select count(*) from items where queue = 'jobs'"
            ).fetchone()
        finally:
            connection.close()
        return int(count)
