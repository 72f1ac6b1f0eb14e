"""`examples/pipeline`: rows are stored once, wrong lines are put aside, and an outage of the
database costs no line.
"""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ergo_py import Node
from ergo_py.pipelines import SQLiteQueue, ToDatabase
from examples.pipeline.main import rows, stored
from tests.meta.owner import eventually
from tests.support import running_node


@asynccontextmanager
async def running(place: Path, *lines: bytes) -> AsyncIterator[Node]:
    queue = SQLiteQueue(place / "queue.db", "lines")
    queue.put(*lines)
    async with running_node() as node:
        await node.supervise([rows(queue, place)])
        yield node


def refused(place: Path) -> list[tuple[bytes, str]]:
    database = sqlite3.connect(place / "queue.db")
    found = database.execute("select body, error from items where queue = 'refused'").fetchall()
    database.close()
    return found


async def test_lines_are_stored_and_a_wrong_line_is_put_aside_with_its_error(
    tmp_path: Path,
) -> None:
    lines = (b"1 hall 21.5", b"hall", b"2 hall 22", b"1 hall 21.5")
    async with running(tmp_path, *lines):
        await eventually(lambda: stored(tmp_path) == 2 and len(refused(tmp_path)) == 1)

    [(line, error)] = refused(tmp_path)
    assert line == b"hall"
    assert error.startswith("ValueError")


async def test_an_outage_of_the_database_costs_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    working = ToDatabase.open
    outages = [sqlite3.OperationalError("disk is full")] * 3

    def fail(database: ToDatabase) -> None:
        working(database)
        if outages:
            raise outages.pop()

    monkeypatch.setattr(ToDatabase, "open", fail)
    async with running(tmp_path, b"1 hall 21.5"):
        await eventually(lambda: stored(tmp_path) == 1)

    assert refused(tmp_path) == []
