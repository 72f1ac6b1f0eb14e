"""Worlds of networks: messages between two nodes, and processes that watch and call each other."""

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import trio

from ergo_py import (
    PID,
    Actor,
    Caller,
    ChildSpec,
    Down,
    ErgoError,
    Name,
    Node,
    NodeName,
    NoNode,
    Normal,
)
from ergo_py.testing import World, all_answered
from ergo_py.testing.world.history import History
from ergo_py.testing.world.node import WorldNode

__all__ = ["messages", "watches"]

PADDING = "x" * 2000


# -- messages --------------------------------------------------------------------------------------


class Sink(Actor):
    """Notes all that it gets."""

    def __init__(self, got: list[tuple[int, int]]) -> None:
        self.got = got

    def handle_message(self, message: Any, sender: Any) -> None:
        """Note a number."""
        session, number, _ = message
        self.got.append((session, number))


class Source(Actor):
    """Sends numbers to the sink, and begins again at zero when its node is lost."""

    def __init__(self, sent: list[int]) -> None:
        self.sent = sent

    def init(self) -> None:
        """Watch the node of the sink."""
        self.monitor(NodeName("b@world"))

    def handle_message(self, message: Any, sender: Any) -> None:
        """Send so many numbers."""
        if isinstance(message, Down):
            self.sent.append(0)
            self.monitor(NodeName("b@world"))
            return
        for _ in range(message):
            self.send(Name("sink", "b@world"), (len(self.sent), self.sent[-1], PADDING))
            self.sent[-1] += 1


async def messages(world: World) -> None:
    """D3, D4: a source on a node sends to a sink on another: each session delivers a prefix, in
    order and once, and after the faults nothing is missing.
    """
    got: list[tuple[int, int]] = []
    sent = [0]

    async def start(node: Node) -> None:
        if node.name == "b@world":
            await node.spawn(Sink, got, name="sink")
        else:
            await node.spawn(Source, sent, name="source")

    # In a small window operations wait for room, in a large one they fill several frames.
    window = world.random.choice((16, 64, 1024)) * 1024
    a, _ = await world.start(2, start, network={"window": window})
    world.faults(
        seconds=20.0,
        cut=0.1,
        one_way=0.1,
        lose=0.1,
        double=0.1,
        delay=0.2,
        pause=0.05,
        # Longer than the patience, or than two sessions: frames of earlier sessions arrive.
        limits={"delay": (0.01, world.random.choice((8.0, 40.0)))},
    )
    for _ in range(20):
        a.node.send("source", world.random.choice((1, 3, 40)))
        await trio.sleep(world.random.uniform(0.0, 2.0))
    await world.heal()
    await trio.sleep(10)

    def in_order(history: History) -> Iterator[str]:
        for session in dict.fromkeys(session for session, _ in got):
            numbers = [number for each, number in got if each == session]
            if numbers != list(range(len(numbers))):
                yield f"session {session} delivers {numbers[:50]}"
        last = [number for session, number in got if session == len(sent)]
        if len(last) != sent[-1]:
            yield f"{len(last)} of {sent[-1]} messages have arrived, and no loss was told"

    world.check(in_order)


# -- watches ---------------------------------------------------------------------------------------

TARGETS = ("one", "two", "three")
LATEST = 15.0
"""Seconds after which the end of a process, or the loss of its node, must be told."""


class Diary:
    """The notes of a world of watches."""

    def __init__(self) -> None:
        self.watched: Counter[PID] = Counter()
        self.downs: Counter[PID] = Counter()
        self.sent: Counter[PID] = Counter()
        """How many messages each target has sent."""
        self.got: dict[PID, list[int]] = {}
        self.gone: set[PID] = set()
        """The targets whose ends were told."""
        self.complaints: list[str] = []


class Target(Actor):
    """Counts for its watcher, answers calls, and ends when it is told to."""

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def handle_call(self, request: Any, caller: Caller) -> Any:
        """Send back the request, or the process."""
        return self.pid if request == "pid" else request

    def handle_message(self, message: Any, sender: Any) -> None:
        """Send some numbers; with "end", end after them."""
        for _ in range(3):
            self.send(Name("watcher", "a@world"), (self.pid, self.diary.sent[self.pid]))
            self.diary.sent[self.pid] += 1
        if message == "end":
            self.stop()


class Watcher(Actor):
    """Watches targets of another node, and notes their messages and ends."""

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def handle_call(self, request: Any, caller: Caller) -> Any:
        """Watch a process once."""
        if not self.diary.watched[request]:
            self.diary.watched[request] += 1
            self.monitor(request)

    def handle_message(self, message: Any, sender: Any) -> None:
        """Note a number, or an end."""
        diary = self.diary
        match message:
            case Down(PID() as target, reason):
                diary.downs[target] += 1
                if isinstance(reason, NoNode):
                    return  # it may live, and be heard again
                if not isinstance(reason, Normal):
                    return  # the notice of another end does not wait behind messages
                diary.gone.add(target)
                got = diary.got.get(target, [-1])[-1] + 1
                # Its last messages were sent in the session that has told its end.
                if got != diary.sent[target]:
                    diary.complaints.append(
                        f"{target} is down after {got} of its {diary.sent[target]} messages"
                    )
            case (PID() as target, int() as number):
                if target in diary.gone:
                    diary.complaints.append(f"{target} sends {number} after its end")
                diary.got.setdefault(target, []).append(number)


async def watches(world: World) -> None:
    """D3, D5, D8, D9, D10: each watched end is told once, behind the last messages of the process;
    calls get their own answers.
    """
    diary = Diary()

    async def start(node: Node) -> None:
        if node.name == "b@world":
            children = [ChildSpec(name, Target, diary) for name in TARGETS]
            await node.supervise(children, intensity=1000)
        else:
            await node.spawn(Watcher, diary, name="watcher")

    a, b = await world.start(2, start)
    world.faults(
        seconds=20.0,
        cut=0.15,
        one_way=0.1,
        lose=0.1,
        double=0.1,
        delay=0.2,
        pause=0.05,
        kill=0.2,
        victims=TARGETS,
    )
    async with trio.open_nursery() as nursery:
        for number in range(2):
            nursery.start_soon(_use, world, a, diary, number)
    await world.heal()
    await trio.sleep(LATEST)
    for name in TARGETS:
        b.node.send(name, "end")
    await trio.sleep(LATEST)

    def told_once(history: History) -> Iterator[str]:
        yield from diary.complaints
        for life in history.lifetimes:
            if life.ended < history.now() and diary.watched.get(life.pid):
                times = diary.downs[life.pid]
                if times != 1:
                    yield f"the end of {life.pid} was told {times} times"
        for target, numbers in diary.got.items():
            if numbers != sorted(set(numbers)):
                yield f"{target} has sent {diary.sent[target]} numbers, which arrived as {numbers}"

    world.check(told_once, all_answered())


async def _use(world: World, client: WorldNode, diary: Diary, number: int) -> None:
    random = Random(repr((world.plan.seed, "client", number)))
    for step in range(10):
        await trio.sleep(random.choice((0.0, 0.1, 1.0, 3.0)))
        target = Name(random.choice(TARGETS), "b@world")
        action = random.choice(("watch", "watch", "call", "count", "end"))
        try:
            if action == "watch":
                pid = await client.call(target, "pid", timeout=2.0)
                await client.call("watcher", pid)
            elif action == "call":
                answer = await client.call(target, (number, step), timeout=2.0)
                if answer != (number, step):
                    diary.complaints.append(f"the answer to {number, step} is {answer}")
            else:
                client.node.send(target, action)
        except ErgoError:
            pass
