"""Where a cost could grow with all there is, or a single turn with it: timeouts, links, groups,
long mailboxes, many watchers.
"""

import random
from functools import partial

import trio
import trio.lowlevel
from trio.testing import wait_all_tasks_blocked

from ergo_py import (
    PID,
    Actor,
    Caller,
    CallTimeoutError,
    ChildSpec,
    Normal,
    Strategy,
    TargetDownError,
    open_node,
)
from ergo_py.supervision import Fate

from ..clocks import Latch, LongestTurn, Stopwatch
from ..growth import growing, timed
from ..harness import Figures
from ..workloads.life import Idle
from .tables import Fan
from .waiting import Held, Later

# -- timeouts --------------------------------------------------------------------------------------

_TICKS = 100


async def _timeouts(size: int) -> Figures:
    """Calls in flight, no two of which have the same timeout; meanwhile the clock wakes up for
    timers.
    """
    watches = {name: Stopwatch() for name in ("ask", "wake", "answer", "expire")}
    turn = LongestTurn()

    async def asking(timeout: float) -> None:
        try:
            await node.call(callee, "request", timeout=timeout)
        except CallTimeoutError:
            pass

    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        callee, ticking = await node.spawn(Later), Latch(_TICKS)
        counter = await node.spawn(Counter, ticking)
        choose = random.Random(1)
        async with trio.open_nursery() as nursery:
            with watches["ask"]:
                for _ in range(size):
                    nursery.start_soon(asking, 1000.0 + choose.random())
                await wait_all_tasks_blocked(0)
            with watches["wake"]:
                for _ in range(_TICKS):
                    node.send_after(0.0, counter, "tick")
                    await wait_all_tasks_blocked(0)
                await ticking.wait()
            watches["answer"].start()
            node.send(callee, "answer")
        watches["answer"].stop()
        async with trio.open_nursery() as nursery:
            for _ in range(size):
                nursery.start_soon(asking, 0.05 + choose.random() / 1000)
            await trio.lowlevel.checkpoint()
            watches["expire"].start()
            await trio.lowlevel.checkpoint()
            with turn:
                await trio.sleep(0.06)
        watches["expire"].stop()
    each = timed({name: watch for name, watch in watches.items() if name != "wake"}, size)
    return {**each, **timed({"wake": watches["wake"]}, _TICKS), "turn": turn.microseconds}


class Counter(Actor):
    """Reports each message."""

    def __init__(self, latch: Latch) -> None:
        self.latch = latch

    def handle_message(self, message: object, sender: PID) -> None:
        self.latch.report()


# -- links and groups ------------------------------------------------------------------------------


class Family(Actor):
    """Has as many linked children as it is told to."""

    def __init__(self, size: int) -> None:
        self.size = size

    async def init(self) -> None:
        for _ in range(self.size):
            await self.spawn(Idle, link=True)


async def _linked(size: int) -> Figures:
    spawn, stop, turn = Stopwatch(), Stopwatch(), LongestTurn()
    async with open_node(
        "bench@localhost", watchdog=None, log_output="none", stop_timeout=600
    ) as node:
        with spawn:
            parent = await node.spawn(Family, size, init_timeout=600)
        await wait_all_tasks_blocked()
        with stop, turn:
            node.send_exit(parent)
            await node.wait_ended(parent)
    return {**timed({"spawn": spawn, "stop": stop}, size), "turn": turn.microseconds}


class Member(Actor):
    """Reports when it starts, and fails at every message."""

    def __init__(self, started: list[int], latch: list[Latch]) -> None:
        started[0] += 1
        if latch:
            latch[0].report()

    def handle_message(self, message: object, sender: PID) -> None:
        raise ValueError(message)


async def _group(strategy: Strategy, size: int) -> Figures:
    crash = Stopwatch()
    started, latch = [0], list[Latch]()
    async with open_node(
        "bench@localhost", watchdog=None, log_output="none", log_level="off"
    ) as node:
        specs = [ChildSpec(f"child {number}", Member, started, latch) for number in range(size)]
        supervisor = await node.supervise(specs, strategy=strategy)
        await wait_all_tasks_blocked()
        latch.append(Latch(size))
        with crash:
            node.send("child 0", "fail")
            await latch[0].wait()
        supervisor_pid = supervisor.pid
        node.send_exit(supervisor_pid)
        await node.wait_ended(supervisor_pid)
    return timed({"crash": crash}, size)


# -- long mailboxes --------------------------------------------------------------------------------

_CRASHES = 20


class Fragile(Actor):
    """Fails at each of its first messages in all its lives, and reports the later messages."""

    def __init__(self, failures: list[int], latch: Latch) -> None:
        self.failures = failures
        self.latch = latch

    def handle_message(self, message: object, sender: PID) -> None:
        if self.failures[0] == _CRASHES:
            self.latch.report()
            return
        self.failures[0] += 1
        raise ValueError(message)


async def _kept(size: int) -> Figures:
    crash, turn = Stopwatch(), LongestTurn()
    latch = Latch(1)
    async with open_node(
        "bench@localhost", watchdog=None, log_output="none", log_level="off"
    ) as node:
        await node.supervise(
            [ChildSpec("fragile", Fragile, [0], latch, mailbox=Fate.KEEP)], intensity=10**9
        )
        for number in range(max(size, _CRASHES + 1)):
            node.send("fragile", number)
        with crash, turn:
            await latch.wait()
    return {**timed({"crash": crash}, _CRASHES), "turn": turn.microseconds}


async def _queued(size: int) -> Figures:
    lost, down, turn = Stopwatch(), Stopwatch(), LongestTurn()

    async def asking(to: PID) -> None:
        try:
            await node.call(to, "request", timeout=600)
        except TargetDownError:
            pass

    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        doomed = await node.spawn(Held, trio.Event(), Latch(1))
        for _ in range(size):
            node.send(doomed, "message")
        await wait_all_tasks_blocked()
        with lost, turn:
            node.kill(doomed)
            await node.wait_ended(doomed)
        owing = await node.spawn(Later)
        async with trio.open_nursery() as nursery:
            for _ in range(size // 20):
                nursery.start_soon(asking, owing)
            await wait_all_tasks_blocked()
            with down, turn:
                node.kill(owing)
                await node.wait_ended(owing)
    return {
        **timed({"lost": lost}, size),
        **timed({"down": down}, max(1, size // 20)),
        "turn": turn.microseconds,
    }


# -- much that ends --------------------------------------------------------------------------------


class Busy(Actor):
    """Has many timers and monitors."""

    def __init__(self, targets: list[PID]) -> None:
        self.targets = targets

    def init(self) -> None:
        for target in self.targets:
            self.monitor(target)
            self.send_after(1000.0, target, "late")

    def handle_call(self, request: object, caller: Caller) -> object:
        return request


async def _ends(size: int) -> Figures:
    """The end of a process with many watchers, of a process that watches many, and of a supervisor
    of many.
    """
    watches = {name: Stopwatch() for name in ("told", "leave", "ordered", "dynamic")}
    turn, latch = LongestTurn(), Latch(size)
    async with open_node(
        "bench@localhost", watchdog=None, log_output="none", log_level="off"
    ) as node:
        target = await node.spawn(Idle)
        fans = [await node.spawn(Fan, target, latch) for _ in range(size)]
        await wait_all_tasks_blocked()
        with watches["told"], turn:
            node.send_exit(target, Normal())
            await latch.wait()
        busy = await node.spawn(Busy, fans)
        await wait_all_tasks_blocked()
        with watches["leave"], turn:
            node.send_exit(busy, Normal())
            await node.wait_ended(busy)
        ordered = await node.supervise(
            [ChildSpec(f"child {number}", Idle) for number in range(size)]
        )
        dynamic = await node.supervise(
            [ChildSpec.template("idle", Idle)], strategy=Strategy.SIMPLE_ONE_FOR_ONE
        )
        for _ in range(size):
            await dynamic.start_child("idle")
        await wait_all_tasks_blocked()
        for name, supervisor in (("ordered", ordered), ("dynamic", dynamic)):
            pid = supervisor.pid
            with watches[name], turn:
                node.send_exit(pid)
                await node.wait_ended(pid)
    return {**timed(watches, size), "turn": turn.microseconds}


CASES = [
    growing(
        "distinct timeouts",
        "each of 100 and more calls in flight; the clock, when it wakes up for a timer meanwhile",
        _timeouts,
        100,
        {
            "ask": "ask",
            "answer": "answer",
            "run out": "expire",
            "wake the clock": "wake",
            "longest turn": "turn",
        },
    ),
    growing(
        "linked children",
        "each of 100 and more of one parent",
        _linked,
        100,
        {"spawn": "spawn", "stop with the parent": "stop", "longest turn": "turn"},
    ),
    growing(
        "ALL_FOR_ONE",
        "each of 20 and more children, at one crash",
        partial(_group, Strategy.ALL_FOR_ONE),
        20,
        {"restart": "crash"},
    ),
    growing(
        "REST_FOR_ONE",
        "each of 20 and more children, at one crash of the first",
        partial(_group, Strategy.REST_FOR_ONE),
        20,
        {"restart": "crash"},
    ),
    growing(
        "a crash that keeps the mailbox",
        "each of 20 crashes, with 1,000 and more messages",
        _kept,
        1_000,
        {"crash": "crash", "longest turn": "turn"},
    ),
    growing(
        "the end of a long mailbox",
        "each of 2,000 and more messages, each of 100 and more calls owed",
        _queued,
        2_000,
        {"message": "lost", "call": "down", "longest turn": "turn"},
    ),
    growing(
        "ends",
        "each of 50 and more: watchers that are told, links and timers that are released, "
        "children that are stopped",
        _ends,
        50,
        {
            "watcher told": "told",
            "link and timer": "leave",
            "child in order": "ordered",
            "child from a template": "dynamic",
            "longest turn": "turn",
        },
    ),
]
