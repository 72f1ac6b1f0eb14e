"""How a task sleeps and is woken: the one place that leans on the details of trio's lowest level.

``task.custom_sleep_data`` is the whole state of a sleeper. trio clears it whenever it reschedules a
task, also when a cancellation ends the sleep, so "the mark is there" means "asleep here and nobody
has woken it": nobody can be woken twice, and no sleep needs a flag or a function of its own.

Two conventions are used beyond trio's documented contract: the trap object that
``wait_task_rescheduled`` yields is made once and yielded again and again (trio only reads its
``abort_func``), and ``reschedule`` is given None or an object of ours instead of an ``Outcome``
(only our own generator ever receives it). Together they halve the cost of a wake-up. The tests of
this module say at once if a release of trio no longer bears them.
"""

import types
from collections.abc import Generator, Sized
from typing import Any, Final

from trio.lowlevel import (
    Abort,
    RaiseCancelT,
    Task,
    enable_ki_protection,
    reschedule,
    wait_task_rescheduled,
)

__all__ = [
    "ENDED",
    "NEVER",
    "PARKED",
    "Standin",
    "park",
    "park_as",
    "park_unless",
    "wake",
    "wake_with",
]


class _Mark:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


PARKED: Final = _Mark("PARKED")
"""The mark of a task that sleeps in its mailbox."""
ENDED: Final = _Mark("ENDED")
"""The mark of one that is no more: what is put into its mailbox, nobody takes out."""


class Standin:
    """Stands for the task of a process that has not taken its first step, or has taken its last:
    never asleep, so never woken.
    """

    __slots__ = ("custom_sleep_data",)

    def __init__(self, mark: object = None) -> None:
        self.custom_sleep_data = mark


def _abort(_raise_cancel: RaiseCancelT) -> Abort:
    return Abort.SUCCEEDED


def _trap() -> Any:
    sleeping: Any = wait_task_rescheduled(_abort)  # noqa: ASYNC105 - driven by hand
    try:
        return sleeping.send(None)
    finally:
        sleeping.close()


_TRAP: Final[Any] = _trap()
NEVER: Final[Any] = type(_TRAP)(None)
"""What a task yields to sleep for good: nothing can abort it."""
_reschedule: Final[Any] = reschedule  # untyped, for what it is given here


# enable_ki_protection registers the code object it is given, and types.coroutine replaces that
# object: so this order.
@enable_ki_protection
@types.coroutine
def park(task: Task) -> Generator[Any, Any, None]:
    """Sleep until :func:`wake`. Between the mark and the trap nothing may run: no call, no
    allocation.
    """
    task.custom_sleep_data = PARKED
    woken = yield _TRAP
    if woken is not None:
        woken.unwrap()


@enable_ki_protection
@types.coroutine
def park_unless(task: Task, queue: Sized) -> Generator[Any, Any, None]:
    """Sleep until :func:`wake`, unless there is something in ``queue``, to which threads may append
    at any moment.

    It is marked first and looked at then; a thread appends first and looks at the mark then. So one
    of both sees the other.
    """
    task.custom_sleep_data = PARKED
    if queue:
        task.custom_sleep_data = None
        return
    woken = yield _TRAP
    if woken is not None:
        woken.unwrap()


@enable_ki_protection
@types.coroutine
def park_as(task: Task, mark: object) -> Generator[Any, Any, None]:
    """Sleep under ``mark`` until :func:`wake_with` is called with that same mark."""
    task.custom_sleep_data = mark
    woken = yield _TRAP
    if woken is not mark:
        woken.unwrap()


@enable_ki_protection
def wake(task: Task | Standin) -> None:
    """Wake ``task`` if it sleeps in :func:`park`. Only on the loop's thread.

    The mark is left to ``reschedule`` to remove: if that raises, because a foreign thread came
    here, nothing is lost.
    """
    if task.custom_sleep_data is PARKED:
        _reschedule(task, None)


@enable_ki_protection
def wake_with(task: Task, mark: object) -> bool:
    """Wake ``task`` if it sleeps in :func:`park_as` under this very mark. Only on the loop's
    thread.
    """
    if task.custom_sleep_data is not mark:
        return False
    _reschedule(task, mark)
    return True
