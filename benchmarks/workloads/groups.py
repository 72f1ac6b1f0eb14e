"""A group of ten thousand members: a broadcast, beside a send to each and a memory channel for
each; and joining and leaving.
"""

import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import PID, Actor, open_node

from ..clocks import Latch, Stopwatch
from ..harness import Case, Figures, Goal, Line, on_loop

ROUNDS = 5


class Member(Actor):
    """Counts its messages."""

    def __init__(self, latch: Latch) -> None:
        self.latch = latch
        self.left = ROUNDS

    def handle_message(self, message: object, sender: PID) -> None:
        self.left -= 1
        if not self.left:
            self.latch.report()


async def _ergo(way: str, size: int) -> Figures:
    latch, watch, joining = Latch(size), Stopwatch(), Stopwatch()
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        group = node.group("members")
        pids = [await node.spawn(Member, latch) for _ in range(size)]
        with joining:
            for pid in pids:
                group.join(pid)
        await wait_all_tasks_blocked()
        with watch:
            for _ in range(ROUNDS):
                if way == "broadcast":
                    group.broadcast("news")
                else:
                    for pid in pids:
                        node.send(pid, "news")
            await latch.wait()
    return watch.each(size * ROUNDS) | joining.each(size, "join ")


async def _channels(size: int) -> Figures:
    """A memory channel and a task for each, and a set of channels."""
    latch = Latch(size)

    async def member(receiver: trio.MemoryReceiveChannel[str]) -> None:
        for _ in range(ROUNDS):
            await receiver.receive()
        latch.report()

    async with trio.open_nursery() as nursery:
        pairs = [trio.open_memory_channel[str](ROUNDS) for _ in range(size)]
        for _, receiver in pairs:
            nursery.start_soon(member, receiver)
        members: dict[int, trio.MemorySendChannel[str]] = {}
        with Stopwatch() as joining:
            for number, (sender, _) in enumerate(pairs):
                members[number] = sender
        await wait_all_tasks_blocked()
        with Stopwatch() as watch:
            for _ in range(ROUNDS):
                for sender in members.values():
                    sender.send_nowait("news")
            await latch.wait()
    return watch.each(size * ROUNDS) | joining.each(size, "join ")


CASES = [
    Case(
        name="group of 10,000",
        about=(
            "each delivery of five broadcasts, and a member that joins; "
            "trio: a memory channel for each; send: a send to each"
        ),
        unit="µs",
        size=10_000,
        least=20,
        variants={
            "broadcast": on_loop(_ergo, "broadcast"),
            "send": on_loop(_ergo, "send"),
            "trio": on_loop(_channels),
        },
        lines=[
            Line(
                "broadcast",
                "broadcast",
                goals=(Goal("by hand", 1.2, "send"), Goal("reach", 1.0, "trio")),
            ),
            Line("join", "broadcast", figure="join cpu"),
        ],
        rounds=3,
    ),
]
