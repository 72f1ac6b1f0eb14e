"""Starting and stopping: from spawn to asleep in the mailbox, and an orderly end."""

from typing import Any

import pykka
import trio

from ergo_py import PID, Actor, open_node

from ..clocks import Stopwatch
from ..floor import FloorActor
from ..harness import Case, Figures, Goal, Line, on_loop

_TOGETHER = 64
"""How many are started without a turn of the scheduler in between."""


class Idle(Actor):
    """Plain callbacks only."""

    def handle_message(self, message: object, sender: PID) -> None:
        """Nothing comes."""


class AsyncIdle(Actor):
    """A callback that could wait, and so a cancel scope to end it by."""

    async def handle_message(self, message: object, sender: PID) -> None:
        """Nothing comes."""


async def settle() -> None:
    """Let the started processes come to rest, without the pause that wait_all_tasks_blocked
    makes.
    """
    for _ in range(3):
        await trio.lowlevel.checkpoint()


def _figures(starting: Stopwatch, stopping: Stopwatch, size: int) -> Figures:
    spawn, stop = starting.each(size, "spawn "), stopping.each(size, "stop ")
    return spawn | stop | {"life cpu": spawn["spawn cpu"] + stop["stop cpu"]}


async def _ergo(behaviour: type[Idle | AsyncIdle], size: int) -> Figures:
    starting, stopping = Stopwatch(), Stopwatch()
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        with starting:
            for _ in range(size):
                await node.spawn(behaviour)
            await settle()
        stopping.start()
    stopping.stop()
    return _figures(starting, stopping, size)


async def _floor(size: int) -> Figures:
    async with trio.open_nursery() as nursery:
        actors: list[FloorActor] = []
        with Stopwatch() as starting:
            for number in range(size):
                actor = FloorActor(bool)
                actors.append(actor)
                nursery.start_soon(actor.run)
                if not number % _TOGETHER:
                    await trio.lowlevel.checkpoint()
            await settle()
        stopping = Stopwatch()
        stopping.start()
        for actor in reversed(actors):
            actor.put(True)
            await trio.lowlevel.checkpoint()
    stopping.stop()
    return _figures(starting, stopping, size)


async def _task(size: int) -> Figures:
    async with trio.open_nursery() as nursery:
        with Stopwatch() as starting:
            for number in range(size):
                nursery.start_soon(trio.sleep_forever)
                if not number % _TOGETHER:
                    await trio.lowlevel.checkpoint()
            await settle()
        stopping = Stopwatch()
        stopping.start()
        nursery.cancel_scope.cancel()
    stopping.stop()
    return _figures(starting, stopping, size)


class PykkaIdle(pykka.ThreadingActor):
    def on_receive(self, message: Any) -> Any:
        """Nothing comes."""


def _pykka(size: int) -> Figures:
    size = max(1, size // 20)
    with Stopwatch() as starting:
        for _ in range(size):
            PykkaIdle.start()
    with Stopwatch() as stopping:
        pykka.ActorRegistry.stop_all()
    return _figures(starting, stopping, size)


CASES = [
    Case(
        name="spawn and stop",
        about="each process; trio: start_soon(sleep_forever), and cancelling it",
        unit="µs",
        size=4_000,
        least=4,
        variants={
            "ergo plain": on_loop(_ergo, Idle),
            "ergo async": on_loop(_ergo, AsyncIdle),
            "floor": on_loop(_floor),
            "trio": on_loop(_task),
            "pykka": _pykka,
        },
        lines=[
            Line(
                "spawn and stop, plain callbacks",
                "ergo plain",
                figure="life cpu",
                goals=(Goal("speed", 1.3, "floor"),),
            ),
            Line(
                "spawn, plain callbacks",
                "ergo plain",
                figure="spawn cpu",
                goals=(Goal("reach", 2.0, "trio"), Goal("G8", 1.5, "trio", is_dream=True)),
            ),
            Line(
                "spawn, async callbacks",
                "ergo async",
                figure="spawn cpu",
                goals=(Goal("reach", 3.0, "trio"), Goal("G8", 2.4, "trio", is_dream=True)),
            ),
            Line(
                "stop, plain callbacks", "ergo plain", figure="stop cpu", goals=(Goal("G10", 20.0),)
            ),
            Line(
                "stop, async callbacks", "ergo async", figure="stop cpu", goals=(Goal("G10", 20.0),)
            ),
        ],
    )
]
