"""A telemetry gateway: readings come in over UDP and TCP, a program decodes them, and SQLite keeps
them.

    udp ─┐                                     collect frames while earlier frames are processed,
         ├─> decoder ─> (a program)            decode them,
    tcp ─┘─> store ───> (a thread, SQLite)     store them, and only then acknowledge them

Every part may fail alone. The supervisor restarts it, and the caller that waited for its answer
asks the new process. That may store a reading twice, so the database identifies each reading by
source and number, and keeps a single copy.
"""

import json
import sqlite3
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ergo_py import (
    NO_REPLY,
    PID,
    Actor,
    Alias,
    Backoff,
    Caller,
    ChildSpec,
    Reason,
    Reject,
    Request,
    Supervisor,
    SupervisorSpec,
)
from ergo_py.meta import (
    TCP,
    UDP,
    Apply,
    BlockingCalls,
    Endpoint,
    LengthHeader,
    Port,
    TCPServer,
    UDPServer,
)
from ergo_py.pipelines import Batch

__all__ = [
    "Decode",
    "Decoder",
    "Gateway",
    "Reading",
    "Save",
    "Store",
    "TCPIntake",
    "UDPIntake",
    "Where",
]

Reading = tuple[int, int, str, float]
"""Source, number, quantity, value."""

FRAMES = LengthHeader(2, max_frame=1024)
"""The framing of the TCP clients' streams, and of the stream to the decoder."""


@dataclass(frozen=True, slots=True)
class Decode(Request[list[Reading | None]]):
    """Decode these frames; None stands for a damaged frame."""

    frames: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Save(Request[None]):
    """Store these readings. The answer comes when they are on the disk."""

    readings: Sequence[Reading]


@dataclass(frozen=True, slots=True)
class Where(Request[Endpoint]):
    """The endpoint at which an intake listens."""


# -- what is behind --------------------------------------------------------------------------------


def connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    database.execute("pragma journal_mode = wal")
    database.execute(
        "create table if not exists reading (source integer, number integer, quantity text not "
        "null, value real not null,"
        " primary key (source, number)) without rowid"
    )
    return database


def insert(database: sqlite3.Connection, readings: Sequence[Reading]) -> int:
    """Insert all readings or none. A reading that is there already was stored before a crash, and
    is not stored again.
    """
    with database:
        return database.executemany(
            "insert or ignore into reading values (?, ?, ?, ?)", readings
        ).rowcount


class Part(Actor):
    """A process that cannot work without its meta-process: it ends with it, and the supervisor
    restarts both.
    """

    needed: Alias

    def handle_child_exit(self, child: PID | Alias, reason: Reason) -> None:
        if child == self.needed:
            self.stop(reason)


class Store(Part):
    """Keeps readings in SQLite, which blocks and so runs in a thread of its own."""

    def __init__(self, path: Path, patience: float) -> None:
        self.path = path
        self.patience = patience
        self.stored = 0

    async def init(self) -> None:
        calls = BlockingCalls(
            factory=partial(connect, self.path), interrupt=sqlite3.Connection.interrupt
        )
        self.needed = await self.spawn_meta(calls, stop_timeout=self.patience)

    async def handle_call(self, request: object, caller: Caller) -> None:
        match request:
            case Save(readings):
                # A full or unresponsive disk is an exception here. It ends this process, and the
                # caller asks the next process, after a pause.
                self.stored += await self.call(
                    self.needed, Apply(insert, readings), timeout=self.patience
                )
            case _:
                raise Reject(LookupError(f"the store cannot do {request!r}"))

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"file": str(self.path), "stored": str(self.stored)}


@dataclass(frozen=True, slots=True)
class Overdue:
    """The decoder's message to itself: the answer to this request is late."""

    caller: Caller


class Decoder(Part):
    """Lets a program decode frames. The program answers in the order of the requests."""

    def __init__(self, command: Sequence[str], patience: float) -> None:
        self.command = command
        self.patience = patience
        self.asked: deque[tuple[Caller, int]] = deque()
        self.lines: list[Reading | None] = []
        self.program = 0

    async def init(self) -> None:
        self.needed = await self.spawn_meta(Port(self.command, stdin=FRAMES, check=True))

    def handle_call(self, request: object, caller: Caller) -> object:
        match request:
            case Decode(frames):
                for frame in frames:
                    self.send(self.needed, Port.Write(frame))
                self.asked.append((caller, len(frames)))
                self.send_after(self.patience, self.pid, Overdue(caller))
                return NO_REPLY
        raise Reject(LookupError(f"the decoder cannot do {request!r}"))

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case Port.Line(_, line):
                fields = json.loads(line)
                self.lines.append(None if fields is None else tuple(fields))
                caller, wanted = self.asked[0]
                if len(self.lines) == wanted:
                    self.asked.popleft()
                    self.reply(caller, self.lines)
                    self.lines = []
            case Port.Started(_, program):
                self.program = program
            case Overdue(caller) if any(caller is waiting for waiting, _ in self.asked):
                raise TimeoutError(f"the program has not answered for {self.patience} s")

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"program": str(self.program), "waiting": str(len(self.asked))}


# -- what is in front ------------------------------------------------------------------------------

LONG = 300.0
"""Seconds that frames are kept for a decoder or a store that does not come back."""

AT_ONCE = Batch(10_000)
"""An intake and a session process the frames that have come while they processed those before."""


@dataclass(frozen=True, slots=True)
class Done:
    """The number of frames that were processed."""

    stored: int
    damaged: int


async def process(intake: Actor, frames: Sequence[bytes]) -> Done:
    """Decode and store, with retries while parts restart. Both requests are idempotent, so they may
    be repeated.

    With a time limit: the end of the connection cancels a session's call that has none.
    """
    answers = await intake.service("decoder").call(Decode(frames), timeout=LONG, retry=True)
    readings = [reading for reading in answers if reading is not None]
    await intake.service("store").call(Save(readings), timeout=LONG, retry=True)
    return Done(len(readings), len(frames) - len(readings))


class Intake(Part):
    """Owns a server, and counts the results of its frames."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.stored = self.damaged = 0
        self.local: Endpoint

    def count(self, done: Done) -> None:
        self.stored += done.stored
        self.damaged += done.damaged

    def handle_call(self, request: object, caller: Caller) -> Endpoint:
        match request:
            case Where():
                return self.local
        raise Reject(LookupError(f"an intake cannot do {request!r}"))

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {
            "listens at": str(self.local),
            "stored": str(self.stored),
            "damaged": str(self.damaged),
        }


class UDPIntake(Intake):
    """Takes datagrams, a frame in each. The senders get no answer."""

    batch = AT_ONCE

    async def init(self) -> None:
        # While the store is away, datagrams wait in this mailbox, and further datagrams in the
        # operating system, as long as it has room.
        server = UDPServer("127.0.0.1", self.port, reader="task", receive_buffer=1 << 20)
        self.needed = await self.spawn_meta(server, backlog=20_000)
        self.local = server.local

    async def handle_batch(self, messages: Sequence[object]) -> None:
        frames = [message.data for message in messages if isinstance(message, UDP.Data)]
        if frames:
            self.count(await process(self, frames))


class TCPIntake(Intake):
    """Takes connections, and has a session for each."""

    async def init(self) -> None:
        server = TCPServer(
            "127.0.0.1", self.port, receiver=Session, framing=FRAMES, max_connections=1000
        )
        self.needed = await self.spawn_meta(server)
        self.local = server.local

    def handle_message(self, message: object, sender: PID | Alias) -> None:
        match message:
            case Done():
                self.count(message)


class Session(Actor):
    """Serves a client: it acknowledges frames by the number of frames of this connection that are
    processed.
    """

    batch = AT_ONCE
    acknowledged = 0

    async def handle_batch(self, messages: Sequence[object]) -> None:
        frames = [message.data for message in messages if isinstance(message, TCP.Data)]
        if not frames:
            return
        done = await process(self, frames)
        self.send(self.parent, done)
        self.acknowledged += done.stored + done.damaged
        if not isinstance(messages[-1], TCP.Disconnected):
            self.send(self.connection, TCP.Send(self.acknowledged.to_bytes(4, "big")))

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"acknowledged": str(self.acknowledged)}


# -- the whole -------------------------------------------------------------------------------------

DECODER = (sys.executable, "-I", str(Path(__file__).with_name("decode.py")))


class Gateway(Supervisor):
    """Starts the back end before the front end. Each part restarts alone, soon at first and then
    every second.
    """

    def __init__(self, path: Path, tcp: int = 0, udp: int = 0, patience: float = 5.0) -> None:
        again = Backoff(0.05, 1.0, jitter=0.2)
        super().__init__(
            SupervisorSpec(
                [
                    ChildSpec("store", Store, path, patience, backoff=again),
                    ChildSpec("decoder", Decoder, DECODER, patience, backoff=again),
                    ChildSpec("udp", UDPIntake, udp, backoff=again),
                    ChildSpec("tcp", TCPIntake, tcp, backoff=again),
                ],
                # All four failing once a second is a problem from outside, which passes. More than
                # that is a fault of the gateway.
                intensity=60,
                period=10.0,
            )
        )
