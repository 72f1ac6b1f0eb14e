"""`MapStream`: the results of a function over many items, several at once, as an async iterator."""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import outcome
import trio

from .._core.processes.process import Process
from .._core.tables.pending_calls import Deadline
from .._core.vocabulary.errors import BadInputError, TaskTimeoutError
from .._core.vocabulary.late_methods import dataclass
from .._core.vocabulary.options import check_number
from .._core.vocabulary.public_names import show_public_names
from .channel import Channel
from .function import Work, name_of, without_own_frames
from .handle import Task
from .process import Runner

__all__ = ["ClosableIterator", "FailedItem", "MapStream", "TaskStream", "bring_items", "each"]

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class FailedItem(Generic[T]):
    """The failure of an item in the place of its result, with ``on_failure=FailedItem``."""

    item: T
    error: Exception


class ClosableIterator:
    """An async iterator that the end of an ``async with`` block closes."""

    __slots__ = ()

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the iteration."""
        raise NotImplementedError


class TaskStream(ClosableIterator, Generic[R]):
    """An async iterator over values that a task makes. It ends the task when it is closed or
    dropped.
    """

    __slots__ = ("__weakref__", "_channel", "_task")

    _channel: Channel[Any]
    """The values that wait for the reader."""
    _task: Task[None] | None
    """The task; None before it starts."""

    async def __anext__(self) -> R:
        raise NotImplementedError

    def _begin(self, task: Task[None]) -> None:
        """Take the task. Its end, by itself or from outside, is the end of the values, too."""
        channel, self._task = self._channel, task
        task._completion.when_settled(lambda _value, _error: channel.finish())

    async def _next(self) -> Any:
        """Wait for the next value.

        Raises:
            StopAsyncIteration: there is none.
            Exception: the failure of the task.
        """
        channel, task = self._channel, self._task
        if await channel.wait():
            return channel.take()
        has_failed = not channel.is_closed and task is not None and task.failure is not None
        self._close()
        if has_failed:
            assert task is not None
            self._raise_failure(task)
        raise StopAsyncIteration

    def _raise_failure(self, task: Task[None]) -> None:
        task.result()

    async def aclose(self) -> None:
        """End the stream: cancel its task, and wait until the task and all below it have ended."""
        self._close()
        if self._task is not None:
            await self._task._completion.wait_gone()

    def __del__(self) -> None:
        # An error in __init__ may have left it without a task.
        if getattr(self, "_task", None) is not None:
            self._close()

    def _close(self) -> None:
        self._channel.close()
        if self._task is not None:
            self._task.cancel()


class MapStream(TaskStream[R]):
    """The results of ``map_stream``: an async iterator.

    Nothing starts before the first result is asked for. All functions run below a single child
    process. When the iterator is dropped, by ``break``, by an exception or by a cancellation, the
    functions in progress are cancelled. ``async with self.map_stream(…) as results:`` waits, in
    addition, until they have ended.
    """

    __slots__ = ("_items", "_start")

    def __init__(
        self,
        start: Callable[[Runner, str], Task[None]],
        function: Callable[[Any], Any],
        items: Iterable[Any] | AsyncIterable[Any],
        at_once: int,
        ordered: bool,
        timeout: float | None,
        on_failure: Callable[[Any, Exception], Any] | None,
    ) -> None:
        if not isinstance(items, Iterable | AsyncIterable):
            raise BadInputError("map_stream(items)", items, "an iterable or an async iterable")
        check_number("at_once", at_once, least=1, whole=True)
        if timeout is not None:
            check_number("timeout", timeout, least=0.0)
        if on_failure is not None and not callable(on_failure):
            raise BadInputError(
                "on_failure",
                on_failure,
                "a function of the item and the exception, such as FailedItem; or None, to raise",
            )
        self._start = start
        self._items = _Items(
            Work(function, None, "map_stream(function)", "map_stream(fetch, urls)"),
            items,
            at_once,
            ordered,
            timeout,
            on_failure,
        )
        self._channel = self._items.channel
        self._task = None

    def __repr__(self) -> str:
        return f"<MapStream {self._items.name}: {self._items}>"

    async def __anext__(self) -> R:
        if self._task is None and not self._channel.is_closed:
            self._begin(self._start(self._items.run, self._items.name))
        result = await self._next()
        try:
            return result.unwrap()  # type: ignore[no-any-return]
        except Exception:
            self._close()
            raise


def bring_items(
    stream: MapStream[Any], source: AsyncIterable[Any]
) -> Iterable[Any] | AsyncIterable[Any]:
    """Let a stream that has not begun take its items from another source. Returns the source so
    far.
    """
    items = stream._items
    before, items.source = items.source, source
    return before


class _Items:
    """The items in progress: pulled from their source, run, and kept until the consumer takes
    their results. The process of the stream knows this object, and not the iterator.

    At most ``at_once`` functions run, and at most as many results wait for the consumer.
    """

    def __init__(
        self,
        work: Work,
        source: Iterable[Any] | AsyncIterable[Any],
        at_once: int,
        ordered: bool,
        timeout: float | None,
        on_failure: Callable[[Any, Exception], Any] | None,
    ) -> None:
        self._work = work
        self.source = source
        self._at_once = at_once
        self._ordered = ordered
        self._timeout = timeout
        self._on_failure = on_failure
        self.name = f"map_stream({name_of(work.function)})"
        self.channel: Channel[outcome.Outcome[Any]] = Channel(at_once)
        self._started = self._running = 0
        self._is_exhausted = False
        """Whether the source has no more items, or has failed."""
        self._open: set[int] = set()
        """The numbers of the items that have no result yet."""
        self._early: dict[int, outcome.Outcome[Any]] = {}
        """Results that wait for the results of earlier items, by their numbers."""
        self._next = 0
        """The number of the next result in the order of the items."""
        self._source_error: Exception | None = None

    def __str__(self) -> str:
        waiting = len(self._early) + len(self.channel)
        return f"{self._running} running, {waiting} waiting, {self.channel.taken} taken"

    # -- in the process of the stream --------------------------------------------------------------

    async def run(self, process: Process) -> None:
        """Run the function for each item."""
        async with trio.open_nursery() as nursery:
            try:
                async with aclosing(each(self.source)) as items:
                    await self.channel.wait_until(self._has_room)
                    async for item in items:
                        number = self._started
                        self._started += 1
                        self._running += 1
                        self._open.add(number)
                        nursery.start_soon(self._run_item, process, number, item)
                        await process.router.pause()
                        await self.channel.wait_until(self._has_room)
            except Exception as error:
                self._source_error = error
            self._is_exhausted = True
            self._finish_after_last()

    def _has_room(self) -> bool:
        """Whether another function may start. Results may be as many as functions in progress."""
        return (
            self._running < self._at_once and self._started - self.channel.taken < 2 * self._at_once
        )

    def _finish_after_last(self) -> None:
        if self._is_exhausted and not self._open:
            if self._source_error is not None:
                self.channel.put(outcome.Error(self._source_error))
            self.channel.finish()

    async def _run_item(self, process: Process, number: int, item: object) -> None:
        try:
            if self._timeout is None:
                await self._call(process, number, item)
                return
            with trio.CancelScope() as scope:
                limit = Deadline(partial(self._expire, number, item, scope))
                process.kernel.clock.arm_call(limit, self._timeout)
                try:
                    await self._call(process, number, item)
                finally:
                    limit.abandon()
        finally:
            self._running -= 1
            self.channel.ring()

    async def _call(self, process: Process, number: int, item: object) -> None:
        try:
            value = await self._work.call(process, item)
        except Exception as error:
            self.fail(number, item, without_own_frames(error))
        else:
            self._put(number, outcome.Value(value))

    def fail(self, number: int, item: object, error: Exception) -> None:
        """Put the failure of an item into the place of its result."""
        if self._on_failure is None:
            self._put(number, outcome.Error(error))
        else:
            self._put(number, outcome.capture(self._on_failure, item, error))

    def _expire(self, number: int, item: object, scope: trio.CancelScope) -> None:
        """Give an item its failure at once, although its function may take a while to end."""
        assert self._timeout is not None
        if number in self._open:
            self.fail(number, item, TaskTimeoutError(self.name, self._timeout))
        scope.cancel()

    def _put(self, number: int, result: outcome.Outcome[Any]) -> None:
        # After its time limit, an item has a result already.
        if number not in self._open:
            return
        self._open.discard(number)
        if self._ordered:
            self._early[number] = result
            while self._next in self._early:
                self.channel.put(self._early.pop(self._next))
                self._next += 1
        else:
            self.channel.put(result)
        self._finish_after_last()


async def each(source: Iterable[T] | AsyncIterable[T]) -> AsyncGenerator[T, None]:
    """The items of a source. An async source is closed when the consumer leaves."""
    if not isinstance(source, AsyncIterable):
        for item in source:
            yield item
        return
    items = aiter(source)
    try:
        async for item in items:
            yield item
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            with trio.CancelScope(shield=True):
                await close()


show_public_names(__name__)
