"""``python -m benchmarks.leaks``: live and die for a long time, and say whether anything of it is
left.

A round starts a small family of processes, has them linked, monitored, named, called and timed, and
ends them in several ways. Two processes of the node outlive all rounds and watch each family, so
that entries kept for a watcher are measured as well. Time is virtual, and nothing here depends on
how long anything takes.
"""

import argparse
import gc
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ergo_py import (
    NO_REPLY,
    PID,
    Actor,
    Caller,
    CallTimeoutError,
    InitError,
    Node,
    Reject,
    TargetDownError,
    open_node,
)
from ergo_py._core.tables.timers import Timers

__all__ = ["Soak", "memory", "objects", "soaking", "tables"]

ENDS = (
    "stop",
    "crash",
    "kill",
    "exit",
    "exit of a child",
    "crash of a child",
    "parent stopped by the node",
)
"""How a family may end."""


class Child(Actor):
    """Linked to its parent, both ways; with a name, an alias and a timer of its own."""

    def __init__(self, number: int) -> None:
        self.number = number

    async def init(self) -> None:
        self.alias = self.create_alias()
        self.monitor("watcher")
        self.timer = self.send_after(3600, self.alias, "never")
        self.send_every(3600, "nobody", "never")

    async def handle_message(self, message: Any, sender: Any) -> None:
        if message == "crash":
            raise RuntimeError("on purpose")

    async def handle_call(self, request: Any, caller: Caller) -> object:
        return NO_REPLY if request == "later" else request


class Parent(Actor):
    """Starts two children; answers plain calls on the spot."""

    def __init__(self, number: int) -> None:
        self.number = number

    async def init(self) -> None:
        self.children = [
            await self.spawn(Child, self.number, name=f"child {self.number}", link=True),
            await self.spawn(Child, self.number, link=True),
        ]
        self.register_event(f"event {self.number}")

    def handle_message(self, message: Any, sender: Any) -> None:
        match message:
            case "stop":
                self.stop("enough")
            case "crash":
                raise RuntimeError("on purpose")

    def handle_call(self, request: Any, caller: Caller) -> object:
        match request:
            case "children":
                return self.children
            case "refuse":
                raise Reject(LookupError("on purpose"))
            case "hand on":
                return self.forward(self.children[0], "handed on", caller)
        return request


class Failing(Actor):
    """Fails in ``init``, when it already has a child."""

    async def init(self) -> None:
        await self.spawn(Child, 0, name="child of a failing one")
        raise RuntimeError("on purpose")


class Watcher(Actor):
    """Watches all processes, in every way, and changes its mind about some of them."""

    def init(self) -> None:
        self.trap_exit = True

    def handle_message(self, message: Any, sender: Any) -> None: ...

    def handle_call(self, request: Any, caller: Caller) -> object:
        number, parent, children = request
        self.link(parent)
        self.monitor(parent)
        for child in children:
            self.link(child)
            self.monitor(child)
        self.unlink(children[0])
        self.demonitor(children[1])
        self.monitor(f"child {number}")
        self.link(f"nobody {number}")
        self.subscribe(f"event {number}")
        return None


class Soak:
    """Rounds on a node."""

    def __init__(self, node: Node, clock: MockClock) -> None:
        self.node = node
        self.clock = clock
        self.rounds = 0

    async def begin(self) -> None:
        """Start the processes that outlive the rounds."""
        for name in ("watcher", "second watcher"):
            await self.node.spawn(Watcher, name=name)

    async def run(self, rounds: int) -> None:
        """Do some rounds, and let everything come to rest."""
        for _ in range(rounds):
            await self._round()
            self.rounds += 1
        # Deadlines of calls that were answered are forgotten when their time comes.
        self.clock.jump(60)
        await wait_all_tasks_blocked()

    async def _round(self) -> None:
        node, number = self.node, self.rounds
        parent = await node.spawn(Parent, number, name=f"parent {number}", mailbox_size=10)
        children = await node.call(parent, "children")
        for watcher in ("watcher", "second watcher"):
            await node.call(watcher, (number, parent, children))
        await node.call(f"child {number}", "by name")
        await node.call(parent, "hand on")
        try:
            await node.call(parent, "refuse")
        except LookupError:
            pass
        try:
            await node.spawn(Failing)
        except InitError:
            pass
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask_in_vain, children[1], None)
            nursery.start_soon(self._ask_in_vain, children[1], 1.0)
            nursery.start_soon(self._change_one_s_mind, children[1])
            await wait_all_tasks_blocked()
            self.clock.jump(2)
            await wait_all_tasks_blocked()
            self._end(ENDS[number % len(ENDS)], parent, children)
        while parent in node.processes():
            await trio.lowlevel.checkpoint()
        node.send(parent, "too late")

    async def _ask_in_vain(self, child: PID, timeout: float | None) -> None:
        try:
            await self.node.call(child, "later", timeout=timeout)
        except (CallTimeoutError, TargetDownError):
            pass

    async def _change_one_s_mind(self, child: PID) -> None:
        with trio.move_on_after(1):
            await self.node.call(child, "later", timeout=None)

    def _end(self, how: str, parent: PID, children: list[PID]) -> None:
        match how:
            case "stop" | "crash":
                self.node.send(parent, how)
            case "kill":
                self.node.kill(parent)
            case "exit":
                self.node.send_exit(parent, "enough")
            case "exit of a child":
                self.node.send_exit(children[1], "enough")
            case "crash of a child":
                self.node.send(children[0], "crash")
            case _:
                self.node.send_exit(parent)


@asynccontextmanager
async def soaking(clock: MockClock) -> AsyncIterator[Soak]:
    """A node for some rounds, warmed up: objects that are made once have been made, and rings that
    keep the last few are full.
    """
    async with open_node(
        "soak@localhost", watchdog=None, log_output="none", dead_letters=50, obituaries=20
    ) as node:
        soak = Soak(node, clock)
        await soak.begin()
        await soak.run(70)
        yield soak


# -- measuring -------------------------------------------------------------------------------------


def tables(node: Node) -> dict[str, int]:
    """How many entries every table of a node has, its tables of tables included. New tables are
    found by themselves.
    """
    return dict(sorted(_tables("node", node, set())))


_NO_TABLES = (".turns.queue", ".router.last_receiver")
"""trio's queue of scheduled tasks, which the direct hand-off looks at, and the last process that
the router has found: these are no tables of a node.
"""


def _tables(path: str, owner: object, seen: set[int]) -> Iterator[tuple[str, int]]:
    if id(owner) in seen:
        return
    seen.add(id(owner))
    for name, value in _attributes(owner):
        where = f"{path}.{name}".replace("._", ".")
        if where.endswith(_NO_TABLES):
            continue
        if isinstance(value, dict | set | list | deque | Timers.heap_type):
            yield where, _entries(value)
        elif type(value).__module__.startswith("ergo_py.") and not isinstance(
            value, type | ModuleType | tuple
        ):
            yield from _tables(where, value, seen)


def _attributes(owner: object) -> Iterator[tuple[str, Any]]:
    names = {slot for cls in type(owner).__mro__ for slot in getattr(cls, "__slots__", ())}
    for name in sorted(names | vars(owner).keys() if hasattr(owner, "__dict__") else names):
        if name != "__weakref__" and hasattr(owner, name):
            yield name, getattr(owner, name)


def _entries(table: Collection[Any]) -> int:
    inner = table.values() if isinstance(table, Mapping) else table
    return len(table) + sum(
        len(one) for one in list(inner) if isinstance(one, dict | set | list | deque)
    )


def objects() -> int:
    """How many objects the collector knows of."""
    gc.collect()
    return len(gc.get_objects())


def memory() -> int | None:
    """Bytes of memory in use, where the system says so."""
    try:
        with open("/proc/self/statm", encoding="utf-8") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


# -- the program -----------------------------------------------------------------------------------

SPARE_OBJECTS = 200
"""Objects that the interpreter itself may keep or make meanwhile."""
SPARE_MEMORY = 8 * 2**20
"""Bytes by which an allocator may grow without anything being kept."""


async def soak(rounds: int, clock: MockClock) -> bool:
    """Do the rounds in ten parts, show how things stand after each, and say whether they are as
    they were.
    """
    async with soaking(clock) as soaked:
        before, first, used = after, last, in_use = tables(soaked.node), objects(), memory()
        print(f"{'rounds':>10} {'entries':>9} {'objects':>9} {'MiB':>8}")
        _show(0, before, first, used)
        for part in range(1, 11):
            await soaked.run(rounds * part // 10 - rounds * (part - 1) // 10)
            after, last, in_use = tables(soaked.node), objects(), memory()
            _show(rounds * part // 10, after, last, in_use)
    print("\ntables:")
    for name, size in after.items():
        note = "" if before.get(name) == size else f"   before: {before.get(name)}"
        print(f"  {size:>7}  {name}{note}")
    is_flat = {
        "tables": before == after,
        "objects": last - first <= SPARE_OBJECTS,
        "memory": used is None or in_use is None or in_use - used <= SPARE_MEMORY,
    }
    print(
        "\n" + ", ".join(f"{what}: {'flat' if flat else 'GROWN'}" for what, flat in is_flat.items())
    )
    return all(is_flat.values())


def _show(rounds: int, sizes: dict[str, int], count: int, used: int | None) -> None:
    megabytes = "?" if used is None else f"{used / 2**20:.1f}"
    print(f"{rounds:>10} {sum(sizes.values()):>9} {count:>9} {megabytes:>8}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leaks", description=__doc__)
    parser.add_argument(
        "--rounds",
        type=int,
        default=100_000,
        help="how many families live and die (default: 100,000)",
    )
    chosen = parser.parse_args(arguments)
    clock = MockClock()
    return 0 if trio.run(soak, chosen.rounds, clock, clock=clock) else 1


if __name__ == "__main__":
    sys.exit(main())
