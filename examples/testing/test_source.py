"""A source of a pipeline keeps the contract: the rules of the test kit, for your own source."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from ergo_py.pipelines import Source, SQLiteQueue
from ergo_py.testing.bridges import SourceRig


class QueueRig(SourceRig):
    """The broker of the source: here a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def source(self) -> Source:
        return SQLiteQueue(self.path)  # your source instead

    def put(self, bodies: Sequence[bytes]) -> None:
        SQLiteQueue(self.path).put(*bodies)

    def left(self) -> int:
        with closing(sqlite3.connect(self.path)) as file:
            [count] = file.execute("select count(*) from items").fetchone()
        return int(count)


def test_the_source_keeps_the_contract(tmp_path: Path) -> None:
    for rule in SourceRig.RULES:
        rule(QueueRig(tmp_path / f"{rule.__name__}.db"))
