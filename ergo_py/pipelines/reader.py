"""`SourceReader`: the thread of a source. It takes items within the bound, and acknowledges."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import trio

from .._core import sources
from .._core.verbs.meta_process import MetaProcess
from .._core.vocabulary.errors import NodeStoppedError
from .._core.vocabulary.text import shown
from ..meta.readers import ReaderWait
from ..supervision.specs import Backoff
from .item import Item
from .lanes import Entry
from .source import ALIVE, Source, name_of, why

__all__ = ["SourceReader"]

_IDLE: Final = 1.0
"""Seconds that a source may wait for items while none is open: a stop waits for that."""
_BUSY: Final = 0.05
"""The same while items are open: acknowledgements wait for that, unless the source waits as
`Source` does.
"""

Settled = tuple[list[Item], Exception | None]
"""Items to acknowledge, or to fail with the error."""


class SourceReader(MetaProcess):
    """Owns the source, and the items between ``take`` and ``ack``: these are the open items.

    The thread alone changes the counters. The loop appends to the queue of settled items, and the
    thread removes them after the source has acknowledged them: after a failure it tries the same
    items again.
    """

    kind = "source"
    waiting: int = 0

    def __init__(
        self, source: Source, most: int, reopen: Backoff, taken: Callable[[list[Item]], None]
    ) -> None:
        self._source, self._most, self._reopen, self._on_taken = source, most, reopen, taken
        self._settled: deque[Settled] = deque()
        self._wait = ReaderWait(self)
        self._tries = 0
        self._is_draining = False
        self.taken: int = 0
        self.open: int = 0
        self.acknowledged: int = 0
        self.redelivered: int = 0
        """Items so far, and now."""
        self.lost: str = "not opened yet"
        """Why the source is not open; empty while it is."""
        self.drained: trio.Event = trio.Event()
        """Set when the thread has ended, or a stuck step cannot finish the open items."""

    # -- on the loop -------------------------------------------------------------------------------

    def settle(self, entries: Sequence[Entry], error: Exception | None) -> None:
        """Acknowledge the items, or fail them with the error, in the thread."""
        self._settled.append(([entry.origin for entry in entries], error))
        self._wait.ring()

    def begin_drain(self) -> None:
        """Take no more items. The thread ends when no item is open."""
        self._is_draining = True
        self._wait.ring()

    def unblock(self) -> None:
        """Let the thread see that it is to stop."""
        self._wait.ring()

    async def terminate(self, reason: object) -> None:
        """Let the pipeline know that the thread has ended."""
        self.drained.set()

    # -- in the thread -----------------------------------------------------------------------------

    def start(self) -> None:
        """Take items and acknowledge them, until the stop; open the source again when it is
        lost.
        """
        self._source.work_with(self._pause, self._most)
        chance = sources.chance(self.id.node, "pipelines").fraction
        while not self._is_over():
            try:
                self._source.open()
                self.lost = ""
                self._serve()
            except Exception as error:
                self._note_lost(error)
            finally:
                self._close()
            if self.lost:
                seconds = self._reopen.delay(self._tries - 1, chance())
                self._wait.in_thread(self._is_over, seconds)

    def _is_over(self) -> bool:
        return self.stopping or (self._is_draining and not self.open)

    def _serve(self) -> None:
        source = self._source
        waits_itself = type(source).wait is not Source.wait
        stays_alive = type(source).keep_alive is not Source.keep_alive
        while True:
            self._acknowledge()
            if self._is_over():
                return
            room = 0 if self._is_draining else self._most - self.open
            if room <= 0:  # the source may have taken more than it was asked for
                # Without a bound for a source that has nothing to do meanwhile.
                if not self._wait.in_thread(self._has_news, ALIVE if stays_alive else None):
                    source.keep_alive()
                continue
            items = source.take(room)
            _check_items(items)
            self._tries = 0
            if items:
                self._note_taken(items, room)
            else:
                source.wait(_BUSY if self.open and waits_itself else _IDLE)

    def _has_news(self) -> bool:
        return bool(self._settled) or self._is_over()

    def _pause(self, seconds: float) -> bool:
        self._wait.in_thread(self._is_awaited, seconds)
        return not self._is_awaited()

    def _is_awaited(self) -> bool:
        return bool(self._settled) or self._is_draining or self.stopping

    def _note_taken(self, items: list[Item], room: int) -> None:
        self.open += len(items)
        self.taken += len(items)
        self.redelivered += len([item for item in items if item.redelivered])
        if len(items) > room:
            # Not an exception of the source, which would be opened again: its code is wrong.
            self.log.error("a source has taken more than it was asked for", by=len(items) - room)
        try:
            self._meta.router.bridge.post(self._on_taken, items)
        except NodeStoppedError:  # the thread was abandoned: the broker delivers them again
            return

    def _acknowledge(self) -> None:
        settled = self._settled
        while settled:
            done: list[Item] = []
            count = 0
            error = settled[0][1]
            # The loop only appends, so the part that is read here stays as it is.
            for items, problem in list(settled):
                if problem is not error:
                    break
                done += items
                count += 1
            if error is None:
                self._source.ack(done)
                self.acknowledged += len(done)
            else:
                self._source.fail(done, error)
            for _ in range(count):
                settled.popleft()
            self.open -= len(done)

    def _note_lost(self, error: Exception) -> None:
        self._tries += 1
        self.lost = f"{name_of(self._source)}: {why(error)}"
        self.log.warning("the source of a pipeline is lost", source=self.lost, tries=self._tries)

    def _close(self) -> None:
        try:
            self._source.close()
        except Exception as error:
            self.log.warning("a source did not close", error=why(error))


def _check_items(taken: object) -> None:
    # Also the coroutine of an `async def`.
    if not isinstance(taken, list) or not all(isinstance(item, Item) for item in taken):
        raise TypeError(
            f"take(self, most) is a plain method and returns a list of Item: `[Item(body), …]`; it "
            f"has returned {shown(taken)}"
        )
