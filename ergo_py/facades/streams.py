"""`BlockingStream` and `AsyncioStream`: async iterators of a node, for other code."""

from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from .._core.kernel import Kernel
from ..streams.parts import CalledStream
from ..tasks.stream import MapStream
from .facade import Asyncio, Blocking
from .rows import DirectRow, as_method

__all__ = ["AsyncioStream", "BlockingStream", "asyncio_stream", "blocking_stream"]

P = ParamSpec("P")
T = TypeVar("T")


class BlockingStream(Blocking, Generic[T]):
    """An async iterator of a node, for a plain ``for``: each step blocks this thread. ``with``
    closes it.
    """

    _variable = "stream"

    def __init__(self, stream: AsyncIterator[T], kernel: Kernel) -> None:
        super().__init__(stream, kernel)

    def __iter__(self) -> "BlockingStream[T]":
        return self

    def __next__(self) -> T:
        step: Callable[[], Any] = self._subject.__anext__
        try:
            item: T = self._wait(step)
        except StopAsyncIteration:
            raise StopIteration from None
        return item

    def close(self) -> None:
        """End the iteration: unsubscribe, or cancel the producer of the parts."""
        if hasattr(self._subject, "aclose"):
            self._wait(self._subject.aclose)
        else:
            self._subject.close()

    def __enter__(self) -> "BlockingStream[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncioStream(Asyncio, Generic[T]):
    """An async iterator of a node, for ``async for`` on asyncio's loop. ``async with`` closes
    it.
    """

    _variable = "stream"

    def __init__(self, stream: AsyncIterator[T], kernel: Kernel) -> None:
        super().__init__(stream, kernel)

    def __aiter__(self) -> "AsyncioStream[T]":
        return self

    async def __anext__(self) -> T:
        step: Callable[[], Any] = self._subject.__anext__
        item: T = await self._wait(step)
        return item

    async def aclose(self) -> None:
        """End the iteration: unsubscribe, or cancel the producer of the parts."""
        await self._wait(self._close)

    async def _close(self) -> None:
        if hasattr(self._subject, "aclose"):
            await self._subject.aclose()
        else:
            self._subject.close()

    async def __aenter__(self) -> "AsyncioStream[T]":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


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
