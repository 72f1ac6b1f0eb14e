"""`DetachedTask`: a task that can be cancelled, and abandoned if it refuses to end, so that no
waiter waits forever.
"""

from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Protocol

import trio
from trio.lowlevel import Task, checkpoint, current_task

from ..vocabulary.reasons import is_a
from .abandonable import Abandonable

__all__ = ["DetachedTask", "is_cut_off", "without_cancellation"]


class Starter(Protocol):
    """Starts tasks in the nursery of a node: the kernel."""

    def start(
        self, function: Callable[..., Awaitable[object]], *args: object, name: str
    ) -> None: ...


class DetachedTask:
    """Runs an async function in its own task. Without a context it begins with an empty one: a
    task of the kernel serves many processes, and must not see the context variables of the process
    that started it.
    """

    __slots__ = ("_ended", "_abandonable", "_scope", "gone", "task")

    def __init__(self, ended: Callable[[], None] | None = None) -> None:
        self._ended = ended
        self._abandonable = Abandonable()
        self._scope = trio.CancelScope()
        self.task: Task | None = None
        """The trio task, from its first step to its last."""
        self.gone: trio.Event = trio.Event()
        """Set when the task has ended or was abandoned."""

    def start(
        self,
        kernel: Starter,
        body: Callable[[], Awaitable[None]],
        name: str,
        context: Context | None = None,
    ) -> None:
        """Run ``body`` in the new task, with a copy of ``context``. It must raise no exception but
        a cancellation.
        """
        # A copy, so that variables which the task sets stay in it: the reader of a meta-process
        # begins with those of its handler, and both go on.
        begin = Context() if context is None else context.copy()
        begin.run(lambda: kernel.start(self._run, body, name=name))

    def cancel(self) -> None:
        """Cancel the task. It may take its time, and may refuse."""
        self._scope.cancel()

    async def cut_off(self) -> bool:
        """Abandon the task, wherever it is, if it has not ended. False if it has not begun yet."""
        if self.task is not None:
            await self._abandonable.cut_off(self.task)
        else:
            # A task that has not begun ends at its first step.
            self._abandonable.abandon()
        with trio.CancelScope(shield=True):
            await checkpoint()
            await checkpoint()
        if self._abandonable.detached:
            self._be_gone()
        return self.gone.is_set()

    async def _run(self, body: Callable[[], Awaitable[None]]) -> None:
        self.task = current_task()
        try:
            await self._abandonable.run(self._inside(body))
        finally:
            self._be_gone()

    def _be_gone(self) -> None:
        if not self.gone.is_set():
            # Before the event: a task that it wakes finds no task that it could cancel.
            self.task = None
            self.gone.set()
            if self._ended is not None:
                self._ended()

    async def _inside(self, body: Callable[[], Awaitable[None]]) -> None:
        with self._scope:
            await body()


def without_cancellation(error: BaseException) -> BaseException | None:
    """The exception without the cancellations in it; None if nothing else remains."""
    if is_a(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1]
    return None if is_a(error, trio.Cancelled) else error


def is_cut_off(error: BaseException) -> bool:
    """Whether an exception only means that its task is to end: it was cancelled or abandoned."""
    return is_a(error, GeneratorExit) or without_cancellation(error) is None
