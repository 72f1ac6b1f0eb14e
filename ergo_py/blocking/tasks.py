"""`BlockingTask`: a task whose result is a future, for synchronous code."""

from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any, Concatenate, ParamSpec, TypeVar

from .._core.vocabulary.ids import PID
from ..facades.facade import Blocking
from ..facades.rows import Function, Row, as_method
from ..tasks.handle import Task

__all__ = ["BlockingTask", "blocking_task"]

P = ParamSpec("P")
R = TypeVar("R")


class BlockingTask(Future[R]):
    """A function that runs in a process of its own: the future that ``run_task`` returns.

    ``result(timeout)`` blocks this thread; to cancel the future cancels the task. All functions for
    futures take it: ``concurrent.futures.wait(tasks, return_when=FIRST_COMPLETED)``,
    ``as_completed``, ``asyncio.wrap_future``. If the function raises, and no code asks for result
    or exception, the failure is logged as a crash when the future is dropped.
    """

    def __init__(self, task: Task[R]) -> None:
        super().__init__()
        self._task = task
        self.add_done_callback(_cancel_with)
        task._completion.when_settled(self._settle)

    def __repr__(self) -> str:
        return f"<blocking {self._task!r}>"

    @property
    def pid(self) -> PID:
        """The process in which the function runs."""
        return self._task.pid

    @property
    def name(self) -> str:
        """The name of the task in the log and in the tree."""
        return self._task.name

    def result(self, timeout: float | None = None) -> R:
        """Wait for the result, or raise the exception of the function; ``TimeoutError`` after
        ``timeout`` seconds.
        """
        super().exception(timeout)
        return self._task._completion.result()  # with the frames of the function

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end, and return the exception of the function; None after a success."""
        error = super().exception(timeout)
        self._task._completion.take()
        return error

    def _settle(self, value: Any, error: BaseException | None) -> None:
        if not self.set_running_or_notify_cancel():
            return
        if error is None:
            self.set_result(value)
        else:
            self.set_exception(error)


def _cancel_with(future: "Future[Any]") -> None:
    if future.cancelled() and isinstance(future, BlockingTask):
        future._task.cancel()


class _TaskRow(Row):
    """A task that starts on the loop, so that its future misses no end."""

    def _blocking(self, find: Function, wrap: Function) -> Function:
        def verb(self: Blocking, /, *args: object, **keywords: object) -> object:
            bridge = self._kernel.router.bridge
            bridge.refuse_on_loop("a blocking verb", "`node.run_task` and `await`")
            bridge.check_open()
            begin = copy_context().run
            return bridge.run(begin, lambda: BlockingTask(find(self._subject)(*args, **keywords)))

        return verb


def blocking_task(
    function: Callable[Concatenate[Any, P], Task[R]],
) -> Callable[Concatenate[Any, P], BlockingTask[R]]:
    """A row of blocking facades, for a method that returns a task."""
    return as_method(_TaskRow(function))
