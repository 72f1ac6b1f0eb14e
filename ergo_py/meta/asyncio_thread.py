"""`LoopThread`: an asyncio loop in a reader thread, the calls that run there, and the parts of its
async generators.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from inspect import isawaitable
from typing import Any, Final

import outcome
import trio

from .._core.tables.pending_calls import Caller
from .._core.verbs.meta_process import MetaProcess
from .._core.vocabulary.errors import NodeStoppedError
from .._core.vocabulary.reasons import Crashed, Reason
from ..tasks.channel import Channel
from .invocations import Apply, Invoke, as_exception, name_of_request

__all__ = ["Job", "LoopFactory", "LoopThread", "Pump", "default_loop_factory"]

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

_AHEAD: Final = 16
"""Parts that a generator may be ahead of the task that takes them."""
_BATCH: Final = 8
"""Credits that go back to the generator at once."""


def default_loop_factory() -> LoopFactory:
    """The function that makes loops of uvloop, where it is installed; otherwise of asyncio."""
    try:
        import uvloop  # noqa: PLC0415 - an optional package, which takes a while to import
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


class Job:
    """A call to run on asyncio's loop, and the caller that waits for it."""

    __slots__ = ("_task", "caller", "request", "sender")

    def __init__(
        self, request: Invoke | Apply[Any], caller: Caller | None, sender: Any = None
    ) -> None:
        self.request: Invoke | Apply[Any] = request
        self.caller = caller
        """None if no caller waits: for a message, and once the answer is a stream."""
        self.sender: Final = sender
        """The sender of a message."""
        self._task: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        return name_of_request(self.request)

    def leave_caller(self) -> None:
        """The caller has its answer, and the call goes on as a stream."""
        self.caller = None

    # -- on asyncio's loop -------------------------------------------------------------------------

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine in a task of asyncio."""
        self._task = asyncio.get_running_loop().create_task(work, name=str(self))
        return self._task

    def cancel(self) -> None:
        """Cancel the task, if it runs."""
        if self._task is not None:
            _cancel(self._task)


class LoopThread(MetaProcess):
    """The thread of an asyncio loop, with the object that it calls."""

    kind = "asyncio"

    def __init__(
        self,
        make: Callable[[], Any],
        close: Callable[[Any], Any] | None,
        loop_factory: LoopFactory,
        finished: Callable[[Job, "outcome.Outcome[Any] | Pump"], None],
        lost: Callable[[Reason], None],
    ) -> None:
        self._make, self._close, self._loop_factory = make, close, loop_factory
        self._finished, self._lost = finished, lost
        self._loop: asyncio.AbstractEventLoop | None = None
        self._target: Any = None
        self._making: asyncio.Task[Any] | None = None
        self._stop_asked: asyncio.Event | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._inbox: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_armed = False
        """Whether the loop was woken for the present batch of the inbox."""
        self.is_lost: bool = False
        """Whether the loop has ended by itself."""
        self.made: trio.Event = trio.Event()
        self.failure: Exception | None = None
        """The exception of the factory, or of the loop before the object was made."""

    # -- on trio's loop ----------------------------------------------------------------------------

    def put(self, function: Callable[..., object], *args: object) -> None:
        """Call a function on asyncio's loop. Only the first of a batch wakes the loop."""
        # Append first, then check the flag; `_drain` clears the flag first, then reads the inbox.
        self._inbox.append((function, args))
        if not self._is_armed:
            self._is_armed = True
            self._wake(self._drain)

    def unblock(self) -> None:
        """Ask the thread to end. A kill does not wait for calls in progress."""
        self._wake(self._heed_stop, bool(self._meta.ending.kills))

    def _wake(self, function: Callable[..., object], *args: object) -> None:
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(function, *args)
            except RuntimeError:  # the loop is closed: the meta-process is ending
                return

    async def terminate(self, reason: Reason) -> None:
        """Report the end of the thread: calls given to it get no answer."""
        if not self.made.is_set():
            self.failure = RuntimeError(f"the thread of asyncio's loop ended: {reason}")
            self.made.set()
        elif self.failure is None:
            self._lost(reason)

    # -- in the thread -----------------------------------------------------------------------------

    def start(self) -> None:
        """Run the loop until the stop. `asyncio.Runner` closes what the calls leave behind."""
        with asyncio.Runner(loop_factory=self._loop_factory) as runner:
            self._loop = runner.get_loop()
            self._loop.set_exception_handler(self._report)
            try:
                runner.run(self._live())
            except BaseException:
                # The runner cancels the calls next. The end of the meta-process answers them.
                self.is_lost = True
                raise

    async def _live(self) -> None:
        self._stop_asked = asyncio.Event()
        if self.stopping:
            return
        self._making = asyncio.ensure_future(_result_of(self._make))
        try:
            self._target = await self._making
        except BaseException as error:
            self.failure = as_exception(error)
            return
        finally:
            self._making = None
            self.post(self.made.set)
        try:
            await self._stop_asked.wait()
            await self._end_tasks()
        finally:
            if self._close is not None:
                await self._close_target(self._close)

    async def _close_target(self, close: Callable[[Any], Any]) -> None:
        try:
            await _result_of(close, self._target)
        except Exception as error:
            self.log.warning(
                "the object of an asyncio loop was not closed: its close function failed",
                object=type(self._target).__qualname__,
                exception=Crashed(error).traceback,
            )

    def _heed_stop(self, is_kill: bool) -> None:
        if self._making is not None:
            self._making.cancel()
        if self._stop_asked is not None:
            self._stop_asked.set()
        if is_kill:
            for task in self._tasks:
                _cancel(task)

    async def _end_tasks(self) -> None:
        # Half of the time for calls in progress, the other half for their cleanup.
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._meta.options.stop_timeout / 2)
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    def _drain(self) -> None:
        self._is_armed = False
        for _ in range(len(self._inbox)):
            function, args = self._inbox.popleft()
            function(*args)

    def begin(self, job: Job) -> None:
        """Run a call. On asyncio's loop."""
        try:
            result = job.request.run(self._target)
        except BaseException as error:
            self.post(self._finished, job, outcome.Error(error))
            return
        if isawaitable(result):
            self._keep(job.start(self._await(job, result)))
        elif hasattr(result, "__anext__"):
            self.post(self._finished, job, Pump(self, job, result))
        else:
            self.post(self._finished, job, outcome.Value(result))

    def begin_pump(self, pump: "Pump") -> None:
        """Let a generator produce its parts. On asyncio's loop."""
        self._keep(pump.job.start(pump.run()))

    def finish(self, job: Job) -> None:
        """Report the end of a stream. On trio's loop."""
        self._finished(job, outcome.Value(None))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _await(self, job: Job, result: Any) -> None:
        try:
            answer: outcome.Outcome[Any] = outcome.Value(await result)
        except BaseException as error:
            if self.is_lost:
                return
            answer = outcome.Error(error)
        self.post(self._finished, job, answer)

    def _report(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an exception that asyncio can tell no waiting task."""
        error = context.get("exception")
        self.log.error(
            f"asyncio: {context.get('message')}",
            exception="" if error is None else Crashed(error).traceback,
        )

    def post(self, function: Callable[..., object], *args: object) -> None:
        """Call a function on trio's loop."""
        try:
            self._meta.router.bridge.post(function, *args)
        except NodeStoppedError:  # the thread was abandoned, and no caller waits for it
            return


class Pump:
    """The parts of an async generator, on their way from asyncio's loop to trio's.

    At most `_AHEAD` parts are under way, so a slow reader slows the generator: each part takes a
    credit with it, and the reader sends the credits back.
    """

    __slots__ = (
        *("_channel", "_credit", "_error", "_generator", "_is_started", "_room", "_thread"),
        "job",
    )

    def __init__(self, thread: LoopThread, job: Job, generator: AsyncGenerator[Any, Any]) -> None:
        self._thread = thread
        self.job = job
        self._generator = generator
        # On asyncio's loop.
        self._credit = _AHEAD
        """How many parts the generator may make before it waits."""
        self._room: asyncio.Future[None] | None = None
        """The wait of a generator that has no credit."""
        # On trio's loop.
        self._channel: Channel[Any] = Channel(_AHEAD)
        self._is_started = False
        self._error: BaseException | None = None
        """The exception of the generator, for the reader."""

    # -- on asyncio's loop -------------------------------------------------------------------------

    async def run(self) -> None:
        """Take the parts from the generator, and close it at the end."""
        failure: BaseException | None = None
        try:
            try:
                async for part in self._generator:
                    self._thread.post(self._channel.put, part)
                    self._credit -= 1
                    if not self._credit:
                        self._room = asyncio.get_running_loop().create_future()
                        await self._room
            finally:
                if hasattr(self._generator, "aclose"):
                    await self._generator.aclose()
        except BaseException as error:
            if self._thread.is_lost:
                return
            failure = error
        self._thread.post(self._ended, failure)

    def _add_credit(self, credit: int) -> None:
        self._credit += credit
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    # -- on trio's loop ----------------------------------------------------------------------------

    async def next(self) -> Any:
        """Take the next part.

        Raises:
            StopAsyncIteration: there is none.
            CancelledError: it was cancelled.
            Exception: the exception of the generator.
        """
        if not self._is_started:
            self._is_started = True
            self._thread.put(self._thread.begin_pump, self)
        if await self._channel.wait():
            return self._take()
        if self._error is None:
            raise StopAsyncIteration
        is_known = isinstance(self._error, Exception | asyncio.CancelledError)
        raise self._error if is_known else as_exception(self._error)

    def _take(self) -> object:
        # Credits go back in batches, so that asyncio's loop is woken for each batch only.
        part = self._channel.take()
        if self._channel.taken % _BATCH == 0:
            self._thread.put(self._add_credit, _BATCH)
        return part

    async def close(self) -> None:
        """End the generator, and wait until it has ended."""
        self.discard()
        with trio.CancelScope(shield=True):
            while await self._channel.wait():
                self._take()

    def discard(self) -> None:
        """End the generator."""
        if not self._is_started:
            self._is_started = True
            self._ended(None)
        elif not self._channel.is_finished:
            self._thread.put(self.job.cancel)

    def cut_off(self, error: Exception) -> None:
        """End the stream without the generator, whose thread has ended or was abandoned."""
        if not self._channel.is_finished:
            self._error = error
            self._channel.finish()

    def _ended(self, error: BaseException | None) -> None:
        if not self._channel.is_finished:
            self._error = error
            self._channel.finish()
        self._thread.finish(self.job)


def _cancel(task: asyncio.Task[None]) -> None:
    # A task that is cancelled before its first step never enters its coroutine, which would report
    # no end then. asyncio has queued the first step of each task before this.
    task.get_loop().call_soon(task.cancel)


async def _result_of(function: Callable[..., Any], *args: object) -> object:
    result = function(*args)
    return await result if isawaitable(result) else result
