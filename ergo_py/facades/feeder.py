"""`Feeder`: a task of asyncio that takes the items of an iterable for a node."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextvars import copy_context
from inspect import isawaitable

import outcome

from .demand import end_of_items

__all__ = ["Feeder"]

_Items = Iterable[object] | AsyncIterable[object]


class Feeder:
    """Takes each item when it is asked to, and closes the iterable if it is not at its end.

    A single task does it all, with the context variables of the first reader. So to cancel a reader
    does not cancel the iterable, and an async generator may ``yield`` inside of a task group.
    """

    def __init__(self, items: _Items, give: Callable[[outcome.Outcome[object]], object]) -> None:
        self.loop = asyncio.get_running_loop()
        self.failure: BaseException | None = None
        """The exception of the iterable."""
        self._items = items
        self._give = give
        self._context = copy_context()
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_ending = False
        """A further cancellation would interrupt the close of the iterable."""

    def take_failure(self) -> BaseException | None:
        """The exception of the iterable, once."""
        failure, self.failure = self.failure, None
        return failure

    def ask(self) -> None:
        """Let an item be taken and given."""
        self._asked.set()
        if self._task is None:
            self._task = self.loop.create_task(
                self._run(), name="items of map_stream", context=self._context
            )

    def end(self) -> None:
        """Let the iterable be closed."""
        if self._task is not None and not self._is_ending:
            self._is_ending = True
            self._task.cancel()

    async def close(self) -> None:
        """Close the iterable, and wait until it is closed. Raises an exception of its end."""
        self.end()
        # Not the iterable itself, which may close its stream.
        if self._task is not None and self._task is not asyncio.current_task():
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.result()

    async def _run(self) -> None:
        items: Iterator[object] | AsyncIterator[object] | None = None
        try:
            given = self._items
            items = aiter(given) if isinstance(given, AsyncIterable) else iter(given)
            while True:
                await self._asked.wait()
                self._asked.clear()
                item = await anext(items) if isinstance(items, AsyncIterator) else next(items)
                self._give(outcome.Value(item))
        except (StopIteration, StopAsyncIteration):
            items = None
        except BaseException as error:
            if not self._is_ending:
                self.failure = error
            if not isinstance(error, Exception):
                raise
        finally:
            self._is_ending = True
            self._give(end_of_items())
            await _close(items)


async def _close(items: object) -> None:
    close = getattr(items, "aclose", None) or getattr(items, "close", None)
    if close is not None and isawaitable(closing := close()):
        await closing
