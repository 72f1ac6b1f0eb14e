import sqlite3
import threading
import time

import trio

from ergo_py import PID, Actor, Threads, open_node


class Database(Actor):
    """Only the thread that made an SQLite connection may use it, and every query blocks."""

    def init(self) -> None:
        self.connection = sqlite3.connect(":memory:")
        self.connection.execute("create table word (text)")

    def handle_message(self, message: str, sender: PID) -> None:
        self.connection.execute("insert into word values (?)", (message,))

    def handle_call(self, request: str, caller: object) -> list[str]:
        return [text for (text,) in self.connection.execute(request)]

    def terminate(self, reason: object) -> None:
        self.connection.close()


class Clerk(Actor):
    """Blocks its own thread until another process has answered."""

    def handle_call(self, request: str, caller: object) -> str:
        words = self.wait_for(self.call("database", "select text from word"))
        return f"{len(words)} words, {request}"


class Slow(Actor):
    """Uses a slow library."""

    def handle_call(self, request: float, caller: object) -> str:
        time.sleep(request)
        return threading.current_thread().name


class Ticker(Actor):
    """Runs on the loop, beside all the others."""

    def __init__(self) -> None:
        self.ticks = 0

    def init(self) -> None:
        self.send_every(0.01, self.pid, "tick")

    def handle_message(self, message: str, sender: PID) -> None:
        self.ticks += 1

    def handle_call(self, request: object, caller: object) -> int:
        return self.ticks


async def main() -> None:
    async with open_node("demo@localhost") as node:
        database = await node.spawn(Database, dispatcher=Threads(), name="database")
        for word in ("an", "actor", "never", "blocks"):
            node.send(database, word)
        print(await node.call(database, "select text from word order by text"))
        print(await node.call(await node.spawn(Clerk, dispatcher=Threads()), "counted in a thread"))

        ticker = await node.spawn(Ticker)
        slow = [await node.spawn(Slow, dispatcher=Threads("slow", 2)) for _ in range(4)]
        names: set[str] = set()

        async def ask(pid: PID) -> None:
            names.add(await node.call(pid, 0.2))

        async with trio.open_nursery() as nursery:
            for pid in slow:
                nursery.start_soon(ask, pid)
        print(sorted(names))
        print(
            "the loop went on"
            if await node.call(ticker, "how often") > 10
            else "the loop was blocked"
        )


if __name__ == "__main__":
    trio.run(main)
