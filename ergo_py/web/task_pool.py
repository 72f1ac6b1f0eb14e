"""`TaskPool`: tasks for the requests of applications. A task that is done waits for the next
request, since a new task would cost more than many applications do.
"""

from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import partial
from typing import Final

import trio
from trio.lowlevel import Task, current_task

from .._core.messaging.waiters import NoMailbox
from .._core.runtime.cancel_scopes import CancelScopes
from .._core.runtime.parking import TrioTurns, park_as

__all__ = ["PooledTask", "TaskPool"]

_IDLE: Final = 64
"""Tasks that wait for work; further tasks end."""


class PooledTask:
    """A task of the pool, and its work."""

    __slots__ = ("scope", "task", "work")

    mailbox: NoMailbox = NoMailbox()
    """For the turns in which it is woken."""

    def __init__(self, task: Task, work: Awaitable[None]) -> None:
        self.task: Task = task
        self.work: Awaitable[None] | None = work
        self.scope: trio.CancelScope = trio.CancelScope()

    def cancel(self) -> None:
        """Cancel the work. The task ends with it."""
        self.scope.cancel()


class TaskPool:
    """Runs each piece of work in a task, with context variables of its own. On the loop."""

    def __init__(self, start: Callable[[Callable[[], Awaitable[None]]], None]) -> None:
        """``start`` runs an async function in a new task, with an empty context."""
        self._start = start
        self._turns = TrioTurns()
        self._tasks: dict[Task, PooledTask] = {}
        self._idle: list[PooledTask] = []
        self._is_closed = False

    def open(self, turns: TrioTurns) -> None:
        """Let the tasks take their steps in these turns."""
        self._turns = turns

    def run(self, work: Awaitable[None]) -> None:
        """Run a coroutine. It must raise no exception but a cancellation."""
        if not self._idle:
            self._start(partial(self._live, work))
            return
        pooled = self._idle.pop()
        pooled.work = work
        # The next request does not see the context variables of the last.
        pooled.task.context = Context()
        self._turns.wake_caller(pooled)

    def current(self) -> PooledTask:
        """The task that runs now, which is a task of this pool."""
        return self._tasks[current_task()]

    def close(self) -> None:
        """End the tasks that wait; those that work end after it."""
        self._is_closed = True
        while self._idle:
            self._turns.wake_caller(self._idle.pop())

    async def _live(self, work: Awaitable[None]) -> None:
        task = current_task()
        self._tasks[task] = pooled = PooledTask(task, work)
        del work  # it belongs to a single request
        try:
            with pooled.scope:
                await self._serve(pooled)
        finally:
            del self._tasks[task]

    async def _serve(self, pooled: PooledTask) -> None:
        scopes = CancelScopes(pooled.task)
        while pooled.work is not None:
            await pooled.work
            pooled.work = None
            if scopes.are_left():
                # The work has left a cancel scope or a nursery open, which is not for the next.
                await scopes.close()
                return
            if self._is_closed or len(self._idle) >= _IDLE:
                return
            self._idle.append(pooled)
            try:
                await park_as(pooled.task, pooled)
            except BaseException:
                # The node ends.
                if pooled in self._idle:
                    self._idle.remove(pooled)
                raise
