"""``Meta``: the kernel's object for a meta-process, with its lifecycle.

A meta-process has a reader that may block, a handler that runs while there are messages, and a
single order of termination.
"""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NoReturn

import trio
from trio.lowlevel import current_task, enable_ki_protection

from ..kernel import Kernel
from ..processes.children import kill_all
from ..runtime.bridge import ReaderThread, get_ident
from ..runtime.detached_task import DetachedTask, without_cancellation
from ..runtime.parking import wake
from ..runtime.resources import Resources
from ..runtime.time_limit import TimeLimit, wait_within
from ..tables.callbacks import META_CALLBACKS, check_plain, runs_callbacks
from ..tables.mailbox import Mailbox
from ..tables.pending_calls import Caller
from ..tables.timers import Owned, Timer
from ..vocabulary.envelopes import MESSAGE, Envelope, Lane, Priority, kind_name
from ..vocabulary.errors import NodeStoppedError, NotAllowedError, TargetDownError
from ..vocabulary.ids import PID, Alias, Ref, Target
from ..vocabulary.info import Ended
from ..vocabulary.options import MetaOptions
from ..vocabulary.reasons import Crashed, Custom, Killed, Reason
from ..vocabulary.states import (
    MetaOperation,
    MetaState,
    Operation,
    check_meta_allowed,
    check_meta_transition,
)
from .handler import serve
from .inbox import RequestCaller, TwoLanes
from .outbox import Outbox
from .sender import send_wait, wait_for_room
from .spawn import spawn, spawn_beside, spawn_from_thread
from .termination import close, release

if TYPE_CHECKING:
    from ..processes.process import Process

__all__ = ["Meta"]

_HISTORY: Final = 16
_SLEEP: Final = MetaState.SLEEP
_HURRIED_STEP: Final = 0.05
"""Seconds that each step of a termination may still take after a second kill."""
_OVERDUE: Final = 2.0
"""Seconds that the kernel still waits for an overdue termination before it abandons the
meta-process.
"""


class Meta:
    """The kernel's side of a meta-process; the behaviour is the user's side. All methods run on the
    loop's thread, unless they say otherwise.
    """

    name = None
    """A meta-process has no name, only its alias."""
    inline = False
    """Its calls are never answered inline: they always go to the handler."""

    __slots__ = (
        "_initialising",
        "_logger",
        "_retired",
        "accepting",
        "behaviour",
        "birth",
        "blameless",
        "born",
        "callbacks",
        "closing",
        "deferred",
        "env",
        "gone",
        "handled",
        "handler",
        "handling",
        "terminate_begun",
        "has_thread",
        "history",
        "worker_scope",
        "id",
        "initialised",
        "kernel",
        "kills",
        "mailbox",
        "options",
        "outbox",
        "over",
        "owned",
        "owner",
        "serve_inline",
        "priority",
        "process",
        "promised",
        "reader",
        "reader_gone",
        "reader_abandoned",
        "reason",
        "requests",
        "resources",
        "router",
        "sent",
        "silenced",
        "has_split_handlers",
        "state",
        "step_limit",
        "abandoned_threads",
        "thread",
        "timers",
        "unhandled",
        "waiting",
        "worker",
    )

    def __init__(
        self,
        kernel: Kernel,
        behaviour: Any,
        options: MetaOptions,
        owner: "Process | Meta",
        process: "Process",
    ) -> None:
        router = kernel.router
        self.kernel = kernel
        self.router = router
        self.id = Alias(router.node, router.creation, next(router.numbers))
        self.behaviour = behaviour
        self.callbacks = kernel.callbacks_of(type(behaviour), META_CALLBACKS)
        in_task = behaviour._reads_in_task
        self.has_thread = (
            "start" not in self.callbacks.asynchronous if in_task is None else not in_task
        )
        self.options = options
        self.owner = owner
        self.process = process
        self.mailbox: Mailbox = TwoLanes(options.mailbox_size or 0, options.overflow)
        self.outbox = Outbox(router, self.id, options.backlog, options.when_behind, self._overrun)
        self.resources = Resources(self.report)
        self.accepting = True
        self.has_split_handlers = False
        self.waiting = None
        self.state = MetaState.SLEEP
        self.born = perf_counter()
        self.history: list[MetaState | float] = [MetaState.SLEEP, self.born]
        self.reason: Reason | None = None
        self.blameless = False
        """The failure is not the fault of this meta-process, but of its peer or its owner."""
        self.deferred: set[Caller] | None = None
        self.timers: Owned | None = None
        self.owned: dict[object, Meta] = {}
        self.requests: dict[int, RequestCaller] = {}
        inherited: Mapping[str, object] = owner.env
        self.env: Mapping[str, object] = {**inherited, **options.env} if options.env else inherited
        self.priority = options.priority
        self.handled = 0
        self.unhandled = 0
        self.sent = 0
        self.initialised = False
        self.birth: DetachedTask | None = None
        """The task that runs ``init``, if the spawn has made a task for it."""
        self._initialising: trio.CancelScope | None = None
        self._logger: Any = None
        # The reader: a thread, or a detached task.
        self.thread: ReaderThread | None = None
        self.reader: DetachedTask | None = None
        self.reader_gone = trio.Event()
        # The handler.
        self.serve_inline: Callable[[Any, Any], bool] | None = None
        """Serves simple messages in the sender's turn. Returns False for a message that the handler
        must serve.
        """
        self.handler: DetachedTask | None = None
        self.handling: Envelope | None = None
        self.worker_scope: trio.CancelScope | None = None
        """The cancel scope around the worker thread that runs a plain callback."""
        self.worker = 0
        """The identifier of that thread; 0 if there is none."""
        self.promised: list[Caller] = []
        """Calls whose replies a worker thread has deferred, until the loop records them."""
        # The termination.
        self.closing: DetachedTask | None = None
        self.step_limit: TimeLimit | None = None
        """The step of the termination in progress."""
        self.kills = 0
        self.reader_abandoned = False
        """The reader did not end and was abandoned: it may not send any more."""
        self.abandoned_threads: set[str] = set()
        """Abandoned threads, which may still use the resources."""
        self.terminate_begun = False
        """``terminate`` has begun."""
        self.over = False
        """``release`` has begun: only cleanup and notifications follow."""
        self.silenced = False
        """The meta-process has ended, and its abandoned threads may not send any more."""
        self.gone = trio.Event()

    def __repr__(self) -> str:
        return f"<{self.callbacks.behaviour} {self.id}>"

    @property
    def abandoned(self) -> bool:
        """Whether the reader or the handler did not end and was abandoned, so that the resources
        may still be in use.
        """
        return bool(self.abandoned_threads) or self.reader_abandoned

    @property
    def log(self) -> Any:
        """The logger bound to this meta-process."""
        if self._logger is None:
            self._logger = self.kernel.log.logger(
                self.id,
                self.options.log_level,
                behaviour=self.callbacks.behaviour,
                process=str(self.process.id),
            )
        return self._logger

    def report(self, what: str, error: Exception) -> None:
        """Log an exception of user code, and continue."""
        self.log.error(f"{what} raised", exception=Crashed(error).traceback)

    def allow(self, operation: MetaOperation | Operation) -> None:
        """Raise unless the present state allows ``operation``."""
        check_meta_allowed(MetaOperation[operation.name], self.state, self)

    def enter(self, state: MetaState) -> None:
        """Change the state, if the state table has this transition, and record the time."""
        check_meta_transition(self.state, state)
        self.state = state
        self.history += (state, perf_counter())
        del self.history[:-_HISTORY]

    def add_timer(self, timer: Timer) -> None:
        """Own a timer: it ends with this meta-process."""
        if self.timers is None:
            self.timers = Owned()
        self.timers.append(timer)

    def own(self, key: object, thing: "Meta") -> None:
        """Add a child, which must not outlive this meta-process."""
        self.owned[key] = thing

    def disown(self, key: object) -> None:
        """Remove a child that has ended."""
        self.owned.pop(key, None)

    # -- spawn -------------------------------------------------------------------------------------

    spawn = classmethod(spawn)
    spawn_beside = classmethod(spawn_beside)
    spawn_from_thread = spawn_from_thread

    def allow_spawn(self) -> None:
        """Raise if this meta-process is ending or has ended."""
        self.allow(MetaOperation.SPAWN)
        if self.reason is not None:
            raise NotAllowedError(f"{self} is ending ({self.reason}) and starts nothing any more")

    # -- the handler -------------------------------------------------------------------------------

    def wake(self) -> None:
        """Have the handler check the mailbox: start the handler, or wake it if it is idle."""
        handler = self.handler
        if handler is None:
            if self.initialised and self.reason is None:
                self.handler = handler = DetachedTask(self._handler_ended)
                handler.start(self.kernel, self._handle, self.callbacks.behaviour)
        elif handler.task is not None:
            wake(handler.task)

    def wake_from_any_thread(self) -> None:
        """Never called: ``takes_direct`` is False."""
        raise AssertionError("a meta-process is never open")

    def retire(self) -> None:
        """End a handler that has been idle for a while."""
        if self.handler is not None:
            self._retired = True
            self.wake()

    def has_retired(self) -> bool:
        """Whether the handler should end instead of waiting for a message."""
        return self._retired

    async def _handle(self) -> None:
        self._retired = False
        if self.reason is not None:
            return
        self.enter(MetaState.RUNNING)
        try:
            await serve(self, current_task())
        except GeneratorExit:
            raise
        except BaseException as error:
            failure = without_cancellation(error)
            if failure is None:
                raise
            self.finish(self.failed(self.current_callback() or "handler", failure))
        if self.state is MetaState.RUNNING and self.reason is None:
            self.enter(MetaState.SLEEP)

    def _handler_ended(self) -> None:
        self.handler = None
        if len(self.mailbox):
            # A message arrived after the handler had decided to end.
            self.wake()

    @runs_callbacks
    async def callback(self, name: str, *args: Any) -> None:
        """Call ``init`` or ``terminate``: an ``async def`` on the loop, a plain ``def`` in a worker
        thread.
        """
        function = getattr(self.behaviour, name)
        if name in self.callbacks.asynchronous:
            self.terminate_begun = name == "terminate"
            await function(*args)
            return

        def call() -> None:
            self.terminate_begun = name == "terminate"
            try:
                check_plain(self, name, function(*args))
            finally:
                self.worker_ended(name)

        self.abandoned_threads.add(name)
        await self.in_worker(call)

    async def in_worker(self, work: Any, *args: Any) -> None:
        """Run blocking user code in a worker thread. Cancellation abandons the thread."""
        thread_fairness = self.kernel.thread_fairness
        # A loop that is never idle must not starve the worker thread.
        thread_fairness.watch()
        try:
            await trio.to_thread.run_sync(
                work, *args, abandon_on_cancel=True, limiter=self.kernel.workers
            )
        finally:
            thread_fairness.unwatch()

    def worker_ended(self, which: str) -> None:
        """Record, in a worker thread, that its work is done. The thread may have been abandoned
        long ago.
        """
        self.abandoned_threads.discard(which)
        if self.over:
            try:
                self.router.bridge.post(self.abandoned_thread_ended, which)
            except NodeStoppedError:
                self.abandoned_thread_ended(which)

    def abandoned_thread_ended(self, which: str) -> None:
        """Close the resources once no abandoned thread can use them."""
        self.abandoned_threads.discard(which)
        if self.over and not self.abandoned_threads:
            self.resources.close()

    def messages_out(self) -> int:
        """Count the messages that the reader and the handler have sent."""
        return self.sent + self.outbox.sent + self.outbox.direct

    def current_callback(self) -> str | None:
        """Name the callback in progress, if any."""
        if not self.initialised:
            return None if self.gone.is_set() else "init"
        if self.state is MetaState.TERMINATED:
            return None if self.gone.is_set() else "terminate"
        return None if self.handling is None else kind_name(self.handling[0])

    @property
    def takes_direct(self) -> bool:
        """Always False: no sender appends to the lanes directly, they must ask the mailbox."""
        return False

    takes_bounded = takes_direct

    def serves_in_passing(self, message: object, sender: PID | Alias, /) -> bool:
        """Serve a message in the sender's turn, if the behaviour can do that and no other message
        waits before it.

        The handler is asleep, and nothing interrupts a plain function on the loop. So callbacks do
        not overlap, and no message overtakes another.
        """
        serve, box = self.serve_inline, self.mailbox
        if (
            serve is None
            or self.state is not _SLEEP
            or box.main
            or box.ahead
            or get_ident() != self.router.loop_thread
        ):
            return False
        try:
            served = serve(message, sender)
        except Exception as error:
            self.handling = (MESSAGE, sender, None, message)
            self.finish(self.failed("handle_message", error))
            return True
        self.handled += served
        return served

    def answer_now(self, caller: Caller, request: object) -> NoReturn:
        """Never called: ``inline`` is False."""
        raise AssertionError("a meta-process does not answer on the spot")

    def failed(self, callback: str, error: BaseException) -> Reason:
        """Record an exception that left a callback, and fail the call that the callback was
        serving.
        """
        reason = Crashed(error)
        self.kernel.note_crash(self, reason)
        # The reader fails independently of the message that the handler is serving.
        handling = None if callback == "start" else self.handling
        message_type = None if handling is None else type(handling[3]).__qualname__
        self.kernel.obituaries.note_crash(self, callback, message_type)
        if self.kernel.log.wants("error"):
            self.log.error(
                "meta-process crashed",
                callback=callback,
                message_type=message_type,
                lanes=self.mailbox.depths(),
                error=str(reason),
                exception=reason.traceback,
            )
        if handling is not None and isinstance(caller := handling[2], Caller):
            caller.settle(None, TargetDownError(caller.to, caller.request, reason))
        if callback != "start" or not self.has_thread:
            self.pass_on(error)
        return reason

    def pass_on(self, error: BaseException) -> None:
        """Pass KeyboardInterrupt and SystemExit on to the host program."""
        if not isinstance(error, Exception):
            self.kernel.panic(error)

    async def send_wait(self, to: Target, message: object, priority: Priority | None) -> bool:
        """Send from async code. Waits while the receiver is too far behind, as the reader's thread
        does.
        """
        return await send_wait(self, to, message, priority)

    async def wait_for_room(self, to: Target, lane: Lane = Lane.MAIN) -> bool:
        """Wait while a receiver is full or too far behind. Returns whether it waited. Cancellation
        loses nothing.
        """
        return await wait_for_room(self, to, lane)

    # -- requests ----------------------------------------------------------------------------------

    def request(
        self, to: Target, request: object, timeout: float | None, priority: Priority | None
    ) -> Ref:
        """Send a request without waiting for its reply."""
        self.allow(MetaOperation.REQUEST)
        self.router.resolve(to)
        caller = RequestCaller(self, next(self.router.references), to, request)
        self.requests[caller.number] = caller
        self.kernel.calls.begin(caller, self.priority if priority is None else priority)
        if timeout is not None and not caller.settled:
            self.kernel.clock.arm_call(caller, timeout)
        return caller.ref

    def cancel_request(self, ref: Ref) -> bool:
        """Cancel a request: no response follows."""
        caller = self.requests.pop(ref.number, None)
        if caller is None:
            return False
        caller.abandon()
        return True

    # -- termination -------------------------------------------------------------------------------

    def _overrun(self) -> None:
        self.router.bridge.do(
            self.finish,
            Custom(f"its receivers were more than {self.options.backlog} messages behind"),
        )

    def ask_to_exit(self, _sender: PID | Alias, reason: Reason) -> None:
        """End. The callback in progress may finish; the waiting messages are not served."""
        self.finish(reason)

    @enable_ki_protection
    def finish(self, reason: Reason) -> None:
        """Begin the termination. Only the first reason counts."""
        if self.reason is not None:
            return
        self._begin_to_end(reason)
        if self.initialised:
            self.closing = DetachedTask()
            self.closing.start(
                self.kernel, lambda: close(self), f"{self.callbacks.behaviour} ending"
            )
        elif self._initialising is not None:
            self._initialising.cancel()

    async def end_here(self, reason: Reason) -> None:
        """Terminate in the reader's task: the reader has returned, so this saves a task."""
        self._begin_to_end(reason)
        self.closing, self.reader = self.reader, None
        await close(self)

    @enable_ki_protection
    def _begin_to_end(self, reason: Reason) -> None:
        self.reason = reason
        self.kernel.obituaries.note(self)
        self.accepting = False
        self.serve_inline = None
        self.mailbox.refuse_waiters()
        for child in list(self.owned.values()):
            # The reader may be waiting for the init of this child, and must be able to end.
            if not child.initialised:
                child.finish(reason)

    @enable_ki_protection
    def kill(self) -> None:
        """End without waiting for the handler. A second kill also shortens every step of the
        termination.
        """
        self.kills += 1
        self.finish(Killed())
        if self.handler is not None:
            self.handler.cancel()
        if self.kills > 1 and self.step_limit is not None:
            self.step_limit.hurry(_HURRIED_STEP)
        for child in list(self.owned.values()):
            if not child.options.linger:
                child.kill()

    force_end = kill

    def is_unborn_in(self, _task: object) -> bool:
        """Always False: the spawn of a meta-process does its own cleanup."""
        return False

    def stop_accepting(self) -> "Sequence[Process]":
        """If this is a server, stop accepting connections. Returns the processes of its
        connections.
        """
        return self.behaviour._stop_accepting() if self.initialised else ()

    def patience(self) -> float:
        """Return how long the next step of the termination may take."""
        limit = self.options.stop_timeout
        return limit if self.kills < 2 else min(limit, _HURRIED_STEP)

    def finish_with_owner(self, reason: Reason) -> None:
        """Begin the termination because the owner ends. A failure is the owner's."""
        self.blameless = True
        self.finish(reason)

    async def shut(self, reason: Reason) -> None:
        """Stop on behalf of the owner. Takes bounded time, since each step of the
        termination does.
        """
        self.finish_with_owner(reason)
        if not self.initialised:
            await wait_within(self.options.stop_timeout, self.gone.wait)
            await self.abandon()
        await self.gone.wait()

    async def wait_gone(self) -> None:
        """Wait until the meta-process has ended and everything is released."""
        await self.gone.wait()

    async def abandon(self) -> None:
        """Give up on a meta-process that does not end."""
        if self.closing is not None:
            # Each step of the termination has a time limit, so it is nearly done: a busy machine
            # must not cost the meta-process its `terminate`.
            with trio.move_on_after(_OVERDUE):
                await self.gone.wait()
        if self.gone.is_set():
            return
        self.note_abandoned()
        self.log.error(
            "meta-process abandoned: it did not end when killed", callback=self.current_callback()
        )
        for detached in (self.birth, self.closing):
            if detached is not None:
                await detached.cut_off()
        with trio.CancelScope(shield=True):
            await kill_all(self.owned)
        if not self.reader_gone.is_set() and self.initialised:
            self.abandoned_threads.add("reader")
        release(self)

    def note_abandoned(self) -> None:
        """List this meta-process as abandoned in the exit report."""
        if all(ended.pid != self.id for ended in self.kernel.abandoned):
            self.kernel.abandoned.append(
                Ended(self.id, None, self.callbacks.behaviour, self.reason)
            )
