"""`Process`: a trio task that serves a mailbox, from ``init`` until its watchers are notified of
its end.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from time import perf_counter
from typing import Any, ClassVar, Final, TypeVar

import trio
from trio.lowlevel import Task, current_task, enable_ki_protection, in_trio_task

from ..kernel import Kernel
from ..messaging.receiver import NO_RECEIVER, Stoppable
from ..messaging.waiters import TaskCaller
from ..runtime.abandonable import Abandonable
from ..runtime.bridge import get_ident
from ..runtime.cancel_scopes import CancelScopes, is_being_closed, left_open
from ..runtime.detached_task import without_cancellation
from ..runtime.parking import ENDED, PARKED, TaskPlaceholder, park_unless, wake
from ..tables.callbacks import Callbacks, runs_callbacks
from ..tables.child_slot import ChildSlot
from ..tables.mailbox import Mailbox
from ..tables.pending_calls import Caller
from ..tables.timers import Owned, Timer
from ..vocabulary.envelopes import EXIT, FAILED, KILL, URGENT_LANE, Envelope, Overflow, kind_name
from ..vocabulary.errors import InitTimeoutError, NotAllowedError
from ..vocabulary.ids import PID, Alias, EventName
from ..vocabulary.options import Options
from ..vocabulary.reasons import Crashed, Killed, Reason
from ..vocabulary.states import (
    CALLS_ALLOWED,
    INIT,
    RUNNING,
    SLEEP,
    STOPPING,
    TERMINATED,
    TRANSITIONS,
    WAIT_RESPONSE,
    Operation,
    State,
    check_allowed,
    check_transition,
)
from .background_task import BackgroundTask, end_tasks
from .failure import account_for, account_for_task
from .message_loop import answer_now, check_plain, check_waiting, serve
from .termination import GRACE, Patience, abandon, fail_to_end, finish, shut
from .unhandled_messages import skip_given_up, sweep

__all__ = ["Process", "caller_in"]

R = TypeVar("R")

_HISTORY: Final = 16


class Process:
    """The kernel's side of a process; the behaviour is the user's side. All methods run on the
    loop's thread, unless they say otherwise.
    """

    blameless: ClassVar = False
    """Whether its failure is blamed on another object. A process is to blame for its own
    failures.
    """
    __slots__ = (
        "_ending",
        "_gone",
        "_logger",
        "_abandonable",
        "_scope",
        "abandoned",
        "accepting",
        "aliases",
        "behaviour",
        "born",
        "callbacks",
        "deferred",
        "env",
        "events",
        "forced",
        "handled",
        "handling",
        "history",
        "home",
        "id",
        "inline",
        "kernel",
        "left_to",
        "mailbox",
        "main",
        "measured",
        "name",
        "open",
        "options",
        "owned",
        "parent",
        "peer",
        "postponed",
        "priority",
        "reason",
        "router",
        "running_time",
        "slot",
        "slots",
        "sent",
        "sessions_over",
        "has_split_handlers",
        "state",
        "stirred",
        "task",
        "tasks",
        "timers",
        "trap_exit",
        "unhandled",
        "waiting",
        "woken",
    )

    def __init__(
        self, kernel: Kernel, callbacks: Callbacks, options: Options, parent: "Process | None"
    ) -> None:
        router = kernel.router
        self.kernel = kernel
        self.router = router
        self.id = PID(router.node, router.creation, next(router.numbers))
        self.callbacks = callbacks
        self.options = options
        self.parent = parent
        self.behaviour: Any = None
        self.mailbox = Mailbox(options.mailbox_size or 0, options.overflow)
        self.main = self.mailbox.main
        self.accepting = True
        is_plain = kernel.observer is None and not callbacks.supervises
        self.open = is_plain and not options.mailbox_size
        """Whether senders may append to the main lane without any check, from any thread. Every
        send tests this first. Once False it stays False: otherwise a direct append could overtake a
        message that a thread sent through the loop.
        """
        self.measured = (
            is_plain and not self.open and options.overflow in (Overflow.RAISE, Overflow.WAIT)
        )
        """Whether senders may append to the main lane after checking only the mailbox's bound."""
        self.peer: Any = NO_RECEIVER
        """The receiver of its last message. A cache: most processes send to the same receiver
        again, and need no lookup.
        """
        self.stirred = False
        """Whether a thread has already asked the loop to wake this process."""
        self.has_split_handlers = callbacks.has_split_handlers
        self.inline = (
            router.inline_calls
            and "handle_call" in callbacks.defined
            and "handle_call" not in callbacks.asynchronous
            and not callbacks.has_split_handlers
        )
        """Whether a call may be served inline, in the caller's task, while this process sleeps."""
        self.state = INIT
        self.born = perf_counter()
        self.history: list[State | float] = [INIT, self.born]
        self.task: Task | TaskPlaceholder = _NOT_YET
        self.home: Task = current_task()
        """The task in which the callbacks run: the spawner's task during ``init``, then its own."""
        self.name: str | None = None
        self.priority = options.priority
        self.trap_exit = False
        inherited: Mapping[str, object] = kernel.env if parent is None else parent.env
        self.env: Mapping[str, object] = {**inherited, **options.env} if options.env else inherited
        self.reason: Reason | None = None
        self.handling: Envelope | None = None
        self.handled = 0
        self.sent = 0
        self.unhandled = 0
        self.running_time = 0.0
        """Seconds spent in callbacks, up to the end of the last turn."""
        self.woken = 0.0
        """When the current turn began, in its own task or inline in a caller's; 0.0 while it
        sleeps.
        """
        self.waiting: Caller | Process | None = None
        # Created on first use: a process that never needs these does not pay for them.
        self.owned: dict[object, Stoppable] | None = None
        self.aliases: dict[Alias, None] | None = None
        self.events: list[EventName] | None = None
        self.timers: Owned | None = None
        self.deferred: set[Caller] | None = None
        self.postponed: deque[Envelope] | None = None
        """Envelopes that its behaviour has postponed. They are served before the queued ones."""
        self.slot: ChildSlot | None = None
        """Its slot under a supervisor."""
        self.left_to: ChildSlot | None = None
        """The slot whose next process inherits its main lane."""
        self.slots: dict[str, ChildSlot] | None = None
        """The slots of its children, if it is a supervisor."""
        self.sessions_over: trio.Event | None = None
        """Set when the sessions of its servers have ended. They are stopped first when this process
        ends, and have their own time limits.
        """
        self._logger: Any = None
        self._gone: trio.Event | None = None
        self._scope: trio.CancelScope | None = None
        self._ending: trio.CancelScope | None = None
        self._abandonable: Abandonable | None = None
        self.tasks: dict[BackgroundTask, None] = NO_TASKS
        """Its running background tasks."""
        self.forced = False
        """Whether it had to be killed, a kill interrupted a last callback, or background tasks were
        cut off.
        """
        self.abandoned = False
        """Whether it survived its kill and was abandoned."""

    @property
    def log(self) -> Any:
        """The logger bound to this process."""
        if self._logger is None:
            self._logger = self.kernel.log.logger(
                self.id, self.options.log_level, name=self.name, behaviour=self.callbacks.behaviour
            )
        return self._logger

    def __repr__(self) -> str:
        called = f" {self.name!r}" if self.name else ""
        return f"<{self.callbacks.behaviour}{called} {self.id}>"

    def allow(self, operation: Operation) -> None:
        """Raise unless ``operation`` is allowed in the current state."""
        if self.tasks and self.state is SLEEP and self._is_in_task():
            # A background task acts for its process between two callbacks, too.
            return
        check_allowed(operation, self.state, self)

    def _is_in_task(self) -> bool:
        task = current_task() if in_trio_task() else None
        return task is not None and any(started.runs_in(task) for started in self.tasks)

    def enter(self, state: State) -> None:
        """Change state, if the table allows the transition, and record the time."""
        # Inlined check_transition(): every start and every end of a process pays for it.
        if state not in TRANSITIONS[self.state]:
            check_transition(self.state, state)
        self.state = state
        history = self.history
        history += (state, perf_counter())
        if len(history) > _HISTORY:
            del history[: _HISTORY // 2]

    # -- start -------------------------------------------------------------------------------------

    @runs_callbacks
    def _initialise(
        self, factory: Any, args: tuple[Any, ...], context: Context
    ) -> Coroutine[Any, Any, None] | None:
        """Create the behaviour and call its ``init``. For an async ``init``, return the coroutine
        that the spawner has to await: a plain ``init`` pays for no coroutine.
        """
        self.behaviour = behaviour = factory(*args)
        behaviour._process = self
        if "init" in self.callbacks.asynchronous:
            return self._wait_for_init(context)
        if "init" in self.callbacks.defined:
            scopes = CancelScopes(self.home)
            check_plain(self, "init", behaviour.init())
            if scopes.are_left():
                scopes.close_plain()
                raise left_open(self.callbacks.behaviour, "init", scopes.nurseries())
        return None

    @runs_callbacks
    async def _wait_for_init(self, context: Context) -> None:
        timeout = self.options.init_timeout
        # init runs in the spawner's task, which must be able to leave it even if it ignores
        # cancellation.
        self._abandonable = abandonable = Abandonable()
        patience = Patience(self, self._leave_init, "leave an init behind")
        self.kernel.clock.arm_call(patience, timeout + 2 * GRACE)
        try:
            with trio.CancelScope(deadline=trio.current_time() + timeout) as scope:
                self._scope = scope
                scopes, error = CancelScopes(self.home), None
                try:
                    await abandonable.run_part(self.behaviour.init(), context)
                finally:
                    if scopes.are_left():
                        error = left_open(self.callbacks.behaviour, "init", scopes.nurseries())
                        await scopes.close()
                if error is not None:
                    raise error
        finally:
            patience.abandon()
            self._abandonable = None
        if isinstance(self.reason, Crashed):
            # A background task has crashed the process.
            raise self.reason.error
        # Raise also if init swallowed the cancellation: it returned too late, and so has failed.
        if (scope.cancel_called or abandonable.abandoned) and not isinstance(self.reason, Killed):
            raise InitTimeoutError(self.callbacks.behaviour, timeout)
        self._scope = None

    async def _leave_init(self) -> None:
        # A supervisor may take longer than its own limit, since its children have theirs: abandon
        # it only after the limit has cancelled it.
        if self._scope is not None and self._scope.cancel_called:
            await self.cut_off()

    def is_unborn_in(self, task: Task) -> bool:
        """Whether its failed ``init`` ran in this task and has not been undone, because another
        exception was raised where it should have been.
        """
        return self.task is _NOT_YET and self.home is task and self.state not in (SLEEP, TERMINATED)

    def take_slot(self, slot: ChildSlot) -> None:
        """Take a slot under a supervisor, and inherit the messages that its predecessor left
        there.
        """
        self.slot = slot
        kept = slot.inherit(self)
        if kept:
            for lane in kept.values():
                skip_given_up(lane)
            self.mailbox.inherit(kept)
            self.main = self.mailbox.main

    # -- message loop ------------------------------------------------------------------------------

    async def run_guarded(self) -> None:
        """Run the process in a task that can be abandoned from the beginning."""
        self._abandonable = Abandonable()
        await self._abandonable.run(self.run())

    def guard(self, task: Task) -> Abandonable:
        """Make the task abandonable: its callback can wait for anything, and so may ignore
        cancellation.
        """
        if self._abandonable is None:
            self._abandonable = Abandonable()
            self._abandonable.take_over(task)
        return self._abandonable

    async def run(self) -> None:
        """Run the process until it has ended. No exception leaves this function: it would cancel
        all other tasks of the node.
        """
        if self.abandoned:
            # Abandoned before its first step.
            return
        self.task = self.home = task = current_task()
        status = task._cancel_status
        # The reason if the cancel scope catches the cancellation of a kill.
        reason: Reason | None = _KILLED
        try:
            try:
                box = self.mailbox
                if not (self.callbacks.has_start_hooks or box.main or box.ahead or box.log):
                    # Most processes sleep first. The costs of serving, above all the cancel scope,
                    # can wait until there is something to serve.
                    await park_unless(task, box.main)
                    if self.state is TERMINATED:
                        return
                if self.callbacks.any_async:
                    # The scope lets a kill interrupt a callback that waits for something else than
                    # its mailbox.
                    with trio.CancelScope() as self._scope:
                        scopes = CancelScopes(task)
                        try:
                            reason = await serve(self)
                        finally:
                            if scopes.are_left() and not is_being_closed(task):
                                await scopes.close()
                else:
                    reason = await serve(self)
            except BaseException as error:
                if self.abandoned or (isinstance(error, GeneratorExit) and is_being_closed(task)):
                    raise
                # A kill interrupted the callback, and its nursery raised more than the
                # cancellation.
                reason = (
                    _KILLED
                    if self._scope is not None and self._scope.cancel_called
                    else Crashed(error)
                )
                if not isinstance(error, Exception | trio.Cancelled | GeneratorExit):
                    self.kernel.panic(error)
                self.log.error(
                    "a callback raised while it was being killed",
                    exception=Crashed(error).traceback,
                )
            if task._cancel_status is not status:
                # A plain callback left a cancel scope open.
                await CancelScopes.since(task, status).close()
            if reason is not None:
                await finish(
                    self, reason if reason is not _KILLED or self.reason is None else self.reason
                )
        except BaseException as error:
            if isinstance(error, GeneratorExit) and is_being_closed(task):
                raise
            if self.abandoned:
                # The process was abandoned, so its exception has no receiver: drop it.
                return
            fail_to_end(self, error)

    # -- background tasks --------------------------------------------------------------------------

    def start_task(self, function: Callable[[], Awaitable[object]], name: str) -> BackgroundTask:
        """Start a background task. It ends with this process."""
        self.allow(Operation.SPAWN)
        if not self.tasks:
            self.tasks = {}
        task = BackgroundTask(self, function, name)
        self.tasks[task] = None
        self.kernel.start(task.run, name=f"{self.callbacks.behaviour}: {name}")
        return task

    def task_failed(self, name: str, error: BaseException) -> None:
        """Handle an exception that left a background task: the process crashes, and the callback in
        progress is cancelled.
        """
        failure = without_cancellation(error)
        if failure is None:
            return
        if self.state in (STOPPING, TERMINATED):
            self.log.error(
                "a background task raised while its process ended",
                task=name,
                exception=Crashed(error).traceback,
            )
            return
        reason = account_for_task(self, name, failure)
        if reason is None:
            return
        self.refuse()
        is_asleep = self.task.custom_sleep_data is PARKED
        self.end(FAILED, reason)
        if not is_asleep:
            self.cut(reason)

    async def end_tasks(self) -> None:
        """Cancel its background tasks, wait for them, and cut off those that ignore it."""
        stubborn = await end_tasks(self.tasks, self.options.terminate_timeout)
        if stubborn:
            names = ", ".join(task.name for task in stubborn)
            self.log.error(
                "background tasks did not end when cancelled and were cut off", tasks=names
            )
            self.forced = True
            await self.cut_off_tasks()

    # -- tasks that ignore cancellation ------------------------------------------------------------

    async def cut_off(self) -> None:
        """End its task, or its ``init`` in the spawner's task, even if the callback ignores
        cancellation.
        """
        if isinstance(self.task, Task):
            await self.guard(self.task).cut_off(self.task)
        elif self._abandonable is not None:
            await self._abandonable.cut_off(self.home)
        await self.cut_off_tasks()

    async def cut_off_tasks(self) -> None:
        """End its background tasks even if they ignore cancellation."""
        with trio.CancelScope(shield=True):
            for task in list(self.tasks):
                await task.cut_off()

    # -- calls -------------------------------------------------------------------------------------

    def serves_in_passing(self, _message: object, _sender: PID | Alias, /) -> bool:
        """Always False: a process serves messages in its own turn only."""
        return False

    answer_now = answer_now

    def works_in(self, task: Task) -> bool:
        """Whether it runs a callback in that task. Before its first step, its ``home`` is still the
        spawner's task.
        """
        return self.home is task and self.state is not SLEEP

    def waits_for_task(self, task: Task) -> bool:
        """Whether a callback waits at the end of a nursery until that task has ended."""
        if self.task is not self.home:
            return False
        nursery = task.parent_nursery
        # Only its callbacks open nurseries in its own task.
        while nursery is not None and nursery._parent_waiting_in_aexit:
            if nursery.parent_task is self.home:
                return True
            nursery = nursery.parent_task.parent_nursery
        return False

    def begin_wait(self, caller: Caller) -> None:
        """Record that the process waits in a call."""
        self.waiting = caller
        if self.state is not STOPPING:
            # Without check_transition(): every state that allows calls allows this transition.
            # Inlined, as in end_wait, which also trims the history: every call pays for both.
            self.state = WAIT_RESPONSE
            self.history += (WAIT_RESPONSE, perf_counter())

    def end_wait(self) -> None:
        """Record that the process has stopped waiting in a call."""
        self.waiting = None
        if self.state is WAIT_RESPONSE:
            self.state = state = INIT if self.task is _NOT_YET else RUNNING
            history = self.history
            history += (state, perf_counter())
            if len(history) > _HISTORY:
                del history[: _HISTORY // 2]

    def begin_wait_beside(self, caller: Caller) -> None:
        """Record that a callback waits, at the end of a nursery, for a task that waits in a
        call.
        """
        if self.waiting is None:
            self.waiting = caller

    def end_wait_beside(self, caller: Caller) -> None:
        """Record that the task has stopped waiting in that call. Another wait of the callback may
        have replaced it meanwhile.
        """
        if self.waiting is caller:
            self.waiting = None

    def wait_for(self, waiting: Coroutine[Any, Any, R]) -> R:
        """Refuse to wait: only processes with a thread may block in a callback."""
        check_waiting(waiting)
        waiting.close()
        raise NotAllowedError(
            f"the callbacks of {self} run on the loop, which wait_for(...) would block: write "
            "`async def` and `await`"
        )

    # -- wake-ups, children, addresses -------------------------------------------------------------

    def wake(self) -> None:
        """Wake the task if it sleeps in its mailbox."""
        wake(self.task)

    @enable_ki_protection
    def stir(self) -> None:
        """Wake the task after an append to its open mailbox. Callable from any thread, including
        the loop's.
        """
        mark = self.task.custom_sleep_data
        if mark is PARKED:
            if get_ident() == self.router.loop_thread:
                wake(self.task)
            elif not self.stirred:
                # A single wake-up for each batch of messages. If posting it fails, the next sender
                # must try again.
                try:
                    self.stirred = True
                    self.router.bridge.post(self._stir_on_loop)
                except BaseException:
                    self.stirred = False
                    raise
        elif mark is ENDED:
            # The process ended between the check of `open` and the append: dispose of the late
            # messages.
            self.router.bridge.do(sweep, self)

    def _stir_on_loop(self) -> None:
        self.stirred = False
        wake(self.task)

    def own(self, key: object, thing: Stoppable) -> None:
        """Register a child or meta-process that must not outlive this process."""
        if self.owned is None:
            self.owned = {}
        self.owned[key] = thing

    def add_timer(self, timer: Timer) -> None:
        """Own a timer: it ends with this process."""
        if self.timers is None:
            self.timers = Owned()
        self.timers.append(timer)

    def disown(self, key: object) -> None:
        """Forget a child or meta-process that has ended."""
        (self.owned or {}).pop(key, None)

    def take_name(self, name: str) -> None:
        """Register under a name.

        Raises:
            NameTakenError: another process has this name.
        """
        self.router.registry.take_name(name, self)
        self.be_called(name)

    def be_called(self, name: str | None) -> None:
        """Change the name, or remove it, in the log from now on."""
        self.name = name
        self._logger = None

    def make_alias(self) -> Alias:
        """Create another address of this process."""
        alias = Alias(self.router.node, self.router.creation, next(self.router.numbers))
        self.router.registry.add_alias(alias, self)
        if self.aliases is None:
            self.aliases = {}
        self.aliases[alias] = None
        return alias

    # -- termination -------------------------------------------------------------------------------

    def failed(self, error: BaseException) -> Reason | None:
        """Log and count an exception that left a callback. Returns the reason to end with, or None
        to resume.
        """
        return account_for(self, error)

    def end(self, kind: int, reason: Reason) -> None:
        """End the process after the callback in progress, before it serves queued messages."""
        self.mailbox.push_first((kind, self.id, None, reason))
        self.wake()

    def ask_to_exit(self, sender: PID | Alias, reason: Reason) -> None:
        """Send an exit signal. The process takes it between two messages. A process that traps
        exits gets it as a message instead, unless its parent sent it.
        """
        self.router.signal(self, URGENT_LANE, (EXIT, sender, None, reason))

    def kill(self) -> None:
        """Kill the process: it ends at its next checkpoint. A second kill also cuts its termination
        short.
        """
        if self.state is TERMINATED:
            return
        if self.state is STOPPING:
            if self._ending is not None:
                self._ending.cancel()
            return
        if self.task is _NOT_YET and self.state is not SLEEP:
            self.reason = Killed()
        self.mailbox.push_first((KILL, self.id, None, None))
        if self.task.custom_sleep_data is PARKED:
            self.wake()
        elif self._scope is not None:
            self._scope.cancel()

    def force_end(self) -> None:
        """Kill the process because it ignored the exit signal. A process that only waits for its
        children is not counted as forced.
        """
        if self.state is not STOPPING:
            self.forced = True
        self.kill()

    def cut(self, reason: Reason) -> None:
        """Cancel the callback in progress, as a kill does, but end with this reason."""
        if self._scope is not None and self.reason is None:
            self.reason = reason
            self._scope.cancel()

    def leave_wait(self, reason: Reason) -> bool:
        """Cancel a call without a timeout that the callee has deferred, since it may wait forever.

        False if the process is in no such call.
        """
        call = self.waiting
        if not isinstance(call, TaskCaller) or call.has_limit or not call.deferred:
            return False
        self.cut(reason)
        return True

    def waits_within_limit(self) -> bool:
        """Whether it waits in a call with a timeout."""
        return isinstance(self.waiting, TaskCaller) and self.waiting.has_limit

    def close_mailbox(self) -> None:
        """Let no sender append to its mailbox from now on."""
        self.accepting = self.open = self.measured = False

    def refuse(self) -> None:
        """Refuse user messages from now on, also those of senders that wait for room."""
        self.close_mailbox()
        if self.slot is not None:
            self.slot.vacate(self.id)
        if self.mailbox.waiters:
            self.mailbox.refuse_waiters()

    def stop_accepting(self) -> "Sequence[Process]":
        """Stop accepting sessions. Only servers have any."""
        return ()

    async def shut(self, _reason: Reason) -> None:
        """Stop the process for its owner, in bounded time."""
        await shut(self)

    async def abandon(self) -> None:
        """Abandon the process."""
        await abandon(self)

    def time_in_callbacks(self, now: float) -> float:
        """Seconds spent in callbacks so far, including waits inside them and the current turn.
        Callable from any thread.
        """
        woken = self.woken
        return self.running_time + (now - woken if woken else 0.0)

    def current_callback(self) -> str | None:
        """The name of the callback in progress, if any."""
        if self.state is INIT:
            return "init"
        if self.state is STOPPING:
            return "terminate"
        return None if self.handling is None else kind_name(self.handling[0])

    async def wait_gone(self) -> None:
        """Wait until the process has ended and all of it is released."""
        if self.state is not TERMINATED:
            if self._gone is None:
                self._gone = trio.Event()
            await self._gone.wait()


def caller_in(task: Task) -> Process | None:
    """The process whose callback runs in ``task`` and calls through its node instead of its own
    verb; None for code outside of callbacks.
    """
    coroutine: Any = task.coro
    if getattr(coroutine, "cr_code", None) not in _LIVES:
        return None
    process: Process = coroutine.cr_frame.f_locals["self"]
    # While a process waits for the init of its child, the running code belongs to the child.
    waits_for = process.waiting
    if isinstance(waits_for, Process) and waits_for.parent is process:
        return None
    return process if process.state in CALLS_ALLOWED else None


_LIVES: Final = frozenset({Process.run.__code__, Process.run_guarded.__code__})
NO_TASKS: Final[dict[BackgroundTask, None]] = {}
_NOT_YET: Final = TaskPlaceholder()
_KILLED: Final = Killed()
