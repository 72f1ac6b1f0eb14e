"""Entities on three nodes and a PostgreSQL server: the pause of a key when its shard moves or its
node is killed, and the commands of three nodes beside those of a single node.

    python -m benchmarks fleet [--seconds 5]

All programs and the server share this machine. The limit is the server's: the same number of rows
of the same size, written by hand, in statements of 100 rows each.
"""

import argparse
import sys
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from time import perf_counter

import psycopg
import trio

from ergo_py import ChildSpec, ErgoError, Node, ask, exposed, open_node
from ergo_py.entities import Entities, Entity, Postgres
from ergo_py.entity_handles import entities_of, inspections
from ergo_py.network import Local
from tests.network.programs import running_program
from tests.postgres import postgres_programs, running_postgres
from tests.support import short_directory

KEYS = [f"counter {number}" for number in range(100)]
SHARDS = 64
LEASE = 5.0
GOAL = 250
"""Milliseconds of a planned move."""


@dataclass
class Count:
    """The state of a counter."""

    value: int = 0


class Counter(Entity[Count]):
    """Counts its commands."""

    @exposed
    def add(self) -> int:
        """Count, and answer when the count is stored."""
        self.state.value += 1
        return self.state.value


async def start(node: Node, conninfo: str) -> None:
    """Let a node host counters."""
    spec = Entities.spec(Postgres(conninfo), [Counter], shards=SHARDS, lease=LEASE)
    await node.supervise([ChildSpec("entities", spec, init_timeout=60.0)], intensity=1000)


async def settle(node: Node, hosts: int) -> None:
    """Wait until as many nodes host all shards."""
    while True:
        (facts,) = [await each.facts() for each in inspections(entities_of(node))]
        found = [len(each["shards"]) for each in facts["map"]["nodes"].values() if each["shards"]]
        if len(found) == hosts and sum(found) == SHARDS and not facts["map"]["moving"]:
            return
        await trio.sleep(0.05)


class Clients:
    """Clients, each with a counter of its own, which send the next command after each answer."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.done = 0
        self.last = dict.fromkeys(KEYS, 0.0)
        self.longest = dict.fromkeys(KEYS, 0.0)

    async def work(self, key: str, pause: float) -> None:
        """Send commands to a counter."""
        entity = self.node.entity(Counter, key)
        while True:
            try:
                await entity.call(ask(Counter.add), timeout=60.0)
            except ErgoError:
                await trio.sleep(0.005)
                continue
            now = perf_counter()
            self.longest[key] = max(self.longest[key], now - self.last[key])
            self.last[key] = now
            self.done += 1
            if pause:
                await trio.sleep(pause)

    def begin(self) -> None:
        """Measure pauses from now on."""
        self.last = dict.fromkeys(KEYS, perf_counter())
        self.longest = dict.fromkeys(KEYS, 0.0)

    async def show(self, event: str, goal: str) -> None:
        """Wait until all counters have answered, and print the longest pause of each."""
        begin = perf_counter()
        while min(self.last.values()) < begin:  # noqa: ASYNC110 - many tasks would have to tell
            await trio.sleep(0.02)
        pauses = [1000 * each for each in self.longest.values()]
        p50, p99 = (quantiles(pauses, n=100)[number] for number in (49, 98))
        print(f"{event:<30}{p50:>8.0f}{p99:>8.0f}{max(pauses):>8.0f}   {goal}", flush=True)


async def measure_pauses(node: Node, place: Path, conninfo: str) -> None:
    """Let nodes join, drain and die under a load of about 1,000 commands a second."""
    clients = Clients(node)
    print(f"{'pause of a key, ms':<30}{'p50':>8}{'p99':>8}{'longest':>8}   goal", flush=True)
    async with trio.open_nursery() as nursery:
        for key in KEYS:
            nursery.start_soon(clients.work, key, 0.1)
        await settle(node, 1)
        await trio.sleep(2)
        clients.begin()
        await trio.sleep(2)
        await clients.show("no change", "")
        async with AsyncExitStack() as programs:
            clients.begin()
            await programs.enter_async_context(host("b@bench", place, conninfo))
            await settle(node, 2)
            await clients.show("a second node joins", f"p99 {GOAL}")
            clients.begin()
            third = await programs.enter_async_context(host("c@bench", place, conninfo))
            await settle(node, 3)
            await clients.show("a third node joins", f"p99 {GOAL}")
            clients.begin()
            third.kill()
            await settle(node, 2)
            await clients.show("the third is killed", f"longest {1000 * LEASE:.0f}")
            clients.begin()
            await node.drain()
            await clients.show("the first drains", f"p99 {GOAL}")
            nursery.cancel_scope.cancel()


def host(name: str, place: Path, conninfo: str) -> AbstractAsyncContextManager[trio.Process]:
    """A node in a program of its own."""
    return running_program("-m", "benchmarks.fleet", "host", name, str(place), conninfo)


async def commands_per_second(node: Node, seconds: float) -> float:
    """Commands of all counters, as fast as they are answered."""
    clients = Clients(node)
    async with trio.open_nursery() as nursery:
        for key in KEYS:
            nursery.start_soon(clients.work, key, 0.0)
        await trio.sleep(1)
        begin, done = perf_counter(), clients.done
        await trio.sleep(seconds)
        speed = (clients.done - done) / (perf_counter() - begin)
        nursery.cancel_scope.cancel()
    return speed


def rows_per_second(conninfo: str, seconds: float) -> float:
    """The limit: rows written by hand, 100 in a statement, each statement a commit."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("create table by_hand (key text primary key, n bigint, record bytea)")
        write = (
            "insert into by_hand select key, 1, %s from unnest(%s::text[]) as key "
            "on conflict (key) do update set n = by_hand.n + 1, record = excluded.record"
        )
        done, begin = 0, perf_counter()
        while perf_counter() < begin + seconds:
            connection.execute(write, (b"x" * 60, KEYS))
            done += len(KEYS)
        return done / (perf_counter() - begin)


async def measure_throughput(node: Node, place: Path, conninfo: str, seconds: float) -> None:
    """Commands with a single node and with three, beside the limit of the server."""
    await settle(node, 1)
    single = await commands_per_second(node, seconds)
    async with host("d@bench", place, conninfo), host("e@bench", place, conninfo):
        await settle(node, 3)
        three = await commands_per_second(node, seconds)
    limit = await trio.to_thread.run_sync(rows_per_second, conninfo, seconds)
    print(f"\n{'commands a second, 100 clients':<34}{'':>8}")
    print(f"{'a single node':<34}{single:>8.0f}")
    print(f"{'three nodes':<34}{three:>8.0f}{three / single:>8.2f} x")
    print(f"{'rows by hand, 100 in a commit':<34}{limit:>8.0f}{limit / single:>8.2f} x", flush=True)


def opened(name: str, place: Path | str) -> AbstractAsyncContextManager[Node]:
    """A node of the fleet."""
    network = Local(directory=str(place))
    return open_node(name, network=network, watchdog=None, log_level="critical")


async def serve(name: str, place: str, conninfo: str) -> None:
    """Be a node of the fleet, until the end of the standard input."""
    async with opened(name, place) as node:
        await start(node, conninfo)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)


async def main(seconds: float) -> None:
    with running_postgres() as server, short_directory() as place:
        async with opened("a@bench", place) as node:
            await start(node, server.conninfo)
            await measure_throughput(node, place, server.conninfo, seconds)
    with running_postgres() as server, short_directory() as place:
        async with opened("a@bench", place) as node:
            await start(node, server.conninfo)
            await measure_pauses(node, place, server.conninfo)


if __name__ == "__main__":
    if sys.argv[1:2] == ["host"]:
        name, place, conninfo = sys.argv[2:]
        trio.run(serve, name, place, conninfo)
    else:
        parser = argparse.ArgumentParser(prog="python -m benchmarks fleet", description=__doc__)
        parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
        options = parser.parse_args()
        if postgres_programs() is None:
            sys.exit("needs PostgreSQL: apt install postgresql")
        trio.run(main, options.seconds)
