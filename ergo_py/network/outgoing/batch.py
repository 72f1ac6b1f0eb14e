"""`Batch`: the operations to another node that go out together."""

from typing import Final, Protocol

import trio

from ..._core import sources
from ..._core.tables.mailbox import Mailbox
from ..protocol.session import Session, State

__all__ = ["CALLS", "MESSAGES", "Batch", "Schedule"]

# Measured at this size: two idle processors answer half as many calls again as without an early
# part, and busy processors need a tenth more time.
CALLS: Final = 6 * 1024
"""Bytes of calls and answers that are kept at most: then a part goes out early, so that both nodes
work at the same time.
"""
MESSAGES: Final = 16 * 1024
"""The same for messages, whose senders do not wait."""
_PAUSE: Final = 0.00005
"""Seconds after an operation within which further ones are collected. Measured with a burst of 1000
messages in a turn: 1000 frames without a pause, 7 with this one, 7 with 0.2 ms and 6 with 1 ms. A
longer pause saves nothing, and a single call never waits for it: the first operation goes at once.
"""


class Schedule(Protocol):
    """The network, which lets batches go out and sessions act in time."""

    def flush_later(self, batch: "Batch", /) -> None:
        """Call `Batch.flush` when the tasks that run now have run."""

    def arm(self, deadline: float, /) -> None:
        """Let the session act at ``deadline`` at the latest."""


class Batch:
    """The operations that are queued in the session with another node, and the moment at which they
    go out.
    """

    __slots__ = ("_flush_at", "_mailbox", "_schedule", "_sent_all", "_session", "full", "is_open")

    def __init__(self, session: Session, mailbox: Mailbox, schedule: Schedule) -> None:
        self._session = session
        self._mailbox = mailbox
        self._schedule = schedule
        self.is_open: bool = False
        """Operations are kept, until a later turn or the end of a pass sends them."""
        self.full: int = CALLS
        """The queued bytes at which operations that are kept go out early."""
        self._flush_at = 0.0
        """The moment from which on an operation goes out at once."""
        self._sent_all: trio.Event | None = None
        """Wakes a task that waits until the carrier has got everything."""

    def wake(self) -> None:
        """Send queued operations: the first at once, and those that follow within a short while
        together, when the tasks that run now have run.
        """
        if self.is_open:
            return
        now = sources.slice_clock()
        if now >= self._flush_at:
            self._flush_at = now + _PAUSE
            self._session.flush()
            if self._session.state is not State.UP:
                # A flush without a session sends nothing, but a push has invited the peer: the
                # repetition and the end of the invitation have their deadlines, which the network
                # does not know yet.
                self.settle()
        else:
            self.is_open = True
            self._schedule.flush_later(self)

    def hold(self) -> bool:
        """Keep operations until :meth:`end_hold`. False if they are kept already."""
        if self.is_open:
            return False
        self.is_open = True
        return True

    def flush(self) -> None:
        """Send the operations that were queued since the first."""
        self._flush_at = sources.slice_clock() + _PAUSE
        self.end_hold()

    def end_hold(self) -> None:
        """Send the operations that came of the frames of a pass."""
        self.is_open = False
        self.full = CALLS
        session = self._session
        session.flush()
        if (
            # Only then: mostly the next deadline is that of a heartbeat, which each frame puts off,
            # so the alarm that is armed comes early enough.
            session.is_due_earlier
            or session.state is not State.UP
            or self._mailbox.waiters
            or self._sent_all is not None
        ):
            self.settle()

    def flush_early(self, step: int) -> None:
        """Send the operations that are kept, so that the other node works on them meanwhile."""
        self._session.flush()
        # If the window is full, try again when as much again is queued.
        self.full = self._session.sending.queued_bytes + step

    def settle(self) -> None:
        """Let waiting senders in, and arm the next deadline, after any step of the session."""
        session = self._session
        # Before the look at `_sent_all`: the operations of senders that waited for room are not
        # sent yet.
        if self._mailbox.waiters and self._mailbox.admit_waiters():
            session.flush()
        if self._sent_all is not None and not session.queued:
            self._sent_all.set()
            self._sent_all = None
        session.note_deadline()
        self._schedule.arm(session.next_deadline())

    async def wait_sent(self) -> None:
        """Wait until all operations are given to the carrier, or the session ends."""
        # Again after each wake-up: other tasks run between the event and this task, and may have
        # queued more.
        while self._session.state is State.UP and self._session.queued:
            if self._sent_all is None:
                self._sent_all = trio.Event()
            await self._sent_all.wait()
