"""Meta-processes that run functions of a test, in each of the four pairs of colours."""

import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import inf
from typing import Any, TypeVar

import outcome
import trio

from ergo_py import PID, Alias, Down, MetaProcess, Node, Reason, Response
from tests.actors import Puppet
from tests.support import running_node

__all__ = [
    "COLOURS",
    "Guarded",
    "InTask",
    "InTaskServedInThread",
    "InThread",
    "InThreadServedOnLoop",
    "Owned",
    "Watching",
    "in_thread",
    "owning",
]

T = TypeVar("T")
Job = Callable[[Any], Any]

PATIENCE = 20.0
"""Seconds after which something is lost. Only a failing test takes that long."""


async def in_thread(function: Callable[[], T]) -> T:
    """Run something in a thread that is neither the loop's nor a reader's."""
    return await trio.to_thread.run_sync(function, abandon_on_cancel=True)


class Guarded(MetaProcess):
    """Notes its callbacks, and that no two callbacks overlap.

    Every job that its reader or its handler is given is a function with the behaviour as argument.
    ``None`` is the reader's end.
    """

    def __init__(self, notes: list[Any] | None = None) -> None:
        self.notes: list[Any] = [] if notes is None else notes
        self.heard: list[Any] = []
        self.answers: list[Response] = []
        self.reading = False
        self.serving = 0

    def begin(self, what: str) -> None:
        """A callback of the handler begins."""
        assert self.serving == 0, f"{what} while another callback is in progress"
        self.serving += 1
        self.notes.append(what)

    def end(self) -> None:
        """A callback of the handler ends."""
        self.serving -= 1

    def last(self, reason: Reason) -> None:
        """``terminate``, which must be alone."""
        assert not self.reading, "terminate while the reader runs"
        assert self.serving == 0, "terminate while a callback is in progress"
        self.notes.append(("terminate", reason))

    def handle_inspect(self, *items: str) -> dict[str, str]:
        self.begin("inspect")
        self.end()
        return {"heard": str(len(self.heard)), **dict.fromkeys(items, "asked")}


class _ThreadReader(Guarded):
    def __init__(self, notes: list[Any] | None = None) -> None:
        super().__init__(notes)
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()

    def give(self, job: Job | None) -> None:
        self.jobs.put(job)

    def start(self) -> None:
        self.reading = True
        self.notes.append("start")
        try:
            while (job := self.jobs.get()) is not None:
                job(self)
        finally:
            self.reading = False

    def unblock(self) -> None:
        self.jobs.put(None)


class _TaskReader(Guarded):
    def __init__(self, notes: list[Any] | None = None) -> None:
        super().__init__(notes)
        self._put, self._get = trio.open_memory_channel[Job | None](inf)

    def give(self, job: Job | None) -> None:
        self._put.send_nowait(job)

    async def start(self) -> None:
        self.reading = True
        self.notes.append("start")
        try:
            while (job := await self._get.receive()) is not None:
                result = job(self)
                if isinstance(result, Awaitable):
                    await result
        finally:
            self.reading = False


class _ThreadHandler(Guarded):
    def handle_message(self, message: Any, sender: Any) -> None:
        self.begin("message")
        try:
            self.heard.append((message, sender))
            if callable(message):
                message(self)
        finally:
            self.end()

    def handle_call(self, request: Any, caller: Any) -> object:
        self.begin("call")
        try:
            return request(self, caller) if callable(request) else list(self.heard)
        finally:
            self.end()

    def handle_response(self, response: Response) -> None:
        self.begin("response")
        self.answers.append(response)
        self.end()

    def terminate(self, reason: Reason) -> None:
        self.last(reason)


class _LoopHandler(Guarded):
    async def handle_message(self, message: Any, sender: Any) -> None:
        self.begin("message")
        try:
            self.heard.append((message, sender))
            result = message(self) if callable(message) else None
            if isinstance(result, Awaitable):
                await result
        finally:
            self.end()

    async def handle_call(self, request: Any, caller: Any) -> object:
        self.begin("call")
        try:
            result = request(self, caller) if callable(request) else list(self.heard)
            return await result if isinstance(result, Awaitable) else result
        finally:
            self.end()

    async def handle_response(self, response: Response) -> None:
        self.begin("response")
        self.answers.append(response)
        self.end()

    async def terminate(self, reason: Reason) -> None:
        self.last(reason)


class InThread(_ThreadReader, _ThreadHandler):
    """Reader and handler are threads."""


class InThreadServedOnLoop(_ThreadReader, _LoopHandler):
    """The reader is a thread, the handler a task."""


class InTaskServedInThread(_TaskReader, _ThreadHandler):
    """The reader is a task, the handler a thread."""


class InTask(_TaskReader, _LoopHandler):
    """Reader and handler are tasks."""


COLOURS: list[type[Any]] = [InThread, InThreadServedOnLoop, InTaskServedInThread, InTask]


class Watching(Puppet):
    """Monitors a target and notes its end in a list that the test holds."""

    def __init__(self, notes: list[Any], target: Alias) -> None:
        super().__init__()
        self.notes = notes
        self.target = target

    def init(self) -> None:
        self.monitor(self.target)

    async def handle_message(self, message: Any, sender: Any) -> None:
        if isinstance(message, Down):
            self.notes.append(("down", message.reason))
        else:
            await super().handle_message(message, sender)


class Owned:
    """A node, and a process on it that owns meta-processes."""

    def __init__(self, node: Node, owner: PID, heard: list[Any]) -> None:
        self.node = node
        self.owner = owner
        self.heard = heard
        """The messages that the owner has got."""

    async def spawn(self, meta: MetaProcess, **options: Any) -> Alias:
        """Have the owner spawn a meta-process, and wait until its reader has begun: threads come
        when they like.
        """
        alias: Alias = await self.node.call(
            self.owner, lambda owner: owner.spawn_meta(meta, **options), timeout=PATIENCE
        )
        if isinstance(meta, Guarded):
            await self.until(lambda: "start" in meta.notes or alias not in self.node.metas())
        return alias

    async def ask_owner(self, function: Callable[[Any], Any]) -> Any:
        """Run a function inside a callback of the owner."""
        return await self.node.call(self.owner, function, timeout=PATIENCE)

    async def in_reader(self, meta: Any, function: Callable[[Any], Any]) -> Any:
        """Run a function, plain or async, in the reader of an instance of the classes above."""
        token, done = trio.lowlevel.current_trio_token(), trio.Event()
        results: list[outcome.Outcome[Any]] = []

        def tell(result: outcome.Outcome[Any]) -> None:
            results.append(result)
            done.set()

        def job(me: Any) -> Any:
            result = outcome.capture(function, me)
            if isinstance(result, outcome.Value) and isinstance(result.value, Awaitable):
                return finish(result.value)
            token.run_sync_soon(tell, result)
            return None

        async def finish(coroutine: Awaitable[Any]) -> None:
            async def wait() -> Any:
                return await coroutine

            tell(await outcome.acapture(wait))

        meta.give(job)
        await done.wait()
        return results[0].unwrap()

    async def in_handler(self, meta: Any, function: Callable[[Any], Any]) -> Any:
        """Run a function in the handler of an instance of the classes above."""
        return await self.node.call(meta.id, lambda me, _caller: function(me), timeout=PATIENCE)

    async def end(self, alias: Alias, reason: object = "done") -> Reason:
        """Ask a meta-process to end, and wait for it."""
        self.node.send_exit(alias, reason)
        return await self.ended(alias)

    async def ended(self, alias: Alias) -> Reason:
        """Wait until a meta-process has ended; None is its reason if it had before."""
        return await self.node.wait_ended(alias)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that a thread brings about."""
        while not condition():  # noqa: ASYNC110 - a thread sets no event of trio's
            await trio.sleep(0.001)

    def readers(self) -> list[str]:
        """The names of the reader threads that do not end. A thread lives on for a moment after it
        has told the loop of its end.
        """
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("ergo-")]
        for thread in threads:
            thread.join(5.0)
        return [thread.name for thread in threads if thread.is_alive()]


@asynccontextmanager
async def owning(limit: float = 60.0, **options: Any) -> AsyncIterator[Owned]:
    """A node with a process that owns meta-processes."""
    heard: list[Any] = []
    async with running_node(limit=limit, **options) as node:
        yield Owned(node, await node.spawn(Puppet, heard), heard)
