"""`BlockingStream` and `AsyncioStream`: async iterators of a node, for other code."""

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

import outcome
import trio

from .._core.kernel import Kernel
from .._core.vocabulary.errors import NodeStoppedError
from .._core.vocabulary.messages import Published
from ..streams.events import EventStream
from ..streams.parts import CalledStream
from ..tasks.stream import ClosableIterator, MapStream
from .facade import Asyncio, Blocking, Facade
from .rows import DirectRow, as_method, value

__all__ = [
    "AsyncioEvents",
    "AsyncioStream",
    "BlockingEvents",
    "BlockingStream",
    "asyncio_stream",
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
                return outcome.Value(await self._subject.__anext__())
            except Exception as error:
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


class _EventVerbs(Facade):
    """The values of an :class:`EventStream`."""

    dropped: Final = value(EventStream, lambda stream: stream.dropped)
    reason: Final = value(EventStream, lambda stream: stream.reason)


class BlockingEvents(_EventVerbs, BlockingStream[Published]):
    """The publications of an event, for a plain ``for``."""


class AsyncioEvents(_EventVerbs, AsyncioStream[Published]):
    """The publications of an event, for ``async for`` on asyncio's loop."""


def blocking_stream(
    function: Callable[Concatenate[Any, P], CalledStream[T] | MapStream[T]],
) -> Callable[Concatenate[Any, P], BlockingStream[T]]:
    """A row of blocking facades, for a method that returns an async iterator."""
    return as_method(DirectRow(function, blocking=BlockingStream))


def asyncio_stream(
    function: Callable[Concatenate[Any, P], CalledStream[T] | MapStream[T]],
) -> Callable[Concatenate[Any, P], AsyncioStream[T]]:
    """A row of asyncio facades, for a method that returns an async iterator."""
    return as_method(DirectRow(function, asyncio=AsyncioStream))
