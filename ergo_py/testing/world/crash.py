"""`crash_tasks`: take the tasks of a node out of trio, as a power failure does: none of them runs
another step, not even its cleanup.
"""

from collections.abc import Iterable
from contextlib import suppress
from math import inf
from typing import Any, Final

import trio
from trio.lowlevel import Task

from ..._core.runtime.abandonable import abort_sleep, is_end_of_nursery
from .tasks import TaskOwners, WorldOrder

__all__ = ["close_remains", "crash_tasks"]

_ROUNDS: Final = 20


def crash_tasks(root: Task, node: str, owners: TaskOwners, order: WorldOrder) -> list[Task]:
    """Remove a task, the system tasks of its node, and all tasks below them. Returns them: keep
    them until the world is over, since the cleanup of a coroutine runs when it is collected.

    Call it from a task outside of the node.
    """
    runner: Any = trio._core._run.GLOBAL_RUN_CONTEXT.runner
    system = [task for task in runner.tasks if owners.is_system_task(task, node)]
    roots = [root, *sorted(system, key=_number)]
    family = list(roots)
    for parent in family:  # the list grows while it is traversed
        for nursery in parent.child_nurseries:
            family.extend(sorted(nursery.child_tasks, key=_number))
    _forget_deadlines(family, roots)
    for task in family:
        _abort(task)
    for task in family:
        around: Any = task._parent_nursery
        around._children.discard(task)
        runner.tasks.discard(task)
        task._activate_cancel_status(None)
    order.drop(dict.fromkeys(family))
    return family


def close_remains(remains: Iterable[Task]) -> None:
    """Release crashed tasks when their world is over. Their cleanup runs now; it finds no loop, and
    its errors are dropped.
    """
    left: list[Any] = [task.coro for task in remains]
    for _ in range(_ROUNDS):
        left = [coroutine for coroutine in reversed(left) if not _close(coroutine)]
        if not left:
            break


def _close(coroutine: Any) -> bool:
    with suppress(BaseException):
        coroutine.close()
    return coroutine.cr_frame is None


def _number(task: Task) -> int:
    return task._counter


def _abort(task: Any) -> None:
    """End the sleep of a task, so that nothing wakes it."""
    abort, task._abort_func, task.custom_sleep_data = task._abort_func, None, None
    if abort is not None and not is_end_of_nursery(_Sleep(abort)):
        with suppress(Exception):
            abort_sleep(abort)


class _Sleep:
    def __init__(self, abort_func: Any) -> None:
        self.abort_func = abort_func


def _forget_deadlines(family: list[Task], roots: list[Task]) -> None:
    """Remove the deadlines of all cancel scopes of the tasks, but not of those around them."""
    outer: dict[Any, None] = {}
    for task in roots:
        nursery: Any = task._parent_nursery
        outer.update(_statuses(nursery._cancel_status))
    for task in family:
        for status in _statuses(task._cancel_status):
            if status not in outer:
                status._scope.deadline = inf


def _statuses(status: Any) -> dict[Any, None]:
    """A cancel status and all around it."""
    found: dict[Any, None] = {}
    while status is not None:
        found[status] = None
        status = status._parent
    return found
