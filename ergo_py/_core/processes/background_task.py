"""`BackgroundTask`: a task of a process that runs between its callbacks, too, crashes the process
if it fails, and ends before the process does. `BackgroundTasks`: all of a process.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio
from trio.lowlevel import Task, current_task, in_trio_task

from ..runtime.abandonable import Abandonable
from ..runtime.detached_task import without_cancellation
from ..runtime.parking import PARKED
from ..vocabulary.envelopes import FAILED
from ..vocabulary.public_names import show_public_names
from ..vocabulary.reasons import Crashed
from ..vocabulary.states import STOPPING, TERMINATED
from .failure import account_for_task

if TYPE_CHECKING:
    from .process import Process

__all__ = ["BackgroundTask", "BackgroundTasks"]


class BackgroundTask:
    """A task that ``start_task`` has started beside the callbacks of a process."""

    __slots__ = ("_function", "_gone", "_abandonable", "_scope", "_siblings", "_task", "name")

    def __init__(
        self, siblings: "BackgroundTasks", function: Callable[[], Awaitable[object]], name: str
    ) -> None:
        self.name = name
        """The name of the task in the log."""
        self._siblings = siblings
        self._function = function
        self._scope = trio.CancelScope()
        self._gone = trio.Event()
        self._abandonable = Abandonable()
        self._task: Task | None = None

    def __repr__(self) -> str:
        state = ", done" if self.done else ""
        return f"<BackgroundTask {self.name!r} of {self._siblings.process}{state}>"

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
            self._siblings.fail(self.name, error)
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
        self._siblings.remove(self)
        self._gone.set()


class BackgroundTasks:
    """The running background tasks of a process."""

    __slots__ = ("_running", "process")

    def __init__(self, process: "Process") -> None:
        self.process = process
        self._running: dict[BackgroundTask, None] = {}

    def __len__(self) -> int:
        return len(self._running)

    def are_running_here(self) -> bool:
        """Whether the current task is one of them, or a task in a nursery below one."""
        task = current_task() if in_trio_task() else None
        return task is not None and any(running.runs_in(task) for running in self._running)

    def start(self, function: Callable[[], Awaitable[object]], name: str) -> BackgroundTask:
        """Start a background task. It ends with the process."""
        task = BackgroundTask(self, function, name)
        self._running[task] = None
        self.process.kernel.start(task.run, name=f"{self.process.callbacks.behaviour}: {name}")
        return task

    def remove(self, task: BackgroundTask) -> None:
        """Forget a task that has ended."""
        self._running.pop(task, None)

    def fail(self, name: str, error: BaseException) -> None:
        """Handle an exception that left a background task: the process crashes, and the callback in
        progress is cancelled.
        """
        process = self.process
        failure = without_cancellation(error)
        if failure is None:
            return
        if process.state in (STOPPING, TERMINATED):
            process.log.error(
                "a background task raised while its process ended",
                task=name,
                exception=Crashed(error).traceback,
            )
            return
        reason = account_for_task(process, name, failure)
        if reason is None:
            return
        process.refuse()
        is_asleep = process.task.custom_sleep_data is PARKED
        process.end(FAILED, reason)
        if not is_asleep:
            process.cut(reason)

    async def end(self) -> bool:
        """Cancel the tasks, wait for them, and cut off those that ignore it. Returns False if there
        were any of those.
        """
        ending = list(self._running)
        for task in ending:
            task.cancel()
        with trio.move_on_after(self.process.options.terminate_timeout):
            for task in ending:
                await task.wait_gone()
        stubborn = [task for task in ending if not task.done]
        if stubborn:
            names = ", ".join(task.name for task in stubborn)
            self.process.log.error(
                "background tasks did not end when cancelled and were cut off", tasks=names
            )
            await self.cut_off()
        return not stubborn

    async def cut_off(self) -> None:
        """End the tasks even if they ignore cancellation."""
        with trio.CancelScope(shield=True):
            for task in list(self._running):
                await task.cut_off()


show_public_names(__name__)
