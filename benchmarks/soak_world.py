"""The inhabitants of the soak: a process of every kind, an owner of every meta-process, and the
books that must balance.
"""

import os
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from ergo_py import (
    NO_REPLY,
    Actor,
    Application,
    Backoff,
    Caller,
    ChildSpec,
    Divert,
    Diverted,
    Needs,
    Node,
    Overflow,
    Pool,
    PoolSpec,
    Published,
    Reason,
    StateMachine,
    Strategy,
    SupervisorSpec,
    Threads,
)
from ergo_py.meta import (
    TCP,
    UDP,
    BlockingCalls,
    Delimiter,
    Descriptors,
    FileReader,
    FileWriter,
    Port,
    TCPServer,
    UDPServer,
)
from ergo_py.state_machine import state
from ergo_py.supervision import Decision, Fate, Redirect

__all__ = ["Books", "Letter", "World", "letter"]

OFTEN: Any = {"intensity": 10**6, "period": 1.0}
"""Supervisors of the soak never give up."""


class OnPurpose(Exception):
    """The error with which all processes here crash."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A message that is accounted for: it is handled, or it becomes a dead letter, or it is dropped
    and counted.
    """

    slow: float = 0.0
    """Seconds that handling it takes."""


LETTERS: dict[str, type[Letter]] = {}


def letter(to: str, slow: float = 0.0) -> Letter:
    """A letter to a process. A dead letter keeps no more of it than its type, so there is a type
    for each receiver.
    """
    if to not in LETTERS:
        LETTERS[to] = type(f"Letter to {to}", (Letter,), {"__slots__": ()})
    return LETTERS[to](slow)


class Books:
    """The fate of every letter, and all other counts. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.missing: Counter[str] = Counter()
        """Letters that were sent and have not come to an end yet, by receiver."""

    def send(self, one: Letter) -> None:
        with self._lock:
            self.counts["sent"] += 1
            self.missing[type(one).__qualname__] += 1

    def end(self, kind: str, how: str) -> None:
        with self._lock:
            self.counts[how] += 1
            self.missing[kind] -= 1

    def handle(self, one: Letter) -> None:
        self.end(type(one).__qualname__, "handled")

    def note(self, what: str, count: int = 1) -> None:
        with self._lock:
            self.counts[what] += count


class Worker(Actor):
    """Handles letters, some of them slowly; answers; crashes when it is told to."""

    def __init__(self, books: Books) -> None:
        self.books = books

    async def handle_message(self, message: Any, sender: Any) -> None:
        if isinstance(message, Diverted):
            message = message.message
        match message:
            case Letter(slow):
                self.books.handle(message)
                if slow:
                    await trio.sleep(slow)
            case "crash":
                raise OnPurpose
            case "stop":
                self.stop("enough")

    async def handle_call(self, request: Any, caller: Caller) -> object:
        match request:
            case "crash":
                raise OnPurpose
            case "later":
                return NO_REPLY
            case "slowly":
                await trio.sleep(0.02)
        return request


class Spill(Worker):
    """Gets messages for which others had no room or no time, and is not crashed by them."""

    async def handle_message(self, message: Any, sender: Any) -> None:
        if isinstance(message.message if isinstance(message, Diverted) else message, Letter):
            await super().handle_message(message, sender)

    async def handle_call(self, request: Any, caller: Caller) -> object:
        return request


class Threaded(Actor):
    """The same in a thread, where it may block."""

    def __init__(self, books: Books) -> None:
        self.books = books

    def handle_message(self, message: Any, sender: Any) -> None:
        match message:
            case Letter(slow):
                self.books.handle(message)
                time.sleep(slow)
            case "crash":
                raise OnPurpose

    def handle_call(self, request: Any, caller: Caller) -> object:
        if request == "crash":
            raise OnPurpose
        return request


class Gate(StateMachine):
    """Takes letters while it is open, and puts them aside while it is shut, which is never for
    long.
    """

    def __init__(self, books: Books) -> None:
        self.books = books

    @state
    def opened(self, message: object, sender: Any) -> None:
        match message:
            case Letter():
                self.books.handle(message)
            case "shut":
                self.become(self.shut)
            case "crash":
                raise OnPurpose

    @state(timeout=0.03)
    def shut(self, message: object, sender: Any) -> None:
        match message:
            case Letter():
                self.postpone()
            case StateMachine.StateTimeout():
                self.become(self.opened)
            case "crash":
                raise OnPurpose


class Quick(Actor):
    """The bystander: it always answers."""

    def handle_call(self, request: Any, caller: Caller) -> object:
        return request


class Paper(Actor):
    """Publishes on request."""

    def init(self) -> None:
        self.register_event("news", buffer=3)

    def handle_call(self, request: Any, caller: Caller) -> int:
        return self.publish("news", request)


class Reader(Actor):
    """Reads every publication."""

    def __init__(self, books: Books) -> None:
        self.books = books

    def init(self) -> None:
        self.subscribe("news")

    async def handle_event(self, event: Published) -> None:
        self.books.note("read")


class Clerk(Actor):
    """Writes down every dead letter."""

    def __init__(self, books: Books) -> None:
        self.books = books

    def init(self) -> None:
        self.subscribe("ergo.dead_letter")

    def handle_event(self, event: Published) -> None:
        if event.message.message_type.startswith("Letter to "):
            self.books.end(event.message.message_type, "dead")


# -- owners of meta-processes ----------------------------------------------------------------------


class Owner(Actor):
    """Crashes when it is told to; all that it owns ends with it and is started again by its
    successor.
    """

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name_here = name

    async def handle_message(self, message: Any, sender: Any) -> None:
        if message == "crash":
            raise OnPurpose
        await self.serve(message)

    async def serve(self, message: Any) -> None:
        raise NotImplementedError


class Echo(Owner):
    async def init(self) -> None:
        reader: Any = "thread" if "thread" in self.name_here else "task"
        server = TCPServer(
            reader=reader,
            framing=Delimiter(b"\n", keep=True),
            max_connections=200,
            linger=0.2,
            write_limit=2**16,
        )
        await self.spawn_meta(server, stop_timeout=2.0)
        self.world.ports[self.name_here] = server.local.port

    async def serve(self, message: Any) -> None:
        match message:
            case TCP.Connected():
                self.world.books.note("connected")
            case TCP.Data(connection, data):
                self.send(connection, TCP.Send(data))
            case TCP.Disconnected():
                self.world.books.note("disconnected")


class Datagrams(Owner):
    async def init(self) -> None:
        reader: Any = "thread" if "thread" in self.name_here else "task"
        server = UDPServer(reader=reader)
        await self.spawn_meta(server, stop_timeout=2.0)
        self.world.ports[self.name_here] = server.local.port

    async def serve(self, message: Any) -> None:
        if isinstance(message, UDP.Data):
            self.world.books.note("datagrams")


class Program(Owner):
    async def init(self) -> None:
        self.port = await self.spawn_meta(Port(["cat"]))

    async def serve(self, message: Any) -> None:
        match message:
            case Port.Line():
                self.world.books.note("lines of the program")
            case Port.Exited():
                self.port = await self.spawn_meta(Port(["cat"]))
            case "work":
                self.send(self.port, Port.Write("a line\n"))
            case "end":
                self.send(self.port, Port.Signal(signal.SIGKILL))


class Files(Owner):
    async def init(self) -> None:
        path = self.path = self.world.directory / "log"
        self.written = 0
        self.writer = await self.spawn_meta(FileWriter(path))
        await self.spawn_meta(
            FileReader(path, follow=True, from_end=True, missing_ok=True, interval=0.02, linger=0.1)
        )

    async def serve(self, message: Any) -> None:
        match message:
            case FileReader.Line():
                self.world.books.note("lines of the file")
            case "work":
                self.send(self.writer, FileWriter.Write("a line\n"))
                self.written += 1
                if self.written % 100 == 0:
                    self.path.rename(self.path.with_suffix(".1"))
                    self.send(self.writer, FileWriter.Reopen())


class Pipes(Owner):
    async def init(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        for sock in (self.ours, self.theirs):
            sock.setblocking(False)
        self.watcher = await self.spawn_meta(Descriptors())
        await self.call(self.watcher, Descriptors.Watch(self.ours))

    async def serve(self, message: Any) -> None:
        match message:
            case Descriptors.Readable():
                try:
                    self.world.books.note("bytes of the pipe", len(self.ours.recv(100)))
                except BlockingIOError:
                    pass
            case "work":
                try:
                    self.theirs.send(b"x")
                except BlockingIOError:
                    pass

    def terminate(self, reason: Reason) -> None:
        self.ours.close()
        self.theirs.close()


class Driver:
    """A library that blocks."""

    def work(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def fail(self) -> None:
        raise OnPurpose


class Calls(Owner):
    async def init(self) -> None:
        self.world.driver = await self.spawn_meta(BlockingCalls(factory=Driver, threads=2))

    async def serve(self, message: Any) -> None: ...


class Customer(Actor):
    """A member of an application that needs another application."""

    shelf = Needs("shelf")

    def __init__(self, books: Books) -> None:
        self.books = books

    async def handle_message(self, message: Any, sender: Any) -> None:
        if message == "crash":
            raise OnPurpose
        self.books.handle(message)
        await self.shelf.call("quickly")


# -- all of it -------------------------------------------------------------------------------------


class World:
    """Everything that is alive during a soak."""

    def __init__(self, node: Node, books: Books, directory: str) -> None:
        self.node = node
        self.books = books
        self.directory = Path(directory)
        self.ports: dict[str, int] = {}
        self.driver: Any = None
        self.receivers: list[str] = []
        """Names that letters are sent to."""
        self.mortals: list[str] = []
        """Names of those that may be ended in any way."""
        self.owners: list[str] = []
        self.crowd: Any = None
        self.supervisors: list[Any] = []

    async def begin(self) -> None:
        node, books = self.node, self.books
        await node.spawn(Clerk, books, name="clerk")
        await node.spawn(Quick, name="bystander")
        await node.spawn(Spill, books, name="spill")
        await node.spawn(Paper, name="paper")
        await node.spawn(Reader, books, name="reader")
        quick = Backoff(0.005, 0.05, 2.0)
        rules: list[Any] = [*Overflow, Divert("spill", "too much")]
        fates: list[Any] = [Fate.DEAD_LETTER, Fate.KEEP, Redirect("spill")]
        for strategy in (Strategy.ONE_FOR_ONE, Strategy.ALL_FOR_ONE, Strategy.REST_FOR_ONE):
            children = [
                ChildSpec(
                    f"{strategy.name} {number}",
                    Worker,
                    books,
                    mailbox=fates[number % 3],
                    backoff=quick if number % 2 else None,
                    decide=(lambda _error: Decision.RESUME)
                    if number == 4
                    else (lambda _error: Decision.RESTART),
                    mailbox_size=20,
                    overflow=rules[number],
                )
                for number in range(5)
            ]
            handle = await node.supervise(children, strategy=strategy, **OFTEN)
            self.supervisors.append(handle)
            self.mortals += [child.name for child in children]
        others = [
            ChildSpec("pinned", Threaded, books, dispatcher=Threads()),
            ChildSpec(
                "pooled", Threaded, books, dispatcher=Threads("thread_group", 2), mailbox=Fate.KEEP
            ),
            ChildSpec("first of a pod", Threaded, books, dispatcher=Threads("pod")),
            ChildSpec(
                "second of a pod",
                Threaded,
                books,
                dispatcher=Threads("pod"),
                mailbox_size=20,
                overflow=Overflow.WAIT,
            ),
            ChildSpec("gate", Gate, books, mailbox=Fate.KEEP),
            ChildSpec("dropping", Worker, books, mailbox=Fate.DROP),
        ]
        self.supervisors.append(await node.supervise(others, **OFTEN))
        self.mortals += [child.name for child in others]
        await node.spawn(
            Pool, PoolSpec(Worker, books, size=3, mailbox_size=50, **OFTEN), name="pool"
        )
        self.crowd = await node.supervise(
            [ChildSpec("one", Worker, books)], strategy=Strategy.SIMPLE_ONE_FOR_ONE, **OFTEN
        )
        owners = {
            "tcp thread": Echo,
            "tcp task": Echo,
            "udp thread": Datagrams,
            "udp task": Datagrams,
            "program": Program,
            "files": Files,
            "pipes": Pipes,
            "calls": Calls,
        }
        self.owners = list(owners)
        children = [
            ChildSpec(name, owner, self, name, backoff=quick) for name, owner in owners.items()
        ]
        await node.supervise(children, **OFTEN)
        node.load_applications(
            Application("stock", [ChildSpec("shelf", Quick)]),
            Application(
                "shop",
                SupervisorSpec([ChildSpec("customer", Customer, books)], **OFTEN),
                depends_on=["stock"],
            ),
        )
        await node.start_applications("shop")
        self.receivers = [*self.mortals, "pool", "customer", "nobody"]

    def missing(self) -> dict[str, int]:
        """Letters that are neither handled, nor dead, nor dropped and counted, as the fate of their
        receiver's mailbox says.
        """
        missing = Counter(self.books.missing)
        for handle in self.supervisors:
            for child in handle.children():
                missing[f"Letter to {child.name}"] -= child.dropped
        return {kind: count for kind, count in missing.items() if count}


def open_files() -> int | None:
    """How many descriptors are open, where the system says so."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return None


def directory() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="soak-")
