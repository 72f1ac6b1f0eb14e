"""A pipeline from a queue in a file into a database: lines are checked, stored in batches, and
acknowledged when they are stored. Wrong lines are put aside, and a kill loses nothing.

    python examples/pipeline/main.py
"""

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from ergo_py import Backoff, ChildSpec, Node, run
from ergo_py.pipelines import Item, Pipeline, Retry, SQLiteQueue, Stage, ToDatabase

__all__ = ["Check", "rows", "stored"]

LINES = 5000


class Check(Stage):
    def handle(self, item: Item) -> tuple[int, str, float]:
        number, sensor, value = item.body.decode().split()  # an exception fails this line only
        return int(number), sensor, float(value)


def connect(place: Path) -> sqlite3.Connection:
    database = sqlite3.connect(place / "rows.db")
    database.execute("create table if not exists row (number integer primary key, sensor, value)")
    return database


def stored(place: Path) -> int:
    with closing(connect(place)) as database:
        return len(database.execute("select number from row").fetchall())


def rows(queue: SQLiteQueue, place: Path) -> ChildSpec:
    # A line that comes again is there already.
    insert = "insert into row values (?, ?, ?) on conflict do nothing"
    pipeline = Pipeline.spec(
        queue,
        Check(),
        ToDatabase(partial(connect, place), insert, batch=100, within=0.05),
        most_unacknowledged=200,  # so many lines may be under way, and come again after a kill
        retry=Retry(1, Backoff(0.01, 1.0)),
        poison=SQLiteQueue(place / "queue.db", "refused"),
    )
    return ChildSpec("rows", pipeline, backoff=Backoff(0.01, 1.0))


async def main(node: Node) -> None:
    with TemporaryDirectory() as folder:
        place = Path(folder)
        queue = SQLiteQueue(place / "queue.db", "lines")
        # Any number of programs put lines, also while no pipeline runs.
        queue.put(b"some rubbish", *(b"%d hall %d" % (n, 20 + n % 5) for n in range(LINES)))
        await node.supervise([rows(queue, place)])
        for enough in (LINES // 5, LINES // 2, LINES):
            while stored(place) < enough:  # noqa: ASYNC110 - the database has no event
                await trio.sleep(0.01)
            if enough < LINES:
                node.kill("rows")
        await node.drain()  # acknowledges the last lines
        print(f"{stored(place)} rows are stored, though the pipeline was killed twice")


if __name__ == "__main__":
    run(main, name="pipeline@localhost", log_level="error")
