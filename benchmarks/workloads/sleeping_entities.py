"""Entities that wake up and sleep: the time of each, with and without sleep, their memory, and the
start of a keeper of very many.

Files with many accounts are made once for a run.
"""

import atexit
import gc
import shutil
import sqlite3
import tempfile
from functools import cache
from pathlib import Path

import trio

from ergo_py import Actor, Node, ask, open_node
from ergo_py.entities.record import Owed, Record
from ergo_py.entities.states.state_type import StateType
from ergo_py.network.messages.message_types import MessageTypes

from ..apart import apart
from ..clocks import Latch, Stopwatch, resident
from ..harness import Case, Figures, Goal, Line, Variant, on_loop
from ..peers.group_commit import Balance
from .entities import Account, keep

__all__ = ["APART", "CASES"]

_AT_ONCE = 500
"""Clients that wake entities."""
_DUE = 10
"""Entities that have work to do when the keeper starts."""


@cache
def _directory() -> Path:
    made = Path(tempfile.mkdtemp(prefix="ergo-entities-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


async def _make_tables(path: Path) -> None:
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        await keep(node, path)


@cache
def _accounts(count: int) -> Path:
    """A file with so many accounts."""
    path = _directory() / f"{count}.db"
    trio.run(_make_tables, path)
    record = Record()
    record.keep(StateType(Balance).encode(Balance(1)))
    encoded = record.encode()
    connection = sqlite3.connect(path)
    connection.executemany(
        "insert into entities values ('Account', ?, 1, null, ?)",
        ((f"{number:07}", encoded) for number in range(count)),
    )
    connection.commit()
    connection.close()
    return path


async def _visit(node: Node, first: int, count: int) -> None:
    """Wake so many accounts, and ask each for its balance."""
    numbers = iter(range(first, first + count))

    async def client() -> None:
        for number in numbers:
            entity = node.entity(Account, f"{number:07}")
            if await entity.call(ask(Account.balance), timeout=60.0) != 1:
                raise AssertionError(f"{entity} has another balance")

    async with trio.open_nursery() as nursery:
        for _ in range(min(_AT_ONCE, count)):
            nursery.start_soon(client)


# -- waking ----------------------------------------------------------------------------------------


async def _wake(path: Path, size: int, max_awake: int) -> Figures:
    watch = Stopwatch()
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        await keep(node, path, max_awake)
        with watch:
            await _visit(node, 0, size)
    return watch.each(size)


def _without_sleep(size: int) -> Figures:
    return trio.run(_wake, _accounts(size), size, size)


def _with_sleep(size: int) -> Figures:
    """A tenth of the accounts is awake at once."""
    return trio.run(_wake, _accounts(size), size, max(1, size // 10))


class Idle(Actor):
    """Answers with its balance, which no store keeps."""

    def init(self) -> None:
        self.state = Balance(1)

    def handle_call(self, request: object, caller: object) -> int:
        return self.state.amount


async def _actors(size: int) -> Figures:
    """Spawn an actor and call it: the part of waking that is no entity's."""
    watch = Stopwatch()
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        with watch:
            for _ in range(size):
                await node.call(await node.spawn(Idle), "balance", timeout=60.0)
    return watch.each(size)


# -- memory ----------------------------------------------------------------------------------------


async def _awake(path: Path, size: int) -> Figures:
    grown = 0.0
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        await keep(node, path)
        # The first entities fill the caches of the store and of the allocator.
        await _visit(node, 0, size // 2)
        gc.collect()
        before = resident()
        await _visit(node, size // 2, size)
        gc.collect()
        grown = resident() - before
    return {"KiB": grown / size}


async def _asleep(path: Path, size: int) -> Figures:
    """Visit twice so many accounts, of which a twenty-fifth is awake: the growth with the second
    half.
    """
    grown = 0.0
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        await keep(node, path, max_awake=max(1, size // 25))
        await _visit(node, 0, size)
        gc.collect()
        before = resident()
        await _visit(node, size, size)
        gc.collect()
        grown = resident() - before
    return {"bytes": grown * 1024 / size}


APART: dict[str, Variant] = {
    "awake": lambda size: trio.run(_awake, _accounts(2 * size), size),
    "asleep": lambda size: trio.run(_asleep, _accounts(2 * size), size),
}


# -- start -----------------------------------------------------------------------------------------


def _owe(path: Path, due: int) -> None:
    """Let the first accounts have a timer that is due."""
    record = Record()
    record.keep(StateType(Balance).encode(Balance(1)))
    record.owe([Owed(1, "", "", MessageTypes([]).encode("due"), "timer", 1.0)])
    connection = sqlite3.connect(path)
    connection.executemany(
        "update entities set due = 1.0, record = ? where kind = 'Account' and key = ?",
        [(record.encode(), f"{number:07}") for number in range(due)],
    )
    connection.commit()
    connection.close()


async def _start(path: Path, due: int) -> Figures:
    watch = Stopwatch()
    Account.timers = latch = Latch(due)
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        with watch:
            await keep(node, path)
            await latch.wait()
    return {"cpu": watch.cpu * 1e3, "wall": watch.wall * 1e3}


def _start_with(keys: int) -> Figures:
    _owe(_accounts(keys), _DUE)
    return trio.run(_start, _accounts(keys), _DUE)


CASES = [
    Case(
        name="entities, waking",
        about="each account that is read from its file, and asked; actor: spawn, and call",
        unit="µs",
        size=5_000,
        least=20,
        variants={
            "ergo with sleep": _with_sleep,
            "without sleep": _without_sleep,
            "actor": on_loop(_actors),
        },
        lines=[
            Line("waking", "without sleep", goals=(Goal("durable", 100.0),)),
            Line("waking, wall", "without sleep", figure="wall", goals=(Goal("durable", 100.0),)),
            Line(
                "waking and sleep",
                "ergo with sleep",
                goals=(Goal("durable", 1.3, "without sleep"),),
            ),
        ],
        rounds=3,
        reference="actor",
    ),
    Case(
        name="entities, memory",
        about=(
            "each account that is awake, KiB, and each that sleeps, bytes: from 50,000 to 100,000 "
            "keys with 2,000 awake"
        ),
        unit="",
        size=50_000,
        least=200,
        variants={
            "awake": lambda size: apart(__name__, "awake")(max(100, size // 5)),
            "asleep": apart(__name__, "asleep"),
        },
        lines=[
            Line("awake (KiB)", "awake", figure="KiB", goals=(Goal("durable", 5.0),)),
            # A row of a table would take more: a key alone has some 60 bytes.
            Line("asleep (bytes)", "asleep", figure="bytes", goals=(Goal("durable", 10.0),)),
        ],
        rounds=1,
        reference="awake",
    ),
    Case(
        name="entities, start",
        about=f"until {_DUE} accounts that are due have done their work",
        unit="ms",
        size=1_000_000,
        least=2_000,
        variants={
            "ergo": _start_with,
            "a thousandth": lambda size: _start_with(max(2 * _DUE, size // 1000)),
        },
        lines=[
            Line("start", "ergo", goals=(Goal("durable", 1.3, "a thousandth"),)),
            Line("start, wall", "ergo", figure="wall"),
        ],
        rounds=3,
        reference="a thousandth",
    ),
]
