"""A copy of a table that follows notifications of PostgreSQL. Needs ``ergo_py[postgres]``.

python postgres_stock.py "host=db dbname=shop"
"""

import sys

import psycopg
import trio

from ergo_py import Actor, Backoff, ChildSpec, Node, run
from ergo_py.devices import Device, PostgresListen


class Stock(Actor):
    """Reads the table whenever the session is new, and then follows its changes."""

    def __init__(self, conninfo: str) -> None:
        self.conninfo = conninfo
        self.counts: dict[str, int] = {}

    async def init(self) -> None:
        await self.spawn_meta(PostgresListen(self.conninfo, "stock", reopen=Backoff(0.1, 10.0)))

    async def handle_message(self, message: object, sender: object) -> None:
        match message:
            case Device.Opened():
                # Notifications of a gap are lost: the table has them all.
                self.counts = await trio.to_thread.run_sync(self.read)
            case Device.Data(_, psycopg.Notify(payload=text)):
                name, _, count = text.partition("=")
                self.counts[name] = int(count)
            case Device.Lost(_, why):
                self.log.warning("the stock may be old", why=why)

    def read(self) -> dict[str, int]:
        with psycopg.connect(self.conninfo) as session:
            return dict(session.execute("select name, count from stock").fetchall())

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {name: str(count) for name, count in self.counts.items()}


async def main(node: Node) -> None:
    await node.supervise([ChildSpec("stock", Stock, sys.argv[1])])
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="stock@localhost")
