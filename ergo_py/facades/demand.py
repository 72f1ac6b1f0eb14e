"""`ThreadDemand` and `AsyncioDemand`: the source of a ``map_stream`` whose items other code takes
from an iterable, each when the node asks for it.

They do not know the iterable: a generator that is dropped runs its ``finally``, which is not for
the thread of the node.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

import outcome
import trio

if TYPE_CHECKING:
    from .feeder import Feeder

__all__ = ["WANTED", "AsyncioDemand", "ThreadDemand", "end_of_items"]

WANTED: Final[outcome.Value[None]] = outcome.Value(None)
"""What a thread gets in the place of a result: it takes an item, and asks for a result again."""


def end_of_items() -> outcome.Error:
    """What is given in the place of an item after the last."""
    return outcome.Error(StopAsyncIteration())


class _Demand:
    """An async iterator on the node's loop. It asks for each item, and waits until it is given."""

    def __init__(self) -> None:
        self._item: outcome.Outcome[object] = end_of_items()
        self._has_item = trio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> object:
        self._has_item = trio.Event()
        self.ask()
        await self._has_item.wait()
        return self._item.unwrap()

    def ask(self) -> None:
        """Ask for an item. On the node's loop, as all methods here."""
        raise NotImplementedError

    def give(self, item: outcome.Outcome[object]) -> None:
        """Take an item that was asked for."""
        self._item = item
        self._has_item.set()


class ThreadDemand(_Demand):
    """Asks the thread that waits for a result."""

    def __init__(self) -> None:
        super().__init__()
        self._is_asking = False
        self._waiting: trio.CancelScope | None = None
        """The wait for a result."""
        self._has_item_since = False
        """Whether an item was given after the last result."""

    def ask(self) -> None:
        """Ask for an item. A thread that waits for a result takes it."""
        self._is_asking = True
        if self._waiting is not None:
            self._waiting.cancel()

    def give(self, item: outcome.Outcome[object]) -> None:
        """Take an item that was asked for."""
        self._has_item_since = True
        super().give(item)

    async def step(
        self, take: Callable[[], Awaitable[outcome.Outcome[Any]]]
    ) -> outcome.Outcome[Any]:
        """Take a result, or return `WANTED`. An item comes first, so that a slow consumer leaves no
        function idle; then a result that is ready, so that it does not wait for a slow iterable.
        """
        if not self._is_asking or self._has_item_since:
            with trio.CancelScope() as self._waiting:
                if self._is_asking:
                    self._waiting.cancel()
                result = await take()
                self._has_item_since = False
                return result
        self._is_asking = False
        return WANTED


class AsyncioDemand(_Demand):
    """Asks a task of asyncio. Before :meth:`begin`, no result is asked for, and no item."""

    def __init__(self) -> None:
        super().__init__()
        self.feeder: Feeder | None = None

    def begin(self, feeder: "Feeder") -> None:
        """Ask this one for items from now on."""
        self.feeder = feeder

    def ask(self) -> None:
        """Ask for an item."""
        if self.feeder is not None:
            self._post(self.feeder.ask)

    async def aclose(self) -> None:
        """Let the iterable be closed. Do not wait for that: asyncio's loop may be busy."""
        if self.feeder is not None:
            self._post(self.feeder.end)

    def _post(self, job: Callable[[], object]) -> None:
        assert self.feeder is not None
        with suppress(RuntimeError):  # asyncio's loop is closed
            self.feeder.loop.call_soon_threadsafe(job)
