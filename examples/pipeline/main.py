"""A pipeline from a queue in a file into a slow database: lines are checked, stored in batches, and
acknowledged when they are stored. Wrong lines are put aside, and a kill loses nothing.

    python examples/pipeline/main.py
"""

import sqlite3
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from ergo_py import Backoff, ChildSpec, Node, run
from ergo_py.pipelines import Item, Pipeline, Retry, Sink, SQLiteQueue, Stage

__all__ = ["Check", "Store", "put", "rows", "stored"]


class Check(Stage):
    """Has a thread, so it may block. An exception fails its line only."""

    def handle(self, item: Item) -> tuple[int, str, float]:
        number, sensor, value = item.body.decode().split()
        return int(number), sensor, float(value)


class Store(Sink):
    """A transaction for each batch. A row that comes again is there already."""

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__(batch=100, within=0.05)
        self.path, self.seconds = path, seconds

    def open(self) -> None:
        self.database = sqlite3.connect(self.path)
        self.database.execute(
            "create table if not exists row (number integer primary key, sensor text, value real)"
        )

    def handle_batch(self, items: list[Item]) -> None:
        with self.database:
            self.database.executemany(
                "insert or ignore into row values (?, ?, ?)", [item.body for item in items]
            )
            time.sleep(self.seconds)  # as a database on the other side of the ocean

    def close(self) -> None:
        self.database.close()


def rows(place: Path, seconds: float) -> ChildSpec:
    """The pipeline, under the name "rows"."""
    queue = partial(SQLiteQueue, place / "queue.db")
    pipeline = Pipeline.spec(
        queue("lines"),
        Check(),
        Store(place / "rows.db", seconds),
        most_unacknowledged=200,  # so many lines may be under way, and come again after a kill
        retry=Retry(1, Backoff(0.01, 1.0)),
        poison=queue("refused"),
    )
    return ChildSpec("rows", pipeline, backoff=Backoff(0.01, 1.0))


def put(place: Path, *lines: bytes) -> None:
    """Any number of programs put lines, also while no pipeline runs."""
    queue = SQLiteQueue(place / "queue.db", "lines")
    queue.open()
    queue.handle_batch([Item(line) for line in lines])
    queue.close()


def stored(place: Path) -> int:
    database = sqlite3.connect(place / "rows.db")
    try:
        [[count]] = database.execute("select count(*) from row").fetchall()
    except sqlite3.OperationalError:  # the pipeline has not made its table yet
        count = 0
    database.close()
    return int(count)


async def until_stored(place: Path, least: int) -> None:
    while stored(place) < least:  # noqa: ASYNC110 - the database has no event
        await trio.sleep(0.01)


async def main(node: Node) -> None:
    with TemporaryDirectory() as folder:
        place = Path(folder)
        put(place, b"some rubbish", *(b"%d hall %d" % (n, 20 + n % 5) for n in range(2000)))
        await node.supervise([rows(place, 0.01)])
        for least in (500, 1000):
            await until_stored(place, least)
            node.kill("rows")
        await until_stored(place, 2000)
        await node.drain()  # acknowledges the last lines
        print(f"{stored(place)} rows are stored, though the pipeline was killed twice")


if __name__ == "__main__":
    run(main, name="pipeline@localhost", log_level="error")
