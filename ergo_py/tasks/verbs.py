"""`TaskVerbs`: ``run_task`` and ``map_stream``, for processes and for the node."""

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, overload

from .._core.kernel import Kernel
from .._core.processes.process import Process
from .._core.verbs.behaviour import Behaviour
from .._core.verbs.common import check_timeout
from .._core.vocabulary.dispatchers import Dispatcher
from .._core.vocabulary.errors import BadInputError
from .._core.vocabulary.ids import Target
from .._core.vocabulary.public_names import name_for_annotations
from .._core.vocabulary.states import Operation

if TYPE_CHECKING:
    from .function import Work
    from .handle import Task, TaskResult
    from .process import Runner
    from .stream import MapStream
else:
    name_for_annotations(
        __name__,
        {
            "ergo_py.tasks.function": "Work",
            "ergo_py.tasks.handle": "Task TaskResult",
            "ergo_py.tasks.process": "Runner",
            "ergo_py.tasks.stream": "MapStream",
        },
    )

__all__ = ["TaskVerbs"]

F = TypeVar("F")
R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class TaskVerbs:
    """The verbs that run functions in processes of their own."""

    @overload
    def run_task(
        self,
        function: Callable[[*Ts], Awaitable[R]],
        *args: *Ts,
        name: str | None = None,
        timeout: float | None = None,
        dispatcher: Dispatcher | None = None,
        under: Target | None = None,
        reply_to: "Target[Behaviour[TaskResult[Any]]] | None" = None,
    ) -> "Task[R]": ...
    @overload
    def run_task(
        self,
        function: Callable[[*Ts], R],
        *args: *Ts,
        name: str | None = None,
        timeout: float | None = None,
        dispatcher: Dispatcher | None = None,
        under: Target | None = None,
        reply_to: "Target[Behaviour[TaskResult[Any]]] | None" = None,
    ) -> "Task[R]": ...
    def run_task(
        self,
        function: Callable[[*Ts], Any],
        *args: *Ts,
        name: str | None = None,
        timeout: float | None = None,
        dispatcher: Dispatcher | None = None,
        under: Target | None = None,
        reply_to: Target | None = None,
        **unknown: object,
    ) -> "Task[Any]":
        """Run ``function(*args)`` in a child process, and return its handle at once.

        An async function runs on the loop, a plain function in a thread. ``await task`` waits for
        the result, or raises the exception of the function. The task ends no later than this
        process, or the node, or the supervisor that ``under`` names. For example::

            task = self.run_task(fetch, url, timeout=10)
            page = await task

        Args:
            function: the function. Keyword arguments go into a ``functools.partial``.
            args: its positional arguments.
            name: the name of the task in the log and in the tree; by default the function's.
            timeout: seconds after which the task is cancelled and fails with
                ``TaskError``; None for no limit.
            dispatcher: where a plain function runs: ``LOOP``, ``Threads()`` or ``Threads(name,
                size)``; by default in one of at most 32 threads that all tasks share.
            under: the address of a ``TaskSupervisor``, to which the task then belongs.
            reply_to: an address that gets the result or the failure as a ``TaskResult`` message.

        Raises:
            BadInputError: an argument has a wrong type or value.
            TaskError: of kind ``"too many"``; the task supervisor runs as many tasks as it may.
            LimitError: of kind ``"processes"``; the node's limit is reached.
            TargetDownError: there is no process at ``under``.
            NotAllowedError: this process is ending, or not in a callback.
        """
        from .function import (  # noqa: PLC0415 - loaded with the node
            Work,
            name_of,
            refuse_keywords,
        )

        refuse_keywords(function, unknown)
        work = Work(function, dispatcher, "run_task(function)", "run_task(fetch, url)")
        check_timeout(timeout)
        if name is not None and (not isinstance(name, str) or not name):
            raise BadInputError("name", name, "a text for the log, or None")
        return self._run_task(
            partial(_call, work, args), name or name_of(function), timeout, under, reply_to
        )

    @overload
    def map_stream(
        self,
        function: Callable[[T], Awaitable[R]],
        items: Iterable[T] | AsyncIterable[T],
        *,
        at_once: int = 8,
        ordered: bool = True,
        timeout: float | None = None,
    ) -> "MapStream[R]": ...
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
    ) -> "MapStream[R | F]": ...
    @overload
    def map_stream(
        self,
        function: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        *,
        at_once: int = 8,
        ordered: bool = True,
        timeout: float | None = None,
    ) -> "MapStream[R]": ...
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
    ) -> "MapStream[R | F]": ...
    def map_stream(
        self,
        function: Callable[[Any], Any],
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        at_once: int = 8,
        ordered: bool = True,
        timeout: float | None = None,
        on_failure: Callable[[Any, Exception], Any] | None = None,
    ) -> "MapStream[Any]":
        """Call a function for each item, several at once, and iterate over the results.

        For example::

            async for page in self.map_stream(fetch, urls, at_once=8):
                ...

        Items are taken as the consumer takes results (backpressure): at most ``at_once`` functions
        run, and at most as many results wait. When the consumer leaves early, by ``break``, an
        exception or a cancellation, the functions in progress are cancelled.

        Args:
            function: called with an item; async on the loop, plain in a thread.
            items: an iterable or an async iterable, of any length. The code of the caller takes
                the items: on the node's loop, where a plain iterable must not block; with
                ``ergo_py.aio`` on asyncio's loop; with ``ergo_py.blocking`` in the thread that
                iterates over the results.
            at_once: how many functions run at once.
            ordered: give the results in the order of the items; False: as they come.
            timeout: seconds that the function may take for an item, which fails with
                ``TaskError`` then; None for no limit.
            on_failure: called with the item and the exception where the function fails; its return
                value takes the place of the result. ``FailedItem`` makes a value of both. By
                default the iteration raises the exception, and ends.

        Raises:
            BadInputError: an argument has a wrong type or value.
        """
        from .stream import MapStream  # noqa: PLC0415 - loaded with the node

        return MapStream(self._start_stream, function, items, at_once, ordered, timeout, on_failure)

    def _start_stream(self, run: "Runner", name: str) -> "Task[None]":
        return self._run_task(run, name, None, None, None)

    def _run_task(
        self,
        run: "Runner",
        name: str,
        timeout: float | None,
        under: Target | None,
        reply_to: Target | None,
    ) -> "Task[Any]":
        from .process import start_process  # noqa: PLC0415 - loaded with the node

        kernel, process = self._task_owner()
        if process is not None:
            process.allow(Operation.SPAWN)
        return start_process(kernel, process, run, name, timeout, under, reply_to)

    def _task_owner(self) -> tuple[Kernel, Process | None]:
        """The kernel, and the process whose children the tasks are; None for the node."""
        raise NotImplementedError


async def _call(work: "Work", args: tuple[Any, ...], process: Process) -> object:
    return await work.call(process, *args)
