"""Where a message goes that has nowhere to go: counted, the last few kept, never their contents."""

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
"""The receiver has ended, or is ending."""


class DeadLetters:
    """Counts by cause, and a ring of the last ``capacity``. Adding must stay cheap: floods to dead
    processes happen.
    """

    __slots__ = ("_kept", "announce", "counts", "late")

    def __init__(self, capacity: int) -> None:
        self.counts: Counter[Why] = Counter()
        self.late = 0
        """Messages that came after the end of their receiver, as they may; see :class:`MayBeLate`.
        """
        self.announce: Callable[[DeadLetter], None] | None = None
        """Told of each one, by whoever publishes them."""
        # A ring that forgets its oldest entry is what is wanted here; the counts forget nothing.
        self._kept: deque[tuple[PID | Alias, object, str, Why, float]] = deque(maxlen=capacity)

    @property
    def total(self) -> int:
        """How many there have been since the node started."""
        return self.counts.total()

    def add(self, sender: PID | Alias, target: object, message: object, why: Why) -> None:
        """Count a message that was not delivered, and remember who sent what kind of thing to whom."""
        if isinstance(message, MayBeLate) and why in _ENDED:
            self.late += 1
            return
        self.counts[why] += 1
        entry = (sender, target, type(message).__qualname__, why, time.time())
        self._kept.append(entry)
        if self.announce is not None:
            self.announce(DeadLetter(*entry))

    def add_all(self, envelopes: Sequence[Envelope], target: object, why: Why) -> None:
        """Count messages that one receiver did not come to. For many it is faster than one after
        the other.
        """
        if self.announce is not None:
            for _, sender, _, message in envelopes:
                self.add(sender, target, message, why)
            return
        dead = (
            [one for one in envelopes if not isinstance(one[3], MayBeLate)]
            if why in _ENDED
            else envelopes
        )
        self.late += len(envelopes) - len(dead)
        if dead:
            self.counts[why] += len(dead)
            now = time.time()
            self._kept.extend(
                [(one[1], target, type(one[3]).__qualname__, why, now) for one in dead]
            )

    def last(self, count: int | None = None) -> list[DeadLetter]:
        """The most recent dead letters, newest last."""
        skip = 0 if count is None else max(0, len(self._kept) - count)
        return [DeadLetter(*entry) for entry in islice(self._kept, skip, None)]
