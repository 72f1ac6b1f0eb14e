"""What a reader thread has sent and the loop has not delivered: bounded, so that no reader runs away from a slow receiver."""

from collections import deque
from collections.abc import Callable
from typing import Any

from .bridge import Parker
from .errors import MailboxFullError
from .ids import PID, Alias, Target
from .mailbox import Lane, Overflow, Priority
from .messages import Why
from .options import Behind
from .receiver import Receiver
from .router import LANES, Router

__all__ = ["Outbox"]


class Outbox:
    """A queue from one reader thread to the loop.

    The thread appends first and looks at the flag then; the loop takes the flag down first and looks at the queue then. The thread
    announces that it waits and then looks again, at every reason to go on. So nothing is lost, and nobody waits for nothing.
    """

    __slots__ = (
        "_armed",
        "_blocked",
        "_forced",
        "_queue",
        "_router",
        "_sender",
        "_waits",
        "backlog",
        "dropped",
        "policy",
        "released",
        "sent",
    )

    def __init__(self, router: Router, sender: PID | Alias, backlog: int, policy: Behind) -> None:
        self._router = router
        self._sender = sender
        self._queue: deque[tuple[Target, object, Priority]] = deque()
        self._armed = False
        self._blocked = False
        self._forced = False
        self._waits: Parker[None] | None = None
        self.backlog = backlog
        self.policy = policy
        self.released = False
        """The stop has come: nobody waits here any more."""
        self.sent = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def reader_waits(self) -> bool:
        """Whether the reader is held up by a slow receiver at this moment."""
        return self._waits is not None

    # -- in the reader's thread --------------------------------------------------------------------------------------

    def put(self, to: Target, message: object, priority: Priority, overrun: Callable[[], None]) -> bool:
        """Queue a message, waiting or dropping as the policy says when too many are queued."""
        receiver = self._router.resolve(to)
        queue = self._queue
        if len(queue) >= self.backlog and not self.released and not self._make_room(to, message, overrun):
            return False
        queue.append((to, message, priority))
        self._arm()
        return receiver is not None and receiver.accepting

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            self._router.bridge.post(self.flush)

    def _make_room(self, to: Target, message: object, overrun: Callable[[], None]) -> bool:
        """Returns whether the new message may be queued."""
        queue = self._queue
        match self.policy:
            case Behind.WAIT:
                while len(queue) >= self.backlog and not self.released:
                    parker: Parker[None] = Parker()
                    self._waits = parker
                    if len(queue) >= self.backlog and not self.released:
                        parker.wait(None)
                    self._waits = None
                return True
            case Behind.DROP_OLDEST:
                try:
                    oldest_to, oldest, _ = queue.popleft()
                except IndexError:  # the loop was faster
                    return True
                self._drop(oldest_to, oldest)
                return True
            case Behind.STOP:
                overrun()
        self._drop(to, message)
        return False

    def _drop(self, to: Target, message: object) -> None:
        self.dropped += 1
        self._router.bridge.post(self._router.dead_letters.add, self._sender, to, message, Why.FULL)

    # -- on the loop -------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Deliver what is queued, as far as the receivers keep up."""
        self._armed = False
        if not self._blocked or self._forced:
            self._deliver()
        waits = self._waits
        if waits is not None and (self.released or len(self._queue) * 2 <= self.backlog):
            waits.settle(None)

    def _deliver(self) -> None:
        queue, router = self._queue, self._router
        while queue:
            try:
                # Taken before it is looked at: a reader that drops its oldest must not drop another one in its stead.
                entry = queue.popleft()
            except IndexError:
                return
            to, message, priority = entry
            receiver = router.resolve(to)
            if receiver is not None and receiver.accepting and self.is_behind(receiver, LANES[priority]):
                queue.appendleft(entry)
                self._blocked = True
                receiver.mailbox.wait_for_room(LANES[priority], None, self, self.backlog)
                return
            try:
                router.send(self._sender, to, message, priority)
            except MailboxFullError:
                # Stopping, so it could not wait any longer: counted and dead-lettered by the router.
                self.dropped += 1
            self.sent += 1

    def is_behind(self, receiver: Receiver, lane: Lane) -> bool:
        """Whether a receiver has as much to do as it may have before the reader waits."""
        box = receiver.mailbox
        if box.limit and box.overflow in (Overflow.RAISE, Overflow.WAIT) and not box.has_room(lane):
            return not self._forced
        return lane is Lane.MAIN and len(box.main) >= self.backlog and not self._forced

    def settle(self, _admitted: bool, /) -> None:
        """A receiver has room again, or is ending."""
        self._blocked = False
        self.flush()

    def release(self) -> None:
        """Let the reader go, whatever it waits for. From the loop, when the stop has come."""
        self.released = True
        waits = self._waits
        if waits is not None:
            waits.settle(None)

    def force(self) -> None:
        """Deliver the rest now: into mailboxes without a bound whatever their depth, and where that is refused as dead letters."""
        self._forced = True
        self.flush()

    def info(self) -> dict[str, Any]:
        """For snapshots."""
        return {"queued": len(self._queue), "sent": self.sent, "dropped": self.dropped, "waits": self.reader_waits}
