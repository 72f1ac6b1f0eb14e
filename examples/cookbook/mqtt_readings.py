"""Readings of MQTT sensors, stored in SQLite. Needs ``ergo_py[mqtt]``.

python mqtt_readings.py mqtt://localhost readings.db
"""

import sqlite3
import sys

import trio

from ergo_py import ChildSpec, Node, run
from ergo_py.pipelines import MQTT, Item, Pipeline, Sink, Stage


class Read(Stage):
    def handle(self, item: Item) -> object:
        return item.key, float(item.body)  # the key is the topic


class Store(Sink):
    """Stores the readings of 50 milliseconds in a transaction."""

    def __init__(self, path: str) -> None:
        super().__init__(batch=500, within=0.05)
        self.path = path

    def open(self) -> None:
        self.file = sqlite3.connect(self.path)
        self.file.execute("create table if not exists reading (sensor text, value real)")

    def handle_batch(self, items: list[Item]) -> None:
        with self.file:
            rows = [item.body for item in items]
            self.file.executemany("insert into reading values (?, ?)", rows)

    def close(self) -> None:
        if hasattr(self, "file"):
            self.file.close()


def readings(url: str, path: str) -> ChildSpec:
    source = MQTT(url, "sensors/#", session="readings")
    return ChildSpec(
        "readings", Pipeline.spec(source, Read(), Store(path), poison=MQTT(url, "unreadable"))
    )


async def main(node: Node) -> None:
    await node.supervise([readings(sys.argv[1], sys.argv[2])])
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="readings@localhost")
