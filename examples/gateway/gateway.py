"""A telemetry gateway: readings come in over UDP and TCP, a program decodes them, and SQLite keeps
them.

    udp ─┐                                     collect frames while earlier frames are processed,
         ├─> decoder ─> (a thread, a program)  decode them,
    tcp ─┘─> store ───> (a thread, SQLite)     store them, and only then acknowledge them

Every part may fail alone. Its supervisor restarts it, and the caller that waited for an answer asks
the new process. That may store a reading twice, so the database keeps a single copy.
"""

import json
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen

from ergo_py import Actor, Backoff, Caller, ChildSpec, Request, Supervisor, SupervisorSpec, meta
from ergo_py.meta import TCP, UDP, Apply, BlockingCalls
from ergo_py.pipelines import Batch

__all__ = ["FRAMES", "Gateway", "Where", "connect"]

FRAMES = meta.LengthHeader(2, max_frame=1024)
"""The framing of the TCP clients' streams, and of the stream to the decoder."""
SOME = 40
"""The answers to so many frames fit into a pipe of 4 KiB, the smallest: if the decoder had to wait
for a reader of its answers, it would read no further frames, and both programs would wait.
"""
AT_ONCE = Batch(10_000)
"""An intake and a session store the frames that have come while they stored those before."""
Reading = tuple[int, int, str, float]
"""Source, number, quantity, value."""


class Library(Actor):
    """A blocking library in a thread. A call that fails or takes too long ends this process, and
    the caller asks its successor, after a pause.
    """

    patience: float

    def calls(self) -> BlockingCalls:
        raise NotImplementedError

    async def init(self) -> None:
        self.thread = await self.spawn_meta(self.calls(), stop_timeout=self.patience, needed=True)

    async def handle_call(self, request: Apply[object], caller: Caller) -> object:
        return await self.call(self.thread, request, timeout=self.patience)


class Store(Library):
    def __init__(self, path: Path, patience: float) -> None:
        self.path, self.patience = path, patience

    def calls(self) -> BlockingCalls:
        interrupt = sqlite3.Connection.interrupt
        return BlockingCalls(factory=partial(connect, self.path), interrupt=interrupt)


def connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    database.execute("pragma journal_mode = wal")
    database.execute(
        "create table if not exists reading (source integer, number integer, quantity text not "
        "null, value real not null, primary key (source, number)) without rowid"
    )
    return database


def insert(database: sqlite3.Connection, readings: Sequence[Reading]) -> None:
    """Insert all readings or none. Those that were stored before a crash are there already."""
    with database:
        database.executemany("insert or ignore into reading values (?, ?, ?, ?)", readings)


class Decoder(Library):
    def __init__(self, patience: float) -> None:
        self.patience = patience

    def calls(self) -> BlockingCalls:
        return BlockingCalls(factory=self.begin, interrupt=Popen.kill, close=end)

    def begin(self) -> Popen[bytes]:
        command = (sys.executable, "-I", Path(__file__).with_name("decode.py"))
        self.program = Popen(command, stdin=PIPE, stdout=PIPE)
        return self.program

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"program": str(self.program.pid)}


def end(program: Popen[bytes]) -> None:
    with suppress(BrokenPipeError), program:  # it may hold frames that were not written
        program.kill()


def decode(program: Popen[bytes], frames: Sequence[bytes]) -> list[Reading]:
    """The readings of the frames that are not damaged."""
    lines: list[bytes] = []
    assert program.stdin is not None and program.stdout is not None  # noqa: PT018
    for start in range(0, len(frames), SOME):
        some = frames[start : start + SOME]
        program.stdin.write(b"".join(map(FRAMES.encode, some)))
        program.stdin.flush()
        lines += [program.stdout.readline() for _ in some]
    if not all(lines):
        raise EOFError("the decoder has ended")
    return [tuple(fields) for line in lines if (fields := json.loads(line))]


async def store(intake: Actor, frames: Sequence[bytes]) -> int:
    """Decode frames and store their readings, with retries while parts restart: both calls are
    idempotent. Returns the number of readings.
    """
    # With a time limit: the end of the connection cancels a session's call that has none.
    readings = await intake.service("decoder").call(Apply(decode, frames), timeout=300, retry=True)
    await intake.service("store").call(Apply(insert, readings), timeout=300, retry=True)
    return len(readings)


class Where(Request[meta.Endpoint]):
    """The endpoint at which an intake listens."""


class Intake(Actor):
    """Owns a server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.local: meta.Endpoint

    def handle_call(self, request: Where, caller: Caller) -> meta.Endpoint:
        return self.local


class UDPIntake(Intake):
    """Takes datagrams, a frame in each. The senders get no answer."""

    batch = AT_ONCE
    stored = damaged = 0

    async def init(self) -> None:
        # While the store is away, datagrams wait in this mailbox, and further datagrams in the
        # operating system, as long as it has room.
        server = meta.UDPServer("127.0.0.1", self.port, reader="task", receive_buffer=1 << 20)
        await self.spawn_meta(server, backlog=20_000, needed=True)
        self.local = server.local

    async def handle_batch(self, messages: Sequence[object]) -> None:
        if frames := [message.data for message in messages if isinstance(message, UDP.Data)]:
            # A datagram may be longer than any frame. The decoder could not take it.
            whole = [frame for frame in frames if len(frame) <= FRAMES.max_frame]
            stored = await store(self, whole)
            self.stored += stored
            self.damaged += len(frames) - stored

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"stored": str(self.stored), "damaged": str(self.damaged)}


class TCPIntake(Intake):
    """Takes connections, and has a session for each."""

    async def init(self) -> None:
        server = meta.TCPServer("127.0.0.1", self.port, receiver=Session, framing=FRAMES)
        await self.spawn_meta(server, needed=True)
        self.local = server.local


class Session(Actor):
    """Serves a client: acknowledges frames by the number of those that are stored."""

    batch = AT_ONCE
    acknowledged = 0

    async def handle_batch(self, messages: Sequence[object]) -> None:
        if frames := [message.data for message in messages if isinstance(message, TCP.Data)]:
            await store(self, frames)
            self.acknowledged += len(frames)
            if not isinstance(messages[-1], TCP.Disconnected):
                self.send(self.connection, TCP.Send(self.acknowledged.to_bytes(4, "big")))

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"acknowledged": str(self.acknowledged)}


class Gateway(Supervisor):
    """Starts the back end before the front end. Each part restarts alone, soon at first and then
    every second.
    """

    def __init__(self, path: Path, tcp: int = 0, udp: int = 0, patience: float = 5.0) -> None:
        again = Backoff(0.05, 1.0, jitter=0.2)
        parts = [
            ChildSpec("store", Store, path, patience, backoff=again),
            ChildSpec("decoder", Decoder, patience, backoff=again),
            ChildSpec("udp", UDPIntake, udp, backoff=again),
            ChildSpec("tcp", TCPIntake, tcp, backoff=again),
        ]
        # All four failing once a second is a problem from outside, which passes. More than that is
        # a fault of the gateway.
        super().__init__(SupervisorSpec(parts, intensity=60, period=10.0))
