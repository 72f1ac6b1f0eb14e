"""``Handler``: the handler of a meta-process. It serves the messages.

An ``async def`` callback runs on the loop, a plain ``def`` callback in a worker thread.
"""

from collections.abc import Callable
from contextvars import Context, copy_context
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import trio
from trio.lowlevel import Task, current_task, enable_ki_protection

from .. import sources
from ..messaging.observer import Delivered
from ..processes.threaded_process import adopt
from ..runtime.abandonable import Abandonable
from ..runtime.bridge import get_ident, stack_of
from ..runtime.cancel_scopes import CancelScopes, left_open
from ..runtime.detached_task import DetachedTask, without_cancellation
from ..runtime.parking import PARKED, park, yield_turn
from ..runtime.thread_parent import HostTask, ThreadParent
from ..runtime.time_slices import SLICE
from ..tables.callbacks import check_plain, diagnostics, runs_callbacks
from ..tables.pending_calls import Caller
from ..vocabulary.envelopes import CALL, EVENT, FENCE, INSPECT, MESSAGE, RESPONSE, Envelope
from ..vocabulary.errors import NodeStoppedError, Reject, TargetDownError
from ..vocabulary.ids import PID, Alias, Target
from ..vocabulary.messages import NO_REPLY
from ..vocabulary.states import HISTORY, MetaState, check_meta_transition
from .shared_state import Flag
from .termination import Phase

if TYPE_CHECKING:
    from .meta import Meta

__all__ = ["Handler"]

_Answer = tuple[dict[str, str] | None, BaseException | None]

# Read as module constants: looking up a member of an enum costs as much as a call in Python 3.11.
_RUNNING: Final = MetaState.RUNNING
_SLEEP: Final = MetaState.SLEEP
_OPEN: Final = Phase.OPEN
_BURST: Final = 64
"""Messages to serve before others get a turn. With fewer, the hand-over between thread and loop
costs more; with more, a stop waits for longer. A time slice ends a burst of slow messages. Not
measured.
"""
_CALLBACK: Final = {MESSAGE: "handle_message", CALL: "handle_call", RESPONSE: "handle_response"}


class Handler:
    """Owns the task that serves messages, while there are any, and the worker threads that run
    plain callbacks.
    """

    __slots__ = (
        "_promised",
        "_retired",
        "abandoned_threads",
        "context",
        "handled",
        "handling",
        "history",
        "meta",
        "state",
        "task",
        "worker",
        "worker_host",
        "worker_scope",
    )

    def __init__(self, meta: "Meta") -> None:
        self.meta: Meta = meta
        self.state: MetaState = _SLEEP
        self.history: list[MetaState | float] = [_SLEEP, meta.born]
        self.context: Context = copy_context()
        """The context variables of the meta-process: those of its spawner, until its callbacks
        change them.
        """
        self.task: DetachedTask | None = None
        self.handling: Envelope | None = None
        self.handled: int = 0
        """Messages that the handler has taken from the mailbox."""
        self._retired = False
        self._promised: list[Caller] = []
        """Calls whose replies a worker thread has deferred, until the loop records them."""
        self.worker_scope: trio.CancelScope | None = None
        """The cancel scope around the worker thread that runs a plain callback."""
        self.worker: int = 0
        """The identifier of that thread; 0 if there is none."""
        self.worker_host: HostTask | None = None
        """Serves ``trio.from_thread`` in that thread."""
        self.abandoned_threads: set[str] = set()
        """Worker threads that may still use the resources: those that run ``init`` or
        ``terminate``, and an abandoned worker thread of the handler.
        """

    def enter(self, state: MetaState) -> None:
        """Change the state, if the state table has this transition, and record the time."""
        check_meta_transition(self.state, state)
        self.state = state
        self.history += (state, perf_counter())
        del self.history[:-HISTORY]

    # -- the task ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the task, since a message has arrived."""
        meta = self.meta
        if meta.ending.phase is _OPEN or meta.ending.draining:
            self.task = DetachedTask(self._task_ended)
            self.task.start(meta.kernel, self._run, meta.callbacks.behaviour, self.context)

    def retire(self) -> None:
        """End a task that has been idle for a while."""
        if self.task is not None:
            # A mark and a wake-up, instead of a cancellation: a message that comes in the same turn
            # is still served by this task.
            self._retired = True
            self.meta.wake()

    def cancel(self) -> None:
        """Cancel the callback in progress. In a worker thread, ``trio.from_thread`` raises."""
        if self.task is not None:
            self.task.cancel()
        if self.worker_host is not None:
            self.worker_host.cancel()

    async def _run(self) -> None:
        meta = self.meta
        self._retired = False
        if meta.ending.reason is not None and not meta.ending.draining:
            return
        self.enter(_RUNNING)
        task = current_task()
        try:
            await self.serve(task)
        # The coroutine is closed, since the handler was abandoned: the task that does so accounts
        # for the end, and nothing may be awaited here.
        except GeneratorExit:
            raise
        except BaseException as error:
            failure = without_cancellation(error)
            if failure is None:
                raise
            meta.finish(meta.failed(meta.current_callback() or "handler", failure))
            # If the handler fails while it drains accepted messages, finish() has no effect any
            # more: the drain ends here.
            meta.ending.stop_draining()
        finally:
            # The next task of the handler continues with the context variables of this task.
            self.context = task.context
        if self.state is _RUNNING and meta.ending.reason is None:
            self.enter(_SLEEP)

    def _task_ended(self) -> None:
        self.task = None
        if len(self.meta.mailbox):
            # A message arrived after the task had decided to end.
            self.meta.wake()

    # -- messages ----------------------------------------------------------------------------------

    async def serve(self, task: Task) -> None:
        """Serve messages until the meta-process is ending and has none to drain, or the handler has
        retired after idling.
        """
        meta = self.meta
        box, ending, idle_handlers = meta.mailbox, meta.ending, meta.kernel.idle_handlers
        observer = meta.kernel.observer
        left, end = _BURST, sources.slice_clock() + SLICE
        while ending.reason is None or ending.draining:
            envelope = box.pop()
            if envelope is None:
                if box.waiters and box.admit_waiters():
                    continue
                if self._retired or ending.draining:
                    return
                # Go to sleep. There must be no await between the look at the lanes and park(),
                # which marks the task as sleeping: a sender that sees no mark does not wake the
                # task.
                self.handling = envelope = None
                self.enter(_SLEEP)
                idle_handlers.add(self)
                await park(task)
                # After any wake-up, also if it was no message: a handler that ends must not stay in
                # the list of those that may retire.
                idle_handlers.discard(self)
                if ending.reason is not None or (self._retired and not len(box)):
                    return
                self.enter(_RUNNING)
                left, end = _BURST, sources.slice_clock() + SLICE
                continue
            self.handling = envelope
            self.handled += 1
            if box.waiters:
                box.admit_waiters()
            if observer is not None and envelope[0] <= EVENT:
                observer(Delivered(meta.id, envelope[1], envelope[3]))
            await self._handle(envelope)
            left -= 1
            if left <= 0 or sources.slice_clock() >= end:
                await yield_turn(task)
                left, end = _BURST, sources.slice_clock() + SLICE

    @runs_callbacks
    async def _handle(self, envelope: Envelope) -> None:
        kind, sender, ref, payload = envelope
        if kind == INSPECT:
            self._reply_to_inspect(ref, payload)
            return
        if kind == FENCE:
            ref.settle(None, None)
            return
        meta, name = self.meta, _CALLBACK[kind]
        callbacks, behaviour = meta.callbacks, meta.behaviour
        is_async = name in callbacks.asynchronous
        if not is_async and name in callbacks.defined:
            await self._serve_in_worker(envelope)
        elif kind == MESSAGE:
            result = behaviour.handle_message(payload, sender)
            if is_async:
                await result
        elif kind == CALL:
            # The default handle_call is plain, but raises: only an async handle_call is awaited.
            await meta.kernel.calls.serve(meta, ref, behaviour.handle_call, payload, ref)
        else:
            result = behaviour.handle_response(payload)
            if is_async:
                await result

    def failed_inline(self, envelope: Envelope, error: Exception) -> None:
        """End the meta-process, since a message raised that a sender served inline."""
        self.handling = envelope
        self.meta.finish(self.meta.failed("handle_message", error))

    async def wait_in_callback(self, waits: Callable[[], bool]) -> None:
        """Let an async callback wait for a condition, and answer inspections meanwhile.

        Each ``meta.wake()`` checks the condition again. Returns when ``waits()`` is False or the
        meta-process is ending.
        """
        box, task, ending = self.meta.mailbox, current_task(), self.meta.ending
        while waits() and ending.reason is None:
            # The urgent lane holds inspections only: user messages go to the other two lanes.
            while box.urgent:
                _, _, caller, items = box.pop_ahead()
                self._reply_to_inspect(caller, items)
            await park(task)

    # -- worker threads ----------------------------------------------------------------------------

    @runs_callbacks
    async def callback(self, name: str, begun: Flag, *args: object) -> None:
        """Call ``init`` or ``terminate`` with the context variables of the meta-process: an ``async
        def`` on the loop, a plain ``def`` in a worker thread. Sets ``begun`` when the callback
        begins.
        """
        meta = self.meta
        function = getattr(meta.behaviour, name)
        if name in meta.callbacks.asynchronous:
            begun.set()
            await Abandonable().run_part(function(*args), self.context)
            return

        def call() -> None:
            begun.set()
            try:
                check_plain(meta, name, function(*args))
            finally:
                self._worker_ended(name)

        # Before the thread begins: it removes the name itself when it ends, which may be before
        # this task goes on.
        self.abandoned_threads.add(name)
        self.context.run(adopt, *await self._in_worker(self._new_host(), self.context, call))

    def _new_host(self) -> HostTask:
        meta = self.meta
        return HostTask(meta.kernel, f"{meta.callbacks.behaviour}: for its worker thread")

    async def _in_worker(
        self, host: HostTask, own: Context, work: object, *args: object
    ) -> tuple[Context, Context]:
        """Run blocking user code in a worker thread, with a copy of the context. Cancellation
        abandons the thread. Returns the copy after and before the work.
        """
        kernel = self.meta.kernel
        # A copy, since a context can be entered by a single thread at a time.
        before = own.copy()
        context = before.copy()
        # A loop that is never idle must not starve the worker thread.
        kernel.thread_fairness.watch()
        parent: Any = ThreadParent(self.meta.router.bridge, host)
        try:
            await trio.to_thread.run_sync(
                parent.run, context.run, work, *args, abandon_on_cancel=True, limiter=kernel.workers
            )
        finally:
            host.cancel()  # an abandoned thread is to end
            kernel.thread_fairness.unwatch()
        return context, before

    def _worker_ended(self, which: str) -> None:
        """Record, in a worker thread, that its work is done. The thread may have been abandoned
        long ago.
        """
        ending = self.meta.ending
        self.abandoned_threads.discard(which)
        if ending.over:
            try:
                # On the loop: whether another thread still uses the resources changes there.
                self.meta.router.bridge.post(ending.close_unused_resources)
            except NodeStoppedError:
                # The node has stopped, and its loop runs nothing any more: only this thread is left
                # to close them.
                ending.close_unused_resources()

    async def _serve_in_worker(self, envelope: Envelope) -> None:
        """Serve a burst in a worker thread."""
        try:
            # Shielded: a thread cannot be cancelled, only abandoned. The termination decides when.
            with trio.CancelScope(shield=True) as self.worker_scope:
                self.worker_host = host = self._new_host()
                adopt(*await self._in_worker(host, copy_context(), self._work, envelope))
        finally:
            self.worker_scope = self.worker_host = None
            # Deliver the sends and replies of the burst before anything else happens, including
            # the end of this meta-process.
            self.meta.router.bridge.catch_up()
            promised, self._promised = self._promised, []
            for caller in promised:
                caller.defer(self.meta)

    def _work(self, envelope: Envelope) -> None:
        self.worker = get_ident()
        try:
            self._serve_in_thread(envelope)
        finally:
            self.worker = 0
            self._worker_ended("handler")

    def _serve_in_thread(self, envelope: Envelope) -> None:
        """Serve a burst of messages with plain callbacks, in a single hop to a worker thread."""
        meta = self.meta
        box, main, callbacks, behaviour = (
            meta.mailbox,
            meta.mailbox.main,
            meta.callbacks,
            meta.behaviour,
        )
        for left in range(_BURST, 0, -1):  # pragma: no branch - the last round returns
            kind, sender, ref, payload = envelope
            if kind == MESSAGE:
                check_plain(meta, "handle_message", behaviour.handle_message(payload, sender))
            elif kind == RESPONSE:
                check_plain(meta, "handle_response", behaviour.handle_response(payload))
            else:
                try:
                    reply = behaviour.handle_call(payload, ref)
                    check_plain(meta, "handle_call", reply)
                except Reject as rejection:
                    meta.kernel.calls.reply(ref, None, rejection.error)
                else:
                    self._answer_from_thread(ref, reply)
            # An inspection or the end must not wait behind the rest of the burst. The observer runs
            # on the loop, so it needs a hop for each message.
            if (
                (meta.ending.reason is not None and not meta.ending.draining)
                or box.ahead
                or left == 1
                or meta.kernel.observer is not None
            ):
                return
            if box.waiters and not left & 7:
                meta.router.bridge.post(box.admit_waiters)
            try:
                following = main.popleft()
            except IndexError:  # nothing waits
                return
            name = _CALLBACK.get(following[0], "")
            if name not in callbacks.defined or name in callbacks.asynchronous:
                # Back to the front, so that no later message overtakes it.
                main.appendleft(following)
                return
            envelope = self.handling = following
            self.handled += 1

    def _answer_from_thread(self, caller: Caller, reply: object) -> None:
        if reply is not NO_REPLY:
            self.meta.kernel.calls.reply(caller, reply, None)
        else:
            # Not defer() here: the list of deferred calls belongs to the loop, which may end the
            # meta-process meanwhile.
            self._promised.append(caller)

    # -- inspection --------------------------------------------------------------------------------

    def _reply_to_inspect(self, caller: Caller, items: tuple[str, ...]) -> None:
        self.meta.kernel.calls.reply(caller, *self._call_handle_inspect(caller.pid, items))

    @runs_callbacks
    def _call_handle_inspect(self, asker: PID | Alias, items: tuple[str, ...]) -> _Answer:
        keywords = {"asker": asker} if self.meta.callbacks.takes_asker else {}
        try:
            answer = self.meta.behaviour.handle_inspect(*items, **keywords)
            return diagnostics(self.meta, answer), None
        except Exception as error:
            # An inspection must not crash the inspected meta-process.
            self.meta.report("handle_inspect", error)
            return None, error

    async def inspect(
        self, sender: PID, to: Target, items: tuple[str, ...], timeout: float
    ) -> dict[str, str]:
        """Return the result of ``handle_inspect``. If the handler sleeps, the caller's task runs
        it.

        Raises:
            CallTimeoutError: the handler is busy for longer than ``timeout``.
            TargetDownError: the meta-process ended before it answered.
        """
        meta = self.meta
        if not self.may_inspect_inline():
            answer: dict[str, str] = await meta.kernel.calls.inspect(
                sender, meta, to, items, timeout
            )
            return answer
        task, own = current_task(), None if self.task is None else self.task.task
        scopes = CancelScopes(task)
        # Not in the caller's context: context variables that handle_inspect sets must not leak into
        # it.
        context = self.context if own is None else own.context
        told, error = context.run(self._inspect_inline, sender, to, items)
        if scopes.are_left():
            # The handler's task would have kept them. The answer counts, and the meta-process
            # crashes.
            if meta.ending.reason is None:
                leaked = left_open(meta.callbacks.behaviour, "handle_inspect", scopes.nurseries())
                meta.finish(meta.failed("handle_inspect", leaked))
            await scopes.close()
        await meta.router.pause()
        if error is not None:
            raise error
        return told or {}

    def may_inspect_inline(self) -> bool:
        """Whether the caller's task may run ``handle_inspect``, as the handler would do next.

        No callback runs in SLEEP, and nothing interrupts a plain function on the loop, so callbacks
        do not overlap. An inspection overtakes the waiting messages, but not an earlier inspection.
        The reader's task does not count as the handler: its sends take another way.
        """
        meta = self.meta
        return (
            self.state is _SLEEP
            and meta.ending.phase is _OPEN
            and not meta.mailbox.urgent
            and meta.router.inline_calls
            and (meta.reader.has_thread or not meta.reader.is_current())
        )

    @enable_ki_protection
    def _inspect_inline(self, sender: PID, to: Target, items: tuple[str, ...]) -> _Answer:
        # RUNNING: handle_inspect may use the verbs of a handler, and no sender may serve a message
        # inline meanwhile.
        self.state = _RUNNING
        self.handling = (INSPECT, sender, None, items)
        self.handled += 1
        try:
            return self._call_handle_inspect(sender, items)
        except BaseException as error:
            reason = self.meta.failed("handle_inspect", error)
            self.meta.finish(reason)
            return None, TargetDownError(to, items, reason)
        finally:
            self.handling = None
            self.state = _SLEEP

    # -- the end -----------------------------------------------------------------------------------

    async def end(self) -> None:
        """Let the callback in progress finish, then cancel it, then abandon it."""
        task, ending = self.task, self.meta.ending
        if task is None:
            return
        if task.task is not None and task.task.custom_sleep_data is PARKED:
            self.retire()
        # A plain callback in a worker thread cannot be cancelled, so even a kill waits for it.
        if not ending.kills or self.worker_scope is not None:
            await ending.wait_for_step(task.gone.wait)
        self.cancel()
        if self.worker_scope is not None:
            # The callback may be blocked in a resource that the reader has opened.
            self.meta.reader.unblock()
        # A callback that is cancelled may have cleanup to do, also after a kill.
        await ending.wait_for_grace(task.gone.wait)
        if not task.gone.is_set():
            await self._abandon(task)

    async def _abandon(self, task: DetachedTask) -> None:
        meta, stack = self.meta, ""
        callback = meta.current_callback()
        if self.worker_scope is not None:
            self.abandoned_threads.add("handler")
            self.worker_scope.cancel()
            # Read `worker` after the name is in `abandoned_threads`: a thread that ends at this
            # moment removes the name itself, or has cleared `worker` before.
            if not self.worker:
                self.abandoned_threads.discard("handler")
            else:
                stack = stack_of(self.worker)
        await task.cut_off()
        meta.ending.note_abandoned(is_thread="handler" in self.abandoned_threads)
        meta.log.error(
            "a handler did not end and was abandoned; it cannot send any more",
            callback=callback,
            waited=meta.options.stop_timeout,
            exception=stack,
        )

    def has_calls_in_progress(self) -> bool:
        """Whether :meth:`defer_calls_in_progress` may find any."""
        return bool(self._promised) or self.handling is not None

    def defer_calls_in_progress(self) -> None:
        """Nothing is in progress any more. If the handler was cut off during a call, treat the call
        as deferred.
        """
        owed = list(self._promised)
        if self.handling is not None and isinstance(self.handling[2], Caller):
            owed.append(self.handling[2])
        self.handling = None
        for caller in owed:
            caller.defer(self.meta)
