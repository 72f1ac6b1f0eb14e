"""A process: a trio task that serves a mailbox, from ``init`` to the last word to whoever watches
it.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from time import perf_counter
from typing import Any, ClassVar, Final, TypeVar

import trio
from trio.lowlevel import Task, current_task, enable_ki_protection, in_trio_task

from ..kernel import Kernel
from ..messaging.receiver import NOBODY
from ..messaging.waiters import TaskCaller
from ..runtime.abandonable import Abandonable
from ..runtime.bridge import get_ident
from ..runtime.cancel_scopes import CancelScopes, is_being_closed, left_open
from ..runtime.detached_task import without_cancellation
from ..runtime.parking import ENDED, PARKED, Standin, park_unless, wake
from ..tables.callbacks import Callbacks, runs_callbacks
from ..tables.child_slot import ChildSlot
from ..tables.mailbox import Mailbox
from ..tables.pending_calls import Caller
from ..tables.timers import Owned
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
from .spawn import spawn
from .termination import GRACE, Patience, abandon, fail_to_end, finish, shut
from .unhandled_messages import skip_given_up, sweep

__all__ = ["Process", "caller_in"]

R = TypeVar("R")

_HISTORY: Final = 16


class Process:
    """The kernel's side of a process; its behaviour is the user's side. Everything here happens on
    the loop's thread.
    """

    blocks: ClassVar = False
    """Whether callbacks may be in a thread, and so refuse to be cancelled at first."""
    blameless: ClassVar = False
    """The failure of a process counts as its own."""
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
        "splits",
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
        """Accepting, and with nothing to look at before an append, which any thread may do: what
        every send tests first. Once it is False it stays so, or what a thread has sent on the
        longer way would be overtaken.
        """
        self.measured = (
            is_plain and not self.open and options.overflow in (Overflow.RAISE, Overflow.WAIT)
        )
        """Accepting, and with nothing but the bound to look at before an append."""
        self.peer: Any = NOBODY
        """To whom it has last sent: most send to the same one again, and need not look for it."""
        self.stirred = False
        """A thread has asked the loop to wake it."""
        self.splits = callbacks.splits
        self.inline = (
            router.inline_calls
            and "handle_call" in callbacks.defined
            and "handle_call" not in callbacks.asynchronous
            and not callbacks.splits
        )
        """Whether a call may be answered on the spot, by its caller, while it sleeps."""
        self.state = INIT
        self.born = perf_counter()
        self.history: list[State | float] = [INIT, self.born]
        self.task: Task | Standin = _NOT_YET
        self.home: Task = current_task()
        """The task in which callbacks run: the spawner's during ``init``, then its own."""
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
        """Seconds in callbacks, up to the end of the last turn."""
        self.woken = 0.0
        """When the turn in progress began, its own or one that a caller lends it; 0.0 while it
        sleeps.
        """
        self.waiting: Caller | Process | None = None
        # Made when first needed: a process that never uses them should not pay for them.
        self.owned: dict[object, Any] | None = None
        self.aliases: dict[Alias, None] | None = None
        self.events: list[EventName] | None = None
        self.timers: Owned | None = None
        self.deferred: set[Caller] | None = None
        self.postponed: deque[Envelope] | None = None
        """What its behaviour has put aside, to be served before what waits."""
        self.slot: ChildSlot | None = None
        """Its place under a supervisor."""
        self.left_to: ChildSlot | None = None
        """The place to whose next process it has left its main lane."""
        self.slots: dict[str, ChildSlot] | None = None
        """If it is a supervisor: the places of its children."""
        self.sessions_over: trio.Event | None = None
        """Set when the sessions of its servers have ended, which come first when it ends and have
        time limits of their own.
        """
        self._logger: Any = None
        self._gone: trio.Event | None = None
        self._scope: trio.CancelScope | None = None
        self._ending: trio.CancelScope | None = None
        self._abandonable: Abandonable | None = None
        self.tasks: dict[BackgroundTask, None] = NO_TASKS
        """The background tasks that it has started."""
        self.forced = False
        """Whether it had to be killed, a last callback of it was cut short by a kill, or background
        tasks of it were cut off.
        """
        self.abandoned = False
        """Whether it did not even end when it was killed, and is left behind."""

    @property
    def pid(self) -> PID:
        """The same as ``id``; a meta-process has an alias there."""
        return self.id

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
        """Raise unless ``operation`` may be done in the present state."""
        if self.tasks and self.state is SLEEP and self._is_in_task():
            # A background task acts for its process also between two callbacks.
            return
        check_allowed(operation, self.state, self)

    def _is_in_task(self) -> bool:
        task = current_task() if in_trio_task() else None
        return task is not None and any(one.runs_in(task) for one in self.tasks)

    def enter(self, state: State) -> None:
        """Change state, if the table knows the change, and note when."""
        # Asked here first: each start and each end of a process would pay for the layer.
        if state not in TRANSITIONS[self.state]:
            check_transition(self.state, state)
        self.state = state
        history = self.history
        history += (state, perf_counter())
        if len(history) > _HISTORY:
            del history[: _HISTORY // 2]

    # -- birth -------------------------------------------------------------------------------------

    spawn = classmethod(spawn)

    @runs_callbacks
    def _initialise(
        self, factory: Any, args: tuple[Any, ...], context: Context
    ) -> Coroutine[Any, Any, None] | None:
        """Make the behaviour and call its ``init``; or return what is to be awaited, so that only
        those that wait pay for it.
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
        # It runs in the task of the spawner, which has to get out of it, whatever it does.
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
            # A background task has crashed it.
            raise self.reason.error
        # Also if it swallowed the cancellation: what came too late has failed.
        if (scope.cancel_called or abandonable.abandoned) and not isinstance(self.reason, Killed):
            raise InitTimeoutError(self.callbacks.behaviour, timeout)
        self._scope = None

    async def _leave_init(self) -> None:
        # A supervisor has more time than it was given: its children have theirs.
        if self._scope is not None and self._scope.cancel_called:
            await self.cut_off()

    def is_unborn_in(self, task: Task) -> bool:
        """Say whether its ``init`` has been left behind in this task, by an error that was raised
        where it was to be undone.
        """
        return self.task is _NOT_YET and self.home is task and self.state not in (SLEEP, TERMINATED)

    def sit(self, slot: ChildSlot) -> None:
        """Take a place under a supervisor, and what a predecessor there has left."""
        self.slot = slot
        kept = slot.inherit(self)
        if kept:
            for lane in kept.values():
                skip_given_up(lane)
            self.mailbox.inherit(kept)
            self.main = self.mailbox.main

    # -- life --------------------------------------------------------------------------------------

    async def run_guarded(self) -> None:
        """The whole life of the task, with a relay from the beginning."""
        self._abandonable = Abandonable()
        await self._abandonable.run(self.run())

    def guard(self, task: Task) -> Abandonable:
        """Have a relay, the way to leave behind a callback that can wait for anything, and so
        refuse to end.
        """
        if self._abandonable is None:
            self._abandonable = Abandonable()
            self._abandonable.take_over(task)
        return self._abandonable

    async def run(self) -> None:
        """The whole life of the task. Nothing leaves it: an exception here would end all other
        tasks of the node.
        """
        if self.abandoned:
            # Before its first step.
            return
        self.task = self.home = task = current_task()
        status = task._cancel_status
        # What it ends with if a kill is all that leaves the scope.
        reason: Reason | None = _KILLED
        try:
            try:
                box = self.mailbox
                if not (self.callbacks.greets or box.main or box.ahead or box.log):
                    # Most sleep first. What serving needs, the scope above all, can wait until
                    # there is something to serve.
                    await park_unless(task, box.main)
                    if self.state is TERMINATED:
                        return
                if self.callbacks.any_async:
                    # The scope lets kill reach a callback that waits for something else than its
                    # mailbox.
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
                # Killed out of a callback whose nursery raised more than the cancellation.
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
                # Left open by a plain callback.
                await CancelScopes.since(task, status).close()
            if reason is not None:
                await finish(
                    self, reason if reason is not _KILLED or self.reason is None else self.reason
                )
        except BaseException as error:
            if isinstance(error, GeneratorExit) and is_being_closed(task):
                raise
            if self.abandoned:
                # What one that was given up has to say concerns nobody any more.
                return
            fail_to_end(self, error)

    # -- background tasks --------------------------------------------------------------------------

    def start_task(self, function: Callable[[], Awaitable[object]], name: str) -> BackgroundTask:
        """Start a task that ends with this process."""
        self.allow(Operation.SPAWN)
        if not self.tasks:
            self.tasks = {}
        one = BackgroundTask(self, function, name)
        self.tasks[one] = None
        self.kernel.start(one.run, name=f"{self.callbacks.behaviour}: {name}")
        return one

    def task_failed(self, name: str, error: BaseException) -> None:
        """Take what left a background task: the process crashes, out of the callback in progress."""
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
        """End its background tasks."""
        stubborn = await end_tasks(self.tasks, self.options.terminate_timeout)
        if stubborn:
            names = ", ".join(one.name for one in stubborn)
            self.log.error(
                "background tasks did not end when cancelled and were cut off", tasks=names
            )
            self.forced = True
            await self.cut_off_tasks()

    # -- the end of a task that will not -----------------------------------------------------------

    async def cut_off(self) -> None:
        """End its task, or the ``init`` in the task of its spawner, whatever its callback does."""
        if isinstance(self.task, Task):
            await self.guard(self.task).cut_off(self.task)
        elif self._abandonable is not None:
            await self._abandonable.cut_off(self.home)
        await self.cut_off_tasks()

    async def cut_off_tasks(self) -> None:
        """End its background tasks, whatever they do."""
        with trio.CancelScope(shield=True):
            for one in list(self.tasks):
                await one.cut_off()

    # -- calls -------------------------------------------------------------------------------------

    def serves_in_passing(self, _message: object, _sender: PID | Alias, /) -> bool:
        """A process serves messages in its own turn only."""
        return False

    answer_now = answer_now

    def works_in(self, task: Task) -> bool:
        """Say whether it is in one of its callbacks in that task. Before its first step, its
        ``home`` is still the spawner's.
        """
        return self.home is task and self.state is not SLEEP

    def waits_for_task(self, task: Task) -> bool:
        """Say whether one of its callbacks is at the end of a nursery, and waits there until that
        task has ended.
        """
        if self.task is not self.home:
            return False
        nursery = task.parent_nursery
        # In its own task nobody but its callbacks opens a nursery.
        while nursery is not None and nursery._parent_waiting_in_aexit:
            if nursery.parent_task is self.home:
                return True
            nursery = nursery.parent_task.parent_nursery
        return False

    def begin_wait(self, caller: Caller) -> None:
        """Note that the process waits in a call."""
        self.waiting = caller
        if self.state is not STOPPING:
            # Not by way of the table: no state in which calls are allowed is without this change.
            # And spelled out, as in end_wait, which also shortens the history: every call pays for
            # both.
            self.state = WAIT_RESPONSE
            self.history += (WAIT_RESPONSE, perf_counter())

    def end_wait(self) -> None:
        """Note that it no longer does."""
        self.waiting = None
        if self.state is WAIT_RESPONSE:
            self.state = state = INIT if self.task is _NOT_YET else RUNNING
            history = self.history
            history += (state, perf_counter())
            if len(history) > _HISTORY:
                del history[: _HISTORY // 2]

    def wait_for(self, waiting: Coroutine[Any, Any, R]) -> R:
        """Wait in a callback that blocks a thread. Only processes that have one do that."""
        check_waiting(waiting)
        waiting.close()
        raise NotAllowedError(
            f"the callbacks of {self} run on the loop, which wait_for(...) would block: write "
            "`async def` and `await`"
        )

    # -- what it holds -----------------------------------------------------------------------------

    def wake(self) -> None:
        """Have the task look at its mailbox, if it sleeps there."""
        wake(self.task)

    @enable_ki_protection
    def stir(self) -> None:
        """Have the task look at what any thread, the loop's own or not, has appended to an open
        mailbox.
        """
        mark = self.task.custom_sleep_data
        if mark is PARKED:
            if get_ident() == self.router.loop_thread:
                wake(self.task)
            elif not self.stirred:
                # Once for each batch. If this fails, the next one must try again.
                try:
                    self.stirred = True
                    self.router.bridge.post(self._stir_on_loop)
                except BaseException:
                    self.stirred = False
                    raise
        elif mark is ENDED:
            # It was open a moment ago. What a thread has put there since is treated as all that
            # comes too late.
            self.router.bridge.do(sweep, self)

    def _stir_on_loop(self) -> None:
        self.stirred = False
        wake(self.task)

    def own(self, key: object, thing: Any) -> None:
        """Note a child or meta-process that must not outlive this process."""
        if self.owned is None:
            self.owned = {}
        self.owned[key] = thing

    def disown(self, key: object) -> None:
        """Forget one that has ended."""
        (self.owned or {}).pop(key, None)

    def take_name(self, name: str) -> None:
        """Register under a name.

        Raises:
            NameTakenError: somebody has it.
        """
        self.router.registry.take_name(name, self)
        self.be_called(name)

    def be_called(self, name: str | None) -> None:
        """Have another name, or none, in what is said about it from now on."""
        self.name = name
        self._logger = None

    def make_alias(self) -> Alias:
        """Make a further address of this process."""
        alias = Alias(self.router.node, self.router.creation, next(self.router.numbers))
        self.router.registry.add_alias(alias, self)
        if self.aliases is None:
            self.aliases = {}
        self.aliases[alias] = None
        return alias

    # -- the end -----------------------------------------------------------------------------------

    def failed(self, error: BaseException) -> Reason | None:
        """Account for an exception that left a callback. Returns the reason to end with, or None to
        go on.
        """
        return account_for(self, error)

    def end(self, kind: int, reason: Reason) -> None:
        """Have the process end after the callback in progress, before anything that waits."""
        self.mailbox.push_first((kind, self.id, None, reason))
        self.wake()

    def ask_to_exit(self, sender: PID | Alias, reason: Reason) -> None:
        """Ask politely: taken between messages, and trapped by one that traps exits unless its
        parent asks.
        """
        self.router.signal(self, URGENT_LANE, (EXIT, sender, None, reason))

    def kill(self) -> None:
        """End it at its next checkpoint, wherever it is. A second kill cuts its ending short, too."""
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
        """Kill it because it does not end when asked. One that only waits for its own is not to
        blame.
        """
        if self.state is not STOPPING:
            self.forced = True
        self.kill()

    def cut(self, reason: Reason) -> None:
        """End it out of the callback in progress, as a kill does, but for this reason."""
        if self._scope is not None and self.reason is None:
            self.reason = reason
            self._scope.cancel()

    def leave_wait(self, reason: Reason) -> bool:
        """Cut it out of a call that has no time limit and that its callee has put off, so that it
        may wait for ever.

        False if it is in none.
        """
        call = self.waiting
        if not isinstance(call, TaskCaller) or call.has_limit or not call.deferred:
            return False
        self.cut(reason)
        return True

    def waits_within_limit(self) -> bool:
        """Whether it waits in a call that ends by itself."""
        return isinstance(self.waiting, TaskCaller) and self.waiting.has_limit

    def refuse(self) -> None:
        """Take no more user messages."""
        self.accepting = self.open = self.measured = False
        if self.slot is not None:
            self.slot.vacate(self.id)
        if self.mailbox.waiters:
            self.mailbox.refuse_waiters()

    def stop_accepting(self) -> "Sequence[Process]":
        """A process accepts nobody; only servers do."""
        return ()

    async def shut(self, _reason: Reason) -> None:
        """Stop it on behalf of its owner, in bounded time."""
        await shut(self)

    async def abandon(self) -> None:
        """Leave it behind."""
        await abandon(self)

    def time_in_callbacks(self, now: float) -> float:
        """All seconds in callbacks, waiting inside them and the turn in progress included. From any
        thread.
        """
        woken = self.woken
        return self.running_time + (now - woken if woken else 0.0)

    def current_callback(self) -> str | None:
        """The callback in progress, if any."""
        if self.state is INIT:
            return "init"
        if self.state is STOPPING:
            return "terminate"
        return None if self.handling is None else kind_name(self.handling[0])

    async def wait_gone(self) -> None:
        """Wait until nothing of it is left."""
        if self.state is not TERMINATED:
            if self._gone is None:
                self._gone = trio.Event()
            await self._gone.wait()


def caller_in(task: Task) -> Process | None:
    """The process that asks somebody by way of its node instead of with its own verb; None for code
    that is none's callback.
    """
    coroutine: Any = task.coro
    if getattr(coroutine, "cr_code", None) not in _LIVES:
        return None
    process: Process = coroutine.cr_frame.f_locals["self"]
    # One that waits for the init of a child does not ask: this is code of the child.
    waits_for = process.waiting
    if isinstance(waits_for, Process) and waits_for.parent is process:
        return None
    return process if process.state in CALLS_ALLOWED else None


_LIVES: Final = frozenset({Process.run.__code__, Process.run_guarded.__code__})
NO_TASKS: Final[dict[BackgroundTask, None]] = {}
_NOT_YET: Final = Standin()
_KILLED: Final = Killed()
