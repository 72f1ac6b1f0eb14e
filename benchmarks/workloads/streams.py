"""Replies in parts, beside a memory channel with the same bound between two tasks."""

from collections.abc import Iterator
from typing import Any

import trio

from ergo_py import Actor, Caller, open_node

from ..clocks import Stopwatch
from ..harness import Case, Figures, Goal, Line, on_loop

_CREDIT = 16


class Source(Actor):
    def handle_call(self, request: int, caller: Caller) -> Any:
        return self.stream(self.numbers(request), credit=_CREDIT)

    def numbers(self, count: int) -> Iterator[int]:
        yield from range(count)


async def _ergo(size: int) -> Figures:
    watch, total = Stopwatch(), 0
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        source = await node.spawn(Source)
        with watch:
            async for number in node.call_stream(source, size):
                total += number
    assert total == size * (size - 1) // 2
    return watch.each(size)


async def _channel(size: int) -> Figures:
    sender, receiver = trio.open_memory_channel[int](_CREDIT)

    async def produce() -> None:
        async with sender:
            for number in range(size):
                await sender.send(number)

    watch = Stopwatch()
    with watch:
        total = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce)
            async for number in receiver:
                total += number
    assert total == size * (size - 1) // 2
    return watch.each(size)


CASES = [
    Case(
        name="reply in parts",
        about="a part from producer to reader, 16 of credit; trio: a memory channel of that size",
        unit="µs",
        size=20_000,
        least=200,
        variants={"ergo": on_loop(_ergo), "trio": on_loop(_channel)},
        lines=[Line("reply in parts", "ergo", goals=(Goal("by hand", 1.5, "trio"),))],
        rounds=3,
    ),
]
