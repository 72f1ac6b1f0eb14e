"""`DeadLetters`: counts of undelivered messages, and a record of the last few, without contents."""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from ..vocabulary.envelopes import Envelope
from ..vocabulary.ids import PID, Alias
from ..vocabulary.messages import DeadLetter, MayBeLate, Why

__all__ = ["DeadLetters"]

_ENDED: Final = frozenset({Why.NO_PROCESS, Why.STOPPING, Why.UNHANDLED_AT_EXIT})
"""Causes that mean the receiver has ended or is ending."""


class DeadLetters:
    """Counts by cause, and a ring buffer of the last ``capacity``. Adding must stay cheap: senders
    may flood a process that has ended.
    """

    __slots__ = ("_kept", "announce", "counts", "late")

    def __init__(self, capacity: int) -> None:
        self.counts: Counter[Why] = Counter()
        self.late = 0
        """Messages that came after the end of their receiver and are declared harmless then; see
        :class:`MayBeLate`.
        """
        self.announce: Callable[[DeadLetter], None] | None = None
        """Called with each dead letter, if the node publishes them."""
        # maxlen: the ring drops its oldest entry on purpose; the counts stay complete.
        self._kept: deque[tuple[PID | Alias, object, str, Why, float]] = deque(maxlen=capacity)

    def announce_to(self, function: Callable[[DeadLetter], None] | None) -> None:
        """Call ``function`` with each dead letter from now on; None calls none."""
        self.announce = function

    @property
    def total(self) -> int:
        """The number of dead letters since the node started."""
        return self.counts.total()

    def add(self, sender: PID | Alias, target: object, message: object, why: Why) -> None:
        """Count an undelivered message, and record its sender, target and type."""
        self.add_type(sender, target, type(message), why)

    def add_type(self, sender: PID | Alias, target: object, kind: type, why: Why) -> None:
        """Count an undelivered message of a type, which may still be encoded."""
        if issubclass(kind, MayBeLate) and why in _ENDED:
            self.late += 1
            return
        self.counts[why] += 1
        entry = (sender, target, kind.__qualname__, why, time.time())
        self._kept.append(entry)
        if self.announce is not None:
            self.announce(DeadLetter(*entry))

    def add_all(self, envelopes: Sequence[Envelope], target: object, why: Why) -> None:
        """Count the messages that a receiver left unhandled. Faster than `add` for each of them."""
        if self.announce is not None:
            for _, sender, _, message in envelopes:
                self.add(sender, target, message, why)
            return
        dead = (
            # Not isinstance(), which reads `message.__class__`: a lazy proxy asks the object behind
            # it, and an unbound proxy raises. That exception would end the node.
            [each for each in envelopes if not issubclass(type(each[3]), MayBeLate)]
            if why in _ENDED
            else envelopes
        )
        self.late += len(envelopes) - len(dead)
        if dead:
            self.counts[why] += len(dead)
            now = time.time()
            self._kept.extend(
                [
                    (sender, target, type(message).__qualname__, why, now)
                    for _, sender, _, message in dead
                ]
            )

    def last(self, count: int | None = None) -> list[DeadLetter]:
        """The most recent dead letters, newest last."""
        skip = 0 if count is None else max(0, len(self._kept) - count)
        return [DeadLetter(*entry) for entry in islice(self._kept, skip, None)]
