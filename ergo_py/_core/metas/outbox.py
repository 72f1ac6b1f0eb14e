"""``Outbox``: bounded queue from a reader to its receivers. It gives the reader backpressure."""

from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, cast

from trio.lowlevel import current_task, enable_ki_protection

from ..messaging.receiver import NO_RECEIVER, AnyProcess, Receiver
from ..messaging.remote import RemoteReceiver
from ..messaging.router import LANES, Router
from ..messaging.waiters import TaskWaiter
from ..runtime.bridge import Parker
from ..runtime.parking import park_as
from ..tables.mailbox import Waiter
from ..vocabulary.envelopes import MAIN_LANE, MESSAGE, Lane, Overflow, Priority
from ..vocabulary.errors import MailboxFullError
from ..vocabulary.ids import PID, Alias, Target
from ..vocabulary.messages import Why
from ..vocabulary.options import Behind

__all__ = ["Outbox"]

Entry = tuple[Target, object, Priority]

# Not measured: 1,000 messages of 4 KiB. A backlog of 1,000 reads of 256 KiB would hold 256 MiB for
# a receiver that is slow.
_WEIGHT: Final = 4 * 1024 * 1024
"""Bytes, roughly, that may be queued for a receiver before its readers wait (backpressure), if that
is fewer messages than ``backlog``.
"""


class Limits(NamedTuple):
    """What an outbox does if its receivers are behind."""

    backlog: int
    """Messages that may wait at a receiver, however small they are."""
    policy: Behind
    """What happens to a message for which there is no room."""
    overrun: Callable[[], None]
    """Ends the meta-process, if that is the policy."""


class Stage(IntEnum):
    """How far an outbox is on its way to its end. It never goes back."""

    OPEN = 0
    LAST = 1
    """Nothing follows: the depth of unbounded mailboxes does not count any more."""
    FORCED = 2
    """No message waits any more. Refused messages become dead letters."""
    CLOSED = 3
    """Nothing is delivered any more."""


# Constants of the module are read faster than members of an enum.
_OPEN, _LAST, _FORCED, _CLOSED = Stage.OPEN, Stage.LAST, Stage.FORCED, Stage.CLOSED


class Outbox:
    """Bounded queue from a reader to its receivers, in the order of sending.

    While its receiver keeps up, a reader thread appends messages directly to the receiver's
    mailbox, as any thread may. A message is queued here only behind a message that has to wait.

    The order of steps closes two race conditions. Queueing: the thread appends to the queue, then
    checks ``_armed``; the loop clears ``_armed``, then reads the queue. So no message stays behind.
    Waiting: the thread sets ``_waits``, then checks each reason to continue once more, and only
    then blocks. So it cannot miss its wake-up.
    """

    __slots__ = (
        "_armed",
        "_emptied",
        "_holds",
        "_overran",
        "_peer",
        "_queue",
        "_router",
        "_sender",
        "_stage",
        "_waits",
        "_waits_at_mailbox",
        "backlog",
        "direct",
        "dropped",
        "limits",
        "reader",
        "released",
        "sent",
    )

    def __init__(
        self,
        router: Router,
        sender: PID | Alias,
        backlog: int,
        policy: Behind,
        overrun: Callable[[], None],
    ) -> None:
        self._router = router
        self._sender = sender
        self._queue: deque[Entry] = deque()
        """Messages that follow another message, which has to wait."""
        self._armed = False
        """A flush is under way: the reader need not ask for it."""
        self._waits_at_mailbox: tuple[Receiver, Lane, Entry] | None = None
        """The first message, if it waits for room at its receiver's mailbox. The mailbox admits it.
        """
        self._holds = False
        """The loop has popped messages that are not delivered yet, or has closed the outbox."""
        self._peer = NO_RECEIVER
        """The receiver of the reader's last message, if that receiver is an open process."""
        self._stage = _OPEN
        self._overran = False
        """The queue overran and the meta-process is ending: later messages would follow a gap."""
        self._waits: Parker[None] | None = None
        """Wakes the reader's thread, while it waits for room."""
        self._emptied: list[Waiter] = []
        """Wait until everything is delivered."""
        self.limits: Limits = Limits(backlog, policy, overrun)
        self.backlog: int = backlog
        """Messages that may wait at a receiver, of the present size. Only the reader changes this.
        """
        self.reader: int = 0
        """The thread that may append to mailboxes directly; 0 if there is none. Only the loop
        changes this.
        """
        self.released: bool = False
        """The meta-process is stopping: the reader must not wait here any more."""
        self.sent: int = 0
        """How many messages went through the queue. Only the loop changes this."""
        self.direct: int = 0
        """How many messages bypassed the queue. Only the reader changes this, or the loop for a
        reader that is in C code.
        """
        self.dropped: int = 0
        """How many messages found no room."""

    def __len__(self) -> int:
        return len(self._queue) + (self._waits_at_mailbox is not None)

    @property
    def reader_waits(self) -> bool:
        """Whether a slow receiver is blocking the reader's thread now."""
        return self._waits is not None

    def weigh(self, size: int) -> None:
        """Let messages of ``size`` bytes count by their size: the backlog holds few large messages
        or many small messages.
        """
        # At least four messages, however large: with a single message, reader and receiver would
        # take turns instead of working at the same time.
        self.backlog = max(4, min(self.limits.backlog, (_WEIGHT >> 12) // max(1, size >> 12)))

    # -- directly to the receiver ------------------------------------------------------------------

    def admit_reader(self, thread: int) -> None:
        """Let the reader's thread append to mailboxes directly."""
        self.reader = thread

    def refuse_reader(self) -> None:
        """Refuse direct appends: the reader was abandoned."""
        self.reader = 0

    def deliver(self, to: Target, message: object, priority: Priority) -> bool:
        """Append a message to the mailbox of an open process that keeps up, from the reader. False
        if that is not possible.
        """
        receiver = self._peer
        if to is not receiver.id:
            found = self._router.resolve(to)
            if found is None or not found.takes_direct:
                receiver = NO_RECEIVER
            else:
                receiver = cast(AnyProcess, found)
            self._peer = receiver
        # Check the queue first, as _is_clear does: its call would cost too much here.
        if self._queue or self._holds or self._overran or priority:
            return False
        if not receiver.takes_direct or len(receiver.main) >= self.backlog:
            return False
        self.direct += 1
        receiver.mailbox.push(MAIN_LANE, (MESSAGE, self._sender, to, message))
        if receiver.task.custom_sleep_data is not None:
            receiver.wake_from_any_thread()
        return True

    def _is_clear(self) -> bool:
        """Whether a direct send overtakes no earlier message of the reader."""
        # Check the queue first: the loop sets `_holds` before it pops and clears it after delivery.
        # In the other order, a message could leave the queue between the two checks unseen.
        return not (self._queue or self._holds or self._overran)

    # -- in the reader's thread --------------------------------------------------------------------

    def put(self, to: Target, message: object, priority: Priority) -> bool:
        """Send a message. If the queue is full, wait or drop according to the policy."""
        if self.deliver(to, message, priority):
            return True
        receiver = self._router.resolve(to)
        if (
            self.limits.policy is Behind.WAIT
            and receiver is not None
            and receiver.takes_direct
            and self._is_clear()
            and not priority
        ):
            self._wait_at(receiver)
            if self.deliver(to, message, priority):
                return True
        if receiver is None or not receiver.accepting:
            self._router.bridge.do(self._record_undelivered, to, message, receiver)
            return False
        if receiver.is_remote:
            message = packed(receiver, to, message)
        self._router.bridge.check_open()
        if (len(self._queue) >= self.backlog or self._overran) and not self._make_room(to, message):
            return False
        self._queue.append((to, message, priority))
        if not self._armed:
            self._armed = True
            self._router.bridge.post(self.flush)
        return True

    def put_many(self, to: Target, messages: Sequence[object], priority: Priority) -> None:
        """Send several messages to a single receiver, from the reader's thread, or from a reader
        task that has found room for them: in a single append if the receiver keeps up, else one
        after another.
        """
        receiver = self._router.resolve(to)
        if (
            receiver is not None
            and receiver.takes_direct
            and len(receiver.mailbox.main) + len(messages) <= self.backlog
            and self._is_clear()
            and not priority
        ):
            self.direct += len(messages)
            sender = self._sender
            receiver.mailbox.push_many([(MESSAGE, sender, to, message) for message in messages])
            receiver.wake_from_any_thread()
        elif self._router.bridge.on_loop():
            for message in messages:
                self._hand_over((to, message, priority))
        else:
            for message in messages:
                self.put(to, message, priority)

    def _wait_at(self, receiver: Receiver) -> None:
        """Wait until the receiver has worked off half of the backlog, or either side is ending."""
        parker: Parker[None] = Parker()
        self._waits = parker
        self._router.bridge.post(self._call_when_there_is_room, receiver, parker)
        if not self.released:
            parker.wait(None)
        self._waits = None

    def _call_when_there_is_room(self, receiver: Receiver, parker: Parker[None]) -> None:
        if receiver.accepting and self.is_behind(receiver, Lane.MAIN):
            # Half, not a single place: a reader that goes on with each place is woken for each
            # message.
            receiver.mailbox.wait_for_room(
                Lane.MAIN, None, _Waker(parker), max(1, self.backlog // 2)
            )
        else:
            parker.settle(None)

    def _make_room(self, to: Target, message: object) -> bool:
        """Make room according to the policy. Returns whether the new message may be queued."""
        if not self.released:
            match self.limits.policy:
                case Behind.WAIT:
                    self._wait()
                    return True
                case Behind.DROP_OLDEST:
                    self._drop_oldest()
                    return True
                case Behind.STOP:
                    self._overran = True
                    self.limits.overrun()
        self._drop(to, message)
        return False

    def _wait(self) -> None:
        while len(self._queue) >= self.backlog and not self.released:
            parker: Parker[None] = Parker()
            self._waits = parker
            if len(self._queue) >= self.backlog and not self.released:
                parker.wait(None)
            self._waits = None

    def wind_up(self) -> None:
        """Wait until everything is delivered or the meta-process is stopping. The reader sends
        nothing after this.
        """
        if len(self):
            self._router.bridge.post(self.rush)
        while len(self) and not self.released:
            parker: Parker[None] = Parker()
            self._waits = parker
            if len(self) and not self.released:
                parker.wait(None)
            self._waits = None

    def _drop_oldest(self) -> None:
        try:
            to, message, _ = self._queue.popleft()
        except IndexError:  # the loop emptied the queue
            return
        self._drop(to, message)

    def _drop(self, to: Target, message: object) -> None:
        self.dropped += 1
        self._router.bridge.do(self._router.dead_letters.add, self._sender, to, message, Why.FULL)

    # -- on the loop -------------------------------------------------------------------------------

    def offer(
        self, to: Target, message: object, priority: Priority, *, beyond_limit: bool = False
    ) -> bool:
        """Queue a message of a reader that is a task, or is in C code. A plain function cannot wait
        there. ``beyond_limit`` also queues a message for which there is no room.

        Raises:
            MailboxFullError: the queue is full, and the policy is to wait.
        """
        receiver = self._router.resolve(to)
        if receiver is None or not receiver.accepting:
            self._record_undelivered(to, message, receiver)
            return False
        if receiver.is_remote:
            message = packed(receiver, to, message)
        if not beyond_limit and (len(self._queue) >= self.backlog or self._overran):
            if self.limits.policy is Behind.WAIT and not self.released:
                self._drop(to, message)
                raise MailboxFullError(to, message, self.backlog)
            if not self._make_room(to, message):
                return False
        self._queue.append((to, message, priority))
        self.flush()
        return True

    def forward(self, to: Target, message: object, priority: Priority) -> bool:
        """Send a message of a reader task if that needs no waiting. False, with nothing sent, if
        the receiver is missing or behind, or earlier messages wait.
        """
        receiver = self._router.resolve(to)
        if (
            receiver is None
            or not receiver.accepting
            or len(self)
            or self.is_behind(receiver, Lane.MAIN)
        ):
            return False
        self.sent += 1
        self._router.send(self._sender, to, message, priority)
        return True

    def when_empty(self, waiter: Waiter) -> None:
        """Settle ``waiter`` once everything is delivered. The outbox must not be empty."""
        self._emptied.append(waiter)

    def _record_undelivered(self, to: Target, message: object, receiver: Receiver | None) -> None:
        self.sent += 1
        # The hooks see it as any message: an observer that looks for a lost message finds it here.
        self._router.note(self._sender, to, message)
        self._router.record_undelivered(self._sender, to, message, receiver)

    @enable_ki_protection
    def flush(self) -> None:
        """Deliver queued messages, as far as the receivers keep up."""
        self._armed = False
        self._deliver()
        waits = self._waits
        if waits is not None and (
            self.released or len(self) * 2 <= (0 if self._stage else self.backlog)
        ):
            waits.settle(None)
        if self._emptied and not len(self):
            emptied, self._emptied = self._emptied, []
            for waiter in emptied:
                waiter.settle(True)

    def _deliver(self) -> None:
        self._holds = True
        try:
            self._move()
        finally:
            self._holds = self._waits_at_mailbox is not None or self._stage is _CLOSED

    def _move(self) -> None:
        queue, router = self._queue, self._router
        while queue and self._waits_at_mailbox is None:
            try:
                entry = queue.popleft()
            except IndexError:  # the reader dropped the oldest message
                return
            to, message, priority = entry
            if self._stage is _CLOSED:
                # Sent by a reader thread at the moment in which it was abandoned.
                router.dead_letters.add(self._sender, to, message, Why.STOPPING)
                continue
            receiver, lane = router.resolve(to), LANES[priority]
            if receiver is not None and receiver.accepting and self.is_behind(receiver, lane):
                self._waits_at_mailbox = (receiver, lane, entry)
                letter = MESSAGE, self._sender, to, message
                receiver.mailbox.wait_for_room(lane, letter, self, self.backlog)
                router.note(self._sender, to, message)
                return
            self._hand_over(entry)

    def _hand_over(self, entry: Entry) -> None:
        to, message, priority = entry
        try:
            self._router.send(self._sender, to, message, priority)
        except MailboxFullError:
            # The message cannot wait any longer. The router counts it and makes it a dead letter.
            self.dropped += 1
        else:
            self.sent += 1

    def is_behind(self, receiver: Receiver, lane: Lane) -> bool:
        """Whether a receiver has so many waiting messages that the reader must wait."""
        if self._stage and self._stage is not _LAST:
            return False
        box = receiver.mailbox
        if box.limit and box.overflow in (Overflow.RAISE, Overflow.WAIT) and not box.has_room(lane):
            return True
        return not self._stage and box.depth(lane) >= self.backlog

    def settle(self, admitted: bool, /) -> None:
        """The mailbox has admitted the first message, or its receiver is ending."""
        waiting, self._waits_at_mailbox = self._waits_at_mailbox, None
        if waiting is not None:
            if admitted:
                self.sent += 1
            else:
                to, message, _ = waiting[2]
                self._router.dead_letters.add(self._sender, to, message, Why.STOPPING)
        self.flush()

    def follow(self, to: Target, message: object, priority: Priority) -> bool:
        """Queue a message of the handler behind the reader's messages to the same receiver, from
        any thread.

        Returns False if there are none: then a direct send overtakes nothing.
        """
        if self._queue and self._waits_at_mailbox is None and self._router.bridge.on_loop():
            self.flush()
        if not len(self):
            return False
        receiver, waiting = self._router.resolve(to), self._waits_at_mailbox
        try:
            ahead = [entry[0] for entry in self._queue]
        except RuntimeError:  # the other thread changed the queue, so it was not empty
            ahead = [to]
        if (waiting is None or waiting[0] is not receiver) and all(
            self._router.resolve(target) is not receiver for target in ahead
        ):
            return False
        self._queue.append((to, message, priority))
        self._router.bridge.do(self.flush)
        return True

    def rush(self) -> None:
        """Deliver queued messages. Ignore the depth of unbounded mailboxes, since nothing
        follows.
        """
        self._stage = self._stage or _LAST
        if not (self._queue or self._holds or self._emptied) and self._waits is None:
            # Nothing to deliver, and neither a thread nor a task waits: as for most ends.
            return
        waiting, self._waits_at_mailbox = self._waits_at_mailbox, None
        if waiting is not None:
            receiver, lane, entry = waiting
            receiver.mailbox.stop_waiting(lane, self)
            # Back to the front: it was the first, and flush() tries it again under the rules of the
            # end.
            self._queue.appendleft(entry)
        self.flush()

    async def wait_until_empty(self) -> None:
        """Wait until everything is delivered."""
        # Again after each wake-up: the handler may have put messages behind those of the reader.
        while len(self):
            waiter = TaskWaiter(current_task())
            self._emptied.append(waiter)
            try:
                await park_as(waiter.task, waiter)
            finally:
                if waiter in self._emptied:
                    self._emptied.remove(waiter)

    # -- the end -----------------------------------------------------------------------------------

    def release(self) -> None:
        """Stop the reader from waiting. The loop calls this when the meta-process stops."""
        self.released = True
        waits = self._waits
        if waits is not None:
            waits.settle(None)

    def force(self) -> None:
        """Deliver the rest now. Refused messages become dead letters."""
        self._stage = max(self._stage, _FORCED)
        self.rush()

    def close(self) -> None:
        """Close the outbox: it delivers nothing after this."""
        self.release()
        # Delivers the rest first. A message that a thread puts after this line becomes a dead
        # letter, in `_move`.
        self.force()
        self._stage, self._holds = _CLOSED, True


class _Waker:
    """Wakes a reader's thread that waits for room in a mailbox."""

    __slots__ = ("_parker",)

    def __init__(self, parker: Parker[None]) -> None:
        self._parker = parker

    def settle(self, _admitted: bool, /) -> None:
        self._parker.settle(None)


def packed(receiver: Receiver, to: Target, message: object) -> object:
    """Encode a message to another node in the turn, and in the thread, of its sender."""
    return cast(RemoteReceiver, receiver).pack(to, message)
