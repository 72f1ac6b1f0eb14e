"""`BlockingTask`: a task whose result is a future. `BlockingTaskVerbs`: ``run_task`` and
``map_stream`` for synchronous code.
"""

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar, TypeVarTuple, overload

from .._core.vocabulary.dispatchers import Dispatcher
from .._core.vocabulary.ids import PID, Target
from ..node import Node
from ..tasks.handle import Task
from .handles import BlockingStream

__all__ = ["BlockingTask", "BlockingTaskVerbs"]

F = TypeVar("F")
R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


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


class BlockingTaskVerbs:
    """``run_task`` and ``map_stream`` of a blocking node."""

    _node: Node

    def _wait(self, function: Callable[[], Awaitable[R]]) -> R:
        """Run a coroutine on the loop, and block this thread until it is done."""
        raise NotImplementedError

    @overload
    def run_task(
        self,
        function: Callable[[*Ts], Awaitable[R]],
        *args: *Ts,
        name: str | None = None,
        timeout: float | None = None,
        dispatcher: Dispatcher | None = None,
        under: Target | None = None,
        reply_to: Target | None = None,
    ) -> BlockingTask[R]: ...
    @overload
    def run_task(
        self,
        function: Callable[[*Ts], R],
        *args: *Ts,
        name: str | None = None,
        timeout: float | None = None,
        dispatcher: Dispatcher | None = None,
        under: Target | None = None,
        reply_to: Target | None = None,
    ) -> BlockingTask[R]: ...
    def run_task(
        self, function: Callable[[*Ts], Any], *args: *Ts, **options: Any
    ) -> BlockingTask[Any]:
        """Run ``function(*args)`` in a process of its own, and return its future at once: an async
        function on the loop, a plain function in a thread. Raises as ``Node.run_task``.
        """
        node = self._node
        node._router.bridge.refuse_on_loop("a blocking verb", "`node.run_task` and `await`")
        return node._run(lambda: BlockingTask(node.run_task(function, *args, **options)))

    @overload
    def map_stream(
        self,
        function: Callable[[T], Awaitable[R]],
        items: Iterable[T] | AsyncIterable[T],
        *,
        at_once: int = 8,
        ordered: bool = True,
        timeout: float | None = None,
    ) -> BlockingStream[R]: ...
    @overload
    def map_stream(
        self,
        function: Callable[[T], Awaitable[R]],
        items: Iterable[T] | AsyncIterable[T],
        *,
        at_once: int = 8,
        ordered: bool = True,
        timeout: float | None = None,
        on_failure: Callable[[T, Exception], F],
    ) -> BlockingStream[R | F]: ...
    @overload
    def map_stream(
        self,
        function: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        *,
        at_once: int = 8,
        ordered: bool = True,
        timeout: float | None = None,
    ) -> BlockingStream[R]: ...
    @overload
    def map_stream(
        self,
        function: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        *,
        at_once: int = 8,
        ordered: bool = True,
        timeout: float | None = None,
        on_failure: Callable[[T, Exception], F],
    ) -> BlockingStream[R | F]: ...
    def map_stream(
        self,
        function: Callable[[Any], Any],
        items: Iterable[Any] | AsyncIterable[Any],
        **options: Any,
    ) -> BlockingStream[Any]:
        """Call a function for each item, several at once, and iterate over the results. Raises as
        ``Node.map_stream``.
        """
        stream = self._node.map_stream(function, items, **options)
        return BlockingStream(stream, self._wait, partial(self._wait, stream.aclose))
