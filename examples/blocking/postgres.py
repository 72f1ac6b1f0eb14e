"""PostgreSQL's LISTEN and NOTIFY behind an actor: a connection that listens in a thread, and a
second connection for queries.

Usage: postgres.py CONNECTION-STRING
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import trio
from psycopg import sql

from ergo_py import Actor, open_node
from ergo_py.meta import BlockingCalls, Invoke, Poller


@dataclass(frozen=True)
class Notified:
    channel: str
    payload: str


def listening(
    conninfo: str, channel: str
) -> tuple[Callable[[], list[Notified]], Callable[[], None]]:
    """A function that waits up to half a second for notifications, and a function that closes its
    connection.
    """
    connection = psycopg.connect(conninfo, autocommit=True)
    connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))

    def poll() -> list[Notified]:
        return [
            Notified(found.channel, found.payload)
            for found in connection.notifies(timeout=0.5, stop_after=1)
        ]

    return poll, connection.close


class Board(Actor):
    """Prints the first two notifications."""

    def __init__(self, conninfo: str, done: trio.Event) -> None:
        self.conninfo, self.done, self.count = conninfo, done, 0

    async def init(self) -> None:
        poll, close = await trio.to_thread.run_sync(listening, self.conninfo, "news")
        await self.spawn_meta(Poller(poll, each=True, close=close))
        self.database = await self.spawn_meta(
            BlockingCalls(
                factory=lambda: psycopg.connect(self.conninfo, autocommit=True),
                interrupt=psycopg.Connection.cancel,
            )
        )
        for text in ("first", "second"):
            await self.call(
                self.database, Invoke("execute", "select pg_notify('news', %s)", [text])
            )

    def handle_message(self, message: object, sender: Any) -> None:
        match message:
            case Notified(channel, payload):
                print(f"{channel}: {payload}")
                self.count += 1
                if self.count == 2:
                    self.done.set()


async def main(conninfo: str) -> None:
    done = trio.Event()
    async with open_node("postgres@localhost") as node:
        await node.spawn(Board, conninfo, done)
        with trio.fail_after(20):
            await done.wait()


trio.run(main, sys.argv[1])
