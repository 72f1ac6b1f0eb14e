"""`CallIntake`: the items of a pipeline without a source are the calls to its process."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import trio

from .._core.tables.pending_calls import Caller
from .._core.vocabulary.errors import MailboxFullError, TargetDownError
from .._core.vocabulary.reasons import Shutdown
from ..actor import Actor
from .item import Item
from .lanes import Entry

__all__ = ["CallIntake"]

_SHARE: Final = 20
"""One of so many calls, for as many that wait, looks for those that were given up: a look at all of
them costs a call no more than a look at this number.
"""


class CallIntake:
    """Makes an item of each call, within the bound, and answers when the item has ended. As many
    calls may wait beyond the bound; further calls are refused. It is used on the loop only, but for
    the counters.
    """

    lost: str = ""
    redelivered: int = 0

    def __init__(
        self, pipeline: Actor, most: int, taken: Callable[[Sequence[Entry]], None]
    ) -> None:
        self._pipeline, self._most, self._on_taken = pipeline, most, taken
        self._waiting: deque[tuple[Item, Caller]] = deque()
        """Calls beyond the bound, and among them those that were given up and not dropped yet."""
        self._unseen = 0
        """The calls that came since those that were given up were dropped."""
        self._is_taking = self._is_draining = self._is_refusing = False
        self.taken: int = 0
        self.open: int = 0
        self.acknowledged: int = 0
        """Items so far, and now."""
        self.drained: trio.Event = trio.Event()

    @property
    def waiting(self) -> int:
        """The number of calls beyond the bound whose callers still wait."""
        # A copy, which the loop does not change: another thread may ask.
        return sum(not caller.settled for _, caller in tuple(self._waiting))

    def put(self, request: object, caller: Caller) -> None:
        """Take the request of a call: an `Item` as it is, anything else as the body of an item."""
        if self._is_refusing:
            self._refuse(caller)
            return
        self._drop_given_up()
        if len(self._waiting) >= self._most:
            full = MailboxFullError(self._pipeline.pid, request, self._most, "most_unacknowledged")
            self._pipeline.reply_error(caller, full)
            return
        item = request if isinstance(request, Item) else Item(request)
        self._waiting.append((Item(item.body, item.key), caller))
        self._take()

    def _drop_given_up(self) -> None:
        self._unseen += 1
        is_full = len(self._waiting) >= self._most and self._waiting[0][1].settled
        if is_full or (self._waiting and self._unseen > len(self._waiting) // _SHARE):
            self._unseen = 0
            self._waiting = deque(each for each in self._waiting if not each[1].settled)

    def _take(self) -> None:
        # An item that fails at once is settled here, which must not begin again inside: thousands
        # of such items would be as many calls within each other.
        if self._is_taking:
            return
        self._is_taking = True
        try:
            while entries := self._next_entries():
                self.open += len(entries)
                self.taken += len(entries)
                self._on_taken(entries)
        finally:
            self._is_taking = False

    def _next_entries(self) -> list[Entry]:
        entries: list[Entry] = []
        now = trio.current_time()
        while self._waiting and not self._is_draining and self.open + len(entries) < self._most:
            item, caller = self._waiting.popleft()
            if not caller.settled:  # the caller still waits
                entries.append(Entry(item, now, caller))
        return entries

    def settle(self, entries: Sequence[Entry], error: Exception | None) -> None:
        """Answer the calls of items that have ended: by the body that the last stage has left, or
        by the error for which the item was given up, whatever ``poison`` made of it.
        """
        for entry in entries:
            assert entry.caller is not None
            problem = error if entry.error is None else entry.error
            if problem is None:
                self._pipeline.reply(entry.caller, entry.item.body)
            else:
                self._pipeline.reply_error(entry.caller, problem)
        self.open -= len(entries)
        self.acknowledged += len(entries) if error is None else 0
        self._take()
        self._note_end()

    def refuse(self) -> None:
        """Answer calls beyond the bound, and all that come, by an error: the process drains, and
        may live on after that.
        """
        self._is_refusing = True
        while self._waiting:
            self._refuse(self._waiting.popleft()[1])

    def _refuse(self, caller: Caller) -> None:
        # Without the request: a service that retries would ask this process again, at once.
        reason = Shutdown("the pipeline is draining")
        self._pipeline.reply_error(
            caller, TargetDownError(self._pipeline.pid, None, reason, begun=False)
        )

    def begin_drain(self) -> None:
        """Take no more calls. Those that wait fail with the end of the process."""
        self._is_draining = True
        self._note_end()

    def _note_end(self) -> None:
        if self._is_draining and not self.open:
            self.drained.set()
