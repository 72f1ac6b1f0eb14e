"""`Channel`: the values that a producer has made, and its reader has not taken yet."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import trio

__all__ = ["Channel"]

T = TypeVar("T")


class Channel(Generic[T]):
    """A queue between a producer and a reader, with a credit for backpressure. Both know the
    channel, and it knows neither: so a reader that is dropped can be noticed.

    All methods are for trio's loop. A producer elsewhere posts its values to that loop.
    """

    __slots__ = (
        *("_queue", "_ready", "_room", "credit", "dropped", "is_closed", "is_finished"),
        *("taken", "was_asked"),
    )

    def __init__(self, credit: int) -> None:
        self._queue: deque[T] = deque()
        self._ready = trio.Event()
        """The sleep of the reader."""
        self._room = trio.Event()
        """The sleep of the producer."""
        self.credit: int = credit
        """How many values may wait for the reader."""
        self.dropped: int = 0
        """How many values have given their places to newer values."""
        self.is_closed: bool = False
        """Whether the reader has left, or has got everything."""
        self.is_finished: bool = False
        """Whether the producer puts no more values."""
        self.taken: int = 0
        """How many values the reader has taken."""
        self.was_asked: bool = False
        """Whether the reader has waited for a value."""

    def __len__(self) -> int:
        return len(self._queue)

    def __str__(self) -> str:
        return f"{len(self._queue)} waiting, {self.taken} taken"

    # -- for the producer --------------------------------------------------------------------------

    def put(self, value: T) -> None:
        """Let a value wait for the reader. A producer with backpressure waits for room after."""
        if not self.is_closed:
            self._queue.append(value)
            self._ready.set()

    def put_newest(self, value: T) -> None:
        """Let a value wait for the reader, in the place of the oldest if there is no room."""
        if not self.has_room():
            self._queue.popleft()
            self.dropped += 1
        self.put(value)

    def finish(self) -> None:
        """Note that the producer has ended: the reader gets the values that wait, and the end."""
        self.is_finished = True
        self._ready.set()

    def has_room(self) -> bool:
        """Whether another value may wait for the reader."""
        return len(self._queue) < self.credit

    async def wait_until(self, may_go_on: Callable[[], bool]) -> None:
        """Let the producer wait. The condition is checked again after each step of the reader, and
        after each `ring`.
        """
        while not may_go_on():
            self._room = trio.Event()
            await self._room.wait()

    def ring(self) -> None:
        """Let a waiting producer check its condition again."""
        self._room.set()

    # -- for the reader ----------------------------------------------------------------------------

    def use_credit(self, credit: int) -> None:
        """Let another number of values wait."""
        self.credit = credit

    async def wait(self) -> bool:
        """Wait for a value. False at the end."""
        while not self._queue:
            if self.is_finished or self.is_closed:
                return False
            self.was_asked = True
            self._room.set()
            if self._ready.is_set():
                self._ready = trio.Event()
            await self._ready.wait()
        return True

    def take(self) -> T:
        """Take a value, and give its credit back to the producer."""
        self.taken += 1
        self._room.set()
        return self._queue.popleft()

    def close(self) -> None:
        """Drop all values, and take no more."""
        self.is_closed = True
        self._queue.clear()
