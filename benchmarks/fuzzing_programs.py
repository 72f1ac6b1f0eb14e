"""``python -m benchmarks.fuzzing_programs``: random small programs of processes have the same
history with the C extension and in pure Python.

A seed makes a program: a few supervised processes, a pool, and drivers that make them send, call,
link, monitor, publish, start timers and tasks, fail, stop and kill each other, and that suspend and
resume them. A second seed chooses trio's task order. Time is virtual, and no program has threads:
so a program with both seeds has a single history, which every build must repeat.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import trio

from ergo_py import (
    Actor,
    Caller,
    ChildSpec,
    Node,
    Pool,
    PoolSpec,
    Priority,
    Published,
    Reason,
    Response,
    open_node,
)
from ergo_py.testing import VirtualClock, seeded

__all__ = ["History", "differences", "history", "in_build", "main"]

History = list[str]

_NAMES: Final = ("plain-1", "plain-2", "async-1", "async-2", "events", "pool")
_LAST: Final = 3
"""The deepest order inside of an order."""

Order = tuple[Any, ...]
"""A verb, the name of its receiver, a number, and the order that the receiver gets, if any."""
_VERBS: Final = (
    *("send", "send", "call", "request", "forward", "link", "monitor", "send_after", "publish"),
    *("subscribe", "start_task", "fail", "stop", "kill", "send_exit", "urgent", "spawn", "note"),
)


def _orders(chance: random.Random, count: int, depth: int = 0) -> list[Order]:
    return [
        (
            chance.choice(_VERBS),
            chance.choice(_NAMES),
            chance.randrange(100),
            _orders(chance, 1, depth + 1)[0] if depth < _LAST else None,
        )
        for _ in range(count)
    ]


# -- the processes ---------------------------------------------------------------------------------


class _Fuzzed(Actor):
    """Carries out orders, and writes all that happens into the history."""

    def __init__(self, heard: History) -> None:
        self.heard = heard
        self.sender: Any = None

    def note(self, *words: object) -> None:
        self.heard.append(" ".join(map(str, (self.registered_name or "child", *words))))

    def init(self) -> None:
        self.trap_exit = True
        if self.registered_name == "events":
            self.register_event("news", open=True)

    def terminate(self, reason: Reason) -> None:
        self.note("ends", type(reason).__name__)

    def obey(self, order: Order | None) -> None:
        """Carry out an order that needs no wait. Errors are part of the history."""
        if order is None:
            return
        verb, to, number, then = order
        if verb == "fail":
            raise RuntimeError(number)
        try:
            result = self._verb(verb, to, number, then)
        except Exception as error:
            result = type(error).__name__
        self.note(verb, to, number, result)

    def _verb(self, verb: str, to: str, number: int, then: Order | None) -> object:
        if verb == "send":
            return self.send(to, then)
        if verb == "urgent":
            return self.send(to, then, priority=Priority.MAX)
        if verb == "forward":
            return self.forward(to, then, self.sender)
        if verb == "request":
            self.request(to, then, timeout=1 + number / 10)
        elif verb == "send_after":
            self.send_after(number / 10, to, then)
        elif verb == "link":
            self.link(to)
        elif verb == "monitor":
            self.monitor(to)
        elif verb == "publish":
            return self.publish("news", number)
        elif verb == "subscribe":
            self.subscribe("news")
        elif verb == "start_task":
            self.start_task(self._work, number, then)
        elif verb == "kill":
            return self.kill(to)
        elif verb == "send_exit":
            return self.send_exit(to, "asked")
        elif verb == "stop" and number < 20:
            self.stop()
        return None

    async def _work(self, number: int, then: Order | None) -> None:
        await trio.sleep(number / 20)
        self.obey(then)

    def handle_event(self, event: Published) -> None:
        self.note("event", event.message)

    def handle_response(self, response: Response) -> None:
        error = None if response.error is None else type(response.error).__name__
        self.note("response", response.value, error)


class _Plain(_Fuzzed):
    def handle_message(self, message: Any, sender: Any) -> None:
        self.note("got", _words(message))
        self.sender = sender
        self.obey(message if type(message) is tuple else None)

    def handle_call(self, request: Any, caller: Caller) -> object:
        self.note("asked", _words(request))
        self.sender = caller.pid
        self.obey(request)
        return _words(request)


class _Async(_Fuzzed):
    async def handle_message(self, message: Any, sender: Any) -> None:
        self.note("got", _words(message))
        self.sender = sender
        await self._wait(message if type(message) is tuple else None)

    async def handle_call(self, request: Any, caller: Caller) -> object:
        self.note("asked", _words(request))
        self.sender = caller.pid
        await self._wait(request)
        return _words(request)

    async def _wait(self, order: Order | None) -> None:
        if order is None or order[0] not in ("call", "spawn"):
            self.obey(order)
            return
        verb, to, number, then = order
        try:
            if verb == "call":
                result: object = await self.call(to, then, timeout=1 + number / 10)
            else:
                await self.spawn(_Plain, self.heard, link=number % 2 == 0)
                result = "child"
        except Exception as error:
            result = type(error).__name__
        self.note(verb, to, number, result)
        if number < 30:
            await trio.sleep(number / 100)


def _words(message: Any) -> str:
    return f"{message[0]}-{message[2]}" if type(message) is tuple else type(message).__name__


# -- a program -------------------------------------------------------------------------------------


async def _drive(node: Node, heard: History, seed: int, number: int) -> None:
    chance = random.Random(f"{seed} {number}")
    for verb, to, delay, then in _orders(chance, 12):
        try:
            if verb == "call":
                result: object = await node.call(to, then, timeout=2)
            elif verb == "kill" and delay < 50:
                result = node.kill(to)
            elif verb == "stop":
                result = await node.suspend(to)
                node.send(to, then)
                await trio.sleep(delay / 50)
                await node.resume(to)
            else:
                result = node.send(to, then)
        except Exception as error:
            result = type(error).__name__
        heard.append(f"driver {number} {verb} {to} {result}")
        if delay < 30:
            await trio.sleep(delay / 50)


async def _run(seed: int, heard: History) -> None:
    children = [
        ChildSpec(name, _Plain if name.startswith("plain") else _Async, heard)
        for name in _NAMES
        if name != "pool"
    ]
    pool = ChildSpec("pool", Pool, PoolSpec(_Async, heard, size=2))
    async with open_node("fuzz@localhost", watchdog=None, log_output="none") as node:
        await node.supervise([*children, pool], intensity=1000)
        async with trio.open_nursery() as drivers:
            for number in range(3):
                drivers.start_soon(_drive, node, heard, seed, number)
        await trio.sleep(20)


def history(seed: int, order: int) -> History:
    """The history of a program, in a task order."""
    heard: History = []
    with seeded(order):
        trio.run(_run, seed, heard, clock=VirtualClock())
    return heard


# -- both builds -----------------------------------------------------------------------------------


def in_build(pure: bool, seeds: range, orders: int) -> dict[str, History]:
    """The histories of programs by seed and order, in a program of its own with this build."""
    env = {key: value for key, value in os.environ.items() if key != "ERGO_PURE"}
    if pure:
        env["ERGO_PURE"] = "1"
    told = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.fuzzing_programs", "--tell"),
            *("--first", str(seeds.start), "--count", str(len(seeds)), "--orders", str(orders)),
        ],
        env=env,
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    found: dict[str, History] = json.loads(told)
    return found


def differences(seeds: range, orders: int) -> Iterator[str]:
    """The first difference of each program that the builds run differently."""
    fast, pure = (in_build(pure, seeds, orders) for pure in (False, True))
    for key, expected in pure.items():
        found = fast[key]
        if found != expected:
            at = next(
                (
                    at
                    for at, pair in enumerate(zip(found, expected, strict=False))
                    if len({*pair}) > 1
                ),
                min(len(found), len(expected)),
            )
            yield f"{key}, line {at}: {found[at:][:1]} in C, {expected[at:][:1]} in pure Python"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.fuzzing_programs", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (default: 1)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--count", type=int, default=50, help="seeds at a time (default: 50)")
    parser.add_argument("--orders", type=int, default=4, help="task orders of each (default: 4)")
    parser.add_argument("--tell", action="store_true", help="print the histories of this build")
    chosen = parser.parse_args(arguments)
    seeds = range(chosen.first, chosen.first + chosen.count)
    if chosen.tell:
        keys = [(seed, order) for seed in seeds for order in range(chosen.orders)]
        told = {f"seed {seed}, order {order}": history(seed, order) for seed, order in keys}
        print(json.dumps(told))
        return 0
    end, problems = time.monotonic() + 60 * chosen.minutes, 0
    while not problems and time.monotonic() < end:
        for problem in differences(seeds, chosen.orders):
            print(problem, flush=True)
            problems += 1
        print(f"seeds {seeds.start} to {seeds.stop - 1}: {problems} differ", flush=True)
        seeds = range(seeds.stop, seeds.stop + chosen.count)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
