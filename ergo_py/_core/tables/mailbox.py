"""`Mailbox`: four lanes of envelopes and their bound; it decides the order of service, and the
overflow when it is full.

Lanes other than MAIN come into being when first used, since an empty deque is 760 bytes.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final, Protocol

from ..vocabulary.envelopes import (
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

__all__ = ["Mailbox", "Verdict"]


class Verdict(Enum):
    """What :meth:`Mailbox.admit` decided."""

    ACCEPTED = "accepted"
    DISPLACED = "accepted, and the oldest one dropped"
    DROPPED = "dropped"
    REFUSED = "refused"
    DIVERTED = "to be sent elsewhere"
    PASSED = "accepted by another mailbox"


_ACCEPTED: Final = Verdict.ACCEPTED


class Waiter(Protocol):
    """Somebody who waits for room: a trio task or a thread."""

    def settle(self, admitted: bool, /) -> None: ...


Waiting = OrderedDict[Waiter, tuple[Envelope | None, int]]
"""Who waits, in the order they came, with what they want to put and how few may be queued then. Any
of them can leave without a search; an OrderedDict, because finding the first key of a dict takes
the longer the more were taken from its front.
"""

_EMPTY: Final[deque[Envelope]] = deque()
LOG_LIMIT: Final = 1000
_LAST_PLACES: Final = 16
"""How many places of a bounded lane threads take one after the other, so that they do not run past
the bound together.
"""


class Mailbox:
    """Four lanes with one order of service. Only the loop's own thread touches it, but for appends
    to MAIN and promises.
    """

    __slots__ = (
        "_bounded",
        "_calls_in",
        "ahead",
        "dropped",
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

    def __init__(self, limit: int = 0, overflow: Overflow | Divert = Overflow.RAISE) -> None:
        self.main: deque[Envelope] = deque()
        self.urgent: deque[Envelope] = _EMPTY
        self.system: deque[Envelope] = _EMPTY
        self.log: deque[Envelope] = _EMPTY
        self.ahead = False
        """Something waits in URGENT or SYSTEM. One flag to test before each message instead of two
        lanes.
        """
        self.mixed = False
        """There are, or were, signals in MAIN, among the messages that a successor may get."""
        self.limit = limit
        self.overflow = overflow
        self.dropped = 0
        self.inbound: dict[Lane, int] | None = None
        """Messages that threads were promised room for and that are on their way; changed under the
        bridge's lock.
        """
        self.waiters: dict[Lane, Waiting] | None = None
        self._bounded: dict[Lane, int] | None = None
        self._calls_in = False

    def __len__(self) -> int:
        return len(self.urgent) + len(self.system) + len(self.main) + len(self.log)

    def depths(self) -> dict[str, int]:
        """How many envelopes wait in each lane."""
        return {
            "urgent": len(self.urgent),
            "system": len(self.system),
            "main": len(self.main),
            "log": len(self.log),
        }

    def depth(self, lane: Lane) -> int:
        """How many envelopes wait in one lane."""
        if lane is MAIN_LANE:
            return len(self.main)
        return len(
            self.system if lane is SYSTEM_LANE else self.urgent if lane is URGENT_LANE else self.log
        )

    def push(self, lane: Lane, envelope: Envelope) -> None:
        """Append without looking at any bound: signals, and messages that have been admitted."""
        if lane is MAIN_LANE:
            self.main.append(envelope)
            return
        queue = self._made(lane)
        if envelope[0] <= EVENT and self.limit and lane is not LOG_LANE:
            self._count(lane, 1)
        queue.append(envelope)
        if lane is not LOG_LANE:
            self.ahead = True

    def push_first(self, envelope: Envelope) -> None:
        """Put a signal before everything else: what ends a process does not wait behind what it
        would have done.
        """
        self._made(URGENT_LANE).appendleft(envelope)
        self.ahead = True

    def put_back(self, lane: Lane, envelope: Envelope) -> None:
        """Put a user's envelope back where it was taken from: before what waits in its lane."""
        self._made(lane).appendleft(envelope)
        if lane is not MAIN_LANE:
            if self.limit:
                self._count(lane, 1)
            self.ahead = True

    def has_room(self, lane: Lane) -> bool:
        """Say whether a user message would be accepted in ``lane`` without asking the overflow
        rule.
        """
        if not self._has_space(lane):
            return False
        if not self.limit or self.overflow is not Overflow.WAIT or self._calls_in:
            return True
        # Where senders wait, nobody overtakes those who already do, except the one whose turn it
        # is.
        return not self.waiters or lane not in self.waiters

    def admit(self, lane: Lane, envelope: Envelope) -> tuple[Verdict, Envelope | None]:
        """Put a user message, as far as bound and overflow rule allow; also give back what had to
        make room.
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
                oldest = self._take_oldest_user_message(lane)
                self.push(lane, envelope)
                return Verdict.DISPLACED, oldest
            case Divert():
                return Verdict.DIVERTED, None
        self.dropped += 1
        return Verdict.REFUSED, None

    def pop(self) -> Envelope | None:
        """Take the next envelope in the order of service, or None. The process loop spells out
        these same tests.
        """
        if self.ahead:
            return self.pop_ahead()
        if self.main:
            return self.main.popleft()
        return self.log.popleft() if self.log else None

    def pop_ahead(self) -> Envelope:
        """Take the next envelope of URGENT or SYSTEM; there is one, since ``ahead`` said so."""
        lane, queue = (URGENT_LANE, self.urgent) if self.urgent else (SYSTEM_LANE, self.system)
        envelope = queue.popleft()
        if self._bounded is not None and envelope[0] <= EVENT:
            self._count(lane, -1)
        self.ahead = bool(self.urgent or self.system)
        return envelope

    def drain(self) -> Iterator[Envelope]:
        """Take everything, in the order of service."""
        while (envelope := self.pop()) is not None:
            yield envelope

    def take(self, most: int) -> list[Envelope]:
        """Take at most so many, in the order of service."""
        taken: list[Envelope] = []
        while len(taken) < most and (envelope := self.pop()) is not None:
            taken.append(envelope)
        return taken

    def leave(self, with_main: bool = True) -> Iterator[tuple[Lane, Envelope]]:
        """Take everything, in the order of service, and say which lane each envelope was in; or all
        but what is in MAIN.
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
        """Take over whole lanes of a predecessor, in which there are messages of users only.
        Nothing is in the own ones yet.
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
        """Say whether any thread may append to MAIN just so: nobody is overtaken by that, and the
        bound is far away.

        Between this look and the append other threads may append, too, one each. There are enough
        places left for that; they are given out one at a time, under a lock.
        """
        return len(self.main) + _LAST_PLACES < self.limit and not self.waiters and not self.inbound

    def take_in(self, envelope: Envelope) -> bool:
        """Put a user message into MAIN, from any thread, under the bridge's lock. False if there is
        no room or it would overtake.

        The very last place is left to those on the loop, who look for room first and take it then.
        """
        if self.waiters or self.inbound or len(self.main) + 1 >= self.limit:
            return False
        self.main.append(envelope)
        return True

    def promise(self, lane: Lane) -> bool:
        """Keep a place for a message that is on its way, if there is room. Under the bridge's lock."""
        if not self.has_room(lane):
            return False
        if self.inbound is None:
            self.inbound = {}
        self.inbound[lane] = self.inbound.get(lane, 0) + 1
        return True

    def redeem(self, lane: Lane) -> None:
        """Give a kept place back: its message is in the lane. Under the bridge's lock."""
        if self.inbound:
            self.inbound[lane] -= 1
            if not self.inbound[lane]:
                del self.inbound[lane]

    def wait_for_room(
        self, lane: Lane, envelope: Envelope | None, waiter: Waiter, depth: int = 0
    ) -> None:
        """Queue an envelope that goes in, by itself, as soon as there is room; its sender is told
        then.

        With a ``depth`` the sender waits, in a lane without a bound too, until fewer than that many
        are queued. Without an envelope it is only told, and comes back by itself.
        """
        if self.waiters is None:
            self.waiters = {}
        self.waiters.setdefault(lane, OrderedDict())[waiter] = (envelope, depth)

    def stop_waiting(self, lane: Lane, waiter: Waiter) -> None:
        """Forget a waiter that gave up."""
        queue = (self.waiters or {}).get(lane)
        if queue is not None:
            queue.pop(waiter, None)
            self._forget_if_empty(lane, queue)

    def admit_waiters(self) -> bool:
        """Let in what waits, first come first served, as far as there is room now. False if nobody
        could come in.

        With empty lanes that means that the places are promised to threads, whose messages are on
        their way.
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
                # One without an envelope may come back before this returns. Finding itself behind
                # the others, it would wait anew, be told anew, and so on for ever.
                self._calls_in = envelope is None
                waiter.settle(True)
                self._calls_in = False
                admitted = True
            self._forget_if_empty(lane, queue)
        return admitted

    def refuse_waiters(self) -> None:
        """Send everybody who waits away: the receiver is ending."""
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
        queued = len(self.main) if lane is MAIN_LANE else self._users(lane)
        return queued + (self.inbound.get(lane, 0) if self.inbound else 0) < self.limit

    def _was_promised_meanwhile(self, lane: Lane) -> bool:
        # Who comes to one that lets senders wait has looked for room before. A thread may have been
        # promised the last place since; one message too many is better than to refuse where waiting
        # was the rule.
        if (
            self.overflow is not Overflow.WAIT
            or lane is LOG_LANE
            or (self.waiters and lane in self.waiters)
        ):
            return False
        return (len(self.main) if lane is MAIN_LANE else self._users(lane)) < self.limit

    def _users(self, lane: Lane) -> int:
        return self._bounded.get(lane, 0) if self._bounded is not None else 0

    def _count(self, lane: Lane, change: int) -> None:
        if self._bounded is None:
            self._bounded = {}
        self._bounded[lane] = self._bounded.get(lane, 0) + change

    def _take_oldest_user_message(self, lane: Lane) -> Envelope | None:
        queue = self._made(lane)
        # A signal is never displaced: look for the first envelope that a user sent.
        index = next((i for i, envelope in enumerate(queue) if envelope[0] <= EVENT), None)
        if index is None:
            return None
        oldest = queue[index]
        del queue[index]
        if lane is not MAIN_LANE:
            self._count(lane, -1)
        return oldest
