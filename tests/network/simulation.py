"""A seeded simulation of two nodes and a carrier that loses, doubles, reorders, cuts and freezes.

It checks the promises of a session at each step, and at the end, after a time without faults, that
everything queued has arrived.
"""

from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random

from ergo_py.network.protocol.frames import Ack, Bye, Data, Frame, Hello, encode_frame, read_frame
from ergo_py.network.protocol.session import Session, State, Timing

__all__ = ["Simulation"]

TIMING = Timing(beat=1.0, patience=5.0, repeat=0.2, ack_delay=0.05, window=400)


class Violation(AssertionError):
    """A promise does not hold."""


class SimulatedNode:
    """A node that starts again with a new creation, as often as the simulation kills it."""

    def __init__(self, world: "Simulation", name: int) -> None:
        self.world = world
        self.name = name
        self.frozen_until = 0.0
        self.delivered: list[tuple[int, int]] = []
        """The operations of the peer: the creation of its node, and their number."""
        self.creation = 0
        self.start()

    def start(self) -> None:
        """Start with a new creation. Nothing of an earlier start is left."""
        self.creation = next(self.world.creations)
        self.is_up = False
        self.ups = 0
        self.pushed = 0
        self.lost: set[int] = set()
        self.last: tuple[int, int, int] | None = None
        """The session, the creation and the number of the last operation that was delivered."""
        self.session = Session(
            self,
            self.creation,
            replace(TIMING, inflates=2000 if self.world.compresses[self.name] else 0),
            lambda: self.world.now,
            lambda: self.world.random.getrandbits(63) or 1,
        )

    def push(self) -> None:
        """Queue an operation that carries its creation and its number."""
        self.pushed += 1
        size = self.world.random.choice((0, 0, 50, 300, 1100))
        self.session.push(b"%d %d " % (self.creation, self.pushed) + b"x" * size)
        self.session.flush()

    # -- owner of the session ----------------------------------------------------------------------

    def transmit(self, frame: Frame) -> None:
        self.world.transmit(self.name, encode_frame(frame))

    def session_up(self, creation: int) -> None:
        if self.is_up:
            raise Violation("up twice")
        self.is_up = True
        self.ups += 1

    def deliver(self, op: bytes) -> None:
        if not self.is_up:
            raise Violation("an operation after the end of its session")
        creation, number, _ = op.split(b" ", 2)
        news = (self.ups, int(creation), int(number))
        if (
            self.last is not None
            and self.last[0] == news[0]
            and news[1:]
            != (
                self.last[1],
                self.last[2] + 1,
            )
        ):
            raise Violation(f"a hole, a double or a mixture in a session: {self.last}, {news}")
        if self.last is not None and self.last[1] == news[1] and news[2] <= self.last[2]:
            raise Violation(f"a double or a wrong order over sessions: {self.last}, {news}")
        self.last = news
        self.delivered.append(news[1:])
        self.world.deliveries += 1
        if self.world.random.random() < 0.2 and self.world.is_faulty:
            self.push()

    def session_down(self, why: str, is_orderly: bool, lost: list[bytes]) -> None:
        self.is_up = False
        self.world.downs += 1
        self.lost.update(int(op.split(b" ", 2)[1]) for op in lost)


class Simulation:
    """Two nodes, a carrier and faults; all from a seed."""

    def __init__(self, seed: int, seconds: float = 30.0) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.creations = count(1)
        self.deliveries = 0
        self.downs = 0
        self.is_faulty = True
        self.compresses = seed % 2 > 0, seed % 4 > 1
        """Which of the nodes asks for compressed frames: in a quarter of the seeds both."""
        self._order = count()
        self._events: list[tuple[float, int, int, bytes]] = []
        self._cut_until = 0.0
        self._loss = self.random.choice((0.0, 0.05, 0.3))
        self._double = self.random.choice((0.0, 0.1))
        self._reorder = self.random.choice((0.0, 0.0, 0.5, 4.0))
        self.nodes = [SimulatedNode(self, 0), SimulatedNode(self, 1)]
        self._until = seconds

    def transmit(self, sender: int, frame: bytes) -> None:
        """Carry a frame to the other node, or lose it."""
        if self.is_faulty and (self.now < self._cut_until or self.random.random() < self._loss):
            return
        copies = 2 if self.is_faulty and self.random.random() < self._double else 1
        for _ in range(copies):
            delay = 0.001 + (self.random.random() * self._reorder if self.is_faulty else 0.0)
            heappush(self._events, (self.now + delay, next(self._order), 1 - sender, frame))

    def run(self) -> None:
        """Run with faults, then without, and check the outcome."""
        self._run_until(self._until)
        self.is_faulty = False
        # Old frames are still on their way, and sessions may end because of the time before.
        self._run_until(self._until + 3 * TIMING.patience + 8)
        marks = [node.pushed for node in self.nodes]
        for node in self.nodes:
            node.lost.clear()
            node.push()
        self._run_until(self.now + 3 * TIMING.patience)
        for node, mark in zip(self.nodes, marks, strict=True):
            other = self.nodes[1 - node.name]
            if (node.creation, mark + 1) not in other.delivered:
                raise Violation(f"node {node.name}: an operation did not arrive without faults")
            if node.lost or node.session.queued or node.session.unacknowledged:
                raise Violation(f"node {node.name}: something is left without faults")
            if node.session.state is not State.UP:
                raise Violation(f"node {node.name}: the session is down without faults")

    def _run_until(self, end: float) -> None:
        while True:
            act_at = self.now + self.random.expovariate(4.0) if self.is_faulty else inf
            while (moment := self._next()) <= min(act_at, end):
                self.now = max(self.now, moment)
                self._serve()
            if act_at >= end:
                self.now = end
                return
            self.now = act_at
            self._act()

    def _next(self) -> float:
        timers = min(max(n.session.next_deadline(), n.frozen_until) for n in self.nodes)
        return min(timers, self._events[0][0] if self._events else inf)

    def _serve(self) -> None:
        while self._events and self._events[0][0] <= self.now:
            _, _, to, frame = heappop(self._events)
            node = self.nodes[to]
            if self.now < node.frozen_until:
                heappush(self._events, (node.frozen_until, next(self._order), to, frame))
                continue
            node.session.receive(read_frame(frame))
        for node in self.nodes:
            if self.now >= node.frozen_until and self.now >= node.session.next_deadline():
                node.session.tick()
                node.session.flush()

    def _act(self) -> None:
        node = self.random.choice(self.nodes)
        match self.random.choices(
            ("push", "cut", "freeze", "restart", "again", "gone", "garbage", "close"),
            (60, 2, 2, 2, 4, 1, 3, 1),
        )[0]:
            case "push":
                if self.now >= node.frozen_until:
                    for _ in range(self.random.choice((1, 1, 5))):
                        node.push()
            case "cut":
                self._cut_until = self.now + self.random.choice((0.5, 3.0, 8.0))
            case "freeze":
                node.frozen_until = self.now + self.random.choice((0.5, 4.0, 9.0))
            case "restart":
                node.start()
            case "again":
                for each in self.nodes:
                    each.session.say_again()
            case "gone":
                node.session.fail("the carrier says so")
            case "close":
                node.session.close("asked to", True)
            case "garbage":
                self.transmit(node.name, encode_frame(self._garbage()))

    def _garbage(self) -> Frame:
        number = self.random.getrandbits
        return self.random.choice(
            (
                Hello(1, number(8), number(63), 0, 400),
                Hello(1, number(8), number(63), number(63), 400),
                Hello(9, number(8), number(63), 0, 400),
                Data(number(63), number(63), number(4), number(4), [b"0 0 "]),
                Ack(number(63), number(63), number(4), number(4), True),
                Bye(number(63), number(63), "garbage"),
            )
        )
