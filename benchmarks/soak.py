"""``python -m benchmarks.soak``: everything at once, for a long time, with crashes, kills, slow
peers and full mailboxes.

The actions and their order follow from the seed; how they fall together in time does not. Every few
seconds nothing more is done until all is at rest, and then the books must balance: every letter was
handled, or became a dead letter, or was dropped and counted; every call has ended; no process is
missing and no process is left over. Threads, descriptors and memory must not grow, and a bystander
must have been answered in time all along. The status is 1 if anything of that does not hold.
"""

import argparse
import gc
import json
import random
import socket
import struct
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio

from ergo_py import ErgoError, MailboxFullError, Node, Priority, open_node
from ergo_py.meta import Invoke

from .leaks import memory
from .soak_world import Books, Letter, OnPurpose, World, directory, letter, open_files

__all__ = ["Soak", "main", "soak"]

PATIENCE = 60.0
"""Seconds within which all must have come to rest. Much longer than it takes: only a process that
never rests is a fault.
"""
SPARE_MEMORY = 24 * 2**20
SPARE_THREADS = 45
"""Idle worker threads of trio's, which come and go as they like: at most 40, and some of ours on
the way out.
"""
SPARE_FILES = 8


class Soak:
    """A single run: the actions on a world, and the violations found."""

    def __init__(self, world: World, seed: int, slowest: float, most_left: int = 0) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.slowest = slowest
        self.most_left = most_left
        self.acts: Counter[str] = Counter()
        # A number each, and not an object: it is measured how much memory all of this takes.
        self.latencies = array("d")
        self.violations: list[str] = []
        self.measures: list[dict[str, Any]] = []
        self.home: dict[str, int] = {}
        self._busy = 0

    @property
    def node(self) -> Node:
        return self.world.node

    @property
    def books(self) -> Books:
        return self.world.books

    # -- actions -----------------------------------------------------------------------------------

    def act(self, nursery: trio.Nursery) -> None:
        """Begin an action, chosen by the seed."""
        weights = {
            self.letters: 30,
            self.letters_of_a_thread: 5,
            self.urgent_letters: 5,
            self.waiting_letters: 5,
            self.timers: 5,
            self.ask: 15,
            self.ask_a_thread: 3,
            self.ask_a_service: 5,
            self.ask_the_driver: 5,
            self.publish: 5,
            self.crash: 6,
            self.kill: 3,
            self.exit: 3,
            self.restart: 2,
            self.more_or_fewer: 4,
            self.application: 1,
            self.resize: 1,
            self.owner_works: 10,
            self.owner_ends: 2,
            self.talk: 8,
            self.hang_up: 3,
            self.be_slow: 2,
            self.datagrams: 4,
            self.shut_the_gate: 3,
        }
        (chosen,) = self.random.choices(list(weights), list(weights.values()))
        self.acts[chosen.__name__] += 1
        # Drawn now: a number that a task draws would depend on when it is its turn.
        nursery.start_soon(self._guarded, chosen, random.Random(self.random.random()))

    async def _guarded(
        self, act: Callable[[random.Random], Awaitable[None]], chance: random.Random
    ) -> None:
        self._busy += 1
        try:
            with trio.move_on_after(PATIENCE) as scope:
                await act(chance)
            if scope.cancelled_caught:
                self.violations.append(f"{act.__name__} did not end within {PATIENCE:g} s")
        except (ErgoError, OnPurpose, OSError, trio.TooSlowError, trio.BrokenResourceError):
            # Expected refusals: a peer that is gone, a mailbox that is full, a process that is
            # coming back.
            self.books.note("refusals")
        finally:
            self._busy -= 1

    def _send(self, to: str, one: Letter, priority: Priority = Priority.NORMAL) -> None:
        self.books.send(one)
        try:
            self.node.send(to, one, priority=priority)
        except MailboxFullError:
            self.books.note("refused")

    async def letters(self, chance: random.Random) -> None:
        to = chance.choice(self.world.receivers)
        for _ in range(chance.randint(1, 60)):
            self._send(to, letter(to, 0.002 if chance.random() < 0.02 else 0.0))

    async def urgent_letters(self, chance: random.Random) -> None:
        # Not to the pool: urgent messages there are for the pool itself.
        to = chance.choice([*self.world.mortals, "customer", "nobody"])
        for _ in range(chance.randint(1, 30)):
            self._send(to, letter(to), chance.choice(list(Priority)))

    async def waiting_letters(self, chance: random.Random) -> None:
        to = chance.choice(self.world.receivers)
        for _ in range(chance.randint(1, 60)):
            one = letter(to, 0.001)
            self.books.send(one)
            await self.node.send_wait(to, one, timeout=chance.choice([0.01, 1.0]))

    async def letters_of_a_thread(self, chance: random.Random) -> None:
        to, count = chance.choice(self.world.receivers), chance.randint(1, 60)

        def send() -> None:
            for _ in range(count):
                self._send(to, letter(to))

        await trio.to_thread.run_sync(send)

    async def timers(self, chance: random.Random) -> None:
        for _ in range(5):
            to = chance.choice(self.world.receivers)
            one = letter(to)
            self.books.send(one)
            self.node.send_after(chance.random() * 0.3, to, one)

    async def _asked(self, question: Callable[[], Awaitable[Any]]) -> None:
        self.books.note("asked")
        try:
            await question()
        except (ErgoError, OnPurpose):
            self.books.note("answered with an error")
        else:
            self.books.note("answered")

    async def ask(self, chance: random.Random) -> None:
        to = chance.choice(self.world.mortals)
        request = chance.choice(["quickly", "quickly", "slowly", "later", "crash"])
        await self._asked(lambda: self.node.call(to, request, timeout=0.2))

    async def ask_a_thread(self, chance: random.Random) -> None:
        to = chance.choice(self.world.mortals)
        await self._asked(
            lambda: trio.to_thread.run_sync(
                lambda: self.node.call_from_thread(to, "quickly", timeout=0.5)
            )
        )

    async def ask_a_service(self, chance: random.Random) -> None:
        service = self.node.service(chance.choice(self.world.mortals))
        await self._asked(lambda: service.call("quickly", timeout=1.0))

    async def ask_the_driver(self, chance: random.Random) -> None:
        request = (
            Invoke("fail") if chance.random() < 0.1 else Invoke("work", chance.random() * 0.01)
        )
        await self._asked(lambda: self.node.call(self.world.driver, request, timeout=1.0))

    async def publish(self, chance: random.Random) -> None:
        for _ in range(chance.randint(1, 20)):
            await self.node.call("paper", "news")
            self.books.note("published")

    async def crash(self, chance: random.Random) -> None:
        to = chance.choice([*self.world.mortals, "customer"])
        # Its drops are counted, and must be letters only: it is not told to crash twice.
        if to == "dropping":
            await self._asked(lambda: self.node.call(to, "crash", timeout=0.2))
        else:
            self.node.send(to, "crash", priority=Priority.HIGH)

    async def kill(self, chance: random.Random) -> None:
        self.node.kill(chance.choice(self.world.mortals))

    async def exit(self, chance: random.Random) -> None:
        self.node.send_exit(chance.choice(self.world.mortals), "enough")

    async def restart(self, chance: random.Random) -> None:
        handle = chance.choice(self.world.supervisors)
        await handle.restart_child(chance.choice(handle.children()).name, timeout=5.0)

    async def more_or_fewer(self, chance: random.Random) -> None:
        crowd = self.world.crowd
        children = crowd.children()
        if len(children) < 20 and chance.random() < 0.6:
            await crowd.start_child("one", timeout=5.0)
        elif children:
            self.node.send(chance.choice(children).pid, chance.choice(["stop", "crash"]))

    async def application(self, chance: random.Random) -> None:
        await self.node.stop_applications("shop")
        await trio.sleep(chance.random() * 0.05)
        await self.node.start_applications("shop")

    async def resize(self, chance: random.Random) -> None:
        await self.node.pool("pool").resize(chance.randint(1, 5), timeout=10.0)

    async def shut_the_gate(self, chance: random.Random) -> None:
        self.node.send("gate", "shut")

    async def owner_works(self, chance: random.Random) -> None:
        for _ in range(chance.randint(1, 20)):
            self.node.send(chance.choice(["program", "files", "pipes"]), "work")

    async def owner_ends(self, chance: random.Random) -> None:
        owner = chance.choice(self.world.owners)
        if chance.random() < 0.5:
            self.node.send(owner, chance.choice(["crash", "end"]))
        else:
            self.node.kill(owner)

    # -- peers -------------------------------------------------------------------------------------

    async def _connect(self, chance: random.Random) -> trio.SocketStream:
        port = self.world.ports[chance.choice(["tcp thread", "tcp task"])]
        with trio.fail_after(5):
            return await trio.open_tcp_stream("127.0.0.1", port)

    async def talk(self, chance: random.Random) -> None:
        async with await self._connect(chance) as stream:
            said = b"".join(
                b"%d\n" % chance.randint(0, 10**9) for _ in range(chance.randint(1, 50))
            )
            heard = b""
            try:
                await stream.send_all(said)
                while len(heard) < len(said):
                    with trio.fail_after(PATIENCE / 2):
                        part = await stream.receive_some()
                    if not part:
                        break
                    heard += part
            except trio.BrokenResourceError:
                pass
            except trio.TooSlowError:
                self.violations.append(f"an echo of {len(said)} bytes stopped after {len(heard)}")
        # It may have been cut short by an owner that has ended, but it is never anything else.
        if not said.startswith(heard):
            self.violations.append(f"an echo of {len(said)} bytes came back as something else")
        self.books.note("echoes" if heard == said else "echoes cut short")

    async def hang_up(self, chance: random.Random) -> None:
        stream = await self._connect(chance)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with trio.move_on_after(1):
            try:
                await stream.send_all(b"half a li")
            except trio.BrokenResourceError:
                pass
        await trio.aclose_forcefully(stream)

    async def be_slow(self, chance: random.Random) -> None:
        async with await self._connect(chance) as stream:
            with trio.move_on_after(0.3):
                try:
                    await stream.send_all(b"many words that nobody reads\n" * 20_000)
                except trio.BrokenResourceError:
                    pass

    async def datagrams(self, chance: random.Random) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for _ in range(chance.randint(1, 50)):
                name = chance.choice(["udp thread", "udp task"])
                sock.sendto(b"x" * chance.randint(0, 500), ("127.0.0.1", self.world.ports[name]))

    # -- invariants --------------------------------------------------------------------------------

    async def watch_bystander(self) -> None:
        """Ask the bystander again and again."""
        while True:
            began = time.perf_counter()
            await self.node.call("bystander", "quickly", timeout=None)
            self.latencies.append(time.perf_counter() - began)
            await trio.sleep(0.02)

    def _inventory(self) -> dict[str, int]:
        info = self.node.info()
        return {
            "processes": info.processes,
            "names": info.names,
            "aliases": info.aliases,
            "metas": info.metas,
            "relations": info.relations,
            "calls in flight": info.calls_in_flight,
        }

    def _balance(self) -> dict[str, int]:
        """The missing items; all zero if nothing is missing."""
        counts = self.books.counts
        return {
            **self.world.missing(),
            "calls": counts["asked"] - counts["answered"] - counts["answered with an error"],
            "publications": counts["published"] - counts["read"],
            "connections": self.node.info().metas - self.home.get("metas", self.node.info().metas),
        }

    async def come_to_rest(self) -> None:
        """Wait until nothing is under way, and compare."""
        with trio.move_on_after(PATIENCE):
            while not await self._is_at_rest():  # noqa: ASYNC110 - there is no event for rest
                await trio.sleep(0.02)
        missing = {what: count for what, count in self._balance().items() if count}
        if missing:
            self.violations.append(
                f"the books do not balance: {missing}, of {dict(self.books.counts)}"
            )
        now = self._inventory()
        if not self.home:
            self.home = now
        elif now != self.home:
            other = {
                what: (self.home[what], now[what]) for what in now if now[what] != self.home[what]
            }
            self.violations.append(f"not as it was before: {other}")

    async def _is_at_rest(self) -> bool:
        if self._busy:
            return False
        for child in self.world.crowd.children():
            if child.pid is not None:
                try:
                    await self.world.crowd.stop_child(child.pid, timeout=5.0)
                except ErgoError:
                    pass
        if len(self.node.pool("pool").workers()) != 3:
            try:
                await self.node.pool("pool").resize(3, timeout=10.0)
            except ErgoError:
                return False
        if any(self._balance().values()):
            return False
        return not self.home or self._inventory() == self.home

    def measure(self) -> None:
        gc.collect()
        used = memory()
        self.measures.append(
            {
                "memory": used,
                "threads": threading.active_count(),
                "files": open_files(),
                "letters": self.books.counts["sent"],
            }
        )

    def judge(self) -> None:
        """Compare the last measure with a measure from when all had been warm for a while."""
        if len(self.measures) >= 3:
            first, last = self.measures[len(self.measures) // 3], self.measures[-1]
            for what, spare in (
                ("memory", SPARE_MEMORY),
                ("threads", SPARE_THREADS),
                ("files", SPARE_FILES),
            ):
                if first[what] is not None and last[what] - first[what] > spare:
                    self.violations.append(f"{what} have grown from {first[what]} to {last[what]}")
        left = self.node.info().threads_abandoned
        if left > self.most_left:
            self.violations.append(
                f"{left} threads did not end when they were told to, and were left behind"
            )
        if self.latencies and self.quantile(0.99) > self.slowest:
            self.violations.append(
                f"one in a hundred answers of the bystander took {self.quantile(0.99):.3f} s or "
                "more"
            )

    def quantile(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0

    def report(self, seconds: float, seed: int) -> dict[str, Any]:
        info = self.node.info()
        return {
            "seed": seed,
            "seconds": round(seconds, 1),
            "acts": dict(sorted(self.acts.items())),
            "counts": dict(sorted(self.books.counts.items())),
            "dead letters": {why.name: count for why, count in info.dead_letters.items()},
            "crashed": info.crashed,
            "spawned": info.spawned,
            "late replies": info.late_replies,
            "times blocked": info.times_blocked,
            "rests": len(self.measures),
            "bystander": {
                "answers": len(self.latencies),
                "p50": self.quantile(0.5),
                "p99": self.quantile(0.99),
                "max": max(self.latencies, default=0.0),
            },
            "measures": self.measures,
            "violations": self.violations,
        }


async def soak(
    seconds: float,
    seed: int,
    pace: float,
    period: float,
    slowest: float,
    most_left: int = 0,
    least: int = 1,
) -> dict[str, Any]:
    """Run for some time; ``pace`` is how many things are begun in a second, ``period`` how often
    all comes to rest.

    A machine that is too busy goes on until ``least`` things were begun.
    """
    began = time.monotonic()
    books, report = Books(), dict[str, Any]()
    with directory() as place:
        async with open_node(
            "soak@localhost", log_output="none", dead_letters=100, obituaries=20
        ) as node:
            run = Soak(World(node, books, place), seed, slowest, most_left)
            await run.world.begin()
            await run.come_to_rest()
            async with trio.open_nursery() as bystanders:
                bystanders.start_soon(run.watch_bystander)

                def is_over() -> bool:
                    return time.monotonic() - began >= seconds and run.acts.total() >= least

                while not is_over():
                    async with trio.open_nursery() as nursery:
                        until = time.monotonic() + period
                        while time.monotonic() < until and not is_over():
                            run.act(nursery)
                            await trio.sleep(run.random.expovariate(pace))
                    await run.come_to_rest()
                    run.measure()
                    if len(run.violations) > 20:
                        break
                bystanders.cancel_scope.cancel()
            run.judge()
            report = run.report(time.monotonic() - began, seed)
        exit_report = node.exit_report
        if exit_report is None or len(exit_report.abandoned) > most_left:
            report["violations"].append(f"not all of it ended: {exit_report}")
    return report


def show(report: dict[str, Any]) -> str:
    """The report for people."""
    counts, bystander = report["counts"], report["bystander"]
    lines = [
        f"{report['seconds']} s, seed {report['seed']}: {sum(report['acts'].values())} acts, "
        f"{report['rests']} rests",
        f"letters: {counts.get('sent', 0)} sent, {counts.get('handled', 0)} handled, "
        f"{counts.get('dead', 0)} dead,"
        f" {counts.get('refused', 0)} of them refused to their sender",
        f"calls: {counts.get('asked', 0)} asked, {counts.get('answered', 0)} answered,"
        f" {counts.get('answered with an error', 0)} ended with an error",
        f"processes: {report['spawned']} spawned, {report['crashed']} crashed",
        f"connections: {counts.get('connected', 0)}, {counts.get('echoes', 0)} whole echoes,"
        f" {counts.get('echoes cut short', 0)} cut short; {counts.get('datagrams', 0)} datagrams",
        f"bystander: {bystander['answers']} answers, p50 {bystander['p50'] * 1000:.2f} ms,"
        f" p99 {bystander['p99'] * 1000:.1f} ms, max {bystander['max'] * 1000:.0f} ms",
    ]
    for measure in (report["measures"][0], report["measures"][-1]) if report["measures"] else ():
        used = "?" if measure["memory"] is None else f"{measure['memory'] / 2**20:.1f}"
        lines.append(
            f"after {measure['letters']} letters: {used} MiB, {measure['threads']} threads, "
            f"{measure['files']} descriptors"
        )
    lines += [f"VIOLATION: {one}" for one in report["violations"]] or [
        "nothing was lost, and nothing has grown"
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: 10)")
    parser.add_argument(
        "--seed", type=int, default=1, help="what is done, and in which order (default: 1)"
    )
    parser.add_argument(
        "--pace",
        type=float,
        default=100.0,
        help="how many things are begun in a second (default: 100)",
    )
    parser.add_argument(
        "--period", type=float, default=5.0, help="seconds between two rests (default: 5)"
    )
    parser.add_argument(
        "--slowest",
        type=float,
        default=0.5,
        help="what 99 of 100 answers of the bystander may take, in seconds",
    )
    parser.add_argument(
        "--most-left",
        type=int,
        default=0,
        help="how many threads may be left behind: on a machine that is too busy, some are",
    )
    parser.add_argument(
        "--least",
        type=int,
        default=1,
        help="how many things are begun at least, however long that takes (default: 1)",
    )
    parser.add_argument("--results", type=Path, help="a file for the report as JSON")
    chosen = parser.parse_args(arguments)
    report = trio.run(
        soak,
        chosen.minutes * 60,
        chosen.seed,
        chosen.pace,
        chosen.period,
        chosen.slowest,
        chosen.most_left,
        chosen.least,
    )
    print(show(report))
    if chosen.results is not None:
        chosen.results.write_text(json.dumps(report, indent=2), encoding="utf-8")
    return 1 if report["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
