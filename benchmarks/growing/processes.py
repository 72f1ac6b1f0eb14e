"""Processes: many on a node, many children of a parent, many under a supervisor."""

import random
from functools import partial

from trio.testing import wait_all_tasks_blocked

from ergo_py import PID, Actor, ChildSpec, Normal, Pool, PoolSpec, Routing, Strategy, open_node

from ..clocks import Latch, Stopwatch
from ..growth import growing, timed
from ..harness import Figures
from ..workloads.life import Idle


class Counter(Actor):
    """Reports each message."""

    def __init__(self, latch: Latch) -> None:
        self.latch = latch

    def handle_message(self, message: object, sender: PID) -> None:
        if message == "fail":
            raise ValueError(message)
        self.latch.report()


async def _on_a_node(size: int) -> Figures:
    spawn, send, stop = Stopwatch(), Stopwatch(), Stopwatch()
    latch = Latch(size)
    async with open_node(
        "bench@localhost", watchdog=None, log_output="none", stop_timeout=600
    ) as node:
        with spawn:
            pids = [await node.spawn(Counter, latch) for _ in range(size)]
        random.Random(1).shuffle(pids)
        await wait_all_tasks_blocked()
        with send:
            for pid in pids:
                node.send(pid, "one")
            await latch.wait()
        stop.start()
    stop.stop()
    return timed({"spawn": spawn, "send": send, "stop": stop}, size)


class Parent(Actor):
    """Has the requested number of children, which end in sequence, in any order."""

    def __init__(self, size: int, latch: Latch) -> None:
        self.size = size
        self.latch = latch
        self.pids: list[PID] = []

    async def init(self) -> None:
        self.pids = [await self.spawn(Idle) for _ in range(self.size)]
        random.Random(1).shuffle(self.pids)

    def handle_message(self, message: object, sender: PID) -> None:
        for pid in self.pids:
            self.send_exit(pid, Normal())

    def handle_child_exit(self, child: object, reason: object) -> None:
        self.latch.report()


async def _children(size: int) -> Figures:
    spawn, end, stop = Stopwatch(), Stopwatch(), Stopwatch()
    latch = Latch(size)
    async with open_node(
        "bench@localhost", watchdog=None, log_output="none", stop_timeout=600
    ) as node:
        with spawn:
            parent = await node.spawn(Parent, size, latch, init_timeout=600)
        with end:
            node.send(parent, "end them")
            await latch.wait()
        another = await node.spawn(Parent, size, latch, init_timeout=600)
        with stop:
            node.send_exit(another)
            await node.wait_ended(another)
    return timed({"spawn": spawn, "end": end, "stop": stop}, size)


_CRASHES = 20


async def _supervised(size: int) -> Figures:
    start, restart, stop = Stopwatch(), Stopwatch(), Stopwatch()
    latch = Latch(_CRASHES)
    async with open_node(
        "bench@localhost", watchdog=None, log_output="none", log_level="off"
    ) as node:
        specs = [ChildSpec(f"child {number}", Counter, latch) for number in range(size)]
        with start:
            supervisor = await node.supervise(specs, intensity=10**9)
        choose = random.Random(1)
        with restart:
            for _ in range(_CRASHES):
                name = f"child {choose.randrange(size)}"
                node.send(name, "fail")
                await wait_all_tasks_blocked(0)
                node.send(name, "one")
            await latch.wait()
        pid = supervisor.pid
        with stop:
            node.send_exit(pid)
            await node.wait_ended(pid)
    return {**timed({"start": start, "stop": stop}, size), **timed({"restart": restart}, _CRASHES)}


async def _dynamic(size: int) -> Figures:
    start, stop = Stopwatch(), Stopwatch()
    async with open_node(
        "bench@localhost", watchdog=None, log_output="none", log_level="off"
    ) as node:
        template = ChildSpec.template("idle", Idle)
        supervisor = await node.supervise([template], strategy=Strategy.SIMPLE_ONE_FOR_ONE)
        with start:
            pids = [await supervisor.start_child("idle") for _ in range(size)]
        random.Random(1).shuffle(pids)
        with stop:
            for pid in pids:
                await supervisor.remove_child(pid)
    return timed({"start": start, "stop": stop}, size)


_MESSAGES = 2_000


async def _pool(routing: Routing, size: int) -> Figures:
    start, send = Stopwatch(), Stopwatch()
    latch = Latch(_MESSAGES)
    async with open_node(
        "bench@localhost", watchdog=None, log_output="none", log_level="off"
    ) as node:
        with start:
            pool = await node.spawn(Pool, PoolSpec(Counter, latch, size=size, routing=routing))
        with send:
            for _ in range(_MESSAGES):
                node.send(pool, "one")
            await latch.wait()
    return {**timed({"start": start}, size), **timed({"send": send}, _MESSAGES)}


CASES = [
    growing(
        "processes on a node",
        "each of 200 and more",
        _on_a_node,
        200,
        {"spawn": "spawn", "send to any": "send", "stop": "stop"},
    ),
    growing(
        "children of a parent",
        "each of 100 and more",
        _children,
        100,
        {"spawn": "spawn", "end in sequence": "end", "stop with the parent": "stop"},
    ),
    growing(
        "children of a supervisor",
        "each of 50 and more; one crash among so many",
        _supervised,
        50,
        {"start": "start", "restart of a child": "restart", "stop": "stop"},
    ),
    growing(
        "dynamic children",
        "each of 50 and more, with an order to the supervisor for each",
        _dynamic,
        50,
        {"start": "start", "remove": "stop"},
    ),
    growing(
        "workers of a pool, in turn",
        "each of 4 and more; each message",
        partial(_pool, Routing.ROUND_ROBIN),
        4,
        {"start": "start", "message": "send"},
    ),
    growing(
        "workers of a pool, least loaded",
        "each message, to one of 4 and more",
        partial(_pool, Routing.LEAST_LOADED),
        4,
        {"message": "send"},
    ),
]
