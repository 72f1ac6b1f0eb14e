"""`park` and `wake`: a task sleeps and is woken. The only module that relies on details of trio's
lowest level to do so.

``task.custom_sleep_data`` is the whole state of a sleeping task. trio clears it whenever it
reschedules the task, also when a cancellation ends the sleep. So "the mark is set" means "asleep
here and not yet woken": no task can be woken twice, and no sleep needs its own flag or function.

Each wake-up removes the mark and the abort function first, before it makes any object: a new object
may start a garbage collection, and a finalizer may send to the same task or cancel it.

Three conventions go beyond trio's documented contract. The trap object that
``wait_task_rescheduled`` yields is created once and yielded for each sleep (trio only reads its
``abort_func``). ``reschedule`` is passed None or an object of ours instead of an ``Outcome`` (only
our own generator ever receives it). And a task that only lets other tasks run is rescheduled before
it yields its trap. Together they halve the cost of a wake-up and of a checkpoint. The tests of this
module fail at once if a release of trio breaks them.
"""

import types
from collections.abc import Callable, Coroutine, Generator, Sized
from contextvars import Context
from typing import Any, Final, Protocol

from trio import Nursery
from trio.lowlevel import (
    Abort,
    RaiseCancelT,
    Task,
    checkpoint,
    enable_ki_protection,
    reschedule,
    wait_task_rescheduled,
)

__all__ = [
    "ENDED",
    "NEVER",
    "PARKED",
    "TRAP",
    "Body",
    "NewSleeper",
    "SizedQueue",
    "Sleeper",
    "TaskPlaceholder",
    "TrioTurns",
    "WaitingCaller",
    "park",
    "park_as",
    "wake",
    "wake_with",
    "yield_turn",
]


class _Mark:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


PARKED: Final = _Mark("PARKED")
"""The mark of a task that waits for its mailbox."""
ENDED: Final = _Mark("ENDED")
"""The mark of a task that has ended: no task reads its mailbox any more."""


class TaskPlaceholder:
    """Placeholder for the task of a process before its first step and after its last. It is never
    asleep, so it is never woken.
    """

    __slots__ = ("custom_sleep_data",)

    def __init__(self, mark: object = None) -> None:
        self.custom_sleep_data: object = mark


def _abort(_raise_cancel: RaiseCancelT) -> Abort:
    return Abort.SUCCEEDED


def _trap() -> object:
    sleeping: Any = wait_task_rescheduled(_abort)  # noqa: ASYNC105 - driven by hand
    try:
        return sleeping.send(None)
    finally:
        sleeping.close()


TRAP: Final[Any] = _trap()
"""A task yields this trap to sleep here."""
NEVER: Final[Any] = type(TRAP)(None)
"""A task yields this trap to sleep for good: it has no abort function."""
_reschedule: Final[Any] = reschedule  # untyped, since it is passed objects that are no Outcome


# This order of decorators: types.coroutine replaces the code object, and enable_ki_protection
# registers the final code object.
@enable_ki_protection
@types.coroutine
def park(task: Task, queue: Sized = ()) -> Generator[Any, Any, None]:
    """Sleep until :func:`wake`, unless ``queue`` is not empty. Threads may append to it at any
    moment. No other code may run between the mark and the trap: no call, no allocation.

    The task sets the mark first, then checks the queue. A thread appends first, then checks the
    mark. So either the task sees the message or the thread sees the mark: no wake-up is lost.
    """
    task.custom_sleep_data = PARKED
    if queue:
        task.custom_sleep_data = None
        return
    woken = yield TRAP
    if woken is not None:
        woken.unwrap()


@enable_ki_protection
@types.coroutine
def park_as(task: Task, mark: object) -> Generator[Any, Any, None]:
    """Sleep under ``mark`` until :func:`wake_with` is called with that same mark."""
    task.custom_sleep_data = mark
    woken = yield TRAP
    if woken is not mark and woken is not None:  # None: a root has woken the caller
        woken.unwrap()


@enable_ki_protection
@types.coroutine
def yield_turn(task: Task) -> Generator[Any, Any, None]:
    """Let other tasks run: ``trio.lowlevel.checkpoint()`` for ``task``, the current task. Costs
    less, since it needs neither an ``Outcome`` nor two coroutines.
    """
    _reschedule(task, None)
    yield NEVER
    # As in trio, a KeyboardInterrupt is for the main task only; checkpoint() knows.
    if task._cancel_status.effectively_cancelled or task._runner.ki_pending:
        yield from checkpoint().__await__()  # noqa: ASYNC105 - awaited by hand


@enable_ki_protection
def wake(task: Task | TaskPlaceholder) -> None:
    """Wake ``task`` if it sleeps in :func:`park`. Only in the loop's thread.

    If ``reschedule`` raises, because another thread called this by mistake, the mark comes back and
    no wake-up is lost.
    """
    if task.custom_sleep_data is PARKED:
        sleeping: Any = task  # no placeholder: that is never asleep
        sleeping._abort_func = sleeping.custom_sleep_data = None
        try:
            _reschedule(sleeping, None)
        except BaseException:
            sleeping._abort_func, sleeping.custom_sleep_data = _abort, PARKED
            raise


@enable_ki_protection
def wake_with(task: Task, mark: object) -> bool:
    """Wake ``task`` if it sleeps in :func:`park_as` under this very mark. Only in the loop's
    thread.
    """
    if task.custom_sleep_data is not mark:
        return False
    task._abort_func = task.custom_sleep_data = None
    try:
        _reschedule(task, mark)
    except BaseException:
        task._abort_func, task.custom_sleep_data = _abort, mark
        raise
    return True


class _HasWaiters(Protocol):
    @property
    def waiters(self) -> object:
        """The senders that wait for room in a mailbox; None without any."""
        ...


class Sleeper(Protocol):
    """A process: an object with a task that sleeps, and with a mailbox."""

    @property
    def task(self) -> Task | TaskPlaceholder:
        """Its task, or a placeholder."""
        ...

    @property
    def mailbox(self) -> _HasWaiters: ...


class NewSleeper(Sleeper, Protocol):
    """A process whose task has not begun."""

    def has_work(self) -> bool:
        """Say whether it must not sleep."""
        ...

    def begin_task(self, task: Task, /) -> None:
        """Take the task that reads the mailbox."""
        ...


Body = Callable[[Any], Coroutine[Any, Any, None]]
"""The body of the task of a process."""


class WaitingCaller(Protocol):
    """A call whose task sleeps in :func:`park_as` under the call itself."""

    @property
    def task(self) -> Task:
        """The task that waits for the answer."""
        ...

    @property
    def mailbox(self) -> _HasWaiters:
        """A mailbox without waiting senders."""
        ...


class SizedQueue(Protocol):
    """trio's queue of scheduled tasks."""

    @property
    def size(self) -> int:
        """The number of tasks that run in the present pass of trio's loop."""
        ...


class _UnknownQueue:
    @property
    def size(self) -> int:
        return 2  # any number but one


class TrioTurns:
    """Turns without direct hand-off: trio's loop runs every step."""

    __slots__ = ("defers", "run_queue")

    def __init__(self) -> None:
        self.defers: bool = False
        """The root wakes many processes: :meth:`defer` puts work off until they have run."""
        self.run_queue: SizedQueue = _UnknownQueue()
        """trio's run queue, with the number of tasks in the present pass."""

    def start(
        self, process: NewSleeper, body: Body, nursery: Nursery, context: Context, name: str
    ) -> None:
        """Start the task of a process, which sleeps first. Threads may append to its mailbox
        meanwhile.
        """
        self.start_soon(process, body, nursery, context, name)

    def start_soon(
        self, process: NewSleeper, body: Body, nursery: Nursery, context: Context, name: str
    ) -> None:
        """Start the task of a process in trio's own way."""
        context.run(lambda: nursery.start_soon(body, process, name=name))

    def end_asleep(self, task: Task) -> None:
        """Let the task of a process that has ended in its sleep return."""
        wake(task)

    def defer(self, work: Callable[[], None]) -> None:
        """Call ``work`` when the root has run its steps. Call this only while ``defers`` is
        true.
        """
        raise NotImplementedError

    def wake(self, process: Sleeper) -> None:
        """Wake a process that sleeps in its mailbox. Only in the loop's thread."""
        wake(process.task)

    def wake_caller(self, caller: WaitingCaller) -> None:
        """Wake the task that waits for this call. Only in the loop's thread."""
        wake_with(caller.task, caller)

    def may_step(self, _process: Sleeper) -> bool:
        """Say whether a sleeping process may take its step inside the step of its caller."""
        return False

    def is_alone(self) -> bool:
        """Say whether it is known that no other task is ready to run, and no instrument watches
        trio.
        """
        return False

    def is_last(self) -> bool:
        """Say whether it is known that no other task is ready to run."""
        return False

    def step(self, process: Sleeper) -> None:
        """Run the step of a sleeping process now. Call it only after :meth:`may_step`."""
        raise NotImplementedError

    def begin(self, root: Task, wakes_many: bool = False) -> bool:
        """Make this task the root, which lists the processes that it wakes. False if it cannot be
        the root now. A root calls `serve` or `end` before it waits for anything. A root that
        wakes many processes is a root also beside other tasks, and may put work off.
        """
        return False

    def serve(self, _root: Task) -> bool:
        """Run the steps of the processes that this task has woken as the root, and end the root.
        False if no step was run.
        """
        return False

    def end(self, _root: Task) -> bool:
        """End the root, if this task is the root: trio runs the steps. Always False."""
        return False
