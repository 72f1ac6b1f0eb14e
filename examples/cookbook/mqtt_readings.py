"""Readings of MQTT sensors, stored in SQLite. Needs ``ergo_py[mqtt]``.

python mqtt_readings.py mqtt://localhost readings.db
"""

import sqlite3
import sys
from functools import partial

import trio

from ergo_py import ChildSpec, Node, run
from ergo_py.pipelines import MQTT, Item, Pipeline, Stage, ToDatabase


class Read(Stage):
    def handle(self, item: Item) -> object:
        return item.key, float(item.body)  # the key is the topic


def database(path: str) -> sqlite3.Connection:
    file = sqlite3.connect(path)
    file.execute("create table if not exists reading (sensor text, value real)")
    return file


def readings(url: str, path: str) -> ChildSpec:
    insert = "insert into reading values (?, ?)"
    pipeline = Pipeline.spec(
        MQTT(url, "sensors/#", session="readings"),
        Read(),
        ToDatabase(partial(database, path), insert, within=0.05),  # a transaction for 50 ms
        poison=MQTT(url, "unreadable"),
    )
    return ChildSpec("readings", pipeline)


async def main(node: Node) -> None:
    await node.supervise([readings(sys.argv[1], sys.argv[2])])
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="readings@localhost")
