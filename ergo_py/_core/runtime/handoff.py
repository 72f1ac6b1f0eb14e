"""`Handoff`: a woken process takes its step in the turn of the task that woke it.

A turn of trio's scheduler costs more than most callbacks, and a call to a sleeping process needs
two. So the kernel runs the step of a woken process itself, exactly as trio's loop would, in two
cases. A caller runs the step of the callee that it wakes. A root is code that cannot wait: a batch
of plain callbacks, the end of a process, the poller of sockets, the reader of datagrams or of
another node, the bridge of threads. It lists the processes that it wakes, and the callers whose
answers the reader of another node brings, and runs their steps when it is done. Steps never nest,
and a bounded number of them makes a turn. The task of a new process sleeps before its first step,
and the task of a process that has ended in its sleep takes its last step at once.

This module leans on the inside of trio's loop. `unmet` compares the installed trio with the trio
that the module was written for. With any other trio, and with ``direct_handoff=False``, trio itself
runs every step (`TrioTurns`).
"""

import os
from collections import deque
from collections.abc import Callable
from contextvars import Context
from sys import exc_info
from types import TracebackType
from typing import Any, Final

import trio
from outcome import Error, Value
from trio import Nursery
from trio.lowlevel import RunVar, Task, current_task, enable_ki_protection

from .. import sources
from .parking import PARKED, TRAP, Body, NewSleeper, Sleeper, TrioTurns, WaitingCaller
from .time_slices import SLICE

__all__ = ["SWITCH", "Handoff", "RunQueue", "turns_of_loop", "unmet"]

SWITCH: Final = "ERGO_DIRECT_HANDOFF"
"""The environment variable that switches direct hand-off off for a whole program; its value is
``0``.
"""
_IN_A_ROW: Final = 64
"""Most steps in a row. After these, or after a time slice, the processes that the root has woken
wait for trio's turn. A hop between two processes took 3.4 us of CPU in a row, and 8 us with a turn
of trio for each: a turn for 64 hops costs 2 % of them, and a longer row would save no more.
"""
_OF_TASKS: Final = frozenset(
    {"after_task_step", "before_task_step", "task_scheduled", "task_spawned"}
)
"""What trio tells instruments of tasks and their steps. Other instruments watch the waits for I/O,
as that of a node with reader threads does: direct hand-off need not heed them.
"""
_clear: Final = deque.clear  # without super(): every pass of the loop pays for it
_new: Final[Any] = type.__call__
_loop: Final[Any] = trio._core._run
_traps: Final[Any] = trio._core._traps


class RunQueue(deque[Task]):
    """trio's queue of scheduled tasks. trio empties it at the start of each pass of its loop."""

    __slots__ = ("size",)

    size: int
    """The number of tasks that run in the present pass."""

    def clear(self) -> None:
        self.size = len(self)
        _clear(self)


class Handoff(TrioTurns):
    """The direct hand-off of an event loop. Its nodes share it, so that no steps nest."""

    __slots__ = (
        "_context",
        "_deferred",
        "_hooks",
        "_queue",
        "_ready",
        "_reschedule",
        "_root",
        "_runner",
        "_steps",
    )

    def __init__(self, runner: Any) -> None:
        super().__init__()
        self._runner = runner
        self._reschedule = runner.reschedule  # without the look for the runner of this thread
        self._context: dict[str, object] = _loop.GLOBAL_RUN_CONTEXT.__dict__
        """trio's current task, in the loop's thread; for the C extension."""
        self._hooks: dict[str, object] = runner.instruments.data
        """The methods of trio's instruments by name, and an entry of all instruments."""
        self._queue = self.run_queue = runner.runq = RunQueue(runner.runq)
        self._queue.size = 2  # until the next pass, any number but one
        self._root: Task | None = None
        self._ready: deque[Sleeper | WaitingCaller] = deque()
        """The processes and callers that the root has woken. trio counts them as scheduled."""
        self._deferred: deque[Callable[[], None]] = deque()
        self._steps = False
        """A caller runs the step of its callee."""

    @enable_ki_protection
    def wake(self, process: Sleeper) -> None:
        task: Any = process.task  # no placeholder: that is never asleep
        if task.custom_sleep_data is PARKED:
            # First of all: `task.coro.send` makes an object. See parking.py.
            task._abort_func = task.custom_sleep_data = None
            if self._root is None or len(self._ready) >= _IN_A_ROW:
                queue = self._queue
                if queue and "task_scheduled" not in self._hooks:
                    # Inlined Runner.reschedule(): other tasks are scheduled, so that a guest loop
                    # has its tick already, and no instrument wants to know.
                    task._next_send_fn = task.coro.send
                    task._next_send = None
                    queue.append(task)
                else:
                    self._reschedule(task, None)
            else:
                self._ready.append(process)
                # Inlined _schedule().
                task._next_send_fn = task.coro.send
                if "task_scheduled" in self._hooks:
                    self._runner.instruments.call("task_scheduled", task)

    @enable_ki_protection
    def wake_caller(self, caller: WaitingCaller) -> None:
        task = caller.task
        if task.custom_sleep_data is caller:
            task._abort_func = task.custom_sleep_data = None  # as in wake()
            if self._root is None or len(self._ready) >= _IN_A_ROW:
                self._reschedule(task, caller)
            else:
                self._ready.append(caller)
                # Inlined _schedule().
                task._next_send_fn = task.coro.send
                if "task_scheduled" in self._hooks:
                    self._runner.instruments.call("task_scheduled", task)

    def may_step(self, process: Sleeper) -> bool:
        return (
            not self._steps
            and self._root is None
            and not process.mailbox.waiters
            # The callee must not see the exception that the caller is handling.
            and exc_info()[1] is None
        )

    def is_alone(self) -> bool:
        queue = self._queue
        return queue.size <= 1 and not queue and len(self._hooks) <= 1

    def is_last(self) -> bool:
        queue = self._queue
        return queue.size <= 1 and not queue

    @enable_ki_protection
    def step(self, process: Sleeper) -> None:
        if process.task.custom_sleep_data is not PARKED:
            return  # woken meanwhile, by a finalizer: trio or the root runs its step
        self._steps = True
        try:
            self._schedule(process.task)
            self._run(process.task)
        finally:
            self._steps = False

    @enable_ki_protection
    def start(
        self, process: NewSleeper, body: Body, nursery: Nursery, context: Context, name: str
    ) -> None:
        if (
            nursery._closed
            or nursery._cancel_status.effectively_cancelled
            or not _OF_TASKS.isdisjoint(self._hooks)
            # A seed chooses the order of tasks, and has to reach every order.
            or sources.is_seeded
        ):
            self.start_soon(process, body, nursery, context, name)
            return
        # Inlined Runner.spawn_impl(), for a function that is known to be async. The task falls
        # asleep here, and not in a turn of its own.
        runner, coroutine, status = self._runner, body(process), nursery._cancel_status
        # Task._create() with names takes more than twice as long.
        task = _new(_loop.Task, nursery, coroutine, runner, name, context, False)
        runner.tasks.add(task)
        nursery._children.add(task)
        # Inlined Task._activate_cancel_status(), for a new task.
        task._cancel_status = status
        status._tasks.add(task)
        process.begin_task(task)
        task._abort_func = coroutine.send(None).abort_func
        task._schedule_points = task._cancel_points = 1
        # A finalizer may have cancelled the node since the check.
        if status.effectively_cancelled:
            task._attempt_delivery_of_any_pending_cancel()
        # Also for a thread that has appended before the task was asleep, and did not wake it.
        if process.has_work():
            self.wake(process)

    @enable_ki_protection
    def end_asleep(self, task: Task) -> None:
        if task.custom_sleep_data is PARKED:
            self._schedule(task)
            self._run(task)

    def defer(self, work: Callable[[], None]) -> None:
        self._deferred.append(work)

    @enable_ki_protection
    def begin(self, root: Task, wakes_many: bool = False) -> bool:
        # Not beside other tasks: there a step costs no more in its own turn, and a receiver takes
        # the messages of all of them in a single step.
        if self._root is not None or self._steps or (self._queue.size > 1 and not wakes_many):
            return False
        self._root = root
        self.defers = wakes_many
        return True

    @enable_ki_protection
    def serve(self, root: Task) -> bool:
        ready = self._ready
        if not ready:
            if self._deferred:
                self.end(root)
            else:
                # Inlined end(): most batches of plain callbacks wake no process.
                self._root = None
                self.defers = False
            return False
        left, end = _IN_A_ROW, sources.slice_clock() + SLICE
        try:
            while ready and left:
                woken = ready.popleft()
                if woken.mailbox.waiters:
                    self._leave(woken.task)
                    continue
                self._run(woken.task)
                # The clock after each step: a step runs callbacks of the user, of any length.
                left = left - 1 if sources.slice_clock() < end else 0
        finally:
            if ready or self._deferred:
                self.end(root)
            else:
                # Inlined end().
                self._root = None
                self.defers = False
        return True

    @enable_ki_protection
    def end(self, root: Task) -> bool:
        if self._root is root:
            self._root = None
            self.defers = False
            while self._ready:
                self._leave(self._ready.popleft().task)
            if self._deferred:
                self._do_deferred()
        return False

    def _do_deferred(self) -> None:
        try:
            while self._deferred:
                self._deferred.popleft()()
        finally:
            if self._deferred:
                self._do_deferred()

    # -- as in trio's loop -------------------------------------------------------------------------

    def _schedule(self, task: Any) -> None:
        """Schedule a task as `trio.lowlevel.reschedule` does, except for the run queue."""
        task._abort_func = task.custom_sleep_data = None
        task._next_send_fn = task.coro.send
        if "task_scheduled" in self._hooks:
            self._runner.instruments.call("task_scheduled", task)

    def _leave(self, task: Any) -> None:
        """Leave the step of a scheduled task to trio."""
        task._next_send_fn = None
        self._reschedule(task, None)

    def _run(self, task: Any) -> None:
        """Run a scheduled task until it waits or ends."""
        context, hooks = _loop.GLOBAL_RUN_CONTEXT, self._hooks
        outer = context.task
        # Instruments expect one step at a time, so the outer step ends for them.
        if "after_task_step" in hooks:
            self._runner.instruments.call("after_task_step", outer)
        context.task = task
        if "before_task_step" in hooks:
            self._runner.instruments.call("before_task_step", task)
        send, task._next_send_fn = task._next_send_fn, None
        ended: tuple[object, BaseException | None] | None = None
        trap: Any = None
        try:
            try:
                trap = task.context.run(send, None)
            except StopIteration as end:
                ended = end.value, None
            except BaseException as error:
                ended = None, error.with_traceback(_inner(error.__traceback__))
            if trap is TRAP and not (
                self._runner.ki_pending or task._cancel_status.effectively_cancelled
            ):
                # Inlined _wait(): mostly a task sleeps in a trap of parking.py.
                task._schedule_points += 1
                task._cancel_points += 1
                task._abort_func = TRAP.abort_func
            elif ended is None:
                self._wait(task, trap)
            else:
                self.finish(task, *ended)
            if "after_task_step" in hooks:
                self._runner.instruments.call("after_task_step", task)
        finally:
            context.task = outer
        if "before_task_step" in hooks:
            self._runner.instruments.call("before_task_step", outer)

    @enable_ki_protection
    def finish(self, task: Any, value: object, error: BaseException | None) -> None:
        """Let a task end whose last step has returned a value or raised an error."""
        runner, nursery, status = self._runner, task._parent_nursery, task._cancel_status
        if (
            # Any of these has to do with a nursery, a lock, an instrument or the main task: trio's
            # own function knows all of them.
            error is not None
            or value is not None
            or task is runner.main_task
            or task._child_nurseries
            or nursery._closed
            or status.abandoned_by_misnesting
            or task in _loop.GLOBAL_PARKING_LOT_BREAKER
            or "task_exited" in self._hooks
        ):
            runner.task_exited(task, Value(value) if error is None else Error(error))
            return
        # Inlined Runner.task_exited(), for a task that leaves nothing behind: a third of its time.
        status._tasks.remove(task)
        task._cancel_status = None
        runner.tasks.remove(task)
        nursery._children.remove(task)
        if not nursery._children:
            nursery._check_nursery_closed()

    def _wait(self, task: Task, trap: Any) -> None:
        """Let a task wait in a trap."""
        task._schedule_points += 1
        if type(trap) is _traps.WaitTaskRescheduled:
            task._cancel_points += 1
            task._abort_func = trap.abort_func
            if self._runner.ki_pending and task is self._runner.main_task:
                task._attempt_delivery_of_pending_ki()
            if task._cancel_status.effectively_cancelled:
                task._attempt_delivery_of_any_pending_cancel()
        elif trap is _traps.CancelShieldedCheckpoint:
            self._runner.reschedule(task)
        elif type(trap) is _traps.PermanentlyDetachCoroutineObject:
            self._runner.task_exited(task, trap.final_outcome)
        else:
            error = TypeError(
                f"trio.run received unrecognized yield message {trap!r}. Are you trying to use a "
                "library written for some other framework like asyncio? That won't work without "
                "some kind of compatibility shim."
            )
            self._runner.reschedule(task, error)
            task._next_send_fn = task.coro.throw


def _inner(traceback: Any) -> TracebackType | None:
    """A traceback without the frames of `_run`, as trio cuts off the frames of its loop."""
    for _ in range(1 + _loop.CONTEXT_RUN_TB_FRAMES):
        traceback = traceback.tb_next
    return traceback  # type: ignore[no-any-return]


# -- the trio of this module ----------------------------------------------------------------------

_NEEDED: Final = {
    "": (
        *("CONTEXT_RUN_TB_FRAMES", "GLOBAL_PARKING_LOT_BREAKER", "GLOBAL_RUN_CONTEXT"),
        "unrolled_run",
    ),
    "CancelStatus": ("_tasks", "abandoned_by_misnesting", "effectively_cancelled"),
    "Nursery": ("_check_nursery_closed", "_child_finished"),
    "Runner": (
        *("instruments", "ki_pending", "reschedule", "runq", "spawn_impl", "task_exited", "tasks"),
    ),
    "Task": (
        "_abort_func",
        "_attempt_delivery_of_any_pending_cancel",
        "_attempt_delivery_of_pending_ki",
        "_cancel_points",
        "_cancel_status",
        "_child_nurseries",
        "_ki_protected",
        "_next_send",
        "_next_send_fn",
        "_parent_nursery",
        "_runner",
        "_schedule_points",
        "context",
        "coro",
        "custom_sleep_data",
    ),
}
"""The names in ``trio._core._run`` and in its classes that this module uses."""
_TRAPS: Final = (
    "CancelShieldedCheckpoint",
    "PermanentlyDetachCoroutineObject",
    "WaitTaskRescheduled",
)
_DUTIES: Final = {
    "unrolled_run": {
        "_ALLOW_DETERMINISTIC_SCHEDULING",
        "_MAX_TIMEOUT",
        "_abort_func",
        "_attempt_delivery_of_any_pending_cancel",
        "_attempt_delivery_of_pending_ki",
        "_autojump",
        "_cancel_points",
        "_core",
        "_next_send",
        "_next_send_fn",
        "_r",
        "_schedule_points",
    },
    "Runner.spawn_impl": {
        *("_activate_cancel_status", "_cancel_status", "_children", "_closed", "_create"),
    },
    "Runner.reschedule": {"_NO_SEND", "_abort_func", "_next_send", "_next_send_fn", "_runner"},
    "Runner.task_exited": {
        *("_activate_cancel_status", "_cancel", "_cancel_status", "_child_finished"),
        *("_child_nurseries", "_closed", "_parent_nursery"),
    },
    "Nursery._child_finished": {"_add_exc", "_check_nursery_closed", "_children", "_closed"},
    "Task._activate_cancel_status": {
        *("_attempt_delivery_of_any_pending_cancel", "_cancel_status", "_tasks"),
    },
}
"""The private names that trio's loop and these functions use: their duties in each step, and at the
start and the end of a task. Another name would be a duty that this module does not know.
"""
_NEWER: Final = {
    "Runner.task_exited": {"_cancel", "_child_nurseries", "_closed"},
    "Nursery._child_finished": {"_closed"},
}
"""Those that the first of the supported releases of trio lack."""
_OF_A_NEW_TASK: Final = ("parent_nursery", "coro", "runner", "name", "context", "ki_protected")
"""The first arguments of a new task."""


def unmet(loop: Any = _loop, traps: Any = _traps) -> list[str]:
    """The details in which the installed trio differs from the trio of this module, in words.
    Without any, direct hand-off is possible.
    """
    found = [
        f"trio._core._run{owner and '.'}{owner} has no {name}"
        for owner, names in _NEEDED.items()
        for name in names
        if not hasattr(getattr(loop, owner, None) if owner else loop, name)
    ]
    found += [f"trio._core._traps has no {name}" for name in _TRAPS if not hasattr(traps, name)]
    if found:
        return found
    for where, known in _DUTIES.items():
        function = loop
        for part in where.split("."):
            function = getattr(function, part)
        used = {
            name
            for name in function.__code__.co_names
            if name.startswith("_") and not name.startswith("__")
        }
        found += [f"{where} uses {name}, which is not known here" for name in sorted(used - known)]
        missing = known - used - _NEWER.get(where, set())
        found += [f"{where} no longer uses {name}" for name in sorted(missing)]
    if loop.Task.__init__.__code__.co_varnames[1 : 1 + len(_OF_A_NEW_TASK)] != _OF_A_NEW_TASK:
        found.append(f"trio._core._run.Task takes other arguments than {_OF_A_NEW_TASK}")
    return found


_UNMET: Final = unmet()
_TRIO_TURNS: Final = TrioTurns()
_of_loop: Final = RunVar[TrioTurns]("ergo_py direct hand-off")


def turns_of_loop(direct: bool) -> TrioTurns:
    """The turns of the present event loop: with direct hand-off if the node wants it, the
    environment does not forbid it, and the installed trio is known.
    """
    if not direct or _UNMET or os.environ.get(SWITCH) == "0":
        return _TRIO_TURNS
    try:
        return _of_loop.get()
    except LookupError:
        turns = Handoff(current_task()._runner)
        _of_loop.set(turns)
        return turns
