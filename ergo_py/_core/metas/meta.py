"""The life of a meta-process: a reader that may block, a handler that comes when there are
messages, and one order of ending.
"""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NoReturn

import trio
from trio.lowlevel import current_task, enable_ki_protection

from ..kernel import Kernel
from ..processes.message_loop import check_plain
from ..processes.termination import kill_all
from ..runtime.bridge import ReaderThread, get_ident
from ..runtime.detached_task import DetachedTask, without_cancellation
from ..runtime.parking import wake
from ..runtime.resources import Resources
from ..runtime.time_limit import TimeLimit, wait_within
from ..tables.callbacks import META_CALLBACKS, runs_callbacks
from ..tables.mailbox import Mailbox
from ..tables.pending_calls import Caller
from ..tables.timers import Owned
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
_HASTE: Final = 0.05
"""Seconds that each step of an ending may still take after a second kill."""
_LAST_CHANCE: Final = 2.0
"""Seconds after which an ending that should be over is left behind."""


class Meta:
    """The kernel's side of a meta-process; the behaviour is the user's side. Everything here
    happens on the loop's thread.
    """

    name = None
    """A meta-process has no name, only its alias."""
    inline = False
    """It always has a handler answer."""

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
        "has_last_word",
        "has_thread",
        "history",
        "hop",
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
        "passing",
        "priority",
        "process",
        "promised",
        "reader",
        "reader_gone",
        "reader_left",
        "reason",
        "requests",
        "resources",
        "router",
        "sent",
        "silenced",
        "splits",
        "state",
        "step",
        "stragglers",
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
        self.has_thread = "start" not in self.callbacks.asynchronous
        self.options = options
        self.owner = owner
        self.process = process
        self.mailbox: Mailbox = TwoLanes(options.mailbox_size or 0, options.overflow)
        self.outbox = Outbox(router, self.id, options.backlog, options.when_behind, self._overrun)
        self.resources = Resources(self.report)
        self.accepting = True
        self.splits = False
        self.waiting = None
        self.state = MetaState.SLEEP
        self.born = perf_counter()
        self.history: list[MetaState | float] = [MetaState.SLEEP, self.born]
        self.reason: Reason | None = None
        self.blameless = False
        """If it ends with a failure, that is not its own: its peer's doing, or its owner's."""
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
        """The task in which ``init`` runs, if it was made for that."""
        self._initialising: trio.CancelScope | None = None
        self._logger: Any = None
        # The reader: a thread or an detached.
        self.thread: ReaderThread | None = None
        self.reader: DetachedTask | None = None
        self.reader_gone = trio.Event()
        # The handler.
        self.passing: Callable[[Any, Any], bool] | None = None
        """Serves simple messages in their sender's turn; says False for what it leaves to the
        handler.
        """
        self.handler: DetachedTask | None = None
        self.handling: Envelope | None = None
        self.hop: trio.CancelScope | None = None
        """Around the worker thread in which a plain callback runs."""
        self.worker = 0
        """That thread."""
        self.promised: list[Caller] = []
        """Calls whose answers were deferred in a worker thread, for the loop to note."""
        # The end.
        self.closing: DetachedTask | None = None
        self.step: TimeLimit | None = None
        """The step of the ending that is under way."""
        self.kills = 0
        self.reader_left = False
        """The reader would not end, and was left: it may not send any more."""
        self.stragglers: set[str] = set()
        """Threads that were left behind, and may still use what was opened."""
        self.has_last_word = False
        """``terminate`` has begun."""
        self.over = False
        """Nothing follows but the telling."""
        self.silenced = False
        """All is over, and whoever was left behind may not send any more."""
        self.gone = trio.Event()

    def __repr__(self) -> str:
        return f"<{self.callbacks.behaviour} {self.id}>"

    @property
    def abandoned(self) -> bool:
        """Whether a part of it would not end, and was left behind: what it had opened may still be
        in use.
        """
        return bool(self.stragglers) or self.reader_left

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
        """Log an error of the user's code that must not stop what is being done."""
        self.log.error(f"{what} raised", exception=Crashed(error).traceback)

    def allow(self, operation: MetaOperation | Operation) -> None:
        """Raise unless ``operation`` may be done in the present state."""
        check_meta_allowed(MetaOperation[operation.name], self.state, self)

    def enter(self, state: MetaState) -> None:
        """Change state, if the table knows the change, and note when."""
        check_meta_transition(self.state, state)
        self.state = state
        self.history += (state, perf_counter())
        del self.history[:-_HISTORY]

    def own(self, key: object, thing: "Meta") -> None:
        """Note a meta-process that must not outlive this one."""
        self.owned[key] = thing

    def disown(self, key: object) -> None:
        """Forget one that has ended."""
        self.owned.pop(key, None)

    # -- birth -------------------------------------------------------------------------------------

    spawn = classmethod(spawn)
    spawn_beside = classmethod(spawn_beside)
    spawn_from_thread = spawn_from_thread

    def allow_spawn(self) -> None:
        """Raise if it is too late to start anything."""
        self.allow(MetaOperation.SPAWN)
        if self.reason is not None:
            raise NotAllowedError(f"{self} is ending ({self.reason}) and starts nothing any more")

    # -- the handler -------------------------------------------------------------------------------

    def wake(self) -> None:
        """Have the handler look at the mailbox: start it, or wake it if it lingers."""
        handler = self.handler
        if handler is None:
            if self.initialised and self.reason is None:
                self.handler = handler = DetachedTask(self._handler_ended)
                handler.start(self.kernel, self._handle, self.callbacks.behaviour)
        elif handler.task is not None:
            wake(handler.task)

    def stir(self) -> None:
        """Never asked for."""
        raise AssertionError("a meta-process is never open")

    def retire(self) -> None:
        """Let a handler go that had nothing to do for a while."""
        if self.handler is not None:
            self._retired = True
            self.wake()

    def has_retired(self) -> bool:
        """Whether the handler is to go, now that there is nothing to do."""
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
            # Something came between the decision to go and this line.
            self.wake()

    @runs_callbacks
    async def callback(self, name: str, *args: Any) -> None:
        """Call ``init`` or ``terminate`` where its colour says: ``async def`` on the loop, a plain
        ``def`` on a worker thread.
        """
        function = getattr(self.behaviour, name)
        if name in self.callbacks.asynchronous:
            self.has_last_word = name == "terminate"
            await function(*args)
            return

        def call() -> None:
            self.has_last_word = name == "terminate"
            try:
                check_plain(self, name, function(*args))
            finally:
                self.worker_ended(name)

        self.stragglers.add(name)
        await self.in_worker(call)

    async def in_worker(self, work: Any, *args: Any) -> None:
        """Run blocking code of the user's in a worker thread. If it is cancelled, the thread is
        left behind.
        """
        thread_fairness = self.kernel.thread_fairness
        # A loop that is never idle must not starve this thread either.
        thread_fairness.watch()
        try:
            await trio.to_thread.run_sync(
                work, *args, abandon_on_cancel=True, limiter=self.kernel.workers
            )
        finally:
            thread_fairness.unwatch()

    def worker_ended(self, which: str) -> None:
        """Note, in a worker thread, that it is done; perhaps it was left behind long ago."""
        self.stragglers.discard(which)
        if self.over:
            try:
                self.router.bridge.post(self.straggler_ended, which)
            except NodeStoppedError:
                self.straggler_ended(which)

    def straggler_ended(self, which: str) -> None:
        """Close what was opened once nobody can use it any more."""
        self.stragglers.discard(which)
        if self.over and not self.stragglers:
            self.resources.close()

    def messages_out(self) -> int:
        """How many messages both of its halves have sent."""
        return self.sent + self.outbox.sent + self.outbox.direct

    def current_callback(self) -> str | None:
        """The callback in progress, if any."""
        if not self.initialised:
            return None if self.gone.is_set() else "init"
        if self.state is MetaState.TERMINATED:
            return None if self.gone.is_set() else "terminate"
        return None if self.handling is None else kind_name(self.handling[0])

    @property
    def open(self) -> bool:
        """Its mailbox is always asked."""
        return False

    measured = open

    def serves_in_passing(self, message: object, sender: PID | Alias, /) -> bool:
        """Serve a message in its sender's turn, if the behaviour can and the handler could be
        served nothing before it.

        The handler is asleep, and a plain function on the loop is not interrupted: so callbacks do
        not overlap, and nothing is overtaken.
        """
        passing, box = self.passing, self.mailbox
        if (
            passing is None
            or self.state is not _SLEEP
            or box.main
            or box.ahead
            or get_ident() != self.router.loop_thread
        ):
            return False
        try:
            served = passing(message, sender)
        except Exception as error:
            self.handling = (MESSAGE, sender, None, message)
            self.finish(self.failed("handle_message", error))
            return True
        self.handled += served
        return served

    def answer_now(self, caller: Caller, request: object) -> NoReturn:
        """Never asked for."""
        raise AssertionError("a meta-process does not answer on the spot")

    def failed(self, callback: str, error: BaseException) -> Reason:
        """Account for an exception that left a callback, and tell the caller it was serving."""
        reason = Crashed(error)
        self.kernel.note_crash(self, reason)
        # Whatever the handler is doing is no concern of the reader's.
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
        """Let the host program have what is meant for it: KeyboardInterrupt, SystemExit."""
        if not isinstance(error, Exception):
            self.kernel.panic(error)

    async def send_wait(self, to: Target, message: object, priority: Priority | None) -> bool:
        """Send from async code, as far ahead of the receiver as the reader's thread may be."""
        return await send_wait(self, to, message, priority)

    async def wait_for_room(self, to: Target, lane: Lane = Lane.MAIN) -> bool:
        """Wait while a receiver is too far behind, or full. Returns whether it waited; cancelling
        loses nothing.
        """
        return await wait_for_room(self, to, lane)

    # -- requests ----------------------------------------------------------------------------------

    def request(
        self, to: Target, request: object, timeout: float | None, priority: Priority | None
    ) -> Ref:
        """Ask without waiting."""
        self.allow(MetaOperation.REQUEST)
        self.router.resolve(to)
        caller = RequestCaller(self, next(self.router.references), to, request)
        self.requests[caller.number] = caller
        self.kernel.calls.begin(caller, self.priority if priority is None else priority)
        if timeout is not None and not caller.settled:
            self.kernel.clock.arm_call(caller, timeout)
        return caller.ref

    def cancel_request(self, ref: Ref) -> bool:
        """Take a request back; no response follows."""
        caller = self.requests.pop(ref.number, None)
        if caller is None:
            return False
        caller.abandon()
        return True

    # -- the end -----------------------------------------------------------------------------------

    def _overrun(self) -> None:
        self.router.bridge.do(
            self.finish,
            Custom(f"its receivers were more than {self.options.backlog} messages behind"),
        )

    def ask_to_exit(self, _sender: PID | Alias, reason: Reason) -> None:
        """End; the callback in progress is allowed to finish, what waits is not begun."""
        self.finish(reason)

    @enable_ki_protection
    def finish(self, reason: Reason) -> None:
        """Begin the end. The first reason counts."""
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
        """End in the task of the reader, which has ended by itself: no other task is needed."""
        self._begin_to_end(reason)
        self.closing, self.reader = self.reader, None
        await close(self)

    @enable_ki_protection
    def _begin_to_end(self, reason: Reason) -> None:
        self.reason = reason
        self.kernel.obituaries.note(self)
        self.accepting = False
        self.passing = None
        self.mailbox.refuse_waiters()
        for child in list(self.owned.values()):
            # The reader may be waiting for it, and must be free to end.
            if not child.initialised:
                child.finish(reason)

    @enable_ki_protection
    def kill(self) -> None:
        """End without waiting for the handler. A second kill cuts every step of the ending short,
        too.
        """
        self.kills += 1
        self.finish(Killed())
        if self.handler is not None:
            self.handler.cancel()
        if self.kills > 1 and self.step is not None:
            self.step.hurry(_HASTE)
        for child in list(self.owned.values()):
            if not child.options.linger:
                child.kill()

    force_end = kill

    def is_unborn_in(self, _task: object) -> bool:
        """A meta-process is undone by itself."""
        return False

    def stop_accepting(self) -> "Sequence[Process]":
        """Accept nobody any more, if this is a server. Returns the processes that were made for its
        connections.
        """
        return self.behaviour._stop_accepting() if self.initialised else ()

    def patience(self) -> float:
        """How long the next step of the ending may take."""
        limit = self.options.stop_timeout
        return limit if self.kills < 2 else min(limit, _HASTE)

    def finish_with_owner(self, reason: Reason) -> None:
        """Begin the end because the owner ends, whose failure it is if it is one."""
        self.blameless = True
        self.finish(reason)

    async def shut(self, reason: Reason) -> None:
        """Stop it on behalf of its owner. Every step of an ending is bounded, so this is."""
        self.finish_with_owner(reason)
        if not self.initialised:
            await wait_within(self.options.stop_timeout, self.gone.wait)
            await self.abandon()
        await self.gone.wait()

    async def wait_gone(self) -> None:
        """Wait until nothing of it is left."""
        await self.gone.wait()

    async def abandon(self) -> None:
        """Leave it behind: nothing helps any more."""
        if self.closing is not None:
            # Each of its steps is bounded: it is nearly through, and a busy machine must not cost
            # it its last word.
            with trio.move_on_after(_LAST_CHANCE):
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
            self.stragglers.add("reader")
        release(self)

    def note_abandoned(self) -> None:
        """Have the exit report name it."""
        if all(one.pid != self.id for one in self.kernel.abandoned):
            self.kernel.abandoned.append(
                Ended(self.id, None, self.callbacks.behaviour, self.reason)
            )
