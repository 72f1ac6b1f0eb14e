"""`Mailbox`: a bounded queue of four lanes. It decides the order of service, and applies the
overflow rule when it is full. `OrderedMailbox` serves MAIN by a key.

Lanes other than MAIN are created on first use, since an empty deque takes 760 bytes.
"""

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, ClassVar, Final, Protocol

from ..vocabulary.envelopes import (
    END_NOTICE,
    EVENT,
    LOG_LANE,
    MAIN_LANE,
    SYSTEM_LANE,
    URGENT_LANE,
    Divert,
    Envelope,
    Lane,
    Overflow,
)
from ..vocabulary.messages import Published

__all__ = ["Mailbox", "OrderedMailbox", "Verdict", "Waiter"]


class Verdict(Enum):
    """The decision of :meth:`Mailbox.admit`."""

    ACCEPTED = "accepted"
    DISPLACED = "accepted, and the oldest message dropped"
    DROPPED = "dropped"
    REFUSED = "refused"
    DIVERTED = "to be sent elsewhere"
    PASSED = "accepted by another mailbox"


_ACCEPTED: Final = Verdict.ACCEPTED


class Waiter(Protocol):
    """A sender that waits for room: a trio task or a thread."""

    def settle(self, admitted: bool, /) -> None: ...


Waiting = OrderedDict[Waiter, tuple[Envelope | None, int]]
"""Waiting senders in order of arrival, each with its envelope and the depth below which the lane
must fall. A waiter can leave without a search. An OrderedDict, because finding the first key of a
dict takes longer the more keys were removed from its front.
"""

_EMPTY: Final[deque[Envelope]] = deque()
LOG_LIMIT: Final = 1000
"""Log records that may wait for a logger process: a slow logger holds so much memory at most. Not
measured.
"""
_LAST_PLACES: Final = 16
"""The last free slots of a bounded lane, which threads take under a lock, so that they cannot
exceed the bound together.
"""


class Mailbox:
    """Four lanes with a fixed order of service: URGENT, SYSTEM, MAIN, LOG.

    Only the loop's thread uses it, with two exceptions: any thread may append to MAIN, and reserve
    slots under the bridge's lock.
    """

    __slots__ = (
        "_bounded",
        "_calls_in",
        "ahead",
        "dropped",
        "end_notices",
        "inbound",
        "limit",
        "log",
        "main",
        "mixed",
        "overflow",
        "system",
        "urgent",
        "waiters",
    )

    main_type: ClassVar[type[deque[Envelope]]] = deque
    """The class of the MAIN lane. The C extension has its own."""

    def __init__(self, limit: int = 0, overflow: Overflow | Divert = Overflow.RAISE) -> None:
        self.main: deque[Envelope] = self.main_type()
        self.urgent: deque[Envelope] = _EMPTY
        self.system: deque[Envelope] = _EMPTY
        self.log: deque[Envelope] = _EMPTY
        self.ahead: bool = False
        """URGENT or SYSTEM is not empty. The process loop tests this flag before each message
        instead of two lanes.
        """
        self.mixed: bool = False
        """MAIN holds, or held, signals among the messages that a successor may get."""
        self.end_notices: int = 0
        """Notices of normal ends in MAIN. They do not count against the limit."""
        self.limit: int = limit
        self.overflow: Overflow | Divert = overflow
        self.dropped: int = 0
        self.inbound: dict[Lane, int] | None = None
        """Reserved slots: messages of threads that have room and are on their way. Changed under
        the bridge's lock.
        """
        self.waiters: dict[Lane, Waiting] | None = None
        self._bounded: dict[Lane, int] | None = None
        """User messages in URGENT and SYSTEM, of a mailbox with a limit: signals do not count."""
        self._calls_in = False
        """`admit_waiters` is waking a waiter without an envelope, which may put its message now."""

    def __len__(self) -> int:
        return len(self.urgent) + len(self.system) + len(self.main) + len(self.log)

    def depths(self) -> dict[str, int]:
        """The number of envelopes in each lane."""
        return {
            "urgent": len(self.urgent),
            "system": len(self.system),
            "main": len(self.main),
            "log": len(self.log),
        }

    def depth(self, lane: Lane) -> int:
        """The number of envelopes in ``lane``."""
        if lane is MAIN_LANE:
            return len(self.main)
        return len(
            self.system if lane is SYSTEM_LANE else self.urgent if lane is URGENT_LANE else self.log
        )

    def push(self, lane: Lane, envelope: Envelope) -> None:
        """Append without checking the limit: for signals, and messages already admitted."""
        if lane is MAIN_LANE:
            self.main.append(envelope)
            return
        queue = self._made(lane)
        if envelope[0] <= EVENT and self.limit and lane is not LOG_LANE:
            self._count(lane, 1)
        queue.append(envelope)
        if lane is not LOG_LANE:
            self.ahead = True

    def push_many(self, envelopes: Iterable[Envelope]) -> None:
        """Append messages to MAIN without checking the limit, from any thread."""
        self.main.extend(envelopes)

    def push_signal(self, lane: Lane, envelope: Envelope) -> None:
        """Append a signal of the kernel. In MAIN it stands among the user's messages."""
        if lane is MAIN_LANE:
            self.mixed = True
        self.push(lane, envelope)

    def push_end_notice(self, signal: Envelope) -> None:
        """Append the notice that a process ended normally to MAIN, behind the messages of that
        process.
        """
        self.end_notices += 1
        self.push(MAIN_LANE, (END_NOTICE, signal[1], None, signal))

    def count_end_notice(self) -> None:
        """Count a notice of a normal end that has left MAIN."""
        self.end_notices -= 1

    def holds_signals(self) -> bool:
        """Whether MAIN may hold signals, which no successor gets."""
        return self.mixed or self.end_notices > 0

    def count_dropped(self) -> None:
        """Count a message that found no room, where the sender decides about it and not `admit`."""
        self.dropped += 1

    def push_first(self, envelope: Envelope) -> None:
        """Put a signal at the head of URGENT: a signal that ends the process must not wait behind
        its messages.
        """
        self._made(URGENT_LANE).appendleft(envelope)
        self.ahead = True

    def put_back(self, lane: Lane, envelope: Envelope) -> None:
        """Return a user's envelope to the head of its lane."""
        self._made(lane).appendleft(envelope)
        if lane is not MAIN_LANE:
            if self.limit:
                self._count(lane, 1)
            self.ahead = True

    def has_room(self, lane: Lane) -> bool:
        """Say whether ``lane`` takes a user message without applying the overflow rule."""
        if not self._has_space(lane):
            return False
        if not self.limit or self.overflow is not Overflow.WAIT or self._calls_in:
            return True
        # With WAIT, a new sender must not overtake senders that already wait.
        return not self.waiters or lane not in self.waiters

    def admit(self, lane: Lane, envelope: Envelope) -> tuple[Verdict, Envelope | None]:
        """Put a user message, as far as limit and overflow rule allow. Also return the message that
        was displaced, if any.
        """
        if self.has_room(lane) or self._was_promised_meanwhile(lane):
            self.push(lane, envelope)
            return _ACCEPTED, None
        if lane is LOG_LANE:
            self.dropped += 1
            return Verdict.DROPPED, None
        match self.overflow:
            case Overflow.DROP_NEWEST:
                self.dropped += 1
                return Verdict.DROPPED, None
            case Overflow.DROP_OLDEST:
                self.dropped += 1
                oldest = self.take_oldest_user_message(lane)
                self.push(lane, envelope)
                return Verdict.DISPLACED, oldest
            case Divert():
                return Verdict.DIVERTED, None
        self.dropped += 1
        return Verdict.REFUSED, None

    def pop(self) -> Envelope | None:
        """Take the next envelope in the order of service, or None. The process loop repeats these
        tests inline.
        """
        if self.ahead:
            return self.pop_ahead()
        if self.main:
            return self.main.popleft()
        return self.log.popleft() if self.log else None

    def pop_ahead(self) -> Envelope:
        """Take the next envelope of URGENT or SYSTEM. Call it only while ``ahead`` is set."""
        lane, queue = (URGENT_LANE, self.urgent) if self.urgent else (SYSTEM_LANE, self.system)
        envelope = queue.popleft()
        if self._bounded is not None and envelope[0] <= EVENT:
            self._count(lane, -1)
        self.ahead = bool(self.urgent or self.system)
        return envelope

    def take_signal(self, wanted: Callable[[Envelope], bool]) -> Envelope | None:
        """Take the first signal in URGENT or SYSTEM that is wanted; None if there is none."""
        for lane in (self.urgent, self.system):
            for index, envelope in enumerate(lane):
                if wanted(envelope):
                    del lane[index]
                    self.ahead = bool(self.urgent or self.system)
                    return envelope
        return None

    def withdraw(self, caller: object) -> bool:
        """Take the request of a call out of MAIN. False if it is not there: it is handled already,
        or has a higher priority.
        """
        for envelope in self.main.copy():
            if envelope[2] is caller:
                try:
                    self.main.remove(envelope)
                except ValueError:  # a worker thread has taken it meanwhile
                    return False
                return True
        return False

    def drain(self) -> Iterator[Envelope]:
        """Take all envelopes, in the order of service."""
        while (envelope := self.pop()) is not None:
            yield envelope

    def take(self, most: int) -> list[Envelope]:
        """Take at most ``most`` envelopes, in the order of service."""
        taken: list[Envelope] = []
        while len(taken) < most and (envelope := self.pop()) is not None:
            taken.append(envelope)
        return taken

    def leave(self, with_main: bool = True) -> Iterator[tuple[Lane, Envelope]]:
        """Take all envelopes with their lanes, in the order of service. Without ``with_main``, MAIN
        keeps its envelopes.
        """
        self.ahead, self._bounded = False, None
        lanes = (
            (URGENT_LANE, self.urgent),
            (SYSTEM_LANE, self.system),
            (MAIN_LANE, self.main),
            (LOG_LANE, self.log),
        )
        for lane, queue in lanes:
            while queue and (with_main or lane is not MAIN_LANE):
                yield lane, queue.popleft()

    def inherit(self, lanes: Mapping[Lane, deque[Envelope]]) -> None:
        """Take over whole lanes of a predecessor. They hold user messages only, and this mailbox is
        still empty.
        """
        for lane, queue in lanes.items():
            if lane is MAIN_LANE:
                self.main = queue
                continue
            self._made(lane).extend(queue)
            self.ahead = True
            if self.limit:
                self._count(lane, len(queue))

    def has_plenty(self) -> bool:
        """Say whether any thread may append to MAIN without a lock: no sender waits, and the limit
        is far away.

        Between this check and the append, each other thread may append a message, too. The last
        slots, which `take_in` gives out under a lock, leave enough room for that.
        """
        return len(self.main) + _LAST_PLACES < self.limit and not self.waiters and not self.inbound

    def take_in(self, envelope: Envelope) -> bool:
        """Put a user message into MAIN, from any thread, under the bridge's lock. False if MAIN is
        full or the message would overtake others.

        The very last slot is left to senders on the loop: they check for room first and put later.
        """
        if self.waiters or self.inbound or len(self.main) + 1 >= self.limit:
            return False
        self.push(MAIN_LANE, envelope)
        return True

    def promise(self, lane: Lane) -> bool:
        """Reserve a slot for a message that is on its way, if there is room. Call it under the
        bridge's lock.
        """
        if not self.has_room(lane):
            return False
        if self.inbound is None:
            self.inbound = {}
        self.inbound[lane] = self.inbound.get(lane, 0) + 1
        return True

    def redeem(self, lane: Lane) -> None:
        """Release a reserved slot: its message is in the lane. Call it under the bridge's lock."""
        if self.inbound:
            self.inbound[lane] -= 1
            if not self.inbound[lane]:
                del self.inbound[lane]

    def wait_for_room(
        self, lane: Lane, envelope: Envelope | None, waiter: Waiter, depth: int = 0
    ) -> None:
        """Backpressure: queue an envelope that enters the lane as soon as there is room. Its sender
        is notified then.

        With a ``depth`` the sender waits until fewer than ``depth`` messages are queued, in a lane
        without a limit too. Without an envelope the sender is only notified, and puts its message
        itself.
        """
        if self.waiters is None:
            self.waiters = {}
        self.waiters.setdefault(lane, OrderedDict())[waiter] = (envelope, depth)

    def stop_waiting(self, lane: Lane, waiter: Waiter) -> bool:
        """Forget a waiter that gave up. False if it did not wait."""
        queue = (self.waiters or {}).get(lane)
        if queue is None:
            return False
        was_waiting = queue.pop(waiter, None) is not None
        self._forget_if_empty(lane, queue)
        return was_waiting

    def admit_waiters(self) -> bool:
        """Admit waiting senders, first come first served, as far as there is room. False if none
        could be admitted.

        If the lanes are empty, False means that all slots are reserved for messages of threads that
        are on their way.
        """
        admitted = False
        for lane, queue in list((self.waiters or {}).items()):
            while queue and self._has_space(lane):
                waiter, (envelope, depth) = next(iter(queue.items()))
                if 0 < depth <= self.depth(lane):
                    break
                del queue[waiter]
                if envelope is not None:
                    self.push(lane, envelope)
                # A waiter without an envelope may put its message before settle() returns.
                # has_room() would find it behind the other waiters, so it would queue again, be
                # notified again, and loop forever.
                self._calls_in = envelope is None
                waiter.settle(True)
                self._calls_in = False
                admitted = True
            self._forget_if_empty(lane, queue)
        return admitted

    def refuse_waiters(self) -> None:
        """Refuse all waiting senders: the receiver is ending."""
        waiting, self.waiters = self.waiters, None
        for queue in (waiting or {}).values():
            for waiter in queue:
                waiter.settle(False)

    def _forget_if_empty(self, lane: Lane, queue: Waiting) -> None:
        if self.waiters is not None and not queue:
            self.waiters.pop(lane, None)
            self.waiters = self.waiters or None

    def _made(self, lane: Lane) -> deque[Envelope]:
        if lane is MAIN_LANE:
            return self.main
        if lane is SYSTEM_LANE:
            if self.system is _EMPTY:
                self.system = deque()
            return self.system
        if lane is URGENT_LANE:
            if self.urgent is _EMPTY:
                self.urgent = deque()
            return self.urgent
        if self.log is _EMPTY:
            self.log = deque()
        return self.log

    def _has_space(self, lane: Lane) -> bool:
        if lane is LOG_LANE:
            return len(self.log) < LOG_LIMIT
        if not self.limit:
            return True
        queued = len(self.main) - self.end_notices if lane is MAIN_LANE else self._users(lane)
        return queued + (self.inbound.get(lane, 0) if self.inbound else 0) < self.limit

    def _was_promised_meanwhile(self, lane: Lane) -> bool:
        # With WAIT the sender has checked for room, but a thread may have reserved the last slot
        # since. Exceed the limit by a message rather than raise.
        if (
            self.overflow is not Overflow.WAIT
            or lane is LOG_LANE
            or (self.waiters and lane in self.waiters)
        ):
            return False
        return self._users(lane) < self.limit

    def _users(self, lane: Lane) -> int:
        if lane is MAIN_LANE:
            return len(self.main) - self.end_notices
        return self._bounded.get(lane, 0) if self._bounded is not None else 0

    def _count(self, lane: Lane, change: int) -> None:
        if self._bounded is None:
            self._bounded = {}
        self._bounded[lane] = self._bounded.get(lane, 0) + change

    def take_oldest_user_message(self, lane: Lane) -> Envelope | None:
        """Take the oldest user message out of a lane. Signals are never displaced."""
        queue = self._made(lane)
        index = next((i for i, envelope in enumerate(queue) if envelope[0] <= EVENT), None)
        if index is None:
            return None
        oldest = queue[index]
        del queue[index]
        if lane is not MAIN_LANE:
            self._count(lane, -1)
        return oldest


class LanedMailbox(Mailbox):
    """A mailbox that remembers the lane of the last envelope: for a message that is put back until
    a thread has begun with it, and for messages with a priority, which join no batch.
    """

    __slots__ = ("_handled", "_lane", "_number")

    def __init__(self, limit: int, overflow: Overflow | Divert, handled: Callable[[], int]) -> None:
        super().__init__(limit, overflow)
        self._handled = handled
        """How many envelopes the process has handled."""
        self._lane = MAIN_LANE
        self._number = 0

    def replace(self, former: Mailbox) -> None:
        """Go on with the lanes, the waiting senders and the reserved slots of another mailbox."""
        for name in Mailbox.__slots__:
            setattr(self, name, getattr(former, name))

    def pop_ahead(self) -> Envelope:
        """Take the next envelope of URGENT or SYSTEM, and remember its lane."""
        self._lane = URGENT_LANE if self.urgent else SYSTEM_LANE
        # The message loop counts it next. Its number tells it from later envelopes, and unlike a
        # reference does not keep it alive.
        self._number = self._handled() + 1
        return super().pop_ahead()

    def lane_of(self, number: int) -> Lane:
        """The lane of the envelope with this number, which must be the last envelope taken."""
        return self._lane if number == self._number else MAIN_LANE


class OrderedMailbox(LanedMailbox):
    """MAIN is sorted by ``order(message)``; messages of the same key keep their order.

    A signal in MAIN stays behind the messages before it, and no later message goes ahead of it: a
    flood of urgent messages does not delay the notice of an end.
    """

    __slots__ = ("_order", "_refuse")

    # Not the lane of the C extension, which inserts at its ends only.
    main_type: ClassVar[type[deque[Envelope]]] = deque

    def __init__(
        self,
        limit: int,
        overflow: Overflow | Divert,
        order: Callable[[Any], Any],
        refuse: Callable[[Envelope, Exception], None],
        handled: Callable[[], int],
    ) -> None:
        super().__init__(limit, overflow, handled)
        self._order = order
        self._refuse = refuse
        """Disposes of a message whose key function raised, or whose key does not compare."""

    def push(self, lane: Lane, envelope: Envelope) -> None:
        """Put an envelope; a user's message of MAIN to its place."""
        if lane is not MAIN_LANE or envelope[0] > EVENT:
            super().push(lane, envelope)
            return
        try:
            key = self._order(_message(envelope))
            place = bisect_right(
                self.main, key, self._first_place(), key=lambda each: self._order(_message(each))
            )
        except Exception as error:
            # The function runs inside the sender's `send`, but the sender is not at fault, so the
            # error does not go there.
            self.dropped += 1
            self._refuse(envelope, error)
        else:
            self.main.insert(place, envelope)

    def inherit(self, lanes: Mapping[Lane, deque[Envelope]]) -> None:
        """Take over the lanes of a predecessor."""
        super().inherit(lanes)
        if type(self.main) is not deque:
            former, self.main = self.main, deque(self.main)
            # The predecessor disposes of the messages that it still finds in its lane.
            former.clear()

    def take_oldest_user_message(self, lane: Lane) -> Envelope | None:
        """Take the message that would be served last out of MAIN, or the oldest of another lane."""
        if lane is not MAIN_LANE:
            return super().take_oldest_user_message(lane)
        for place in range(len(self.main) - 1, -1, -1):
            if self.main[place][0] <= EVENT:
                last = self.main[place]
                del self.main[place]
                return last
        return None

    def _first_place(self) -> int:
        """The place behind the last signal."""
        if not self.holds_signals():
            return 0
        for place in range(len(self.main) - 1, -1, -1):
            if self.main[place][0] > EVENT:
                return place + 1
        return 0


def _message(envelope: Envelope) -> object:
    payload = envelope[3]
    return payload.message if type(payload) is Published else payload
