"""Entities on SQLite with ``synchronous=FULL``: the CPU time of a command, beside the same by hand
on asyncio and on trio, and beside a call to an actor that stores nothing.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import ClassVar

import trio

from ergo_py import Actor, ChildSpec, Node, ask, exposed, open_node
from ergo_py.entities import Entities, Entity, SQLite

from ..clocks import Latch, Stopwatch
from ..harness import Case, Figures, Goal, Line, Variant, on_loop
from ..peers.group_commit import Balance, ComparingCommit, GroupCommit, HandMade

__all__ = ["CASES", "LIMIT", "Account", "keep"]

LIMIT = 5.0
"""Seconds that a call may take."""


class Account(Entity[Balance]):
    """An entity with a small state."""

    timers: ClassVar[Latch | None] = None
    """Told of each timer."""

    @exposed
    def deposit(self, amount: int) -> int:
        self.state.amount += amount
        return self.state.amount

    @exposed
    def balance(self) -> int:
        return self.state.amount

    def handle_message(self, message: object, sender: object) -> None:
        if self.timers is not None:
            self.timers.report()


class Counter(Actor):
    """The same without a store: the cost of the call alone."""

    def init(self) -> None:
        self.state = Balance()

    @exposed
    def deposit(self, amount: int) -> int:
        self.state.amount += amount
        return self.state.amount


Future = asyncio.Future[int]
Command = Callable[[int], Awaitable[object]]
"""Deposits into the account of a client."""


async def keep(node: Node, path: Path, max_awake: int = 1_000_000) -> None:
    """Keep accounts in a file."""
    entities = Entities.spec(SQLite(path), [Account], max_awake=max_awake)
    await node.supervise([ChildSpec("entities", entities)])


async def _measure(command: Command, clients: int, size: int, watch: Stopwatch) -> None:
    """All clients at once, each with commands in sequence, to an account that is awake."""
    count = max(1, size // clients)

    async def client(number: int, commands: int) -> None:
        for _ in range(commands):
            await command(number)

    async def all_clients(commands: int) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(clients):
                nursery.start_soon(client, number, commands)

    await all_clients(1)
    with watch:
        await all_clients(count)


async def _ergo(clients: int, size: int) -> Figures:
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as directory:
        async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
            await keep(node, Path(directory) / "accounts.db")
            accounts = [node.entity(Account, f"account {number}") for number in range(clients)]

            def command(number: int) -> Awaitable[object]:
                return accounts[number].call(ask(Account.deposit, 1), timeout=LIMIT)

            await _measure(command, clients, size, watch)
    return watch.each(max(1, size // clients) * clients)


async def _actor(clients: int, size: int) -> Figures:
    watch = Stopwatch()
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        counters = [await node.spawn(Counter) for _ in range(clients)]

        def command(number: int) -> Awaitable[object]:
            return node.call(counters[number], ask(Counter.deposit, 1), timeout=LIMIT)

        await _measure(command, clients, size, watch)
    return watch.each(max(1, size // clients) * clients)


async def _by_hand(
    limit: float | None, clients: int, size: int, make: type[GroupCommit[Future]]
) -> Figures:
    """A dict of states, and a future for each command. With a limit, ``asyncio.timeout``, which is
    a little cheaper than ``asyncio.wait_for``.
    """
    loop = asyncio.get_running_loop()
    count = max(1, size // clients)

    def release(waiting: list[tuple[Future, int]]) -> None:
        for future, value in waiting:
            if not future.done():
                future.set_result(value)

    def tell(waiting: list[tuple[Future, int]]) -> None:
        loop.call_soon_threadsafe(release, waiting)

    with tempfile.TemporaryDirectory() as directory:
        commit = make(Path(directory) / "accounts.db", tell)
        accounts = HandMade(commit)

        async def deposit(key: str, amount: int) -> int:
            future: Future = loop.create_future()
            accounts.deposit(key, amount, future)
            return await future

        async def deposit_within(key: str, amount: int) -> int:
            async with asyncio.timeout(limit):
                return await deposit(key, amount)

        call = deposit if limit is None else deposit_within

        async def client(number: int, commands: int) -> None:
            key = f"account {number}"
            for _ in range(commands):
                await call(key, 1)

        async def all_clients(commands: int) -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(clients):
                    group.create_task(client(number, commands))

        try:
            await all_clients(1)
            with Stopwatch() as watch:
                await all_clients(count)
        finally:
            await asyncio.to_thread(commit.close)
    return watch.each(count * clients)


def _asyncio(
    limit: float | None, clients: int, size: int, make: type[GroupCommit[Future]] = GroupCommit
) -> Figures:
    return asyncio.run(_by_hand(limit, clients, size, make))


class Waiting:
    """A command by hand on trio: the task that waits for it, and its answer."""

    __slots__ = ("_answer", "_task")

    def __init__(self) -> None:
        self._task = trio.lowlevel.current_task()
        self._answer = 0

    async def answer(self) -> int:
        await trio.lowlevel.wait_task_rescheduled(_give_up)
        return self._answer

    def settle(self, answer: int) -> None:
        self._answer = answer
        trio.lowlevel.reschedule(self._task)


def _give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.SUCCEEDED


async def _on_trio(limit: float | None, clients: int, size: int) -> Figures:
    """The same with the cheapest wait that trio has: the limit of all code on trio. With a limit,
    ``trio.fail_after``.
    """
    loop, watch = trio.lowlevel.current_trio_token(), Stopwatch()

    def release(waiting: list[tuple[Waiting, int]]) -> None:
        for each, value in waiting:
            each.settle(value)

    def tell(waiting: list[tuple[Waiting, int]]) -> None:
        loop.run_sync_soon(release, waiting)

    with tempfile.TemporaryDirectory() as directory:
        commit = GroupCommit(Path(directory) / "accounts.db", tell)
        accounts = HandMade(commit)
        keys = [f"account {number}" for number in range(clients)]

        async def deposit(number: int) -> int:
            waiting = Waiting()
            accounts.deposit(keys[number], 1, waiting)
            return await waiting.answer()

        async def deposit_within(number: int) -> int:
            with trio.fail_after(LIMIT):
                return await deposit(number)

        try:
            await _measure(deposit if limit is None else deposit_within, clients, size, watch)
        finally:
            await trio.to_thread.run_sync(commit.close)
    return watch.each(max(1, size // clients) * clients)


def _variants(clients: int) -> dict[str, Variant]:
    return {
        "ergo": on_loop(_ergo, clients),
        "ergo actor": on_loop(_actor, clients),
        "asyncio": partial(_asyncio, LIMIT, clients),
        "asyncio, comparing": partial(_asyncio, LIMIT, clients, make=ComparingCommit),
        "asyncio, no limits": partial(_asyncio, None, clients),
        "trio": on_loop(_on_trio, LIMIT, clients),
        "trio, no limits": on_loop(_on_trio, None, clients),
    }


def _case(clients: int, size: int, most: float) -> Case:
    who = "1 client" if clients == 1 else f"{clients:,} clients"
    return Case(
        name=f"entities, {who}",
        about=(
            f"each command of {who} at once, to an account of its own; asyncio: a dict, and a "
            "thread with the same group commit"
        ),
        unit="µs",
        size=size,
        least=clients,
        variants=_variants(clients),
        lines=[
            Line("a command, stored", "ergo", goals=(Goal("durable", most, "asyncio"),)),
            Line("a call to an actor", "ergo actor"),
            Line("by hand, versions compared", "asyncio, comparing"),
            Line("by hand, without time limits", "asyncio, no limits"),
            Line("by hand on trio", "trio"),
            Line("on trio, without time limits", "trio, no limits"),
        ],
        reference="asyncio",
    )


CASES = [_case(1, 500, 1.2), _case(100, 10_000, 1.05), _case(1000, 10_000, 1.05)]
