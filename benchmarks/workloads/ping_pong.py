"""Messages to and fro: each wakes a sleeping process."""

from functools import partial
from typing import Any

import pykka
import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import PID, Actor, open_node

from ..clocks import Latch, Stopwatch
from ..floor import FloorActor, step
from ..harness import Case, Figures, Goal, Line, Variant, on_loop


class Player(Actor):
    """Returns the ball until it has been played often enough."""

    def __init__(self, latch: Latch) -> None:
        self.latch = latch

    def handle_message(self, message: int, sender: PID) -> None:
        if message:
            self.send(sender, message - 1)
        else:
            self.latch.report()


class AsyncPlayer(Actor):
    """The same, with a callback that could wait."""

    def __init__(self, latch: Latch) -> None:
        self.latch = latch

    async def handle_message(self, message: int, sender: PID) -> None:
        if message:
            self.send(sender, message - 1)
        else:
            self.latch.report()


class Umpire(Actor):
    """Throws the first ball of each couple, as if its partner had played it."""

    def __init__(self, couples: list[tuple[PID, PID]], count: int) -> None:
        self.couples = couples
        self.count = count

    def handle_message(self, message: object, sender: PID) -> None:
        for first, second in self.couples:
            self.forward(first, self.count, second)


async def _ergo(player: type[Player | AsyncPlayer], pairs: int, size: int) -> Figures:
    count = max(1, size // pairs)
    latch = Latch(pairs)
    watch = Stopwatch()
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        couples = [
            (await node.spawn(player, latch), await node.spawn(player, latch)) for _ in range(pairs)
        ]
        umpire = await node.spawn(Umpire, couples, count)
        await wait_all_tasks_blocked()
        with watch:
            node.send(umpire, "go")
            await latch.wait()
    return watch.each((count + 1) * pairs)


async def _floor(pairs: int, size: int) -> Figures:
    count = max(1, size // pairs)
    latch = Latch(pairs)

    def handle(message: tuple[int, FloorActor, FloorActor]) -> None:
        left, me, other = message
        if left:
            other.put((left - 1, other, me))
        else:
            latch.report()

    async with trio.open_nursery() as nursery:
        couples = [(FloorActor(handle), FloorActor(handle)) for _ in range(pairs)]
        for first, second in couples:
            nursery.start_soon(first.run)
            nursery.start_soon(second.run)
        await wait_all_tasks_blocked()
        with Stopwatch() as watch:
            for first, second in couples:
                first.put((count, first, second))
            await latch.wait()
        nursery.cancel_scope.cancel()
    return watch.each((count + 1) * pairs)


async def _channel(pairs: int, size: int) -> Figures:
    count = max(1, size // pairs)
    latch = Latch(pairs)

    async def player(
        mine: trio.MemoryReceiveChannel[int], others: trio.MemorySendChannel[int]
    ) -> None:
        async for left in mine:
            if left:
                others.send_nowait(left - 1)
            else:
                latch.report()

    async with trio.open_nursery() as nursery:
        firsts: list[trio.MemorySendChannel[int]] = []
        for _ in range(pairs):
            to_first, first = trio.open_memory_channel[int](float("inf"))
            to_second, second = trio.open_memory_channel[int](float("inf"))
            nursery.start_soon(player, first, to_second)
            nursery.start_soon(player, second, to_first)
            firsts.append(to_first)
        await wait_all_tasks_blocked()
        with Stopwatch() as watch:
            for channel in firsts:
                channel.send_nowait(count)
            await latch.wait()
        nursery.cancel_scope.cancel()
    return watch.each((count + 1) * pairs)


class PykkaPlayer(pykka.ThreadingActor):
    def __init__(self, done: pykka.Future[None]) -> None:
        super().__init__()
        self.done = done

    def on_receive(self, message: Any) -> Any:
        left, other = message
        if left:
            other.tell((left - 1, self.actor_ref))
        else:
            self.done.set(None)


def _pykka(pairs: int, size: int) -> Figures:
    count = max(1, size // pairs // 5)
    futures = [pykka.ThreadingFuture[None]() for _ in range(pairs)]
    couples = [(PykkaPlayer.start(future), PykkaPlayer.start(future)) for future in futures]
    try:
        with Stopwatch() as watch:
            for first, second in couples:
                first.tell((count, second))
            for future in futures:
                future.get()
    finally:
        pykka.ActorRegistry.stop_all()
    return watch.each((count + 1) * pairs)


def _variants(pairs: int) -> dict[str, Variant]:
    return {
        "ergo plain": on_loop(_ergo, Player, pairs),
        "ergo async": on_loop(_ergo, AsyncPlayer, pairs),
        "floor": on_loop(_floor, pairs),
        "trio": on_loop(_channel, pairs),
        "pykka": partial(_pykka, pairs),
        "step": step,
    }


def _case(pairs: int, goal: Goal) -> Case:
    return Case(
        name=f"ping-pong, {pairs} {'pair' if pairs == 1 else 'pairs'}",
        about="each message; trio: memory channels",
        unit="µs",
        size=10_000,
        least=2 * pairs,
        variants=_variants(pairs),
        lines=[
            Line("plain handlers", "ergo plain", goals=(goal,)),
            Line("async handlers", "ergo async", goals=(goal,)),
        ],
    )


CASES = [_case(1, Goal("G3", 0.70, "trio")), _case(100, Goal("G4", 0.50, "trio"))]
