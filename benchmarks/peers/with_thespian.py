"""thespian, with the base that runs all actors in a single thread; its other bases have a program
for each actor.
"""
# pyright: reportMissingImports=false, reportUntypedBaseClass=false

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from time import perf_counter
from typing import Any

from thespian.actors import Actor, ActorExitRequest, ActorSystem

from ..apart import apart
from ..clocks import Stopwatch, percentiles, resident
from ..harness import Figures, Variant
from ..workloads.publish import ROUNDS
from ..workloads.timers import delays

__all__ = ["ADDS", "APART"]


@contextmanager
def _system() -> Iterator[Any]:
    system: Any = ActorSystem("simpleSystemBase", logDefs=False)
    try:
        yield system
    finally:
        system.shutdown()


class Sink(Actor):
    """Counts its messages."""

    def __init__(self) -> None:
        self.got = 0

    def receiveMessage(self, message: Any, sender: Any) -> None:  # noqa: N802
        self.got += 1


class Source(Actor):
    """Sends so many to each when told to."""

    def receiveMessage(self, message: Any, sender: Any) -> None:  # noqa: N802
        if type(message) is tuple:
            targets, count = message
            for _ in range(count):
                for target in targets:
                    self.send(target, "go")


def _tell(pairs: int, size: int) -> Figures:
    count = max(1, size // pairs)
    with _system() as system:
        couples = [(system.createActor(Source), system.createActor(Sink)) for _ in range(pairs)]
        with Stopwatch() as watch:
            # It runs until all messages have been handled.
            for source, sink in couples:
                system.tell(source, ([sink], count))
    return watch.each(count * pairs)


def _publish(size: int) -> Figures:
    size = max(1, size // 5)
    with _system() as system:
        source, sinks = system.createActor(Source), [system.createActor(Sink) for _ in range(size)]
        with Stopwatch() as watch:
            system.tell(source, (sinks, ROUNDS))
    return watch.each(size * ROUNDS)


class Callee(Actor):
    """Answers."""

    def receiveMessage(self, message: Any, sender: Any) -> None:  # noqa: N802
        if message == "go":
            self.send(sender, message)


def _call(size: int) -> Figures:
    """Asked from outside: an actor of thespian cannot wait for an answer."""
    times: list[float] = []
    with _system() as system:
        callee = system.createActor(Callee)
        with Stopwatch() as watch:
            before = perf_counter()
            for _ in range(size):
                system.ask(callee, "go")
                now = perf_counter()
                times.append(now - before)
                before = now
    return watch.each(size) | percentiles(times)


def _live(size: int) -> Figures:
    size = max(1, size // 2)
    with _system() as system:
        with Stopwatch() as starting:
            actors = [system.createActor(Sink) for _ in range(size)]
        with Stopwatch() as stopping:
            for actor in actors:
                system.tell(actor, ActorExitRequest())
    return starting.each(size, "spawn ") | stopping.each(size, "stop ")


def _crowd(size: int) -> Figures:
    with _system() as system:
        gc.collect()
        before = resident()
        actors = [system.createActor(Sink) for _ in range(size)]
        with Stopwatch() as collecting:
            gc.collect()
        used = resident() - before
        with Stopwatch() as stopping:
            for actor in actors:
                system.tell(actor, ActorExitRequest())
    return {"KiB": used / size, "collect": collecting.cpu * 1e3} | stopping.each(size, "stop ")


class Waiting(Actor):
    """Asks to be woken up later; it cannot take that back."""

    def receiveMessage(self, message: Any, sender: Any) -> None:  # noqa: N802
        if type(message) is list:
            with Stopwatch() as arming:
                for delay in message:
                    self.wakeupAfter(timedelta(seconds=delay))
            self.send(sender, arming.each(len(message), "arm "))


def _timers(size: int) -> Figures:
    size = max(1, size // 100)
    with _system() as system:
        figures: Figures = system.ask(system.createActor(Waiting), delays(size))
    return figures


APART: dict[str, Variant] = {"thespian": _crowd}

ADDS: dict[str, dict[str, Variant]] = {
    "tell, 1 to 1": {"thespian": partial(_tell, 1)},
    "tell, 100 to 100": {"thespian": partial(_tell, 100)},
    "call, 1 pair": {"thespian": _call},
    "spawn and stop": {"thespian": _live},
    "crowd of 10,000": {"thespian": apart(__name__, "thespian")},
    "crowd of 100,000": {"thespian": apart(__name__, "thespian")},
    "timers": {"thespian": _timers},
    "publish to 10,000 subscribers": {"thespian": _publish},
}
