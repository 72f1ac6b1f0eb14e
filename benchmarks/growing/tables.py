"""Timers, links, monitors, names, aliases and subscriptions: the tables of a node."""

import random
from functools import partial

from trio.testing import wait_all_tasks_blocked

from ergo_py import PID, Actor, Alias, Normal, Published, open_node

from ..clocks import Latch, Stopwatch
from ..growth import growing, timed
from ..harness import Figures
from ..workloads.life import Idle


class Works(Actor):
    """Does something as a process, once."""

    def __init__(self, work: "partial[None]", latch: Latch) -> None:
        self.work = work
        self.latch = latch

    def handle_message(self, message: object, sender: PID) -> None:
        self.work(self)
        self.latch.report()


class Taker(Actor):
    """Takes and reports every message."""

    def __init__(self, latch: Latch, event: str = "") -> None:
        self.latch = latch
        self.event = event

    def init(self) -> None:
        self.trap_exit = True
        if self.event:
            self.subscribe(self.event)

    def handle_message(self, message: object, sender: PID) -> None:
        self.latch.report()

    def handle_event(self, event: Published) -> None:
        self.latch.report()


# -- timers ----------------------------------------------------------------------------------------


async def _timers(size: int) -> Figures:
    watches = {name: Stopwatch() for name in ("arm", "cancel", "fire", "end")}
    fired, done = Latch(size), Latch(1)

    def work(me: Actor) -> None:
        choose = random.Random(1)
        delays = [1000.0 + choose.random() * 1000.0 for _ in range(size)]
        with watches["arm"]:
            timers = [me.send_after(delay, me.pid, "late") for delay in delays]
        choose.shuffle(timers)
        with watches["cancel"]:
            for timer in timers:
                timer.cancel()
        for delay in delays:
            me.send_after(delay, me.pid, "never")

    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        pid = await node.spawn(Works, partial(work), done)
        node.send(pid, "go")
        await done.wait()
        with watches["end"]:
            node.send_exit(pid)
            await node.wait_ended(pid)
        taker = await node.spawn(Taker, fired)
        with watches["fire"]:
            for number in range(size):
                node.send_after(0.001 * (number % 7), taker, "now")
            await fired.wait()
    return timed(watches, size)


# -- links and monitors ----------------------------------------------------------------------------


async def _relations(size: int) -> Figures:
    watches = {name: Stopwatch() for name in ("link", "unlink", "monitor", "ended")}
    downs, done = Latch(size), Latch(1)
    targets: list[PID] = []

    class Watcher(Works):
        def handle_message(self, message: object, sender: PID) -> None:
            if message == "go":
                self.work(self)
                self.latch.report()
            else:
                downs.report()

    def work(me: Actor) -> None:
        with watches["link"]:
            for target in targets:
                me.link(target)
        random.Random(1).shuffle(targets)
        with watches["unlink"]:
            for target in targets:
                me.unlink(target)
        with watches["monitor"]:
            for target in targets:
                me.monitor(target)

    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        targets += [await node.spawn(Idle) for _ in range(size)]
        watcher = await node.spawn(Watcher, partial(work), done)
        node.send(watcher, "go")
        await done.wait()
        random.Random(2).shuffle(targets)
        with watches["ended"]:
            for target in targets:
                node.send_exit(target, Normal())
            await downs.wait()
    return timed(watches, size)


class Fan(Actor):
    """Monitors a process, like many others."""

    def __init__(self, target: PID, latch: Latch) -> None:
        self.target = target
        self.latch = latch

    def init(self) -> None:
        self.monitor(self.target)

    def handle_message(self, message: object, sender: PID) -> None:
        self.latch.report()


async def _watched(size: int) -> Figures:
    told, leave = Stopwatch(), Stopwatch()
    latch = Latch(size)
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        target, another = await node.spawn(Idle), await node.spawn(Idle)
        for _ in range(size):
            await node.spawn(Fan, target, latch)
        fans = [await node.spawn(Fan, another, latch) for _ in range(size)]
        random.Random(1).shuffle(fans)
        with told:
            node.send_exit(target, Normal())
            await latch.wait()
        with leave:
            for fan in fans:
                node.send_exit(fan, Normal())
            await wait_all_tasks_blocked(0)
    return timed({"told": told, "leave": leave}, size)


# -- names -----------------------------------------------------------------------------------------


async def _names(size: int) -> Figures:
    watches = {name: Stopwatch() for name in ("register", "send", "unregister", "alias", "delete")}
    latch, done = Latch(size), Latch(1)
    names = [f"name {number}" for number in range(size)]

    def work(me: Actor) -> None:
        with watches["alias"]:
            aliases: list[Alias] = [me.create_alias() for _ in range(size)]
        random.Random(1).shuffle(aliases)
        with watches["delete"]:
            for alias in aliases:
                me.delete_alias(alias)

    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        pids = [await node.spawn(Taker, latch) for _ in range(size)]
        with watches["register"]:
            for name, pid in zip(names, pids, strict=True):
                node.register(name, pid)
        random.Random(1).shuffle(names)
        with watches["send"]:
            for name in names:
                node.send(name, "message")
            await latch.wait()
        with watches["unregister"]:
            for name in names:
                node.unregister(name)
        node.send(await node.spawn(Works, partial(work), done), "go")
        await done.wait()
    return timed(watches, size)


# -- subscriptions ---------------------------------------------------------------------------------


class Producer(Actor):
    """Has as many events as it is told to, and publishes the first when told to."""

    def __init__(self, events: int) -> None:
        self.events = events

    def init(self) -> None:
        for number in range(self.events):
            self.register_event(f"event {number}")

    def handle_message(self, message: object, sender: PID) -> None:
        self.publish("event 0", message)


async def _subscriptions(size: int) -> Figures:
    watches = {name: Stopwatch() for name in ("register", "subscribe", "deliver", "leave", "end")}
    latch = Latch(size)
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        with watches["register"]:
            producer = await node.spawn(Producer, size)
        with watches["subscribe"]:
            takers = [await node.spawn(Taker, latch, "event 0") for _ in range(size)]
        with watches["deliver"]:
            node.send(producer, "news")
            await latch.wait()
        random.Random(1).shuffle(takers)
        with watches["leave"]:
            for taker in takers:
                node.kill(taker)
            await wait_all_tasks_blocked(0)
        with watches["end"]:
            node.send_exit(producer)
            await node.wait_ended(producer)
    return timed(watches, size)


CASES = [
    growing(
        "pending timers",
        "each of 1,000 and more",
        _timers,
        1_000,
        {"arm": "arm", "cancel": "cancel", "fire": "fire", "end of their owner": "end"},
    ),
    growing(
        "links and monitors of a process",
        "each of 100 and more, all of one process",
        _relations,
        100,
        {"link": "link", "unlink": "unlink", "monitor": "monitor", "ends in sequence": "ended"},
    ),
    growing(
        "monitors of the same",
        "each of 100 and more processes that watch one",
        _watched,
        100,
        {"notified of its end": "told", "leave in sequence": "leave"},
    ),
    growing(
        "names and aliases",
        "each of 100 and more",
        _names,
        100,
        {
            "register": "register",
            "send by name": "send",
            "unregister": "unregister",
            "create an alias": "alias",
            "delete it": "delete",
        },
    ),
    growing(
        "subscriptions",
        "each of 100 and more, to one event; events of one producer",
        _subscriptions,
        100,
        {
            "register an event": "register",
            "spawn and subscribe": "subscribe",
            "deliver": "deliver",
            "leave": "leave",
            "end of the producer": "end",
        },
    ),
]
