"""`BlockingCalls` and `Poller`: libraries without an asynchronous version. Threads of their own do
the calls, and poll loops become messages.
"""

from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any, Final, TypeVar, cast

import trio
from trio.lowlevel import current_task

from .._core import sources
from .._core.messaging.waiters import TaskCaller
from .._core.tables.pending_calls import Caller
from .._core.verbs.meta_process import MetaProcess
from .._core.vocabulary.errors import BadInputError, TargetDownError
from .._core.vocabulary.ids import Target
from .._core.vocabulary.messages import NO_REPLY
from .._core.vocabulary.options import check_number
from .._core.vocabulary.public_names import show_public_names
from .._core.vocabulary.reasons import Crashed, NoProcess, Reason
from .invocations import Apply, Invoke, as_exception, name_of_request
from .readers import post_to_loop
from .receivers import check_receiver

__all__ = ["BlockingCalls", "Poller"]

R = TypeVar("R")

_AT_ONCE: Final = 0.001
"""A poll that took less than this, in seconds, has not blocked."""


class BlockingCalls(MetaProcess):
    """Turns calls to a meta-process into calls of a blocking object, on a thread of its own.

    The answer is the result or the exception of the method; no exception ends the meta-process.
    With a single thread, calls run one at a time, in order. A message that is sent instead of
    called runs as well; an exception is logged then. If a caller gives up before its call begins,
    the call does not run at all. When the meta-process is stopped, it waits for the calls in
    progress, at most its ``stop_timeout``. If one of its threads is ended from outside, the
    meta-process ends, too.

    Args:
        target: the object. With more than one thread, it must be thread-safe.
        factory: makes the object instead, in the thread that uses it, as database connections need
            it; called once for each thread. If it raises, ``spawn_meta`` raises the error.
        threads: how many calls may be in progress at once.
        close: called with each object, in its thread, at the end. By default ``close()`` of an
            object that ``factory`` made.
        interrupt: called with the object, from another thread, to interrupt a call in progress when
            the meta-process is stopped; such as ``sqlite3.Connection.interrupt``.
        max_waiting: how many calls may wait for a thread before further calls wait in the mailbox.
            Calls of ``run`` are not among them: each has a task that waits.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    kind = "calls"

    def __init__(
        self,
        target: object = None,
        *,
        factory: Callable[[], Any] | None = None,
        threads: int = 1,
        close: Callable[[Any], object] | None = None,
        interrupt: Callable[[Any], object] | None = None,
        max_waiting: int = 1000,
    ) -> None:
        if (target is None) == (factory is None):
            raise BadInputError(
                "BlockingCalls(...)",
                target,
                "an object, or factory=function that makes the object; not both",
            )
        if factory is not None and not callable(factory):
            raise BadInputError("factory", factory, "a function that makes the object")
        check_number("threads", threads, least=1, whole=True)
        check_number("max_waiting", max_waiting, least=1, whole=True)
        self._threads = threads
        self._most = max_waiting
        self._made_by = factory if factory is not None else lambda: target
        self._closed_by = close if close is not None or factory is None else _close
        self._interrupted_by = interrupt
        self._idle: list[_Worker] = []
        self._waiting: deque[_Job] = deque()
        self._room = trio.Event()
        self._done = self._failed = self._skipped = 0

    async def init(self) -> None:
        """Start the threads, and let each make its object."""
        for _ in range(self._threads):
            worker = _Worker(
                self._made_by, self._closed_by, self._interrupted_by, self._finished, self.end
            )
            await self.spawn_meta(worker, stop_timeout=self._meta.options.stop_timeout)
            await worker.made.wait()
            if worker.failure is not None:
                raise worker.failure
            self._idle.append(worker)

    async def start(self) -> None:
        """Do nothing: the threads do all the work."""
        await trio.sleep_forever()

    async def handle_message(self, message: object, sender: object) -> None:
        """Queue the call; no caller waits for the result."""
        if isinstance(message, Invoke | Apply):
            await self._take(_Job(message, None))
        else:
            super().handle_message(message, sender)

    async def handle_call(self, request: object, caller: Caller) -> object:
        """Queue the call; the thread answers."""
        if not isinstance(request, Invoke | Apply):
            return super().handle_call(request, caller)
        await self._take(_Job(request, caller))
        return NO_REPLY

    async def run(self, function: Callable[[Any], R]) -> R:
        """Call a function with the object, in its thread, and wait for the result. For a task of
        the process that has spawned the meta-process: it needs no message, which would cost each
        call a turn of the loop.

        Raises:
            TargetDownError: the meta-process has ended.
        """
        meta, request = self._meta, Apply(function)
        number = next(meta.router.references)
        caller = TaskCaller(self.parent, number, meta.id, request, current_task(), meta)
        if not meta.accepting:
            raise TargetDownError(meta.id, request, meta.reason or NoProcess(), begun=False)
        caller.defer(meta)
        # Not behind `max_waiting`: its task waits anyway, and `_room` wakes a single one, the task
        # that takes messages. Of several that waited for room, all but the last never went on.
        self._give(_Job(request, caller))
        await meta.kernel.calls.wait(None, caller, None)
        result: R = caller.result() if caller.error is not None else cast(R, caller.value)
        return result

    def end(self, reason: Reason) -> None:
        """End the meta-process, as a stop does. For the process that has spawned it."""
        self._meta.finish(reason)

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """The number of threads and calls."""
        return {
            "threads": str(self._threads),
            "busy": str(self._threads - len(self._idle)),
            "waiting": str(len(self._waiting)),
            "done": str(self._done),
            "failed": str(self._failed),
            "skipped": str(self._skipped),
        }

    async def _take(self, job: "_Job") -> None:
        while len(self._waiting) >= self._most:
            self._room = trio.Event()
            await self._room.wait()
        self._give(job)

    def _give(self, job: "_Job") -> None:
        if self._idle:
            self._idle.pop().give(job)
        else:
            self._waiting.append(job)

    def _finished(
        self, worker: "_Worker", job: "_Job", value: object, error: BaseException | None
    ) -> None:
        """On the loop, when a thread is free again."""
        self._done += 1
        if error is not None:
            self._failed += 1
            error = as_exception(error)
        if job.caller is not None:
            # On the loop already: a task that waits for it goes on in this turn.
            meta = self._meta
            if not job.caller.settle_in(meta.router.turns, value, error):
                meta.kernel.calls.count_late_reply()
        elif error is not None:
            self.log.error(
                "a call without a caller failed",
                call=str(job),
                exception=Crashed(error).traceback,
            )
        while self._waiting:
            following = self._waiting.popleft()
            if following.caller is None or not following.caller.settled:
                worker.give(following)
                break
            self._skipped += 1
        else:
            self._idle.append(worker)
        self._room.set()


class _Job:
    """A call to run, and the caller that waits for it."""

    __slots__ = ("_order", "caller")

    def __init__(self, order: Invoke | Apply[Any], caller: Caller | None) -> None:
        self._order = order
        self.caller = caller

    def __str__(self) -> str:
        return name_of_request(self._order)

    def run(self, target: object) -> tuple[object, BaseException | None]:
        """The result, or the error."""
        try:
            return self._order.run(target), None
        except BaseException as error:
            return None, error


class _Worker(MetaProcess):
    """A thread, with the object it calls."""

    kind = "calls"

    def __init__(
        self,
        make: Callable[[], Any],
        close: Callable[[Any], object] | None,
        interrupt: Callable[[Any], object] | None,
        finished: Callable[["_Worker", _Job, object, BaseException | None], None],
        lost: Callable[[Reason], None],
    ) -> None:
        self._make, self._close, self._interrupt, self._finished = make, close, interrupt, finished
        self._lost = lost
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._target: object = None
        self._is_busy = False
        self.made = trio.Event()
        self.failure: BaseException | None = None

    def give(self, job: _Job) -> None:
        """Let the thread run the call."""
        self._jobs.put(job)

    def start(self) -> None:
        try:
            self._target = self._make()
        except BaseException as error:
            self.failure = as_exception(error)
            post_to_loop(self._meta, self.made.set)
            return
        post_to_loop(self._meta, self.made.set)
        try:
            while not self.stopping and (job := self._next_job()) is not None:
                self._is_busy = True
                outcome = job.run(self._target)
                self._is_busy = False
                post_to_loop(self._meta, self._finished, self, job, *outcome)
                del job, outcome  # the next call may be long in coming
        finally:
            if self._close is not None:
                self._close(self._target)

    def _next_job(self) -> _Job | None:
        sources.threads.give_way(lambda: not self._jobs.empty(), None)
        return self._jobs.get()

    def unblock(self) -> None:
        if self._interrupt is not None and self._is_busy:
            self._interrupt(self._target)
        self._jobs.put(None)

    async def terminate(self, reason: Reason) -> None:
        # Unless the whole is ending, the calls given to this thread would never run.
        if self.failure is None:
            self._lost(reason)


class Poller(MetaProcess):
    """Calls a blocking function again and again, in a thread of its own, and sends its results.

    None is not sent: it means that there was nothing. The function must return from time to time,
    for example by a timeout of half a second, or ``wake`` must make it return; otherwise the stop
    waits until its time limit. If the function raises, the meta-process ends with that error.

    Args:
        poll: the function.
        each: the function returns several results at once, and each is sent as a message.
        interval: seconds to pause after None, if the function itself does not block.
        wake: called, from another thread, to make ``poll`` return when the meta-process is stopped.
        close: called in the thread at the end.
        receiver: the address that gets the results; None for the owner.

    Raises:
        BadInputError: an argument has a wrong type or value.
    """

    kind = "poller"

    def __init__(
        self,
        poll: Callable[[], object],
        *,
        each: bool = False,
        interval: float = 0.0,
        wake: Callable[[], object] | None = None,
        close: Callable[[], object] | None = None,
        receiver: Target | None = None,
    ) -> None:
        if not callable(poll):
            raise BadInputError("poll", poll, "a function without arguments")
        check_number("interval", interval, least=0.0)
        self._poll = poll
        self._each = each
        self._interval = interval
        self._wake = wake
        self._close = close
        self._receiver = check_receiver(receiver)
        self._polls = self._sent = 0

    def start(self) -> None:
        """Poll until the stop."""
        to = self.parent if self._receiver is None else self._receiver
        try:
            while not self.stopping:
                began = self._now()
                found = self._poll()
                self._polls += 1
                if found is None:
                    # Without a pause, a function that does not block would use all the processor
                    # time.
                    if self._interval or self._now() - began < _AT_ONCE:
                        self.pause(self._interval or _AT_ONCE)
                    continue
                for message in cast(Iterable[object], found) if self._each else (found,):
                    self._sent += 1
                    self.send(to, message)
                    if self.stopping:  # the results may have no end
                        break
        finally:
            if self._close is not None:
                self._close()

    def unblock(self) -> None:
        """Make the function return."""
        if self._wake is not None:
            self._wake()

    def handle_inspect(self, *items: str) -> dict[str, str]:
        """The number of polls and of messages."""
        return {"polls": str(self._polls), "sent": str(self._sent)}


def _close(target: object) -> None:
    close = getattr(target, "close", None)
    if callable(close):
        close()


show_public_names(__name__)
