"""`AsyncioCalls`: libraries that need an asyncio loop. A thread of its own runs the loop."""

from asyncio import CancelledError
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from inspect import isawaitable
from typing import Any
from weakref import finalize

import outcome
import trio

from .._core.processes.process import Process
from .._core.tables.pending_calls import Caller
from .._core.verbs.meta_process import MetaProcess
from .._core.vocabulary.errors import BadInputError, NodeStoppedError, TargetDownError
from .._core.vocabulary.messages import NO_REPLY
from .._core.vocabulary.options import check_number
from .._core.vocabulary.public_names import show_public_names
from .._core.vocabulary.reasons import Crashed, Reason
from ..streams.parts import PartStream
from ..tasks.handle import Task
from ..tasks.process import Runner, start_process
from .asyncio_thread import Job, LoopFactory, LoopThread, Pump, default_loop_factory
from .invocations import Apply, Invoke, as_exception

__all__ = ["AsyncioCalls"]


class AsyncioCalls(MetaProcess):
    """Turns calls to a meta-process into calls on an asyncio loop, in a thread of its own.

    For example, a pool of connections of asyncpg::

        db = await self.spawn_meta(AsyncioCalls(factory=lambda: asyncpg.create_pool(dsn)))
        rows = await self.call(db, Invoke("fetch", "select * from users"))

    The method may be plain, async, or an async generator. The answer is its result or its
    exception; no exception ends the meta-process. Many calls are in progress at once, in any order.
    A caller that gives up, by its timeout, a cancellation or its end, cancels its coroutine; a call
    that has not begun does not run at all. The parts of an async generator are read with
    ``call_stream``, with backpressure. A message that is sent instead of called runs as well: an
    exception is logged then, and each part of an async generator is sent to the sender.

    When the meta-process is stopped, calls in progress have half of its ``stop_timeout`` to finish,
    and are cancelled then; a kill cancels them at once. Their callers get a ``TargetDownError``. If
    the loop ends by itself, the meta-process ends, too.

    Args:
        target: the object. asyncio's objects often belong to the loop that runs when they are made:
            use ``factory`` for these.
        factory: makes the object instead, on the loop; plain or async. If it raises, ``spawn_meta``
            raises the error.
        close: called with the object, on the loop, at the end; plain or async. By default
            ``aclose()`` or ``close()`` of an object that ``factory`` made. If it raises, the
            exception is logged.
        at_once: how many calls may be in progress before further calls wait in the mailbox.
        loop_factory: makes the loop; by default uvloop's, where uvloop is installed.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    kind = "asyncio"

    def __init__(
        self,
        target: object = None,
        *,
        factory: Callable[[], Any] | None = None,
        close: Callable[[Any], Any] | None = None,
        at_once: int = 1000,
        loop_factory: LoopFactory | None = None,
    ) -> None:
        if (target is None) == (factory is None):
            raise BadInputError(
                "AsyncioCalls(...)",
                target,
                "an object, or factory=function that makes the object; not both",
            )
        given = (("factory", factory), ("close", close), ("loop_factory", loop_factory))
        for name, function in given:
            if function is not None and not callable(function):
                raise BadInputError(name, function, "a function")
        check_number("at_once", at_once, least=1, whole=True)
        self._most = at_once
        self._thread = LoopThread(
            factory if factory is not None else lambda: target,
            close if close is not None or factory is None else _close,
            loop_factory if loop_factory is not None else default_loop_factory(),
            self._finished,
            self._lost,
        )
        self._jobs: dict[Caller | Job, Job] = {}
        """The calls in progress, by their callers; those without a caller by themselves."""
        self._pumps: set[Pump] = set()
        self._is_waiting = False
        """Whether a call waits for room."""
        self._done = self._failed = self._cancelled = self._skipped = 0

    async def init(self) -> None:
        """Start the loop, and let it make the object."""
        self._meta.watch_deferred(self._given_up)
        await self.spawn_meta(self._thread, stop_timeout=self._meta.options.stop_timeout)
        await self._thread.made.wait()
        if self._thread.failure is not None:
            raise self._thread.failure

    async def start(self) -> None:
        """Do nothing: the loop does all the work."""
        await trio.sleep_forever()

    async def handle_message(self, message: object, sender: object) -> None:
        """Begin the call; no caller waits for the result."""
        if isinstance(message, Invoke | Apply):
            await self._wait_for_room()
            self._begin(Job(message, None, sender))
        else:
            super().handle_message(message, sender)

    async def handle_call(self, request: object, caller: Caller) -> object:
        """Begin the call; the loop answers."""
        if not isinstance(request, Invoke | Apply):
            return super().handle_call(request, caller)
        if len(self._jobs) >= self._most:
            await self._wait_for_room()
        if caller.settled:
            self._skipped += 1
        else:
            self._begin(Job(request, caller))
        return NO_REPLY

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """The number of calls."""
        return {
            "running": str(len(self._jobs)),
            "done": str(self._done),
            "failed": str(self._failed),
            "cancelled": str(self._cancelled),
            "skipped": str(self._skipped),
        }

    async def terminate(self, reason: Reason) -> None:
        """End the streams of a thread that was abandoned."""
        for pump in self._pumps:
            pump.cut_off(TargetDownError(self.id, pump.job.request, reason))

    def _begin(self, job: Job) -> None:
        if self._meta.reason is None:
            self._jobs[job.caller or job] = job
            self._thread.put(self._thread.begin, job)

    async def _wait_for_room(self) -> None:
        self._is_waiting = True
        await self._meta.handler.wait_in_callback(lambda: len(self._jobs) >= self._most)
        self._is_waiting = False

    def _given_up(self, caller: Caller) -> None:
        """A caller has its answer, or waits no longer: then cancel its coroutine."""
        job = self._jobs.get(caller)
        if job is not None:
            self._thread.put(job.cancel)

    def _lost(self, reason: Reason) -> None:
        """The loop has ended. Unless the whole is ending, calls would never be answered, so end the
        meta-process.
        """
        self._meta.finish(reason)

    # -- answers -----------------------------------------------------------------------------------

    def _finished(self, job: Job, result: "outcome.Outcome[Any] | Pump") -> None:
        """Take the result of a call. On trio's loop."""
        if isinstance(result, Pump):
            self._begin_stream(job, result)
            return
        if self._jobs.pop(job.caller or job, None) is None:
            return
        self._done += 1
        if isinstance(result, outcome.Error):
            self._fail(job, result.error)
        elif job.caller is not None and isinstance(result, outcome.Value):
            self._meta.kernel.calls.reply(job.caller, result.value, None)
        if self._is_waiting:
            self._meta.wake()

    def _fail(self, job: Job, error: BaseException) -> None:
        if isinstance(error, CancelledError):
            self._cancelled += 1
            if self._meta.reason is not None:
                return  # cancelled by the stop: the end of this meta-process answers its callers
        else:
            self._failed += 1
        wrapped = as_exception(error)
        if job.caller is None:
            self.log.error(
                "a call without a caller failed",
                call=str(job),
                exception=Crashed(wrapped).traceback,
            )
        elif not job.caller.settled:
            self._meta.kernel.calls.reply(job.caller, None, wrapped)

    # -- streams -----------------------------------------------------------------------------------

    def _begin_stream(self, job: Job, pump: Pump) -> None:
        self._pumps.add(pump)
        caller = job.caller
        if caller is None:
            _ = self._take_parts(partial(self._send_parts, pump), f"stream({job})", pump)
            return
        # From now on the stream, and not its caller, ends the call.
        del self._jobs[caller]
        job.leave_caller()
        self._jobs[job] = job
        start = partial(self._take_parts, pump=pump)
        stream = PartStream(start, self._parts(pump), 16, self.id, f"stream({job})")
        # A stream that is dropped before its first part never runs its generator.
        finalize(stream, self._drop, pump)
        self._meta.kernel.calls.reply(caller, stream, None)

    def _take_parts(self, run: Runner, name: str, pump: Pump) -> Task[None]:
        """Let a child process of the owner take the parts of a generator."""

        async def produce(process: Process) -> None:
            try:
                await run(process)
            finally:
                self._pumps.discard(pump)
                await pump.close()

        meta = self._meta
        return start_process(meta.kernel, meta.process, produce, name, None, None, None)

    async def _parts(self, pump: Pump) -> AsyncGenerator[Any, None]:
        while True:
            try:
                part = await pump.next()
            except StopAsyncIteration:
                return
            except CancelledError as error:
                reason = self._meta.reason
                if reason is not None:
                    raise TargetDownError(self.id, pump.job.request, reason) from None
                raise as_exception(error) from error
            yield part

    async def _send_parts(self, pump: Pump, _process: Process) -> None:
        sender = pump.job.sender
        async with aclosing(self._parts(pump)) as parts:
            async for part in parts:
                await self._meta.send_wait(sender, part, None)

    def _drop(self, pump: Pump) -> None:
        self._pumps.discard(pump)
        try:
            self._meta.router.bridge.do(pump.discard)
        except NodeStoppedError:
            return


async def _close(target: object) -> None:
    for name in ("aclose", "close"):
        close = getattr(target, name, None)
        if callable(close):
            result = close()
            if isawaitable(result):
                await result
            return


show_public_names(__name__)
