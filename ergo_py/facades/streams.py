"""`BlockingStream` and `AsyncioStream`: async iterators of a node, for other code."""

from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

import outcome
import trio

from .._core.kernel import Kernel
from .._core.runtime.bridge import Lock
from .._core.vocabulary.errors import NodeStoppedError
from .._core.vocabulary.hints import explain
from .._core.vocabulary.messages import Published
from ..streams.events import EventStream
from ..streams.parts import CalledStream
from ..tasks.stream import ClosableIterator, MapStream, bring_items
from .demand import WANTED, AsyncioDemand, ThreadDemand, end_of_items
from .facade import Asyncio, Blocking, Facade
from .rows import DirectRow, as_method, value

__all__ = [
    "AsyncioEvents",
    "AsyncioStream",
    "BlockingEvents",
    "BlockingStream",
    "asyncio_map",
    "asyncio_stream",
    "blocking_map",
    "blocking_stream",
]

P = ParamSpec("P")
T = TypeVar("T")


class _Stream(Facade, Generic[T]):
    """The steps of an async iterator, on the node's loop. If a reader is cancelled, the part or the
    exception that its step has taken is kept for the next step, in the order of the stream.
    """

    _variable = "stream"

    def __init__(self, stream: AsyncIterator[T], kernel: Kernel) -> None:
        super().__init__(stream, kernel)
        self._kept: deque[outcome.Outcome[T]] = deque()
        self._turn = trio.Lock()
        self._opening = trio.CancelScope()

    async def _step(self) -> outcome.Outcome[T]:
        """Take a part or an exception."""
        # Steps wait for each other: a cancelled step may still take a part, which comes first.
        async with self._turn:
            if self._kept:
                return self._kept.popleft()
            try:
                if isinstance(self._subject, CalledStream):
                    # A cancelled step must not withdraw the call: the next step would call again,
                    # and a callee that gives its parts away once has no more.
                    with trio.CancelScope(shield=True) as self._opening:
                        await self._subject.open()
                    if self._opening.cancelled_caught:
                        raise StopAsyncIteration
            except Exception as error:
                return outcome.Error(error)
            return await self._take()

    async def _take(self) -> outcome.Outcome[T]:
        try:
            return outcome.Value(await self._subject.__anext__())
        except Exception as error:
            explain(error)
            return outcome.Error(error)

    def _keep(self, taken: outcome.Outcome[T]) -> None:
        self._kept.appendleft(taken)

    async def _aclose(self) -> None:
        self._kept = deque(maxlen=0)  # drops the part of a cancelled step, too
        self._opening.cancel()
        await self._subject.aclose()


class BlockingStream(_Stream[T], Blocking):
    """An async iterator of a node, for a plain ``for``: each step blocks this thread. Ctrl-C ends
    the wait, and loses no part. ``with`` closes it.
    """

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        try:
            return self._wait(self._step, self._keep).unwrap()
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        """End the iteration: unsubscribe, or cancel the producer of the parts."""
        if hasattr(self._subject, "aclose"):
            with suppress(NodeStoppedError):  # the stream has ended with its node
                self._wait(self._aclose)
        else:
            self._subject.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncioStream(_Stream[T], Asyncio, ClosableIterator):
    """An async iterator of a node, for ``async for`` on asyncio's loop. A step that is cancelled,
    as by ``asyncio.wait_for(anext(stream), 1)``, loses no part. ``async with`` closes it.
    """

    def __init__(self, stream: AsyncIterator[T], kernel: Kernel) -> None:
        from asyncio import Lock  # noqa: PLC0415 - synchronous code needs no asyncio

        super().__init__(stream, kernel)
        self._reading = Lock()
        """Held by a step until its reader has the part or is cancelled. The node cannot see whether
        a reader takes a part that is on its way; a step beside it would get a later part, and the
        part of a cancelled reader would come after that.
        """

    async def __anext__(self) -> T:
        async with self._reading:
            return (await self._wait(self._step, self._keep)).unwrap()

    async def aclose(self) -> None:
        """End the iteration: unsubscribe, or cancel the producer of the parts."""
        with suppress(NodeStoppedError):  # the stream has ended with its node
            await self._wait(self._close)

    async def _close(self) -> None:
        if hasattr(self._subject, "aclose"):
            await self._aclose()
        else:
            self._subject.close()


class BlockingMap(BlockingStream[T]):
    """The results of ``map_stream``. A plain iterable belongs to the thread that iterates over the
    results: it takes an item where it asks for a result, when the node has room for the item.
    """

    def __init__(self, stream: MapStream[T], kernel: Kernel) -> None:
        super().__init__(stream, kernel)
        self._demand = ThreadDemand()
        given = bring_items(stream, self._demand)
        self._items: Iterable[object] = ()
        if isinstance(given, AsyncIterable):  # for the node's loop, as an async function
            bring_items(stream, given)
        else:
            self._items = given
        self._iterator: Iterator[object] | None = None
        """None before the first item is asked for, and after the last."""
        self._has_begun = False
        self._failure: Exception | None = None
        """The exception of the iterable, for the end of the results."""
        self._taking = Lock()
        """Held by the thread that takes an item."""
        self._is_left = False
        """Whether the results have ended: no thread takes an item any more."""

    def __next__(self) -> T:
        while True:
            try:
                result = self._wait(self._step, self._keep)
            except NodeStoppedError:
                self._leave()
                raise
            if result is not WANTED:
                break
            self._take_item()
        if isinstance(result, outcome.Error):
            self._leave()
            if isinstance(result.error, StopAsyncIteration):
                failure, self._failure = self._failure, None
                raise failure or StopIteration
        return result.unwrap()

    def close(self) -> None:
        """End the iteration: cancel the functions in progress, and close the iterable, as a
        generator does with the iterable of its ``yield from``.
        """
        try:
            super().close()
        finally:
            self._leave()

    def _take_item(self) -> None:
        bridge = self._kernel.router.bridge
        item: outcome.Outcome[object]
        try:
            with self._taking:
                item = self._next_item()
        except BaseException:  # Ctrl-C: the next step takes the item
            bridge.undo(self._demand.ask)
            raise
        bridge.undo(self._demand.give, item)

    def _next_item(self) -> outcome.Outcome[object]:
        try:
            if not self._has_begun and not self._is_left:
                self._has_begun = True
                self._iterator = iter(self._items)
            if self._iterator is not None and not self._is_left:
                return outcome.Value(next(self._iterator))
        except StopIteration:
            self._iterator = None
        except Exception as error:
            self._failure = error
        return end_of_items()

    def _leave(self) -> None:
        """Close the iterator. A thread that takes an item meanwhile closes it at its next step."""
        self._is_left = True
        if not self._taking.acquire(blocking=False):
            return
        try:
            iterator, self._iterator = self._iterator, None
            close = getattr(iterator, "close", None)
            if close is not None:
                close()
        finally:
            self._taking.release()

    # -- on the node's loop ------------------------------------------------------------------------

    async def _take(self) -> outcome.Outcome[T]:
        return await self._demand.step(super()._take)

    def _keep(self, taken: outcome.Outcome[T]) -> None:
        if taken is WANTED:
            self._demand.ask()
        else:
            super()._keep(taken)


class AsyncioMap(AsyncioStream[T]):
    """The results of ``map_stream``. The iterable belongs to asyncio's loop, plain or async: a task
    there takes an item when the node has room for it.
    """

    def __init__(self, stream: MapStream[T], kernel: Kernel) -> None:
        super().__init__(stream, kernel)
        self._demand = AsyncioDemand()
        self._items = bring_items(stream, self._demand)

    async def __anext__(self) -> T:
        from .feeder import Feeder  # noqa: PLC0415 - as above

        feeder = self._demand.feeder
        if feeder is None:
            self._check_loop()
            give = partial(self._kernel.router.bridge.undo, self._demand.give)
            feeder = Feeder(self._items, give)
            self._demand.begin(feeder)
        try:
            return await super().__anext__()
        except StopAsyncIteration as end:
            failure = feeder.take_failure() or end
        raise failure

    async def aclose(self) -> None:
        """End the iteration: cancel the functions in progress, and close the iterable."""
        try:
            await super().aclose()
        finally:
            if self._demand.feeder is not None:
                await self._demand.feeder.close()


class _EventVerbs(Facade):
    """The values of an :class:`EventStream`."""

    dropped: Final = value(EventStream, lambda stream: stream.dropped)
    reason: Final = value(EventStream, lambda stream: stream.reason)


class BlockingEvents(_EventVerbs, BlockingStream[Published]):
    """The publications of an event, for a plain ``for``."""


class AsyncioEvents(_EventVerbs, AsyncioStream[Published]):
    """The publications of an event, for ``async for`` on asyncio's loop."""


def blocking_stream(
    function: Callable[Concatenate[Any, P], CalledStream[T]],
) -> Callable[Concatenate[Any, P], BlockingStream[T]]:
    """A row of blocking facades, for a method that returns an async iterator."""
    return as_method(DirectRow(function, blocking=BlockingStream))


def asyncio_stream(
    function: Callable[Concatenate[Any, P], CalledStream[T]],
) -> Callable[Concatenate[Any, P], AsyncioStream[T]]:
    """A row of asyncio facades, for a method that returns an async iterator."""
    return as_method(DirectRow(function, asyncio=AsyncioStream))


def blocking_map(
    function: Callable[Concatenate[Any, P], MapStream[T]],
) -> Callable[Concatenate[Any, P], BlockingStream[T]]:
    """A row of blocking facades, for a method that takes items and returns their results."""
    return as_method(DirectRow(function, blocking=BlockingMap))


def asyncio_map(
    function: Callable[Concatenate[Any, P], MapStream[T]],
) -> Callable[Concatenate[Any, P], AsyncioStream[T]]:
    """A row of asyncio facades, for a method that takes items and returns their results."""
    return as_method(DirectRow(function, asyncio=AsyncioMap))
