"""`BackgroundTask`: a task of a process that runs between its callbacks, too, crashes the process
if it fails, and ends before the process does.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio
from trio.lowlevel import Task, current_task

from ..runtime.abandonable import Abandonable

if TYPE_CHECKING:
    from .process import Process

__all__ = ["BackgroundTask", "end_tasks"]


class BackgroundTask:
    """A task that ``start_task`` has started beside the callbacks of a process."""

    __slots__ = ("_function", "_gone", "_process", "_abandonable", "_scope", "_task", "name")

    def __init__(
        self, process: "Process", function: Callable[[], Awaitable[object]], name: str
    ) -> None:
        self.name = name
        """The name of the task in the log."""
        self._process = process
        self._function = function
        self._scope = trio.CancelScope()
        self._gone = trio.Event()
        self._abandonable = Abandonable()
        self._task: Task | None = None

    def __repr__(self) -> str:
        return f"<BackgroundTask {self.name!r} of {self._process}{', done' if self.done else ''}>"

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._gone.is_set()

    def cancel(self) -> None:
        """Cancel the task. The process keeps running."""
        self._scope.cancel()

    def runs_in(self, task: Task) -> bool:
        """Whether ``task`` is this task, or a task in a nursery below it."""
        above: Task | None = task
        while above is not None and above is not self._task:
            above = None if above.parent_nursery is None else above.parent_nursery.parent_task
        return above is not None

    async def run(self) -> None:
        """Run the function and report its failure to the process."""
        self._task = current_task()
        try:
            await self._abandonable.run(self._inside())
        except BaseException as error:
            self._process.task_failed(self.name, error)
        finally:
            self._be_gone()

    async def _inside(self) -> None:
        with self._scope:
            await self._function()

    async def wait_gone(self) -> None:
        """Wait until the task has ended."""
        await self._gone.wait()

    async def cut_off(self) -> None:
        """End the task even if it ignores cancellation."""
        if self._task is None:
            # Not started yet: at its first step the task finds that it was abandoned, and returns.
            self._abandonable.abandon()
        else:
            await self._abandonable.cut_off(self._task)
        self._be_gone()

    def _be_gone(self) -> None:
        self._process.tasks.pop(self, None)
        self._gone.set()


async def end_tasks(tasks: dict[BackgroundTask, None], patience: float) -> list[BackgroundTask]:
    """Cancel tasks and wait for them, at most ``patience`` seconds. Returns the tasks that are
    still running.
    """
    ending = list(tasks)
    for task in ending:
        task.cancel()
    with trio.move_on_after(patience):
        for task in ending:
            await task.wait_gone()
    return [task for task in ending if not task.done]
