"""Publisher to many: an event, ten thousand subscribers; the same by hand, with a send to each."""

import trio
from trio.testing import wait_all_tasks_blocked

from ergo_py import PID, Actor, Published, open_node

from ..clocks import Latch, Stopwatch
from ..floor import step
from ..harness import Case, Figures, Goal, Line, on_loop

ROUNDS = 5


class Subscriber(Actor):
    """Counts its messages and events."""

    def __init__(self, latch: Latch, subscribes: bool) -> None:
        self.latch = latch
        self.subscribes = subscribes
        self.left = ROUNDS

    def init(self) -> None:
        if self.subscribes:
            self.subscribe("prices")

    def handle_event(self, event: Published) -> None:
        self._count()

    def handle_message(self, message: object, sender: PID) -> None:
        self._count()

    def _count(self) -> None:
        self.left -= 1
        if not self.left:
            self.latch.report()


class Producer(Actor):
    """Publishes, or sends to each, when told to."""

    def __init__(self, subscribers: list[PID]) -> None:
        self.subscribers = subscribers

    def init(self) -> None:
        self.register_event("prices")

    def handle_message(self, message: str, sender: PID) -> None:
        for _ in range(ROUNDS):
            if message == "publish":
                self.publish("prices", message)
            else:
                for pid in self.subscribers:
                    self.send(pid, message)


async def _ergo(way: str, size: int) -> Figures:
    latch = Latch(size)
    watch = Stopwatch()
    subscribers: list[PID] = []
    async with open_node("bench@localhost", watchdog=None, log_output="none") as node:
        producer = await node.spawn(Producer, subscribers)
        subscribers.extend(
            [await node.spawn(Subscriber, latch, way == "publish") for _ in range(size)]
        )
        await wait_all_tasks_blocked()
        with watch:
            node.send(producer, way)
            await latch.wait()
    return watch.each(size * ROUNDS)


async def _channels(size: int) -> Figures:
    """A memory channel and a task for each."""
    latch = Latch(size)

    async def subscriber(receiver: trio.MemoryReceiveChannel[str]) -> None:
        for _ in range(ROUNDS):
            await receiver.receive()
        latch.report()

    async with trio.open_nursery() as nursery:
        senders: list[trio.MemorySendChannel[str]] = []
        for _ in range(size):
            sender, receiver = trio.open_memory_channel[str](ROUNDS)
            senders.append(sender)
            nursery.start_soon(subscriber, receiver)
        await wait_all_tasks_blocked()
        with Stopwatch() as watch:
            for _ in range(ROUNDS):
                for sender in senders:
                    sender.send_nowait("publish")
            await latch.wait()
    return watch.each(size * ROUNDS)


CASES = [
    Case(
        name="publish to 10,000 subscribers",
        about=(
            "each delivery of five publications; "
            "trio: a memory channel for each; send: a send to each"
        ),
        unit="µs",
        size=10_000,
        least=20,
        variants={
            "publish": on_loop(_ergo, "publish"),
            "send": on_loop(_ergo, "send"),
            "trio": on_loop(_channels),
            "step": step,
        },
        lines=[
            Line(
                "publish",
                "publish",
                goals=(Goal("by hand", 2.0, "send"), Goal("reach", 1.0, "trio")),
            )
        ],
        rounds=3,
    ),
]
