"""Readings from TCP into a slow database: sessions check lines, the database stores batches, and
peers that send faster than the database stores are slowed down.

    python examples/backpressure/main.py
"""

import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import trio

from ergo_py import (
    PID,
    Actor,
    Alias,
    ChildSpec,
    Down,
    Node,
    Overflow,
    Supervisor,
    Threads,
    run,
)
from ergo_py.meta import TCP, Delimiter, TCPServer
from ergo_py.pipelines import Batch

__all__ = ["ROOM", "Database", "Door", "Readings", "Row", "Session", "Stored"]

ROOM = 200  # rows that may wait for the database: its mailbox


@dataclass(frozen=True)
class Row:
    session: PID
    sensor: str
    value: float


@dataclass(frozen=True)
class Stored:
    """To a session: so many of its rows are in the database."""

    count: int


class Database(Actor[Row]):
    """The consumer. Its plain callbacks have a thread, so a transaction may block."""

    batch = Batch(100, within=0.05)

    def __init__(self, path: str, seconds: float) -> None:
        self.path = path
        self.seconds = seconds
        self.stored = self.largest = 0

    def init(self) -> None:
        self.connection = sqlite3.connect(self.path)
        self.connection.execute("create table if not exists row (sensor text, value real)")

    def handle_batch(self, messages: Sequence[Row]) -> None:
        with self.connection:
            self.connection.executemany(
                "insert into row values (?, ?)", [(row.sensor, row.value) for row in messages]
            )
            time.sleep(self.seconds)  # as a database on the other side of the ocean
        for session, count in Counter(row.session for row in messages).items():
            self.send(session, Stored(count))
        self.stored += len(messages)
        self.largest = max(self.largest, len(messages))

    def handle_call(self, request: object, caller: object) -> tuple[int, int]:
        """The number of stored rows, and the size of the largest batch."""
        return self.stored, self.largest

    def terminate(self, reason: object) -> None:
        self.connection.close()


def read_row(session: PID, line: bytes) -> Row | None:
    try:
        sensor, value = line.decode().split()
        return Row(session, sensor, float(value)) if isfinite(float(value)) else None
    except ValueError:
        return None


class Session(Actor):
    """The stage in between, for a single connection: checks its lines, and passes rows on."""

    def init(self) -> None:
        self.stored = 0
        self.monitor("database")

    async def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case TCP.Data(data=line):
                row = read_row(self.pid, line)
                if row is None:
                    self.answer("refused: write SENSOR VALUE")
                else:
                    await self.send_wait("database", row)  # waits while the database has no room
            case Stored(count):
                self.stored += count
                self.answer(f"stored {self.stored}")
            case Down():
                self.stop()  # the peer sends again what was not stored

    def answer(self, line: str) -> None:
        self.send(self.connection, TCP.Send(line.encode() + b"\n"))


class Door(Actor):
    """The producer: a server that reads a connection only while its session keeps up."""

    def __init__(self, port: int) -> None:
        self.server = TCPServer(
            "127.0.0.1",
            port,
            receiver=Session,
            framing=Delimiter(b"\n", max_frame=200),
        )

    async def init(self) -> None:
        await self.spawn_meta(self.server, backlog=20)  # lines ahead of a session

    def handle_call(self, request: object, caller: object) -> int:
        return self.server.local.port


class Readings(Supervisor):
    def __init__(self, path: str, seconds: float, port: int = 0) -> None:
        super().__init__(
            [
                ChildSpec(
                    "database",
                    Database,
                    path,
                    seconds,
                    dispatcher=Threads(),
                    mailbox_size=ROOM,
                    overflow=Overflow.WAIT,
                ),
                ChildSpec("door", Door, port),
            ]
        )


async def send_rows(port: int, sensor: str, count: int) -> None:
    """A peer: sends rows as fast as it can, and waits until all are stored."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(b"".join(b"%s %d\n" % (sensor.encode(), i) for i in range(count)))
        answers = b""
        while not answers.endswith(b"stored %d\n" % count):
            answers += await stream.receive_some()


async def main(node: Node) -> None:
    await node.spawn(Readings, ":memory:", 0.01, name="readings")
    port = await node.call("door", "port")
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(send_rows, port, f"sensor-{number}", 500)
    stored, largest = await node.call("database", "figures")
    print(f"4 peers sent 2000 rows; {stored} are stored, in batches of at most {largest}")


if __name__ == "__main__":
    run(main, name="readings@localhost")
