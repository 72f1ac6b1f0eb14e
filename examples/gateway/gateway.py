"""A telemetry gateway: readings come in over UDP and TCP, a program decodes them, and SQLite keeps
them.

    udp ─┐              ┌─> decoder ─> a device: the program
         ├─> readings ──┤
    tcp ─┘  (pipeline)  └─> a thread: SQLite

An intake calls the pipeline with its frames, and acknowledges them when it has the answer. Every
part may fail alone. Its supervisor restarts it, and its caller asks again. That may store a reading
twice, so the database keeps a single copy.
"""

import json
import sqlite3
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen
from typing import cast

from ergo_py import (
    Actor,
    Backoff,
    Caller,
    ChildSpec,
    Drain,
    Reject,
    Request,
    Supervisor,
    SupervisorSpec,
    meta,
)
from ergo_py.devices import Device
from ergo_py.meta import TCP, UDP
from ergo_py.pipelines import Batch, Pipeline, Retry, ToActor, ToDatabase

__all__ = ["FRAMES", "Gateway", "Program", "Where", "connect"]

FRAMES = meta.LengthHeader(2, max_frame=1024)
"""The framing of the TCP clients' streams."""
AT_ONCE = Batch(10_000)
"""An intake and a session store the frames that have come while they stored those before."""
AGAIN = Backoff(0.05, 1.0, jitter=0.2)


class Program(Device):
    """The program that decodes, as a device: it answers frames with their readings."""

    lost_by = (OSError, EOFError)

    def open(self) -> None:
        command = (sys.executable, "-I", Path(__file__).with_name("decode.py"))
        self.program = self.opened(Popen(command, stdin=PIPE, stdout=PIPE))

    def write(self, data: object) -> object:
        frames = [frame.hex() for frame in cast(Sequence[bytes], data)]
        assert self.program.stdin is not None and self.program.stdout is not None  # noqa: PT018
        self.program.stdin.write(json.dumps(frames).encode() + b"\n")
        self.program.stdin.flush()
        if not (answer := self.program.stdout.readline()):
            raise EOFError("the program has ended")
        return [tuple(fields) for fields in json.loads(answer) if fields]


class Decoder(Actor):
    """Owns the program, which is started again whenever it ends or takes too long."""

    def __init__(self, patience: float) -> None:
        self.patience = patience

    async def init(self) -> None:
        program = Program(stuck_after=self.patience, reopen=AGAIN)
        self.program = await self.spawn_meta(program, needed=True)

    async def handle_call(self, request: Sequence[bytes], caller: Caller) -> object:
        try:
            return await self.call(self.program, Device.Send(request), timeout=None)
        except Device.ClosedError as error:
            raise Reject(error) from None  # the pipeline asks again

    def handle_message(self, message: Device.Opened | Device.Lost, sender: object) -> None:
        if isinstance(message, Device.Lost):
            self.log.warning("the program is lost", why=message.why)


def connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=0.5)  # of a lock; then the pipeline tries again
    database.execute("pragma journal_mode = wal")
    database.execute(
        "create table if not exists reading (source integer, number integer, quantity text not "
        "null, value real not null, primary key (source, number)) without rowid"
    )
    return database


class Where(Request[meta.Endpoint]):
    """The endpoint at which an intake listens."""


class Intake(Actor):
    """Owns a server."""

    def __init__(self, make: Callable[[], meta.TCPServer | meta.UDPServer]) -> None:
        self.make = make

    async def init(self) -> None:
        # While the store is away, datagrams wait in this mailbox, and further datagrams in the
        # operating system, as long as it has room.
        self.server = self.make()
        await self.spawn_meta(self.server, backlog=20_000, needed=True)

    def handle_call(self, request: Where, caller: Caller) -> meta.Endpoint:
        return self.server.local


async def store(intake: Actor, frames: Sequence[bytes]) -> int:
    """Returns the number of readings. Asks again while parts restart."""
    # With a time limit: the end of the connection cancels a session's call that has none.
    return len(await intake.service("readings").call(frames, timeout=300, retry=True))


class Datagrams(Intake):
    """Takes datagrams, a frame in each. The senders get no answer."""

    batch = AT_ONCE
    stored = damaged = 0

    async def handle_batch(self, messages: Sequence[object]) -> None:
        frames = [message.data for message in messages if isinstance(message, UDP.Data)]
        # A datagram may be longer than any frame. The decoder could not take it.
        stored = await store(self, [data for data in frames if len(data) <= FRAMES.max_frame])
        self.stored += stored
        self.damaged += len(frames) - stored

    def handle_inspect(self, *items: str) -> dict[str, str]:
        return {"stored": str(self.stored), "damaged": str(self.damaged)}


class Session(Actor):
    """Serves a client of TCP: acknowledges frames by the number of those that are stored."""

    batch = AT_ONCE
    acknowledged = 0

    async def handle_batch(self, messages: Sequence[object]) -> None:
        if frames := [message.data for message in messages if isinstance(message, TCP.Data)]:
            await store(self, frames)
            self.acknowledged += len(frames)
            if not isinstance(messages[-1], TCP.Disconnected):
                self.send(self.connection, TCP.Send(self.acknowledged.to_bytes(4, "big")))


class Gateway(Supervisor):
    """Starts the back end before the front end. Each part restarts alone. The back end has its own
    supervisor, which restarts its parts also while the front end stops, and waits for them.
    """

    def __init__(self, path: Path, tcp: int = 0, udp: int = 0, patience: float = 5.0) -> None:
        # Readings that were stored before a crash are there already.
        insert = "insert into reading values (?, ?, ?, ?) on conflict do nothing"
        readings = Pipeline.spec(
            ToActor("decoder", timeout=2 * patience),
            ToDatabase(partial(connect, path), insert, stuck_after=patience),
            retry=Retry(100_000, AGAIN),  # a full disk is full for a day, and nothing is lost
            on_stop=Drain(1.0),  # devices send again what they have no answer for
        )
        listen = partial(meta.TCPServer, "127.0.0.1", tcp, receiver=Session, framing=FRAMES)
        receive = partial(meta.UDPServer, "127.0.0.1", udp, reader="task", receive_buffer=1 << 20)
        # All parts failing once a second is a problem from outside, which passes. More than that is
        # a fault of the gateway.
        all_of = partial(SupervisorSpec, intensity=60, period=10.0)
        back = [
            ChildSpec("decoder", Decoder, patience, backoff=AGAIN),
            ChildSpec("readings", readings, backoff=AGAIN),
        ]
        front = [
            ChildSpec("udp", Datagrams, receive, backoff=AGAIN),
            ChildSpec("tcp", Intake, listen, backoff=AGAIN),
        ]
        super().__init__(all_of([ChildSpec("back", Supervisor, all_of(back)), *front]))
