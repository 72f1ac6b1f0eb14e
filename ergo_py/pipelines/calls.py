"""`CallIntake`: the items of a pipeline without a source are the calls to its process."""

from collections import deque
from collections.abc import Callable, Sequence

import trio

from .._core.tables.pending_calls import Caller
from ..actor import Actor
from .item import Item
from .lanes import Entry

__all__ = ["CallIntake"]


class CallIntake:
    """Makes an item of each call, within the bound, and answers when the item has ended. It is
    used on the loop only.
    """

    lost: str = ""
    redelivered: int = 0

    def __init__(self, pipeline: Actor, most: int, taken: Callable[[list[Item]], None]) -> None:
        self._pipeline, self._most, self._on_taken = pipeline, most, taken
        self._waiting: deque[Item] = deque()
        """Calls beyond the bound."""
        self._is_draining = False
        self.taken: int = 0
        self.open: int = 0
        self.acknowledged: int = 0
        """Items so far, and now."""
        self.drained: trio.Event = trio.Event()

    def put(self, request: object, caller: Caller) -> None:
        """Take the request of a call: an `Item` as it is, anything else as the body of an item."""
        item = request if isinstance(request, Item) else Item(request)
        self._waiting.append(Item(item.body, item.key, caller))
        self._take()

    def _take(self) -> None:
        items: list[Item] = []
        while self._waiting and not self._is_draining and self.open + len(items) < self._most:
            item = self._waiting.popleft()
            if not item.receipt.settled:  # the caller still waits
                items.append(item)
        if items:
            self.open += len(items)
            self.taken += len(items)
            self._on_taken(items)

    def settle(self, entries: Sequence[Entry], error: Exception | None) -> None:
        """Answer the calls of items that have ended: by the body that the last stage has left, or
        by the error for which the item was given up.
        """
        for entry in entries:
            problem = entry.item.error if error is None else error
            if problem is None:
                self._pipeline.reply(entry.origin.receipt, entry.item.body)
            else:
                self._pipeline.reply_error(entry.origin.receipt, problem)
        self.open -= len(entries)
        self.acknowledged += len(entries) if error is None else 0
        self._take()
        self._note_end()

    def begin_drain(self) -> None:
        """Take no more calls. Those that wait fail with the end of the process."""
        self._is_draining = True
        self._note_end()

    def _note_end(self) -> None:
        if self._is_draining and not self.open:
            self.drained.set()
