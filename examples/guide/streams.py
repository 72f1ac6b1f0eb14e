from collections.abc import AsyncIterator
from dataclasses import dataclass

import trio

from ergo_py import Actor, Caller, Request, open_node
from ergo_py.blocking import handle
from ergo_py.streams import PartStream


@dataclass(frozen=True)
class Rows(Request[PartStream[str]]):
    table: str


class Database(Actor):
    def handle_call(self, request: Rows, caller: Caller) -> PartStream[str]:
        return self.stream(self.rows(request.table), credit=2)

    async def rows(self, table: str) -> AsyncIterator[str]:
        for number in range(1, 1_000_000):
            await trio.lowlevel.checkpoint()  # as a query would wait
            yield f"{table} {number}"


class Report(Actor):
    async def handle_call(self, request: int, caller: Caller) -> list[str]:
        lines: list[str] = []
        async for row in self.call_stream("database", Rows("order")):  # inferred: str
            lines.append(row)
            if len(lines) == request:
                break  # the database stops producing
        return lines


async def main() -> None:
    async with open_node() as node:
        await node.spawn(Database, name="database")
        report = await node.spawn(Report)
        print(await node.call(report, 3))

        node.open_topic("prices", buffer=2)  # no process has to own it
        for price in (7, 8, 9):
            node.publish("prices", price)
        async with node.events("prices") as prices:
            node.publish("prices", 10)
            async for event in prices:
                print("price:", event.message)
                if event.message == 10:
                    break

        def plain_code() -> None:
            blocking = handle(node)
            with blocking.call_stream("database", Rows("line")) as rows:
                print("from a thread:", next(rows), next(rows))
            with blocking.events("prices") as events:
                blocking.publish("prices", 11)
                print("from a thread:", [next(events).message for _ in range(3)])

        await trio.to_thread.run_sync(plain_code)


if __name__ == "__main__":
    trio.run(main)
