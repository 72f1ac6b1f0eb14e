"""Clicks of a Redis stream, counted in Redis. Needs ``ergo_py[redis]``.

python redis_clicks.py redis://localhost
"""

import sys
from collections import Counter

import redis
import trio

from ergo_py import ChildSpec, Node, run
from ergo_py.pipelines import Item, Pipeline, RedisStream, Sink


class Count(Sink):
    """Counts the clicks on each page: a command for a page, not for a click."""

    def __init__(self, url: str) -> None:
        super().__init__(batch=1000, within=0.1)
        self.client = redis.Redis.from_url(url)

    def handle_batch(self, items: list[Item]) -> None:
        pages = Counter(item.body for item in items)
        with self.client.pipeline() as commands:  # a transaction: all of the batch, or nothing
            for page, clicks in pages.items():
                commands.hincrby("clicks-of-pages", page, clicks)
            commands.execute()

    def close(self) -> None:
        self.client.close()


def clicks(url: str) -> ChildSpec:
    source = RedisStream(url, "clicks", group="counters", consumer="counter-1", keep=1_000_000)
    return ChildSpec("clicks", Pipeline.spec(source, Count(url), most_unacknowledged=5000))


async def main(node: Node) -> None:
    await node.supervise([clicks(sys.argv[1])])
    await trio.sleep_forever()


if __name__ == "__main__":
    run(main, name="clicks@localhost")
