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

    __slots__ = (
        *("_function", "_gone", "_abandonable", "_host", "_scope", "_siblings", "_task"),
        "name",
    )

    def __init__(
        self,
        siblings: "BackgroundTasks",
        function: Callable[[], Awaitable[object]],
        name: str,
        host: "BackgroundTasks | None",
    ) -> None:
        self.name = name
        """The name of the task in the log."""
        self._siblings = siblings
        self._host = host
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

    async def run(self) -> None:
        """Run the function and report its failure to the process."""
        self._task = task = current_task()
        self._siblings.begin(task)
        if self._host is not None:
            self._host.begin(task)
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
        self._siblings.remove(self, self._task)
        if self._host is not None:
            self._host.remove(self, self._task)
        self._gone.set()


class BackgroundTasks:
    """The running background tasks of a process, and those of its children that act for it."""

    __slots__ = ("_running", "_tasks", "process")

    def __init__(self, process: "Process") -> None:
        self.process: Process = process
        self._running: dict[BackgroundTask, None] = {}
        self._tasks: set[Task] = set()

    def __len__(self) -> int:
        return len(self._running)

    def are_running_here(self) -> bool:
        """Whether the current task is one of them, or a task in a nursery below one."""
        above = current_task() if in_trio_task() else None
        while above is not None and above not in self._tasks:
            above = None if above.parent_nursery is None else above.parent_nursery.parent_task
        return above is not None

    def start(
        self,
        function: Callable[[], Awaitable[object]],
        name: str,
        host: "BackgroundTasks | None" = None,
    ) -> BackgroundTask:
        """Start a background task. It ends with the process. With ``host``, the tasks of another
        process, the task may act for that process as well, and ends with either.
        """
        task = BackgroundTask(self, function, name, host)
        self.add(task)
        if host is not None:
            host.add(task)
        self.process.kernel.start(task.run, name=f"{self.process.callbacks.behaviour}: {name}")
        return task

    def add(self, task: BackgroundTask) -> None:
        """Own a task: it ends with the process."""
        self._running[task] = None

    def begin(self, task: Task) -> None:
        """Let a task, which has begun to run, act for the process."""
        self._tasks.add(task)

    def remove(self, task: BackgroundTask, runner: Task | None) -> None:
        """Forget a task that has ended."""
        self._running.pop(task, None)
        if runner is not None:
            self._tasks.discard(runner)

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
        # Before end(), which wakes the process: a process that sleeps in its mailbox has no
        # callback to cancel.
        is_asleep = process.task.custom_sleep_data is PARKED
        process.end(FAILED, reason)
        if not is_asleep:
            process.cut(reason)

    async def end(self) -> bool:
        """Cancel the tasks, wait for them, and cut off those that ignore it. Returns False if there
        were any of those.
        """
        # A copy, and the tasks of now: a task that another starts in its cleanup is cut off by the
        # caller.
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
