"""``python -m benchmarks.sizing``: a network of 1,000 nodes, simulated in virtual time.

The sessions are those of the package; carrier and server are a model: a frame takes a millisecond.
Sessions do not depend on each other, so a node with sessions to all 999 others is simulated whole,
and its figures count for each of the 1,000.
The figures are frames, bytes, the time until the loss of a node is told, and the bytes that wait
for a node which others flood.
"""

import argparse
import sys
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random
from statistics import median

from ergo_py import PID
from ergo_py.network.messages.message_types import MessageTypes
from ergo_py.network.network import share_of_window
from ergo_py.network.protocol.frames import Frame, encode_frame, read_frame
from ergo_py.network.protocol.operations import (
    Route,
    Send,
    encode_operation,
    encode_route,
    place_of,
    sender_place,
)
from ergo_py.network.protocol.session import Session, State, Timing

__all__ = ["Figures", "main", "simulate"]

LATENCY = 0.001
"""Seconds that a frame takes from a node to another."""
GRACE = 1.0
"""Seconds that a node may take to connect to the server again, on top of patience and beat."""
SUBJECT = 60
"""Bytes around a frame: the subjects and sizes of NATS, TCP and IP not counted."""


@dataclass(frozen=True)
class Figures:
    """The figures of a node with a number of sessions."""

    nodes: int
    sessions: int
    frames: float
    """Frames that a node sends each second, at rest."""
    size: float
    """Bytes of a frame at rest, with its subjects."""
    opening: int
    """Frames that a node sends until all its sessions are up."""
    group: int
    """Bytes with which a node learns the members of a group, one of each other node."""
    told: tuple[float, float]
    """Seconds until the end of a node is told that is killed, cut off or stopped: the median and
    the longest.
    """
    window: int
    """The bytes that each other node may have on the way to this node."""
    flooded: int
    """The most bytes that wait at the server when all other nodes flood a node that does not
    read."""
    memory: int
    """Bytes of memory of a session."""


class End:
    """An end of a session."""

    def __init__(self, world: "World", timing: Timing) -> None:
        self.world = world
        self.other: End | None = None
        self.is_reading = True
        self.is_mute = False
        self.told_at = inf
        self.delivered = 0
        self.waiting = 0
        self.session = Session(
            self, 1, timing, lambda: world.now, lambda: world.random.getrandbits(63) | 1
        )

    def transmit(self, frame: Frame) -> None:
        """Send a frame to the other end."""
        if self.is_mute:
            return
        data = encode_frame(frame)
        self.world.frames += 1
        self.world.bytes += len(data) + SUBJECT
        assert self.other is not None
        self.world.later(LATENCY, self.other, data)

    def session_up(self, creation: int) -> None:
        """Note that the session is up."""

    def deliver(self, op: bytes) -> None:
        """Take an operation."""
        self.delivered += 1

    def session_down(self, why: str, is_orderly: bool, lost: list[bytes]) -> None:
        """Note when the loss is told."""
        self.told_at = min(self.told_at, self.world.now)


class World:
    """The sessions of a node with all others, and the time."""

    def __init__(self, sessions: int, timing: Timing, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.frames = 0
        self.bytes = 0
        self._order = count()
        self._events: list[tuple[float, int, End, bytes | None]] = []
        self.pairs: list[tuple[End, End]] = []
        for _ in range(sessions):
            here, there = End(self, timing), End(self, timing)
            here.other, there.other = there, here
            self.pairs.append((here, there))

    def later(self, delay: float, end: End, frame: bytes | None) -> None:
        """Deliver a frame, or wake a session, after some time."""
        heappush(self._events, (self.now + delay, next(self._order), end, frame))

    def arm(self, end: End) -> None:
        """Wake a session at its next deadline."""
        deadline = end.session.next_deadline()
        if deadline < inf:
            heappush(self._events, (max(deadline, self.now), next(self._order), end, None))

    def run(self, seconds: float) -> None:
        """Let the time pass."""
        until = self.now + seconds
        while self._events and self._events[0][0] <= until:
            self.now, _, end, frame = heappop(self._events)
            if frame is None:
                if end.session.next_deadline() <= self.now:
                    end.session.tick()
                    end.session.flush()
            elif not end.is_reading:
                end.waiting += len(frame) + SUBJECT
                continue
            else:
                end.session.receive(read_frame(frame))
                end.session.flush()
            self.arm(end)
        self.now = until

    def connect(self) -> None:
        """Bring all sessions up, at moments of the first second."""
        for here, _ in self.pairs:
            self.run(self.random.random() / len(self.pairs))
            here.session.connect()
            self.arm(here)
        self.run(2.0)
        assert all(end.session.state is State.UP for pair in self.pairs for end in pair)


def simulate(nodes: int, peers: int, timing: Timing, seed: int = 1) -> Figures:
    """The figures of a network of ``nodes``, each with sessions to ``peers`` others."""
    world = World(peers, timing, seed)
    world.connect()
    opening = world.frames // 2
    world.frames = world.bytes = 0
    seconds = 20.0
    world.run(seconds)
    frames, size = world.frames / 2 / seconds, world.bytes / max(1, world.frames)

    group = len(_joined()) + round(size)
    window = share_of_window(timing.window, peers)
    return Figures(
        nodes,
        peers,
        frames,
        size,
        opening,
        peers * group,
        _told(World(peers, timing, seed + 2)),
        window,
        _flooded(World(min(peers, 50), Timing(window=window), seed + 3), window, peers),
        _memory(timing),
    )


def _joined() -> bytes:
    """The message with which a keeper of groups tells a member of its node."""
    pid = PID("node-500@place", 1_763_000_000_000_000_000, 17)
    body = MessageTypes(()).encode(("joined", 5, "workers", [pid]))
    route = encode_route(Route(place_of(pid, MessageTypes(()).encode), sender_place(pid), 0))
    return encode_operation(Send(route, body))


def _told(world: World) -> tuple[float, float]:
    """How long it takes until all others are told of the end of a node."""
    world.connect()
    world.run(world.random.random())
    began = world.now
    for here, _ in world.pairs:
        here.is_reading = False
        here.is_mute = True
    world.run(30.0)
    times = sorted(there.told_at - began for _, there in world.pairs)
    return median(times), times[-1]


def _flooded(world: World, window: int, peers: int) -> int:
    """How many bytes wait at the server for a node that does not read, if all others flood it."""
    world.connect()
    for here, there in world.pairs:
        here.is_reading = False
        here.waiting = 0
        for _ in range(window // 1000 + 20):
            there.session.push(bytes(1000))
        there.session.flush()
        world.arm(there)
    world.run(4.0)
    return round(sum(here.waiting for here, _ in world.pairs) / len(world.pairs) * peers)


def _memory(timing: Timing) -> int:
    import tracemalloc  # noqa: PLC0415 - slows everything down while it runs

    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    world = World(100, timing, 1)
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return used // (2 * len(world.pairs))


def main(arguments: list[str] | None = None) -> int:
    """Print the figures as a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizing", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--beat", type=float, default=1.0)
    parser.add_argument("--patience", type=float, default=5.0)
    options = parser.parse_args(arguments)
    silence = options.patience + options.beat + GRACE
    timing = Timing(options.beat, silence, min(0.2, options.beat))
    full = options.nodes - 1
    columns = [
        simulate(nodes, min(peers, nodes - 1), timing)
        for nodes, peers in (
            (options.nodes // 10, full),
            (options.nodes, 20),
            (options.nodes, full),
        )
    ]
    for name, values in table(columns):
        sys.stdout.write("| " + " | ".join([name, *values]) + " |\n")
    return 0


def table(columns: list[Figures]) -> list[tuple[str, list[str]]]:
    """The figures, with a row for each kind."""
    return [
        ("nodes, and sessions of each", [f"{f.nodes:,}, {f.sessions:,}" for f in columns]),
        ("frames of a node at rest, each second", [f"{f.frames:,.0f}" for f in columns]),
        ("messages at the server, each second", [f"{f.nodes * f.frames:,.0f}" for f in columns]),
        (
            "traffic at the server, each way",
            [f"{f.nodes * f.frames * f.size / 1e6:,.1f} MB/s" for f in columns],
        ),
        ("frames of a node until all sessions are up", [f"{f.opening:,}" for f in columns]),
        (
            "bytes in which a node learns a group with a member on each",
            [f"{f.group:,}" for f in columns],
        ),
        (
            "a killed or silent node is told after (median, longest)",
            [f"{f.told[0]:.2f} s, {f.told[1]:.2f} s" for f in columns],
        ),
        ("window of each session", [f"{f.window // 1024:,} KiB" for f in columns]),
        (
            "bytes that wait for a node that does not read, if all flood it",
            [f"{f.flooded / 2**20:,.1f} MiB" for f in columns],
        ),
        (
            "memory of the sessions of a node",
            [f"{f.memory * f.sessions / 2**20:,.1f} MiB" for f in columns],
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
